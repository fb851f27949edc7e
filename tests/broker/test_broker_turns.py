"""Large requests are answered in turns, and others in between."""

from itertools import chain
from typing import Any

from access_rules import ALICE, grant, guarded, rule
from cluster import Broker, Cluster, Sent

from ottla.base.acls import Operation
from ottla.broker.turns import TURN_ELEMENTS, portions
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic

MANY = 2 * TURN_ELEMENTS + 200
VERSION = 9


def about(*names: str) -> MetadataRequest:
    return MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=False)


def unknown(number: int = MANY) -> list[str]:
    return [f"unknown-{each}" for each in range(number)]


def waiting(broker: Broker, request: MetadataRequest) -> Sent:
    """The request after the step of its arrival."""
    broker.cluster.turning = False
    sent = broker.send(request, VERSION)
    assert sent.waits and broker.turns_due == 1
    return sent


def create(cluster: Cluster, name: str, partitions: int) -> None:
    wanted = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
    assert cluster.controller.ask(CreateTopicsRequest(topics=[wanted], timeout_ms=1_000), 7).topics[0].error_code == 0


def test_portions_have_all_elements_in_order_and_are_no_heavier_than_a_turn() -> None:
    weights = [1] * 700 + [TURN_ELEMENTS + 1] + [200, 200, 200]
    found = list(portions(range(len(weights)), weights.__getitem__))
    assert list(chain(*found)) == list(range(len(weights)))
    assert [sum(weights[each] for each in portion) for portion in found] == [500, 200, TURN_ELEMENTS + 1, 400, 200]
    assert list(portions([], len)) == []


def test_a_large_request_is_answered_as_small_ones_are() -> None:
    cluster = Cluster()
    broker = cluster.topic("a", partitions=3)
    names = [*unknown(), "a", *unknown(5), "a b"]
    large = broker.ask(about(*names), VERSION)
    distinct = list(dict.fromkeys(names))
    small: list[Any] = []
    for start in range(0, len(distinct), 100):
        small += broker.ask(about(*distinct[start : start + 100]), VERSION).topics
    assert large.topics == small
    assert large.brokers == broker.ask(about("a"), VERSION).brokers
    assert large.controller_id == 1


def test_other_requests_are_answered_between_the_turns_of_a_large_one() -> None:
    cluster = Cluster()
    broker = cluster.topic("a")
    large = waiting(broker, about(*unknown()))
    for _ in range(3):
        broker.turn()
        assert large.waits
        assert broker.ask(about("a"), VERSION).topics[0].error_code == 0
    broker.turn()
    assert len(large.answer.topics) == MANY
    assert broker.turns_due == 0


def test_large_requests_take_turns() -> None:
    broker = Cluster()[1]
    first = waiting(broker, about(*unknown(TURN_ELEMENTS * 3)))
    second = broker.send(about(*unknown(TURN_ELEMENTS + 1)), VERSION)
    assert broker.turns_due == 1, "one turn at a time, whatever the number of requests"
    for _ in range(6):
        broker.turn()
    assert first.waits and not second.waits
    broker.turn()
    assert not first.waits


def test_the_work_of_a_closed_connection_ends() -> None:
    broker = Cluster()[1]
    gone = waiting(broker, about(*unknown()))
    broker.turn()
    other = broker.send(about(*unknown(TURN_ELEMENTS + 1)), VERSION)
    broker.hang_up(gone)
    for _ in range(4):
        broker.turn()
    assert gone.waits and not other.waits
    assert broker.turns_due == 0


def test_all_topics_are_answered_in_turns_by_their_partitions() -> None:
    cluster = Cluster()
    broker = cluster[1]
    for name in ("a", "b", "c"):
        create(cluster, name, TURN_ELEMENTS // 2)
    large = waiting(broker, MetadataRequest(topics=None))
    broker.turn()
    cluster.turning = True
    assert cluster.controller.ask(DeleteTopicsRequest(topic_names=["c"], timeout_ms=1_000), 5).responses[0].error_code == 0
    broker.turn()
    assert [(topic.name, len(topic.partitions)) for topic in large.answer.topics] == [("a", 250), ("b", 250)]


def test_the_rules_of_a_turn_count() -> None:
    cluster = guarded(topics=("a", "b"), partitions=TURN_ELEMENTS)
    broker = cluster[1]
    cluster.turning = False
    large = broker.send(about("a", "b"), VERSION, principal=ALICE)
    broker.turn()
    cluster.turning = True
    grant(cluster, rule(Operation.DESCRIBE, name="b"))
    broker.turn()
    assert [topic.error_code for topic in large.answer.topics] == [errors.TopicAuthorizationFailed.code, 0]


def test_a_request_in_turns_creates_no_more_topics_than_one_step_does() -> None:
    cluster = Cluster(settings={"ottla.auto.create.topics.max": "7"})
    broker = cluster[1]
    large = waiting(broker, MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in unknown()]))
    while large.waits:
        # Creations under way end between the turns.
        broker.turn()
    assert 0 < len(broker.node.context.image.topics) <= 7
    assert not broker.node.context.creating


class Broken(dict[str, Any]):
    """Topics that cannot be looked up."""

    def get(self, name: str, other: Any = None) -> Any:
        raise ZeroDivisionError(name)


def test_an_unexpected_exception_in_a_turn_is_answered() -> None:
    cluster = Cluster()
    broker, image = cluster.topic("a"), cluster[1].node.context.image
    large = waiting(broker, about(*unknown()))
    broker.turn()
    cluster.failures, topics, image.topics = [], image.topics, Broken()
    broker.turn()
    image.topics = topics
    assert [type(failure.error) for failure in cluster.failures] == [ZeroDivisionError]
    assert large.answer.topics[0].error_code == errors.UnknownServerError.code
    assert broker.turns_due == 0
    assert broker.ask(about("a"), VERSION).topics[0].error_code == 0
