"""ConsumerGroupHeartbeat, key 68: membership and assignment in the consumer protocol.

| version | change |
|-|-|
| 1 | a subscription by regular expression; the client makes the member's id (KIP-848, KIP-1082) |

What has not changed since the last heartbeat is null, or -1.
"""

from typing import Annotated

from ottla.wire.declare import ZERO_UUID, Int16, Int32, Since, Struct, Uuid, message

__all__ = ["ConsumerGroupHeartbeatRequest", "ConsumerGroupHeartbeatResponse"]


class TopicPartitions(Struct):
    """Partitions of one topic; the same in request and response."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message(key=68, since=0, until=1, flexible_since=0)
class ConsumerGroupHeartbeatRequest(Struct):
    """Member epoch 0 joins, -1 leaves, -2 leaves for a while as a static member. Topic partitions are those the member owns."""

    group_id: str = ""
    member_id: str = ""
    member_epoch: Int32 = 0
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[str] | None = None
    subscribed_topic_regex: Annotated[str | None, Since(1)] = None
    server_assignor: str | None = None
    topic_partitions: list[TopicPartitions] | None = None


class Assignment(Struct):
    """The partitions the member may read from now on."""

    topic_partitions: list[TopicPartitions] = []


@message(key=68, since=0, until=1, flexible_since=0)
class ConsumerGroupHeartbeatResponse(Struct):
    """The epoch the member has now, when to come back, and its assignment if that is to change."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    member_id: str | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
