"""The replicas on this broker, as other machines see them; ``partitions.py`` implements it."""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.log.directory import LogDirectory
from ottla.wire.errors import KafkaError

#: Key of delayed operations that depend on which brokers are alive.
BROKERS = "brokers"


class Replicas(Protocol):
    """Replicas by partition, and what follows from file operations on their logs."""

    #: Partitions led here with a working log directory.
    leaders: dict[TopicPartition, Leader]
    #: Partitions followed, or without a leader, with a working log directory.
    followers: dict[TopicPartition, Follower]
    #: Partitions whose log directory failed, with the reason.
    offline: dict[TopicPartition, str]
    #: Partitions that may need a flush.
    dirty: dict[TopicPartition, Leader | Follower]

    @property
    def registered(self) -> bool:
        """Whether the store's state is at least as new as anything an earlier process acted on."""

    def replica(self, partition: TopicPartition) -> Leader | Follower | None:
        """The replica of a partition, if its log directory works."""

    def replicas(self) -> Iterator[Leader | Follower]:
        """All partitions on working log directories."""

    def hosted(self) -> Iterator[tuple[LogDirectory, TopicPartition]]:
        """All logs on working directories."""

    def high_watermarks(self, directory: LogDirectory, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Known high watermarks of these partitions, or of all, for the checkpoint of a directory."""

    def wrote(self, leader: Leader) -> None:
        """A batch was appended: a flush or writeback may be due."""

    def dropped(self, leader: Leader | Follower, paths: tuple[str, ...]) -> None:
        """The log start advanced; the files are removed when no fetch sends from them any more."""

    def set_aside(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Stops serving a log and keeps its files for a while."""

    def created(self, partition: TopicPartition) -> None:
        """The log of a partition was created."""

    def truncation_recorded(self, partition: TopicPartition) -> None:
        """The lowered recovery point of a log is on disk."""

    def record_start(self, replica: Leader | Follower) -> None:
        """Records a log start that moved, so that a crash cannot bring deleted records back."""

    def start_recorded(self, partition: TopicPartition) -> None:
        """The start of a log is recorded, or the disk is full."""

    def refused(self, partition: TopicPartition, reason: str, *, full: bool) -> None:
        """No directory accepted the log of a partition."""

    def guarded(self, directory: LogDirectory) -> AbstractContextManager[None]:
        """File work in a log directory; an OSError takes its partitions offline."""

    def append_failed(self, leader: Leader | Follower, error: OSError) -> KafkaError:
        """The error for a failed append: a full disk is not a broken one; all other errors are."""

    def directory_failed(self, root: str, reason: str) -> None:
        """Takes a directory's partitions offline; without any directory left, the broker stops."""
