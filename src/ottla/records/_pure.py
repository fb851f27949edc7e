"""The record codec in plain Python: twin of the compiled ``_native``, function for function, fault for fault.

It serves where there is no C compiler, and it is the readable statement of what the compiled one does. ``_pure_read`` and
``_pure_build`` hold its halves; a property test holds the twins equal.
"""

from array import array
from sys import byteorder

from ottla.records._pure_build import Builder
from ottla.records._pure_read import check_records, decode_records, keyless_records, records_outside
from ottla.records.checksum import Buffer

__all__ = ["Builder", "check_records", "decode_records", "keyless_records", "murmur2", "records_outside"]

_MASK32 = 0xFFFFFFFF
_MURMUR_M = 0x5BD1E995


def murmur2(data: Buffer) -> int:
    """The 32-bit hash by which Java's default partitioner spreads keys, signed."""
    length = len(data)
    h = 0x9747B28C ^ length
    whole = length & ~3
    words = array("I")
    words.frombytes(bytes(data[:whole]))
    if byteorder == "big":
        words.byteswap()
    for k in words:
        k = k * _MURMUR_M & _MASK32
        k ^= k >> 24
        h = (h * _MURMUR_M & _MASK32) ^ (k * _MURMUR_M & _MASK32)
    rest = length - whole
    if rest:
        h ^= int.from_bytes(bytes(data[whole:]), "little")
        h = h * _MURMUR_M & _MASK32
    h ^= h >> 13
    h = h * _MURMUR_M & _MASK32
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h
