"""CRC-32C (Castagnoli) of a buffer, without a copy.

The checksum of a batch covers attributes to end. A broker can therefore change base offset and leader epoch without computing it again.
"""

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(buffer: Buffer, position: int = 0, end: int | None = None) -> int:
    """CRC-32C of ``buffer[position:end]`` as an unsigned 32-bit number. Releases the GIL from 32 KiB on."""
    if position == 0 and end is None:
        return _crc32c(buffer)
    return _crc32c(memoryview(buffer)[position:end])
