"""TxnOffsetCommit, key 28: commits offsets of a group as part of a transaction. Sent to the group coordinator.

| version | change |
|-|-|
| 2 | the leader epoch of the offset (KIP-320) |
| 3 | flexible; the member and its generation, which the group coordinator checks (KIP-447) |
| 4 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 5 | the partition of the offsets is added to the transaction without AddOffsetsToTxn (KIP-890) |
| 6 | topics by id (KIP-1319) |
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, Since, Struct, Until, Uuid, message


class TxnOffsetCommitRequestPartition(Struct):
    """The offset of the next record to read, the leader epoch of the record before it (-1: unknown), and metadata of the client."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(2), Ignorable] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Struct):
    """One topic, by name or, since version 6, by id."""

    name: Annotated[str, Until(5), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    partitions: list[TxnOffsetCommitRequestPartition] = []


@message(key=28, since=0, until=6, flexible_since=3)
class TxnOffsetCommitRequest(Struct):
    """Generation -1 with an empty member id: from a client that is no member. For a consumer group it is the member epoch."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[str, Since(3)] = ""
    group_instance_id: Annotated[str | None, Since(3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Struct):
    """The error of one partition, or 0 if its offset is stored."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Struct):
    """The partitions of one topic."""

    name: Annotated[str, Until(5), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    partitions: list[TxnOffsetCommitResponsePartition] = []


@message(key=28, since=0, until=6, flexible_since=3)
class TxnOffsetCommitResponse(Struct):
    """There is no error for the whole response: an error of the group is repeated for each partition."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
