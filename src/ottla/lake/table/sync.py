"""Keeps a table in step with a topic: reads what the table does not have yet, commits it with the offsets, and goes on, or ends.

    look     which offsets the topic has, and how far the table is
    read     what lies between, a few partitions at a time; rows go to files, or wait to be merged
    commit   after so many bytes, or so long: rows and offsets in one step
    again    after the commit interval

What was read and not committed is read again by whoever comes next, so it does not matter where a process is killed. Of two that keep the
same table, one commits, and the other is told by its commit that it was overtaken, and ends.

A log that ends before what the table has was cut off: records are lost, and those that come now have offsets that the table has already.
So the ends are compared with the table at each look.

Where rows need a column that the table has not, the table is committed as far as it is; then it gets the column, and the rest is read
with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ottla.base.units import MiB
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.ranges import END, Kind, Range
from ottla.client.sync.waiting import Stop
from ottla.lake.table.delta import TableMismatch
from ottla.lake.table.parquet_files import Files
from ottla.lake.table.rows import Made, Rows
from ottla.lake.table.schema import Form
from ottla.lake.table.target import DELETED, DeltaTarget, NotOurs, Origin, Target
from ottla.lake.table.topic import DataLost, Lost, Topic
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

if TYPE_CHECKING:
    import pyarrow as pa

ALL = Range(last=END)
#: While the table is behind, it is better to write few large files than to be some seconds fresher.
BEHIND_INTERVAL_S = 30.0
#: How often it is asked who the topic is, and which partitions it has.
LOOK_INTERVAL_S = 30.0
#: How long a topic that cannot be read is tried anew, and how long between.
RETRY_S, RETRY_WAIT_S = 300.0, 1.0
#: A small file per commit: so many are joined at a time.
COMPACT_COMMITS = 60
VACUUM_INTERVAL_S = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be kept, and how."""

    range: Range = ALL
    #: Ends when it is at the end that the topic had at the beginning.
    once: bool = False
    commit_interval_s: float = 5.0
    #: Of files, or of rows that wait to be merged.
    commit_bytes: int = 128 * MiB
    #: When records are gone before they were read: end, or go on and say so.
    fails_on_loss: bool = True
    #: A group that is told how far the table is.
    group: str | None = None
    #: Commits between two compactions; 0: never.
    compact_commits: int = COMPACT_COMMITS
    #: Files that no version of the last so many hours has are removed; 0: never.
    vacuum_hours: int = 168


@dataclass(slots=True)
class Standing:
    """How far it is: for whoever watches."""

    records: int = 0
    bytes: int = 0
    corrupt: int = 0
    deleted: int = 0
    lost: int = 0
    commits: int = 0
    version: int = 0
    #: Records between the table and the end of the topic; and how many there were to read when it began.
    lag: int = 0
    total: int = 0
    #: The next offset to read, by partition.
    positions: dict[int, int] = field(default_factory=dict)


class Watcher(Protocol):
    """Hears how it goes."""

    def moved(self, standing: Standing) -> None:
        """Records were read, or there are more to read."""

    def committed(self, standing: Standing) -> None:
        """They are in the table."""

    def noted(self, kind: str, story: str) -> None:
        """Something that a person should know: columns, lost records, a retry."""


