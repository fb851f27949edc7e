"""Upper bounds for the decompressed size of a payload, from its framing alone.

The content size that a frame declares cannot be trusted, so memory is not allocated by it. The blocks give a bound:

* Zstandard (RFC 8878): a raw or run-length block declares its size, a compressed one has at most min(window, 128 KiB).
* LZ4 frame: an uncompressed block has its size, a compressed one at most min(block maximum, 255 times its size).
* Snappy: a block begins with its size, which is at most 64 bytes for each 3 bytes of input (one copy element).

The bound is tight enough to be the size of the output buffer, which then cannot overflow.
"""

from ottla.records.checksum import Buffer
from ottla.records.errors import CorruptPayload, PayloadTooLarge

_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_SKIPPABLE = 0x184D2A50
_ZSTD_BLOCK_MAX = 128 * 1024
_LZ4_MAGIC = 0x184D2204
_LZ4_BLOCK_MAX = {4: 64 * 1024, 5: 256 * 1024, 6: 1024 * 1024, 7: 4 * 1024 * 1024}
_LZ4_INDEPENDENT = 0x20
_LZ4_EXPANSION = 255
_RAW, _RUN_LENGTH, _COMPRESSED = range(3)


def zstd_bound(data: Buffer, limit_bytes: int) -> int:
    """Maximum size of the Zstandard frames in ``data``. Consecutive frames are one stream; skippable frames count 0.

    Raises: PayloadTooLarge if the declared sizes of raw and run-length blocks alone exceed ``limit_bytes``, CorruptPayload if the framing
    is invalid.
    """
    bound = certain = position = 0
    while position < len(data):
        magic = _little(data, position, 4)
        if magic & 0xFFFFFFF0 == _ZSTD_SKIPPABLE:
            position += 8 + _little(data, position + 4, 4)
            continue
        if magic != _ZSTD_MAGIC:
            raise CorruptPayload("payload is no Zstandard frame")
        position, block_max, declared, checksum_size = _zstd_header(data, position)
        if declared is not None and declared > limit_bytes:
            raise PayloadTooLarge(f"payload declares {declared} bytes, allowed are {limit_bytes}")
        frame_bound = 0
        last = False
        while not last:
            block = _little(data, position, 3)
            last, kind, size = bool(block & 1), block >> 1 & 3, block >> 3
            if kind > _COMPRESSED or size > block_max:
                raise CorruptPayload("payload has an impossible Zstandard block")
            position += 3 + (1 if kind == _RUN_LENGTH else size)
            frame_bound += block_max if kind == _COMPRESSED else size
            if kind != _COMPRESSED:
                certain += size
                if certain > limit_bytes:
                    raise PayloadTooLarge(f"payload grows past the {limit_bytes} bytes allowed")
        position += checksum_size
        bound += frame_bound if declared is None else min(frame_bound, declared)
    if position != len(data) or not data:
        raise CorruptPayload("payload ends inside a Zstandard frame")
    return bound


def _zstd_header(data: Buffer, position: int) -> tuple[int, int, int | None, int]:
    """(position of the first block, maximum block size, declared content size, bytes of checksum) of the frame at ``position``."""
    descriptor = _little(data, position + 4, 1)
    single_segment = bool(descriptor & 0x20)
    position += 5
    window = 0
    if not single_segment:
        code = _little(data, position, 1)
        window = (1 << 10 + (code >> 3)) * (8 + (code & 7)) // 8
        position += 1
    position += (0, 1, 2, 4)[descriptor & 3]
    width = (int(single_segment), 2, 4, 8)[descriptor >> 6]
    declared = None
    if width:
        declared = _little(data, position, width) + (256 if width == 2 else 0)
        position += width
    if single_segment:
        window = declared or 0
    return position, min(window, _ZSTD_BLOCK_MAX), declared, 4 if descriptor & 4 else 0


def lz4_bound(data: Buffer, limit_bytes: int) -> int:
    """Maximum size of the LZ4 frame ``data``. Java reads only one frame.

    Raises: PayloadTooLarge if it certainly exceeds ``limit_bytes``, CorruptPayload if the framing is invalid.
    """
    if len(data) < 7 or _little(data, 0, 4) != _LZ4_MAGIC:
        raise CorruptPayload("payload is no LZ4 frame")
    flags = data[4]
    block_max = _LZ4_BLOCK_MAX.get(data[5] >> 4 & 7)
    if flags >> 6 != 1 or block_max is None:
        raise CorruptPayload("payload has an unknown LZ4 frame header")
    position = 6
    if flags & 0x08:
        declared = _little(data, 6, 8)
        if declared > limit_bytes:
            raise PayloadTooLarge(f"payload declares {declared} bytes, allowed are {limit_bytes}")
        position += 8
    position += (4 if flags & 0x01 else 0) + 1
    bound = certain = 0
    while block := _little(data, position, 4):
        size = block & 0x7FFFFFFF
        if size > block_max:
            raise CorruptPayload("payload has an impossible LZ4 block")
        position += 4 + size + (4 if flags & 0x10 else 0)
        if block >> 31:
            bound += size
            certain += size
            if certain > limit_bytes:
                raise PayloadTooLarge(f"payload grows past the {limit_bytes} bytes allowed")
        else:
            bound += min(block_max, size * _LZ4_EXPANSION)
    position += 4 + (4 if flags & 0x04 else 0)
    if position != len(data):
        raise CorruptPayload("payload is not exactly one LZ4 frame")
    return bound


def lz4_blocks_are_linked(data: Buffer) -> bool:
    """Whether blocks of this LZ4 frame refer to earlier ones, which Java clients refuse."""
    return len(data) > 4 and not data[4] & _LZ4_INDEPENDENT


def snappy_size(block: Buffer) -> int:
    """The size that a raw snappy block declares, checked against the maximum for its length.

    Raises: CorruptPayload.
    """
    size = shift = position = 0
    while True:
        if position >= len(block) or position == 5:
            raise CorruptPayload("payload is no snappy block")
        byte = block[position]
        position += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    # The densest element is a copy: 64 bytes from 3 (from 2 in the shorter form, with at most 11).
    if size > (len(block) - position) * 64 // 3 + 64:
        raise CorruptPayload(f"snappy block of {len(block)} bytes declares {size}")
    return size


def _little(data: Buffer, position: int, width: int) -> int:
    if position + width > len(data):
        raise CorruptPayload("payload ends early")
    return int.from_bytes(data[position : position + width], "little")
