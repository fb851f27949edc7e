"""The log of one partition: batches in segments, from the start offset to the end offset.

    start_offset        recovery_point          end_offset
    |                   |                       |
    | b b b b | b b b b b b b | b b b b b b b b |            segments 0, 40, 110; the last one is active
    0         40        90    110               190
    `------ on disk ----'---- in page cache ----'

The log is synchronous, has one owner and no clock: times are arguments. Appends reach the page cache. ``flush_plan`` returns what to sync;
its performer calls ``flushed`` afterwards. Batches are already validated; the log assigns their offsets and reads only transaction markers.

An OSError of the disk passes through. After ENOSPC from ``append`` the log is unchanged; any other error means that the directory failed.
"""

from errno import ENOSPC

import msgspec

from ottla.base.ids import LeaderEpoch, Offset, TopicId
from ottla.base.ports import File
from ottla.log import lookup, truncation
from ottla.log.checkpoints import holes_file, missing_file
from ottla.log.errors import OffsetOutOfRange
from ottla.log.filenames import HOLES, MISSING, PARTITION_METADATA
from ottla.log.flush import FlushPlan, NamedFile, Slice
from ottla.log.lookup import TimedOffset
from ottla.log.options import TopicOptions
from ottla.log.producer_state import Duplicate
from ottla.log.segment import Segment
from ottla.log.state import LogState, SegmentLimits
from ottla.log.transaction_index import AbortedTransaction
from ottla.log.verification import VerificationGuard
from ottla.records.batch import BatchHeader, patch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, control_record


class Appended(msgspec.Struct, gc=False):
    """An appended batch. ``file``, ``position`` and ``size`` locate its bytes, for writeback."""

    base_offset: Offset
    last_offset: Offset
    #: The batch's largest timestamp: the append time with LogAppendTime.
    timestamp_ms: int
    file: File
    position: int
    size: int
    #: Whether it is the first batch of a new segment.
    rolled: bool


