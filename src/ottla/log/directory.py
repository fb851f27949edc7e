"""A log directory: the logs under one root, and their common files.

``open`` reads the owner (meta.properties), the marker of a clean stop (.kafka_cleanshutdown) and the checkpoints, and opens every log. The
marker is removed first, so that a later crash is detected. ``close`` writes these files in the reverse order, the marker last.

meta.properties also lists all log directories of the broker (``set_siblings``): a new or missing directory may have had logs that are not
found now. A log that a checkpoint lists with records, and that does not exist, has vanished.

A removed partition's directory is renamed first (``orders-3.<unique>-delete``); ``open`` removes the ones it finds. Logs of deleted topics
are kept for a while under a name that ends in ``-stray``.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ENOSPC
from hashlib import blake2b
from typing import Self

from ottla.base.ids import Offset, TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.log import checkpoints, filenames
from ottla.log.checkpoints import MetaProperties
from ottla.log.directory_changes import LogChanges, LogMove, NewLog
from ottla.log.errors import DirectoryRefused, PartitionExists
from ottla.log.flush import FlushPlan
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.log.recovery import ClosedLog
from ottla.log.state import LogState

#: Opens logs; the result is in the order of the argument, with None for a file instead of a partition's directory. Raises: OSError.
OpenLogs = Callable[[Sequence[ClosedLog]], Iterable[Log | None]]

#: Files by kind of checkpoint.
_CHECKPOINTS = {
    "recovery_points": filenames.RECOVERY_POINTS,
    "log_starts": filenames.LOG_STARTS,
    "high_watermarks": filenames.HIGH_WATERMARKS,
    "cleaner_offsets": filenames.CLEANER_OFFSETS,
    "scrubs": filenames.SCRUBS,
}
#: All kinds of checkpoints.
KINDS = tuple(_CHECKPOINTS)


@dataclass(slots=True)
class ScrubProgress:
    """Progress of the scrub of a log."""

    #: Next offset of the current pass; -1 without one.
    offset: int = -1
    #: Wall time at which the last pass ended, or from which the interval to the first one counts.
    done_ms: int = 0


class LogDirectory:
    """One log directory and its logs; made by ``open``."""

    def __init__(self, disk: Disk, identity: MetaProperties) -> None:
        self.disk = disk
        #: Path of the directory, which names it.
        self.root = disk.root
        self.logs: dict[TopicPartition, Log] = {}
        self.identity = identity
        #: Why the directory is offline; None while it is online. Its owner sets it.
        self.failed: str | None = None
        #: Whether the last stop was clean.
        self.clean_start = False
        #: The broker epoch at that stop, and the one since which every stop was clean; -1 when unknown.
        self.last_broker_epoch = -1
        self.clean_since = -1
        #: Partitions without a log that had records according to the checkpoints at open.
        self.vanished: frozenset[TopicPartition] = frozenset()
        #: High watermarks from ``open`` and ``create``.
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        #: Scrub progress by partition, initially from the scrub-checkpoint.
        self.scrubs: dict[TopicPartition, ScrubProgress] = {}
        #: Stray directories that expire, with the wall time at which they were set aside.
        self.strays: dict[str, int] = {}
        self._removed = 0
        #: Numbers of the partitions in ``logs``, by topic.
        self._numbers: dict[str, dict[int, None]] = {}
        #: Names of delete and stray directories at ``open``.
        self._used_names: frozenset[str] = frozenset()
        #: Partitions that a checkpoint on disk may name. A new log of such a partition must not inherit the old one's entry.
        self._named: set[TopicPartition] = set()
        #: Whether a cleaner-offset-checkpoint exists.
        self._cleans = False
        #: Partitions whose rows were read for a checkpoint that is made in pieces, and must be read again before it is written.
        self._outdated: set[TopicPartition] = set()
        #: Logs that were truncated below their recorded recovery point, and the callback for it. The owner may record several at a time.
        self.lowered: dict[TopicPartition, LogState] = {}
        self.on_lowered: Callable[[], None] = self.record_lowered
        #: Called with a log that began a new segment.
        self.on_rolled: Callable[[LogState], None] = lambda log: None

    def __repr__(self) -> str:
        return f"LogDirectory({self.root}, {len(self.logs)} logs)"

    @property
    def broker_id(self) -> int:
        assert self.identity.broker_id is not None, "open() sets the identity"
        return self.identity.broker_id

    @property
    def cluster_id(self) -> str:
        assert self.identity.cluster_id is not None, "open() sets the identity"
        return self.identity.cluster_id

    @property
    def directory_id(self) -> bytes:
        """16 bytes that identify the directory permanently. Source: KIP-858."""
        assert self.identity.directory_id is not None, "open() sets the identity"
        return self.identity.directory_id

    @classmethod
    def open(
        cls,
        disk: Disk,
        *,
        broker_id: int,
        cluster_id: str,
        now_ms: int,
        options_for: Callable[[str], TopicOptions] | None = None,
        directory_id: bytes | None = None,
        open_logs: OpenLogs | None = None,
    ) -> Self:
        """Opens the directory and every log in it; recovers logs after a crash.

        ``options_for`` returns the settings of a topic by name; without it they are defaults. ``directory_id`` is for a directory without
        one. ``open_logs`` opens the logs in threads; without it they are opened one after another.
        Raises: DirectoryRefused when it belongs to another broker or cluster, OSError when the disk fails.
        """
        directory = cls(disk, _identity(disk, broker_id, cluster_id, directory_id, now_ms))
        entries = disk.listdir()
        if filenames.CLEAN_SHUTDOWN in entries:
            directory.clean_start = True
            directory.last_broker_epoch, directory.clean_since = checkpoints.read_clean_shutdown(disk.read_file(filenames.CLEAN_SHUTDOWN))
            disk.unlink(filenames.CLEAN_SHUTDOWN)
        disk.sync_dir()
        recovery_points = _read_offsets(disk, filenames.RECOVERY_POINTS)
        starts = _read_offsets(disk, filenames.LOG_STARTS)
        directory.high_watermarks = _read_offsets(disk, filenames.HIGH_WATERMARKS)
        cleaned = _read_offsets(disk, filenames.CLEANER_OFFSETS)
        directory._named = {*recovery_points, *starts, *directory.high_watermarks, *cleaned}
        directory._cleans = filenames.CLEANER_OFFSETS in entries
        if filenames.SCRUBS in entries:
            marks = checkpoints.read_scrubs(disk.read_file(filenames.SCRUBS))
            directory.scrubs = {partition: ScrubProgress(*mark) for partition, mark in marks.items()}
        directory._clear(entries)
        closed = [
            ClosedLog(
                disk,
                partition,
                name,
                options_for(partition.topic) if options_for else TopicOptions(),
                start_offset=starts.get(partition, Offset(0)),
                recovery_point=recovery_points.get(partition, Offset(0)),
                clean=directory.clean_start,
                now_ms=now_ms,
                cleaned=cleaned.get(partition),
            )
            for name in entries
            if (partition := filenames.partition_of(name)) is not None
        ]
        for log in (open_logs or _open_sequentially)(closed):
            if log is not None:
                directory._adopt(log)
        named = {partition for offsets in (recovery_points, directory.high_watermarks) for partition, offset in offsets.items() if offset}
        directory.vanished = frozenset(named - set(directory.logs))
        if not directory.clean_start or any(log.recovered is not None for log in directory.logs.values()):
            directory.write_checkpoints(kinds=("recovery_points", "log_starts"))
        for log in directory.logs.values():
            log.recorded_start = log.start_offset
        return directory

    def _clear(self, entries: Sequence[str]) -> None:
        """Removes unfinished deletions and temporary files, and lists the strays."""
        self._used_names = frozenset(name for name in entries if name.endswith((filenames.DELETE_DIRECTORY, filenames.STRAY_DIRECTORY)))
        for name in entries:
            if name.endswith(filenames.DELETE_DIRECTORY):
                self.disk.remove_tree(name)
            elif name.endswith(filenames.STRAY_DIRECTORY):
                if self.disk.exists(note := f"{name}/{filenames.STRAY_NOTE}"):
                    self.strays[name] = self.disk.mtime_ms(note)
            elif name.endswith(filenames.TEMPORARY):
                self.disk.unlink(name)

    def _adopt(self, log: Log) -> None:
        log.recovery_point_lowered = self._recovery_point_lowered
        log.rolled = self._rolled
        self.logs[log.partition] = log
        self._numbers.setdefault(log.partition.topic, {})[log.partition.partition] = None

    def create(
        self,
        partition: TopicPartition,
        topic_id: TopicId,
        options: TopicOptions,
        now_ms: int,
        high_watermark: int = 0,
        *,
        in_place_of_lost: bool = False,
    ) -> Log:
        """Creates an empty log. Its names become durable with its first flush plan, which is not None.

        ``in_place_of_lost``: a log with records is lost; the new log is durably marked when this returns.
        Raises: PartitionExists, OSError; after ENOSPC no file remains.
        """
        if partition in self.logs:
            raise PartitionExists(partition)
        if self.is_named(partition) and not self.write_checkpoints():
            raise OSError(ENOSPC, f"no room for the checkpoints of {self.root}")
        new = NewLog(partition, topic_id, options)
        new.carry_out(self.disk)
        log = self.add(new, now_ms, high_watermark)
        if in_place_of_lost:
            log.note_missing(0, sync=True)
            self.disk.sync_dir()
        return log

    def add(self, new: NewLog, now_ms: int, high_watermark: int = 0) -> Log:
        """Adds a log whose files were just created. Does no I/O. Its names become durable with its first flush plan."""
        assert new.partition not in self.logs, "a partition has one log in a directory"
        log = Log(self.disk, new.partition, new.name, new.topic_id, new.options)
        log.begin(now_ms)
        self._adopt(log)
        self.high_watermarks[new.partition] = Offset(high_watermark)
        return log

    def is_named(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint on disk may have an entry of this partition, which a new log must not inherit."""
        return partition in self._named

    def renew_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> list[tuple[str, bytes]]:
        """(path, content) of all checkpoints with entries of present logs only; the caller writes them before it creates a log."""
        files = self.checkpoint_files(high_watermarks)
        self._named = set(self.logs)
        return files

    def start_moved(self, partition: TopicPartition) -> None:
        """The start of a log is to be recorded: no checkpoint that is being made may have the one before."""
        self._outdated.add(partition)

    def checkpoints_refused(self, partitions: Iterable[TopicPartition]) -> None:
        """A full disk refused the renewed checkpoints, so they may still have entries of these partitions."""
        self._named.update(partitions)

    def set_siblings(self, siblings: Sequence[bytes], generation: int, now_ms: int) -> None:
        """Records all log directories of the broker, this one included, in meta.properties. Raises: OSError."""
        identity = replace(self.identity, siblings=tuple(siblings), generation=generation)
        if identity != self.identity:
            try:
                self.disk.replace_file(filenames.META_PROPERTIES, identity.file(now_ms))
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                return
            self.identity = identity

    def remove(self, partition: TopicPartition) -> str:
        """Removes a log and renames its directory; returns the path, which the caller removes when no fetch sends from it."""
        move = self.take_out(partition)
        move.carry_out(self.disk)
        return move.target

    def set_aside(self, partition: TopicPartition) -> str:
        """Removes a log and keeps its directory as a stray for the operator; returns the new name. Raises: OSError."""
        self.logs[partition].close()
        move = self.take_out(partition, stray=True)
        self.disk.rename(move.source, move.target)
        return move.target

    def expired_strays(self, before_ms: int) -> tuple[str, ...]:
        """Stray directories from before this wall time; the caller removes them."""
        expired = tuple(path for path, since_ms in self.strays.items() if since_ms < before_ms)
        for path in expired:
            del self.strays[path]
        return expired

    def take_out(self, partition: TopicPartition, *, stray: bool = False) -> LogMove:
        """Removes a log. Its directory stays until the caller performs the move. Does no I/O."""
        log = self.logs.pop(partition)
        self._outdated.add(partition)
        self._forget(partition)
        self.high_watermarks.pop(partition, None)
        self.scrubs.pop(partition, None)
        ending = filenames.STRAY_DIRECTORY if stray else filenames.DELETE_DIRECTORY
        path = ""
        while not path or path in self._used_names:
            self._removed += 1
            unique = blake2b(self.directory_id + log.topic_id + f"{partition}/{self._removed}".encode(), digest_size=16).hexdigest()
            path = filenames.delete_directory_name(partition, unique, ending=ending)
        return LogMove(partition, log.directory, path)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Partitions of a topic with a log in this directory."""
        return [TopicPartition(topic, number) for number in self._numbers.get(topic, ())]

    def _forget(self, partition: TopicPartition) -> None:
        numbers = self._numbers[partition.topic]
        del numbers[partition.partition]
        if not numbers:
            del self._numbers[partition.topic]

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int] | None = None, kinds: tuple[str, ...] = KINDS) -> bool:
        """Replaces the checkpoints of these kinds; waits for the device. ``high_watermarks`` replace the known ones.

        False when the disk is full; the old checkpoints stay valid. Raises: OSError.
        """
        for path, data in self.checkpoint_files(high_watermarks, kinds):
            try:
                self.disk.replace_file(path, data)
            except OSError as error:
                if error.errno != ENOSPC:
                    raise
                return False
        if kinds == KINDS:
            self._named = set(self.logs)
        return True

    def checkpoint_files(
        self, high_watermarks: Mapping[TopicPartition, int] | None = None, kinds: tuple[str, ...] = KINDS
    ) -> list[tuple[str, bytes]]:
        """(path, content) of the present checkpoints, for a caller that writes the files in a thread."""
        if high_watermarks is not None:
            self._note_high_watermarks(high_watermarks)
        self._named.update(self.logs)
        for log in self.logs.values():
            log.retry_missing_note()
        rows = ((kind, self._rows(kind, self.logs)) for kind in kinds)
        return [self._checkpoint(kind, found.values()) for kind, found in rows if self._has_checkpoint(kind, found)]

    def checkpoint_pieces(
        self, high_watermarks: Callable[[Iterable[TopicPartition]], Mapping[TopicPartition, int]], piece: int
    ) -> Iterator[tuple[str, bytes] | None]:
        """All checkpoints, as (path, content), with None after each ``piece`` logs: the caller does other work at every yield.

        The caller writes a file before it asks for the next piece, and has one iteration under way at most. Rows of logs that are
        truncated, removed or created meanwhile, or whose start is recorded, are read again at the end of their file: no file undoes one
        that was written meanwhile. ``high_watermarks`` returns the known ones of these partitions.
        """
        for kind in KINDS:
            self._outdated = set()
            rows: dict[TopicPartition, str] = {}
            left = list(self.logs)
            for start in range(0, len(left), piece):
                logs = self._present(left[start : start + piece])
                if kind == "high_watermarks":
                    self._note_high_watermarks(high_watermarks(logs))
                for log in logs.values():
                    log.retry_missing_note()
                rows.update(self._rows(kind, logs))
                yield None
            for partition in self._outdated:
                rows.pop(partition, None)
            renewed = self._present(self._outdated)
            rows.update(self._rows(kind, renewed))
            self._named.update(rows)
            if self._has_checkpoint(kind, rows):
                yield self._checkpoint(kind, rows.values())

    def _present(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Log]:
        return {partition: log for partition in partitions if (log := self.logs.get(partition)) is not None}

    def _note_high_watermarks(self, known: Mapping[TopicPartition, int]) -> None:
        self.high_watermarks.update({partition: Offset(offset) for partition, offset in known.items() if partition in self.logs})

    def _rows(self, kind: str, logs: Mapping[TopicPartition, Log]) -> dict[TopicPartition, str]:
        """The rows of these logs in a checkpoint."""
        values: Mapping[TopicPartition, int | str]
        match kind:
            case "recovery_points":
                values = {partition: log.checkpoint_offset for partition, log in logs.items()}
            case "log_starts":
                # Also when the first segment begins there: a crash can restore the dropped segments before it.
                values = {partition: log.start_offset for partition, log in logs.items() if log.start_offset > 0}
            case "high_watermarks":
                values = {partition: self.high_watermarks[partition] for partition in logs if partition in self.high_watermarks}
            case "cleaner_offsets":
                values = {partition: log.clean_checkpoint for partition, log in logs.items() if log.clean_checkpoint is not None}
            case _:
                marks = ((partition, self.scrubs[partition]) for partition in logs if partition in self.scrubs)
                values = {partition: f"{mark.offset} {mark.done_ms}" for partition, mark in marks}
        return {partition: f"{partition[0]} {partition[1]} {value}" for partition, value in values.items()}

    def _has_checkpoint(self, kind: str, rows: Collection[TopicPartition]) -> bool:
        """Whether there is a checkpoint of this kind: some begin with their first row."""
        if kind == "cleaner_offsets":
            self._cleans = self._cleans or bool(rows)
            return self._cleans
        return kind != "scrubs" or bool(self.scrubs)

    def _checkpoint(self, kind: str, rows: Iterable[str]) -> tuple[str, bytes]:
        return _CHECKPOINTS[kind], checkpoints.rows_file(rows, has_checksum=kind == "log_starts")

    def _rolled(self, log: LogState) -> None:
        self.on_rolled(log)

    def _recovery_point_lowered(self, log: LogState) -> None:
        log.unrecorded = True
        self._outdated.add(log.partition)
        self.lowered[log.partition] = log
        self.on_lowered()

    def lowered_changes(self) -> tuple[list[Log], list[tuple[str, bytes]]]:
        """Logs whose lowered recovery point is not recorded, and the checkpoints that record it; ``recorded`` follows.

        The clean offset is recorded too, or compaction would remove tombstones whose older records it never searched.
        """
        logs = [log for partition in self.lowered if (log := self.logs.get(partition)) is not None and log is self.lowered[partition]]
        self.lowered.clear()
        return logs, self.checkpoint_files(kinds=("recovery_points", "cleaner_offsets")) if logs else []

    def record_lowered(self) -> None:
        """Records lowered recovery points at once, for an owner without a thread. Waits for the device. Raises: OSError."""
        logs, files = self.lowered_changes()
        LogChanges(checkpoints=tuple(files), lowers=True).carry_out(self.disk)
        for log in logs:
            log.unrecorded = False

    def close(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        now_ms: int = 0,
        *,
        broker_epoch: int = -1,
        clean_since: int = -1,
        carry_out: Callable[[Sequence[FlushPlan]], None] | None = None,
    ) -> bool:
        """Closes cleanly: flushes all logs, then writes the marker. False: the disk failed or is full, and the next start recovers.

        ``carry_out`` performs the flush plans of all logs, for a caller that uses threads.
        """
        complete = self.failed is None
        if complete:
            plans: dict[TopicPartition, FlushPlan] = {}
            for log in self.logs.values():
                complete = _finish(log, plans) and complete
            (carry_out or self._carry_out)(list(plans.values()))
            for partition, plan in plans.items():
                self.logs[partition].flushed(plan.upto)
                complete = complete and not plan.postponed
        for log in self.logs.values():
            log.close()
        if complete and self.write_checkpoints(high_watermarks):
            marker = self.disk.open(filenames.CLEAN_SHUTDOWN, create=True)
            marker.append(checkpoints.clean_shutdown_file(broker_epoch, clean_since))
            marker.sync()
            marker.close()
            self.disk.sync_dir()
            return True
        return False

    def _carry_out(self, plans: Sequence[FlushPlan]) -> None:
        for plan in plans:
            plan.carry_out(self.disk)


def _finish(log: Log, plans: dict[TopicPartition, FlushPlan]) -> bool:
    """Completes the files of a log and adds its flush plan. False when the disk is full: the next start rebuilds the indexes."""
    written = not log.pending.unwritten or all(segment.finish() for segment in log.pending.unwritten)
    if log.active.is_open:
        written = log.active.finish() and written
        if log.active.has_transaction_index:
            for file in log.active.index_files():
                log.pending.file(file)
            # The file may be new, and the next start does not compare it with the log.
            log.pending.directory(log.directory)
    log.snapshot(lasting=False)
    plan = log.flush_plan()
    if plan is not None:
        plans[log.partition] = plan
    return written


def _open_sequentially(closed: Sequence[ClosedLog]) -> Iterable[Log | None]:
    return (log.open() for log in closed)


def _identity(disk: Disk, broker_id: int, cluster_id: str, directory_id: bytes | None, now_ms: int) -> MetaProperties:
    """Checks the owner in meta.properties; writes the file for a new directory. Raises: DirectoryRefused."""
    try:
        found = checkpoints.read_meta_properties(disk.read_file(filenames.META_PROPERTIES), disk.root)
    except FileNotFoundError:
        found = MetaProperties(None, None, None)
    if found.broker_id not in (None, broker_id):
        raise DirectoryRefused(f"{disk.root} belongs to broker {found.broker_id}, not to {broker_id}: check broker.id and log.dirs")
    if found.cluster_id not in (None, cluster_id):
        raise DirectoryRefused(f"{disk.root} belongs to cluster {found.cluster_id}, not to {cluster_id}: check log.dirs and the store")
    if directory_id is None:
        directory_id = blake2b(f"{cluster_id}/{broker_id}/{disk.root}/{now_ms}".encode(), digest_size=16).digest()
    identity = MetaProperties(cluster_id, broker_id, found.directory_id or directory_id, found.siblings, found.generation)
    if identity != found:
        disk.replace_file(filenames.META_PROPERTIES, identity.file(now_ms))
    return identity


def _read_offsets(disk: Disk, name: str) -> dict[TopicPartition, Offset]:
    """A checkpoint; empty when it is missing or malformed: every log is then recovered from its first segment."""
    try:
        return checkpoints.read_offsets(disk.read_file(name)) or {}
    except FileNotFoundError:
        return {}
