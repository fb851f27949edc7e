"""Carrying out a compaction: the closed segments of a log are read, and written anew without the records that newer ones replace.

::

    segments   0         40         110        150     (active)      first dirty 110, up to 150
               | clean   | clean    | dirty    | ...
    1. read the dirty part          `--------- the newest offset of each key, into a map of fixed size
    2. read everything   `---------------------' and write what stays to 0.log.cleaned, with indexes; sync

It runs beside the log and touches only names that end in ``.cleaned``, and at last ``holes-checkpoint``, for ``recover``; ``cleaner.swap``
puts the new segments in place. Where the dirty part has more
keys than the map holds, the map ends earlier, and so does what this compaction calls clean: the next one goes on from there.

What goes: records with a newer one for their key, records without a key, records of aborted transactions, tombstones and transaction
markers behind their delete horizon (``records.retain``). What stays, if only as an empty header: the last five batches of each
producer the log knows, or its next sequence, or one that it repeats, would be out of order after a restart (Kafka keeps one); and the last
batch of all, as in Kafka. No more than these, since some clients (kafka-go) cannot read on behind a batch without records.

A marker stays for as long as batches of its transaction are there. So it is settled in the order of the log: each reading remembers which
transactions had a batch so far, and a marker that ends one without any has nothing left to say. SourceSegment: KIP-98, KIP-534.
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
#: Batches read at once at most: small ones cost Python's time rather than the device's, and that is taken from the event loop.
BATCHES_MAX = 128
_SPAN_MAX = (1 << 31) - 1


class SourceSegment(msgspec.Struct, frozen=True):
    """A segment to be compacted; ``end_offset`` is where the next one begins."""

    base_offset: int
    end_offset: int
    size: int


class CompactionPlan(msgspec.Struct):
    """What to compact, as of the moment it was made."""

    #: The partition's, relative to the disk's root.
    directory: str
    #: All closed segments below ``upto``, oldest first.
    sources: tuple[SourceSegment, ...]
    #: Records from here on are not yet compared with those before.
    first_dirty: Offset
    #: Where the first segment begins that is left alone.
    upto: Offset
    #: Holes that former compactions left are below.
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
    #: Memory for the map, how full it may become, and the key of its hash.
    buffer_bytes: int
    load_factor: float
    secret: bytes
    #: Bytes read, or written, at once.
    chunk_bytes: int
    #: Set to False by whoever made the plan when the log is gone: the work may end early.
    wanted: bool = True


class CleanedSegment(msgspec.Struct, frozen=True):
    """One new segment, ``*.cleaned`` still, and the segments whose place it takes."""

    bases: tuple[int, ...]
    end_offset: int
    size: int


class CompactionResult(msgspec.Struct, frozen=True):
    """What came of a plan."""

    #: Where the next compaction has to begin.
    upto: Offset
    groups: tuple[CleanedSegment, ...]
    read_bytes: int
    written_bytes: int
    #: Keys in the map.
    keys: int


class Transactions:
    """Which transactions had batches so far, in the order of the log."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._coming = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        #: By producer: the aborted transaction it is in, and whether a batch of it was seen.
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
        """Whether a marker has nothing left to say; and what the transaction index must say when it is to stay."""
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
    """Does the work piece by piece: yields the bytes that a piece read and wrote, for whoever limits their rate; at last what came of it.

    Ends without that when the plan is no longer wanted. ``.cleaned`` files of an unfinished work are of no use and do no harm.
    Raises: CorruptLog, OSError; of that FileNotFoundError when the log was removed, and ENOSPC, which mean nothing for the directory.
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
    transactions = Transactions(plan.aborted)
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
        # On disk before the log has its first hole there: recovery cuts a log at any other.
        holes_below = max(plan.holes_below, groups[-1].end_offset)
        disk.replace_file(f"{plan.directory}/{HOLES}", checkpoints.holes_file(holes_below))
    yield CompactionResult(covered, tuple(groups), total - written, written, len(offset_map))


def _map(plan: CompactionPlan) -> OffsetMap:
    """As large as the dirty part can need, and no larger than the buffer."""
    needed = int((plan.upto - plan.first_dirty) / plan.load_factor) + 2
    slots = max(min(plan.buffer_bytes // ENTRY_BYTES, needed), 2)
    return OffsetMap(slots, min(max(int(slots * plan.load_factor), 1), slots - 1), plan.secret)


def _read_dirty(disk: Disk, plan: CompactionPlan, offset_map: OffsetMap) -> Iterator[int]:
    """Fills the map. Yields bytes read and, where it was full, the complement of the offset it does not know."""
    sources = [source for source in plan.sources if source.end_offset > plan.first_dirty]
    first = sources[0].base_offset
    transactions = Transactions(transaction for transaction in plan.aborted if transaction.last_offset >= first)
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
    """The batches of a segment. Raises: CorruptLog where one is not as it was written, OSError."""
    path = f"{plan.directory}/{segment_name(source.base_offset, LOG)}"
    file = disk.open(path)
    position, expected = 0, source.base_offset
    try:
        for position, header, chunk, at in whole_batches(file, 0, source.size, chunk_bytes=plan.chunk_bytes):
            batch = chunk[at : at + header.size]
            jumps = header.base_offset > max(expected, plan.holes_below)
            # The checksum does not cover the base offset: what is wrong there must not be written anew as if it were right.
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
    """Neighbours that fit into one segment together: its log, its indexes, and the offsets they can express."""

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
    """One group becomes one segment; ``result`` once ``run`` is through."""

    def __init__(
        self,
        disk: Disk,
        plan: CompactionPlan,
        group: list[SourceSegment],
        offset_map: OffsetMap,
        upto: int,
        transactions: Transactions,
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
        #: Batches that are not written yet, and their bytes.
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
        """Whether at least the header of the batch stays: for its producer's sequence or epoch, or for the offset it ends at."""
        if self._last and header.last_offset + 1 == self._end_offset:
            return True
        if not header.has_producer or header.producer_id not in self._plan.producers:
            return False
        last_offsets, epoch = self._plan.producers[header.producer_id]
        return header.last_offset in last_offsets if last_offsets else header.is_control and header.producer_epoch == epoch
