"""Responses of a classic group to its members, its description, and its record.

Response pacing: responses to all members of a large group are sent a few at a time, so that other clients are not delayed.

Members that get their responses together send their next requests together: SyncGroup, and then every heartbeat. Five hundred requests at
once keep the event loop busy for some fifty milliseconds. So the responses at the end of a join or sync phase are sent at a low rate, the
leader's first, and the members' later requests keep that distance::

    all at once   ▉▉▉▉▉▉▉▉▉▉                     ▉▉▉▉▉▉▉▉▉▉
    paced         ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂           ▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂▂

Groups of usual size are answered at once. A later response has the state of the end of the phase; a member that is overtaken by another
rebalance learns of it with its next request.

Difference from Kafka, which answers all at once.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from ottla.broker.coordinator import Reply, Shard
from ottla.broker.groups.classic.members import GroupMember, GroupMembers, Sessions
from ottla.broker.groups.classic.states import GroupState
from ottla.broker.groups.group import CONSUMER_PROTOCOL
from ottla.broker.groups.records import GroupMetadataValue
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError
from ottla.wire.messages.consumer_protocol import decode_subscription
from ottla.wire.messages.describe_groups import DescribedGroup, DescribedGroupMember
from ottla.wire.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from ottla.wire.messages.sync_group import SyncGroupResponse

NULL_PROTOCOL_SINCE = 7
#: These responses and the requests that follow take one or two milliseconds. They are sent at each tick of delayed operations: 1,000 a
#: second.
PORTION = 10


class Generation(Protocol):
    """A classic group in its present generation."""

    group_id: str
    state: GroupState
    generation: int
    protocol_type: str | None
    protocol: str | None
    leader: str | None
    members: GroupMembers


def joined(group: Generation, member: GroupMember, *, leader: str | None = None, skip_assignment: bool = False) -> JoinGroupResponse:
    """JoinGroup response; the leader's lists all members. ``leader`` differs from the group's for a member that must not assign."""
    leader = leader or group.leader or ""
    members = [
        JoinGroupResponseMember(member_id=each.member_id, group_instance_id=each.instance_id, metadata=each.metadata(group.protocol))
        for each in (group.members if member.member_id == leader else ())
    ]
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=leader,
        skip_assignment=skip_assignment,
        member_id=member.member_id,
        members=members,
    )


def join_refused(version: int, error: KafkaError, member_id: str) -> JoinGroupResponse:
    """JoinGroup error. Before version 7 the protocol name cannot be null."""
    name = None if version >= NULL_PROTOCOL_SINCE else ""
    return JoinGroupResponse(error_code=error.code, member_id=member_id, protocol_name=name)


def given(group: Generation, member: GroupMember) -> SyncGroupResponse:
    """SyncGroup response with the member's assignment."""
    return SyncGroupResponse(protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment)


def described(group: Generation) -> DescribedGroup:
    """DescribeGroups entry; metadata and assignments only while the group is stable."""
    stable = group.state is GroupState.STABLE
    members = [
        DescribedGroupMember(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client.client_id,
            client_host=member.client.host,
            member_metadata=member.metadata(group.protocol) if stable else b"",
            member_assignment=member.assignment if stable else b"",
        )
        for member in group.members
    ]
    return DescribedGroup(
        group_id=group.group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol or "") if stable else "",
        members=members,
    )


def generation_record(group: Generation, assignments: dict[str, bytes], *, generation: int, wall_ms: int) -> GroupMetadataValue:
    """The record of a generation."""
    members = [member.record(group.protocol, assignments[member.member_id]) for member in group.members]
    return GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=generation,
        protocol=group.protocol if members else None,
        leader=group.leader if members else None,
        current_state_timestamp=wall_ms,
        members=members,
    )


def topics_read(group: Generation) -> set[str] | None:
    """Topics that members subscribe to; None if unknown, because they are not consumers or cannot be parsed."""
    if group.protocol_type is None:
        return None
    if not group.members:
        return set()
    if group.protocol_type != CONSUMER_PROTOCOL or group.protocol is None:
        return None
    try:
        said = [decode_subscription(member.metadata(group.protocol)) for member in group.members]
    except MalformedMessage:
        return None
    return {topic for subscription in said for topic in subscription.topics}


def answer_joins(group: Generation, shard: Shard[Any]) -> None:
    """Answers every waiting JoinGroup with the new generation."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.joining is not None:
            answers.insert(0 if member.member_id == group.leader else len(answers), (member.joining, joined(group, member)))
            group.members.await_join(member, None)
    answer_paced(shard, answers)


def answer_syncs(group: Generation, sessions: Sessions, shard: Shard[Any]) -> None:
    """Answers every waiting SyncGroup with its assignment."""
    answers: list[tuple[Reply, Any]] = []
    for member in group.members:
        if member.syncing is not None:
            answers.append((member.syncing, given(group, member)))
            member.syncing = None
            sessions.alive(member)
    answer_paced(shard, answers)


def answer_paced(shard: Shard[Any], answers: Sequence[tuple[Reply, Any]]) -> None:
    """Sends these responses, the first ones at once. Those left when the shard ends are refused with it."""
    for reply, message in answers[:PORTION]:
        reply.give(message)
    if rest := answers[PORTION:]:
        shard.after(1, lambda: answer_paced(shard, rest))
