"""Sticky assignors: balanced, with as few moves as possible. Pure.

If all members subscribe to the same topics, the shares are known: with 10 partitions for 4 members, two get 3 and two get 2. Each member
keeps its own up to its share; those that own the most get the larger shares; the rest is distributed.

Otherwise each member keeps its own, free partitions go to the subscriber with the fewest, and then partitions move, topic by topic, from
the member with the most to the one with the fewest, while they differ by 2 or more. The result is balanced in this sense: no partition
could move to a subscriber with at least two fewer.

A partition claimed by two members goes to the newer generation; if these are equal, neither keeps it.

Data of members, in the formats of Java's client:

    sticky              user data: [topic, [partition]] int32 generation    (StickyAssignorUserData 1; 0 has no generation)
    cooperative-sticky  owned partitions and generation of the subscription; user data: int32 generation, for older members

Source: KIP-54, KIP-341, KIP-429, KIP-792.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from ottla.base.ids import TopicPartition
from ottla.client.group.assignor import Assignment, Assignor, Member, by_topic, in_order, readers_of

NO_GENERATION = -1
#: User data with more topics or partitions is ignored.
CLAIMS_MAX = 1_000_000


class Sticky(Assignor):
    """Balanced and sticky; members revoke everything during a rebalance and mostly get it back."""

    name = "sticky"

    def __init__(self) -> None:
        self._owned: list[TopicPartition] = []
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return encode_claims(self._owned, self._generation) if self._owned else None

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._owned, self._generation = list(partitions), generation

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        return even(partitions, members, {member: decode_claims(told.user_data) for member, told in members.items()})


class CooperativeSticky(Assignor):
    """Balanced and sticky; members keep reading partitions that do not move."""

    name = "cooperative-sticky"
    cooperative = True

    def __init__(self) -> None:
        self._generation = NO_GENERATION

    def user_data(self, topics: Iterable[str]) -> bytes | None:
        return struct.pack(">i", self._generation)

    def assigned(self, partitions: Iterable[TopicPartition], generation: int) -> None:
        self._generation = generation

    def assign(self, partitions: Mapping[str, int], members: Mapping[str, Member]) -> Assignment:
        claims: dict[str, tuple[list[TopicPartition], int]] = {}
        for member, told in members.items():
            generation = told.generation
            if generation == NO_GENERATION and told.user_data and len(told.user_data) >= 4:
                generation = struct.unpack_from(">i", told.user_data)[0]
            claims[member] = (list(told.owned), generation)
        return even(partitions, members, claims)


def even(
    partitions: Mapping[str, int], members: Mapping[str, Member], claims: Mapping[str, tuple[list[TopicPartition], int]]
) -> Assignment:
    """The assignment. `claims`: owned partitions of each member, and their generation."""
    kept = _kept(partitions, members, claims)
    if len({one.topics for one in members.values()}) <= 1:
        return _shared(partitions, members, kept)
    return _apart(partitions, members, kept)


def _kept(
    partitions: Mapping[str, int], members: Mapping[str, Member], claims: Mapping[str, tuple[list[TopicPartition], int]]
) -> Assignment:
    """Partitions that each member may keep: they exist, it subscribes to the topic, and no other member has a better claim."""
    best: dict[TopicPartition, tuple[int, str | None]] = {}
    for member in in_order(members):
        owned, generation = claims[member]
        for tp in dict.fromkeys(owned):
            before = best.get(tp)
            if before is None or generation > before[0]:
                best[tp] = (generation, member)
            elif generation == before[0]:
                best[tp] = (generation, None)
    kept: Assignment = {member: [] for member in in_order(members)}
    for tp, (_, owner) in best.items():
        if owner is not None and tp.topic in members[owner].topics and 0 <= tp.partition < partitions.get(tp.topic, 0):
            kept[owner].append(tp)
    return kept


def _shared(partitions: Mapping[str, int], members: Mapping[str, Member], kept: Assignment) -> Assignment:
    """All members subscribe to the same topics."""
    if not members:
        return {}
    topics = next(iter(members.values())).topics
    every = [TopicPartition(topic, index) for topic in sorted(partitions) if topic in topics for index in range(partitions[topic])]
    least, more = divmod(len(every), len(members))
    made: Assignment = {}
    # Members that own the most get the larger shares, so that the fewest must revoke.
    for member in sorted(kept, key=lambda one: -len(kept[one])):
        owned = sorted(kept[member])
        size = least + (more > 0 and len(owned) > least)
        more -= size - least
        made[member] = owned[:size]
    taken = {tp for owned in made.values() for tp in owned}
    free = iter([tp for tp in every if tp not in taken])
    hungry = [member for member in kept if len(made[member]) < least]
    while hungry:
        for member in hungry:
            made[member].append(next(free))
        hungry = [member for member in hungry if len(made[member]) < least]
    for tp, member in zip(free, (member for member in kept if len(made[member]) == least), strict=False):
        made[member].append(tp)
    return {member: made[member] for member in kept}


def _apart(partitions: Mapping[str, int], members: Mapping[str, Member], kept: Assignment) -> Assignment:
    """Members subscribe to different topics."""
    readers = readers_of(members)
    #: topic -> member -> partitions
    held: dict[str, dict[str, list[int]]] = {topic: {} for topic in sorted(partitions) if readers.get(topic)}
    load = {member: len(owned) for member, owned in kept.items()}
    for member, owned in kept.items():
        for topic, partition in sorted(owned):
            held[topic].setdefault(member, []).append(partition)
    rank = {member: index for index, member in enumerate(kept)}
    # Topics with the fewest subscribers first: their partitions have the fewest alternatives.
    for topic in sorted(held, key=lambda one: (len(readers[one]), one)):
        taken = {partition for some in held[topic].values() for partition in some}
        free = [partition for partition in range(partitions[topic]) if partition not in taken]
        heap = [(load[member], rank[member], member) for member in readers[topic]]
        heapify(heap)
        for partition in free:
            _, _, member = heap[0]
            held[topic].setdefault(member, []).append(partition)
            load[member] += 1
            heapreplace(heap, (load[member], rank[member], member))
    while sum(_levelled(held[topic], readers[topic], load, rank) for topic in held):
        pass
    made: Assignment = {member: [] for member in kept}
    for topic, holders in held.items():
        for member, some in holders.items():
            made[member] += [TopicPartition(topic, partition) for partition in sorted(some)]
    return made


def _levelled(holders: dict[str, list[int]], readers: list[str], load: dict[str, int], rank: dict[str, int]) -> bool:
    """Moves partitions of one topic while that balances two members; each move reduces the sum of squares of the loads. Returns whether
    any moved.
    """
    most = [(-load[member], rank[member], member) for member, some in holders.items() if some]
    least = [(load[member], rank[member], member) for member in readers]
    heapify(most)
    heapify(least)
    moved = False
    while most and least:
        high, _, giver = heappop(most)
        if -high != load[giver] or not holders[giver]:
            if holders[giver]:
                heappush(most, (-load[giver], rank[giver], giver))
            continue
        while least[0][0] != load[least[0][2]]:
            member = least[0][2]
            heapreplace(least, (load[member], rank[member], member))
        taker = least[0][2]
        if load[giver] - load[taker] < 2:
            break
        holders.setdefault(taker, []).append(holders[giver].pop())
        load[giver] -= 1
        load[taker] += 1
        moved = True
        heappush(most, (-load[giver], rank[giver], giver))
        heapreplace(least, (load[taker], rank[taker], taker))
    return moved


def encode_claims(owned: Iterable[TopicPartition], generation: int) -> bytes:
    """StickyAssignorUserData, version 1."""
    topics = by_topic(owned)
    parts = [struct.pack(">i", len(topics))]
    for topic, some in topics.items():
        name = topic.encode()
        parts.append(struct.pack(f">h{len(name)}si{len(some)}i", len(name), name, len(some), *some))
    return b"".join(parts) + struct.pack(">i", generation)


def decode_claims(data: bytes | None) -> tuple[list[TopicPartition], int]:
    """Owned partitions and their generation. Invalid data is no claim."""
    owned: list[TopicPartition] = []
    if not data:
        return owned, NO_GENERATION
    try:
        (count,) = struct.unpack_from(">i", data)
        at = 4
        for _ in range(min(count, CLAIMS_MAX)):
            (size,) = struct.unpack_from(">h", data, at)
            name, some = struct.unpack_from(f">{size}si", data, at + 2)
            at += 2 + size + 4
            topic = name.decode()
            if some > CLAIMS_MAX:
                return [], NO_GENERATION
            owned += [TopicPartition(topic, partition) for partition in struct.unpack_from(f">{some}i", data, at)]
            at += 4 * some
        generation = struct.unpack_from(">i", data, at)[0] if len(data) >= at + 4 else NO_GENERATION
    except (struct.error, UnicodeDecodeError):
        return [], NO_GENERATION
    return owned, generation
