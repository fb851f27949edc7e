"""Performs a compaction: reads the closed segments of a log, and writes new ones without the records that newer ones replace.

::

    segments   0         40         110        150     (active)      first dirty 110, up to 150
               | clean   | clean    | dirty    | ...
    1. read the dirty part          `--------- the newest offset of each key, into a map of fixed size
    2. read everything   `---------------------' and write retained records to 0.log.cleaned, with indexes; sync

It runs beside the log and writes only files that end in ``.cleaned``, and finally ``holes-checkpoint``; ``compaction.swap`` puts the new
segments in place. If the dirty part has more keys than the map holds, this compaction ends earlier; the next one continues there.

Removed: records with a newer record of the same key, records without a key, records of aborted transactions, tombstones and transaction
markers after their delete horizon (``records.retain``). Kept, possibly as an empty header: the last five batches of each known producer,
since otherwise its next or repeated sequence would be out of order after a restart (Kafka keeps one); and the last batch of all, as in
Kafka. No other empty batch is kept, since some clients (kafka-go) cannot read past a batch without records.

A marker stays as long as batches of its transaction exist. So each pass tracks, in the order of the log, which transactions had a batch; a
marker of a transaction without batches can be removed. Source: KIP-98, KIP-534.
"""

from collections.abc import Iterable, Iterator
from errno import ENOSPC

import msgspec

from ottla.base.ids import Offset
from ottla.base.ports import Buffer, Disk
from ottla.log import checkpoints
from ottla.log.batch_scan import whole_batches
from ottla.log.errors import CorruptLog
from ottla.log.filenames import CLEANED, HOLES, LOG, OFFSET_INDEX, TIME_INDEX, segment_name
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.segment import Segment, timestamp_of
from ottla.log.transaction_index import AbortedTransaction
from ottla.records.batch import ATTRIBUTES_AT, BatchHeader, parse_header
from ottla.records.checksum import crc32c
from ottla.records.codec import OffsetMap
from ottla.records.compact import emptied, map_batch, retain, with_horizon
from ottla.records.errors import RecordsError
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record

ENTRY_BYTES = 24
#: Limit of batches per step: small batches cost Python time, which the event loop lacks meanwhile.
BATCHES_MAX = 128
_SPAN_MAX = (1 << 31) - 1


class SourceSegment(msgspec.Struct, frozen=True):
    """A segment to compact; ``end_offset`` is the base offset of the next one."""

    base_offset: int
    end_offset: int
    size: int


class CompactionPlan(msgspec.Struct):
    """What to compact, as of the plan's creation."""

    #: The partition's, relative to the disk's root.
    directory: str
    #: All closed segments below ``upto``, oldest first.
    sources: tuple[SourceSegment, ...]
    #: Start of the dirty part.
    first_dirty: Offset
    #: Base offset of the first segment that is not compacted.
    upto: Offset
    #: Holes of former compactions are below.
    holes_below: Offset
    #: Aborted transactions with records below ``upto``.
    aborted: tuple[AbortedTransaction, ...]
    #: Producer id -> last offsets of the batches whose headers must stay, and its epoch.
    producers: dict[int, tuple[tuple[int, ...], int]]
    now_ms: int
    delete_retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    interval_bytes: int
    #: Memory for the map, its largest load factor, and the key of its hash.
    buffer_bytes: int
    load_factor: float
    secret: bytes
    #: Bytes read, or written, at once.
    chunk_bytes: int
    #: The planner sets it to False when the log was removed: the work then ends early.
    wanted: bool = True


class CleanedSegment(msgspec.Struct, frozen=True):
    """One new segment, in ``*.cleaned`` files, and the segments that it replaces."""

    bases: tuple[int, ...]
    end_offset: int
    size: int


class CompactionResult(msgspec.Struct, frozen=True):
    #: Start of the next compaction.
    upto: Offset
    groups: tuple[CleanedSegment, ...]
    read_bytes: int
    written_bytes: int
    #: Keys in the map.
    keys: int


