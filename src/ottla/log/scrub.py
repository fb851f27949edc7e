"""Scrubs one segment: compares every batch with its checksum, its neighbours and the offset index.

::

    expected offset 40   43        50                              67
    batches         | b  | b       | ?  CRC, or 4099 where 50 is due | b ...
                                   `- damage 50 to 66 ------------'
    index entries        ^ 49 at 4200                              ^ 70 at 9100

The checksum covers neither the base offset nor the leader epoch. So a batch must begin where the previous one ended, or behind a hole of
compaction; it must not overlap the next one; and it must have the epoch that the epoch table has for its offset. If a batch skips offsets
and the next batch begins before its end, the first of the two is damaged.

Behind damage the scan continues at the next valid batch. The header's length gives its position; if that is damaged, too, the scan searches
for the next base offset with a matching checksum. Work per batch is constant; records are not read.

The owner of the segment may append to it, truncate or replace it meanwhile. The scan reads up to the planned size. The owner discards the
result if the log was truncated or the segment replaced.
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
    """The part of a disk that a scrub uses."""

    def open(self, path: str) -> Readable: ...

    def read_file(self, path: str) -> bytes: ...


CHUNK_BYTES = 256 * KiB
#: Bytes per read of the search for the next valid batch; a batch may begin in one read and end in a later one.
SEARCH_BYTES = MiB
#: Limit of reported damages of one segment; one more covers the rest.
DAMAGES_MAX = 1_000


class ScrubPlan(msgspec.Struct, frozen=True):
    """What to scrub: one segment, up to a durable end."""

    directory: str
    base_offset: int
    #: Bytes of the segment when this was planned.
    size: int
    #: Base offset of the next segment, or the log end offset.
    bound: int
    #: Compaction may have left holes below.
    holes_below: int
    #: (epoch, first offset), both increasing.
    epochs: tuple[tuple[int, int], ...]
    #: Whether the offset index on disk is complete and can be compared.
    indexed: bool
    chunk_bytes: int = CHUNK_BYTES
    #: Batches from this offset on are skipped; None: scrub all.
    upto: int | None = None
    #: Whether the segment may end before ``bound``, because the end offset is unknown.
    open_end: bool = False


class ScrubResult(msgspec.Struct, frozen=True):
    read_bytes: int
    batches: int
    damages: tuple[Damage, ...] = ()
    #: The defect of the offset index; empty when it is valid.
    index: str = ""


def carry_out(disk: Directory, plan: ScrubPlan) -> Iterator[int | ScrubResult]:
    """Scrubs in steps: yields the bytes read per step, then the result. Raises: OSError; FileNotFoundError when it was removed."""
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
        #: Position and offset at which the next batch should begin.
        self._position, self._expected = 0, plan.base_offset
        #: (position, size, expected offset) of a batch behind a hole that the next batch has not confirmed.
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
        """The defect of a complete batch, by itself and after the previous one; empty when it is valid."""
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
        """Checks the remaining index entries below this position, which refer to no valid batch."""
        while self._passed < len(self._positions) and self._positions[self._passed] < position:
            at = self._positions[self._passed]
            self._passed += 1
            if not self._index and not any(one.position <= at < one.end_position for one in self._damages):
                self._index = f"names position {at}, where no batch begins"

    def _blame_before(self, reason: str) -> None:
        """The previous batch skipped offsets wrongly: it is damaged."""
        assert self._doubt is not None, "the previous batch skipped offsets"
        position, size, expected = self._doubt
        self._doubt = None
        self._expected = expected
        self._note(position, position + size, expected, expected + 1, reason)

    def _pass_over(self, wrong: str) -> Iterator[int]:
        """Finds the next valid batch behind damage, and records the damage."""
        plan, position, expected = self._plan, self._position, self._expected
        header = header_at(self._file, position, self._end)
        within = self._doubt is not None and header is not None and self._doubt[2] < header.base_offset < expected
        if within and header is not None and fits(self._file, position, header):
            self._blame_before(f"the batch before offset {header.base_offset} says that it ends at {expected - 1}")
            self._close(header.base_offset)
            self._expected = header.base_offset
            return
        after, end = self._end, plan.bound
        if plan.open_end:  # The end offset of the log is unknown.
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
        """Extends or limits the last damage to this offset."""
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
    """Whether a batch has a matching checksum."""
    return crc_ok(file.read(position, header.size))


def next_sound(file: Readable, position: int, end: int, *, expected: int, base_offset: int, bound: int) -> Iterator[int | tuple[int, int]]:
    """Finds the next valid batch behind the damaged one at ``position``, where offset ``expected`` should begin.

    Yields bytes read, then position and base offset of the batch, if one exists before ``end`` with offsets below ``bound``. Tries the
    length in the damaged header first. Then searches for the first bytes of base offsets, which the batches of a segment share.
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
    """Positions of the prefixes that have a magic byte in the data, in order."""
    found = {prefix: data.find(prefix) for prefix in prefixes}
    while live := {prefix: at for prefix, at in found.items() if 0 <= at <= len(data) - CRC_AT}:
        prefix = min(live, key=live.__getitem__)
        yield live[prefix]
        found[prefix] = data.find(prefix, live[prefix] + 1)
