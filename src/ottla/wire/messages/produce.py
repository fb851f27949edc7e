"""Produce, key 0: append record batches to partitions.

| version | change |
|-|-|
| 3 | transactional id; batches of format 2 |
| 5 | log start offset in the response |
| 7 | zstd may be used (KIP-110) |
| 8 | which records failed, and why (KIP-467) |
| 9 | flexible |
| 10 | the response names the new leader (KIP-951) |
| 11, 12 | a transaction may be answered as abortable; from 12 on, produce adds the partition to it (KIP-890) |
| 13 | topics by id (KIP-516) |

Kafka 4 advertises version 0 as well, for old librdkafka, and refuses 0 to 2. A request with acks=0 is not answered at all.
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Ignorable, Int16, Int32, Int64, Records, Since, Struct, Tag, Until, Uuid, message
from ottla.wire.messages.leader_hints import LeaderIdAndEpoch, NodeEndpoint


class PartitionProduceData(Struct):
    """The data for one partition: exactly one record batch."""

    index: Int32 = 0
    records: Records = None


class TopicProduceData(Struct):
    """One topic, by name or, from version 13 on, by id."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_data: list[PartitionProduceData] = []


@message(key=0, since=3, until=13, flexible_since=9)
class ProduceRequest(Struct):
    """Batches for any number of partitions; acks is 0, 1 or -1 (every in-sync replica)."""

    transactional_id: str | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


class BatchIndexAndErrorMessage(Struct):
    """One record that was refused, by its position in the batch."""

    batch_index: Int32 = 0
    batch_index_error_message: str | None = None


class PartitionProduceResponse(Struct):
    """Where the batch was put, or why it was not."""

    index: Int32 = 0
    error_code: Int16 = 0
    base_offset: Int64 = 0
    log_append_time_ms: Int64 = -1
    log_start_offset: Annotated[Int64, Since(5), Ignorable] = -1
    record_errors: Annotated[list[BatchIndexAndErrorMessage], Since(8), Ignorable] = []
    error_message: Annotated[str | None, Since(8), Ignorable] = None
    current_leader: Annotated[LeaderIdAndEpoch, Since(10), Tag(0)] = LeaderIdAndEpoch()


class TopicProduceResponse(Struct):
    """The answers for one topic."""

    name: Annotated[str, Until(12), Ignorable] = ""
    topic_id: Annotated[Uuid, Since(13), Ignorable] = ZERO_UUID
    partition_responses: list[PartitionProduceResponse] = []


@message(key=0, since=3, until=13, flexible_since=9)
class ProduceResponse(Struct):
    """One answer per partition of the request."""

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], Since(10), Tag(0)] = []
