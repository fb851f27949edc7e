"""ConsumerGroupDescribe: consumer groups with epochs, members, assignments and targets.

Behaviour: an unknown or classic group is GROUP_ID_NOT_FOUND. A member's assignment includes partitions that it has not revoked yet, as in
Kafka 4.4. Version 1 has the protocol of each member. Source: KIP-848, KIP-1099.
"""

from typing import Any

from ottla.broker.apis.group_requests import describe_each
from ottla.broker.coordinator import Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.consumer.changes import Topics
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.reconciliation import Assignment, ConsumerGroupMember
from ottla.broker.groups.consumer.service import ConsumerGroupService, assignors
from ottla.broker.groups.group import Group
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages import consumer_group_describe as messages
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedGroup

TOPICS = REQUIREMENTS[69].parts["topics"]


def refuse(call: RequestArrived[ConsumerGroupDescribeRequest], error: KafkaError) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_refused(group_id, error) for group_id in call.body.group_ids])


@handles(ConsumerGroupDescribeRequest, (0, 1), refuse=refuse, reads_groups=True)
def consumer_group_describe(node: Node, call: RequestArrived[ConsumerGroupDescribeRequest]) -> ConsumerGroupDescribeResponse | Deferred:
    def described(shard: Shard[Any], served: Group) -> DescribedGroup:
        found = _described(shard, served)
        assignments = (each for member in found.members for each in (member.assignment, member.target_assignment))
        names = {each.topic_name for assignment in assignments for each in assignment.topic_partitions}
        if node.context.refusals(call, TOPICS, sorted(names)):
            raise errors.TopicAuthorizationFailed("the group has topics that this client may not describe")
        return found

    return describe_each(node, call, call.body.group_ids, ConsumerGroupDescribeResponse(), described, _refused)


def _described(shard: Shard[Any], served: Group) -> DescribedGroup:
    """The description. Deleted topics have no name and are omitted."""
    if not isinstance(served, ConsumerGroupService):
        raise errors.GroupIdNotFound(f"group {served.group_id!r} is not a group of the new protocol")
    group, topics = served.group, shard.machine.topics
    votes = group.assignors
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=max(assignors(shard.options), key=lambda name: votes[name]),
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def _member(group: ConsumerGroup, member: ConsumerGroupMember, topics: Topics) -> messages.Member:
    return messages.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=sorted(member.topics),
        subscribed_topic_regex=member.pattern or "",
        assignment=_listed(_owned(member), topics),
        target_assignment=_listed(group.targets.get(member.member_id, {}), topics),
        member_type=messages.CONSUMER_MEMBER if member.classic is None else messages.CLASSIC_MEMBER,
    )


def _owned(member: ConsumerGroupMember) -> Assignment:
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


def _refused(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
