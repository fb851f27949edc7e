"""Writes records in plain Python: builds batches, and hashes keys for partitioning."""

from array import array
from collections.abc import Iterable, Sequence
from sys import byteorder

from ottla.records.checksum import Buffer
from ottla.records.errors import FAULT_TIMESTAMP, FAULT_TOO_LONG, record_fault
from ottla.records.varint import encode

_INT64_MAX = (1 << 63) - 1
_INT64_MIN = -(1 << 63)
_INT32_MAX = (1 << 31) - 1
_BATCH_HEADER = bytes(61)
_SMALL_MIN = -64
_SMALL_MAX = 2047
#: Encodings of small numbers, which most lengths, counts and deltas are, by number - _SMALL_MIN.
_SMALL = tuple(encode(number) for number in range(_SMALL_MIN, _SMALL_MAX + 1))
_NULL = encode(-1)
_MASK32 = 0xFFFFFFFF
_MURMUR_M = 0x5BD1E995


class Builder:
    """Encodes the records of one batch, with space for its header in front.

    ``size_max`` bounds the uncompressed batch in bytes. The first record is accepted at any size, because a batch has at least one.
    """

    __slots__ = ("_buffer", "base_timestamp", "count", "max_timestamp", "size_max")

    def __init__(self, size_max: int = _INT32_MAX) -> None:
        self.size_max = size_max
        self._buffer: bytearray | None = bytearray(_BATCH_HEADER)
        #: Number of records; also the offset delta of the next one.
        self.count = 0
        #: Timestamp of the first record, -1 before it.
        self.base_timestamp = -1
        #: Greatest timestamp so far, -1 before the first.
        self.max_timestamp = -1

    @property
    def size(self) -> int:
        """Size of the uncompressed batch so far in bytes, with its header."""
        return 0 if self._buffer is None else len(self._buffer)

    def append(
        self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, headers: Sequence[tuple[str, Buffer | None]] = ()
    ) -> int | None:
        """Adds a record; returns its offset delta, or None, without a change, if the batch has no space for it.

        Raises: InvalidBatch if the timestamp is too far from the first record's, ValueError after ``take``.
        """
        return self._put(timestamp_ms, key, value, _header_block(headers) if headers else b"\0")

    def append_encoded(
        self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, headers: Sequence[tuple[bytes, Buffer | None]]
    ) -> int | None:
        """Like ``append``, with header names in UTF-8."""
        return self._put(timestamp_ms, key, value, _encoded_block(headers) if headers else b"\0")

    def _put(self, timestamp_ms: int, key: Buffer | None, value: Buffer | None, header_block: bytes) -> int | None:
        buffer = self._buffer
        if buffer is None:
            raise ValueError("this batch is finished")
        count = self.count
        if not _INT64_MIN <= timestamp_ms <= _INT64_MAX:
            raise OverflowError("timestamp does not fit in 64 bits")
        delta = timestamp_ms - self.base_timestamp if count else 0
        if not _INT64_MIN <= delta <= _INT64_MAX:
            raise record_fault(FAULT_TIMESTAMP, count)
        parts: list[Buffer] = [
            b"\0",
            _SMALL[delta - _SMALL_MIN] if _SMALL_MIN <= delta <= _SMALL_MAX else encode(delta),
            _SMALL[count - _SMALL_MIN] if count <= _SMALL_MAX else encode(count),
        ]
        for part in (key, value):
            if part is None:
                parts.append(_NULL)
            else:
                if type(part) is not bytes:
                    part = bytes(memoryview(part))
                length = len(part)
                parts.append(_SMALL[length - _SMALL_MIN] if length <= _SMALL_MAX else encode(length))
                parts.append(part)
        parts.append(header_block)
        body = b"".join(parts)
        if len(body) > _INT32_MAX:
            raise record_fault(FAULT_TOO_LONG, count)
        prefix = encode(len(body)) if len(body) > _SMALL_MAX else _SMALL[len(body) - _SMALL_MIN]
        if count and len(buffer) + len(prefix) + len(body) > self.size_max:
            return None
        buffer += prefix
        buffer += body
        if not count:
            self.base_timestamp = self.max_timestamp = timestamp_ms
        elif timestamp_ms > self.max_timestamp:
            self.max_timestamp = timestamp_ms
        self.count = count + 1
        return count

    def extend(
        self, timestamps: Sequence[int] | int, keys: Sequence[Buffer | None] | None, values: Sequence[Buffer | None], first: int = 0
    ) -> int:
        """Adds ``values[first:]`` with their keys and timestamps (one for all, or one each) until the batch is full.

        Returns the index of the first value that was not added: ``len(values)`` if all were.
        """
        if self._buffer is None:
            raise ValueError("this batch is finished")
        size = len(values)
        stamps = None if isinstance(timestamps, int) else timestamps
        if first < 0 or (stamps is not None and len(stamps) < size) or (keys is not None and len(keys) < size):
            raise IndexError("there are fewer timestamps or keys than values")
        for index in range(first, size):
            timestamp_ms = timestamps if isinstance(timestamps, int) else timestamps[index]
            if self.append(timestamp_ms, None if keys is None else keys[index], values[index]) is None:
                return index
        return size

    def take(self) -> bytearray:
        """61 zero bytes and the records. The builder cannot be used any more.

        Raises: ValueError on a second call.
        """
        buffer = self._buffer
        if buffer is None:
            raise ValueError("this batch is finished")
        self._buffer = None
        return buffer


def _header_block(headers: Iterable[tuple[str, Buffer | None]]) -> bytes:
    encoded = []
    for name, value in headers:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {type(name).__name__}")
        encoded.append((name.encode(), value))
    return _encoded_block(encoded)


def _encoded_block(headers: Sequence[tuple[bytes, Buffer | None]]) -> bytes:
    parts: list[Buffer] = [encode(len(headers))]
    for name, value in headers:
        parts += (encode(len(name)), name)
        if value is None:
            parts.append(_NULL)
        else:
            value = bytes(memoryview(value))
            parts += (encode(len(value)), value)
    return b"".join(parts)


def murmur2(data: Buffer) -> int:
    """Signed 32-bit murmur2 hash of a key, as in Java's default partitioner."""
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
