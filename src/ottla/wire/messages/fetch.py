"""Fetch, key 1: read record batches; for consumers and, with a replica id, for followers.

| version | change |
|-|-|
| 4 | isolation level, last stable offset, aborted transactions |
| 5 | log start offset |
| 7 | fetch sessions (KIP-227) |
| 9 | the leader epoch the reader believes in (KIP-320) |
| 10 | zstd may be answered (KIP-110) |
| 11 | rack, and a preferred replica to read from (KIP-392) |
| 12 | flexible; last fetched epoch, diverging epoch (KIP-595) |
| 13 | topics by id (KIP-516) |
| 14 | an offset in tiered storage has its own error (KIP-405) |
| 15 | the replica says its epoch, in a tagged field (KIP-903) |
| 16 | the response names the new leader (KIP-951) |
| 17 | the replica's directory (KIP-853) |
| 18 | the replica's high watermark (KIP-1166) |
"""

from typing import Annotated

from ottla.wire.declare import (
    ZERO_UUID,
    Ignorable,
    Int8,
    Int16,
    Int32,
    Int64,
    Records,
    SharedStruct,
    Since,
    Struct,
    Tag,
    Until,
    Uuid,
    message,
)
from ottla.wire.messages.leader_hints import LeaderIdAndEpoch, NodeEndpoint

__all__ = [
    "AbortedTransaction",
    "FetchPartition",
    "FetchRequest",
    "FetchResponse",
    "FetchTopic",
    "FetchableTopicResponse",
    "ForgottenTopic",
    "PartitionData",
    "ReplicaState",
    "SnapshotId",
]


class ReplicaState(SharedStruct, frozen=True):
    """The id and epoch of a follower; the id is -1 for a consumer."""

    replica_id: Int32 = -1
    replica_epoch: Int64 = -1


class FetchPartition(Struct):
    """From where, and how much at most, to read of one partition."""

    partition: Int32 = 0
    current_leader_epoch: Annotated[Int32, Since(9), Ignorable] = -1
    fetch_offset: Int64 = 0
    last_fetched_epoch: Annotated[Int32, Since(12)] = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    partition_max_bytes: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(17), Tag(0), Ignorable] = ZERO_UUID
    high_watermark: Annotated[Int64, Since(18), Tag(1), Ignorable] = 2**63 - 1


class FetchTopic(Struct):
    """One topic, by name or, from version 13 on, by id."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[FetchPartition] = []


class ForgottenTopic(Struct):
    """Partitions to take out of the fetch session."""

    topic: Annotated[str, Since(7), Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: Annotated[list[Int32], Since(7)] = []


@message(key=1, since=4, until=18, flexible_since=12)
class FetchRequest(Struct):
    """Wait until there are min_bytes to give, or max_wait_ms; session epoch -1 means without a session, 0 opens one."""

    cluster_id: Annotated[str | None, Since(12), Tag(0), Ignorable] = None
    replica_id: Annotated[Int32, Until(14)] = -1
    replica_state: Annotated[ReplicaState, Since(15), Tag(1)] = ReplicaState()
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Since(7), Ignorable] = 0
    session_epoch: Annotated[Int32, Since(7), Ignorable] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], Since(7)] = []
    rack_id: Annotated[str, Since(11), Ignorable] = ""


class EpochEndOffset(SharedStruct, frozen=True):
    """Where the last epoch that leader and follower share ends; the follower cuts its log there."""

    epoch: Int32 = -1
    end_offset: Int64 = -1


class SnapshotId(SharedStruct, frozen=True):
    """A snapshot to load instead of records; only KRaft's own log has them."""

    end_offset: Int64 = -1
    epoch: Int32 = -1


class AbortedTransaction(Struct):
    """Skip this producer's records from this offset to its abort marker."""

    producer_id: Int64 = 0
    first_offset: Int64 = 0


class PartitionData(Struct):
    """The batches read from one partition; aborted transactions are null for a reader of uncommitted records."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    high_watermark: Int64 = 0
    last_stable_offset: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    diverging_epoch: Annotated[EpochEndOffset, Since(12), Tag(0)] = EpochEndOffset()
    current_leader: Annotated[LeaderIdAndEpoch, Since(12), Tag(1)] = LeaderIdAndEpoch()
    snapshot_id: Annotated[SnapshotId, Since(12), Tag(2)] = SnapshotId()
    aborted_transactions: list[AbortedTransaction] | None = []
    preferred_read_replica: Annotated[Int32, Since(11)] = -1
    records: Records = None


class FetchableTopicResponse(Struct):
    """The answers for one topic."""

    topic: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partitions: list[PartitionData] = []


@message(key=1, since=4, until=18, flexible_since=12)
class FetchResponse(Struct):
    """In a session, partitions with nothing new are left out."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(7), Ignorable] = 0
    session_id: Annotated[Int32, Since(7)] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], Since(16), Tag(0)] = []
