"""Records of changes of a consumer group; see ``record_schemas`` for their meaning."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from ottla.broker.groups.consumer import record_schemas as records
from ottla.broker.groups.consumer.group import ConsumerGroup, Resolved, TopicSize
from ottla.broker.groups.consumer.reconciliation import Assignment, ConsumerGroupMember

#: Key and value; None is a tombstone.
Record: TypeAlias = tuple[msgspec.Struct, msgspec.Struct | None]


def epoch_record(group_id: str, epoch: int) -> Record:
    """The group epoch."""
    return records.ConsumerGroupMetadataKey(group_id=group_id), records.ConsumerGroupMetadataValue(epoch=epoch)


def topics_record(group_id: str, topics: Mapping[str, TopicSize]) -> Record:
    """Subscribed topics."""
    listed = [
        records.TopicMetadata(topic_id=size.topic_id, topic_name=name, num_partitions=size.partitions)
        for name, size in sorted(topics.items())
    ]
    return records.ConsumerGroupPartitionMetadataKey(group_id=group_id), records.ConsumerGroupPartitionMetadataValue(topics=listed)


def member_record(group_id: str, member: ConsumerGroupMember) -> Record:
    """Metadata of a member."""
    value = records.ConsumerGroupMemberMetadataValue(
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        server_assignor=member.assignor,
        classic_member_metadata=member.classic,
    )
    return records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member.member_id), value


def assignment_epoch_record(group_id: str, epoch: int) -> Record:
    """The epoch of the target assignment."""
    value = records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    """Target of a member."""
    value = records.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=listed(target))
    return records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def current_record(group_id: str, member: ConsumerGroupMember) -> Record:
    """Current assignment of a member."""
    value = records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=_with_epochs(member, member.assigned),
        partitions_pending_revocation=_with_epochs(member, member.revoking),
    )
    return records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value


def pattern_record(group_id: str, pattern: str, resolved: Resolved | None) -> Record:
    """Matches of a regular expression; None if it is not used any more."""
    key = records.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    if resolved is None:
        return key, None
    value = records.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return key, value


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """Deletes a member, in this order: its assignments before its metadata."""
    return [
        (records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: ConsumerGroup) -> list[Record]:
    """Deletes a group with all its members."""
    found: list[Record] = []
    for member_id in group.members:
        found += member_tombstones(group.group_id, member_id)
    found += [pattern_record(group.group_id, pattern, None) for pattern in group.resolved]
    found.append((records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None))
    found.append((records.ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None))
    found.append((records.ConsumerGroupMetadataKey(group_id=group.group_id), None))
    return found


def whole_group_records(group: ConsumerGroup) -> list[Record]:
    """All records of a group that was not read from records."""
    members = group.members.values()
    return [
        *(member_record(group.group_id, member) for member in members),
        epoch_record(group.group_id, group.epoch),
        *(target_record(group.group_id, member.member_id, group.targets.get(member.member_id, {})) for member in members),
        assignment_epoch_record(group.group_id, group.assignment_epoch),
        *(current_record(group.group_id, member) for member in members),
    ]


def _with_epochs(member: ConsumerGroupMember, assignment: Assignment) -> list[records.AssignedPartitions]:
    found = []
    for topic, partitions in sorted(assignment.items()):
        numbers, epochs = sorted(partitions), member.assignment_epochs.get(topic, {})
        told = [epochs.get(number, member.epoch) for number in numbers]
        found.append(records.AssignedPartitions(topic_id=topic, partitions=numbers, assignment_epochs=told))
    return found


def listed(assignment: Assignment) -> list[records.TopicPartitions]:
    """An assignment in record form, in a fixed order."""
    return [records.TopicPartitions(topic_id=topic, partitions=sorted(partitions)) for topic, partitions in sorted(assignment.items())]