class TransactionTracker:
    """Tracks which transactions had batches so far, in the order of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        #: By producer: its current aborted transaction, and whether a batch of it was seen.
        self._aborted: dict[int, tuple[AbortedTransaction, bool]] = {}
        self._committed: set[int] = set()

    def data(self, header: BatchHeader) -> bool:
        """Whether a batch of data belongs to an aborted transaction."""
        self._begin(header.last_offset)
        if not header.is_transactional:
            return False
        transaction, _ = self._aborted.get(header.producer_id, (None, False))
        if transaction is None or transaction.last_offset < header.base_offset:
            self._committed.add(header.producer_id)
            return False
        self._aborted[header.producer_id] = (transaction, True)
        return True

    def marker(self, header: BatchHeader, batch: Buffer) -> tuple[bool, AbortedTransaction | None]:
        """Whether a marker can be removed, and its transaction index entry if it stays."""
        self._begin(header.last_offset)
        control = control_record(batch)
        if control is None:
            return True, None
        if control.kind == ABORT_MARKER:
            transaction, seen = self._aborted.pop(header.producer_id, (None, False))
            return not seen, transaction if seen else None
        if control.kind == COMMIT_MARKER:
            seen = header.producer_id in self._committed
            self._committed.discard(header.producer_id)
            return not seen, None
        return False, None

    def _begin(self, offset: int) -> None:
        while self._coming and self._coming[-1].first_offset <= offset:
            transaction = self._coming.pop()
            self._aborted[transaction.producer_id] = (transaction, False)


def carry_out(disk: Disk, plan: CompactionPlan) -> Iterator[int | CompactionResult]:
    """Compacts in steps: yields the bytes read and written by each step, for a rate limit, and finally the result.

    Ends without a result when the plan is no longer wanted. Leftover ``.cleaned`` files are harmless.
    Raises: CorruptLog, OSError. FileNotFoundError (the log was removed) and ENOSPC do not mean that the directory failed.
    """
    total = 0
    offset_map = _map(plan)
    reading = _read_dirty(disk, plan, offset_map)
    covered = plan.upto
    for step in reading:
        if step < 0:
            covered = Offset(~step)
        else:
            total += step
            yield step
        if not plan.wanted:
            return
    sources = [source for source in plan.sources if source.base_offset < covered]
    transactions = TransactionTracker(plan.aborted)
    groups = []
    written = 0
    for group in _groups(disk, plan, sources):
        rewriter = SegmentRewriter(disk, plan, group, offset_map, covered, transactions, last=group[-1] is sources[-1])
        for step in rewriter.run():
            total += step
            yield step
            if not plan.wanted:
                return
        groups.append(rewriter.result)
        written += rewriter.result.size
    if groups:
        # Durable before the log has its first hole there: recovery truncates a log at any other hole.
        holes_below = max(plan.holes_below, groups[-1].end_offset)
        disk.replace_file(f"{plan.directory}/{HOLES}", checkpoints.holes_file(holes_below))
    yield CompactionResult(covered, tuple(groups), total - written, written, len(offset_map))


def _map(plan: CompactionPlan) -> OffsetMap:
    """A map for the dirty part, limited by the buffer size."""
    needed = int((plan.upto - plan.first_dirty) / plan.load_factor) + 2
    slots = max(min(plan.buffer_bytes // ENTRY_BYTES, needed), 2)
    return OffsetMap(slots, min(max(int(slots * plan.load_factor), 1), slots - 1), plan.secret)


def _read_dirty(disk: Disk, plan: CompactionPlan, offset_map: OffsetMap) -> Iterator[int]:
    """Fills the map. Yields bytes read and, when the map is full, the complement of the first offset not in it."""
    sources = [source for source in plan.sources if source.end_offset > plan.first_dirty]
    first = sources[0].base_offset
    transactions = TransactionTracker(transaction for transaction in plan.aborted if transaction.last_offset >= first)
    for source in sources:
        waiting = 0
        for number, (header, batch) in enumerate(_batches(disk, plan, source), 1):
            waiting += header.size
            if header.is_control:
                transactions.marker(header, batch)
            elif not transactions.data(header) and header.count and header.last_offset >= plan.first_dirty:
                known = map_batch(offset_map, batch, header, plan.first_dirty)
                if known <= header.last_offset:
                    yield waiting
                    yield ~known
                    return
            if waiting >= plan.chunk_bytes or number % BATCHES_MAX == 0:
                yield waiting
                waiting = 0
        yield waiting


def _batches(disk: Disk, plan: CompactionPlan, source: SourceSegment) -> Iterator[tuple[BatchHeader, memoryview]]:
    """The batches of a segment. Raises: CorruptLog for a damaged batch, OSError."""
    path = f"{plan.directory}/{segment_name(source.base_offset, LOG)}"
    file = disk.open(path)
    position, expected = 0, source.base_offset
    try:
        for position, header, chunk, at in whole_batches(file, 0, source.size, chunk_bytes=plan.chunk_bytes):
            batch = chunk[at : at + header.size]
            jumps = header.base_offset > max(expected, plan.holes_below)
            # The checksum does not cover the base offset; a wrong one must not be copied.
            if crc32c(batch, ATTRIBUTES_AT) != header.crc or header.base_offset < expected or jumps:
                break
            expected = header.last_offset + 1
            yield header, batch
            position += header.size
        if position != source.size:
            raise CorruptLog(f"{path} is damaged at {position}")
    except RecordsError as error:
        raise CorruptLog(f"{path} is damaged at {position}: {error}") from None


def _groups(disk: Disk, plan: CompactionPlan, sources: list[SourceSegment]) -> list[list[SourceSegment]]:
    """Adjacent segments that fit into one: by log size, index sizes and range of relative offsets."""

    def sizes(source: SourceSegment) -> tuple[int, int, int]:
        base = f"{plan.directory}/{segment_name(source.base_offset, '')}"
        indexes = [disk.size(base + suffix) if disk.exists(base + suffix) else 0 for suffix in (OFFSET_INDEX, TIME_INDEX)]
        return source.size, indexes[0], indexes[1]

    limits = (plan.segment_bytes, plan.segment_index_bytes - OFFSET_ENTRY.size, plan.segment_index_bytes - TIME_ENTRY.size)
    groups: list[list[SourceSegment]] = []
    used = (0, 0, 0)
    for source in sources:
        more = sizes(source)
        together = tuple(map(int.__add__, used, more))
        fits = groups and all(size <= limit for size, limit in zip(together, limits, strict=True))
        if fits and source.end_offset - 1 - groups[-1][0].base_offset <= _SPAN_MAX:
            groups[-1].append(source)
            used = together  # type: ignore[assignment]
        else:
            groups.append([source])
            used = more
    return groups


class SegmentRewriter:
    """Rewrites a group of segments as one; ``result`` is set when ``run`` ends."""

    def __init__(
        self,
        disk: Disk,
        plan: CompactionPlan,
        group: list[SourceSegment],
        offset_map: OffsetMap,
        upto: int,
        transactions: TransactionTracker,
        *,
        last: bool,
    ) -> None:
        self._disk = disk
        self._plan = plan
        self._group = group
        self._map = offset_map
        self._upto = upto
        self._transactions = transactions
        self._end_offset = group[-1].end_offset
        #: Whether this is the last segment of the compaction.
        self._last = last
        self._segment = Segment.create(
            disk, plan.directory, group[0].base_offset, interval_bytes=plan.interval_bytes, now_ms=plan.now_ms, suffix=CLEANED
        )
        self._segment.reset_aborted()
        #: Unwritten batches, and their size.
        self._parts: list[Buffer] = []
        self._waiting = 0
        self.result: CleanedSegment

    def run(self) -> Iterator[int]:
        """Yields bytes read and written."""
        segment, chunk_bytes = self._segment, self._plan.chunk_bytes
        for source in self._group:
            read = 0
            for number, (header, batch) in enumerate(_batches(self._disk, self._plan, source), 1):
                read += header.size
                stays = self._control(header, batch) if header.is_control else self._data(header, batch)
                if stays is None and self._is_needed(header):
                    stays = emptied(header)
                if stays is not None:
                    self._keep(header, stays)
                if read >= chunk_bytes or self._waiting >= chunk_bytes:
                    yield read + self._write()
                    read = 0
                elif number % BATCHES_MAX == 0:
                    yield read
                    read = 0
            yield read + self._write()
        if not segment.finish():
            raise OSError(ENOSPC, "no room for the indexes of a compacted segment")
        segment.file.sync()
        for file in segment.index_files():
            file.sync()
        self.result = CleanedSegment(tuple(source.base_offset for source in self._group), self._end_offset, segment.size)
        segment.close()

    def _keep(self, header: BatchHeader, batch: Buffer) -> None:
        size, segment = len(batch), self._segment
        segment.note(segment.size, size, header.base_offset, header.last_offset, timestamp_of(parse_header(batch)))
        self._parts.append(batch)
        self._waiting += size

    def _write(self) -> int:
        written = self._waiting
        if written:
            self._segment.file.append(*self._parts)
            self._parts = []
            self._waiting = 0
        return written

    def _data(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        if self._transactions.data(header) or not header.count:
            return None
        plan = self._plan
        return retain(batch, header, self._map, upto=self._upto, now_ms=plan.now_ms, delete_retention_ms=plan.delete_retention_ms)

    def _control(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        done, aborted = self._transactions.marker(header, batch)
        if aborted is not None:
            self._segment.note_aborted(aborted)
        horizon_ms = header.delete_horizon_ms
        if not header.count or (done and horizon_ms is not None and horizon_ms <= self._plan.now_ms):
            return None
        if done and horizon_ms is None:
            return with_horizon(batch, header, self._plan.now_ms + self._plan.delete_retention_ms)
        return batch

    def _is_needed(self, header: BatchHeader) -> bool:
        """Whether at least the header of the batch stays, for its producer's sequence or epoch or for its last offset."""
        if self._last and header.last_offset + 1 == self._end_offset:
            return True
        if not header.has_producer or header.producer_id not in self._plan.producers:
            return False
        last_offsets, epoch = self._plan.producers[header.producer_id]
        return header.last_offset in last_offsets if last_offsets else header.is_control and header.producer_epoch == epoch
