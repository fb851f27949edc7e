"""Compaction in plain Python: the latest offset by key, and which records of a batch are kept."""

from hashlib import blake2b
from struct import Struct

from ottla.records._pure_read import _INT64_MAX, _INT64_MIN, _number, _part, _walk
from ottla.records.checksum import Buffer
from ottla.records.errors import FAULT_OFFSET, FAULT_TIMESTAMP, record_fault
from ottla.records.varint import encode

_DIGEST = 16
_OFFSET = Struct("<q")
_ENTRY_BYTES = _DIGEST + _OFFSET.size
_FREE = -1


class OffsetMap:
    """Latest offset by key, in 24 bytes per entry: the key is represented by a 128-bit hash.

    ``slots`` is the table's size, allocated at once; at most ``entries_max`` of them are used. ``key``, 16 bytes, is the secret of the
    hash, so that clients cannot construct collisions.
    """

    __slots__ = ("_entries_max", "_key", "_size", "_slots", "_table")

    def __init__(self, slots: int, entries_max: int, key: bytes) -> None:
        if not 1 <= entries_max < slots:
            raise ValueError("an offset map has room for one entry at least, and a free slot")
        if len(key) != _DIGEST:
            raise ValueError("the key of an offset map has 16 bytes")
        self._slots = slots
        self._entries_max = entries_max
        self._key = key
        self._size = 0
        self._table = bytearray(b"\xff") * (slots * _ENTRY_BYTES)

    def __len__(self) -> int:
        return self._size

    def put(self, key: Buffer, offset: int) -> bool:
        """Sets the latest offset of a key. Returns False, without a change, if a new key does not fit."""
        if offset < 0:
            raise ValueError("offsets are not negative")
        digest, at = self._slot(key)
        if _OFFSET.unpack_from(self._table, at + _DIGEST)[0] == _FREE:
            if self._size >= self._entries_max:
                return False
            self._size += 1
            self._table[at : at + _DIGEST] = digest
        _OFFSET.pack_into(self._table, at + _DIGEST, offset)
        return True

    def latest(self, key: Buffer) -> int:
        """The latest offset of a key, -1 if it has none."""
        _, at = self._slot(key)
        return int(_OFFSET.unpack_from(self._table, at + _DIGEST)[0])

    def _slot(self, key: Buffer) -> tuple[bytes, int]:
        digest = blake2b(key, digest_size=_DIGEST, key=self._key).digest()
        slot = int.from_bytes(digest[:8], "little") % self._slots
        while True:
            at = slot * _ENTRY_BYTES
            if _OFFSET.unpack_from(self._table, at + _DIGEST)[0] == _FREE or self._table[at : at + _DIGEST] == digest:
                return digest, at
            slot = (slot + 1) % self._slots


def map_records(offset_map: OffsetMap, buffer: Buffer, position: int, end: int, count: int, base_offset: int, start_offset: int) -> int:
    """Adds the keys of records with ``offset >= start_offset``; records without a key are skipped.

    Returns the offset of the first record that did not fit, -1 if all did.
    Raises: InvalidBatch.
    """
    data = _part(buffer, position, end)
    for index, (delta, _, key, key_end, _, _, _) in enumerate(_walk(data, count, 0)):
        offset = base_offset + delta
        if not 0 <= offset <= _INT64_MAX:
            raise record_fault(FAULT_OFFSET, index)
        if key >= 0 and offset >= start_offset and not offset_map.put(data[key:key_end], offset):
            return offset
    return -1


def keep_records(
    offset_map: OffsetMap,
    upto: int,
    keep_tombstones: bool,
    buffer: Buffer,
    position: int,
    end: int,
    count: int,
    base_offset: int,
    base_timestamp: int,
) -> tuple[int, int, int, bytearray | None]:
    """The records that compaction keeps: all from offset ``upto`` on; below it those with a key and without a later record in the map and,
    unless ``keep_tombstones``, with a value.

    Returns (count, tombstones among them, greatest timestamp, or -1, and the encoded records; None if all are kept).
    Raises: InvalidBatch.
    """
    data = _part(buffer, position, end)
    out = bytearray()
    kept = tombstones = start = 0
    greatest = -1
    for index, (delta, timestamp, key, key_end, value, _, _) in enumerate(_walk(data, count, base_timestamp)):
        begin = start
        length, after = _number(data, begin, 32)
        start = after + length
        offset = base_offset + delta
        if not _INT64_MIN <= offset <= _INT64_MAX:
            raise record_fault(FAULT_OFFSET, index)
        if offset < upto and (key < 0 or (value < 0 and not keep_tombstones) or offset < offset_map.latest(data[key:key_end])):
            continue
        out += data[begin:start]
        kept += 1
        tombstones += value < 0
        greatest = max(greatest, timestamp)
    return kept, tombstones, greatest, None if kept == count else out


def shift_timestamps(buffer: Buffer, position: int, end: int, count: int, shift: int) -> bytearray:
    """The records with ``shift`` added to their timestamp deltas, for a base timestamp that is lowered by it.

    Raises: InvalidBatch, also if a delta no longer fits in 64 bits.
    """
    data = _part(buffer, position, end)
    out = bytearray()
    start = 0
    for index, _ in enumerate(_walk(data, count, 0)):
        length, body = _number(data, start, 32)
        start = body + length
        delta, rest = _number(data, body + 1, 64)
        if not _INT64_MIN <= delta + shift <= _INT64_MAX:
            raise record_fault(FAULT_TIMESTAMP, index)
        changed = data[body : body + 1] + encode(delta + shift) + data[rest:start]
        out += encode(len(changed)) + changed
    return out