class Log(LogState):
    """Made by ``LogDirectory.create`` and ``LogDirectory.open``."""

    @property
    def checkpoint_offset(self) -> Offset:
        """The recovery point for the checkpoint: below it records are on disk, and everything that recovery would not rebuild."""
        if self.missing_below is not None and not self._missing_noted:
            # The missing-checkpoint is not durable; the next start must detect the missing records again.
            return max(self.missing_below, self.recovery_point)
        return self.pending.bound(self.recovery_point, self.epochs)

    @property
    def clean_checkpoint(self) -> Offset | None:
        """The clean offset for the checkpoint: that of the last compaction whose file names are durable."""
        return self._clean_durable

    def mark_cleaned(self, offset: int, *, durable: bool = False) -> None:
        """The log was compacted up to this offset; ``durable`` if no flush is pending."""
        self.clean_offset = Offset(offset)
        if durable:
            self._clean_durable = self.clean_offset

    def set_options(self, options: TopicOptions) -> None:
        """Replaces the settings; existing segments keep their index interval."""
        self.options = options
        self._limits = None

    def assign_topic_id(self, topic_id: TopicId) -> None:
        """For a log without partition.metadata; the next flush makes it durable."""
        self.topic_id = topic_id
        self.pending.metadata = topic_id

    def sequence_check(
        self, header: BatchHeader, *, now_ms: int, guard: VerificationGuard | None = None, verify: bool = False
    ) -> Duplicate | None:
        """Checks a client's batch. Returns the earlier append if it is a duplicate.

        ``verify``: a batch that begins a transaction here needs the current ``guard`` of its verification.
        Raises: OutOfOrderSequence, StaleProducerEpoch, InvalidTransactionState.
        """
        return self.producers.check(header, guard=guard, verify=verify) if header.producer_id >= 0 else None

    def append(self, batch: memoryview, header: BatchHeader, *, leader_epoch: int, now_ms: int, copy: bool = False) -> Appended:
        """Appends one validated batch without copying it; patches base offset and leader epoch in place.

        ``header`` is the batch's header, with the append time set for LogAppendTime. A ``copy`` of another log's batch keeps its offset and
        epoch. Raises: OSError; after ENOSPC the log is unchanged.
        """
        epochs = self.epochs
        assert leader_epoch >= epochs.latest or leader_epoch < 0, "a leader epoch never decreases"
        base_offset = Offset(header.base_offset) if copy else self.end_offset
        assert base_offset == self.end_offset or base_offset <= self.holes_below, "a hole is permitted before it is made"
        assert base_offset >= self.end_offset, "batches are appended at the end"
        last_offset = Offset(base_offset + header.last_offset_delta)
        size = len(batch)
        segment = self.segments[-1]
        rolled = segment.size > 0 and self._full(segment, header, size, last_offset, now_ms)
        if rolled:
            segment = self.roll(now_ms)
        if not copy:
            patch(batch, 0, base_offset=base_offset, leader_epoch=leader_epoch)
        position = segment.append(batch, header, base_offset)
        self.end_offset = epochs.end_offset = Offset(last_offset + 1)
        if leader_epoch > epochs.latest:
            epochs.assign(leader_epoch, base_offset)
        if header.producer_id >= 0:
            self._note_producer(batch, header, base_offset, now_ms)
        return Appended(base_offset, last_offset, header.max_timestamp, segment.file, position, size, rolled)

    def _full(self, segment: Segment, header: BatchHeader, size: int, last_offset: int, now_ms: int) -> bool:
        """Whether the batch needs a new segment, by size, age, size of the indexes, or range of relative offsets."""
        room = self._limits
        if room is None or room.segment is not segment:
            room = self._limits = SegmentLimits.of(segment, self.options)
        if segment.size > room.bytes_max - size or last_offset > room.offset_max:
            return True
        if (header.max_timestamp if room.by_timestamp else now_ms) > room.time_max_ms:
            return True
        return room.by_index and (len(segment.offsets) >= room.entries_max or len(segment.times) >= room.times_max)

    def _note_producer(self, batch: memoryview, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        if not header.is_control:
            self.producers.data_appended(header, base_offset, now_ms)
            return
        control = control_record(batch)
        if control is None or control.kind not in (ABORT_MARKER, COMMIT_MARKER):
            return
        aborted = self.producers.marker_appended(
            header,
            base_offset,
            commit=control.kind == COMMIT_MARKER,
            coordinator_epoch=control.coordinator_epoch,
            timestamp_ms=header.max_timestamp,
            now_ms=now_ms,
        )
        if aborted is not None:
            self.active.note_aborted(aborted)

    def begin(self, now_ms: int) -> None:
        """Initializes a new log: one empty segment, whose files exist. Does no I/O."""
        interval_bytes = self.options.index_interval_bytes
        segment = Segment.empty(self.disk, self.directory, 0, interval_bytes=interval_bytes, now_ms=now_ms)
        self.segments, self.bases = [self.with_jitter(segment)], [Offset(0)]
        for name in (PARTITION_METADATA, *((HOLES,) if self.options.compacts else ())):
            self.pending.file(NamedFile(self.disk, f"{self.directory}/{name}"))
        self.pending.directory("")
        self.pending.directory(self.directory)

    def locate(self, offset: int, *, max_bytes: int, upto: int, at_least_one: bool = True) -> Slice | None:
        """Bytes of one segment, from the batch with ``offset`` on: at most ``max_bytes``, below offset ``upto``.

        ``max_bytes`` may truncate the last batch, never the first: with ``at_least_one`` that is complete whatever its size, else the
        result is None when it does not fit. None also at the end. Raises: OffsetOutOfRange, CorruptLog.
        """
        end_offset = self.end_offset
        if not self.start_offset <= offset <= end_offset:
            raise OffsetOutOfRange(offset, self.start_offset, end_offset)
        limit = min(upto, end_offset)
        if offset >= limit:
            return None
        index = self.segment_of(offset)
        segment = self.segments[index]
        found = segment.find(offset)
        while found is None:  # Compaction can remove the last batches of a segment.
            index += 1
            if index == len(self.segments) or self.bases[index] >= limit:
                return None
            segment = self.segments[index]
            found = segment.find(offset)
        position, behind_first = found
        following = self.bases[index + 1] if index + 1 < len(self.bases) else end_offset
        if segment.damages:
            end: int | None = segment.sound_end(position, min(limit, following))
        else:
            end = segment.size if limit >= following else segment.position_of(limit)
        size = (segment.size if end is None else end) - position
        if size > max_bytes:
            first = behind_first - position
            if first > max_bytes and not at_least_one:
                return None
            size = min(size, max(max_bytes, first))
        return Slice(segment.file, position, size) if size > 0 else None

    def first_batch_offset(self) -> int:
        """Base offset of the batch with the start offset; lower if records were deleted up to the middle of a batch. Raises: CorruptLog."""
        found = self.segments[self.segment_of(self.start_offset)].header_of(self.start_offset)
        return self.start_offset if found is None else min(found[1].base_offset, self.start_offset)

    def read(self, offset: int, *, max_bytes: int = 1 << 30, upto: int | None = None) -> bytes:
        """Reads the result of ``locate``; for tests and tools."""
        located = self.locate(offset, max_bytes=max_bytes, upto=self.end_offset if upto is None else upto)
        return located.read() if located else b""

    def offset_for_time(self, timestamp_ms: int, *, upto: int) -> TimedOffset | None:
        """The first record below ``upto`` with at least this timestamp. Raises: CorruptLog."""
        return lookup.offset_for_time(self, timestamp_ms, upto)

    def max_timestamp(self, upto: int) -> TimedOffset | None:
        """The first record below ``upto`` with the largest timestamp. Raises: CorruptLog."""
        return lookup.max_timestamp(self, upto)

    def aborted_in(self, first: int, found: Slice, upto: int) -> list[AbortedTransaction]:
        """Aborted transactions that a reader of the batches ``found`` needs: ``found`` is the result of ``locate(first, upto=upto)``.

        The slice ends at an offset that the index gives without reading a batch, so a transaction that begins shortly after it may be
        listed too. Source: Kafka's LocalLog.addAbortedTransactions.
        """
        return lookup.aborted_in(self, first, found, upto)

    def aborted_transactions(self, first: int, upto: int) -> list[AbortedTransaction]:
        """Aborted transactions with records in ``first..upto`` (exclusive), in the order of their markers. Source: KIP-98."""
        return lookup.aborted_transactions(self, first, upto)

    def last_stable_offset(self, high_watermark: int) -> Offset:
        """Read-committed consumers read below this offset. At least the start offset: records of an open transaction can be deleted."""
        end, start = self.end_offset, self.start_offset
        stable = self.producers.last_stable_offset(high_watermark if high_watermark < end else end)
        return stable if stable > start else start

    @property
    def unflushed(self) -> bool:
        """Whether a flush is needed."""
        return self.recovery_point != self.end_offset or self.pending.needs_flush(self.epochs)

    def flush_plan(self) -> FlushPlan | None:
        """What to sync to make the present log durable; None when it is. Does no I/O unless a full disk refused an index."""
        pending = self.pending
        self._durable_max = None
        if not self.unflushed:
            return None
        if self.recovery_point >= self.bases[-1]:
            logs = [self.segments[-1].file] if self.recovery_point < self.end_offset else []
        else:
            logs = [segment.file for segment in self.segments[self.segment_of(self.recovery_point) :]]
        if not (pending.any or self.epochs.dirty or pending.unwritten):
            return FlushPlan(self.end_offset, tuple(logs))
        return pending.plan(self.end_offset, logs, self.directory, self.epochs)

    def flushed(self, upto: int) -> None:
        """The last plan, up to this offset, was performed."""
        if self._durable_max is not None:
            upto = min(upto, self._durable_max)
        self.recovery_point = Offset(min(max(self.recovery_point, upto), self.end_offset))
        self.pending.done(upto, self.epochs)
        if not self.pending.names:
            self._clean_durable = self.clean_offset
            self._missing_noted = self._missing_written

    def delete_before(self, offset: int, now_ms: int) -> tuple[str, ...]:
        """Raises the start offset to ``offset``; renames the segments below and returns their paths.

        Durable with the next log-start checkpoint. Raises: OffsetOutOfRange.
        """
        return truncation.delete_before(self, offset, now_ms)

    def retain(self, now_ms: int, high_watermark: int) -> tuple[str, ...]:
        """Drops segments beyond retention.ms or retention.bytes, below the high watermark.

        Returns the renamed files, which the caller removes after file.delete.delay.ms.
        """
        return truncation.retain(self, now_ms, high_watermark)

    def truncate_to(self, offset: int, now_ms: int = 0) -> tuple[str, ...]:
        """Drops the batch with ``offset`` and all later ones; returns the renamed files, which the caller removes later."""
        self.truncations += 1
        removed = truncation.truncate_to(self, offset, now_ms)
        self._durable_max = self.end_offset if self._durable_max is None else min(self._durable_max, self.end_offset)
        self._limits = None
        self.pending.void()
        self.save_damage()
        return removed

    def restart_at(self, offset: int, now_ms: int) -> tuple[str, ...]:
        """Drops all batches; the empty log begins at ``offset``. Returns the renamed files, which the caller removes later."""
        self.truncations += 1
        removed = truncation.restart_at(self, offset, now_ms)
        self._durable_max = Offset(0)
        self._limits = None
        self.pending.void()
        self.clean_offset = self._clean_durable = None
        self.save_damage()
        return removed

    def note_missing(self, below: int, *, sync: bool = False) -> None:
        """Marks records below this offset as missing; durable with the next flush, or with ``sync`` at once, unless the disk is full.

        Raises: OSError.
        """
        self.missing_below = Offset(below)
        self._missing_written = self._missing_noted = False
        try:
            self.write_small(MISSING, missing_file(below))
            self._missing_written = True
            if sync:
                self.disk.sync_file(f"{self.directory}/{MISSING}")
                self.disk.sync_dir(self.directory)
                self._missing_noted = True
        except OSError as error:
            if error.errno != ENOSPC:
                raise

    def retry_missing_note(self) -> None:
        """Writes the missing-checkpoint if a full disk refused it before. Raises: OSError."""
        if self.missing_below is not None and not self._missing_written:
            self.note_missing(self.missing_below)

    def restore_missing(self, below: int) -> None:
        """Applies the missing-checkpoint that was read at open."""
        self.missing_below = Offset(below)
        self._missing_written = self._missing_noted = True

    def clear_missing(self) -> None:
        """Removes the mark of missing records: the log has all records of its leader. Raises: OSError."""
        self.missing_below = None
        self._missing_written = self._missing_noted = False
        self.disk.unlink(f"{self.directory}/{MISSING}")
        self.pending.directory(self.directory)

    def allow_holes(self, below: int) -> None:
        """Permits holes below this offset in copies of a compacted log; durable with the batches, in the next flush.

        Raises: OSError; after ENOSPC the log is unchanged.
        """
        if below > self.holes_below:
            self.write_small(HOLES, holes_file(below))
            self.holes_below = Offset(below)

    def expire_producers(self, now_ms: int, after_ms: int) -> int:
        """Removes idle producers without an open transaction; returns their number."""
        return self.producers.expire(now_ms, after_ms)

    def forget_oldest_producers(self, count: int) -> int:
        """Removes the producers idle for longest without an open transaction; returns their number."""
        return self.producers.forget_oldest(count)

    def epoch_at(self, offset: int) -> LeaderEpoch:
        return self.epochs.epoch_at(offset)

    def close(self) -> None:
        """Closes the files without writing."""
        for segment in self.segments:
            segment.close()
