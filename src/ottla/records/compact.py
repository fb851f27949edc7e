"""What compaction makes of one batch: the records that stay, under the header they had.

Base offset, last offset delta, producer id, epoch and sequence never change, so a batch that lost records has gaps in its offset deltas,
and one that lost all of them can be kept as a header of 61 bytes: for the sake of its producer's sequence, or of the offset it ends at.

A tombstone (null value) or transaction marker must be seen by readers for a while before it goes. The first compaction that leaves
nothing for it to hide writes a time into the batch, the *delete horizon*: now plus delete.retention.ms, in place of the base timestamp,
with bit 6 of the attributes set. A compaction after that time drops it. Timestamps of records are relative to the base, so they are
written anew then, and only then. Source: KIP-98, KIP-534.
"""

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
from ottla.records.read import DECOMPRESSED_MAX, payload

#: Far beyond any time that comes: delete.retention.ms may be as large as a timestamp, and timestamps relative to the sum must fit 64 bits.
HORIZON_MS_MAX = 1 << 62


def map_batch(offset_map: OffsetMap, batch: Buffer, header: BatchHeader, start_offset: int) -> int:
    """Puts the keys of a whole batch's records from ``start_offset`` on into the map.

    Returns the offset below which everything is in it: behind the batch, or that of a record for whose key there is no room.
    Raises: RecordsError.
    """
    data, first, end = payload(batch, 0, header, DECOMPRESSED_MAX)
    full_at = map_records(offset_map, data, first, end, header.count, header.base_offset, start_offset)
    return header.last_offset + 1 if full_at < 0 else full_at


def retain(batch: Buffer, header: BatchHeader, offset_map: OffsetMap, *, upto: int, now_ms: int, delete_retention_ms: int) -> Buffer | None:
    """The batch of data with the records that stay; None when none do. The same buffer when all do and nothing else changes.

    ``upto``: the offset below which the map speaks; later records stay.
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
    """The batch, all of it, with the time from when on it may be dropped. Raises: RecordsError."""
    data, first, end = payload(batch, 0, header, DECOMPRESSED_MAX)
    return _rebuilt(header, bytearray(memoryview(data)[first:end]), horizon_ms)


def emptied(header: BatchHeader) -> bytearray:
    """The header alone, of a batch that lost its records; nothing is left to be compressed, or to wait for a horizon."""
    return _sealed(header._replace(count=0, attributes=header.attributes & ~(CODEC_BITS | DELETE_HORIZON_BIT)), b"")


def _rebuilt(header: BatchHeader, records: bytearray, horizon_ms: int | None) -> bytearray:
    if horizon_ms is not None:
        horizon_ms = min(horizon_ms, HORIZON_MS_MAX)
        records = shift_timestamps(records, 0, len(records), header.count, header.base_timestamp - horizon_ms)
        header = header._replace(base_timestamp=horizon_ms, attributes=header.attributes | DELETE_HORIZON_BIT)
    return _sealed(header, records if header.codec is Codec.NONE else compress(header.codec, records))


def _sealed(header: BatchHeader, records: Buffer) -> bytearray:
    batch = bytearray(HEADER_SIZE + len(records))
    batch[HEADER_SIZE:] = records
    HEADER.pack_into(batch, 0, *header._replace(batch_length=len(batch) - LOG_OVERHEAD))
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch, ATTRIBUTES_AT).to_bytes(4, "big")
    return batch
