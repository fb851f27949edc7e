"""Assignors of the broker.

``range`` divides each topic into consecutive partitions, one range per subscriber, in a fixed order of members: members of several topics
of one size get the same numbers of each, as needed for joins. ``uniform`` gives all members the same number of partitions and moves as few
as possible. Neither uses racks, like Kafka's since 4.0. Both are pure and do not depend on the order of arguments. Source: KIP-848.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

import msgspec

from ottla.broker.groups.consumer.reconciliation import Assignment

#: Passes over all classes of topics. One is enough if classes share no members; each further one roughly halves the imbalance.
ROUNDS_MAX = 64


class Subscriber(msgspec.Struct, frozen=True, kw_only=True):
    """A member in the view of an assignor."""

    member_id: str
    instance_id: str | None = None
    #: Ids of existing topics that it subscribes to.
    topics: frozenset[bytes] = frozenset()
    #: Its previous target.
    target: Assignment = msgspec.field(default_factory=dict)


Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Assignment]]


def assign_range(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Consecutive partitions per topic; static members first, by instance id, so that they keep theirs.

    ``sizes`` has each topic's number of partitions.
    """
    found: dict[str, dict[bytes, frozenset[int]]] = {subscriber.member_id: {} for subscriber in subscribers}
    members_of: dict[bytes, list[str]] = {}
    for subscriber in sorted(subscribers, key=_rank):
        for topic in subscriber.topics:
            members_of.setdefault(topic, []).append(subscriber.member_id)
    for topic, members in sorted(members_of.items()):
        share, extra = divmod(sizes[topic], len(members))
        start = 0
        for place, member_id in enumerate(members):
            end = start + share + (place < extra)
            if start == end:
                break
            found[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(found)


def _rank(subscriber: Subscriber) -> tuple[bool, str]:
    return (subscriber.instance_id is None, subscriber.instance_id or subscriber.member_id)


def assign_uniform(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """Equal numbers of partitions, up to one, as far as subscriptions allow; members keep what they can.

    ``sizes`` has each topic's number of partitions.
    """
    ordered = sorted(subscribers, key=lambda subscriber: subscriber.member_id)
    if not ordered:
        return {}
    topics = ordered[0].topics
    if all(subscriber.topics is topics or subscriber.topics == topics for subscriber in ordered):
        return _assign_even(ordered, {topic: sizes[topic] for topic in sorted(topics)})
    return _assign_uneven(ordered, sizes)


def _assign_even(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """For equal subscriptions: no member exceeds the quota; a member that already has one above it keeps it first."""
    share, extra = divmod(sum(sizes.values()), len(subscribers))
    free = {topic: set(range(size)) for topic, size in sizes.items()}
    held: list[dict[bytes, set[int]]] = []
    counts: list[int] = []
    for subscriber in subscribers:
        mine: dict[bytes, set[int]] = {}
        for topic in sorted(subscriber.target):
            left = free.get(topic)
            if left and (keep := left & subscriber.target[topic]):
                left -= keep
                mine[topic] = keep
        held.append(mine)
        counts.append(sum(map(len, mine.values())))
    quotas = [share] * len(subscribers)
    for index in sorted(range(len(subscribers)), key=lambda index: counts[index] <= share)[:extra]:
        quotas[index] += 1
    for index, quota in enumerate(quotas):
        if counts[index] > quota:
            _give_back(held[index], counts[index] - quota, free)
            counts[index] = quota
    pool = [(topic, number) for topic, numbers in free.items() for number in sorted(numbers)]
    taken = 0
    for index, quota in enumerate(quotas):
        for topic, number in pool[taken : taken + quota - counts[index]]:
            held[index].setdefault(topic, set()).add(number)
        taken += quota - counts[index]
    assert taken == len(pool), f"all partitions find a reader: {len(pool) - taken} are left"
    return {
        subscriber.member_id: {topic: frozenset(numbers) for topic, numbers in mine.items()}
        for subscriber, mine in zip(subscribers, held, strict=True)
    }


def _give_back(held: dict[bytes, set[int]], count: int, free: dict[bytes, set[int]]) -> None:
    """Takes ``count`` partitions from a member, the last ones first."""
    for topic in sorted(held, reverse=True):
        for number in sorted(held[topic], reverse=True)[:count]:
            held[topic].discard(number)
            free[topic].add(number)
            count -= 1
        if not held[topic]:
            del held[topic]
        if not count:
            return


@dataclass(slots=True, eq=False)
class TopicClass:
    """Topics with the same subscribers."""

    #: Indices of members, ascending.
    subscribers: tuple[int, ...]
    #: Partitions of this class by owner index, in a fixed order; the last is moved first.
    held: dict[int, list[tuple[bytes, int]]] = field(default_factory=dict)
    free: list[tuple[bytes, int]] = field(default_factory=list)


def _assign_uneven(subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int]) -> dict[str, Assignment]:
    """For different subscriptions: each partition of a subscribed topic gets one owner.

    Topics with the same subscribers form a class; its partitions are interchangeable. Members keep partitions of topics that they still
    subscribe to; free partitions go to the subscriber with the fewest, classes with few subscribers first. Then classes are balanced until
    no owner has two partitions more than another subscriber of the class. Each move reduces the sum of squares of the loads, so this ends.
    Loads of members without a common class, and chains of classes, are not compared.
    """
    loads = [0] * len(subscribers)
    classes = _classes(subscribers)
    by_topic = _keep_what_stays(subscribers, sizes, classes, loads)
    ordered = sorted(set(classes.values()), key=lambda each: (len(each.subscribers), each.subscribers))
    for each in ordered:
        _hand_out(each, loads)
    for _ in range(ROUNDS_MAX):
        moved = [_level(each, loads) for each in ordered]
        if not any(moved):
            break
    found: list[dict[bytes, set[int]]] = [{} for _ in subscribers]
    for each in ordered:
        for index, partitions in each.held.items():
            for topic, number in partitions:
                found[index].setdefault(topic, set()).add(number)
    assert sum(loads) == sum(sizes[topic] for topic in by_topic), "all partitions find a reader"
    return {
        subscriber.member_id: {topic: frozenset(numbers) for topic, numbers in mine.items()}
        for subscriber, mine in zip(subscribers, found, strict=True)
    }


def _classes(subscribers: Sequence[Subscriber]) -> dict[bytes, TopicClass]:
    by_topic: dict[bytes, list[int]] = {}
    for index, subscriber in enumerate(subscribers):
        for topic in subscriber.topics:
            by_topic.setdefault(topic, []).append(index)
    found: dict[tuple[int, ...], TopicClass] = {}
    return {topic: found.setdefault(tuple(indices), TopicClass(tuple(indices))) for topic, indices in sorted(by_topic.items())}


def _keep_what_stays(
    subscribers: Sequence[Subscriber], sizes: Mapping[bytes, int], classes: dict[bytes, TopicClass], loads: list[int]
) -> dict[bytes, set[int]]:
    """Fills ``held`` with partitions that members keep, ``free`` with the rest; returns free partitions by topic."""
    free = {topic: set(range(sizes[topic])) for topic in classes}
    for index, subscriber in enumerate(subscribers):
        for topic, numbers in sorted(subscriber.target.items()):
            if topic in subscriber.topics and (keep := free[topic] & numbers):
                free[topic] -= keep
                classes[topic].held.setdefault(index, []).extend((topic, number) for number in sorted(keep))
                loads[index] += len(keep)
    for topic, left in free.items():
        classes[topic].free.extend((topic, number) for number in sorted(left))
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


#: By Kafka's names; the first is used if members request none.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
