"""ElectLeaders, key 43: have partitions led by their first replica again, or by whatever replica is left.

| version | change |
|-|-|
| 1 | the kind of election, and an error of the whole request (KIP-460) |
| 2 | flexible |

Source: KIP-183, KIP-460.
"""

from typing import Annotated

from ottla.wire.declare import Int8, Int16, Int32, Since, Struct, message


class ElectLeadersRequestTopicPartitions(Struct):
    """Partitions of one topic."""

    topic: str = ""
    partitions: list[Int32] = []


@message(key=43, since=0, until=2, flexible_since=2)
class ElectLeadersRequest(Struct):
    """Null partitions are all there are. Election type 0: the preferred replica; 1: any live one, where none in sync is left."""

    election_type: Annotated[Int8, Since(1)] = 0
    topic_partitions: list[ElectLeadersRequestTopicPartitions] | None = []
    timeout_ms: Int32 = 60000


class PartitionResult(Struct):
    """The result of one election."""

    partition_id: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None


class ReplicaElectionResult(Struct):
    """The elections of one topic."""

    topic: str = ""
    partition_result: list[PartitionResult] = []


@message(key=43, since=0, until=2, flexible_since=2)
class ElectLeadersResponse(Struct):
    """One result per requested partition; if all were requested, only for those with an election."""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Since(1)] = 0
    replica_election_results: list[ReplicaElectionResult] = []
