"""OffsetForLeaderEpoch, key 23: where a leader epoch ends, so that a reader can tell whether its log diverged.

| version | change |
|-|-|
| 2 | throttle time; the reader says which epoch it believes in (KIP-320) |
| 3 | consumers may ask; replica id -2 is one |
| 4 | flexible |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Int64, Since, Struct, message

__all__ = [
    "OffsetForLeaderEpochRequest",
    "OffsetForLeaderEpochResponse",
    "OffsetForLeaderPartition",
    "OffsetForLeaderTopic",
    "OffsetForLeaderTopicResult",
]


class OffsetForLeaderPartition(Struct):
    """The epoch to look up in one partition."""

    partition: Int32 = 0
    current_leader_epoch: Int32 = -1
    leader_epoch: Int32 = 0


class OffsetForLeaderTopic(Struct):
    """The partitions of one topic."""

    topic: str = ""
    partitions: list[OffsetForLeaderPartition] = []


@message(key=23, since=2, until=4, flexible_since=4)
class OffsetForLeaderEpochRequest(Struct):
    """Replica id -2 is a consumer, -1 a debugging tool."""

    replica_id: Annotated[Int32, Since(3), Ignorable] = -2
    topics: list[OffsetForLeaderTopic] = []


class EpochEndOffset(Struct):
    """The greatest epoch not above the requested one, and the offset after its last record; -1 and -1 if unknown."""

    error_code: Int16 = 0
    partition: Int32 = 0
    leader_epoch: Int32 = -1
    end_offset: Int64 = -1


class OffsetForLeaderTopicResult(Struct):
    """The answers for one topic."""

    topic: str = ""
    partitions: list[EpochEndOffset] = []


@message(key=23, since=2, until=4, flexible_since=4)
class OffsetForLeaderEpochResponse(Struct):
    """One answer per partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []
