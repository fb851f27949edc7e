"""Kafka's variable-length numbers: zigzag, then 7 bits per byte, lowest first, bit 7 set on all but the last byte.

      0 -> 00     -1 -> 01     1 -> 02     -64 -> 7F     64 -> 80 01

A varint has 32 bits in at most 5 bytes, a varlong 64 bits in at most 10; larger numbers are refused. Encodings longer than necessary are
accepted, as in Java. The codec modules contain these loops inline; this module is for single numbers.
"""

from ottla.records.checksum import Buffer
from ottla.records.errors import FAULT_TRUNCATED, FAULT_VARINT


def encode(value: int) -> bytes:
    """The bytes of a signed number of up to 64 bits."""
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def scan(buffer: Buffer, position: int, end: int, bits: int) -> tuple[int, int]:
    """(number, next position) of a signed number of 32 or 64 bits in ``[position, end)``; a fault is a negative number instead of the
    position.
    """
    value = shift = 0
    while True:
        if position >= end:
            return 0, -FAULT_TRUNCATED
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= bits:
            return 0, -FAULT_VARINT
    if value >> bits:
        return 0, -FAULT_VARINT
    return (value >> 1) ^ -(value & 1), position
