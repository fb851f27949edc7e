"""DescribeTopicPartitions, key 75: the partitions of topics, page by page (KIP-966). Flexible in its only version, 0.

DescribeProducers has another `TopicRequest`: import it from its module.
"""

from ottla.wire.declare import ZERO_UUID, Int16, Int32, Struct, Uuid, message
from ottla.wire.messages.metadata import NOT_REQUESTED

__all__ = [
    "Cursor",
    "DescribeTopicPartitionsRequest",
    "DescribeTopicPartitionsResponse",
    "DescribeTopicPartitionsResponsePartition",
    "DescribeTopicPartitionsResponseTopic",
]


class TopicRequest(Struct):
    """A topic to describe."""

    name: str = ""


class Cursor(Struct):
    """The first partition of the next page."""

    topic_name: str = ""
    partition_index: Int32 = 0


@message(key=75, since=0, until=0, flexible_since=0)
class DescribeTopicPartitionsRequest(Struct):
    """No topics: all of them, in the order of their names."""

    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


class DescribeTopicPartitionsResponsePartition(Struct):
    """One partition; leader -1 means that it has none now."""

    error_code: Int16 = 0
    partition_index: Int32 = 0
    leader_id: Int32 = 0
    leader_epoch: Int32 = -1
    replica_nodes: list[Int32] = []
    isr_nodes: list[Int32] = []
    eligible_leader_replicas: list[Int32] | None = None
    last_known_elr: list[Int32] | None = None
    offline_replicas: list[Int32] = []


class DescribeTopicPartitionsResponseTopic(Struct):
    """One topic, or the part of it that fits the page."""

    error_code: Int16 = 0
    name: str | None = ""
    topic_id: Uuid = ZERO_UUID
    is_internal: bool = False
    partitions: list[DescribeTopicPartitionsResponsePartition] = []
    topic_authorized_operations: Int32 = NOT_REQUESTED


@message(key=75, since=0, until=0, flexible_since=0)
class DescribeTopicPartitionsResponse(Struct):
    """One page; a null cursor marks the last."""

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None
