"""Decides ConsumerGroupHeartbeat: a member joins, is alive, changes its subscription or owned partitions, or leaves.

A heartbeat without changes costs the same for groups of any size, writes nothing, and only restarts the session. The response has an
assignment if it changed, and if the request was full (a client sends a full request if its state is uncertain).

The heartbeat interval is ``heartbeat_interval_ms``, or ``unsettled_interval_ms`` while the member or the group changes, because a member
gets partitions only with a heartbeat. Source: KIP-848; Kafka always uses the former. Members of a large group get a shorter interval
once, derived from their id, so that members that joined together do not send heartbeats together for ever.

Differences from Kafka: a heartbeat to an unknown group gets UNKNOWN_MEMBER_ID, and every client joins again, not GROUP_ID_NOT_FOUND; a
member may rejoin under its id with epoch 0, unless it has partitions to revoke.
"""

from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import msgspec

from ottla.broker.groups.consumer import records as writes
from ottla.broker.groups.consumer.changes import GroupDecision, GroupSettings, StartTimer, Timer, advance, remove
from ottla.broker.groups.consumer.group import LEAVE_EPOCH, STATIC_LEAVE_EPOCH, ConsumerGroup, assignment_of
from ottla.broker.groups.consumer.reconciliation import NOTHING, STABLE, UNREVOKED_PARTITIONS, Assignment, ConsumerGroupMember, within
from ottla.broker.groups.consumer.topic_patterns import compiled
from ottla.broker.groups.group import GroupClient
from ottla.wire import errors
from ottla.wire.messages.consumer_group_heartbeat import (
    Assignment as AssignmentResponse,
)
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

#: Number of members that may send heartbeats at the same time.
TOGETHER_MAX = 20
#: The interval of an unchanged group is this share of the setting. A joining member waits until the last member has revoked, and then for
#: its own next heartbeat: with a shorter interval both fit into the configured one.
CALM_SHARE = 0.7


def check(request: ConsumerGroupHeartbeatRequest, version: int, assignors: Iterable[str]) -> None:
    """Validates a request. Raises: InvalidRequest, UnsupportedAssignor, InvalidRegularExpression."""
    epoch = request.member_epoch
    if not request.group_id.strip():
        raise errors.InvalidRequest("a group needs an id")
    for name, value in (("instance id", request.instance_id), ("rack id", request.rack_id)):
        if value is not None and not value.strip():
            raise errors.InvalidRequest(f"the {name} is empty")
    if not request.member_id.strip() and (epoch != 0 or version >= 1):
        raise errors.InvalidRequest("a member needs an id")
    if epoch < STATIC_LEAVE_EPOCH:
        raise errors.InvalidRequest(f"there is no member epoch {epoch}")
    if epoch == STATIC_LEAVE_EPOCH and request.instance_id is None:
        raise errors.InvalidRequest("only a static member, with an instance id, can leave for a while")
    if epoch == 0:
        if request.rebalance_timeout_ms == -1:
            raise errors.InvalidRequest("who joins needs a rebalance timeout")
        if request.topic_partitions is None or request.topic_partitions:
            raise errors.InvalidRequest("who joins owns no partitions")
        if not request.subscribed_topic_names and not request.subscribed_topic_regex:
            raise errors.InvalidRequest("who joins subscribes to something")
    if request.server_assignor is not None and request.server_assignor not in assignors:
        raise errors.UnsupportedAssignor(f"no assignor {request.server_assignor!r} here, but {', '.join(assignors)}")
    if request.subscribed_topic_regex:
        compiled(request.subscribed_topic_regex)


def heartbeat(
    group: ConsumerGroup,
    request: ConsumerGroupHeartbeatRequest,
    terms: GroupSettings,
    *,
    client: GroupClient,
    new_member_id: Callable[[], str],
) -> GroupDecision:
    """Decides a valid heartbeat; the group is new and empty if there was none.

    Raises: UnknownMemberId, FencedMemberEpoch, UnreleasedInstanceId, FencedInstanceId, GroupMaxSizeReached.
    """
    if request.member_epoch < 0:
        return leave(group, request, terms)
    member_id = request.member_id or new_member_id()
    if len(group.members) >= terms.members_max and member_id not in group.members:
        raise errors.GroupMaxSizeReached(f"group {group.group_id!r} has all of its {terms.members_max} members")
    decision = GroupDecision()
    owned = None if request.topic_partitions is None else assignment_of(request.topic_partitions)
    before, replaces = _member(group, request, member_id, owned, decision)
    after = _said(before, request, member_id, client)
    moved = advance(group, terms, decision, before=before, after=after, owned=owned, replaces=replaces, describes=client.describes)
    decision.arm.append(StartTimer(Timer.SESSION, member_id, terms.session_timeout_ms))
    if before is not None and before.classic is not None:
        decision.disarm += [(Timer.JOIN, member_id), (Timer.SYNC, member_id)]
    told_all = request.member_epoch == 0 or (
        request.rebalance_timeout_ms != -1 and request.topic_partitions is not None and _subscribes(request)
    )
    response = ConsumerGroupHeartbeatResponse(
        member_id=member_id,
        member_epoch=moved.epoch,
        heartbeat_interval_ms=_interval_ms(group, terms, moved),
    )
    if told_all or before is None or (moved is not before and moved.assigned != before.assigned):
        response.assignment = AssignmentResponse(
            topic_partitions=[
                TopicPartitions(topic_id=topic, partitions=sorted(partitions)) for topic, partitions in sorted(moved.assigned.items())
            ]
        )
    decision.response = response
    return decision


