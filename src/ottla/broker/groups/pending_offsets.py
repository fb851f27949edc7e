"""Offsets of transactions that are not decided yet, by producer id.

A transaction's offsets are records of a transactional batch in ``__consumer_offsets``. They count when the transaction's marker follows::

    offset    5          6             7             8
              p1: t-0=3  t-0=9         p2: t-0=4     commit p2       t-0 is 4: the latest record of a decided transaction counts
              pending    committed     pending

If p1 is committed now, t-0 stays 4, because record 7 is later than record 5. Pending offsets can only be overtaken by later records, so an
overtaken one keeps no value; it stays pending until its marker, because the offset is unstable until then.

Source: Kafka's OffsetMetadataManager.replay and replayEndTransactionMarker; KIP-98, KIP-447.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ottla.broker.groups.memory_limits import OFFSET_BYTES, text_bytes
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue

#: Group, topic, partition.
Place = tuple[str, str, int]


class PendingOffset(NamedTuple):
    """An offset of an open transaction: the offset of its record, and its value; None if a later record of the same place counts."""

    record_offset: int
    value: OffsetCommitValue | None


class PendingOffsets:
    """All pending offsets of a shard."""

    __slots__ = ("_by_producer", "_producers", "bytes")

    def __init__(self) -> None:
        #: Memory of all pending offsets, an estimate as in ``memory_limits.py``.
        self.bytes = 0
        #: Without empty entries.
        self._by_producer: dict[int, dict[Place, PendingOffset]] = {}
        #: Producers with an open transaction that has offsets, by group; without empty entries.
        self._producers: dict[str, set[int]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def holds(self, group_id: str) -> bool:
        """Whether a transaction with offsets of this group is open."""
        return group_id in self._producers

    def unstable(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether an open transaction has an offset of this partition."""
        place = group_id, topic, partition
        return any(place in self._by_producer[producer_id] for producer_id in self._producers.get(group_id, ()))

    def places(self, group_id: str | None = None) -> Iterator[Place]:
        """Places with pending offsets, of one group or of all; one may come several times."""
        producers = self._by_producer if group_id is None else self._producers.get(group_id, ())
        for producer_id in producers:
            for place in self._by_producer[producer_id]:
                if group_id is None or place[0] == group_id:
                    yield place

    def add(self, producer_id: int, record_offset: int, key: OffsetCommitKey, value: OffsetCommitValue) -> None:
        """A transactional record. A repeated place replaces the former offset."""
        places = self._by_producer.setdefault(producer_id, {})
        place = key.group, key.topic, key.partition
        before = places.get(place)
        places[place] = PendingOffset(record_offset, value)
        self.bytes += _bytes(value) + (OFFSET_BYTES if before is None else -_bytes(before.value))
        self._producers.setdefault(key.group, set()).add(producer_id)

    def overtaken(self, key: OffsetCommitKey, record_offset: int | None = None) -> None:
        """A record of this place counts now: pending ones before ``record_offset``, by default all, will not."""
        place = key.group, key.topic, key.partition
        for producer_id in self._producers.get(key.group, ()):
            places = self._by_producer[producer_id]
            pending = places.get(place)
            if pending is not None and (record_offset is None or pending.record_offset < record_offset):
                self.bytes -= _bytes(pending.value)
                places[place] = PendingOffset(pending.record_offset, None)

    def forget(self, key: OffsetCommitKey) -> None:
        """The offset of this place was deleted: pending ones are dropped."""
        place = key.group, key.topic, key.partition
        for producer_id in list(self._producers.get(key.group, ())):
            pending = self._by_producer[producer_id].pop(place, None)
            if pending is not None:
                self.bytes -= OFFSET_BYTES + _bytes(pending.value)
                self._close_unused(producer_id, key.group)

    def end(self, producer_id: int) -> dict[Place, PendingOffset]:
        """The transaction of a producer is decided: removes and returns its offsets."""
        places = self._by_producer.pop(producer_id, {})
        for group_id, _, _ in places:
            self._leave(group_id, producer_id)
        self.bytes -= sum(OFFSET_BYTES + _bytes(pending.value) for pending in places.values())
        return places

    def _close_unused(self, producer_id: int, group_id: str) -> None:
        places = self._by_producer[producer_id]
        if not any(place[0] == group_id for place in places):
            self._leave(group_id, producer_id)
        if not places:
            del self._by_producer[producer_id]

    def _leave(self, group_id: str, producer_id: int) -> None:
        producers = self._producers.get(group_id)
        if producers is not None:
            producers.discard(producer_id)
            if not producers:
                del self._producers[group_id]


def _bytes(value: OffsetCommitValue | None) -> int:
    return 0 if value is None else text_bytes(value.metadata)
