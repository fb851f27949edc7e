"""A log directory: the partitions under one root, and the files that speak of all of them.

Opening one reads whose it is (meta.properties), whether it was left in order (.kafka_cleanshutdown, which is removed before anything
else is touched, so that a crash from now on is seen as one), where the logs began and how far they were on disk (the checkpoints), and
opens every log found. Closing one writes all that in the reverse order, the marker last.

meta.properties also names all directories that the broker served with (``settle``): one that is new, or one that is missing, may have had
logs that are not found now. A log that a checkpoint knows with records, and that is not there, has vanished.

A partition's directory that is to go is renamed first (``orders-3.<unique>-delete``); one found at a start is removed then. What is left of
a topic that is gone is kept for a while, under a name that ends in ``-stray``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from errno import ENOSPC
from hashlib import blake2b
from typing import Self

from ottla.base.ids import Offset, TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.log import checkpoints, filenames
from ottla.log.checkpoints import MetaProperties
from ottla.log.directory_changes import Move, NewLog
from ottla.log.errors import DirectoryRefused, PartitionExists
from ottla.log.flush import FlushPlan
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.log.recovery import ClosedLog

#: Opens logs; the result is in the order of the argument, with None for a file that is no partition's directory. Raises: OSError.
OpenLogs = Callable[[Sequence[ClosedLog]], Iterable[Log | None]]

#: Checkpoints by kind: what write_checkpoints writes when it is not told.
KINDS = ("recovery_points", "log_starts", "high_watermarks", "cleaner_offsets", "scrubs")


@dataclass(slots=True)
class ScrubMark:
    """How far the scrub of a log is."""

    #: Where the pass under way goes on; -1 while there is none.
    offset: int = -1
    #: Wall time at which the last pass ended, or from which on the next one is counted.
    done_ms: int = 0


class LogDirectory:
    """One log directory and its logs; made by ``open``."""

    def __init__(self, disk: Disk, identity: MetaProperties) -> None:
        self.disk = disk
        #: Path of the directory, which names it.
        self.root = disk.root
        self.logs: dict[TopicPartition, Log] = {}
        self.identity = identity
        #: Why the directory is no longer used; None while it is. Its owner sets it.
        self.failed: str | None = None
        #: Whether the last owner stopped in order.
        self.clean_start = False
        #: The broker epoch at that stop, and that since which every stop was one; -1 when unknown.
        self.last_broker_epoch = -1
        self.clean_since = -1
        #: By the checkpoints at open: partitions that had records here, of which there is no log.
        self.vanished: frozenset[TopicPartition] = frozenset()
        #: High watermarks as read at open, and as given to ``create``.
        self.high_watermarks: dict[TopicPartition, Offset] = {}
        #: Scrubs of the logs here, as of the scrub-checkpoint and since.
        self.scrubs: dict[TopicPartition, ScrubMark] = {}
        #: Directories of logs that were set aside for a while only, with the wall time at which they were.
        self.strays: dict[str, int] = {}
        self._removed = 0
        #: Numbers of the partitions in ``logs``, by topic.
        self._numbers: dict[str, dict[int, None]] = {}
        #: Names of directories on their way out, or set aside, that were found when the directory was opened.
        self._taken: frozenset[str] = frozenset()
        #: Partitions that a checkpoint on disk may name. A new log of such a name must not inherit what is said of the old one.
        self._named: set[TopicPartition] = set()
        #: Whether there is a checkpoint of the cleaner.
        self._cleans = False

    def __repr__(self) -> str:
        return f"LogDirectory({self.root}, {len(self.logs)} logs)"

    @property
    def broker_id(self) -> int:
        assert self.identity.broker_id is not None, "open() fills in who we are"
        return self.identity.broker_id

    @property
    def cluster_id(self) -> str:
        assert self.identity.cluster_id is not None, "open() fills in who we are"
        return self.identity.cluster_id

    @property
    def directory_id(self) -> bytes:
        """16 bytes that stay with the directory for its life. Source: KIP-858."""
        assert self.identity.directory_id is not None, "open() fills in who we are"
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
        """Opens the directory and every log in it, recovering those that need it.

        ``options_for`` gives the settings of a topic by its name; defaults without. ``directory_id`` is for a directory that has none.
        ``open_logs`` opens the logs in threads; without it they are opened one after the other.
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
            directory.scrubs = {partition: ScrubMark(*mark) for partition, mark in marks.items()}
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
        for log in (open_logs or _one_after_the_other)(closed):
            if log is not None:
                directory._adopt(log)
        named = {partition for offsets in (recovery_points, directory.high_watermarks) for partition, offset in offsets.items() if offset}
        directory.vanished = frozenset(named - set(directory.logs))
        if not directory.clean_start or any(log.recovered is not None for log in directory.logs.values()):
            directory.write_checkpoints(kinds=("recovery_points", "log_starts"))
        return directory

    def _clear(self, entries: Sequence[str]) -> None:
        """Removes what an earlier process left half done, and notes the logs that were set aside."""
        self._taken = frozenset(name for name in entries if name.endswith((filenames.DELETE_DIRECTORY, filenames.STRAY_DIRECTORY)))
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
        """A new, empty log. Its names become durable with its first flush plan, which is not None.

        ``in_place_of_lost``: there was one with records, which is gone; that is durably noted when this returns.
        Raises: PartitionExists, OSError; after ENOSPC nothing is left of it.
        """
        if partition in self.logs:
            raise PartitionExists(partition)
        if self.is_named(partition) and not self.write_checkpoints():
            raise OSError(ENOSPC, f"no room for the checkpoints of {self.root}")
        new = NewLog(partition, topic_id, options)
        new.carry_out(self.disk)
        log = self.add(new, now_ms, high_watermark)
        if in_place_of_lost:
            log.note_missing(0)
            self.disk.sync_dir()
        return log

    def add(self, new: NewLog, now_ms: int, high_watermark: int = 0) -> Log:
        """Takes in a log whose files were just created. Does no I/O. Its names become durable with its first flush plan."""
        assert new.partition not in self.logs, "a partition has one log in a directory"
        log = Log(self.disk, new.partition, new.name, new.topic_id, new.options)
        log.begin(now_ms)
        self._adopt(log)
        self.high_watermarks[new.partition] = Offset(high_watermark)
        return log

    def is_named(self, partition: TopicPartition) -> bool:
        """Whether a checkpoint on disk may name this partition. A new log of it must not inherit what is said of the old one."""
        return partition in self._named

    def renew_checkpoints(self, high_watermarks: Mapping[TopicPartition, int]) -> list[tuple[str, bytes]]:
        """(path, content) of all checkpoints, which name no partition but those of present logs; to be written before a log is created."""
        files = self.checkpoint_files(high_watermarks)
        self._named = set(self.logs)
        return files

    def checkpoints_refused(self, partitions: Iterable[TopicPartition]) -> None:
        """The disk was full: the checkpoints that were to be renewed may still name these."""
        self._named.update(partitions)

    def settle(self, siblings: Sequence[bytes], generation: int, now_ms: int) -> None:
        """With these directories, this one among them, the broker serves from now on. Raises: OSError."""
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
        """Takes a log out and renames its directory; the path, which the caller has removed when nobody sends from it any more."""
        move = self.take_out(partition)
        move.carry_out(self.disk)
        return move.target

    def set_aside(self, partition: TopicPartition) -> str:
        """Takes a log out and leaves it to an operator, under another name, which is returned. Raises: OSError."""
        self.logs[partition].close()
        move = self.take_out(partition, stray=True)
        self.disk.rename(move.source, move.target)
        return move.target

    def expired_strays(self, before_ms: int) -> tuple[str, ...]:
        """Directories that were set aside for a while, before this wall time; the caller has them removed."""
        expired = tuple(path for path, since_ms in self.strays.items() if since_ms < before_ms)
        for path in expired:
            del self.strays[path]
        return expired

    def take_out(self, partition: TopicPartition, *, stray: bool = False) -> Move:
        """Takes a log out. Its directory stays where it is until the caller has the move carried out. Does no I/O."""
        log = self.logs.pop(partition)
        self._forget(partition)
        self.high_watermarks.pop(partition, None)
        self.scrubs.pop(partition, None)
        ending = filenames.STRAY_DIRECTORY if stray else filenames.DELETE_DIRECTORY
        path = ""
        while not path or path in self._taken:
            self._removed += 1
            unique = blake2b(self.directory_id + log.topic_id + f"{partition}/{self._removed}".encode(), digest_size=16).hexdigest()
            path = filenames.delete_directory_name(partition, unique, ending=ending)
        return Move(partition, log.directory, path)

    def partitions_of(self, topic: str) -> list[TopicPartition]:
        """Partitions of a topic that have a log here."""
        return [TopicPartition(topic, number) for number in self._numbers.get(topic, ())]

    def _forget(self, partition: TopicPartition) -> None:
        numbers = self._numbers[partition.topic]
        del numbers[partition.partition]
        if not numbers:
            del self._numbers[partition.topic]

    def write_checkpoints(self, high_watermarks: Mapping[TopicPartition, int] | None = None, kinds: tuple[str, ...] = KINDS) -> bool:
        """Replaces the checkpoints of these kinds, waiting for the device. ``high_watermarks`` stand in for those known here.

        False when the disk had no room; the old ones are still true then. Raises: OSError.
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
        """(path, content) of the checkpoints as of now, for a caller that replaces the files off the loop."""
        if high_watermarks is not None:
            self.high_watermarks.update({p: Offset(offset) for p, offset in high_watermarks.items() if p in self.logs})
        self._named.update(self.logs)
        for log in self.logs.values():
            log.note_missing_again()
        files = []
        if "recovery_points" in kinds:
            offsets = {partition: log.checkpoint_offset for partition, log in self.logs.items()}
            files.append((filenames.RECOVERY_POINTS, checkpoints.offsets_file(offsets)))
        if "log_starts" in kinds:
            # Also where the first segment begins there: a crash can bring back the segments that were dropped before it.
            offsets = {partition: log.start_offset for partition, log in self.logs.items() if log.start_offset > 0}
            files.append((filenames.LOG_STARTS, checkpoints.offsets_file(offsets, has_checksum=True)))
        if "high_watermarks" in kinds:
            offsets = {partition: offset for partition, offset in self.high_watermarks.items() if partition in self.logs}
            files.append((filenames.HIGH_WATERMARKS, checkpoints.offsets_file(offsets)))
        if "scrubs" in kinds and self.scrubs:
            marks = {partition: (mark.offset, mark.done_ms) for partition, mark in self.scrubs.items() if partition in self.logs}
            files.append((filenames.SCRUBS, checkpoints.scrubs_file(marks)))
        if "cleaner_offsets" in kinds:
            offsets = {partition: log.clean_checkpoint for partition, log in self.logs.items() if log.clean_checkpoint is not None}
            if offsets or self._cleans:
                self._cleans = True
                files.append((filenames.CLEANER_OFFSETS, checkpoints.offsets_file(offsets)))
        return files

    def _recovery_point_lowered(self) -> None:
        """A log was truncated below its recorded recovery point: the record must not outlive this, or a crash would trust new bytes.

        Nor must the cleaner's: compaction would take tombstones for old ones whose keys it never looked for.
        """
        if not self.write_checkpoints(kinds=("recovery_points", "cleaner_offsets")):
            self.disk.unlink(filenames.RECOVERY_POINTS)
            self.disk.unlink(filenames.CLEANER_OFFSETS)
            self.disk.sync_dir()

    def close(
        self,
        high_watermarks: Mapping[TopicPartition, int] | None = None,
        now_ms: int = 0,
        *,
        broker_epoch: int = -1,
        clean_since: int = -1,
        carry_out: Callable[[Sequence[FlushPlan]], None] | None = None,
    ) -> bool:
        """Stops in order: everything on disk, then the marker. A directory that failed, or is full, is left as after a crash: False.

        ``carry_out`` does what all logs ask to have on disk, for a caller that does so in threads.
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
    """Completes the files of a log and adds what is to be synced. False when the disk has no room for its indexes: the next start must
    rebuild them."""
    written = not log.pending.unwritten or all(segment.finish() for segment in log.pending.unwritten)
    if log.active.is_open:
        written = log.active.finish() and written
        if log.active.aborted:
            for file in log.active.index_files():
                log.pending.file(file)
    log.snapshot(lasting=False)
    plan = log.flush_plan()
    if plan is not None:
        plans[log.partition] = plan
    return written


def _one_after_the_other(closed: Sequence[ClosedLog]) -> Iterable[Log | None]:
    return (log.open() for log in closed)


def _identity(disk: Disk, broker_id: int, cluster_id: str, directory_id: bytes | None, now_ms: int) -> MetaProperties:
    """Whose directory this is, written down if it was nobody's. Raises: DirectoryRefused."""
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
    """A checkpoint; empty when it is missing or malformed: every log then counts as starting at its first file and in doubt."""
    try:
        return checkpoints.read_offsets(disk.read_file(name)) or {}
    except FileNotFoundError:
        return {}
