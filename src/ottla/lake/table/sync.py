"""Keeps a table in sync with a topic: reads new records and commits rows and offsets together.

    compare  the end offsets of the topic with the positions of the table
    read     the records in between, a few partitions at a time; append writes rows to files, upsert buffers them
    commit   rows and offsets atomically, after `commit_bytes` or an interval
    repeat   after the commit interval, or end with `once`

Records that were read and not committed are read again, so a process may be killed at any time. If two processes sync the same table, one
commits and the other raises `Overtaken`.

If a log ends before the table's position, it was truncated: records are lost, and new records reuse offsets that the table has. Each
comparison checks this.

Offsets of a topic that was deleted and created again are other records. Each commit compares the topic's id first.

If rows need a new column, the rows before are committed first; then the column is added.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

from ottla.base.units import MiB
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.ranges import END, BoundKind, Range
from ottla.client.sync.waiting import Stop
from ottla.lake.table.delta import TableMismatch
from ottla.lake.table.parquet_files import Files, aligned
from ottla.lake.table.rows import DecodedRows, Rows
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DELETED, LakeTarget, TableConflict, TableOrigin, Target
from ottla.lake.table.topic import DataLost, LostRecords, Topic
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

ALL = Range(last=END)
#: Least commit interval while the table is behind: fewer and larger files.
BEHIND_INTERVAL_S = 30.0
#: Interval at which the topic id and the partitions are refreshed.
REFRESH_INTERVAL_S = 30.0
#: How long failed reads are retried, and the wait between two attempts.
RETRY_S, RETRY_WAIT_S = 300.0, 1.0
#: Commits between two compactions: each commit makes a small file.
COMPACT_COMMITS = 60
#: Maximum interval between two vacuums; less than a day if files are kept for less.
VACUUM_INTERVAL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class SyncOptions:
    """Options of a sync."""

    range: Range = ALL
    #: Ends at the end offsets that the topic had at the start.
    once: bool = False
    commit_interval_s: float = 5.0
    #: Bytes of files, or of buffered rows, that force a commit.
    commit_bytes: int = 128 * MiB
    #: True: deleted or truncated records end the sync; False: they are reported.
    fails_on_loss: bool = True
    #: A consumer group whose offsets follow the table.
    group: str | None = None
    #: Commits between two compactions; 0: never.
    compact_commits: int = COMPACT_COMMITS
    #: Files that no version of this many last hours needs are removed; 0: never.
    vacuum_hours: int = 168


@dataclass(slots=True)
class SyncProgress:
    """Progress of a sync."""

    records: int = 0
    bytes: int = 0
    corrupt: int = 0
    deleted: int = 0
    lost: int = 0
    commits: int = 0
    version: int = 0
    #: Records between the table and the end of the topic, now and at the start.
    lag: int = 0
    total: int = 0
    #: The next offset to read, by partition.
    positions: dict[int, int] = field(default_factory=dict)


class SyncObserver(Protocol):
    """Receives the progress."""

    def moved(self, progress: SyncProgress) -> None:
        """Records were read, or there are more to read."""

    def committed(self, progress: SyncProgress) -> None:
        """A commit succeeded."""

    def noted(self, kind: str, story: str) -> None:
        """A message for the user: new columns, lost records, a retry."""


class TableSync:
    """`stop` ends it after the current read, with a commit."""

    def __init__(
        self,
        topic: Topic,
        target: Target,
        rows: Rows,
        options: SyncOptions,
        *,
        watcher: SyncObserver,
        sample_values: Sequence[bytes | None] = (),
        stop: Stop | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._target = target
        self._rows = rows
        self._options = options
        self._watcher = watcher
        #: Sample values: a new table starts with their columns.
        self._sample_values = sample_values
        self._stop = stop or Stop()
        self._clock = clock
        self._form: TableFormat = rows.form
        self._is_upsert = self._form.mode == "upsert"
        self.progress = SyncProgress()
        #: By partition: the committed offset, the next offset to read, the first offset of the range.
        self._stored: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._first_offsets: dict[int, int] = {}
        #: Row schemas that the table's columns can hold.
        self._accepted_schemas: list[pa.Schema] = []
        self._files: Files | None = None
        self._unmerged: list[pa.Table] = []
        self._last_commit = self._last_refresh = clock()
        self._vacuumed: float | None = None
        self._compacted_at = 0
        #: Time of the first failed read since the last success or commit; None: none failed.
        self._failing_since: float | None = None

    def run(self) -> SyncProgress:
        """Until the end, `stop`, or an error. Raises: KafkaError, TableConflict, TableMismatch, Overtaken, BadKey, OSError."""
        self._target.begin(TableOrigin(self._topic.name, self._topic.topic_id), self._form, self._rows.first_schema(self._sample_values))
        self._stored = self._target.positions(self._topic.partitions)
        limits = self._begin()
        while not self._stop.is_set():
            try:
                ends = limits if self._options.once else self._ends()
                if not self._options.once:
                    self._check_truncation(ends)
                ranges = {one: (self._positions[one], ends[one]) for one in ends if self._positions[one] < ends[one]}
                if ranges:
                    self._read_ranges(ranges, ends)
                elif self._options.once:
                    break
                self._watch(ends)
                self._failing_since = None
            except (ConnectionFailed, TimeoutError, KafkaError) as error:
                self._retry(error)
                continue
            finally:
                self._discard_uncommitted()
            if not self._options.once:
                self._stop.wait(self._options.commit_interval_s)
        return self.progress

    def _begin(self) -> dict[int, int]:
        """Set the first offset of each partition; return the end offsets for `once`."""
        ranges = self._topic.offsets(self._options.range)
        from_start = self._options.range.first.kind is BoundKind.START
        left_out = 0
        for partition, (first, _) in ranges.items():
            # An existing table continues at its position, even if those records are deleted: `Topic.read` reports them.
            stored = self._stored.get(partition)
            self._first_offsets[partition] = first if stored is None else stored if from_start else max(stored, first)
            left_out += 0 if stored is None else self._first_offsets[partition] - stored
        if left_out:
            self._watcher.noted("left out", f"{left_out:,} offsets between the end of the table and the start of the range")
        self._positions = dict(self._first_offsets)
        if self._stored:
            self._check_truncation(self._topic.ends())
        ends = {partition: end for partition, (_, end) in ranges.items()}
        self.progress.total = self.progress.lag = _offsets_between(self._positions, ends)
        self.progress.version = self._target.version
        return ends

    def _ends(self) -> dict[int, int]:
        """The end offsets now; refreshes the topic every `REFRESH_INTERVAL_S`."""
        if self._clock() - self._last_refresh >= REFRESH_INTERVAL_S:
            self._refresh_topic()
        return self._topic.ends()

    def _check_truncation(self, ends: Mapping[int, int]) -> None:
        """Report logs that end before the table's position, and continue from their ends. Raises: DataLost, TableConflict."""
        if all(end >= self._positions.get(partition, 0) for partition, end in ends.items()):
            return
        # A recreated topic raises here. Open transactions hide records, so the ends of the logs decide.
        self._refresh_topic()
        cut = {one: end for one, end in self._topic.log_ends().items() if end < self._positions.get(one, 0)}
        for partition, end in cut.items():
            story = (
                f"{self._topic.name}-{partition} ends at {end:,} and the table at {self._positions[partition]:,}:"
                " the log was truncated (by an unclean election, or a disk that lost data)"
            )
            if self._options.fails_on_loss:
                raise DataLost(f"{story}; continue from its end with --on-loss warn, or start another table")
            self._watcher.noted("cut off", f"{story}; continuing from {end:,}")
            self._positions[partition] = end
            self._first_offsets[partition] = min(self._first_offsets.get(partition, 0), end)
        if cut:
            self._commit()

    def _refresh_topic(self) -> None:
        self._last_refresh = self._clock()
        before = self._topic.topic_id
        try:
            self._topic.refresh()
        finally:
            if before and self._topic.topic_id != before:
                raise TableConflict(f"topic {self._topic.name} was deleted and recreated: sync the new topic to another directory")
        for partition in self._topic.partitions:
            if partition not in self._positions:
                self._positions[partition] = 0
                self._watcher.noted("partition", f"partition {self._topic.name}-{partition} is new")

    def _retry(self, error: Exception) -> None:
        """Wait before the next attempt. Raises: the error if it is not retriable, or lasts longer than `RETRY_S`."""
        passing = isinstance(error, ConnectionFailed | TimeoutError) or (isinstance(error, KafkaError) and error.retriable)
        if isinstance(error, UnknownTopicOrPartition) or not passing or self._options.once:
            raise error
        if self._failing_since is None:
            self._failing_since = self._clock()
        if self._clock() - self._failing_since > RETRY_S:
            raise error
        self._watcher.noted("retry", " ".join(str(error).split()))
        self._stop.wait(RETRY_WAIT_S)
        self._try_refresh_topic()

    def _try_refresh_topic(self) -> None:
        try:
            self._refresh_topic()
        except (ConnectionFailed, TimeoutError, KafkaError):
            return

    # ------------------------------------------------------------------------------------------------------------ reading

    def _read_ranges(self, ranges: Mapping[int, tuple[int, int]], ends: Mapping[int, int]) -> None:
        """Read these ranges to their ends, with commits in between when due."""
        self._last_commit = self._clock()
        for read in self._topic.read(ranges, self._form.read_names(), self._lost):
            for batch in read.batches:
                if batch.num_rows:
                    self._add(batch, read.partition)
            self._positions[read.partition] = max(self._positions[read.partition], read.next)
            self._watch(ends)
            if self._is_due():
                self._commit()
            if self._stop.is_set():
                break
        else:
            # The last offsets of a range may have no record.
            self._positions |= {partition: max(self._positions[partition], end) for partition, (_, end) in ranges.items()}
        self._commit()
        self._watch(ends)

    def _add(self, batch: pa.RecordBatch, partition: int) -> None:
        """Decode records and write or buffer their rows."""
        made = self._decode(batch)
        self.progress.corrupt += made.corrupt
        self.progress.records += batch.num_rows
        self.progress.bytes += batch.nbytes
        if self._is_upsert:
            self._unmerged.append(made.table.append_column(DELETED, batch.column("value").is_null()))
        else:
            if self._files is None:
                self._files = self._target.files()
            self._files.write(made.table)
        self._positions[partition] = batch.column("offset")[-1].as_py() + 1

    def _decode(self, batch: pa.RecordBatch) -> DecodedRows:
        """Decode records; adds columns to the table if needed. Raises: TableMismatch, BadKey."""
        made = self._rows.made(batch, self._target.schema())
        if made.table.schema in self._accepted_schemas:
            return made
        change = self._target.changes(made.table.schema)
        if change.added or change.wider or change.refused:
            # Rows before do not need these columns, and files with a narrower type must be committed before the table is rewritten.
            if self._files is not None or self._unmerged:
                self._commit()
            try:
                for told in self._target.evolve(made.table.schema, rewrite=self._rows.widens):
                    self._watcher.noted("column", told)
            except TableMismatch as error:
                if not self._rows.widens:
                    raise
                self._watcher.noted("conflict", f"{error}; values that do not fit are stored in _corrupt")
                self._rows.widens = False
                return self._decode(batch)
            self._accepted_schemas = []
        self._accepted_schemas.append(made.table.schema)
        return made

    def _lost(self, lost: LostRecords) -> None:
        if self._options.fails_on_loss:
            raise DataLost(
                f"records of {self._topic.name} were deleted before they were read: {lost} (retention, or a truncated log);"
                " continue without them with --on-loss warn"
            )
        self.progress.lost += lost.next - lost.first
        self._watcher.noted("lost", f"{lost} were deleted before they were read")

    def _watch(self, ends: Mapping[int, int]) -> None:
        self.progress.lag = _offsets_between(self._positions, ends)
        self.progress.positions = dict(self._positions)
        self._watcher.moved(self.progress)

    # ------------------------------------------------------------------------------------------------------------ committing

    def _is_due(self) -> bool:
        held = self._files.size + self._files.waiting_bytes // 4 if self._files is not None else sum(one.nbytes for one in self._unmerged)
        interval_s = max(BEHIND_INTERVAL_S, self._options.commit_interval_s)
        return held >= self._options.commit_bytes or self._clock() - self._last_commit >= interval_s

    def _commit(self) -> None:
        moved = any(self._stored.get(partition, 0) != offset for partition, offset in self._positions.items())
        if not moved:
            return
        # All records were read before this look at the topic's id, so none is of a topic that was created since. If the topic is gone,
        # they are what is left of it.
        with suppress(UnknownTopicOrPartition):
            self._refresh_topic()
        after = {partition: offset for partition, offset in self._positions.items() if offset or partition in self._stored}
        if self._is_upsert:
            self._merge(after)
        else:
            files = self._files.finish() if self._files is not None else []
            self._files = None
            self._target.commit(files, self._stored, after)
        self._stored = dict(after)
        self._failing_since = None
        self._last_commit = self._clock()
        self.progress.commits += 1
        self.progress.version = self._target.version
        self._commit_group_offsets()
        self._maintain()
        self._watcher.committed(self.progress)

    def _merge(self, after: Mapping[int, int]) -> None:
        target = self._target
        assert isinstance(target, LakeTarget), "upsert needs a table whose rows can be replaced"
        waiting, self._unmerged = self._unmerged, []
        rows = last_of_each(waiting, self._form.name("key"), target.schema())
        if rows is None:
            target.commit([], self._stored, after)
            return
        self.progress.deleted += pc.sum(rows.column(DELETED)).as_py() or 0
        if target.is_empty():
            kept = rows.filter(pc.invert(rows.column(DELETED))).drop_columns([DELETED])
            files = target.files()
            files.write(kept)
            target.commit(files.finish(), self._stored, after)
            return
        target.merge(rows, self._stored, after)

    def _discard_uncommitted(self) -> None:
        """Drop uncommitted rows; they are read again."""
        if self._files is not None:
            self._files.abandon()
        self._files, self._unmerged = None, []
        self._positions = {one: max(self._stored.get(one, 0), self._first_offsets.get(one, 0)) for one in self._positions}

    def _commit_group_offsets(self) -> None:
        if self._options.group is None:
            return
        try:
            self._topic.commit(self._options.group, self._stored)
        except (KafkaError, ConnectionFailed, TimeoutError) as error:
            self._watcher.noted("group", f"group {self._options.group} cannot be set to the offsets of the table: {error}")

    def _maintain(self) -> None:
        """Compact and vacuum when due."""
        target, options = self._target, self._options
        if not isinstance(target, LakeTarget) or not options.compact_commits:
            return
        if self.progress.commits - self._compacted_at < options.compact_commits:
            return
        self._compacted_at = self.progress.commits
        done = target.compact()
        if done.removed:
            self._watcher.noted("compacted", f"{done.removed} files into {done.added}")
        now, interval_s = self._clock(), min(VACUUM_INTERVAL_S, options.vacuum_hours * 3600.0)
        if options.vacuum_hours and (self._vacuumed is None or now - self._vacuumed > interval_s):
            self._vacuumed = now
            if removed := target.vacuum(options.vacuum_hours):
                self._watcher.noted("vacuumed", f"removed {removed} files that no version of the last {options.vacuum_hours} hours needs")
        self.progress.version = target.version


def last_of_each(tables: Sequence[pa.Table], key: str, schema: pa.Schema) -> pa.Table | None:
    """The last row of each key, with the columns of `schema` and `DELETED`; None without rows.

    All records of a key are in one partition, and rows are in the order of reading, so the last row is the newest.
    """
    tables = [one for one in tables if one.num_rows]
    if not tables:
        return None
    target = schema.append(pa.field(DELETED, pa.bool_()))
    rows = pa.concat_tables([aligned(one, target) for one in tables])
    numbered = pa.table({"key": rows.column(key), "row": pa.array(range(rows.num_rows), pa.int64())})
    last = numbered.group_by("key").aggregate([("row", "max")]).column("row_max")
    return rows if len(last) == rows.num_rows else rows.take(last.take(pc.sort_indices(last)))


def _offsets_between(positions: Mapping[int, int], ends: Mapping[int, int]) -> int:
    return sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.items())
