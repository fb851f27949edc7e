"""AlterPartitionReassignments, key 45: have partitions moved to other brokers, or cancel that (KIP-455).

| version | change |
|-|-|
| 1 | a request may insist on the replication factor that a partition has (KIP-860) |
"""

from typing import Annotated

from ottla.wire.declare import Ignorable, Int16, Int32, Since, Struct, message


class ReassignablePartition(Struct):
    """The new replicas, the preferred leader first; null cancels a reassignment in progress."""

    partition_index: Int32 = 0
    replicas: list[Int32] | None = None


class ReassignableTopic(Struct):
    """The partitions of one topic."""

    name: str = ""
    partitions: list[ReassignablePartition] = []


@message(key=45, since=0, until=1, flexible_since=0)
class AlterPartitionReassignmentsRequest(Struct):
    """Requested reassignments; answered when they have started, not when they are complete."""

    timeout_ms: Int32 = 60_000
    allow_replication_factor_change: Annotated[bool, Since(1)] = True
    topics: list[ReassignableTopic] = []


class ReassignablePartitionResponse(Struct):
    """Whether the move of one partition has begun."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


class ReassignableTopicResponse(Struct):
    """The answers for one topic."""

    name: str = ""
    partitions: list[ReassignablePartitionResponse] = []


@message(key=45, since=0, until=1, flexible_since=0)
class AlterPartitionReassignmentsResponse(Struct):
    """An error of the whole request, or one for each partition."""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[bool, Since(1), Ignorable] = True
    error_code: Int16 = 0
    error_message: str | None = None
    responses: list[ReassignableTopicResponse] = []
