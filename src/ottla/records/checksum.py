"""CRC-32C (Castagnoli) over any buffer, without copying it.

A batch's checksum covers everything from its attributes to its end, so base offset and leader epoch can be rewritten by a
broker without touching it.
"""

from crc32c import crc32c as _crc32c

Buffer = bytes | bytearray | memoryview


def crc32c(buffer: Buffer, position: int = 0, end: int | None = None) -> int:
    """CRC-32C of ``buffer[position:end]`` as an unsigned 32-bit number. Releases the GIL from 32 KiB on."""
    if position == 0 and end is None:
        return _crc32c(buffer)
    return _crc32c(memoryview(buffer)[position:end])
