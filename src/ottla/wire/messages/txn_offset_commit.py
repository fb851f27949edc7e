"""TxnOffsetCommit, key 28: offsets that a transaction commits for a group.

| version | what is new |
|-|-|
| 2 | the leader epoch of the offset (KIP-320) |
| 3 | flexible; the group member says who it is (KIP-447) |
| 4 | TRANSACTION_ABORTABLE may be answered (KIP-890) |
| 5 | the group coordinator adds the group to the transaction; AddOffsetsToTxn is not needed (KIP-890) |
| 6 | topics by id (KIP-1319); not in Kafka 4.3 and not advertised |
"""

from __future__ import annotations

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, Since, Struct, Until, Uuid, message


class TxnOffsetCommitRequestPartition(Struct):
    """As in OffsetCommit."""

    partition_index: Int32 = 0
    committed_offset: Int64 = 0
    committed_leader_epoch: Annotated[Int32, Since(2), Ignorable] = -1
    committed_metadata: str | None = ""


class TxnOffsetCommitRequestTopic(Struct):
    """One topic, by name or, from version 6 on, by id."""

    name: Annotated[str, Until(5), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    partitions: list[TxnOffsetCommitRequestPartition] = []


@message(key=28, since=0, until=6, stable_until=5, flexible_since=3)
class TxnOffsetCommitRequest(Struct):
    """Sent to the group coordinator. ``generation_id`` is a member epoch in the consumer protocol; -1: from no member."""

    transactional_id: str = ""
    group_id: str = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, Since(3)] = -1
    member_id: Annotated[str, Since(3)] = ""
    group_instance_id: Annotated[str | None, Since(3)] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


class TxnOffsetCommitResponsePartition(Struct):
    """One offset stored, or why not."""

    partition_index: Int32 = 0
    error_code: Int16 = 0


class TxnOffsetCommitResponseTopic(Struct):
    """The results for one topic."""

    name: Annotated[str, Until(5), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(6), Ignorable] = ZERO_UUID
    partitions: list[TxnOffsetCommitResponsePartition] = []


@message(key=28, since=0, until=6, stable_until=5, flexible_since=3)
class TxnOffsetCommitResponse(Struct):
    """A result per partition. The offsets are pending until the transaction ends."""

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []
