"""The header of record batch v2: 61 bytes, big-endian, the same on the wire and on disk.

    offset  size  field                 inside the CRC
    0       8     base offset
    8       4     batch length: bytes after this field
    12      4     partition leader epoch
    16      1     magic: 2
    17      4     CRC-32C of 21..end
    21      2     attributes            yes
    23      4     last offset delta     yes
    27      8     base timestamp, ms    yes
    35      8     max timestamp, ms     yes
    43      8     producer id           yes
    51      2     producer epoch        yes
    53      4     base sequence         yes
    57      4     count of records      yes
    61      ...   records, compressed as one stream if the attributes name a codec

    attributes, bit   15..7 unused | 6 delete horizon | 5 control | 4 transactional | 3 timestamp type | 2..0 codec

Compaction keeps base offset, last offset delta and sequences of a batch when it removes records from it, so the offset deltas
of the records may have gaps and the count may be 0. With bit 6 set the base timestamp is the time at which tombstones and
markers of the batch may be removed; record timestamps stay relative to it. Source: KIP-98, KIP-534.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from ottla.records.checksum import Buffer, crc32c
from ottla.records.compression import Codec
from ottla.records.errors import CorruptBatch, UnsupportedCodec, UnsupportedMagic

HEADER_SIZE = 61
#: Base offset and length, which the length field does not count.
LOG_OVERHEAD = 12
MAGIC = 2
MAGIC_AT = 16
CRC_AT = 17
#: Start of the checksummed part.
ATTRIBUTES_AT = 21
MAX_TIMESTAMP_AT = 35

CODEC_BITS = 0x07
TIMESTAMP_TYPE_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40
#: First byte and bit 7: reserved in all versions of Kafka.
RESERVED_BITS = 0xFF80

CREATE_TIME = 0
LOG_APPEND_TIME = 1
NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
_SEQUENCES = 1 << 31

HEADER = Struct(">qiibIhiqqqhii")
_OFFSET = Struct(">q")
_EPOCH = Struct(">i")
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">H")
_CODECS: tuple[Codec | None, ...] = (*Codec, None, None, None)


class BatchHeader(NamedTuple):
    """The fields of a batch header in wire order."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # Kafka's word; it hides tuple.count.

    @property
    def size(self) -> int:
        """Size of the whole batch in bytes."""
        return self.batch_length + LOG_OVERHEAD

    @property
    def last_offset(self) -> int:
        """Offset of the last record of the original batch, even if compaction removed it."""
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """Sequence number of the last record, modulo 2^31; -1 without a sequence."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) % _SEQUENCES

    @property
    def codec(self) -> Codec:
        """Compression of the records.

        Raises: UnsupportedCodec for the three undefined numbers.
        """
        codec = _CODECS[self.attributes & CODEC_BITS]
        if codec is None:
            raise UnsupportedCodec(self.attributes & CODEC_BITS)
        return codec

    @property
    def timestamp_type(self) -> int:
        """0 CreateTime: each record has a timestamp. 1 LogAppendTime: all records have ``max_timestamp``."""
        return LOG_APPEND_TIME if self.attributes & TIMESTAMP_TYPE_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """Whether the records belong to a transaction."""
        return bool(self.attributes & TRANSACTIONAL_BIT)

    @property
    def is_control(self) -> bool:
        """Whether the batch holds a control record instead of data."""
        return bool(self.attributes & CONTROL_BIT)

    @property
    def has_producer(self) -> bool:
        """Whether an idempotent or transactional producer wrote the batch."""
        return self.producer_id > NO_PRODUCER_ID

    @property
    def delete_horizon_ms(self) -> int | None:
        """Time from which compaction may remove the batch's tombstones and markers; None if not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at ``position``. The rest of the batch may be missing; the CRC is not checked.

    Raises: CorruptBatch (too few bytes, impossible length), UnsupportedMagic.
    """
    if len(buffer) - position < HEADER_SIZE:
        if len(buffer) - position > MAGIC_AT and buffer[position + MAGIC_AT] != MAGIC:
            raise UnsupportedMagic(_signed_byte(buffer[position + MAGIC_AT]))
        raise CorruptBatch(f"{len(buffer) - position} bytes cannot hold a batch header of {HEADER_SIZE}")
    header = tuple.__new__(BatchHeader, HEADER.unpack_from(buffer, position))
    if header[3] != MAGIC:
        raise UnsupportedMagic(header[3])
    if header[1] < HEADER_SIZE - LOG_OVERHEAD:
        raise CorruptBatch(f"batch length {header[1]} is less than the {HEADER_SIZE - LOG_OVERHEAD} bytes of its header")
    return header


def headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of every complete batch from ``position`` on; a truncated last batch, as in fetch responses, is skipped.

    Raises: CorruptBatch, UnsupportedMagic for an invalid header.
    """
    end = len(buffer)
    while end - position >= HEADER_SIZE:
        header = parse_header(buffer, position)
        following = position + header.batch_length + LOG_OVERHEAD
        if following > end:
            return
        yield position, header
        position = following


def patch(buffer: bytearray | memoryview, position: int = 0, *, base_offset: int, leader_epoch: int) -> None:
    """Writes the fields that a leader assigns, in place. Both are outside of the CRC."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, now_ms: int) -> None:
    """Makes the batch at ``position`` a LogAppendTime batch with timestamp ``now_ms``, and updates the CRC."""
    _stamp(buffer, position, TIMESTAMP_TYPE_BIT, now_ms)


def stamp_max_timestamp(buffer: bytearray | memoryview, position: int, max_timestamp_ms: int) -> None:
    """Corrects the maximum timestamp of a CreateTime batch, and updates the CRC.

    The time index uses this field, so Kafka's broker corrects it on append, too.
    """
    _stamp(buffer, position, 0, max_timestamp_ms)


def crc_ok(buffer: Buffer, position: int = 0) -> bool:
    """Whether the batch at ``position`` is complete and its CRC matches."""
    if len(buffer) - position < HEADER_SIZE:
        return False
    (size,) = _EPOCH.unpack_from(buffer, position + 8)
    end = position + size + LOG_OVERHEAD
    if size < HEADER_SIZE - LOG_OVERHEAD or end > len(buffer):
        return False
    (crc,) = _CRC.unpack_from(buffer, position + CRC_AT)
    return bool(crc32c(buffer, position + ATTRIBUTES_AT, end) == crc)


def _stamp(buffer: bytearray | memoryview, position: int, type_bit: int, max_timestamp_ms: int) -> None:
    header = parse_header(buffer, position)
    end = position + header.size
    if end > len(buffer):
        raise CorruptBatch(f"batch of {header.size} bytes is cut short at {len(buffer) - position}")
    attributes = (header.attributes & ~TIMESTAMP_TYPE_BIT | type_bit) & 0xFFFF
    _ATTRIBUTES.pack_into(buffer, position + ATTRIBUTES_AT, attributes)
    _OFFSET.pack_into(buffer, position + MAX_TIMESTAMP_AT, max_timestamp_ms)
    _CRC.pack_into(buffer, position + CRC_AT, crc32c(buffer, position + ATTRIBUTES_AT, end))


def _signed_byte(value: int) -> int:
    return value - 256 if value > 127 else value
