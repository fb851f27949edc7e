"""Invariants of logs. Checkers get what clients observe and, at the end, the content of every log; ``problems`` must stay empty.

``final[partition]`` is the log after all faults were undone: a list of (offset, value) from the log start on.
"""

from collections.abc import Mapping
from itertools import pairwise

from ottla.sim.compacted_topic import is_tombstone, key_of

Log = list[tuple[int, bytes]]


class Checker:
    """Base of the checkers: ignores everything."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        #: By partition: the offset up to which clients asked to delete records.
        self.deleted_to: Mapping[int, int] = {}

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        """A producer sent a batch."""

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        """The broker acknowledged a batch with acks=all."""

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        """A consumer read a record."""

    def watermark(self, reader: int, partition: int, offset: int) -> None:
        """A consumer got the high watermark."""

    def finish(self, final: dict[int, Log]) -> None:
        """The history is over."""


class AcknowledgedIsKept(Checker):
    """Records that were acknowledged with acks=all are not lost, and keep their offset, unless they were deleted."""

    def __init__(self) -> None:
        super().__init__()
        self._acknowledged: dict[tuple[int, int], bytes] = {}

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for place, value in enumerate(values):
            self._acknowledged[partition, base_offset + place] = value

    def finish(self, final: dict[int, Log]) -> None:
        held = {(partition, offset): value for partition, log in final.items() for offset, value in log}
        for place, value in self._acknowledged.items():
            if place[1] >= self.deleted_to.get(place[0], 0) and held.get(place) != value:
                self.problems.append(f"lost: {value[:20]!r} was acknowledged at {place}; there is {held.get(place, b'nothing')[:20]!r}")


class NoDuplicates(Checker):
    """A value of an idempotent producer is in the log at most once."""

    def __init__(self) -> None:
        super().__init__()
        self._idempotent: set[bytes] = set()

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        if idempotent:
            self._idempotent.update(values)

    def finish(self, final: dict[int, Log]) -> None:
        for partition, log in final.items():
            seen: dict[bytes, int] = {}
            for offset, value in log:
                if value in seen and value in self._idempotent:
                    self.problems.append(f"duplicate: {value[:20]!r} at {seen[value]} and {offset} of partition {partition}")
                seen[value] = offset


class OffsetsAreDense(Checker):
    """From the log start to the end every offset has a record that a producer sent."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: set[bytes] = set()

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        self._sent.update(values)

    def finish(self, final: dict[int, Log]) -> None:
        for partition, log in final.items():
            for (before, _), (after, _) in pairwise(log):
                if after != before + 1:
                    self.problems.append(f"gap: offset {before} of partition {partition} is followed by {after}")
            for offset, value in log:
                if value not in self._sent:
                    self.problems.append(f"invented: nobody sent {value[:20]!r}, at {offset} of partition {partition}")


class OffsetsAreNeverReused(Checker):
    """A record that a consumer read keeps its offset, for every other reader and at the end."""

    def __init__(self) -> None:
        super().__init__()
        self._read: dict[tuple[int, int], bytes] = {}

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        before = self._read.setdefault((partition, offset), value)
        if before != value:
            self.problems.append(f"reused: offset {offset} of partition {partition} held {before[:20]!r}, now {value[:20]!r}")

    def finish(self, final: dict[int, Log]) -> None:
        for partition, log in final.items():
            for offset, value in log:
                self.read(-1, partition, offset, value)
            held = {offset for offset, _ in log}
            kept_from = self.deleted_to.get(partition, 0)
            gone = [offset for where, offset in self._read if where == partition and offset >= kept_from and offset not in held]
            if gone:
                self.problems.append(f"vanished: offsets {sorted(gone)[:5]} of partition {partition} were read and are gone")


class OrderIsKept(Checker):
    """Records of an idempotent producer are in the order in which it sent them, without gaps."""

    def __init__(self) -> None:
        super().__init__()
        self._order: dict[bytes, tuple[int, int]] = {}
        self._count: dict[int, int] = {}

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        if idempotent:
            for value in values:
                self._order[value] = (producer, self._count.get(producer, 0))
                self._count[producer] = self._count.get(producer, 0) + 1

    def finish(self, final: dict[int, Log]) -> None:
        for log in final.values():
            last: dict[int, int] = {}
            for offset, value in log:
                if value in self._order:
                    producer, place = self._order[value]
                    if place != last.get(producer, -1) + 1:
                        self.problems.append(f"order: record {place} of producer {producer} follows {last.get(producer, -1)}, at {offset}")
                    last[producer] = place


class OffsetsStay(Checker):
    """Compaction keeps offsets: a value acknowledged or read at an offset is the only one there, and offsets increase."""

    def __init__(self) -> None:
        super().__init__()
        self._values: dict[tuple[int, int], bytes] = {}
        self._sent: set[bytes] = set()

    def sent(self, producer: int, partition: int, values: list[bytes], *, idempotent: bool) -> None:
        self._sent.update(values)

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for place, value in enumerate(values):
            self.read(-1, partition, base_offset + place, value)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        before = self._values.setdefault((partition, offset), value)
        if before != value:
            self.problems.append(f"moved: offset {offset} of partition {partition} held {before[:20]!r}, now {value[:20]!r}")
        if value not in self._sent:
            self.problems.append(f"invented: nobody sent {value[:20]!r}, at {offset} of partition {partition}")

    def finish(self, final: dict[int, Log]) -> None:
        for partition, log in final.items():
            for offset, value in log:
                self.read(-1, partition, offset, value)
            for (before, _), (after, _) in pairwise(log):
                if after <= before:
                    self.problems.append(f"disorder: offset {before} of partition {partition} is followed by {after}")


class LastValueIsKept(Checker):
    """In a compacted topic the latest acknowledged value of each key can be read. If it was a tombstone, no earlier value can."""

    def __init__(self) -> None:
        super().__init__()
        #: (partition, key) -> offset and value acknowledged or read last.
        self._newest: dict[tuple[int, bytes], tuple[int, bytes]] = {}

    def acknowledged(self, partition: int, base_offset: int, values: list[bytes]) -> None:
        for place, value in enumerate(values):
            self.read(-1, partition, base_offset + place, value)

    def read(self, reader: int, partition: int, offset: int, value: bytes) -> None:
        where = (partition, key_of(value))
        self._newest[where] = max(self._newest.get(where, (-1, b"")), (offset, value))

    def finish(self, final: dict[int, Log]) -> None:
        last = {(partition, key_of(value)): offset for partition, log in final.items() for offset, value in log}
        for where, (offset, value) in self._newest.items():
            found = last.get(where)
            if found is None and is_tombstone(value):
                continue
            if found is None or found < offset:
                self.problems.append(f"lost: {where} had {value[:20]!r} at {offset}; the last one in the log is at {found}")


class WatermarkNeverFalls(Checker):
    """The high watermark that a consumer gets never decreases."""

    def __init__(self) -> None:
        super().__init__()
        self._highest: dict[tuple[int, int], int] = {}

    def watermark(self, reader: int, partition: int, offset: int) -> None:
        before = self._highest.get((reader, partition), 0)
        if offset < before:
            self.problems.append(f"high watermark of partition {partition} fell from {before} to {offset}")
        self._highest[reader, partition] = max(before, offset)
