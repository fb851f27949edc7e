"""DescribeProducers, key 61: the producers a partition's leader remembers (KIP-664). Flexible in its only version, 0.

DescribeTopicPartitions has another `TopicRequest`: import it from its module.
"""

from ottla.wire.declare import Int16, Int32, Int64, Struct, message

__all__ = ["DescribeProducersRequest", "DescribeProducersResponse", "PartitionResponse", "ProducerState", "TopicResponse"]


class TopicRequest(Struct):
    """The partitions of one topic."""

    name: str = ""
    partition_indexes: list[Int32] = []


@message(key=61, since=0, until=0, flexible_since=0)
class DescribeProducersRequest(Struct):
    """Sent to the partitions' leader."""

    topics: list[TopicRequest] = []


class ProducerState(Struct):
    """The leader's state of one producer; the transaction start is -1 without an open transaction."""

    producer_id: Int64 = 0
    producer_epoch: Int32 = 0
    last_sequence: Int32 = -1
    last_timestamp: Int64 = -1
    coordinator_epoch: Int32 = 0
    current_txn_start_offset: Int64 = -1


class PartitionResponse(Struct):
    """The producers of one partition."""

    partition_index: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    active_producers: list[ProducerState] = []


class TopicResponse(Struct):
    """The answers for one topic."""

    name: str = ""
    partitions: list[PartitionResponse] = []


@message(key=61, since=0, until=0, flexible_since=0)
class DescribeProducersResponse(Struct):
    """One answer per partition of the request."""

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []
