"""Record schemas of consumer groups in ``__consumer_offsets``: keys 3 to 8 and 16, as in Kafka.

A key is its type (int16) and body. A value is a version (int16, 0 for all) and body; no value is a tombstone. A group has several keys, so
that frequent changes are small:

    3  group -> epoch                          increases with each change of members, subscriptions and topics
    4  group -> subscribed topics              ids and sizes, to detect changes
    5  group, member -> the member's metadata
    6  group -> epoch of the target assignment
    7  group, member -> target assignment
    8  group, member -> current assignment, and partitions to be revoked
    16 group, regular expression -> matching topics

Within one change the order of records matters for a reader that stops in between: a member's tombstones are 8, 7, 5. Source: KIP-848.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ottla.wire.declare import ZERO_UUID, Int8, Int32, Int64, Struct, Tag, Uuid, message


class TopicPartitions(Struct):
    """Partitions of one topic."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []


@message(since=3, until=3, flexible_since=None)
class ConsumerGroupMetadataKey(Struct):
    """Type 3."""

    group_id: str = ""


@message(until=0, flexible_since=0)
class ConsumerGroupMetadataValue(Struct):
    """The group epoch."""

    epoch: Int32 = 0


@message(since=4, until=4, flexible_since=None)
class ConsumerGroupPartitionMetadataKey(Struct):
    """Type 4."""

    group_id: str = ""


class PartitionMetadata(Struct):
    """Racks of a partition; not written since Kafka 4.0."""

    partition: Int32 = 0
    racks: list[str] = []


class TopicMetadata(Struct):
    """A subscribed topic as last seen."""

    topic_id: Uuid = ZERO_UUID
    topic_name: str = ""
    num_partitions: Int32 = 0
    partition_metadata: list[PartitionMetadata] = []


@message(until=0, flexible_since=0)
class ConsumerGroupPartitionMetadataValue(Struct):
    """Existing subscribed topics."""

    topics: list[TopicMetadata] = []


@message(since=5, until=5, flexible_since=None)
class ConsumerGroupMemberMetadataKey(Struct):
    """Type 5."""

    group_id: str = ""
    member_id: str = ""


class ClassicProtocol(Struct):
    """A protocol of a classic member."""

    name: str = ""
    metadata: bytes = b""


class ClassicMemberMetadata(Struct):
    """Further metadata of a classic member."""

    session_timeout_ms: Int32 = 0
    supported_protocols: list[ClassicProtocol] = []


@message(until=0, flexible_since=0)
class ConsumerGroupMemberMetadataValue(Struct):
    """Metadata of a member. Classic metadata is null for consumer members, and missing in records of Ottla 0.1."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    subscribed_topic_names: list[str] = []
    subscribed_topic_regex: str | None = None
    rebalance_timeout_ms: Int32 = -1
    server_assignor: str | None = None
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Tag(0, sends_null=True)] = None


@message(since=6, until=6, flexible_since=None)
class ConsumerGroupTargetAssignmentMetadataKey(Struct):
    """Type 6."""

    group_id: str = ""


@message(until=0, flexible_since=0)
class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    """The group epoch of the target assignment."""

    assignment_epoch: Int32 = 0


@message(since=7, until=7, flexible_since=None)
class ConsumerGroupTargetAssignmentMemberKey(Struct):
    """Type 7."""

    group_id: str = ""
    member_id: str = ""


@message(until=0, flexible_since=0)
class ConsumerGroupTargetAssignmentMemberValue(Struct):
    """Target partitions of a member."""

    topic_partitions: list[TopicPartitions] = []


@message(since=8, until=8, flexible_since=None)
class ConsumerGroupCurrentMemberAssignmentKey(Struct):
    """Type 8."""

    group_id: str = ""
    member_id: str = ""


class AssignedPartitions(Struct):
    """Partitions of one topic with their assignment epochs, which are null in records of Kafka before KIP-1251."""

    topic_id: Uuid = ZERO_UUID
    partitions: list[Int32] = []
    assignment_epochs: Annotated[list[Int32] | None, Tag(0)] = None


@message(until=0, flexible_since=0)
class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    """Current assignment of a member; states are those of ``reconciliation``."""

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[AssignedPartitions] = []
    partitions_pending_revocation: list[AssignedPartitions] = []


@message(since=16, until=16, flexible_since=None)
class ConsumerGroupRegularExpressionKey(Struct):
    """Type 16."""

    group_id: str = ""
    regular_expression: str = ""


@message(until=0, flexible_since=0)
class ConsumerGroupRegularExpressionValue(Struct):
    """Matching topics, with the topics' version and time."""

    topics: list[str] = []
    version: Int64 = 0
    timestamp: Int64 = 0


#: Keys of all of these records.
CONSUMER_KEYS: tuple[type[msgspec.Struct], ...] = (
    ConsumerGroupMetadataKey,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupRegularExpressionKey,
)
