"""From batch to batch through a log file, reading headers alone or whole batches.

A file is a sequence of batches without gaps; the length in each header leads to the next. ``headers`` reads a chunk at a time and skips
what it has no need of; ``whole_batches`` reads everything, in chunks large enough for the device to be the limit.
"""

from collections.abc import Iterator
from typing import Protocol

from ottla.base.ports import File
from ottla.base.units import KiB, MiB
from ottla.log.errors import CorruptLog
from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD, BatchHeader, parse_header
from ottla.records.errors import RecordsError

HEADER_CHUNK = 64 * KiB
BATCH_CHUNK = MiB


class Readable(Protocol):
    """A file as far as it is only read."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...

    def close(self) -> None: ...


def headers(file: File, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in ``position..end``.

    Raises: CorruptLog where no batch begins, or where one ends behind ``end``.
    """
    chunk = b""
    chunk_at = position
    while position < end:
        inside = position - chunk_at
        if inside + HEADER_SIZE > len(chunk):
            chunk = file.read(position, min(chunk_bytes, end - position))
            chunk_at, inside = position, 0
        try:
            header = parse_header(chunk, inside)
        except RecordsError as error:
            raise CorruptLog(f"{file.path} at {position}: {error}") from None
        following = position + header.batch_length + LOG_OVERHEAD
        if following > end:
            raise CorruptLog(f"{file.path} at {position}: a batch of {following - position} bytes does not end at {end} or before")
        yield position, header
        position = following


def whole_batches(
    file: Readable, position: int, end: int, *, chunk_bytes: int = BATCH_CHUNK
) -> Iterator[tuple[int, BatchHeader, memoryview, int]]:
    """(position, header, chunk, position in the chunk) of each batch that is wholly in ``position..end``.

    Stops at the first spot where none is: the caller compares how far it came. CRCs are the caller's matter.
    """
    chunk = memoryview(b"")
    filled = 0
    chunk_at = position
    while position < end:
        inside = position - chunk_at
        if inside + HEADER_SIZE > filled:
            chunk = memoryview(file.read(position, min(chunk_bytes, end - position)))
            chunk_at, inside, filled = position, 0, len(chunk)
        try:
            header = parse_header(chunk, inside)
        except RecordsError:
            return
        size = header[1] + LOG_OVERHEAD
        if position + size > end:
            return
        if inside + size > filled:
            chunk = memoryview(file.read(position, min(max(chunk_bytes, size), end - position)))
            chunk_at, inside, filled = position, 0, len(chunk)
            if size > filled:
                return
        yield position, header, chunk, inside
        position += size


def sound_upto(file: File, position: int, end: int, *, expected: int, below: int, holes_below: int) -> tuple[int, int, bool]:
    """Walks headers from ``position``, where offset ``expected`` is due.

    Stops at the batch that holds offset ``below``, or at the first header that makes no sense.

    Returns the position there, the offset behind the last batch before it, and whether that batch is sound or the file ends.
    Nothing behind that batch is needed, so a log can be cut where it is damaged.
    """
    reached = position
    #: (position, offset) before a batch that does not follow its neighbour, while the next header may still contradict it.
    doubt: tuple[int, int] | None = None
    wanted: tuple[int, int] | None = None
    try:
        for at, header in headers(file, position, end):
            base, last_offset = header.base_offset, header.last_offset
            if base < expected or last_offset < base or (base > expected and base > holes_below):
                return *(doubt or (at, expected)), False
            if wanted is not None:
                return *wanted, True
            doubt = (at, expected) if base > expected else None
            if last_offset >= below:
                wanted = at, expected
                if doubt is None:
                    return *wanted, True
            expected, reached = last_offset + 1, at + header.size
    except CorruptLog:
        return *(wanted or (reached, expected)), wanted is not None
    return *(wanted or (reached, expected)), True


def batch_at(file: File, position: int, end: int) -> bytes:
    """One whole batch. Raises: CorruptLog when there is none."""
    for _, header in headers(file, position, end, chunk_bytes=HEADER_SIZE):
        return file.read(position, header.batch_length + LOG_OVERHEAD)
    raise CorruptLog(f"{file.path} ends at {position}")
