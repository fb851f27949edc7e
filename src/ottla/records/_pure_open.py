"""Open batches in plain Python: the part of ``_pure`` that takes a producer's records one by one, each to the open batch of its partition.

    topics      name -> lanes by partition, each an open batch and its owner, or nothing
    keyless     records without a key go to one lane of a topic until so many bytes went there

``put`` does what is the same for every record and leaves all else to its caller: it answers None, and has changed nothing, when there is
no open batch with room, when the account of bytes is full, or when what it was given is not plainly str, bytes and None. The compiled
twin's ``put`` is one step for all threads of the interpreter; this one needs a lock around it. Both need ``shut`` before a batch is
touched otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ottla.records._pure_build import Builder, murmur2


class _Topic:
    __slots__ = ("here", "lanes", "least", "left")

    def __init__(self) -> None:
        self.lanes: list[tuple[Builder, Any] | None] = []
        #: Where records without a key go; -1: nowhere yet.
        self.here = -1
        #: Bytes that may go there, and how far below 0 that may fall.
        self.left = 0
        self.least = 0


class OpenBatches:
    """``give(owner, index, timestamp_ms)`` makes what ``put`` answers; ``clock_ns`` tells the time of records that bring none."""

    __slots__ = ("_clock_ns", "_give", "_ignore_keys", "_topics", "limit", "used")

    def __init__(self, limit: int, give: Callable[[Any, int, int], Any], clock_ns: Callable[[], int], ignore_keys: bool = False) -> None:
        self._topics: dict[str, _Topic] = {}
        self.limit = limit
        #: Bytes in all batches, as far as they were charged.
        self.used = 0
        self._give = give
        self._clock_ns = clock_ns
        self._ignore_keys = ignore_keys

    def charge(self, size: int) -> None:
        """Book bytes that did not come by ``put``, or, below 0, that are gone."""
        self.used += size

    def resize(self, topic: str, count: int) -> None:
        """The topic has so many partitions."""
        found = self._topics.setdefault(topic, _Topic())
        if len(found.lanes) != count:
            found.lanes = (found.lanes + [None] * count)[:count]
            if found.here >= count:
                found.here = -1

    def forget(self, topic: str) -> None:
        """Nothing is known of the topic any more."""
        self._topics.pop(topic, None)

    def open(self, topic: str, partition: int, builder: Builder, owner: Any) -> None:
        """Records of this partition go to ``builder`` from now on, on behalf of ``owner``."""
        found = self._topics.get(topic)
        if found is not None and 0 <= partition < len(found.lanes):
            found.lanes[partition] = (builder, owner)

    def shut(self, topic: str, partition: int) -> None:
        """No record of this partition goes anywhere from now on."""
        found = self._topics.get(topic)
        if found is not None and 0 <= partition < len(found.lanes):
            found.lanes[partition] = None

    def stick(self, topic: str, partition: int, left: int, least: int) -> None:
        """Records without a key go to this partition, until what is left of ``left`` bytes is ``least`` or less. -1: to none."""
        found = self._topics.get(topic)
        if found is not None:
            found.here = partition if partition < len(found.lanes) else -1
            found.left, found.least = left, least

    def stuck(self, topic: str) -> tuple[int, int]:
        """(where records without a key go, bytes left)."""
        found = self._topics.get(topic)
        return (-1, 0) if found is None else (found.here, found.left)

    def spend(self, topic: str, size: int) -> None:
        """Bytes without a key that did not come by ``put``."""
        found = self._topics.get(topic)
        if found is not None:
            found.left -= size

    def put(
        self,
        topic: str,
        value: bytes | None = None,
        key: bytes | None = None,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """Append a record; what ``give`` makes of its place, or None."""
        if timestamp_ms is None:
            timestamp_ms = self._clock_ns() // 1_000_000
        if type(topic) is not str or type(value) not in _BYTES or type(key) not in _BYTES or not _plain(headers):
            return None
        found = self._topics.get(topic)
        if found is None or self.used >= self.limit:
            return None
        lanes = found.lanes
        keyless = partition is None and (key is None or self._ignore_keys)
        if keyless:
            index = found.here
            if found.left <= found.least:
                return None
        elif partition is not None:
            index = partition
        elif key is not None and lanes:
            index = (murmur2(key) & 0x7FFFFFFF) % len(lanes)
        else:
            return None
        lane = lanes[index] if 0 <= index < len(lanes) else None
        if lane is None:
            return None
        builder, owner = lane
        before = builder.size
        place = builder.append(timestamp_ms, key, value, headers or ()) if before else None
        if place is None:
            return None
        grown = builder.size - before
        self.used += grown
        if keyless:
            found.left -= grown
        return self._give(owner, place, timestamp_ms)


_BYTES = (bytes, type(None))


def _plain(headers: Sequence[tuple[str, bytes | None]] | None) -> bool:
    return headers is None or (
        type(headers) in (tuple, list)
        and all(type(pair) is tuple and len(pair) == 2 and type(pair[0]) is str and type(pair[1]) in _BYTES for pair in headers)
    )
