"""Messages with very many elements are freed in steps, and nothing that something else uses is changed."""

from weakref import WeakSet

from ottla.wire import freeing
from ottla.wire.freeing import freed_in_turns
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic


class Element:
    pass


def test_the_elements_of_a_list_are_freed_in_steps() -> None:
    elements = [Element() for _ in range(2 * freeing.TURN_OBJECTS + 7)]
    alive, work = WeakSet(elements), freed_in_turns([elements])
    del elements
    left = [len(alive) for _ in work]
    assert [many // freeing.TURN_OBJECTS for many in left] == [1, 0], left
    assert not alive


def test_long_lists_inside_of_messages_are_freed_in_steps() -> None:
    def steps(topics: int, partitions: int) -> int:
        asked = [FetchTopic(topic=f"t-{each}", partitions=[FetchPartition() for _ in range(partitions)]) for each in range(topics)]
        return sum(1 for _ in freed_in_turns([FetchRequest(topics=asked), None]))

    assert steps(1, 20 * freeing.TURN_OBJECTS) >= 20
    assert steps(20 * freeing.TURN_OBJECTS, 1) >= 20
    assert steps(10, freeing.LIST_MAX) >= 1
    assert steps(2, 2) == 0


def test_what_something_else_uses_stays_as_it_is() -> None:
    partitions = [FetchPartition(partition=each) for each in range(2_000)]
    request, same = (FetchRequest(topics=[FetchTopic(topic="t", partitions=list(partitions))] * 300) for _ in range(2))
    for _ in freed_in_turns([request, partitions]):
        pass
    assert request == same
    assert [one.partition for one in partitions] == list(range(2_000))
