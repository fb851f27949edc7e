"""A sparse index: pairs of increasing numbers in a file. The file is a cache; lookups verify its entries against the log.

====================  ============================  =================================================================
kind                  key                           value
====================  ============================  =================================================================
offset index, 8 B     int32 offset - base offset    int32 position in the log file
time index, 12 B      int64 timestamp, ms           int32 offset - base offset
====================  ============================  =================================================================

An offset entry holds a batch's *last* offset and its position. A time entry holds the largest timestamp so far, and the last offset of the
first batch that has it. Keys and values increase strictly (values of a time index may be equal only if Kafka wrote them).

All but the newest entries are only in the file and are searched there, so an open index costs no memory. New entries stay in memory until
a block is full, or the segment or the log is closed.

    file    e0 e1 e2 ... e511 | e512 ... e1023    pending    e1024 e1025
            `---- block ----'                                `-- less than a block, more while the disk is full

A file that Kafka preallocated ends in zeros, which are not entries. The caller compares each entry with the log. When they differ it calls
``clear`` and appends all entries again.
"""

from array import array
from bisect import bisect_left, bisect_right
from errno import ENOSPC
from struct import Struct

from ottla.base.ports import Disk, File

OFFSET_ENTRY = Struct(">ii")
TIME_ENTRY = Struct(">qi")
#: Entries that are written together.
BLOCK = 512
#: Entries that a lookup reads at once, after binary search.
LEAF = 64


class SparseIndex:
    """Entries (key, value), searched by key."""

    __slots__ = ("_disk", "_entry", "_file", "_keys", "_path", "_values", "_written", "last")

    def __init__(self, disk: Disk, path: str, entry: Struct, *, fresh: bool) -> None:
        """``fresh``: the segment is new, and an existing file at ``path`` is ignored; otherwise the file is read if it exists."""
        self._disk = disk
        self._path = path
        self._entry = entry
        self._file: File | None = None
        #: Number of entries in the file.
        self._written = 0
        self._keys = array("q")
        self._values = array("q")
        #: The newest entry; None when there is none.
        self.last: tuple[int, int] | None = None
        if not fresh:
            self._load()

    def __len__(self) -> int:
        return self._written + len(self._keys)

    @property
    def size(self) -> int:
        """Bytes of all entries, written or not."""
        return len(self) * self._entry.size

    @property
    def path(self) -> str:
        return self._path

    def append(self, key: int, value: int) -> None:
        """Adds an entry; both numbers exceed those of the last one."""
        self._keys.append(key)
        self._values.append(value)
        self.last = (key, value)
        if len(self._keys) % BLOCK == 0:
            self.write()

    def lookup(self, number: int, *, by_value: bool = False) -> tuple[int, int] | None:
        """The last entry whose key (or value) is at most ``number``; None when there is none."""
        field = 1 if by_value else 0
        waiting = self._values if by_value else self._keys
        if waiting and number >= waiting[0]:
            slot = bisect_right(waiting, number) - 1
            return self._keys[slot], self._values[slot]
        low, high = 0, self._written  # The entry sought, if any, is in low..high-1.
        while high - low > LEAF:
            middle = (low + high) // 2
            if self._read(middle, 1)[0][field] <= number:
                low = middle
            else:
                high = middle
        found = None
        for entry in self._read(low, high - low):
            if entry[field] > number:
                break
            found = entry
        return found

    def first_from(self, value: int) -> tuple[int, int] | None:
        """The first entry whose value is at least ``value``; None when there is none."""
        if not self._keys or value <= self._values[0]:
            low, high = 0, self._written  # The entry sought is in low..high.
            while high - low > LEAF:
                middle = (low + high) // 2
                if self._read(middle, 1)[0][1] < value:
                    low = middle + 1
                else:
                    high = middle
            for entry in self._read(low, min(high + 1, self._written) - low):
                if entry[1] >= value:
                    return entry
        slot = bisect_left(self._values, value)
        return (self._keys[slot], self._values[slot]) if slot < len(self._keys) else None

    def entries(self) -> list[tuple[int, int]]:
        """All entries; for tests and tools."""
        return self._read(0, self._written) + list(zip(self._keys, self._values, strict=True))

    def truncate(self, *, below_key: int | None = None, below_value: int | None = None) -> None:
        """Keeps the entries whose key, or value, is below the bound."""
        kept = [
            entry
            for entry in self.entries()
            if (below_key is None or entry[0] < below_key) and (below_value is None or entry[1] < below_value)
        ]
        self.clear()
        for key, value in kept:
            self.append(key, value)

    def clear(self) -> None:
        """Removes all entries, also from the file."""
        self._keys = array("q")
        self._values = array("q")
        self.last = None
        self._written = 0
        if self._file is not None or self._disk.exists(self._path):
            self._opened().truncate(0)

    def write(self) -> bool:
        """Writes pending entries to the file. False when the disk is full: they stay in memory until the next attempt."""
        if not self._keys:
            return True
        data = b"".join(map(self._entry.pack, self._keys, self._values))
        try:
            self.file().append(data)
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            return False
        self._written += len(self._keys)
        self._keys = array("q")
        self._values = array("q")
        return True

    def file(self) -> File:
        """The file, created if missing, without zeros after the last entry."""
        file = self._opened()
        if file.size != self._written * self._entry.size:
            file.truncate(self._written * self._entry.size)
        return file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self._path, create=True)
        return self._file

    def _load(self) -> None:
        try:
            self._file = self._disk.open(self._path)
        except FileNotFoundError:
            return
        low, high = 0, self._file.size // self._entry.size  # The first entry of zeros, if any, is in low..high.
        if high and self._read(high - 1, 1)[0] != (0, 0):
            low = high
        while low < high:
            middle = (low + high) // 2
            if self._read(middle, 1)[0] == (0, 0):
                high = middle
            else:
                low = middle + 1
        self._written = low
        self.last = self._read(low - 1, 1)[0] if low else None

    def _read(self, first: int, count: int) -> list[tuple[int, int]]:
        if not count:
            return []
        size = self._entry.size
        data = self._opened().read(first * size, count * size)
        return list(self._entry.iter_unpack(data[: len(data) // size * size]))
