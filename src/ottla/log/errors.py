"""Errors of a log; the broker answers each with a protocol error."""

from ottla.base.ids import Offset, TopicPartition


class LogError(Exception):
    """Base class. An OSError passes through separately and means that the disk failed."""


class OffsetOutOfRange(LogError):
    """The offset is below the start or above the end of the log."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside {start_offset}..{end_offset}")
        self.start_offset = Offset(start_offset)
        self.end_offset = Offset(end_offset)


class OutOfOrderSequence(LogError):
    """A batch neither follows the last one of its producer nor repeats one of the last five."""


class StaleProducerEpoch(LogError):
    """A newer instance of the producer has written to this partition."""


class StaleCoordinatorEpoch(LogError):
    """A newer transaction coordinator has ended a transaction of this producer in this partition."""


class InvalidTransactionState(LogError):
    """A batch outside of a transaction whose producer has an open one in this partition, or a batch of one that was not confirmed."""


class CorruptLog(LogError):
    """Bytes below the end of the log are not a valid record batch: the device changed them after they were written."""


class PartitionExists(LogError):
    """The log directory already holds this partition."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} already exists in this log directory")


class DirectoryRefused(LogError):
    """The directory belongs to another broker or cluster, or its meta.properties cannot be read."""
