"""Iterates over the batches of a log file: headers only, or complete batches.

A file is a sequence of batches without gaps; the length in each header gives the position of the next. ``headers`` reads small chunks and
skips the rest; ``whole_batches`` reads everything, in chunks large enough to be limited by the device.
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
    """The reading part of a file."""

    @property
    def size(self) -> int: ...

    def read(self, position: int, size: int) -> bytes: ...

    def close(self) -> None: ...


def headers(file: File, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in ``position..end``.

    Raises: CorruptLog when no batch begins at a position, or a batch ends after ``end``.
    """
    for at, header, _, _ in headers_in_chunks(file, position, end, chunk_bytes=chunk_bytes):
        yield at, header


def headers_in_chunks(
    file: File, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK
) -> Iterator[tuple[int, BatchHeader, bytes, int]]:
    """As ``headers``, with the chunk that was read and the batch's position in it; the chunk may end before the batch."""
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
            raise CorruptLog(f"{file.path} at {position}: a batch of {following - position} bytes ends after {end}")
        yield position, header, chunk, inside
        position = following


def whole_batches(
    file: Readable, position: int, end: int, *, chunk_bytes: int = BATCH_CHUNK
) -> Iterator[tuple[int, BatchHeader, memoryview, int]]:
    """(position, header, chunk, position in the chunk) of each complete batch in ``position..end``.

    Stops at the first position without one; the caller checks how far it came. The caller checks CRCs.
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
    """Reads headers from ``position``, where offset ``expected`` should begin, to the batch with offset ``below`` or the first invalid one.

    Returns the position there, the offset after the last batch before it, and whether that batch is valid or the file ends.
    Nothing behind that batch is read, so a log can be truncated where it is damaged.
    """
    reached = position
    #: (position, offset) before a batch behind a hole, which the next header may contradict.
    doubt: tuple[int, int] | None = None
    target: tuple[int, int] | None = None
    try:
        for at, header in headers(file, position, end):
            base, last_offset = header.base_offset, header.last_offset
            if base < expected or last_offset < base or (base > expected and base > holes_below):
                return *(doubt or (at, expected)), False
            if target is not None:
                return *target, True
            doubt = (at, expected) if base > expected else None
            if last_offset >= below:
                target = at, expected
                if doubt is None:
                    return *target, True
            expected, reached = last_offset + 1, at + header.size
    except CorruptLog:
        return *(target or (reached, expected)), target is not None
    return *(target or (reached, expected)), True


def batch_at(file: File, position: int, end: int) -> bytes:
    """The batch at a position. Raises: CorruptLog when there is none."""
    for _, header in headers(file, position, end, chunk_bytes=HEADER_SIZE):
        return file.read(position, header.batch_length + LOG_OVERHEAD)
    raise CorruptLog(f"{file.path} ends at {position}")
