"""The state of a log, and the changes of it that both appending and truncation make."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from errno import ENOSPC
from hashlib import blake2b
from typing import Self

import msgspec

from ottla.base.ids import NO_OFFSET, Offset, TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.base.units import INT32_MAX
from ottla.log.damage import Damage, damage_file
from ottla.log.filenames import DAMAGE, SNAPSHOT, segment_name
from ottla.log.flush import NamedFile
from ottla.log.index import OFFSET_ENTRY, TIME_ENTRY
from ottla.log.leader_epochs import LeaderEpochs
from ottla.log.options import TopicOptions
from ottla.log.producer_snapshots import write_snapshot
from ottla.log.producer_state import Producers
from ottla.log.segment import Segment
from ottla.log.unflushed import UnflushedChanges


class SegmentLimits(msgspec.Struct):
    """Limits of the active segment, computed once for all its appends."""

    segment: Segment
    bytes_max: int
    offset_max: int
    #: Limit of a batch's largest timestamp if the segment's first batch has one, else of the clock.
    time_max_ms: int
    by_timestamp: bool
    #: Whether an index can be full before the segment.
    by_index: bool
    entries_max: int
    times_max: int

    @classmethod
    def of(cls, segment: Segment, options: TopicOptions) -> Self:
        """For a segment with at least one batch."""
        first = segment.first_timestamp
        entries_max = max(options.segment_index_bytes // OFFSET_ENTRY.size, 1)
        times_max = max(options.segment_index_bytes // TIME_ENTRY.size - 1, 1)
        return cls(
            segment=segment,
            bytes_max=options.segment_bytes_max,
            offset_max=segment.base_offset + INT32_MAX,
            time_max_ms=(first if first >= 0 else segment.created_ms) + options.segment_age_ms - segment.jitter_ms,
            by_timestamp=first >= 0,
            by_index=options.segment_bytes_max // (segment.interval_bytes + 1) + 1 >= min(entries_max, times_max),
            entries_max=entries_max,
            times_max=times_max,
        )


class RecoveryResult(msgspec.Struct):
    """Result of recovering a log after a crash."""

    scanned_bytes: int = 0
    #: Truncated bytes behind the last complete batch. A crash leaves such a tail; it was never acknowledged as durable.
    cut_bytes: int = 0
    #: Missing records below the recorded recovery point: the device lost confirmed writes. Otherwise 0.
    lost_records: int = 0


def _nothing(log: "LogState") -> None:
    pass


class LogState:
    """Segments, offsets and their state; ``Log`` adds the operations."""

    def __init__(self, disk: Disk, partition: TopicPartition, directory: str, topic_id: TopicId, options: TopicOptions) -> None:
        self.disk = disk
        self.partition = partition
        #: Path of the partition's directory.
        self.directory = directory
        self.topic_id = topic_id
        self.options = options
        #: In the order of base offsets; never empty in an open log. The last one is active.
        self.segments: list[Segment] = []
        #: Base offsets of the segments.
        self.bases: list[Offset] = []
        #: Offset of the first readable record.
        self.start_offset = Offset(0)
        #: Start offset that a crash cannot take back, because the checkpoint of log starts has it.
        self.recorded_start = Offset(0)
        #: Offset that the next record gets.
        self.end_offset = Offset(0)
        #: Every record below is on disk.
        self.recovery_point = Offset(0)
        self.epochs = LeaderEpochs()
        self.producers = Producers()
        self.pending = UnflushedChanges()
        #: Records below this offset are missing, so the replica is ineligible; None when none are missing.
        self.missing_below: Offset | None = None
        #: Whether the missing-checkpoint is written, and whether it is durable.
        self._missing_written = self._missing_noted = False
        #: Whether a damage-checkpoint may exist.
        self.damage_noted = False
        #: Number of truncations: data read before the last one may have been replaced.
        self.truncations = 0
        #: Lowest truncation since the last plan, which proves nothing for offsets above; None without one.
        self._durable_max: int | None = None
        #: Of the active segment or a former one; None when it must be computed again.
        self._limits: SegmentLimits | None = None
        #: Below it the log holds one record per key, as of the last compaction; None when it was never compacted.
        self.clean_offset: Offset | None = None
        #: The clean offset after a power cut now.
        self._clean_durable: Offset | None = None
        #: All holes that compaction left are below this offset.
        self.holes_below = Offset(0)
        #: Set when the log was recovered, or records are missing.
        self.recovered: RecoveryResult | None = None
        #: Whether a truncation lowered the recovery point below the recorded one. Until that is recorded nothing may be appended, or
        #: recovery after a crash would trust new bytes.
        self.unrecorded = False
        #: Offset of the newest snapshot that a flush syncs, or has synced.
        self._snapshot_lasts = NO_OFFSET
        #: Called when a truncation lowered the recovery point, before the next append.
        self.recovery_point_lowered: Callable[[LogState], None] = _nothing
        #: Called when a new segment began.
        self.rolled: Callable[[LogState], None] = _nothing

    def __repr__(self) -> str:
        return f"Log({self.partition}, {self.start_offset}..{self.end_offset})"

    @property
    def active(self) -> Segment:
        return self.segments[-1]

    @property
    def size(self) -> int:
        """Bytes of all segments, without indexes."""
        return sum(segment.size for segment in self.segments)

    def roll(self, now_ms: int) -> Segment:
        """Begins a new segment at the end offset. Raises: OSError; after ENOSPC the log is unchanged.

        A crash meanwhile leaves an empty file, or a full segment without complete indexes or snapshot; recovery handles both.
        """
        old = self.active
        assert old.size, "an empty segment is not rolled"
        new = self.new_segment(self.end_offset, now_ms)
        if not old.finish():
            self.pending.unwritten.append(old)
        old.freeze()
        self.pending.rolled(old, self.end_offset)
        self.pending.directory(self.directory)
        self.segments.append(new)
        self.bases.append(new.base_offset)
        self.rolled(self)
        self.snapshot()
        return new

    def new_segment(self, base_offset: int, now_ms: int) -> Segment:
        """Creates an empty segment on disk that is not yet part of the log."""
        interval_bytes = self.options.index_interval_bytes
        segment = Segment.create(self.disk, self.directory, base_offset, interval_bytes=interval_bytes, now_ms=now_ms)
        return self.with_jitter(segment)

    def with_jitter(self, segment: Segment) -> Segment:
        options = self.options
        if options.segment_jitter_ms > 0:
            # A hash spreads the partitions like a random number, and is the same in a replay.
            digest = blake2b(f"{self.partition}@{segment.base_offset}".encode(), digest_size=8).digest()
            segment.jitter_ms = int.from_bytes(digest, "big") % min(options.segment_jitter_ms, options.segment_ms)
        return segment

    def snapshot(self, *, lasting: bool = True) -> None:
        """Writes a producer snapshot at the end offset, unless one exists or the disk is full.

        ``lasting``: the next flush syncs it. If not, a power cut may lose it; the next start then replays from the snapshot before.
        """
        if self.producers.snapshot_offset != self.end_offset:
            file = write_snapshot(self.disk, self.directory, self.end_offset, self.producers.by_id)
            if file is None:
                return
            self.producers.snapshot_offset = self.end_offset
        elif self._snapshot_lasts == self.end_offset:
            return
        if lasting:
            # Also one of a clean stop, which was not synced: retention may remove all others.
            self._snapshot_lasts = self.end_offset
            self.pending.file(NamedFile(self.disk, f"{self.directory}/{segment_name(self.end_offset, SNAPSHOT)}"))
            self.pending.directory(self.directory)

    def segment_of(self, offset: int) -> int:
        """Index of the segment for ``offset``; 0 for offsets below the first segment."""
        if offset >= self.bases[-1]:
            return len(self.bases) - 1
        return max(bisect_right(self.bases, offset) - 1, 0)

    @property
    def damages(self) -> list[Damage]:
        """Known damage that is not healed, in the order of offsets."""
        return [one for segment in self.segments for one in segment.damages]

    def lower_clean_offset(self) -> None:
        """Limits the clean offset to the end after a truncation: later batches were never compacted."""
        self.holes_below = min(self.holes_below, self.end_offset)
        if self.clean_offset is not None:
            self.clean_offset = min(self.clean_offset, self.end_offset)
        if self._clean_durable is not None:
            self._clean_durable = min(self._clean_durable, self.end_offset)

    def note_damage(self, base_offset: int, damages: Iterable[Damage]) -> None:
        """Sets the damage of a segment: reads of these offsets raise CorruptLog, also after a restart.

        Durable with the next flush. Raises: OSError; a full disk keeps the former file.
        """
        segment = self.segments[self.segment_of(base_offset)]
        assert segment.base_offset == base_offset, "damage is in a segment of the log"
        segment.damages = tuple(sorted(damages))
        self.damage_noted |= bool(segment.damages)
        self.save_damage()

    def save_damage(self) -> None:
        """Writes the known damage after segments changed. Raises: OSError."""
        if not self.damage_noted:
            return
        damages = self.damages
        if not damages:
            self.damage_noted = False
            self.disk.unlink(f"{self.directory}/{DAMAGE}")
            self.pending.directory(self.directory)
            return
        try:
            self.write_small(DAMAGE, damage_file(damages))
        except OSError as error:
            if error.errno != ENOSPC:
                raise

    def write_small(self, name: str, data: bytes) -> None:
        """Replaces a small file of the log; the next flush makes it durable. A power cut before may leave the old file, the new one, or one
        that is malformed.

        Raises: OSError; after ENOSPC the old file is unchanged.
        """
        path = f"{self.directory}/{name}"
        try:
            self.disk.create_files(self.directory, ((f"{name}.tmp", data),))
        except OSError as error:
            if error.errno == ENOSPC:
                self.disk.unlink(f"{path}.tmp")
            raise
        self.disk.rename(f"{path}.tmp", path)
        self.pending.file(NamedFile(self.disk, path))
        self.pending.directory(self.directory)

    def restore_damage(self, damages: Iterable[Damage]) -> None:
        """Applies the damage-checkpoint that was read at open."""
        by_base: dict[int, list[Damage]] = {}
        for one in damages:
            by_base.setdefault(one.base, []).append(one)
        for segment in self.segments:
            segment.damages = tuple(sorted(one for one in by_base.get(segment.base_offset, ()) if one.position < segment.size))
        self.damage_noted = True
