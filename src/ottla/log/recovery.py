"""Opens a log, and recovers it after a crash.

After a clean stop the files are complete; only the last segment is read, to find the end offset. After a crash everything behind the
recovery point is in doubt: bytes may be missing, torn or old, and single files may be missing. So all segments from the one with the last
durable record on are read completely::

    recorded recovery point 90
    | b b b b | b b b b b b | b b ? b | b b |          segments 0, 40, 110, 150
    0         40       90   110   125 150
              `- scanned from here    `- gone: the log ends at 125, nothing behind the first flaw is kept
    `- not touched

A batch is valid if it is complete, its CRC matches, its offset follows and its leader epoch does not decrease. A hole between segments is a
flaw too: the file before it lost its end. But compaction leaves holes, and they must not truncate the log. So before compaction makes a
hole it writes ``holes-checkpoint`` durably in the log's directory: all its holes are below that offset, and all batches there are on disk.

=================  ==============================  ==================================================
holes-checkpoint   compacted, by any other sign    a hole
=================  ==============================  ==================================================
an offset          (not considered)                is valid below it, a flaw above it
none, or torn      yes: Kafka may have done it     is valid; the end offset is then written
none               no                              is a flaw
=================  ==============================  ==================================================

Other signs are cleanup.policy, which may change, and cleaner-offset-checkpoint, which covers many logs and can be outdated.

Batches beyond the recovery point are synced before they are recorded or served, because after a crash of the process they may be in the
page cache only. They are read from the device: after a failed sync the page cache may contain bytes that a second sync would not write.
Recovery writes only caches and the epoch table; a full disk stores none of them, and the log opens nevertheless.

When records below the recorded recovery point are missing, the device has lost confirmed writes. This is written to
``missing-checkpoint`` in the log's directory before the recovery point. It stays until the replica has copied the records again.
"""

from contextlib import suppress
from dataclasses import dataclass
from errno import ENOSPC

from ottla.base.ids import NO_EPOCH, LeaderEpoch, Offset, TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.base.units import INT64_MAX
from ottla.log import checkpoints
from ottla.log.batch_scan import headers, whole_batches
from ottla.log.damage import Damage, read_damage
from ottla.log.errors import CorruptLog
from ottla.log.filenames import (
    CLEANED,
    DAMAGE,
    DELETED,
    HOLES,
    INDEXES,
    LEADER_EPOCHS,
    LOG,
    MISSING,
    PARTITION_METADATA,
    SNAPSHOT,
    SWAP,
    TEMPORARY,
    TXN_INDEX,
    offset_of,
)
from ottla.log.leader_epochs import LeaderEpochs
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.log.producer_recovery import note_batch, rebuild_producers, snapshot_offsets
from ottla.log.scrub import next_sound
from ottla.log.segment import Segment, timestamp_of
from ottla.log.state import RecoveryResult
from ottla.log.transaction_index import read_entries
from ottla.log.truncation import restart_empty
from ottla.records.batch import ATTRIBUTES_AT
from ottla.records.checksum import crc32c


@dataclass(frozen=True, slots=True)
class ClosedLog:
    """A log to open, with its entries in the checkpoints of the log directory."""

    disk: Disk
    partition: TopicPartition
    #: Path of the partition's directory.
    directory: str
    options: TopicOptions
    #: Offsets from the checkpoints; 0 without one.
    start_offset: Offset
    recovery_point: Offset
    #: Whether the last stop was clean.
    clean: bool
    now_ms: int
    #: Clean offset from the checkpoint; None when the log was never compacted.
    cleaned: Offset | None

    def open(self) -> Log | None:
        """Opens the log, and recovers it if needed. None if a file has the name of a partition's directory.

        Uses no file outside the partition's directory, so several threads can open logs of one disk at the same time.
        Raises: OSError.
        """
        with suppress(NotADirectoryError):
            return open_log(
                self.disk,
                self.partition,
                self.directory,
                self.options,
                start_offset=self.start_offset,
                recovery_point=self.recovery_point,
                clean=self.clean,
                now_ms=self.now_ms,
                cleaned=self.cleaned,
            )
        return None


def open_log(
    disk: Disk,
    partition: TopicPartition,
    directory: str,
    options: TopicOptions,
    *,
    start_offset: int,
    recovery_point: int,
    clean: bool,
    now_ms: int,
    cleaned: int | None = None,
) -> Log:
    """Opens the log in a partition's directory. ``start_offset`` and ``recovery_point`` are those of the checkpoints, 0 without one.

    ``cleaned`` is the clean offset from the checkpoint; None when the log was never compacted.

    Raises: OSError.
    """
    names = _tidy(disk, directory)
    log = Log(disk, partition, directory, _topic_id(disk, directory, names), options)
    if cleaned is not None:
        log.mark_cleaned(cleaned, durable=True)
    holes_below = _holes_below(log, names)
    bases = sorted(base for base in (offset_of(name) for name in names if name.endswith(LOG)) if base is not None)
    for base in bases:
        log.segments.append(_segment(log, base, now_ms))
        log.bases.append(Offset(base))
    if not log.segments:
        log.segments.append(log.new_segment(start_offset, now_ms))
        log.bases.append(Offset(start_offset))
    if DAMAGE in names:
        log.restore_damage(read_damage(disk.read_file(f"{directory}/{DAMAGE}")))
    epochs = _read_epochs(disk, directory, names)
    log.epochs = LeaderEpochs(epochs)
    first_flaw = _flawed_transaction_index(disk, directory, names)
    try:
        if not clean or first_flaw is not None:
            raise CorruptLog("not cleanly closed")
        _open_clean(log, recovery_point)
    except CorruptLog:
        doubtful = recovery_point if first_flaw is None else min(recovery_point, first_flaw + 1)
        _Scan(log, doubtful, now_ms, holes_below=holes_below).run()
    replayed = log.recovered is not None
    _check_missing(log, names, recovery_point)
    _set_start(log, start_offset, now_ms)
    _complete_epochs(log)
    log.epochs.truncate_end(log.end_offset)
    log.epochs.truncate_start(log.start_offset)
    if log.epochs.entries == epochs:
        log.epochs.saved(log.epochs.version)
    if not replayed:
        rebuild_producers(log, log.end_offset, now_ms, names=names)
    _remove_stray_snapshots(log, names)
    _sync(log, recovery_point)
    if holes_below == INT64_MAX:
        _bound_holes(log)
    else:
        log.holes_below = Offset(min(holes_below, log.end_offset))
    return log


def _check_missing(log: Log, names: list[str], recovery_point: int) -> None:
    """Detects missing records that were on disk, at this start or an earlier one."""
    if MISSING in names:
        log.restore_missing(checkpoints.read_missing(log.disk.read_file(f"{log.directory}/{MISSING}")))
    if log.end_offset < recovery_point:
        log.recovered = log.recovered or RecoveryResult()
        log.recovered.lost_records = recovery_point - log.end_offset
        log.note_missing(max(recovery_point, log.missing_below or 0), sync=True)


def _sync(log: Log, recovery_point: int) -> None:
    """Syncs batches beyond the recorded recovery point. A log that ends there needs no sync; other changes can wait.

    After a crash most partitions are idle, and each sync would cost the start two waits for the device.
    """
    if log.end_offset <= recovery_point:
        log.flushed(log.end_offset)
    elif (plan := log.flush_plan()) is not None:
        plan.carry_out(log.disk)
        log.flushed(plan.upto)


def _segment(log: Log, base_offset: int, now_ms: int) -> Segment:
    segment = Segment(log.disk, log.directory, base_offset, size=0, interval_bytes=log.options.index_interval_bytes, now_ms=now_ms)
    segment.size = log.disk.size(segment.path(LOG))
    return segment


def _open_clean(log: Log, recovery_point: int) -> None:
    """Opens a log after a clean stop. Raises: CorruptLog when the last segment does not end at the recovery point."""
    active = log.active
    log.end_offset = active.load() if active.size else active.base_offset
    if recovery_point and log.end_offset != recovery_point:
        raise CorruptLog(f"{log.directory} was closed at offset {recovery_point}, but its last batch ends at {log.end_offset}")
    log.epochs.end_offset = log.recovery_point = log.end_offset


class _Scan:
    """Reads all segments in doubt, truncates the log at the first flaw, and rebuilds indexes and producer state.

    A flaw below the recovery point is damage, not a torn tail, if valid durable batches follow it. Then readable batches stay, and the
    damage is recorded.
    """

    def __init__(self, log: Log, recovery_point: int, now_ms: int, *, holes_below: int) -> None:
        self._log, self._recovery_point, self._now_ms, self._holes_below = log, recovery_point, now_ms, holes_below
        self._found = log.recovered = RecoveryResult()
        #: The epoch table on disk: complete below the recovery point.
        self._known = LeaderEpochs(log.epochs.entries)
        #: Of the current segment: the next expected offset, the latest epoch, and the damage.
        self._expected, self._epoch = 0, -1
        self._damages: list[Damage] = []

    def run(self) -> None:
        log = self._log
        first = log.segment_of(max(self._recovery_point - 1, 0))
        log.recovery_point = log.end_offset = log.bases[first]
        log.epochs.truncate_end(log.bases[first])
        rebuild_producers(log, log.bases[first], self._now_ms)
        for index in range(first, len(log.segments)):
            segment = log.segments[index]
            if not follows(segment.base_offset, log.end_offset, self._holes_below):
                _remove_from(log, index, self._found)
                break
            if self._segment(segment, self._bound(index), last=index + 1 == len(log.segments)):
                _remove_from(log, index + 1, self._found)
                break
            if index + 1 < len(log.segments):
                # That of the next segment was removed with the state that it belonged to. Retention may remove those before.
                log.snapshot()
        for segment in log.segments[first:-1]:
            segment.freeze()
        log.epochs.end_offset = log.producers.end_offset = log.end_offset
        log.pending.directory(log.directory)

    def _bound(self, index: int) -> int:
        """Upper bound of the offsets of a segment's durable batches."""
        bases = self._log.bases
        return min(bases[index + 1], self._recovery_point) if index + 1 < len(bases) else self._recovery_point

    def _segment(self, segment: Segment, bound: int, *, last: bool) -> bool:
        """Reads one segment; returns whether it had a flaw, at which the file was truncated.

        The transaction index cannot be compared with the log when it is used, as the other indexes are. So that of a closed segment is
        durable before the log opens; the next crash leads to a new scan of the last one.
        """
        log, file = self._log, segment.file
        file.drop_cache()
        size = file.size
        segment.reset()
        segment.forget_aborted()
        self._expected, self._epoch, self._damages = segment.base_offset, -1, []
        position: int | None = 0
        while position is not None:
            position = self._behind(segment, self._batches(segment, position, size), size, bound)
        log.end_offset = Offset(self._expected)
        if self._damages:
            log.note_damage(segment.base_offset, self._damages)
        self._found.scanned_bytes += segment.size
        segment.store_aborted(durable=not last)
        if not segment.finish():
            log.pending.unwritten.append(segment)
        log.pending.file(file)
        if segment.size == size:
            return False
        self._found.cut_bytes += size - segment.size
        file.truncate(segment.size)
        return True

    def _batches(self, segment: Segment, position: int, size: int) -> int:
        """Reads batches from ``position`` on; returns the position of the first flaw, or of the end."""
        log = self._log
        for at, header, chunk, inside in whole_batches(segment.file, position, size):
            base_offset, _, leader_epoch, _, crc, _, delta, _, _, producer_id, _, _, _ = header
            if not follows(base_offset, self._expected, self._holes_below):
                return at
            last_offset = base_offset + delta
            end = inside + header.size
            if delta < 0 or not segment.takes(last_offset) or not crc_fits(chunk[inside:end], crc):
                return at
            if leader_epoch >= 0 and leader_epoch != self._epoch:
                if leader_epoch < self._epoch or self._is_strange(base_offset, leader_epoch):
                    return at
                self._epoch = leader_epoch
                if leader_epoch > log.epochs.latest:
                    log.epochs.end_offset = Offset(base_offset)
                    log.epochs.assign(leader_epoch, base_offset)
            segment.note(at, end - inside, base_offset, last_offset, timestamp_of(header))
            if producer_id >= 0:
                note_batch(log.producers, header, chunk, inside, self._now_ms, segment)
            self._expected, position = last_offset + 1, at + header.size
        return position

    def _is_strange(self, base_offset: int, leader_epoch: int) -> bool:
        """Whether the epoch table on disk has another epoch for an offset below the recovery point."""
        known = self._known.epoch_at(base_offset) if base_offset < self._recovery_point else NO_EPOCH
        return known not in (NO_EPOCH, leader_epoch)

    def _behind(self, segment: Segment, position: int, size: int, bound: int) -> int | None:
        """Position of the next valid batch behind damage; None when the flaw is the end of the log."""
        expected = self._expected
        if position >= size or expected >= bound:
            return None
        limit = max(bound, expected + 1)
        for found in next_sound(segment.file, position, size, expected=expected, base_offset=segment.base_offset, bound=limit):
            if not isinstance(found, int):
                after, self._expected = found
                reason = "recovery found no valid batch here"
                self._damages.append(Damage(segment.base_offset, position, after, expected, self._expected, reason))
                return after
        return None


def follows(base_offset: int, expected: int, holes_below: int) -> bool:
    """Whether a batch or segment may begin at ``base_offset``: at the expected offset, or behind a hole of compaction."""
    return base_offset == expected or expected < base_offset <= holes_below


def crc_fits(batch: memoryview, crc: int) -> bool:
    """Whether a complete batch has this checksum."""
    return crc32c(batch[ATTRIBUTES_AT:]) == crc


def _remove_from(log: Log, index: int, found: RecoveryResult) -> None:
    for segment in log.segments[index:]:
        found.cut_bytes += segment.size
        segment.unlink()
    del log.segments[index:], log.bases[index:]


def _set_start(log: Log, start_offset: int, now_ms: int) -> None:
    log.start_offset = Offset(max(start_offset, log.bases[0]))
    if log.start_offset > log.end_offset:  # Records were deleted up to an offset that the crash removed.
        for path in restart_empty(log, log.start_offset, now_ms):
            log.disk.unlink(path)
        log.recovery_point = log.end_offset
        log.pending.directory(log.directory)
        rebuild_producers(log, log.end_offset, now_ms)


def _complete_epochs(log: Log) -> None:
    """Adds epochs from the batch headers before the first entry of the table; all epochs when the table is missing, empty or malformed.

    The table can begin too late after deleted records: the crash restored the former start offset but not the former table.
    """
    known = log.epochs.entries
    bound = known[0][1] if known else log.end_offset
    if log.start_offset >= bound:
        return
    found = LeaderEpochs()
    for segment in log.segments[log.segment_of(log.start_offset) :]:
        with suppress(CorruptLog):
            for _, header in headers(segment.file, 0, segment.size):
                if header.base_offset >= bound:
                    break
                if header.leader_epoch > found.latest:
                    found.assign(header.leader_epoch, header.base_offset)
    log.epochs = LeaderEpochs(found.entries + [entry for entry in known if entry[0] > found.latest])
    log.epochs.end_offset = log.end_offset
    log.epochs.mark_unsaved()


