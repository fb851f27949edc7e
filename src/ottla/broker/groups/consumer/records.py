"""The records that say each change of a group of the new protocol; see ``consumer_records`` for what they mean."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from ottla.broker.groups.consumer import record_schemas as records
from ottla.broker.groups.consumer.group import ConsumerGroup, Resolved, TopicSize
from ottla.broker.groups.consumer.reconciliation import Assignment, Member

#: A key and its value; None is a tombstone.
Record: TypeAlias = tuple[msgspec.Struct, msgspec.Struct | None]


def epoch_record(group_id: str, epoch: int) -> Record:
    """The group's epoch is now this."""
    return records.ConsumerGroupMetadataKey(group_id=group_id), records.ConsumerGroupMetadataValue(epoch=epoch)


def topics_record(group_id: str, topics: Mapping[str, TopicSize]) -> Record:
    """The topics subscribed to are now these."""
    listed = [
        records.TopicMetadata(topic_id=size.topic_id, topic_name=name, num_partitions=size.partitions)
        for name, size in sorted(topics.items())
    ]
    return records.ConsumerGroupPartitionMetadataKey(group_id=group_id), records.ConsumerGroupPartitionMetadataValue(topics=listed)


def member_record(group_id: str, member: Member) -> Record:
    """What the member says of itself."""
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
    """The target is that of this epoch of the group."""
    value = records.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=epoch)
    return records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id), value


def target_record(group_id: str, member_id: str, target: Assignment) -> Record:
    """What the member shall read."""
    value = records.ConsumerGroupTargetAssignmentMemberValue(topic_partitions=listed(target))
    return records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), value


def current_record(group_id: str, member: Member) -> Record:
    """How far the member has come."""
    value = records.ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=member.epoch,
        previous_member_epoch=member.previous_epoch,
        state=member.state,
        assigned_partitions=listed(member.assigned),
        partitions_pending_revocation=listed(member.revoking),
    )
    return records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member.member_id), value


def pattern_record(group_id: str, pattern: str, resolved: Resolved | None) -> Record:
    """What the regular expression stands for; None: nobody uses it any more."""
    key = records.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    if resolved is None:
        return key, None
    value = records.ConsumerGroupRegularExpressionValue(
        topics=sorted(resolved.topics), version=resolved.version, timestamp=resolved.timestamp_ms
    )
    return key, value


def member_tombstones(group_id: str, member_id: str) -> list[Record]:
    """The member is gone. The order matters: what it holds goes before it does."""
    return [
        (records.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id), None),
        (records.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id), None),
    ]


def group_tombstones(group: ConsumerGroup) -> list[Record]:
    """The group is gone, with all its members."""
    found: list[Record] = []
    for member_id in group.members:
        found += member_tombstones(group.group_id, member_id)
    found += [pattern_record(group.group_id, pattern, None) for pattern in group.resolved]
    found.append((records.ConsumerGroupTargetAssignmentMetadataKey(group_id=group.group_id), None))
    found.append((records.ConsumerGroupPartitionMetadataKey(group_id=group.group_id), None))
    found.append((records.ConsumerGroupMetadataKey(group_id=group.group_id), None))
    return found


def whole_group_records(group: ConsumerGroup) -> list[Record]:
    """All that makes up a group, for one that was not read from records."""
    members = group.members.values()
    return [
        *(member_record(group.group_id, member) for member in members),
        epoch_record(group.group_id, group.epoch),
        *(target_record(group.group_id, member.member_id, group.targets.get(member.member_id, {})) for member in members),
        assignment_epoch_record(group.group_id, group.assignment_epoch),
        *(current_record(group.group_id, member) for member in members),
    ]


def listed(assignment: Assignment) -> list[records.TopicPartitions]:
    """An assignment as records hold it, in a fixed order."""
    return [records.TopicPartitions(topic_id=topic, partitions=sorted(partitions)) for topic, partitions in _ordered(assignment.items())]


def _ordered(items: Iterable[tuple[bytes, frozenset[int]]]) -> list[tuple[bytes, frozenset[int]]]:
    return sorted(items)
