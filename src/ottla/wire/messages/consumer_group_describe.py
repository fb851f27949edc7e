"""ConsumerGroupDescribe, key 69: groups of the new protocol, with their members.

| version | change |
|-|-|
| 1 | of what type a member is: a group may hold both while it moves to the new protocol (KIP-1099) |

Source: KIP-848.
"""

from typing import Annotated

import msgspec

from ottla.wire.declare import ZERO_UUID, Ignorable, Int8, Int16, Int32, Since, Struct, Uuid, message

__all__ = ["ConsumerGroupDescribeRequest", "ConsumerGroupDescribeResponse", "Member"]

#: Types of members.
UNKNOWN_MEMBER, CLASSIC_MEMBER, CONSUMER_MEMBER = -1, 0, 1


@message(key=69, since=0, until=1, flexible_since=0)
class ConsumerGroupDescribeRequest(Struct):
    """The ids of the groups."""

    group_ids: list[str] = []
    include_authorized_operations: bool = False


class TopicPartitions(Struct):
    """Partitions of one topic, by id and by name."""

    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    partitions: list[Int32] = []


class Assignment(Struct):
    """The assignment of a member."""

    topic_partitions: list[TopicPartitions] = []


class Member(Struct):
    """A member with its present and target assignment. Each has its own lists, because they can be changed."""

    member_id: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    member_epoch: Int32 = 0
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    assignment: Assignment = msgspec.field(default_factory=Assignment)
    target_assignment: Assignment = msgspec.field(default_factory=Assignment)
    member_type: Annotated[Int8, Since(1), Ignorable] = UNKNOWN_MEMBER


class DescribedGroup(Struct):
    """One group, or why not. Operations are a set of bits."""

    error_code: Int16 = 0
    error_message: str | None = None
    group_id: str = ""
    group_state: str = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: str = ""
    members: list[Member] = []
    authorized_operations: Int32 = -(2**31)


@message(key=69, since=0, until=1, flexible_since=0)
class ConsumerGroupDescribeResponse(Struct):
    """One answer per group of the request."""

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []
