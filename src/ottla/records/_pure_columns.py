"""Converts records from and to Arrow's column layout in plain Python.

A binary column is (offsets, data, validity, wide). Offsets have 32 bits, or 64 if ``wide``, in the machine's byte order, one more than
rows. Validity is a bitmap, lowest bit first, or None without nulls.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate

from ottla.records._pure_build import Builder, murmur2
from ottla.records._pure_read import decode_spans
from ottla.records.checksum import Buffer
from ottla.records.errors import FAULT_COLUMN, FAULT_HEADER_KEY, record_fault

#: (buffer, start, end, count, base offset, base timestamp, append timestamp or None) of the records of a batch.
Source = tuple[Buffer, int, int, int, int, int, int | None]
ColumnInput = tuple[Buffer, Buffer | None, Buffer | None, bool]
#: (offsets, data, validity or None, number of nulls)
BinaryOutput = tuple[bytes, bytes, bytes | None, int]
ColumnsOutput = tuple[int, bytes, bytes, bytes, BinaryOutput, BinaryOutput, tuple[bytes, BinaryOutput, BinaryOutput] | None]

_INT32_MAX = (1 << 31) - 1
_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)


def decode_columns(sources: list[Source], start_offset: int, end_offset: int, microseconds: bool, headers: bool) -> ColumnsOutput:
    """The records of several batches with ``start_offset <= offset < end_offset``, as columns.

    Returns (rows, offsets int64, timestamps int64, timestamp types int32, key, value, headers). Headers are (list offsets, names, values)
    if requested. Timestamps are in ms, or in µs, clamped to 64 bits.

    Raises: InvalidBatch, OverflowError if the sources exceed 2 GiB.
    """
    size = sum(end - position for _, position, end, _, _, _, _ in sources)
    if size > _INT32_MAX:
        raise OverflowError(f"columns of 32-bit offsets cannot hold {size} bytes")
    offsets, timestamps, types = array("q"), array("q"), array("i")
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    header_counts: list[int] = []
    names: list[bytes | None] = []
    header_values: list[bytes | None] = []
    for buffer, position, end, count, base_offset, base_timestamp, append_timestamp in sources:
        for offset, timestamp, key, value, record_headers in decode_spans(
            buffer, position, end, count, base_offset, base_timestamp, append_timestamp, start_offset, end_offset
        ):
            offsets.append(offset)
            timestamps.append(min(max(timestamp * 1000, _INT64_MIN), _INT64_MAX) if microseconds else timestamp)
            types.append(0 if append_timestamp is None else 1)
            keys.append(key)
            values.append(value)
            if headers:
                header_counts.append(len(record_headers))
                for name, header_value in record_headers:
                    names.append(name)
                    header_values.append(header_value)
    header_columns = None
    if headers:
        header_columns = (array("i", accumulate(header_counts, initial=0)).tobytes(), _binary(names), _binary(header_values))
    rows = len(offsets)
    return rows, offsets.tobytes(), timestamps.tobytes(), types.tobytes(), _binary(keys), _binary(values), header_columns


def _binary(pieces: Sequence[bytes | None]) -> BinaryOutput:
    ends = array("i", accumulate((0 if piece is None else len(piece) for piece in pieces), initial=0))
    nulls = pieces.count(None)
    valid = None
    if nulls:
        bits = bytearray((len(pieces) + 7) // 8)
        for row, piece in enumerate(pieces):
            if piece is not None:
                bits[row >> 3] |= 1 << (row & 7)
        valid = bytes(bits)
    return ends.tobytes(), b"".join(piece for piece in pieces if piece is not None), valid, nulls


class _Column:
    """A binary or list column, read by row."""

    __slots__ = ("data", "ends", "rows", "valid")

    def __init__(self, ends: Buffer, data: Buffer | None, valid: Buffer | None, wide: bool) -> None:
        width = 8 if wide else 4
        raw = bytes(memoryview(ends))
        self.ends = array("q" if wide else "i", raw[: len(raw) // width * width])
        self.data = None if data is None else memoryview(data)
        self.valid = None if valid is None else memoryview(valid)
        self.rows = max(len(self.ends) - 1, 0)
        if self.valid is not None:
            self.rows = min(self.rows, 8 * self.valid.nbytes)

    def span(self, row: int, limit: int) -> tuple[int, int] | None:
        """(start, end) of a row, None for a null.

        Raises: InvalidBatch if it is outside of ``[0, limit]``.
        """
        if not 0 <= row < self.rows:
            raise record_fault(FAULT_COLUMN, row)
        if self.valid is not None and not self.valid[row >> 3] >> (row & 7) & 1:
            return None
        start, end = self.ends[row], self.ends[row + 1]
        if not 0 <= start <= end <= limit:
            raise record_fault(FAULT_COLUMN, row)
        return start, end

    def locate(self, row: int) -> bytes | None:
        """The bytes of a row."""
        assert self.data is not None, "only a binary column has bytes"
        span = self.span(row, self.data.nbytes)
        return None if span is None else bytes(self.data[span[0] : span[1]])


def _binary_column(source: ColumnInput) -> _Column:
    if source[1] is None:
        raise TypeError("a binary column has data")
    return _Column(*source)


class ColumnEncoder:
    """Encodes rows of columns into consecutive batches.

    ``headers`` is (list column, names, values). ``timestamps`` is one number of ms for all rows, or a buffer of int64, in µs if
    ``microseconds``. ``rows``, a buffer of int64, selects and orders the rows; ``first`` and ``last`` are then positions in it.
    """

    __slots__ = ("header_list", "header_name", "header_value", "key", "last", "microseconds", "next", "rows", "timestamps", "value")

    def __init__(
        self,
        value: ColumnInput,
        key: ColumnInput | None,
        headers: tuple[ColumnInput, ColumnInput, ColumnInput] | None,
        timestamps: Buffer | int,
        microseconds: bool,
        rows: Buffer | None,
        first: int,
        last: int,
    ) -> None:
        self.value = _binary_column(value)
        self.key = None if key is None else _binary_column(key)
        self.header_list: _Column | None = None
        if headers is not None:
            self.header_list = _Column(*headers[0])
            self.header_name, self.header_value = _binary_column(headers[1]), _binary_column(headers[2])
        self.timestamps = timestamps if isinstance(timestamps, int) else _int64s(timestamps)
        self.microseconds = microseconds
        self.rows = None if rows is None else _int64s(rows)
        if first < 0 or (self.rows is not None and last > len(self.rows)):
            raise IndexError(f"rows [{first}, {last}) are not all there")
        self.next = first
        self.last = last

    def encode(self, size_max: int) -> Builder | None:
        """A builder with as many of the next rows as fit in ``size_max`` bytes, at least one; None after the last.

        Raises: InvalidBatch if offsets of a column point outside of its data.
        """
        if self.next >= self.last:
            return None
        builder = Builder(size_max)
        while self.next < self.last:
            row = self.next if self.rows is None else self.rows[self.next]
            if isinstance(self.timestamps, int):
                timestamp = self.timestamps
            else:
                if not 0 <= row < len(self.timestamps):
                    raise record_fault(FAULT_COLUMN, row)
                timestamp = self.timestamps[row]
                if self.microseconds:
                    timestamp //= 1000
            value = self.value.locate(row)
            key = None if self.key is None else self.key.locate(row)
            if builder.append_encoded(timestamp, key, value, self._headers(row)) is None:
                break
            self.next += 1
        return builder

    def _headers(self, row: int) -> list[tuple[bytes, bytes | None]]:
        if self.header_list is None:
            return []
        span = self.header_list.span(row, self.header_name.rows)
        out = []
        for index in range(*(span or (0, 0))):
            name = self.header_name.locate(index)
            if name is None:
                raise record_fault(FAULT_HEADER_KEY, row)
            out.append((name, self.header_value.locate(index)))
        return out


def _int64s(buffer: Buffer) -> "array[int]":
    raw = bytes(memoryview(buffer))
    return array("q", raw[: len(raw) // 8 * 8])


def partition_column(keys: ColumnInput, first: int, last: int, count: int) -> bytes:
    """The partition of each key in rows ``[first, last)``, out of ``count``, as int32; -1 for a null key."""
    if not 0 <= first <= last or count < 1:
        raise IndexError(f"rows [{first}, {last}) of {count} partitions")
    column = _binary_column(keys)
    found = (column.locate(row) for row in range(first, last))
    return array("i", (-1 if key is None else (murmur2(key) & 0x7FFFFFFF) % count for key in found)).tobytes()


def group_rows(numbers: Buffer, count: int) -> tuple[bytes, list[int]]:
    """Groups the rows of an int32 column by number in ``[-1, count)``, in order: (row numbers as int64, end of each group, from -1).

    Raises: IndexError for a number out of range.
    """
    if count < 1:
        raise IndexError(f"there are {count} partitions")
    raw = bytes(memoryview(numbers))
    groups: list[list[int]] = [[] for _ in range(count + 1)]
    for row, number in enumerate(array("i", raw[: len(raw) // 4 * 4])):
        if not -1 <= number < count:
            raise IndexError(f"row {row} is for partition {number}, and there are {count}")
        groups[number + 1].append(row)
    return array("q", (row for group in groups for row in group)).tobytes(), list(accumulate(len(group) for group in groups))
