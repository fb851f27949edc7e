"""Classic members in a consumer group, during an online migration.

JoinGroup takes the place of the heartbeat: it has the subscription and owned partitions, and returns the member's next epoch as generation.
SyncGroup returns the assignment. There is no leader, because the broker assigns: all members get follower responses. A member gets
REBALANCE_IN_PROGRESS when there is, or can be, a target of a later epoch, when it must revoke partitions, and when partitions that it
waited for are free; it then has its rebalance timeout to join, and again to sync.

A removed member that does not know it joins again as owner of partitions that other members may have by now. It gets UNKNOWN_MEMBER_ID, as
from a classic group, and clients then treat their partitions as lost. Difference from Kafka, which accepts it under its old id.

Source: KIP-848, "Supporting Online Consumer Group Upgrade".
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from ottla.broker.groups.consumer.changes import GroupDecision, GroupSettings, StartTimer, Timer, Topics, advance, may_assign, remove
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.consumer.heartbeats import replace_static
from ottla.broker.groups.consumer.reconciliation import UNRELEASED_PARTITIONS, UNREVOKED_PARTITIONS, Assignment, ConsumerGroupMember
from ottla.broker.groups.consumer.record_schemas import ClassicMemberMetadata, ClassicProtocol
from ottla.broker.groups.group import GroupClient
from ottla.wire import errors
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages.consumer_protocol import (
    PROTOCOL_TYPE,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    decode_subscription,
    encode_embedded,
)
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse
from ottla.wire.messages.leave_group import LeaveGroupResponse, MemberIdentity, MemberResponse
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse

#: From this JoinGroup version on, a new member first gets its id.
ID_REQUIRED_SINCE = 4


def join(
    group: ConsumerGroup,
    request: JoinGroupRequest,
    version: int,
    terms: GroupSettings,
    *,
    client: GroupClient,
    new_member_id: Callable[[], str],
) -> GroupDecision:
    """Decides a JoinGroup with a valid group id and session timeout.

    Raises: GroupMaxSizeReached, InconsistentGroupProtocol, UnknownMemberId, FencedInstanceId, MemberIdRequired (see its ``member_id``).
    """
    unknown = not request.member_id
    member_id = request.member_id or new_member_id()
    if len(group.members) >= terms.members_max and member_id not in group.members:
        raise errors.GroupMaxSizeReached(f"group {group.group_id!r} has all of its {terms.members_max} members")
    if not _supports(group, request):
        raise errors.InconsistentGroupProtocol(f"no protocol of member {member_id!r} is common to group {group.group_id!r}")
    if version >= ID_REQUIRED_SINCE and unknown and request.group_instance_id is None:
        answer = JoinGroupResponse(error_code=errors.MemberIdRequired.code, member_id=member_id, protocol_name=None if version >= 7 else "")
        return GroupDecision(response=answer)
    subscription = _subscription(request)
    decision = GroupDecision()
    before, replaces = _member(group, request, member_id, decision, unknown=unknown)
    owned = existing(subscription.owned_partitions, terms.topics)
    if before is None and owned and not unknown:
        raise errors.UnknownMemberId(f"member {member_id!r} owns partitions, but is not in group {group.group_id!r} any more")
    after = _said(before, request, subscription, member_id, client)
    moved = advance(group, terms, decision, before=before, after=after, owned=owned, replaces=replaces, describes=client.describes)
    decision.disarm += [(Timer.JOIN, member_id), (Timer.REBALANCE, member_id)]
    decision.arm.append(StartTimer(Timer.SESSION, member_id, request.session_timeout_ms))
    decision.arm.append(StartTimer(Timer.SYNC, member_id, moved.rebalance_timeout_ms))
    decision.response = JoinGroupResponse(
        member_id=member_id, generation_id=moved.epoch, protocol_type=PROTOCOL_TYPE, protocol_name=request.protocols[0].name
    )
    return decision


def sync(group: ConsumerGroup, request: SyncGroupRequest, terms: GroupSettings) -> GroupDecision:
    """Decides a SyncGroup: returns the assignment.

    Raises: UnknownMemberId, FencedInstanceId, IllegalGeneration, InconsistentGroupProtocol, RebalanceInProgress.
    """
    member, classic = _classic(group, request.member_id, request.group_instance_id, request.generation_id)
    protocol = classic.supported_protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or request.protocol_name not in (None, protocol.name):
        raise errors.InconsistentGroupProtocol(f"member {member.member_id!r} joined with protocol {protocol.name!r}")
    if group.assignment_epoch > member.epoch and member.state != UNREVOKED_PARTITIONS:
        raise errors.RebalanceInProgress(f"group {group.group_id!r} moved on to epoch {group.assignment_epoch}")
    response = SyncGroupResponse(
        protocol_type=request.protocol_type,
        protocol_name=request.protocol_name,
        assignment=embedded(member.assigned, terms.topics, protocol.metadata),
    )
    return GroupDecision(
        response=response,
        arm=[StartTimer(Timer.SESSION, member.member_id, classic.session_timeout_ms)],
        disarm=[(Timer.SYNC, member.member_id)],
    )


def beat(group: ConsumerGroup, request: HeartbeatRequest, terms: GroupSettings) -> GroupDecision:
    """Decides a Heartbeat: whether the member must rejoin. Raises: UnknownMemberId, FencedInstanceId, IllegalGeneration."""
    member, classic = _classic(group, request.member_id, request.group_instance_id, request.generation_id)
    decision = GroupDecision(response=HeartbeatResponse(), arm=[StartTimer(Timer.SESSION, member.member_id, classic.session_timeout_ms)])
    if (
        member.epoch < group.assignment_epoch
        or (group.assignment_epoch < group.epoch and may_assign(group, terms))
        or member.state == UNREVOKED_PARTITIONS
        or (member.state == UNRELEASED_PARTITIONS and not _waits(group, member))
    ):
        decision.response.error_code = errors.RebalanceInProgress.code
        decision.arm.append(StartTimer(Timer.JOIN, member.member_id, member.rebalance_timeout_ms, keep=True))
    return decision


def leave(group: ConsumerGroup, identities: Sequence[MemberIdentity], terms: GroupSettings) -> GroupDecision:
    """Decides a LeaveGroup of members of both protocols; operators remove members in the same way."""
    leaving: dict[str, ConsumerGroupMember] = {}
    answers = []
    for identity in identities:
        answer = MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id)
        try:
            there = group.static_member(identity.group_instance_id)
            named = identity.member_id or (there.member_id if there is not None else "")
            member = group.find(named, identity.group_instance_id)
            if member.member_id in leaving:
                raise errors.UnknownMemberId(f"member {named!r} is named twice")
            leaving[member.member_id] = member
            answer.member_id = member.member_id
        except errors.KafkaError as error:
            answer.error_code = error.code
        answers.append(answer)
    decision = GroupDecision(response=LeaveGroupResponse(members=answers))
    if leaving:
        remove(group, terms, decision, leaving.values())
    return decision


def embedded(assigned: Assignment, topics: Topics, subscription: bytes) -> bytes:
    """An assignment in the classic format, in the version of the member's subscription, without deleted topics."""
    named = [(topics.name_of(topic), sorted(partitions)) for topic, partitions in assigned.items()]
    listed = [TopicPartition(topic=name, partitions=partitions) for name, partitions in named if name is not None]
    version = max(0, min(3, int.from_bytes(subscription[:2], "big", signed=True)))
    return encode_embedded(ConsumerProtocolAssignment(assigned_partitions=sorted(listed, key=lambda each: each.topic)), version)


