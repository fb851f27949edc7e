"""Which partition a record goes to when its sender did not say.

With a key: Java's murmur2 of the key, so that all clients agree. Without: stay with one partition until `batch_size` bytes went there,
then move to another at random, which makes fuller batches than taking turns (KIP-480, KIP-794).
"""

from __future__ import annotations

from random import Random

from ottla.records import partition_for_key

#: Bytes that a record takes beside its value, about.
RECORD_OVERHEAD = 24


class Partitioner:
    """Remembers where keyless records of each topic currently go."""

    __slots__ = ("_rng", "_sticky", "_switch_bytes")

    def __init__(self, *, switch_bytes: int, rng: Random) -> None:
        self._switch_bytes = max(switch_bytes, 1)
        self._rng = rng
        #: By topic: [partition, bytes left before the next move].
        self._sticky: dict[str, list[int]] = {}

    def partition(self, topic: str, key: bytes | bytearray | memoryview | None, value_size: int, count: int) -> int:
        """The partition, out of `count`."""
        if key is not None:
            return partition_for_key(key, count)
        sticky = self._sticky.get(topic)
        if sticky is None or sticky[1] <= 0 or sticky[0] >= count:
            sticky = self._sticky[topic] = [self._another(None if sticky is None else sticky[0], count), self._switch_bytes]
        sticky[1] -= value_size + RECORD_OVERHEAD
        return sticky[0]

    def _another(self, last: int | None, count: int) -> int:
        if last is None or count == 1 or last >= count:
            return self._rng.randrange(count)
        step = self._rng.randrange(count - 1)
        return step if step < last else step + 1
