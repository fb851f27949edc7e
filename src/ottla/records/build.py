"""Builds batches, record by record or from a list.

A builder encodes each record at once, so its memory is the batch itself. Compression happens once, when the batch is finished. Timestamps
are stored relative to the first record's, offsets relative to the base offset.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ottla.records.batch import (
    ATTRIBUTES_AT,
    CONTROL_BIT,
    CRC_AT,
    HEADER,
    HEADER_SIZE,
    LOG_OVERHEAD,
    MAGIC,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
)
from ottla.records.checksum import Buffer, crc32c
from ottla.records.codec import Builder, ColumnEncoder, group_rows, partition_column
from ottla.records.compression import Codec, compress

RecordInput = tuple[int, Buffer | None, Buffer | None, Sequence[tuple[str, Buffer | None]]]


class BatchBuilder(Builder):
    """A batch under construction: ``append`` until it returns None, then ``finish``.

    ``append`` and ``extend`` come from the codec; ``size`` and ``count`` are the progress. ``size_max`` bounds the uncompressed batch with
    its header; the first record is accepted at any size.
    """

    __slots__ = ("codec", "level")

    def __init__(self, *, codec: Codec = Codec.NONE, level: int | None = None, size_max: int = 2**31 - 1) -> None:
        super().__init__(size_max)
        self.codec = codec
        self.level = level

    def finish(self, **fields: Any) -> bytearray:
        """The finished batch, with header fields as for ``seal``.

        Raises: ValueError on a second call.
        """
        return seal(
            self.take(),
            count=self.count,
            base_timestamp=self.base_timestamp,
            max_timestamp=self.max_timestamp,
            codec=self.codec,
            level=self.level,
            **fields,
        )


def build_batch(records: Iterable[RecordInput], *, codec: Codec = Codec.NONE, level: int | None = None, **fields: Any) -> bytearray:
    """A batch of ``records``: (timestamp_ms, key, value, headers) each. ``fields`` are those of ``seal``.

    Raises: ValueError without records.
    """
    builder = BatchBuilder(codec=codec, level=level)
    for timestamp_ms, key, value, headers in records:
        builder.append(timestamp_ms, key, value, headers)
    if not builder.count:
        raise ValueError("a batch holds one record at least")
    return builder.finish(**fields)


def seal(
    batch: bytearray,
    *,
    count: int,
    base_timestamp: int,
    max_timestamp: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    base_offset: int = 0,
    last_offset_delta: int | None = None,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    transactional: bool = False,
    control: bool = False,
    timestamp_type: int = 0,
) -> bytearray:
    """Compresses encoded records, which follow 61 reserved bytes, and writes header and checksum, in place."""
    if codec is not Codec.NONE:
        with memoryview(batch) as view, view[HEADER_SIZE:] as payload:
            compressed = compress(codec, payload, level)
        batch[HEADER_SIZE:] = compressed
    attributes = (
        codec
        | (TIMESTAMP_TYPE_BIT if timestamp_type else 0)
        | (TRANSACTIONAL_BIT if transactional else 0)
        | (CONTROL_BIT if control else 0)
    )
    fields = (
        attributes,
        count - 1 if last_offset_delta is None else last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        count,
    )
    HEADER.pack_into(batch, 0, base_offset, len(batch) - LOG_OVERHEAD, leader_epoch, MAGIC, 0, *fields)
    batch[CRC_AT:ATTRIBUTES_AT] = crc32c(batch, ATTRIBUTES_AT).to_bytes(4, "big")
    return batch


class BinaryColumn(NamedTuple):
    """A column of byte strings in Arrow's layout (binary, string and their large forms)."""

    #: One more than rows, int32 or, if ``wide``, int64; in the machine's byte order.
    offsets: Buffer
    data: Buffer
    #: Bitmap, lowest bit first, 1 = valid; None without nulls.
    validity: Buffer | None = None
    wide: bool = False


class HeadersColumn(NamedTuple):
    """A column of lists of (name, value) in Arrow's layout: ``offsets`` are row positions in the other two."""

    offsets: Buffer
    names: BinaryColumn
    values: BinaryColumn
    validity: Buffer | None = None
    wide: bool = False


def column_encoder(
    value: BinaryColumn,
    *,
    first: int,
    last: int,
    timestamps: Buffer | int,
    key: BinaryColumn | None = None,
    headers: HeadersColumn | None = None,
    rows: Buffer | None = None,
    timestamps_us: bool = False,
) -> ColumnEncoder:
    """Encodes the rows ``[first, last)`` of Arrow buffers, without a Python object per record.

    ``encode(size_max)`` returns the next batch as a builder for ``seal_encoded``, None after the last. A row that exceeds ``size_max``
    bytes makes a larger batch of its own.

    Args:
        first, last: rows of the buffers; the offset of a sliced array must be added.
        timestamps: int64 per row, in ms, or µs with ``timestamps_us``; or one number of ms for all.
        rows: int64 row numbers; ``first`` and ``last`` are then positions in it. Selects the rows of one partition.

    ``encode`` raises InvalidBatch if offsets point outside of the data, IndexError if rows are missing.
    """
    return ColumnEncoder(
        value,
        key,
        None if headers is None else ((headers.offsets, None, headers.validity, headers.wide), headers.names, headers.values),
        timestamps,
        timestamps_us,
        rows,
        first,
        last,
    )


def seal_encoded(builder: Builder, *, size_max: int, codec: Codec = Codec.NONE, level: int | None = None, **fields: Any) -> bytearray:
    """The batch of a builder, compressed unless that makes it larger than ``size_max`` and the original. May run in another thread."""
    plain = builder.take()
    count, base, greatest = builder.count, builder.base_timestamp, builder.max_timestamp
    batch = plain if codec is Codec.NONE else bytearray(plain)
    seal(batch, count=count, base_timestamp=base, max_timestamp=greatest, codec=codec, level=level, **fields)
    if len(batch) > size_max and codec is not Codec.NONE and len(plain) < len(batch):
        batch = seal(plain, count=count, base_timestamp=base, max_timestamp=greatest, **fields)
    return batch


def partitions_of_keys(keys: BinaryColumn, count: int, *, first: int, last: int) -> bytes:
    """The partition of each key in rows ``[first, last)``, out of ``count``, as int32, as in Java's default partitioner; -1 for null."""
    return partition_column(keys, first, last, count)


def rows_by_partition(partitions: Buffer, count: int) -> tuple[bytes, list[int]]:
    """Groups the rows of an int32 column of partitions, from -1 (any) to ``count - 1``; the order within a group is kept.

    Returns row numbers (int64) and the ends of the groups: rows of -1 are ``[0, ends[0])``, of partition p ``[ends[p], ends[p + 1])``.

    Raises: IndexError, with row and number, for a partition out of range.
    """
    return group_rows(partitions, count)
