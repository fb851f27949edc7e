"""Reads batches: the records of one batch, control records, and, re-exported, many batches as ``columns``.

Readers accept everything that a log may contain, including what clients must not write: gaps in offset deltas and batches without records
(compaction), control batches, LogAppendTime, the delete horizon.
"""

from struct import Struct
from typing import NamedTuple

from ottla.records.batch import HEADER_SIZE, LOG_APPEND_TIME, BatchHeader, parse_header
from ottla.records.checksum import Buffer
from ottla.records.codec import decode_records
from ottla.records.compression import Codec, decompress
from ottla.records.errors import CorruptBatch, InvalidBatch

Header = tuple[str, bytes | None]
#: (offset, timestamp in ms, key, value, headers)
Record = tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)
#: Far above any real batch: ``max.message.bytes`` bounds the compressed size, brokers the decompressed one.
DECOMPRESSED_MAX = 256 * 1024 * 1024

ABORT_MARKER = 0
COMMIT_MARKER = 1
_MARKER_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")


class ControlRecord(NamedTuple):
    """The content of a control batch. ``kind`` is ABORT_MARKER, COMMIT_MARKER, or a number of a later Kafka, to be ignored."""

    version: int
    kind: int
    #: Epoch of the transaction coordinator that wrote the marker; -1 if it is not a transaction marker.
    coordinator_epoch: int


def records(
    buffer: Buffer,
    position: int = 0,
    *,
    start_offset: int = INT64_MIN,
    end_offset: int = INT64_MAX,
    max_decompressed: int = DECOMPRESSED_MAX,
) -> list[Record]:
    """The records of the batch at ``position`` with ``start_offset <= offset < end_offset``.

    A control batch returns none; see ``control_record``. Keys and values are copied.

    Raises: CorruptBatch, InvalidBatch, UnsupportedMagic, UnsupportedCodec.
    """
    header = parse_header(buffer, position)
    if header.is_control or not header.count:
        return []
    data, first, end = payload(buffer, position, header, max_decompressed)
    return _decoded(header, data, first, end, start_offset, end_offset)


def control_record(buffer: Buffer, position: int = 0) -> ControlRecord | None:
    """The content of the control batch at ``position``; None if compaction emptied it.

    Raises: InvalidBatch if it is not a control batch or has no valid key.
    """
    header = parse_header(buffer, position)
    if not header.is_control:
        raise InvalidBatch("batch is not a control batch")
    if not header.count:
        return None
    data, first, end = payload(buffer, position, header, DECOMPRESSED_MAX)
    _, _, key, value, _ = _decoded(header, data, first, end, INT64_MIN, INT64_MAX)[0]
    if key is None or len(key) < _MARKER_KEY.size:
        raise InvalidBatch("control record has no type")
    version, kind = _MARKER_KEY.unpack_from(key)
    epoch = -1
    if kind in (ABORT_MARKER, COMMIT_MARKER) and value is not None and len(value) >= _MARKER_VALUE.size:
        _, epoch = _MARKER_VALUE.unpack_from(value)
    return ControlRecord(version, kind, epoch)


def marker(kind: int, coordinator_epoch: int) -> tuple[bytes, bytes]:
    """(key, value) of the one record in a transaction marker's control batch. Source: KIP-98."""
    return _MARKER_KEY.pack(0, kind), _MARKER_VALUE.pack(0, coordinator_epoch)


def payload(buffer: Buffer, position: int, header: BatchHeader, max_decompressed: int) -> tuple[Buffer, int, int]:
    """(bytes, start, end) of the encoded records of a batch: in ``buffer`` itself, or decompressed.

    Raises: CorruptBatch if the batch is truncated, PayloadTooLarge, CorruptPayload.
    """
    end = position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"batch of {header.size} bytes is cut short at {len(buffer) - position}")
    codec = header.codec
    if codec is Codec.NONE:
        return buffer, position + HEADER_SIZE, end
    with memoryview(buffer) as view, view[position + HEADER_SIZE : end] as compressed:
        data = decompress(codec, compressed, limit_bytes=max_decompressed)
    return data, 0, len(data)


def _decoded(header: BatchHeader, data: Buffer, first: int, end: int, start_offset: int, end_offset: int) -> list[Record]:
    append_timestamp = header.max_timestamp if header.timestamp_type == LOG_APPEND_TIME else None
    if header.count < 0:
        raise InvalidBatch(f"batch declares {header.count} records")
    return decode_records(
        data, first, end, header.count, header.base_offset, header.base_timestamp, append_timestamp, start_offset, end_offset
    )
