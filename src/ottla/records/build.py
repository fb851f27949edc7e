"""Building batches: record by record, or a whole list at once.

A builder encodes each record as it comes, so memory is the batch itself; compression happens once, over all records, when the batch is
finished. Timestamps are stored as differences to the first record's, offsets as the record's place.
"""

from collections.abc import Iterable, Sequence
from typing import Any

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
from ottla.records.codec import Builder
from ottla.records.compression import Codec, compress

RecordInput = tuple[int, Buffer | None, Buffer | None, Sequence[tuple[str, Buffer | None]]]


class BatchBuilder(Builder):
    """One batch in the making: ``append`` until it answers None, then ``finish``.

    ``append`` and ``extend`` come from the codec; ``size`` and ``count`` tell how far it has come. ``size_max`` bounds the
    uncompressed batch with its header; the first record is taken whatever its size.
    """

    __slots__ = ("codec", "level")

    def __init__(self, *, codec: Codec = Codec.NONE, level: int | None = None, size_max: int = 2**31 - 1) -> None:
        super().__init__(size_max)
        self.codec = codec
        self.level = level

    def finish(self, **fields: Any) -> bytearray:
        """The batch, with the header fields of ``seal``; nothing can be appended after it.

        Raises: ValueError when it was finished before.
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
    """One batch of ``records``: (timestamp_ms, key, value, headers) each. ``fields`` are those of ``seal``.

    Raises: ValueError when there are no records.
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
    """Compresses encoded records that stand behind 61 free bytes, and writes header and checksum in front of them, in place."""
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
