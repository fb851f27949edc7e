"""Reads records in plain Python: structure check and decoding. The loops are written for speed in the interpreter: they look up one-byte
numbers in a table, assume a well-formed record, and compare the end position with the declared end. If that fails, ``_diagnose`` reads the
record again field by field to find the error.

A record, all numbers zigzag varints (``l`` a varlong):
    body length | attributes (1 byte, unused) | timestamp delta (l) | offset delta | key length, key | value length, value
    | header count | (key length, key, value length, value) per header        length -1 = null
"""

from collections.abc import Iterator

from ottla.records.checksum import Buffer
from ottla.records.errors import (
    FAULT_COUNT,
    FAULT_HEADER_KEY,
    FAULT_HEADERS,
    FAULT_LENGTH,
    FAULT_OFFSET,
    FAULT_OFFSET_DELTA,
    FAULT_PAST,
    FAULT_TIMESTAMP,
    FAULT_TRAILING,
    FAULT_TRUNCATED,
    FAULT_UNREAD,
    InvalidBatch,
    record_fault,
)
from ottla.records.varint import scan

Header = tuple[str, bytes | None]
Spans = tuple[tuple[int, int, int, int], ...]
Record = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]

_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)
#: Size of the smallest record: length, attributes, two deltas, two null lengths, no headers.
_RECORD_MIN = 7
_HEADER_MIN = 2
#: A zero byte and a schema's id.
_FRAME_SIZE = 5
#: Zigzag numbers of one and of two bytes.
_SMALL = tuple((folded >> 1) ^ -(folded & 1) for folded in range(1 << 7))
_TWO = tuple((folded >> 1) ^ -(folded & 1) for folded in range(1 << 14))


def check_records(buffer: Buffer, position: int, end: int, count: int, base_timestamp: int) -> tuple[int, int, int, int]:
    """Checks the structure of ``count`` records in ``buffer[position:end]``, and that their offset deltas are 0, 1, 2...

    Returns (least timestamp other than -1, greatest timestamp, index of the first record with it, number of records without a key).
    Without a timestamp above -1 the greatest is -1 and its index -1; if all are -1 the least is -1.

    Raises: InvalidBatch.
    """
    least, greatest, index_of_greatest, keyless = _INT64_MAX, -1, -1, 0
    seen = False
    walk = _walk(_part(buffer, position, end), count, base_timestamp)
    for expected, (delta, timestamp, key_start, _, _, _, _) in enumerate(walk):
        if delta != expected:
            raise record_fault(FAULT_OFFSET_DELTA, expected)
        if timestamp > greatest:
            greatest, index_of_greatest = timestamp, expected
        if timestamp <= least and timestamp != -1:
            least = timestamp
            seen = True
        if key_start < 0:
            keyless += 1
    return least if seen else -1, greatest, index_of_greatest, keyless


def keyless_records(buffer: Buffer, position: int, end: int, count: int, limit: int) -> list[int]:
    """Indexes of the first ``limit`` records without a key."""
    found: list[int] = []
    for index, (_, _, key_start, _, _, _, _) in enumerate(_walk(_part(buffer, position, end), count, 0)):
        if key_start < 0 and len(found) < limit:
            found.append(index)
    return found


def records_outside(
    buffer: Buffer, position: int, end: int, count: int, base_timestamp: int, low: int, high: int, limit: int
) -> list[tuple[int, int]]:
    """(index, timestamp) of the first ``limit`` records whose timestamp is neither -1 nor in ``[low, high]``."""
    found: list[tuple[int, int]] = []
    for index, (_, timestamp, _, _, _, _, _) in enumerate(_walk(_part(buffer, position, end), count, base_timestamp)):
        if timestamp != -1 and not low <= timestamp <= high and len(found) < limit:
            found.append((index, timestamp))
    return found


def schema_frames(
    buffer: Buffer, position: int, end: int, count: int, keys: bool, values: bool, limit: int
) -> tuple[dict[int, int], dict[int, int], int, int]:
    """Schema ids in the frames of a schema registry: a zero byte, the id in four bytes (big-endian), the content.

    Returns (by id in keys: the index of the first record with it, the same for values, index of the first record whose key has no frame,
    the same for values). An index is -1 if there is none. Null keys and values need no frame. Of keys and values each, at most
    ``limit + 1`` ids are returned. Without ``keys`` or ``values``, those are not looked at.
    """
    data = _part(buffer, position, end)
    of_keys: dict[int, int] = {}
    of_values: dict[int, int] = {}
    unframed_key = unframed_value = -1
    for index, (_, _, key, key_end, value, value_end, _) in enumerate(_walk(data, count, 0)):
        if keys and key >= 0 and not _note_schema(data[key:key_end], index, of_keys, limit) and unframed_key < 0:
            unframed_key = index
        if values and value >= 0 and not _note_schema(data[value:value_end], index, of_values, limit) and unframed_value < 0:
            unframed_value = index
    return of_keys, of_values, unframed_key, unframed_value


def _note_schema(content: bytes, index: int, found: dict[int, int], limit: int) -> bool:
    """Notes the schema id in a frame; False if there is no frame."""
    if len(content) < _FRAME_SIZE or content[0]:
        return False
    number = int.from_bytes(content[1:_FRAME_SIZE], "big")
    if len(found) <= limit:
        found.setdefault(number, index)
    return True


def decode_records(
    buffer: Buffer,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
    start_offset: int,
    end_offset: int,
) -> list[Record]:
    """The records with ``start_offset <= offset < end_offset`` as (offset, timestamp, key, value, headers).

    ``append_timestamp``, if not None, replaces the timestamps.

    Raises: InvalidBatch.
    """
    data = _part(buffer, position, end)
    out: list[Record] = []
    add = out.append
    least, most = _INT64_MIN - base_offset, _INT64_MAX - base_offset
    low, high = start_offset - base_offset, end_offset - base_offset
    for index, (delta, timestamp, key, key_end, value, value_end, headers) in enumerate(_walk(data, count, base_timestamp)):
        if not least <= delta <= most:
            raise record_fault(FAULT_OFFSET, index)
        if low <= delta < high:
            add(
                (
                    base_offset + delta,
                    timestamp if append_timestamp is None else append_timestamp,
                    None if key < 0 else data[key:key_end],
                    None if value < 0 else data[value:value_end],
                    _decoded(data, headers) if headers else (),
                )
            )
    return out


def decode_spans(
    buffer: Buffer,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
    append_timestamp: int | None,
    start_offset: int,
    end_offset: int,
) -> Iterator[tuple[int, int, bytes | None, bytes | None, list[tuple[bytes, bytes | None]]]]:
    """Like ``decode_records``, as a generator, with undecoded header names."""
    data = _part(buffer, position, end)
    least, most = _INT64_MIN - base_offset, _INT64_MAX - base_offset
    for index, (delta, timestamp, key, key_end, value, value_end, headers) in enumerate(_walk(data, count, base_timestamp)):
        if not least <= delta <= most:
            raise record_fault(FAULT_OFFSET, index)
        if start_offset <= base_offset + delta < end_offset:
            yield (
                base_offset + delta,
                timestamp if append_timestamp is None else append_timestamp,
                None if key < 0 else data[key:key_end],
                None if value < 0 else data[value:value_end],
                [(data[a:b], None if c < 0 else data[c:d]) for a, b, c, d in headers],
            )


def _part(buffer: Buffer, position: int, end: int) -> bytes:
    if not 0 <= position <= end <= len(buffer):
        raise IndexError(f"[{position}, {end}) is not inside the {len(buffer)} bytes of the buffer")
    return bytes(buffer[position:end])


def _walk(data: bytes, count: int, base_timestamp: int) -> Iterator[tuple[int, int, int, int, int, int, Spans]]:
    """(offset delta, timestamp, key start, key end, value start, value end, header spans) of each record; a null has start -1."""
    end = len(data)
    if not 0 <= count <= end // _RECORD_MIN:
        raise record_fault(FAULT_COUNT, count)
    small, two = _SMALL, _TWO
    p = start = index = 0
    none: Spans = ()
    try:
        for index in range(count):
            start = p
            if (number := data[p]) < 128:
                stop = p + 1 + small[number]
                p += 2
            elif (high := data[p + 1]) < 128:
                stop = p + 2 + two[high << 7 | number & 127]
                p += 3
            else:
                number, p = _number(data, p, 32)
                stop = p + number
                p += 1
            if (number := data[p]) < 128:
                timestamp = base_timestamp + small[number]
                p += 1
            elif (high := data[p + 1]) < 128:
                timestamp = base_timestamp + two[high << 7 | number & 127]
                p += 2
            else:
                number, p = _number(data, p, 64)
                timestamp = base_timestamp + number
            if (number := data[p]) < 128:
                delta = small[number]
                p += 1
            elif (high := data[p + 1]) < 128:
                delta = two[high << 7 | number & 127]
                p += 2
            else:
                delta, p = _number(data, p, 32)
            key = value = -1
            if (number := data[p]) < 128:
                number = small[number]
                p += 1
            elif (high := data[p + 1]) < 128:
                number = two[high << 7 | number & 127]
                p += 2
            else:
                number, p = _number(data, p, 32)
            if number >= 0:
                key = p
                p += number
            elif number < -1:
                raise IndexError
            key_end = p
            if (number := data[p]) < 128:
                number = small[number]
                p += 1
            elif (high := data[p + 1]) < 128:
                number = two[high << 7 | number & 127]
                p += 2
            else:
                number, p = _number(data, p, 32)
            if number >= 0:
                value = p
                p += number
            elif number < -1:
                raise IndexError
            value_end = p
            if p + 1 == stop and stop <= end and data[p] == 0:
                p = stop
                headers = none
            elif p < stop <= end:
                headers, p = _header_spans(data, p, stop)
            else:
                raise IndexError
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise record_fault(FAULT_TIMESTAMP, index)
            yield delta, timestamp, key, key_end, value, value_end, headers
    except IndexError:
        raise _diagnosis(data, start, index) from None
    if p != end:
        raise record_fault(FAULT_TRAILING, count)