class Keeper:
    """See the module. `stop` ends it between two steps."""

    def __init__(
        self,
        topic: Topic,
        target: Target,
        rows: Rows,
        plan: Plan,
        *,
        watcher: Watcher,
        shown: Sequence[bytes | None] = (),
        stop: Stop | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._target = target
        self._rows = rows
        self._plan = plan
        self._watcher = watcher
        #: Some values, so that a new table begins with their columns.
        self._shown = shown
        self._stop = stop or Stop()
        self._clock = clock
        self._form: Form = rows.form
        self._upserts = self._form.mode == "upsert"
        self.standing = Standing()
        #: What the table has; how far the open batch is beyond it; and where it began to read.
        self._stored: dict[int, int] = {}
        self._positions: dict[int, int] = {}
        self._floor: dict[int, int] = {}
        #: Schemas of rows for which the table has room, in the types it has.
        self._fits: list[pa.Schema] = []
        self._files: Files | None = None
        self._waiting: list[pa.Table] = []
        self._began = self._looked = clock()
        self._vacuumed: float | None = None
        self._compacted_at = 0
        #: Since when it cannot read the topic; None: it can, or has committed since.
        self._trouble_since: float | None = None

    def run(self) -> Standing:
        """Until the end, `stop`, or an error. Raises: KafkaError, NotOurs, TableMismatch, Overtaken, BadKey, OSError."""
        self._target.begin(Origin(self._topic.name, self._topic.topic_id), self._form, self._rows.first_schema(self._shown))
        self._stored = self._target.positions(self._topic.partitions)
        limits = self._begin()
        while not self._stop.is_set():
            try:
                ends = limits if self._plan.once else self._ends()
                if not self._plan.once:
                    self._notice_cuts(ends)
                wanted = {one: (self._positions[one], ends[one]) for one in ends if self._positions[one] < ends[one]}
                if wanted:
                    self._take(wanted, ends)
                elif self._plan.once:
                    break
                self._watch(ends)
                self._trouble_since = None
            except (ConnectionFailed, TimeoutError, KafkaError) as error:
                self._retry(error)
                continue
            finally:
                self._abandon()
            if not self._plan.once:
                self._stop.wait(self._plan.commit_interval_s)
        return self.standing

    def _begin(self) -> dict[int, int]:
        """Where to begin in each partition, and where to end if it ends."""
        ranges = self._topic.offsets(self._plan.range)
        from_start = self._plan.range.first.kind is Kind.START
        left_out = 0
        for partition, (first, _) in ranges.items():
            # A table that was begun goes on where it is, also where that is gone by now: `Topic.read` tells of it then.
            stored = self._stored.get(partition)
            self._floor[partition] = first if stored is None else stored if from_start else max(stored, first)
            left_out += 0 if stored is None else self._floor[partition] - stored
        if left_out:
            self._watcher.noted("left out", f"{left_out:,} offsets, which come after what is there and before where the range begins now")
        self._positions = dict(self._floor)
        if self._stored:
            self._notice_cuts(self._topic.ends())
        ends = {partition: end for partition, (_, end) in ranges.items()}
        self.standing.total = self.standing.lag = _between(self._positions, ends)
        self.standing.version = self._target.version
        return ends

    def _ends(self) -> dict[int, int]:
        """Where the topic ends now; now and then, whether it is still the same, and which partitions it has."""
        if self._clock() - self._looked >= LOOK_INTERVAL_S:
            self._look_again()
        return self._topic.ends()

    def _notice_cuts(self, ends: Mapping[int, int]) -> None:
        """Tells of logs that end before what the table has, and goes on from their ends. Raises: DataLost, NotOurs."""
        if all(end >= self._positions.get(partition, 0) for partition, end in ends.items()):
            return
        # A topic that was made anew is told as such; and transactions may be open behind what the table has.
        self._look_again()
        cut = {one: end for one, end in self._topic.log_ends().items() if end < self._positions.get(one, 0)}
        for partition, end in cut.items():
            story = (
                f"{self._topic.name}-{partition} ends at {end:,}, and the table has it up to {self._positions[partition]:,}:"
                " the log was cut off (by an unclean election, or a disk that lost what it had)"
            )
            if self._plan.fails_on_loss:
                raise DataLost(f"{story}; go on from where it ends now with --on-loss warn, or begin another table")
            self._watcher.noted("cut off", f"{story}; it goes on from {end:,}")
            self._positions[partition] = end
            self._floor[partition] = min(self._floor.get(partition, 0), end)
        if cut:
            self._commit()

    def _look_again(self) -> None:
        self._looked = self._clock()
        before = self._topic.topic_id
        self._topic.look_again()
        if before and self._topic.topic_id != before:
            raise NotOurs(f"topic {self._topic.name} was deleted and made anew meanwhile: keep the new one in another directory")
        for partition in self._topic.partitions:
            if partition not in self._positions:
                self._positions[partition] = 0
                self._watcher.noted("partition", f"partition {self._topic.name}-{partition} is new")

    def _retry(self, error: Exception) -> None:
        """A broker that is away comes back. Raises: the error where it will not go by itself."""
        passing = isinstance(error, ConnectionFailed | TimeoutError) or (isinstance(error, KafkaError) and error.retriable)
        if isinstance(error, UnknownTopicOrPartition) or not passing or self._plan.once:
            raise error
        if self._trouble_since is None:
            self._trouble_since = self._clock()
        if self._clock() - self._trouble_since > RETRY_S:
            raise error
        self._watcher.noted("retry", " ".join(str(error).split()))
        self._stop.wait(RETRY_WAIT_S)
        self._look_again_if_there()

    def _look_again_if_there(self) -> None:
        try:
            self._look_again()
        except (ConnectionFailed, TimeoutError, KafkaError):
            return

    # ------------------------------------------------------------------------------------------------------------ reading

    def _take(self, wanted: Mapping[int, tuple[int, int]], ends: Mapping[int, int]) -> None:
        """Reads these ranges to their ends, and commits as often as is due."""
        self._began = self._clock()
        for read in self._topic.read(wanted, self._form.read_names(), self._lost):
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
            # Offsets at the end of a range may have no record, and those of records that are gone have none.
            self._positions |= {partition: max(self._positions[partition], end) for partition, (_, end) in wanted.items()}
        self._commit()
        self._watch(ends)

    def _add(self, batch: pa.RecordBatch, partition: int) -> None:
        """Rows of some records, into a table that has room for them."""
        made = self._fitting(batch)
        self.standing.corrupt += made.corrupt
        self.standing.records += batch.num_rows
        self.standing.bytes += batch.nbytes
        if self._upserts:
            self._waiting.append(made.table.append_column(DELETED, batch.column("value").is_null()))
        else:
            if self._files is None:
                self._files = self._target.files()
            self._files.write(made.table)
        self._positions[partition] = batch.column("offset")[-1].as_py() + 1

    def _fitting(self, batch: pa.RecordBatch) -> Made:
        """The rows, for which the table has columns. Raises: TableMismatch, BadKey."""
        made = self._rows.made(batch, self._target.schema())
        if made.table.schema in self._fits:
            return made
        change = self._target.changes(made.table.schema)
        if change.added or change.wider or change.refused:
            # What is there is whole without these columns; and files with the narrower type must be in the table when it is written anew.
            if self._files is not None or self._waiting:
                self._commit()
            try:
                for told in self._target.evolve(made.table.schema, rewrite=self._rows.widens):
                    self._watcher.noted("column", told)
            except TableMismatch as error:
                if not self._rows.widens:
                    raise
                self._watcher.noted("conflict", f"{error}; values that do not fit go to _corrupt")
                self._rows.widens = False
                return self._fitting(batch)
            self._fits = []
        self._fits.append(made.table.schema)
        return made

    def _lost(self, lost: Lost) -> None:
        if self._plan.fails_on_loss:
            raise DataLost(
                f"records of {self._topic.name} were deleted before the table had them: {lost} (retention, or a truncated log);"
                " go on without them with --on-loss warn"
            )
        self.standing.lost += lost.next - lost.first
        self._watcher.noted("lost", f"{lost} were deleted before the table had them")

    def _watch(self, ends: Mapping[int, int]) -> None:
        self.standing.lag = _between(self._positions, ends)
        self.standing.positions = dict(self._positions)
        self._watcher.moved(self.standing)

    # ------------------------------------------------------------------------------------------------------------ committing

    def _is_due(self) -> bool:
        held = self._files.size + self._files.waiting_bytes // 4 if self._files is not None else sum(one.nbytes for one in self._waiting)
        return held >= self._plan.commit_bytes or self._clock() - self._began >= max(BEHIND_INTERVAL_S, self._plan.commit_interval_s)

    def _commit(self) -> None:
        moved = any(self._stored.get(partition, 0) != offset for partition, offset in self._positions.items())
        if not moved:
            return
        after = {partition: offset for partition, offset in self._positions.items() if offset or partition in self._stored}
        if self._upserts:
            self._merge(after)
        else:
            files = self._files.finish() if self._files is not None else []
            self._files = None
            self._target.commit(files, self._stored, after)
        self._stored = dict(after)
        self._trouble_since = None
        self._began = self._clock()
        self.standing.commits += 1
        self.standing.version = self._target.version
        self._tell_group()
        self._keep_up()
        self._watcher.committed(self.standing)

    def _merge(self, after: Mapping[int, int]) -> None:
        from ottla.lake.table.upsert import last_of_each

        target = self._target
        assert isinstance(target, DeltaTarget), "only Delta tables are merged into"
        waiting, self._waiting = self._waiting, []
        rows = last_of_each(waiting, self._form.name("key"), target.schema())
        if rows is None:
            target.commit([], self._stored, after)
            return
        self.standing.deleted += _count(rows.column(DELETED))
        if target.is_empty():
            kept = rows.filter(_not(rows.column(DELETED))).drop_columns([DELETED])
            files = target.files()
            files.write(kept)
            target.commit(files.finish(), self._stored, after)
            return
        target.merge(rows, self._stored, after)

    def _abandon(self) -> None:
        """What was read and not committed is forgotten, and read again."""
        if self._files is not None:
            self._files.abandon()
        self._files, self._waiting = None, []
        self._positions = {one: max(self._stored.get(one, 0), self._floor.get(one, 0)) for one in self._positions}

    def _tell_group(self) -> None:
        if self._plan.group is None:
            return
        try:
            self._topic.commit(self._plan.group, self._stored)
        except (KafkaError, ConnectionFailed, TimeoutError) as error:
            self._watcher.noted("group", f"group {self._plan.group} is not told how far the table is: {error}")

    def _keep_up(self) -> None:
        """Joins small files now and then, and removes old ones."""
        target, plan = self._target, self._plan
        if not isinstance(target, DeltaTarget) or not plan.compact_commits:
            return
        if self.standing.commits - self._compacted_at < plan.compact_commits:
            return
        self._compacted_at = self.standing.commits
        done = target.compact()
        if done.removed:
            self._watcher.noted("compacted", f"{done.removed} files became {done.added}")
        now = self._clock()
        if plan.vacuum_hours and (self._vacuumed is None or now - self._vacuumed > VACUUM_INTERVAL_S):
            self._vacuumed = now
            if removed := target.vacuum(plan.vacuum_hours):
                self._watcher.noted("vacuumed", f"{removed} files that no version of the last {plan.vacuum_hours} hours has are removed")
        self.standing.version = target.version


def _between(positions: Mapping[int, int], ends: Mapping[int, int]) -> int:
    return sum(max(0, end - positions.get(partition, 0)) for partition, end in ends.items())


def _count(column: Any) -> int:
    import pyarrow.compute as pc

    return int(pc.sum(column).as_py() or 0)


def _not(column: Any) -> Any:
    import pyarrow.compute as pc

    return pc.invert(column)
