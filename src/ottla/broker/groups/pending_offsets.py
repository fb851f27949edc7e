"""Offsets of transactions that are not decided yet, by group and producer id.

A transaction's offsets are records of a transactional batch in ``__consumer_offsets``. They count when the transaction's marker follows::

    offset    5          6             7             8
              p1: t-0=3  t-0=9         p2: t-0=4     commit p2       t-0 is 4: the latest record of a decided transaction counts
              pending    committed     pending

If p1 is committed now, t-0 stays 4, because record 7 is later than record 5. Pending offsets can only be overtaken by later records, so an
overtaken one keeps no value; it stays pending until its marker, because the offset is unstable until then.

Source: Kafka's OffsetMetadataManager.replay and replayEndTransactionMarker; KIP-98, KIP-447.
"""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ottla.broker.groups.memory_limits import OFFSET_BYTES, text_bytes
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue

#: Topic and partition.
Place = tuple[str, int]


class PendingOffset(NamedTuple):
    """An offset of an open transaction: the offset of its record, and its value; None if a later record of the same place counts."""

    record_offset: int
    value: OffsetCommitValue | None


class PendingOffsets:
    """All pending offsets of a shard."""

    __slots__ = ("_by_group", "_groups", "bytes")

    def __init__(self) -> None:
        #: Memory of all pending offsets, an estimate as in ``memory_limits.py``.
        self.bytes = 0
        #: By group and producer; without empty entries.
        self._by_group: dict[str, dict[int, dict[Place, PendingOffset]]] = {}
        #: The groups of which the open transaction of a producer has offsets; without empty entries.
        self._groups: dict[int, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_group)

    def holds(self, group_id: str) -> bool:
        """Whether a transaction with offsets of this group is open."""
        return group_id in self._by_group

    def unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset of this partition."""
        producers = self._by_group.get(group_id)
        if producers is None:
            return False
        place = topic, partition
        return any(place in places for places in producers.values())

    def groups(self) -> list[str]:
        """Groups with pending offsets."""
        return list(self._by_group)

    def places(self, group_id: str) -> Iterator[Place]:
        """Places of a group with pending offsets; one may come several times. Offsets may be added and dropped meanwhile."""
        for producer_id in list(self._by_group.get(group_id, ())):
            yield from list(self._by_group.get(group_id, {}).get(producer_id, ()))

    def sorted_places(self) -> list[tuple[str, str, int]]:
        """Group, topic and partition of all pending offsets."""
        return sorted((group_id, *place) for group_id in self._by_group for place in self.places(group_id))

    def add(self, producer_id: int, record_offset: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """A transactional record. A repeated place replaces the former offset."""
        group_id = key.group
        producers = self._by_group.get(group_id)
        if producers is None:
            producers = self._by_group[group_id] = {}
        places = producers.get(producer_id)
        if places is None:
            places = producers[producer_id] = {}
            self._groups.setdefault(producer_id, {})[group_id] = None
        place = key.topic, key.partition
        before = places.get(place)
        places[place] = PendingOffset(record_offset, value)
        self.bytes += _bytes(value) + (OFFSET_BYTES if before is None else -_bytes(before.value))

    def overtaken(self, key: OffsetCommitKey, record_offset: int | None = None) -> None:
        """A record of this place counts now: pending ones before ``record_offset``, by default all, will not."""
        place = key.topic, key.partition
        for places in self._by_group.get(key.group, {}).values():
            pending = places.get(place)
            if pending is not None and (record_offset is None or pending.record_offset < record_offset):
                self.bytes -= _bytes(pending.value)
                places[place] = PendingOffset(pending.record_offset, None)

    def forget(self, key: OffsetCommitKey) -> None:
        """The offset of this place was deleted: pending ones are dropped."""
        place = key.topic, key.partition
        producers = self._by_group.get(key.group, {})
        for producer_id, places in list(producers.items()):
            pending = places.pop(place, None)
            if pending is not None:
                self.bytes -= OFFSET_BYTES + _bytes(pending.value)
                if not places:
                    self._leave(key.group, producer_id)

    def end(self, producer_id: int) -> Mapping[str, Mapping[Place, PendingOffset]]:
        """The transaction of a producer is decided: removes and returns its offsets, by group."""
        ended = {group_id: self._by_group[group_id][producer_id] for group_id in self._groups.get(producer_id, ())}
        for group_id, places in ended.items():
            self._leave(group_id, producer_id)
            texts = sum([_bytes(value) for _, value in places.values() if value is not None and value.metadata])
            self.bytes -= OFFSET_BYTES * len(places) + texts
        return ended

    def _leave(self, group_id: str, producer_id: int) -> None:
        """A producer has no offsets of a group any more."""
        producers, groups = self._by_group[group_id], self._groups[producer_id]
        del producers[producer_id], groups[group_id]
        if not producers:
            del self._by_group[group_id]
        if not groups:
            del self._groups[producer_id]


def _bytes(value: OffsetCommitValue | None) -> int:
    return 0 if value is None else text_bytes(value.metadata)
