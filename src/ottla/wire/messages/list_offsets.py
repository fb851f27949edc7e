"""ListOffsets, key 2: which offset a time, or one of the special times, stands for.

| version | change |
|-|-|
| 1 | one offset with its timestamp instead of a list |
| 2 | isolation level |
| 4 | leader epochs (KIP-320) |
| 6 | flexible |
| 7 | timestamp -3: the record with the greatest timestamp (KIP-734) |
| 8 | timestamp -4: the earliest local offset (KIP-405) |
| 9 | timestamp -5: the last offset in tiered storage (KIP-1005) |
| 10 | a timeout for look-ups in tiered storage (KIP-1075) |
| 11 | timestamp -6: the earliest offset waiting to be uploaded (KIP-1023) |

Timestamp -1 is the end of the log, -2 its start.
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Int64, Since, Struct, message


class ListOffsetsPartition(Struct):
    """The time to look up in one partition, in ms, or a special one."""

    partition_index: Int32 = 0
    current_leader_epoch: Annotated[Int32, Since(4), Ignorable] = -1
    timestamp: Int64 = 0


class ListOffsetsTopic(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[ListOffsetsPartition] = []


@message(key=2, since=1, until=11, flexible_since=6)
class ListOffsetsRequest(Struct):
    """Replica id -1 is a consumer; isolation level 1 stops at the last stable offset."""

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Since(2)] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, Since(10), Ignorable] = 0


class ListOffsetsPartitionResponse(Struct):
    """The first record at or after the time; -1 and -1 when there is none."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Since(4)] = -1


class ListOffsetsTopicResponse(Struct):
    """The answers for one topic."""

    name: str = ""
    partitions: list[ListOffsetsPartitionResponse] = []


@message(key=2, since=1, until=11, flexible_since=6)
class ListOffsetsResponse(Struct):
    """One answer per partition of the request."""

    throttle_time_ms: Annotated[Int32, Since(2), Ignorable] = 0
    topics: list[ListOffsetsTopicResponse] = []
