"""Recompresses records with another codec, for topics with a ``compression.type``."""

from ottla.records.batch import CODEC_BITS, HEADER, HEADER_SIZE, LOG_OVERHEAD, parse_header
from ottla.records.checksum import Buffer, crc32c
from ottla.records.compression import Codec, compress, decompress

ATTRIBUTES_AT = 21


def recompress(batch: Buffer, codec: Codec, *, level: int | None = None, max_decompressed: int) -> bytearray:
    """A complete, checked batch with its records compressed by ``codec``; the header changes only in length and CRC.

    Raises: RecordsError if the decompressed records exceed ``max_decompressed`` bytes.
    """
    header = parse_header(batch)
    payload = memoryview(batch)[HEADER_SIZE : header.size]
    plain = payload if header.codec is Codec.NONE else decompress(header.codec, payload, limit_bytes=max_decompressed)
    packed = plain if codec is Codec.NONE else compress(codec, plain, level)
    made = bytearray(HEADER_SIZE + len(packed))
    made[HEADER_SIZE:] = packed
    attributes = header.attributes & ~CODEC_BITS | codec
    fields = header._replace(batch_length=len(made) - LOG_OVERHEAD, attributes=attributes)
    HEADER.pack_into(made, 0, *fields)
    HEADER.pack_into(made, 0, *fields._replace(crc=crc32c(made, ATTRIBUTES_AT)))
    return made
