"""One file of batches with its indexes.

    position   0          4200      8100                 12 300   12 800   size
    batches    | b b b b b | b b b b | b . . . . . . . b | B       B        |
    entries                ^         ^                   ^        `- recent: positions kept in memory, as they come
                           `---------`--- offset index --`

A batch gets an entry if it begins more than ``index.interval.bytes`` after the batch of the last entry. The positions of batches from the
newest entry on are in memory (``recent``), so the newest batches, which most consumers read, are found without a read.

Indexes are opened on first use and checked against the log: the last entries must refer to existing batches, and later batches must need
no further entry. Each entry used later is compared with its batch. On any difference the indexes are rebuilt from the headers.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from errno import ENOSPC

from ottla.base.ids import Offset
from ottla.base.ports import Buffer, Disk, File
from ottla.base.units import INT32_MAX, KiB
from ottla.log.batch_scan import HEADER_CHUNK, headers
from ottla.log.damage import Damage
from ottla.log.errors import CorruptLog
from ottla.log.filenames import DELETED, LOG, OFFSET_INDEX, SEGMENT_FILES, TIME_INDEX, TXN_INDEX, segment_name
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY, SparseIndex
from ottla.log.transaction_index import AbortedTransaction, read_entries
from ottla.records.batch import HEADER_SIZE, BatchHeader

NO_TIMESTAMP = -1
#: A lookup reads about one index interval, 4 KiB by default.
LOOKUP_CHUNK = 8 * KiB
#: Limit of the positions in memory; with a long index interval the older half is dropped and found through the index.
RECENT_MAX = 256


def timestamp_of(header: BatchHeader) -> int:
    """A batch's largest timestamp; -1 for a batch that compaction emptied."""
    return header.max_timestamp if header.count else NO_TIMESTAMP


class Segment:
    """The last segment of a log is appended to; the others are only read."""

    __slots__ = (
        "_aborted",
        "_aborted_replaced",
        "_aborted_written",
        "_file",
        "_first_timestamp",
        "_max_timestamp",
        "_offsets",
        "_recent_from",
        "_recent_offsets",
        "_recent_positions",
        "_times",
        "base_offset",
        "created_ms",
        "damages",
        "directory",
        "disk",
        "interval_bytes",
        "jitter_ms",
        "size",
        "suffix",
    )

    def __init__(
        self, disk: Disk, directory: str, base_offset: int, *, size: int, interval_bytes: int, now_ms: int, suffix: str = ""
    ) -> None:
        """``suffix`` is appended to its file names while it is not part of a log."""
        self.disk = disk
        self.directory = directory
        self.base_offset = Offset(base_offset)
        self.size = size
        self.interval_bytes = interval_bytes
        self.created_ms = now_ms
        self.suffix = suffix
        #: Known damage that is not healed, in the order of positions; reads skip it.
        self.damages: tuple[Damage, ...] = ()
        #: Subtracted from segment.ms.
        self.jitter_ms = 0
        self._file: File | None = None
        self._offsets: SparseIndex | None = None
        self._times: SparseIndex | None = None
        self._aborted: list[AbortedTransaction] | None = None
        #: Number of them in the file.
        self._aborted_written = 0
        #: Whether the file was emptied: until it is synced, a power cut can restore its former content.
        self._aborted_replaced = False
        #: (timestamp, last offset of the first batch that has it); None until the time index was read.
        self._max_timestamp: tuple[int, int] | None = None
        self._first_timestamp: int | None = None
        #: Batches from ``_recent_from`` on: last offsets and positions.
        self._recent_from = -1
        self._recent_offsets: list[int] = []
        self._recent_positions: list[int] = []

    @classmethod
    def create(cls, disk: Disk, directory: str, base_offset: int, *, interval_bytes: int, now_ms: int, suffix: str = "") -> "Segment":
        """A new, empty segment with its files. Existing files are emptied: a crash can restore files that were removed before it."""
        segment = cls(disk, directory, base_offset, size=0, interval_bytes=interval_bytes, now_ms=now_ms, suffix=suffix)
        file = segment.file
        if file.size:
            file.truncate(0)
        disk.unlink(segment.path(TXN_INDEX))
        segment.reset()
        segment.offsets.file()
        segment.times.file()
        return segment

    @classmethod
    def empty(cls, disk: Disk, directory: str, base_offset: int, *, interval_bytes: int, now_ms: int) -> "Segment":
        """An empty segment whose files exist and are empty. Does no I/O: the first append opens them."""
        segment = cls(disk, directory, base_offset, size=0, interval_bytes=interval_bytes, now_ms=now_ms)
        segment._offsets = SparseIndex(disk, segment.path(OFFSET_INDEX), OFFSET_ENTRY, fresh=True)
        segment._times = SparseIndex(disk, segment.path(TIME_INDEX), TIME_ENTRY, fresh=True)
        segment._aborted = []
        segment._max_timestamp = (NO_TIMESTAMP, segment.base_offset)
        return segment

    def path(self, suffix: str) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}{self.suffix}"

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.disk.open(self.path(LOG), create=True)
        return self._file

    @property
    def offsets(self) -> SparseIndex:
        if self._offsets is None:
            self.load()
        assert self._offsets is not None, "load() opens the indexes"
        return self._offsets

    @property
    def times(self) -> SparseIndex:
        if self._times is None:
            self.load()
        assert self._times is not None, "load() opens the indexes"
        return self._times

    @property
    def max_timestamp(self) -> tuple[int, int]:
        """(largest timestamp, last offset of the first batch that has it); (-1, base offset) in an empty segment."""
        if self._max_timestamp is None:
            self.load()
        return self._max_timestamp or (NO_TIMESTAMP, self.base_offset)

    @property
    def first_timestamp(self) -> int:
        """Largest timestamp of the first batch, from which the segment's age is counted; -1 in an empty segment."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = NO_TIMESTAMP
            with suppress(CorruptLog):  # A damaged header must not prevent appends.
                self._first_timestamp = timestamp_of(next(headers(self.file, 0, self.size, chunk_bytes=LOOKUP_CHUNK))[1])
        return NO_TIMESTAMP if self._first_timestamp is None else self._first_timestamp

    @property
    def is_open(self) -> bool:
        """Whether the indexes are open, so entries may be unwritten."""
        return self._offsets is not None

    def takes(self, last_offset: int) -> bool:
        """Whether an offset fits into 31 bits relative to the base offset."""
        return last_offset - self.base_offset <= INT32_MAX

    def append(self, batch: Buffer, header: BatchHeader, base_offset: int) -> int:
        """Writes a complete batch with this base offset; returns its position. Raises: OSError, and the file is unchanged."""
        if self._offsets is None:
            self.load()
        position = (self._file or self.file).append(batch)
        self.note(position, len(batch), base_offset, base_offset + header.last_offset_delta, header.max_timestamp)
        return position

    def note(self, position: int, size: int, base_offset: int, last_offset: int, max_timestamp: int) -> None:
        """Accounts for a batch in the file: size, largest timestamp, indexes."""
        self.size = position + size
        if position == 0:
            self._first_timestamp = max_timestamp
        latest = self._max_timestamp
        if latest is None or max_timestamp > latest[0]:
            self._max_timestamp = (max_timestamp, last_offset)
        offsets, recent = self._offsets, self._recent_offsets
        assert offsets is not None, "the indexes of a growing segment are open"
        last = offsets.last
        if position - (last[1] if last else 0) > self.interval_bytes:
            offsets.append(last_offset - self.base_offset, position)
            self._note_time()
            recent.clear()
            self._recent_positions.clear()
        if not recent:
            self._recent_from = base_offset
        elif len(recent) >= RECENT_MAX:
            self._recent_from = recent[RECENT_MAX // 2 - 1] + 1
            del recent[: RECENT_MAX // 2], self._recent_positions[: RECENT_MAX // 2]
        recent.append(last_offset)
        self._recent_positions.append(position)

    def _note_time(self) -> None:
        times = self._times
        assert times is not None and self._max_timestamp is not None, "the indexes of a growing segment are open"
        timestamp, offset = self._max_timestamp
        if timestamp > (times.last[0] if times.last else NO_TIMESTAMP):
            times.append(timestamp, offset - self.base_offset)

    def position_of(self, offset: int) -> int | None:
        """Position of the batch with ``offset``, or of the next one; None when there is none.

        Raises: CorruptLog.
        """
        found = self.find(offset)
        return None if found is None else found[0]

    def find(self, offset: int) -> tuple[int, int] | None:
        """As ``position_of``, with the position behind the batch; in the newest part of the segment no batch is read.

        Raises: CorruptLog.
        """
        behind = self._behind_damage(offset) if self.damages else 0
        if self._recent_offsets and offset >= self._recent_from:
            return self._find_recent(bisect_left(self._recent_offsets, offset))
        try:
            batch = self._walk_to(offset, behind)
        except CorruptLog:
            self.rebuild()  # The index is wrong; if the log is damaged instead, this raises CorruptLog again.
            batch = self._walk_to(offset, behind)
        return None if batch is None else (batch[0], batch[0] + batch[1].size)

    def _find_recent(self, slot: int) -> tuple[int, int] | None:
        positions = self._recent_positions
        if slot == len(positions):
            return None
        position = positions[slot]
        if self.damages:
            # The next known batch may begin behind damage.
            return position, position + self.batch_size_at(position)
        return position, positions[slot + 1] if slot + 1 < len(positions) else self.size

    def bound_of(self, position: int) -> int | None:
        """An offset above all batches that begin before ``position``; None if none is known below the end of the segment.

        Reads no batch: it is exact in the newest part of the segment, else the offset of the next index entry. Source: Kafka's
        LogSegment.fetchUpperBoundOffset.
        """
        recent = self._recent_positions
        if recent and position > recent[0]:
            slot = bisect_left(recent, position)
            return self._recent_offsets[slot - 1] + 1
        entry = self.offsets.first_from(position)
        return None if entry is None else self.base_offset + entry[0]

    def header_of(self, offset: int) -> tuple[int, BatchHeader] | None:
        """As ``position_of``, with the header."""
        position = self.position_of(offset)
        if position is None:
            return None
        return next(headers(self.file, position, self.size, chunk_bytes=LOOKUP_CHUNK))

    def batch_size_at(self, position: int) -> int:
        """Size of the batch at this position. Raises: CorruptLog."""
        return next(headers(self.file, position, self.size, chunk_bytes=HEADER_SIZE))[1].size

    def _behind_damage(self, offset: int) -> int:
        """The position behind the last known damage below ``offset``. Raises: CorruptLog for an offset that is damaged."""
        behind = 0
        for one in self.damages:
            if one.first <= offset < one.end:
                raise CorruptLog(f"{self.path(LOG)} is damaged: {one}")
            if one.end <= offset:
                behind = max(behind, one.end_position)
        return behind

    def _headers(self, position: int, end: int, *, chunk_bytes: int = HEADER_CHUNK) -> Iterator[tuple[int, BatchHeader]]:
        """As ``batch_scan.headers``, skipping known damage."""
        for one in self.damages:
            if one.end_position > position and one.position < end:
                yield from headers(self.file, position, one.position, chunk_bytes=chunk_bytes)
                position = one.end_position
        yield from headers(self.file, position, end, chunk_bytes=chunk_bytes)

    def sound_end(self, position: int, limit: int) -> int:
        """End position of a read from ``position`` up to offset ``limit`` that avoids known damage."""
        end = min((one.position for one in self.damages if one.position > position), default=self.size)
        with suppress(CorruptLog):
            bound = self.position_of(limit)
            end = end if bound is None else min(end, bound)
        return end

    def _walk_to(self, offset: int, behind: int = 0) -> tuple[int, BatchHeader] | None:
        """The batch with ``offset``, or the next one, at position ``behind`` or later.

        Raises: CorruptLog, also when an index entry contradicts the log.
        """
        entry = self.offsets.lookup(offset - self.base_offset)
        start = self._start(entry)
        if start < behind:
            entry, start = None, behind
        for position, header in headers(self.file, start, self.size, chunk_bytes=LOOKUP_CHUNK):
            if entry is not None:
                self._compare(entry, header)
                entry = None
            if header.last_offset >= offset:
                return position, header
        return None

    def _start(self, entry: tuple[int, int] | None) -> int:
        if entry is None:
            return 0
        if not 0 < entry[1] < self.size:
            raise CorruptLog(f"{self.path(OFFSET_INDEX)} refers to position {entry[1]} of {self.size}")
        return entry[1]

    def _compare(self, entry: tuple[int, int], header: BatchHeader) -> None:
        if header.last_offset != self.base_offset + entry[0]:
            raise CorruptLog(
                f"{self.path(OFFSET_INDEX)} has offset {self.base_offset + entry[0]} for the batch that ends at {header.last_offset}"
            )

    def load(self) -> Offset:
        """Opens, checks and if necessary rebuilds the indexes; returns the offset after the last batch. Raises: CorruptLog."""
        offsets = SparseIndex(self.disk, self.path(OFFSET_INDEX), OFFSET_ENTRY, fresh=False)
        times = SparseIndex(self.disk, self.path(TIME_INDEX), TIME_ENTRY, fresh=False)
        self._offsets, self._times = offsets, times
        self._max_timestamp = (times.last[0], times.last[1] + self.base_offset) if times.last else (NO_TIMESTAMP, self.base_offset)
        self._forget_recent()
        try:
            return self._check(offsets, times)
        except CorruptLog:
            return self.rebuild()

    def _check(self, offsets: SparseIndex, times: SparseIndex) -> Offset:
        """The offset after the last batch. Raises: CorruptLog when the indexes contradict the log."""
        entry = offsets.last
        indexed_at = self._start(entry)
        end = self.base_offset
        latest = NO_TIMESTAMP
        for position, header in self._headers(indexed_at, self.size, chunk_bytes=LOOKUP_CHUNK):
            if entry is not None and position == indexed_at:
                self._compare(entry, header)
            if not end <= header.base_offset <= header.last_offset or not self.takes(header.last_offset):
                raise CorruptLog(f"{self.path(LOG)} has offset {header.base_offset} at {position}, after {end - 1}")
            if position - indexed_at > self.interval_bytes:
                raise CorruptLog(f"{offsets.path} has no entry for {position}")
            end = Offset(header.last_offset + 1)
            latest = max(latest, timestamp_of(header))
            if not self._recent_offsets:
                self._recent_from = header.base_offset
            self._recent_offsets.append(header.last_offset)
            self._recent_positions.append(position)
        timestamp, offset = self.max_timestamp
        if latest > timestamp or (entry is not None and not self.size):
            raise CorruptLog(f"{times.path} does not reach timestamp {latest}")
        if times.last is not None:
            batch = self._walk_to(offset)
            if batch is None or batch[1].last_offset != offset or batch[1].max_timestamp != timestamp:
                raise CorruptLog(f"{times.path} has timestamp {timestamp} for offset {offset}, the log does not")
        return end

    def reset(self) -> None:
        """Clears indexes and size, as before the first ``note``; the log file is unchanged."""
        self._offsets = (
            SparseIndex(self.disk, self.path(OFFSET_INDEX), OFFSET_ENTRY, fresh=True) if self._offsets is None else self._offsets
        )
        self._times = SparseIndex(self.disk, self.path(TIME_INDEX), TIME_ENTRY, fresh=True) if self._times is None else self._times
        self._offsets.clear()
        self._times.clear()
        self._forget_recent()
        self.size = 0
        self._max_timestamp = (NO_TIMESTAMP, self.base_offset)
        self._first_timestamp = None

    def rebuild(self, end_position: int | None = None) -> Offset:
        """Rebuilds the indexes from the log; returns the offset after the last batch.

        Raises: CorruptLog, and keeps the indexes: batches behind the damage stay readable through them.
        """
        size = self.size if end_position is None else end_position
        end = self.base_offset
        for position, header in self._headers(0, size):
            if not end <= header.base_offset <= header.last_offset or not self.takes(header.last_offset):
                raise CorruptLog(f"{self.path(LOG)} has offset {header.base_offset} at {position}, after {end - 1}")
            end = Offset(header.last_offset + 1)
        self.reset()
        end = self.base_offset
        for position, header in self._headers(0, size):
            end = Offset(header.last_offset + 1)
            self.note(position, header.size, header.base_offset, header.last_offset, timestamp_of(header))
        self.finish()
        return end

    def finish(self) -> bool:
        """Completes and writes the indexes of a segment that stops growing.

        False when the disk is full: the entries stay in memory.
        """
        self._note_time()
        written = self.offsets.write()
        return self.times.write() and self._write_aborted() and written

    def freeze(self) -> None:
        """Frees the memory that only a growing segment needs."""
        self._forget_recent()

    def _forget_recent(self) -> None:
        self._recent_from = -1
        self._recent_offsets = []
        self._recent_positions = []

    @property
    def aborted(self) -> list[AbortedTransaction]:
        """Transactions whose abort marker is in this segment."""
        if self._aborted is None:
            try:
                data = self.disk.read_file(self.path(TXN_INDEX))
            except FileNotFoundError:
                data = b""
            self._aborted = read_entries(data, self.base_offset) or []
            self._aborted_written = len(self._aborted)
        return self._aborted

    @property
    def has_transaction_index(self) -> bool:
        """Whether the transaction index has entries, or a power cut can restore former ones."""
        return bool(self.aborted) or self._aborted_replaced

    def note_aborted(self, transaction: AbortedTransaction) -> None:
        """Adds to the transaction index, in memory until ``finish``."""
        self.aborted.append(transaction)

    def reset_aborted(self, below_offset: int = 0) -> None:
        """Keeps the aborted transactions whose marker is below the offset.

        The file is not synced: ``index_files`` contains it from now on. A crash before that must lead to a new reset.
        """
        self._aborted = [entry for entry in self.aborted if entry.last_offset < below_offset] if below_offset else []
        self._empty_aborted()

    def forget_aborted(self) -> None:
        """Forgets the aborted transactions; the file is unchanged until ``store_aborted``."""
        self._aborted, self._aborted_written = [], 0

    def store_aborted(self, *, durable: bool) -> None:
        """Makes the file contain the present aborted transactions.

        ``durable``: before it returns, for a closed segment, which no later flush syncs; what a killed process wrote may be in the page
        cache only, so the file is written again even if it is the same. Otherwise ``finish`` writes them, as in ``reset_aborted``. Raises:
        OSError. A full disk leaves them to ``finish``, too.
        """
        path, content = self.path(TXN_INDEX), b"".join(entry.pack() for entry in self.aborted)
        try:
            former, exists = self.disk.read_file(path), True
        except FileNotFoundError:
            former, exists = b"", False
        if former != content or (durable and exists):
            try:
                if durable:
                    self.disk.replace_file(path, content)
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                durable = False
            if not durable:
                self._empty_aborted()
                return
        self._aborted_written = len(self.aborted)

    def _empty_aborted(self) -> None:
        self._aborted_written = 0
        if self.disk.exists(self.path(TXN_INDEX)):
            self.disk.open(self.path(TXN_INDEX)).truncate(0)
            self._aborted_replaced = True

    def _write_aborted(self) -> bool:
        if self._aborted is None or len(self._aborted) == self._aborted_written:
            return True
        try:
            file = self.disk.open(self.path(TXN_INDEX), create=True)
            file.append(*(entry.pack() for entry in self._aborted[self._aborted_written :]))
        except OSError as error:
            if error.errno != ENOSPC:
                raise
            return False
        self._aborted_written = len(self._aborted)
        return True

    def index_files(self) -> list[File]:
        """The index files to sync."""
        files = [self.offsets.file(), self.times.file()]
        if self._aborted_written or self._aborted_replaced:
            files.append(self.disk.open(self.path(TXN_INDEX)))
        return files

    def close(self) -> None:
        for index in (self._offsets, self._times):
            if index is not None:
                index.close()
        if self._file is not None:
            self._file.close()
        self._file = self._offsets = self._times = None

    def rename_deleted(self, mark: str = "") -> list[str]:
        """Renames the files to ``*<mark>.deleted``; returns the new paths. The log file stays open for fetches that send from it.

        ``mark`` distinguishes them from deleted files of the same base offset.
        """
        paths = []
        for suffix in SEGMENT_FILES:
            path = self.path(suffix)
            try:
                self.disk.rename(path, path + mark + DELETED)
            except FileNotFoundError:
                continue
            paths.append(path + mark + DELETED)
        return paths

    def unlink(self) -> None:
        self.close()
        for suffix in SEGMENT_FILES:
            self.disk.unlink(self.path(suffix))