def leave(group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, terms: GroupSettings) -> GroupDecision:
    """A member leaves: permanently or, if static, until its session expires, keeping its partitions. Raises as ``heartbeat``."""
    member = group.find(request.member_id, request.instance_id)
    decision = GroupDecision(response=ConsumerGroupHeartbeatResponse(member_id=request.member_id, member_epoch=request.member_epoch))
    if request.member_epoch == LEAVE_EPOCH:
        remove(group, terms, decision, [member])
    else:
        decision.causes.append(("left for a while, as a static member,", member.member_id))
        away = msgspec.structs.replace(member, epoch=STATIC_LEAVE_EPOCH, revoking={})
        decision.records.append(writes.current_record(group.group_id, away))
        decision.disarm.append((Timer.REBALANCE, member.member_id))
    return decision


def _member(
    group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str, owned: Assignment | None, decision: GroupDecision
) -> tuple[ConsumerGroupMember | None, str | None]:
    """The present member, None for a new one, and the id that it replaces."""
    epoch = request.member_epoch
    if epoch > 0:
        member = group.find(member_id, request.instance_id)
        check_epoch(member, epoch, owned)
        return member, None
    there = group.static_member(request.instance_id)
    if there is not None:
        if there.classic is None and there.epoch != STATIC_LEAVE_EPOCH and there.member_id != member_id:
            raise errors.UnreleasedInstanceId(f"instance id {request.instance_id!r} is in use by member {there.member_id!r}")
        if there.member_id != member_id or there.epoch == STATIC_LEAVE_EPOCH:
            return replace_static(group, there, member_id, decision), there.member_id
    there = group.members.get(member_id)
    if there is not None and there.instance_id != request.instance_id:
        raise errors.UnknownMemberId(f"member {member_id!r} goes by instance id {there.instance_id!r}, not {request.instance_id!r}")
    if there is not None and there.state == UNREVOKED_PARTITIONS and there.classic is None:
        check_epoch(there, epoch, owned)
    return there, None


def replace_static(group: ConsumerGroup, there: ConsumerGroupMember, member_id: str, decision: GroupDecision) -> ConsumerGroupMember:
    """A static member rejoins under another id: its records move."""
    back = msgspec.structs.replace(there, member_id=member_id, epoch=0, previous_epoch=0)
    decision.records += writes.member_tombstones(group.group_id, there.member_id)
    decision.records.append(writes.member_record(group.group_id, back))
    decision.records.append(writes.target_record(group.group_id, member_id, group.targets.get(there.member_id, NOTHING)))
    decision.records.append(writes.current_record(group.group_id, back))
    decision.disarm += [(timer, there.member_id) for timer in Timer]
    return back


def check_epoch(member: ConsumerGroupMember, epoch: int, owned: Assignment | None) -> None:
    """Accepts the member's epoch, or the previous one if the response with the new one may be lost. Raises: FencedMemberEpoch."""
    late = epoch == member.previous_epoch and epoch < member.epoch and owned is not None and within(owned, member.assigned)
    if epoch != member.epoch and not late:
        raise errors.FencedMemberEpoch(
            f"member {member.member_id!r} is in epoch {member.epoch}, not {epoch}; it must give up its partitions and join again"
        )


def _said(
    before: ConsumerGroupMember | None, request: ConsumerGroupHeartbeatRequest, member_id: str, client: GroupClient
) -> ConsumerGroupMember:
    """The member with the changes of the request; the same object without changes."""
    member = before if before is not None else ConsumerGroupMember(member_id=member_id)
    said: dict[str, Any] = {}
    if request.instance_id is not None:
        said["instance_id"] = request.instance_id
    if request.rack_id is not None:
        said["rack_id"] = request.rack_id
    if request.rebalance_timeout_ms != -1:
        said["rebalance_timeout_ms"] = request.rebalance_timeout_ms
    if request.server_assignor is not None:
        said["assignor"] = request.server_assignor
    if request.subscribed_topic_names is not None:
        said["topics"] = frozenset(request.subscribed_topic_names)
    if request.subscribed_topic_regex is not None:
        said["pattern"] = request.subscribed_topic_regex or None
    said.update(client_id=client.client_id, client_host=client.host, classic=None)
    if all(getattr(member, name) == value for name, value in said.items()):
        return member
    return msgspec.structs.replace(member, **said)


def _subscribes(request: ConsumerGroupHeartbeatRequest) -> bool:
    return request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None


def _interval_ms(group: ConsumerGroup, terms: GroupSettings, member: ConsumerGroupMember) -> int:
    moving = member.state != STABLE or group.epoch > member.epoch or terms.now_ms < group.changed_ms + terms.heartbeat_interval_ms
    large = len(group.members) > TOGETHER_MAX
    calm_ms = int(terms.heartbeat_interval_ms * CALM_SHARE)
    interval_ms = min(terms.unsettled_interval_ms, calm_ms) if moving else calm_ms
    if not large or interval_ms < 2:
        return interval_ms
    # A member with its own time gets the whole interval, and so keeps that time.
    return interval_ms - (terms.now_ms - crc32(member.member_id.encode())) % (interval_ms // 2)
