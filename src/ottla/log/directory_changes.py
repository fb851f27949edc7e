"""Logs that come and go in a log directory: what a broker decides in a step, and what a thread does to the disk.

A step makes a ``NewLog`` or a ``Move`` without touching the disk. ``LogChanges.carry_out`` does the file work of many of them, off the
loop. What is decided and not carried out yet costs nothing when the process ends:

- A log that was to be created has no records. The next start creates it again. Files that a crash left of it are an empty log.
- A log that was to go is still there. The next start finds it under its old name and compares its topic id with the cluster's.

The name of a new log, and its topic id, become durable with the log's first flush.
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
    """An empty log to be created in the directory ``name``."""

    partition: TopicPartition
    topic_id: TopicId
    options: TopicOptions

    @property
    def name(self) -> str:
        return str(self.partition)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Names and contents of its files, as Kafka has them at the creation of a log."""
        for suffix in (filenames.LOG, filenames.OFFSET_INDEX, filenames.TIME_INDEX):
            yield filenames.segment_name(0, suffix), b""
        yield filenames.LEADER_EPOCHS, b""
        if self.options.compacts:
            yield filenames.HOLES, checkpoints.holes_file(0)
        yield filenames.PARTITION_METADATA, checkpoints.partition_metadata_file(self.topic_id)

    def carry_out(self, disk: Disk) -> None:
        """Creates the files. Raises: PartitionExists, OSError; after ENOSPC nothing is left of it."""
        if disk.exists(self.name):
            raise PartitionExists(self.partition)
        try:
            disk.create_files(self.name, tuple(self.files()))
        except OSError as error:
            if error.errno == ENOSPC:
                disk.remove_tree(self.name)
            raise


@dataclass(slots=True, eq=False)
class Move:
    """A log's directory that leaves under another name: to be removed, or, as a stray, to be kept for a while."""

    partition: TopicPartition
    source: str
    target: str

    @property
    def stray(self) -> bool:
        return self.target.endswith(filenames.STRAY_DIRECTORY)

    def carry_out(self, disk: Disk) -> None:
        """Renames the directory. A stray is marked as one that may be removed later, unless the disk is full. Raises: OSError."""
        disk.rename(self.source, self.target)
        if self.stray:
            try:
                disk.create_files(self.target, ((filenames.STRAY_NOTE, b""),))
            except OSError as error:
                if error.errno != ENOSPC:
                    raise


@dataclass(slots=True, eq=False)
class LogChanges:
    """One portion of file work in a log directory, in the order in which it is carried out."""

    moves: tuple[Move, ...] = ()
    #: Checkpoints to replace, where those on disk may say something of an earlier log of the same name as a new one.
    checkpoints: tuple[tuple[str, bytes], ...] = ()
    creations: tuple[NewLog, ...] = ()

    def carry_out(self, disk: Disk) -> tuple[TopicPartition, ...]:
        """Returns the partitions whose logs were not created because the disk is full. Waits for the device.

        Raises: PartitionExists; OSError, after which the directory is not to be trusted.
        """
        for move in self.moves:
            move.carry_out(disk)
        created = 0
        try:
            for path, data in self.checkpoints:
                disk.replace_file(path, data)
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
