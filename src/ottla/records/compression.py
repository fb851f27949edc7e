"""The four codecs of record batches, compatible with Java clients, with bounded output.

* gzip: RFC 1952; consecutive members are one stream.
* snappy: written in the framing of snappy-java ("xerial"): a header of 16 bytes, then blocks of at most 32 KiB with their lengths.
  One raw block, as librdkafka writes, and several consecutive streams can be read, too.
* lz4: one LZ4 frame with independent blocks; Java refuses linked ones.
* zstd: Zstandard frames.

A few bytes can decompress to gigabytes, so ``decompress`` has a maximum size and refuses larger payloads before it allocates memory.
Source: KIP-110 (zstd), KIP-390 (levels), CVE-2023-34455.
"""

import zlib
from enum import IntEnum

import cramjam

from ottla.records.checksum import Buffer
from ottla.records.decompressed_size import lz4_bound, snappy_size, zstd_bound
from ottla.records.errors import CorruptPayload, PayloadTooLarge

#: No ratio is asked of an output up to this size: equal records shrink a thousandfold and are no attack, and a Java producer that has seen
#: its records shrink so fills the 16 KiB of a batch with some megabytes of them.
RATIO_FREE_BYTES = 16 * 1024 * 1024

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + (1).to_bytes(4, "big") + (1).to_bytes(4, "big")
_XERIAL_BLOCK = 32 * 1024
#: gzip input is processed in pieces, because the bytes after a member are copied.
_GZIP_PIECE = 64 * 1024
#: Writers make one; each one costs a decompressor.
_GZIP_MEMBERS_MAX = 1024
#: cramjam's own default is a slow high-compression level.
_LZ4_LEVEL = 1
#: Kafka's default level 9 is the fast compressor of liblz4; its other levels are those of the slow one.
_LZ4_LEVEL_FAST = 9
_LZ4_LEVEL_MAX = 12
_ZSTD_LEVEL = 3


class Codec(IntEnum):
    """Compression of a batch: bits 0 to 2 of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @property
    def wire_name(self) -> str:
        """Kafka's name, as in ``compression.type``."""
        return self.name.lower()

    @classmethod
    def of(cls, wire_name: str) -> "Codec":
        """The codec with this name.

        Raises: ValueError with the five valid names.
        """
        try:
            return _BY_NAME[wire_name]
        except KeyError:
            raise ValueError(f"no codec is called {wire_name!r}; there are {', '.join(_BY_NAME)}") from None


_BY_NAME = {codec.wire_name: codec for codec in Codec}


def compress(codec: Codec, data: Buffer, level: int | None = None) -> bytes:
    """Compresses ``data``. ``level`` None is the codec's default (gzip 6, lz4 fast, zstd 3; snappy has no levels)."""
    match codec:
        case Codec.NONE:
            return bytes(data)
        case Codec.GZIP:
            return zlib.compress(data, -1 if level is None else level, wbits=31)
        case Codec.SNAPPY:
            return _compress_xerial(data)
        case Codec.LZ4:
            chosen = _LZ4_LEVEL if level is None or level == _LZ4_LEVEL_FAST else min(level, _LZ4_LEVEL_MAX)
            stream = cramjam.lz4.Compressor(level=chosen, content_checksum=False, block_linked=False)
            stream.compress(bytes(data))
            return bytes(stream.finish())
        case Codec.ZSTD:
            return bytes(cramjam.zstd.compress(data, level=_ZSTD_LEVEL if level is None else level))


def decompress(codec: Codec, data: Buffer, *, limit_bytes: int, ratio_max: int | None = None) -> bytes | bytearray:
    """Decompresses ``data``.

    Args:
        limit_bytes: maximum size of the result.
        ratio_max: maximum ratio of output to input for results above ``RATIO_FREE_BYTES``; None for no limit.

    Raises: PayloadTooLarge (before more memory than the limit is allocated), CorruptPayload.
    """
    if ratio_max is not None:
        limit_bytes = min(limit_bytes, max(RATIO_FREE_BYTES, ratio_max * len(data)))
    match codec:
        case Codec.NONE:
            if len(data) > limit_bytes:
                raise PayloadTooLarge(f"payload of {len(data)} bytes, allowed are {limit_bytes}")
            return bytes(data)
        case Codec.GZIP:
            return _decompress_gzip(data, limit_bytes)
        case Codec.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        case Codec.LZ4:
            return _into(cramjam.lz4.decompress_into, data, lz4_bound(data, limit_bytes), limit_bytes)
        case Codec.ZSTD:
            return _into(cramjam.zstd.decompress_into, data, zstd_bound(data, limit_bytes), limit_bytes)


def _into(decompress_into, data: Buffer, bound: int, limit_bytes: int) -> bytearray:  # type: ignore[no-untyped-def]
    """Decompresses into a buffer of ``bound`` bytes, or of the limit if that is less."""
    output = bytearray(min(bound, limit_bytes))
    try:
        size = decompress_into(data, output)
    except cramjam.DecompressionError as error:
        if bound > limit_bytes:
            raise PayloadTooLarge(f"payload is corrupt or grows past the {limit_bytes} bytes allowed") from error
        raise CorruptPayload(f"payload cannot be decompressed: {error}") from error
    del output[size:]
    return output


def _decompress_gzip(data: Buffer, limit_bytes: int) -> bytes:
    parts: list[bytes] = []
    room = limit_bytes
    position = members = 0
    rest: Buffer = b""
    while position < len(data) or rest or not members:
        members += 1
        if members > _GZIP_MEMBERS_MAX:
            raise CorruptPayload(f"payload has more than {_GZIP_MEMBERS_MAX} gzip members")
        stream = zlib.decompressobj(wbits=31)
        while not stream.eof:
            if not rest:
                rest = data[position : position + _GZIP_PIECE]
                position += len(rest)
            try:
                # One byte more than fits, to detect a payload that is too large.
                part = stream.decompress(rest, room + 1)
            except zlib.error as error:
                raise CorruptPayload(f"payload cannot be decompressed: {error}") from error
            if not part and not rest and not stream.eof:
                raise CorruptPayload("payload ends inside a gzip member")
            room -= len(part)
            if room < 0:
                raise PayloadTooLarge(f"payload grows past the {limit_bytes} bytes allowed")
            parts.append(part)
            rest = stream.unconsumed_tail
        rest = stream.unused_data
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _compress_xerial(data: Buffer) -> bytes:
    parts: list[Buffer] = [_XERIAL_HEADER]
    with memoryview(data) as view:
        for position in range(0, len(view), _XERIAL_BLOCK):
            block = bytes(cramjam.snappy.compress_raw(view[position : position + _XERIAL_BLOCK]))
            parts += (len(block).to_bytes(4, "big"), block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> bytearray:
    with memoryview(data) as view:
        blocks = _snappy_blocks(view, limit_bytes)
        output = bytearray(sum(size for _, _, size in blocks))
        with memoryview(output) as room:
            written = 0
            for start, end, size in blocks:
                try:
                    written += cramjam.snappy.decompress_raw_into(view[start:end], room[written : written + size])
                except cramjam.DecompressionError as error:
                    raise CorruptPayload(f"payload cannot be decompressed: {error}") from error
    if written != len(output):
        raise CorruptPayload("payload holds less than its snappy blocks declare")
    return output


def _snappy_blocks(view: memoryview, limit_bytes: int) -> list[tuple[int, int, int]]:
    """(start, end, decompressed size) of each raw block, with lengths checked and their sum within the limit."""
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        spans = [(0, len(view))]
    else:
        spans = []
        position = 0
        while position < len(view):
            if view[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
                # The next stream of consecutive ones has a header.
                position += len(_XERIAL_HEADER)
                continue
            start = position + 4
            position = start + int.from_bytes(view[position:start], "big")
            if start > len(view) or position > len(view):
                raise CorruptPayload("payload has a snappy block longer than itself")
            spans.append((start, position))
        if position != len(view):
            raise CorruptPayload("payload ends inside its snappy header")
    total = 0
    blocks = []
    for start, end in spans:
        size = snappy_size(view[start:end])
        total += size
        if total > limit_bytes:
            raise PayloadTooLarge(f"payload declares {total} bytes, allowed are {limit_bytes}")
        blocks.append((start, end, size))
    return blocks
