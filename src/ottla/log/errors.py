"""What a log refuses, in its own words; the broker answers each with a protocol error."""

from ottla.base.ids import Offset, TopicPartition


class LogError(Exception):
    """Base of all refusals. An OSError is never one of them: it passes through and means that the disk failed."""


class OffsetOutOfRange(LogError):
    """The offset lies below the start or above the end of the log."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        super().__init__(f"offset {offset} is outside {start_offset}..{end_offset}")
        self.start_offset = Offset(start_offset)
        self.end_offset = Offset(end_offset)


class OutOfOrderSequence(LogError):
    """A batch does not follow the last one of its producer, and repeats none of the last five."""


class StaleProducerEpoch(LogError):
    """A newer instance of the producer has written to this partition."""


class StaleCoordinatorEpoch(LogError):
    """A newer transaction coordinator has ended a transaction of this producer here."""


class InvalidTransactionState(LogError):
    """A batch outside any transaction came while its producer has one open here."""


class CorruptLog(LogError):
    """Bytes below the end of the log are no record batch. They were whole when they were written: the medium has changed them."""


class PartitionExists(LogError):
    """The log directory already holds this partition."""

    def __init__(self, partition: TopicPartition) -> None:
        super().__init__(f"{partition} already exists in this log directory")


class DirectoryRefused(LogError):
    """The directory belongs to another broker or cluster, or its meta.properties cannot be read."""