def _classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int
) -> tuple[ConsumerGroupMember, ClassicMemberMetadata]:
    member = group.find(member_id, instance_id)
    if member.classic is None:
        raise errors.UnknownMemberId(f"member {member_id!r} does not use the classic protocol")
    if generation != member.epoch:
        raise errors.IllegalGeneration(f"member {member_id!r} is in epoch {member.epoch}, not in generation {generation}")
    return member, member.classic


def _member(
    group: ConsumerGroup, request: JoinGroupRequest, member_id: str, decision: GroupDecision, *, unknown: bool
) -> tuple[ConsumerGroupMember | None, str | None]:
    """The present member, None for a new one, and the id that it replaces."""
    instance_id = request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id), None
    there = group.static_member(instance_id)
    if not unknown:
        return group.find(member_id, instance_id), None
    if there is None:
        return None, None
    return replace_static(group, there, member_id, decision), there.member_id


def _said(
    before: ConsumerGroupMember | None,
    request: JoinGroupRequest,
    subscription: ConsumerProtocolSubscription,
    member_id: str,
    client: GroupClient,
) -> ConsumerGroupMember:
    member = before if before is not None else ConsumerGroupMember(member_id=member_id)
    after = msgspec.structs.replace(
        member,
        instance_id=request.group_instance_id if request.group_instance_id is not None else member.instance_id,
        rack_id=subscription.rack_id if subscription.rack_id is not None else member.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else request.session_timeout_ms,
        topics=frozenset(subscription.topics),
        pattern=None,
        client_id=client.client_id,
        client_host=client.host,
        classic=ClassicMemberMetadata(
            session_timeout_ms=request.session_timeout_ms,
            supported_protocols=[ClassicProtocol(name=each.name, metadata=bytes(each.metadata)) for each in request.protocols],
        ),
    )
    return member if after == member else after


def _supports(group: ConsumerGroup, request: JoinGroupRequest) -> bool:
    """Whether the member supports a protocol that all classic members support."""
    if request.protocol_type != PROTOCOL_TYPE or not request.protocols:
        return False
    if not group.members:
        return True
    return any(group.classic_protocols[each.name] == group.classic_members for each in request.protocols)


def _subscription(request: JoinGroupRequest) -> ConsumerProtocolSubscription:
    try:
        return decode_subscription(request.protocols[0].metadata)
    except MalformedMessage as error:
        raise errors.InconsistentGroupProtocol(f"the subscription cannot be read: {error}") from None


def existing(partitions: Iterable[TopicPartition], topics: Topics) -> Assignment:
    """An assignment from the classic format, without deleted topics."""
    found = {}
    for each in partitions:
        size = topics.size(each.topic)
        if size is not None and each.partitions:
            found[size.topic_id] = frozenset(each.partitions)
    return found


def _waits(group: ConsumerGroup, member: ConsumerGroupMember) -> bool:
    """Whether other members still own part of the member's target."""
    for topic, wanted in group.targets.get(member.member_id, {}).items():
        for partition in wanted - member.assigned.get(topic, frozenset()):
            if group.owner(topic, partition) not in (None, member.member_id):
                return True
    return False
