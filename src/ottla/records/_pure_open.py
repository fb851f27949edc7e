"""Open batches of a producer in plain Python: adds records one by one to the open batch of their partition.

    topics      name -> lanes by partition, each an open batch and its owner, or empty
    keyless     records without a key go to one lane of a topic for a number of bytes

``put`` handles the common case. It returns None, without a change, if there is no open batch with space, if the memory limit is reached,
or if the arguments are not plain str, bytes and None; the caller then takes the general path. The compiled ``put`` is atomic for
the threads of the interpreter; this one needs a lock. Both need ``shut`` before other code uses a batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

from ottla.records._pure_build import Builder, murmur2


class _Topic:
    __slots__ = ("here", "lanes", "least", "left")

    def __init__(self) -> None:
        self.lanes: list[tuple[Builder, Any] | None] = []
        #: Partition for records without a key, -1 if not chosen.
        self.here = -1
        #: Remaining bytes for it, and the lower limit of that number, at most 0.
        self.left = 0
        self.least = 0


class OpenBatches:
    """``give(owner, index, timestamp_ms)`` makes the result of ``put``; ``clock_ns`` is the time of records without a timestamp."""

    __slots__ = ("_clock_ns", "_give", "_ignore_keys", "_topics", "limit", "used")

    def __init__(self, limit: int, give: Callable[[Any, int, int], Any], clock_ns: Callable[[], int], ignore_keys: bool = False) -> None:
        self._topics: dict[str, _Topic] = {}
        self.limit = limit
        #: Charged bytes of all batches.
        self.used = 0
        self._give = give
        self._clock_ns = clock_ns
        self._ignore_keys = ignore_keys

    def charge(self, size: int) -> None:
        """Adds bytes that did not come through ``put``; negative numbers release bytes."""
        self.used += size

    def resize(self, topic: str, count: int) -> None:
        """Sets the topic's number of partitions."""
        found = self._topics.setdefault(topic, _Topic())
        if len(found.lanes) != count:
            found.lanes = (found.lanes + [None] * count)[:count]
            if found.here >= count:
                found.here = -1

    def forget(self, topic: str) -> None:
        """Removes a topic."""
        self._topics.pop(topic, None)

    def open(self, topic: str, partition: int, builder: Builder, owner: Any) -> None:
        """Sets the open batch of a partition, for ``owner``."""
        found = self._topics.get(topic)
        if found is not None and 0 <= partition < len(found.lanes):
            found.lanes[partition] = (builder, owner)

    def shut(self, topic: str, partition: int) -> None:
        """Removes the open batch of a partition."""
        found = self._topics.get(topic)
        if found is not None and 0 <= partition < len(found.lanes):
            found.lanes[partition] = None

    def stick(self, topic: str, partition: int, left: int, least: int) -> None:
        """Sends records without a key to this partition (-1: none), until at most ``least`` of ``left`` bytes remain."""
        found = self._topics.get(topic)
        if found is not None:
            found.here = partition if partition < len(found.lanes) else -1
            found.left, found.least = left, least

    def stuck(self, topic: str) -> tuple[int, int]:
        """(partition for records without a key, remaining bytes)."""
        found = self._topics.get(topic)
        return (-1, 0) if found is None else (found.here, found.left)

    def spend(self, topic: str, size: int) -> None:
        """Counts bytes of records without a key that did not come through ``put``."""
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
        """Appends a record; returns the result of ``give``, or None."""
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
