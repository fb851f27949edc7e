"""Balanced assignment for members with different subscriptions.

Topics with the same subscribers form a class; its partitions are interchangeable. Members keep partitions of topics that they still
subscribe to; free partitions go to the subscriber with the fewest, classes with few subscribers first. Then classes are balanced until no
owner has two partitions more than another subscriber of the class. Each move reduces the sum of squares of the loads, so this ends. Loads
of members without a common class, and chains of classes, are not compared.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush, heapreplace

from ottla.broker.groups.consumer.reconciliation import Assignment

#: Passes over all classes. One is enough if classes share no members; each further one roughly halves the imbalance.
ROUNDS_MAX = 64


class TopicClass:
    """Topics with the same subscribers."""

    __slots__ = ("free", "held", "subscribers")

    def __init__(self, subscribers: tuple[int, ...]) -> None:
        #: Indices of members, ascending.
        self.subscribers = subscribers
        #: Partitions of this class by owner index, in a fixed order; the last is moved first.
        self.held: dict[int, list[tuple[bytes, int]]] = {}
        self.free: list[tuple[bytes, int]] = []


def assign_uneven(members: Sequence[tuple[str, frozenset[bytes], Assignment]], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Members are (id, topics, previous target), in a fixed order. Each partition of a subscribed topic gets one owner."""
    loads = [0] * len(members)
    classes = _classes(members)
    by_topic = _keep_what_stays(members, sizes, classes, loads)
    ordered = sorted(set(classes.values()), key=lambda each: (len(each.subscribers), each.subscribers))
    for each in ordered:
        _hand_out(each, loads)
    for _ in range(ROUNDS_MAX):
        moved = [_level(each, loads) for each in ordered]
        if not any(moved):
            break
    found: list[dict[bytes, set[int]]] = [{} for _ in members]
    for each in ordered:
        for index, partitions in each.held.items():
            for topic, number in partitions:
                found[index].setdefault(topic, set()).add(number)
    assert sum(loads) == sum(sizes[topic] for topic in by_topic), "all partitions find a reader"
    return {
        member_id: {topic: frozenset(numbers) for topic, numbers in mine.items()}
        for (member_id, _, _), mine in zip(members, found, strict=True)
    }


def _classes(members: Sequence[tuple[str, frozenset[bytes], Assignment]]) -> dict[bytes, TopicClass]:
    subscribers: dict[bytes, list[int]] = {}
    for index, (_, topics, _) in enumerate(members):
        for topic in topics:
            subscribers.setdefault(topic, []).append(index)
    found: dict[tuple[int, ...], TopicClass] = {}
    return {topic: found.setdefault(tuple(indices), TopicClass(tuple(indices))) for topic, indices in sorted(subscribers.items())}


def _keep_what_stays(
    members: Sequence[tuple[str, frozenset[bytes], Assignment]],
    sizes: Mapping[bytes, int],
    classes: dict[bytes, TopicClass],
    loads: list[int],
) -> dict[bytes, set[int]]:
    """Fills ``held`` with partitions that members keep, ``free`` with the rest; returns free partitions by topic."""
    free = {topic: set(range(sizes[topic])) for topic in classes}
    for index, (_, topics, target) in enumerate(members):
        for topic in sorted(target):
            if topic in topics and (keep := free[topic] & target[topic]):
                free[topic] -= keep
                classes[topic].held.setdefault(index, []).extend((topic, number) for number in sorted(keep))
                loads[index] += len(keep)
    for topic, numbers in free.items():
        classes[topic].free.extend((topic, number) for number in sorted(numbers))
    return free


def _hand_out(topics: TopicClass, loads: list[int]) -> None:
    heap = [(loads[index], index) for index in topics.subscribers]
    heapify(heap)
    for partition in topics.free:
        load, index = heap[0]
        topics.held.setdefault(index, []).append(partition)
        loads[index] = load + 1
        heapreplace(heap, (load + 1, index))
    topics.free.clear()


def _level(topics: TopicClass, loads: list[int]) -> bool:
    """Moves partitions from members with the most to those with the fewest while they differ by two; returns whether any moved."""
    load_of = loads.__getitem__
    owners = [index for index, partitions in topics.held.items() if partitions]
    if not owners or max(map(load_of, owners)) - min(map(load_of, topics.subscribers)) < 2:
        return False
    givers = [(-loads[index], index) for index in owners]
    takers = [(loads[index], index) for index in topics.subscribers]
    heapify(givers)
    heapify(takers)
    while givers:
        most, giver = givers[0]
        if -most != loads[giver] or not topics.held.get(giver):
            heappop(givers)
            if topics.held.get(giver):
                heappush(givers, (-loads[giver], giver))
            continue
        least, taker = takers[0]
        if least != loads[taker]:
            heapreplace(takers, (loads[taker], taker))
            continue
        if -most - least < 2:
            break
        topics.held.setdefault(taker, []).append(topics.held[giver].pop())
        loads[giver] -= 1
        loads[taker] += 1
    return True