def _holes_below(log: Log, names: list[str]) -> int:
    """The offset below which holes are valid."""
    if HOLES in names:
        offset = checkpoints.read_holes(log.disk.read_file(f"{log.directory}/{HOLES}"))
        return INT64_MAX if offset is None else offset
    return INT64_MAX if log.options.compacts or log.clean_offset is not None else 0


def _bound_holes(log: Log) -> None:
    """Declares later offsets free of holes."""
    log.holes_below = log.end_offset
    try:
        log.disk.replace_file(f"{log.directory}/{HOLES}", checkpoints.holes_file(log.end_offset))
    except OSError as error:
        if error.errno != ENOSPC:
            raise


def _read_epochs(disk: Disk, directory: str, names: list[str]) -> list[tuple[LeaderEpoch, Offset]] | None:
    return checkpoints.read_epochs(disk.read_file(f"{directory}/{LEADER_EPOCHS}")) if LEADER_EPOCHS in names else None


def _topic_id(disk: Disk, directory: str, names: list[str]) -> TopicId:
    data = disk.read_file(f"{directory}/{PARTITION_METADATA}") if PARTITION_METADATA in names else b""
    return checkpoints.read_partition_metadata(data) or TopicId(bytes(16))


def _flawed_transaction_index(disk: Disk, directory: str, names: list[str]) -> int | None:
    """Base offset of the first segment whose transaction index is damaged."""
    for name in names:
        base = offset_of(name)
        if name.endswith(TXN_INDEX) and base is not None and read_entries(disk.read_file(f"{directory}/{name}"), base) is None:
            return base
    return None


def _remove_stray_snapshots(log: Log, names: list[str]) -> None:
    """Keeps the newest snapshot and those at base offsets of segments."""
    for offset in snapshot_offsets(names):
        if offset not in log.bases and offset != log.producers.snapshot_offset:
            log.disk.unlink(f"{log.directory}/{offset:020d}{SNAPSHOT}")


def _tidy(disk: Disk, directory: str) -> list[str]:
    """Finishes operations that a crash interrupted: removals, replacements of small files, swaps. Returns the remaining names.

    ``*.swap`` files are complete and replace the segments they cover, unless a ``*.cleaned`` file of a lower offset shows that the swap had
    not begun. Source: KAFKA-6264.
    """
    names = disk.listdir(directory)
    cleaned = [offset_of(name) or 0 for name in names if name.endswith(CLEANED)]
    swaps = [name for name in names if name.endswith(SWAP)]
    valid = [name for name in swaps if not cleaned or (offset_of(name) or 0) < min(cleaned)]
    gone = {name for name in names if name.endswith((DELETED, CLEANED, TEMPORARY))} | (set(swaps) - set(valid))
    covered = [_cover(disk, directory, name) for name in valid if name.endswith(LOG + SWAP)]
    if covered:
        low, high = min(start for start, _ in covered), max(end for _, end in covered)
        gone |= {name for name in names if name.endswith((LOG, *INDEXES)) and (base := offset_of(name)) is not None and low <= base < high}
    for name in sorted(gone):
        disk.unlink(f"{directory}/{name}")
    for name in valid:
        disk.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(SWAP)}")
    if gone or valid:
        names = disk.listdir(directory)
    logs = {offset_of(name) for name in names if name.endswith(LOG)}
    orphans = [name for name in names if name.endswith(INDEXES) and offset_of(name) not in logs]
    for name in orphans:
        disk.unlink(f"{directory}/{name}")
    return [name for name in names if name not in orphans] if orphans else names


def _cover(disk: Disk, directory: str, name: str) -> tuple[int, int]:
    """First offset of a swap file, and the offset after its last batch."""
    base = end = offset_of(name) or 0
    file = disk.open(f"{directory}/{name}")
    with suppress(CorruptLog):  # Damage in the new file must not prevent the log from opening.
        for _, header in headers(file, 0, file.size):
            end = header.last_offset + 1
    file.close()
    return base, end
