"""Records of a compacted topic in a history: each value is unique, keys are shared by many values, and some records are tombstones.

Key and kind follow from the value. A tombstone has its value in a header.
"""

from collections.abc import Sequence
from zlib import crc32

KEYS = 9
_HEADER = "value"


def key_of(value: bytes) -> bytes:
    """The key of a value in a compacted topic."""
    return b"key-%d" % (crc32(value) % KEYS)


def is_tombstone(value: bytes) -> bool:
    """Whether the record of this value is a tombstone."""
    return crc32(value) // KEYS % 5 == 0


def record_of(timestamp_ms: int, value: bytes) -> tuple[int, bytes, bytes | None, list[tuple[str, bytes]]]:
    """The record to send."""
    if is_tombstone(value):
        return timestamp_ms, key_of(value), None, [(_HEADER, value)]
    return timestamp_ms, key_of(value), value, []


def value_of(value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """The value of a record."""
    if value is None and headers:
        return headers[0][1] or b""
    return value or b""
