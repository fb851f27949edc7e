"""Assignors of the broker.

``range`` divides each topic into consecutive partitions, one range per subscriber, in a fixed order of members: members of several topics
of one size get the same numbers of each, as needed for joins. ``uniform`` gives all members the same number of partitions and moves as few
as possible. Neither uses racks, like Kafka's since 4.0. Both are pure and do not depend on the order of arguments. Source: KIP-848.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from ottla.broker.groups.consumer.heterogeneous_assignor import assign_uneven
from ottla.broker.groups.consumer.reconciliation import Assignment


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
    return assign_uneven([(each.member_id, each.topics, each.target) for each in ordered], sizes)


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


#: By Kafka's names; the first is used if members request none.
ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}
