"""Validates a batch before a broker stores it, in Kafka's order: format, length, checksum, header, then every record.

The records of an uncompressed batch are read in place. A compressed payload is decompressed for the check, within a limit, and discarded:
the stored bytes are always the client's.

The caller checks timestamps, because it knows the topic's settings: ``examine_batch`` returns the least and the greatest,
``timestamps_outside`` the records out of range. Like Kafka, it corrects a wrong maximum timestamp in the header
(``batch.stamp_max_timestamp``). Source: LogValidator, KIP-467 (errors per record).
"""

from typing import NamedTuple

from ottla.records.batch import (
    ATTRIBUTES_AT,
    CODEC_BITS,
    CONTROL_BIT,
    DELETE_HORIZON_BIT,
    HEADER_SIZE,
    LOG_OVERHEAD,
    RESERVED_BITS,
    BatchHeader,
    crc_ok,
    parse_header,
)
from ottla.records.checksum import Buffer, crc32c
from ottla.records.codec import check_records, keyless_records, records_outside, schema_frames
from ottla.records.compression import Codec, decompress
from ottla.records.decompressed_size import lz4_blocks_are_linked
from ottla.records.errors import CorruptBatch, InvalidBatch

#: Bound for batches with very many invalid records.
RECORD_ERRORS_MAX = 1000
#: Reserved bits, and those that only brokers write.
FORBIDDEN_BITS = CONTROL_BIT | DELETE_HORIZON_BIT | RESERVED_BITS


class Examination(NamedTuple):
    """A valid batch, and facts about its records."""

    header: BatchHeader
    #: Greatest timestamp of the records, ms; -1 if none has one. The correct value of the header's field.
    max_timestamp: int
    #: Index of the first record with it; -1 if none has a timestamp.
    index_of_max_timestamp: int
    #: Least timestamp of the records other than -1; -1 if none has one.
    min_timestamp: int


def examine_batch(buffer: Buffer, *, max_decompressed: int, ratio_max: int | None = None, require_keys: bool = False) -> Examination:
    """Checks that ``buffer`` is exactly one batch that a client may write.

    Args:
        max_decompressed: maximum decompressed size of its records in bytes.
        ratio_max: see ``compression.decompress``.
        require_keys: refuses records without a key, as for compacted topics.

    Raises: UnsupportedMagic, CorruptBatch (length, checksum), UnsupportedCodec, InvalidBatch (all other errors; ``record_errors`` lists the
    records).
    """
    header = parse_header(buffer)
    _, batch_length, _, _, crc, attributes, last_offset_delta, base_timestamp, _, producer_id, _, base_sequence, count = header
    if batch_length + LOG_OVERHEAD != len(buffer):
        if batch_length + LOG_OVERHEAD < len(buffer):
            raise InvalidBatch(f"{len(buffer)} bytes hold more than one batch of {header.size}")
        raise CorruptBatch(f"batch of {header.size} bytes is cut short at {len(buffer)}")
    view = buffer if type(buffer) is memoryview else memoryview(buffer)
    if crc32c(view[ATTRIBUTES_AT:]) != crc:
        raise CorruptBatch(f"checksum of the batch is not the {crc:#010x} it declares")
    if count <= 0 or last_offset_delta != count - 1:
        raise InvalidBatch(f"batch declares {count} records and a last offset delta of {last_offset_delta}")
    if attributes & FORBIDDEN_BITS:
        if attributes & CONTROL_BIT:
            raise InvalidBatch("clients may not write control batches")
        raise InvalidBatch(f"batch sets attributes {attributes & 0xFFFF:#06x}, which clients may not")
    if producer_id >= 0 and base_sequence < 0:
        raise InvalidBatch(f"batch of producer {producer_id} has sequence {base_sequence}")
    records, position = (_payload(buffer, header, max_decompressed, ratio_max)) if attributes & CODEC_BITS else (buffer, HEADER_SIZE)
    least, greatest, index_of_greatest, keyless = check_records(records, position, len(records), count, base_timestamp)
    if require_keys and keyless:
        indexes = keyless_records(records, position, len(records), count, RECORD_ERRORS_MAX)
        sentence = "a compacted topic takes no record without a key"
        raise InvalidBatch(f"{keyless} records have no key: {sentence}", [(index, sentence) for index in indexes])
    return tuple.__new__(Examination, (header, greatest, index_of_greatest, least))


class SchemaFrames(NamedTuple):
    """Schemas that the records of a batch name in the frame of a schema registry. An index is -1 if there is no such record."""

    #: By schema id in keys: index of the first record with it. At most one id more than the limit.
    of_keys: dict[int, int]
    of_values: dict[int, int]
    #: Index of the first record with a key, or a value, that is not null and has no frame.
    unframed_key: int
    unframed_value: int


def frames_of_batch(
    buffer: Buffer, *, keys: bool, values: bool, limit: int, max_decompressed: int, ratio_max: int | None = None
) -> SchemaFrames:
    """The schemas that the keys, the values, or both, of a client's batch name.

    Raises: as ``examine_batch``, for all that makes the records unreadable.
    """
    header = parse_header(buffer)
    if header.size != len(buffer) or not crc_ok(buffer) or header.count <= 0:
        examine_batch(buffer, max_decompressed=max_decompressed)
        raise AssertionError("a batch with a wrong length, checksum or count is refused")
    records, position = _payload(buffer, header, max_decompressed, ratio_max)
    return SchemaFrames(*schema_frames(records, position, len(records), header.count, keys, values, limit))


def timestamps_outside(
    buffer: Buffer, *, low_ms: int, high_ms: int, max_decompressed: int, ratio_max: int | None = None
) -> list[tuple[int, int]]:
    """(index, timestamp) of the records of a checked batch whose timestamp is neither -1 nor in ``[low_ms, high_ms]``.

    At most ``RECORD_ERRORS_MAX`` of them.
    """
    header = parse_header(buffer)
    records, position = _payload(buffer, header, max_decompressed, ratio_max)
    return records_outside(records, position, len(records), header.count, header.base_timestamp, low_ms, high_ms, RECORD_ERRORS_MAX)


def _payload(buffer: Buffer, header: BatchHeader, max_decompressed: int, ratio_max: int | None) -> tuple[Buffer, int]:
    """(buffer with the records, their start; they end at its end)."""
    codec = header.codec
    if codec is Codec.NONE:
        return buffer, HEADER_SIZE
    with memoryview(buffer) as view, view[HEADER_SIZE:] as payload:
        if codec is Codec.LZ4 and lz4_blocks_are_linked(payload):
            raise InvalidBatch("LZ4 frame has linked blocks, which Java clients cannot read")
        return decompress(codec, payload, limit_bytes=max_decompressed, ratio_max=ratio_max), 0