def _number(data: bytes, position: int, bits: int) -> tuple[int, int]:
    """Like ``varint.scan``, but raises IndexError, which makes the caller diagnose the record."""
    number, position = scan(data, position, len(data), bits)
    if position < 0:
        raise IndexError
    return number, position


def _header_spans(data: bytes, p: int, stop: int) -> tuple[Spans, int]:
    """((key start, key end, value start, value end) of each header, end of the record).

    Raises: IndexError if the headers do not end exactly at ``stop``.
    """
    count, p = _number(data, p, 32)
    if not 0 <= count <= (stop - p) // _HEADER_MIN:
        raise IndexError
    spans = []
    for _ in range(count):
        size, p = _number(data, p, 32)
        if not 0 <= size <= stop - p:
            raise IndexError
        key = p
        p += size
        key_end = p
        size, p = _number(data, p, 32)
        if not -1 <= size <= stop - p:
            raise IndexError
        if size < 0:
            spans.append((key, key_end, -1, -1))
        else:
            spans.append((key, key_end, p, p + size))
            p += size
    if p != stop:
        raise IndexError
    return tuple(spans), p


def _decoded(data: bytes, spans: Spans) -> tuple[Header, ...]:
    return tuple(
        (data[key:key_end].decode("utf-8", "replace"), None if value < 0 else data[value:value_end])
        for key, key_end, value, value_end in spans
    )


def _diagnosis(data: bytes, start: int, index: int) -> InvalidBatch:
    """The error of the record at ``start``, read field by field up to its declared end."""
    end = len(data)
    length, p = scan(data, start, end, 32)
    if p < 0:
        return record_fault(-p, index)
    if length < 0:
        return record_fault(FAULT_LENGTH, index)
    if length > end - p:
        return record_fault(FAULT_PAST, index)
    stop = p + length
    if not length:
        return record_fault(FAULT_TRUNCATED, index)
    p += 1
    for bits in (64, 32):
        _, p = scan(data, p, stop, bits)
        if p < 0:
            return record_fault(-p, index)
    fault, p = _skipped(data, p, stop, FAULT_LENGTH, -1)
    if not fault:
        fault, p = _skipped(data, p, stop, FAULT_LENGTH, -1)
    if fault:
        return record_fault(fault, index)
    count, p = scan(data, p, stop, 32)
    if p < 0:
        return record_fault(-p, index)
    if not 0 <= count <= (stop - p) // _HEADER_MIN:
        return record_fault(FAULT_HEADERS, index)
    for _ in range(count):
        fault, p = _skipped(data, p, stop, FAULT_HEADER_KEY, 0)
        if not fault:
            fault, p = _skipped(data, p, stop, FAULT_LENGTH, -1)
        if fault:
            return record_fault(fault, index)
    assert p != stop, "the fast walk stumbled over a well-formed record"
    return record_fault(FAULT_UNREAD, index)


def _skipped(data: bytes, p: int, stop: int, negative_fault: int, least: int) -> tuple[int, int]:
    """(fault or 0, position after the length and its bytes)."""
    size, p = scan(data, p, stop, 32)
    if p < 0:
        return -p, p
    if size < least:
        return negative_fault, p
    if size > stop - p:
        return FAULT_PAST, p
    return 0, p + max(size, 0)
