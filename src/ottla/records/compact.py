"""Compacts one batch: keeps some records and the header.

Base offset, last offset delta, producer id, epoch and sequence never change. A batch that lost records therefore has gaps in its offset
deltas, and one that lost all of them can be kept as a header of 61 bytes, for its producer's sequence or its end offset.

Readers must be able to see a tombstone (null value) or transaction marker for some time. The first compaction that finds nothing older for
it to hide sets the batch's *delete horizon*: now plus delete.retention.ms, in place of the base timestamp, with bit 6 of the attributes. A
compaction after that time removes it. Record timestamps are relative to the base timestamp, so they are rewritten then, and only then.
Source: KIP-98, KIP-534.
"""

from contextlib import suppress

from ottla.records.batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    CRC_AT,
    DELETE_HORIZON_BIT,
    HEADER,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    LOG_OVERHEAD,
    BatchHeader,
)
from ottla.records.checksum import Buffer, crc32c
from ottla.records.codec import OffsetMap, keep_records, map_records, shift_timestamps
from ottla.records.compression import Codec, compress
from ottla.records.errors import InvalidBatch
from ottla.records.read import DECOMPRESSED_MAX, payload

#: Bound of the horizon: delete.retention.ms may be as large as a timestamp, and timestamps relative to the sum must fit 64 bits.
HORIZON_MS_MAX = 1 << 62


def map_batch(offset_map: OffsetMap, batch: Buffer, header: BatchHeader, start_offset: int) -> int:
    """Adds the keys of a batch's records from ``start_offset`` on to the map.

    Returns the offset up to which all records are in the map: the end of the batch, or the first record whose key did not fit.
    Raises: RecordsError.
    """
    data, first, end = payload(batch, 0, header, DECOMPRESSED_MAX)
    full_at = map_records(offset_map, data, first, end, header.count, header.base_offset, start_offset)
    return header.last_offset + 1 if full_at < 0 else full_at


def retain(batch: Buffer, header: BatchHeader, offset_map: OffsetMap, *, upto: int, now_ms: int, delete_retention_ms: int) -> Buffer | None:
    """The batch with the records that are kept; None without any. The same buffer if nothing changes.

    ``upto``: end offset of the map; later records are kept.
    Raises: RecordsError.
    """
    horizon_ms = header.delete_horizon_ms
    data, first, end = payload(batch, 0, header, DECOMPRESSED_MAX)
    keep_tombstones = horizon_ms is None or now_ms < horizon_ms
    span = (data, first, end, header.count)
    kept, tombstones, greatest, records = keep_records(offset_map, upto, keep_tombstones, *span, header.base_offset, header.base_timestamp)
    if not kept:
        return None
    settle = tombstones > 0 and horizon_ms is None
    if records is None and not settle:
        return batch
    if records is None:
        records = bytearray(memoryview(data)[first:end])
    if header.timestamp_type != LOG_APPEND_TIME:
        header = header._replace(max_timestamp=greatest)
    return _rebuilt(header._replace(count=kept), records, now_ms + delete_retention_ms if settle else None)


def with_horizon(batch: Buffer, header: BatchHeader, horizon_ms: int) -> Buffer:
    """The batch with all records and a delete horizon. Raises: RecordsError."""
    data, first, end = payload(batch, 0, header, DECOMPRESSED_MAX)
    return _rebuilt(header, bytearray(memoryview(data)[first:end]), horizon_ms)


def emptied(header: BatchHeader) -> bytearray:
    """The header of a batch without records, uncompressed and without a delete horizon."""
    return _sealed(header._replace(count=0, attributes=header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT)), b"")


def _rebuilt(header: BatchHeader, records: bytearray, horizon_ms: int | None) -> bytearray:
    if horizon_ms is not None:
        horizon_ms = min(horizon_ms, HORIZON_MS_MAX)
        # Timestamps that are too far below the horizon for 64 bits: the batch gets no horizon, so its tombstones are kept.
        with suppress(InvalidBatch, OverflowError):
            records = shift_timestamps(records, 0, len(records), header.count, header.base_timestamp - horizon_ms)
            header = header._replace(base_timestamp=horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT)
    return _sealed(header, records if header.codec is Codec.NONE else compress(header.codec, records))


def _sealed(header: BatchHeader, records: Buffer) -> bytearray:
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD))
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch, ATTRIBUTES_AT).to_bytes(4, "big")
    return batch
