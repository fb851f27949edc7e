"""ConsumerGroupDescribe: epochs, members, assignments and targets.

A member's assignment includes partitions that it has not revoked yet, as in Kafka 4.3. Source: KIP-848.
"""

from ottla.broker.groups.consumer.changes import Topics
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.reconciliation import Assignment, ConsumerGroupMember
from ottla.wire.messages import consumer_group_describe as messages


def described(group: ConsumerGroup, topics: Topics, assignors: tuple[str, ...]) -> messages.DescribedGroup:
    """The description; ``assignors`` are the broker's. Deleted topics have no name and are omitted."""
    votes = group.assignors
    return messages.DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=max(assignors, key=lambda name: votes[name]),
        members=[_described(group, member, topics) for member in group.members.values()],
    )


def _described(group: ConsumerGroup, member: ConsumerGroupMember, topics: Topics) -> messages.Member:
    return messages.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_listed(owned(member), topics),
        target_assignment=_listed(group.targets.get(member.member_id, {}), topics),
        member_type=messages.CONSUMER_MEMBER if member.classic is None else messages.CLASSIC_MEMBER,
    )


def owned(member: ConsumerGroupMember) -> Assignment:
    """The member's partitions, including those to be revoked."""
    found = dict(member.assigned)
    for topic, partitions in member.revoking.items():
        found[topic] = found.get(topic, frozenset()) | partitions
    return found


def _listed(assignment: Assignment, topics: Topics) -> messages.Assignment:
    named = [(topics.name_of(topic), topic, sorted(partitions)) for topic, partitions in assignment.items()]
    return messages.Assignment(
        topic_partitions=[
            messages.TopicPartitions(topic_id=topic, topic_name=name, partitions=partitions)
            for name, topic, partitions in sorted(named, key=lambda each: each[0] or "")
            if name is not None
        ]
    )
