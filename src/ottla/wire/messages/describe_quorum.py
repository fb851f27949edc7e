"""DescribeQuorum, key 55: the replicas of the metadata log of a cluster that has one (KIP-595).

| version | change |
|-|-|
| 1 | when each replica last fetched, and last caught up (KIP-836) |
| 2 | messages beside errors, directory ids, the nodes' addresses (KIP-853) |
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, Since, Struct, UInt16, Uuid, message


class DescribeQuorumRequestPartition(Struct):
    """One partition of a metadata log."""

    partition_index: Int32 = 0


class DescribeQuorumRequestTopic(Struct):
    """One metadata log."""

    topic_name: str = ""
    partitions: list[DescribeQuorumRequestPartition] = []


@message(key=55, since=0, until=2, flexible_since=0)
class DescribeQuorumRequest(Struct):
    """Which metadata logs to describe."""

    topics: list[DescribeQuorumRequestTopic] = []


class QuorumReplicaState(Struct):
    """How far a voter or an observer is; times are the leader's, -1 where they are not known."""

    replica_id: Int32 = 0
    replica_directory_id: Annotated[Uuid, Since(2)] = ZERO_UUID
    log_end_offset: Int64 = 0
    last_fetch_timestamp: Annotated[Int64, Since(1), Ignorable] = -1
    last_caught_up_timestamp: Annotated[Int64, Since(1), Ignorable] = -1


class DescribeQuorumResponsePartition(Struct):
    """Leader, voters and observers of a metadata log."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: Annotated[str | None, Since(2), Ignorable] = None
    leader_id: Int32 = 0
    leader_epoch: Int32 = 0
    high_watermark: Int64 = 0
    current_voters: list[QuorumReplicaState] = []
    observers: list[QuorumReplicaState] = []


class DescribeQuorumResponseTopic(Struct):
    """One metadata log."""

    topic_name: str = ""
    partitions: list[DescribeQuorumResponsePartition] = []


class QuorumListener(Struct):
    """Where a node of the quorum listens."""

    name: str = ""
    host: str = ""
    port: UInt16 = 0


class QuorumNode(Struct):
    """A node of the quorum."""

    node_id: Int32 = 0
    listeners: list[QuorumListener] = []


@message(key=55, since=0, until=2, flexible_since=0)
class DescribeQuorumResponse(Struct):
    """An error of the whole request, or the requested metadata logs."""

    error_code: Int16 = 0
    error_message: Annotated[str | None, Since(2), Ignorable] = None
    topics: list[DescribeQuorumResponseTopic] = []
    nodes: Annotated[list[QuorumNode], Since(2)] = []
