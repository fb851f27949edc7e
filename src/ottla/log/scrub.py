"""Scrubbing one segment: every batch is read and compared with its checksum, its neighbours and the offset index.

::

    expected offset 40   43        50                              67
    batches         | b  | b       | ?  CRC, or 4099 where 50 is due | b ...
                                   `- damage 50 to 66 ------------'
    index entries        ^ 49 at 4200                              ^ 70 at 9100

The checksum covers neither the base offset nor the leader epoch. So a batch must begin where the one before ended, or behind a hole that
compaction left; it must not overlap the next one; its epoch must be the one that the epoch table has for its offset. Where a batch jumps
over offsets and the next batch begins before its end, the first of the two is damaged.

Behind damage the scan goes on at the next sound batch. The header's own length leads there, or, where that is damaged, a search for the
next base offset with a fitting checksum. Work per batch is constant; no record is looked at.

The scan works on a segment that its owner may append to, truncate or replace meanwhile. It reads up to the size that it had when this
was planned. The owner discards the result if the log was truncated or the segment replaced since.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import Protocol

import msgspec

from ottla.base.ids import NO_EPOCH
from ottla.base.units import KiB, MiB
from ottla.log.batch_scan import Readable, whole_batches
from ottla.log.damage import Damage
from ottla.log.filenames import LOG, OFFSET_INDEX, segment_name
from ottla.log.index import OFFSET_ENTRY
from ottla.records.batch import (
    ATTRIBUTES_AT,
    CRC_AT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    MAGIC_AT,
    BatchHeader,
    crc_ok,
    parse_header,
)
from ottla.records.checksum import crc32c
from ottla.records.errors import RecordsError


class Directory(Protocol):
    """What a scrub needs of a disk."""

    def open(self, path: str) -> Readable: ...

    def read_file(self, path: str) -> bytes: ...


CHUNK_BYTES = 256 * KiB
#: The search for the next sound batch reads this much at once; a batch may begin in one portion and end in a later one.
SEARCH_BYTES = MiB
#: Damaged places of one segment that are told one by one; the last one covers the rest.
DAMAGES_MAX = 1_000


class ScrubPlan(msgspec.Struct, frozen=True):
    """What to scrub: one segment, up to a durable end."""

    directory: str
    base_offset: int
    #: Bytes of the segment when this was planned.
    size: int
    #: Where the next segment begins, or the log ends.
    bound: int
    #: Compaction may have left holes below.
    holes_below: int
    #: (epoch, first offset), both growing.
    epochs: tuple[tuple[int, int], ...]
    #: Whether the offset index on disk is complete, so that it can be compared.
    indexed: bool
    chunk_bytes: int = CHUNK_BYTES
    #: Batches from this offset on are not looked at; None: all are.
    upto: int | None = None
    #: Whether the segment may end before ``bound``, which nobody knows.
    open_end: bool = False


class ScrubResult(msgspec.Struct, frozen=True):
    """What a scrub found."""

    read_bytes: int
    batches: int
    damages: tuple[Damage, ...] = ()
    #: What is wrong with the offset index; empty when nothing is.
    index: str = ""


def carry_out(disk: Directory, plan: ScrubPlan) -> Iterator[int | ScrubResult]:
    """Scrubs piece by piece: yields the bytes read for each piece, then the result. Raises: OSError; FileNotFoundError: it was removed."""
    file = disk.open(f"{plan.directory}/{segment_name(plan.base_offset, LOG)}")
    try:
        scan = _Scan(file, plan, *(_entries(disk, plan) if plan.indexed else (array("q"), array("q"))))
        yield from scan.pieces()
        yield scan.result()
    finally:
        file.close()


def _entries(disk: Directory, plan: ScrubPlan) -> "tuple[array[int], array[int]]":
    """Positions and last offsets of the offset index."""
    positions, offsets = array("q"), array("q")
    try:
        data = disk.read_file(f"{plan.directory}/{segment_name(plan.base_offset, OFFSET_INDEX)}")
    except FileNotFoundError:
        return positions, offsets
    for relative, position in OFFSET_ENTRY.iter_unpack(data[: len(data) // OFFSET_ENTRY.size * OFFSET_ENTRY.size]):
        if not relative and not position:  # Zeros that preallocation left.
            break
        positions.append(position)
        offsets.append(plan.base_offset + relative)
    return positions, offsets


class _Scan:
    """The state of one scan."""

    def __init__(self, file: Readable, plan: ScrubPlan, positions: "array[int]", offsets: "array[int]") -> None:
        self._file, self._plan = file, plan
        #: Entries of the offset index, and how many of them the scan has passed.
        self._positions, self._offsets, self._passed = positions, offsets, 0
        self._end = min(plan.size, file.size)
        self._starts = [start for _, start in plan.epochs]
        self._epochs = [epoch for epoch, _ in plan.epochs]
        self._damages: list[Damage] = []
        #: Where the next batch is due.
        self._position, self._expected = 0, plan.base_offset
        #: (position, size, expected offset) of a batch that follows behind a hole and that no neighbour has confirmed.
        self._doubt: tuple[int, int, int] | None = None
        self._read_bytes = self._batches = 0
        self._index = ""

    def result(self) -> ScrubResult:
        return ScrubResult(self._read_bytes, self._batches, tuple(self._damages), self._index)

    def pieces(self) -> Iterator[int]:
        plan = self._plan
        bound = plan.bound if plan.upto is None else min(plan.bound, plan.upto)
        while self._position < self._end and self._expected < bound:
            waiting, wrong = 0, ""
            for position, header, chunk, at in whole_batches(self._file, self._position, self._end, chunk_bytes=plan.chunk_bytes):
                if plan.upto is not None and self._expected >= plan.upto:
                    self._end = position
                    break
                size = header.batch_length + LOG_OVERHEAD
                wrong = self._wrong(header, chunk, at, size)
                if wrong:
                    break
                self._take(position, header, size)
                waiting += size
                if waiting >= plan.chunk_bytes:
                    yield waiting
                    waiting = 0
            else:
                wrong = "no record batch begins here" if self._position < self._end else ""
            yield waiting
            if self._position >= self._end:
                break
            yield from self._pass_over(wrong)
        if self._expected < plan.bound and not plan.open_end and not self._may_jump(plan.bound):
            self._note(self._position, self._end, self._expected, plan.bound, "the file ends before these offsets")
        self._pass_entries(self._end)

    def _wrong(self, header: BatchHeader, chunk: memoryview, at: int, size: int) -> str:
        """What is wrong with a whole batch, by itself and behind the one before; empty when nothing is."""
        base_offset, _, epoch, _, crc, _, delta, _, _, _, _, _, _ = header
        if crc32c(chunk[at + ATTRIBUTES_AT : at + size]) != crc:
            return "the checksum of the batch does not fit"
        expected, plan = self._expected, self._plan
        if base_offset != expected and (base_offset < expected or not self._may_jump(base_offset)):
            return f"the batch says offset {base_offset} where {expected} is due"
        if delta < 0 or base_offset + delta >= plan.bound:
            return f"the batch says offsets {base_offset} to {base_offset + delta}; the segment ends before {plan.bound}"
        slot = bisect_right(self._starts, base_offset)
        if slot and self._epochs[slot - 1] != epoch and epoch != NO_EPOCH:
            return f"the batch says leader epoch {epoch}; offset {base_offset} was written in epoch {self._epochs[slot - 1]}"
        return ""

    def _may_jump(self, base_offset: int) -> bool:
        return base_offset <= self._plan.holes_below

    def _take(self, position: int, header: BatchHeader, size: int) -> None:
        self._batches += 1
        self._read_bytes += size
        self._doubt = (position, size, self._expected) if header.base_offset != self._expected else None
        self._expected, self._position = header.last_offset + 1, position + size
        if self._passed < len(self._positions) and self._positions[self._passed] <= position:
            self._compare_entry(position, header)

    def _compare_entry(self, position: int, header: BatchHeader) -> None:
        self._pass_entries(position)
        if self._passed == len(self._positions) or self._positions[self._passed] != position:
            return
        named = self._offsets[self._passed]
        self._passed += 1
        if self._doubt is not None and self._doubt[2] <= named < header.base_offset:
            self._blame_before(f"the batch says that it ends at {header.last_offset}; the offset index says {named}")
            self._close(named + 1)
            self._expected = named + 1
        elif named != header.last_offset:
            self._index = self._index or f"names offset {named} at {position}, where the batch ends at {header.last_offset}"

    def _pass_entries(self, position: int) -> None:
        """Entries below this position name no sound batch."""
        while self._passed < len(self._positions) and self._positions[self._passed] < position:
            at = self._positions[self._passed]
            self._passed += 1
            if not self._index and not any(one.position <= at < one.end_position for one in self._damages):
                self._index = f"names position {at}, where no batch begins"

    def _blame_before(self, reason: str) -> None:
        """The batch before jumped over offsets, and that was wrong."""
        assert self._doubt is not None, "a batch jumped"
        position, size, expected = self._doubt
        self._doubt = None
        self._expected = expected
        self._note(position, position + size, expected, expected + 1, reason)

    def _pass_over(self, wrong: str) -> Iterator[int]:
        """Finds the next sound batch behind damage, and notes the damage up to there."""
        plan, position, expected = self._plan, self._position, self._expected
        header = header_at(self._file, position, self._end)
        within = self._doubt is not None and header is not None and self._doubt[2] < header.base_offset < expected
        if within and header is not None and fits(self._file, position, header):
            self._blame_before(f"the batch before offset {header.base_offset} says that it ends at {expected - 1}")
            self._close(header.base_offset)
            self._expected = header.base_offset
            return
        after, end = self._end, plan.bound
        if plan.open_end:  # Nobody knows where the log ended.
            end = expected + 1 if plan.upto is None else max(plan.upto, expected + 1)
        for found in next_sound(self._file, position, self._end, expected=expected, base_offset=plan.base_offset, bound=plan.bound):
            if isinstance(found, int):
                yield found
            else:
                after, end = found
        self._note(position, after, expected, end, wrong)
        self._doubt = None
        self._position, self._expected = after, end
        if len(self._damages) >= DAMAGES_MAX and after < self._end:
            self._note(after, self._end, end, plan.bound, "there is more damage than can be told one by one")
            self._position, self._expected = self._end, plan.bound

    def _close(self, end: int) -> None:
        """The last damage goes up to this offset."""
        last = self._damages[-1]
        self._damages[-1] = Damage(last.base, last.position, last.end_position, last.first, end, last.reason)

    def _note(self, position: int, end_position: int, first: int, end: int, reason: str) -> None:
        self._damages.append(Damage(self._plan.base_offset, position, end_position, first, max(end, first + 1), reason))


def header_at(file: Readable, position: int, end: int) -> BatchHeader | None:
    """The header of a batch that ends at ``end`` or before; None when there is no such batch."""
    try:
        header = parse_header(file.read(position, min(HEADER_SIZE, end - position)))
    except RecordsError:
        return None
    return header if position + header.size <= end else None


def fits(file: Readable, position: int, header: BatchHeader) -> bool:
    """Whether the bytes of a batch fit its checksum."""
    return crc_ok(file.read(position, header.size))


def next_sound(file: Readable, position: int, end: int, *, expected: int, base_offset: int, bound: int) -> Iterator[int | tuple[int, int]]:
    """Finds the next sound batch behind the damaged one at ``position``, where offset ``expected`` was due.

    Yields bytes read, then the position and base offset of the batch, if there is one before ``end`` with offsets below ``bound``. The
    length in the damaged header is tried first. Else the first bytes of base offsets, which a segment's batches share, are searched for.
    """

    def sound(at: int) -> int | None:
        header = header_at(file, at, end)
        follows = header is not None and expected < header.base_offset <= header.last_offset < bound
        return header.base_offset if header is not None and follows and fits(file, at, header) else None

    header = header_at(file, position, end)
    if header is not None and (found := sound(position + header.size)) is not None:
        yield header.size
        yield position + header.size, found
        return
    prefixes = {(offset >> 32).to_bytes(4, "big") for offset in (base_offset, bound)}
    position += 1
    while position < end - HEADER_SIZE:
        data = file.read(position, min(SEARCH_BYTES + CRC_AT, end - position))
        for at in _places(data, prefixes):
            if data[at + MAGIC_AT] == MAGIC and (found := sound(position + at)) is not None:
                yield position + at, found
                return
        yield len(data)
        position += max(len(data) - CRC_AT, 1)


def _places(data: bytes, prefixes: set[bytes]) -> Iterator[int]:
    """Where one of the prefixes is, with a magic byte in reach, in order."""
    found = {prefix: data.find(prefix) for prefix in prefixes}
    while live := {prefix: at for prefix, at in found.items() if 0 <= at <= len(data) - CRC_AT}:
        prefix = min(live, key=live.__getitem__)
        yield live[prefix]
        found[prefix] = data.find(prefix, live[prefix] + 1)
