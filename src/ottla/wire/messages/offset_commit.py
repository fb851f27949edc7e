"""OffsetCommit, key 8: store how far a group has read.

| version | change |
|-|-|
| 3 | throttle time |
| 5 | no retention time: the broker's setting alone counts (KIP-211) |
| 6 | the leader epoch of the offset (KIP-320) |
| 7 | static members name themselves (KIP-345) |
| 8 | flexible |
| 9 | members of the new group protocol say their epoch; GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH may be answered (KIP-848) |
| 10 | topics by id (KIP-848) |
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, Since, Struct, Until, Uuid, message


class OffsetCommitRequestPartition(Struct):
    """The offset of the next record to read, the leader epoch of the record before it (-1: unknown), and metadata of the client."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(6), Ignorable] = -1
    committed_metadata: str | None = ""


class OffsetCommitRequestTopic(Struct):
    """One topic, by name or, from version 10 on, by id."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partitions: list[OffsetCommitRequestPartition] = []


@message(key=8, since=2, until=10, flexible_since=8)
class OffsetCommitRequest(Struct):
    """Generation -1 with an empty member id: from no member, for a group that has none."""

    group_id: str = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(7)] = None
    retention_time_ms: Annotated[Int64, Until(4), Ignorable] = -1
    topics: list[OffsetCommitRequestTopic] = []


class OffsetCommitResponsePartition(Struct):
    """One offset stored, or why not."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class OffsetCommitResponseTopic(Struct):
    """The answers for one topic."""

    name: Annotated[str, Until(9), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(10), Ignorable] = ZERO_UUID
    partitions: list[OffsetCommitResponsePartition] = []


@message(key=8, since=2, until=10, flexible_since=8)
class OffsetCommitResponse(Struct):
    """There is no error for the whole response: an error of the group is repeated for every partition."""

    throttle_time_ms: Annotated[Int32, Since(3), Ignorable] = 0
    topics: list[OffsetCommitResponseTopic] = []
