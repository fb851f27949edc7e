"""Creation and removal of logs in a log directory: decided in a step of the broker, performed in a thread.

A step makes a ``NewLog`` or a ``LogMove`` without I/O. ``LogChanges.carry_out`` performs many of them off the loop. If the process ends
before that, nothing is lost:

- A log to create has no records. The next start creates it again. Files that a crash left of it are an empty log.
- A log to remove still exists. The next start finds it under its old name and compares its topic id with the cluster's.

The name and topic id of a new log become durable with its first flush.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOSPC

from ottla.base.ids import TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.log import checkpoints, filenames
from ottla.log.errors import PartitionExists
from ottla.log.options import TopicOptions


@dataclass(slots=True, eq=False)
class NewLog:
    """An empty log to create in the directory ``name``."""

    partition: TopicPartition
    topic_id: TopicId
    options: TopicOptions

    @property
    def name(self) -> str:
        return str(self.partition)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of its files, as in a new log of Kafka."""
        for suffix in (filenames.LOG, filenames.OFFSET_INDEX, filenames.TIME_INDEX):
            yield filenames.segment_name(0, suffix), b""
        yield filenames.LEADER_EPOCHS, b""
        if self.options.compacts:
            yield filenames.HOLES, checkpoints.holes_file(0)
        yield filenames.PARTITION_METADATA, checkpoints.partition_metadata_file(self.topic_id)

    def carry_out(self, disk: Disk) -> None:
        """Creates the files. Raises: PartitionExists, OSError; after ENOSPC no file remains."""
        if disk.exists(self.name):
            raise PartitionExists(self.partition)
        try:
            disk.create_files(self.name, tuple(self.files()))
        except OSError as error:
            if error.errno == ENOSPC:
                disk.remove_tree(self.name)
            raise


@dataclass(slots=True, eq=False)
class LogMove:
    """Renaming of a log's directory, before its removal or to keep it as a stray."""

    partition: TopicPartition
    source: str
    target: str

    @property
    def stray(self) -> bool:
        return self.target.endswith(filenames.STRAY_DIRECTORY)

    def carry_out(self, disk: Disk) -> None:
        """Renames the directory. Marks a stray as expiring, unless the disk is full. Raises: OSError."""
        disk.rename(self.source, self.target)
        if self.stray:
            try:
                disk.create_files(self.target, ((filenames.STRAY_NOTE, b""),))
            except OSError as error:
                if error.errno != ENOSPC:
                    raise


@dataclass(slots=True, eq=False)
class LogChanges:
    """File changes in a log directory, in the order in which they are performed."""

    moves: tuple[LogMove, ...] = ()
    #: Checkpoints to replace when those on disk may have an entry of an earlier log with the name of a new one, or lack a new log start.
    checkpoints: tuple[tuple[str, bytes], ...] = ()
    creations: tuple[NewLog, ...] = ()
    #: Whether the checkpoints lower recovery points. Old ones must not stay then, even if the disk is full.
    lowers: bool = False
    #: Set by ``carry_out``: the checkpoints are on disk. False when the disk is full.
    recorded: bool = False

    def carry_out(self, disk: Disk) -> tuple[TopicPartition, ...]:
        """Returns the partitions whose logs were not created because the disk is full. Waits for the device.

        Raises: PartitionExists; OSError, after which the log directory is no longer used.
        """
        for move in self.moves:
            move.carry_out(disk)
        created = 0
        try:
            self._replace_checkpoints(disk)
            for new in self.creations:
                new.carry_out(disk)
                created += 1
        except OSError as error:
            if error.errno != ENOSPC:
                raise
        for move in self.moves:
            if not move.stray:
                disk.remove_tree(move.target)
        return tuple(new.partition for new in self.creations[created:])

    def _replace_checkpoints(self, disk: Disk) -> None:
        try:
            for path, data in self.checkpoints:
                disk.replace_file(path, data)
            self.recorded = True
        except OSError as error:
            if error.errno == ENOSPC and self.lowers:
                disk.unlink(filenames.RECOVERY_POINTS)
                disk.unlink(filenames.CLEANER_OFFSETS)
                disk.sync_dir()
            raise
