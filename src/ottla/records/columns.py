"""Reads many batches into Arrow's layout, one buffer per column, which can be wrapped without a copy.

    pyarrow.Array.from_buffers(pyarrow.int64(), c.rows, [None, buffer(c.offsets)])
    pyarrow.Array.from_buffers(pyarrow.binary(), c.rows, [buffer(c.value.validity), buffer(c.value.offsets), buffer(c.value.data)])

where ``buffer`` is ``pyarrow.py_buffer``, and None for None.

Control batches are skipped, and batches of aborted transactions if they are given. Columns have 32-bit offsets, so one call returns at
most 2 GiB of decompressed records, and the position to continue from.
"""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from ottla.records.batch import (
    CODEC_BITS,
    CONTROL_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
)
from ottla.records.checksum import Buffer
from ottla.records.codec import decode_columns
from ottla.records.read import ABORT_MARKER, DECOMPRESSED_MAX, INT64_MAX, INT64_MIN, control_record, payload

if TYPE_CHECKING:
    from ottla.records._pure_columns import Source

#: Limit of Arrow's 32-bit offsets.
COLUMN_BYTES_MAX = (1 << 31) - 1
#: A batch with none of these bits is used as it is.
_LOOKED_INTO_BITS = CODEC_BITS | CONTROL_BIT | TRANSACTIONAL_BIT


class BinaryBuffers(NamedTuple):
    """A column of byte strings."""

    #: int32, rows + 1.
    offsets: bytes
    data: bytes
    #: Bitmap, lowest bit first; None without nulls.
    validity: bytes | None
    null_count: int


class HeaderBuffers(NamedTuple):
    """The headers of all records: those of row i are ``[offsets[i], offsets[i + 1])`` of names and values."""

    #: int32, rows + 1.
    offsets: bytes
    #: UTF-8, no nulls.
    names: BinaryBuffers
    values: BinaryBuffers


@dataclass(slots=True)
class Columns:
    """Records as columns, and the position to continue from."""

    rows: int
    #: int64
    offsets: bytes
    #: int64, ms or µs since 1970
    timestamps: bytes
    #: int32: 0 CreateTime, 1 LogAppendTime
    timestamp_types: bytes
    key: BinaryBuffers
    value: BinaryBuffers
    #: None if not requested.
    headers: HeaderBuffers | None
    #: Position of the first unread batch; the end of the last complete batch if all were read.
    next_position: int
    #: Next offset to fetch: after the last batch read, even if its records were filtered.
    next_offset: int


class AbortedTransactions:
    """Finds the batches of aborted transactions in a fetch response, in order.

    ``aborted`` is the response's list of (producer id, first offset of its aborted transaction). A transaction ends at its producer's
    next abort marker. Source: KIP-98.
    """

    __slots__ = ("_open", "_waiting")

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        #: Transactions that begin later, the next one last.
        self._waiting = sorted(aborted, key=lambda entry: entry[1], reverse=True)
        #: Producers with an open aborted transaction.
        self._open: set[int] = set()

    def hide(self, buffer: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch at ``position`` is aborted. To be called once per batch, in the order of offsets."""
        while self._waiting and self._waiting[-1][1] <= header.last_offset:
            self._open.add(self._waiting.pop()[0])
        if header.is_control:
            if header.producer_id in self._open:
                marker = control_record(buffer, position)
                if marker is not None and marker.kind == ABORT_MARKER:
                    self._open.remove(header.producer_id)
            return True
        return header.is_transactional and header.producer_id in self._open


def columns(
    buffer: Buffer,
    start_offset: int = INT64_MIN,
    end_offset: int = INT64_MAX,
    *,
    position: int = 0,
    aborted: AbortedTransactions | None = None,
    headers: bool = False,
    timestamps_us: bool = False,
    bytes_max: int = COLUMN_BYTES_MAX,
    max_decompressed: int = DECOMPRESSED_MAX,
) -> Columns:
    """The decompressed records in ``[start_offset, end_offset)`` of the batches from ``position`` on.

    A truncated last batch is left for the next fetch. Batches beyond ``end_offset`` are not read.

    Args:
        aborted: the same object for the call that continues at ``next_position``.
        timestamps_us: timestamps in µs instead of ms, clamped to 64 bits.
        bytes_max: stops before the batch that exceeds this size of decompressed records, but reads at least one batch.
        max_decompressed: maximum decompressed size of one batch.

    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic, UnsupportedCodec. CRCs are not checked: see ``batch.crc_ok``.
    """
    sources: list[Source] = []
    size = 0
    next_position, next_offset = position, start_offset
    bytes_max = min(bytes_max, COLUMN_BYTES_MAX)
    end = len(buffer)
    unpack = HEADER.unpack_from
    while end - next_position >= HEADER_SIZE:
        at = next_position
        fields = unpack(buffer, at)
        base_offset, length, _, magic, _, attributes, last_offset_delta, base_timestamp, max_timestamp, _, _, _, count = fields
        following = at + length + LOG_OVERHEAD
        if magic != MAGIC or length < HEADER_SIZE - LOG_OVERHEAD:
            parse_header(buffer, at)
        if following > end or base_offset >= end_offset:
            break
        if not attributes & _LOOKED_INTO_BITS:
            hidden = False
        else:
            header = BatchHeader._make(fields)
            hidden = header.is_control if aborted is None else aborted.hide(buffer, at, header)
        if not hidden and count and base_offset + last_offset_delta >= start_offset:
            data, first, stop = buffer, at + HEADER_SIZE, following
            if attributes & CODEC_BITS:
                data, first, stop = payload(buffer, at, header, max_decompressed)
            if sources and size + stop - first > bytes_max:
                break
            size += stop - first
            append_timestamp = max_timestamp if attributes & TIMESTAMP_TYPE_BIT else None
            sources.append((data, first, stop, count, base_offset, base_timestamp, append_timestamp))
        next_position, next_offset = following, max(next_offset, base_offset + last_offset_delta + 1)
    rows, offsets, timestamps, types, key, value, header_columns = decode_columns(sources, start_offset, end_offset, timestamps_us, headers)
    header_buffers = None
    if header_columns is not None:
        ends, names, values = header_columns
        header_buffers = HeaderBuffers(ends, _utf8(BinaryBuffers(*names)), BinaryBuffers(*values))
    return Columns(rows, offsets, timestamps, types, BinaryBuffers(*key), BinaryBuffers(*value), header_buffers, next_position, next_offset)


def _utf8(names: BinaryBuffers) -> BinaryBuffers:
    """Replaces invalid UTF-8 in names, because brokers do not check names and Arrow strings must be valid."""
    if names.data.isascii():
        return names
    ends = array("i", names.offsets)
    pieces = [names.data[start:end] for start, end in pairwise(ends)]
    mended = [piece.decode("utf-8", "replace").encode() for piece in pieces]
    if mended == pieces:
        return names
    mended_ends = array("i", accumulate((len(piece) for piece in mended), initial=0))
    return BinaryBuffers(mended_ends.tobytes(), b"".join(mended), None, 0)
