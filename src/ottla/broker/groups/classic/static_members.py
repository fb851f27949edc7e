"""Rejoin of a static member, which has its instance id but lost its member id.

It gets a new member id and keeps its place. Requests with the old id are fenced. In a stable group with an unchanged protocol no rebalance
is needed: the assignment is written for the new id. A leader must not assign again: from JoinGroup 9 on the response says so; before, it
names the former leader id. Source: KIP-345, KIP-814.
"""

from typing import TYPE_CHECKING

from ottla.broker.coordinator import Reply
from ottla.broker.groups.classic.members import Member, Protocols
from ottla.broker.groups.classic.responses import join_refused, joined
from ottla.broker.groups.classic.states import GroupState
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.join_group import JoinGroupRequest

if TYPE_CHECKING:
    from ottla.broker.groups.classic.group import ClassicGroup

SKIP_ASSIGNMENT_SINCE = 9


def come_back(group: "ClassicGroup", member: Member, member_id: str, request: JoinGroupRequest, protocols: Protocols, reply: Reply) -> None:
    """Rejoins a static member. Raises: KafkaError if the new id could not be written; the old one stays valid then."""
    former, leader = member.member_id, group.leader
    fenced = errors.FencedInstanceId(f"{member.instance_id!r} has come back as another member")
    if member.joining is not None:
        member.joining.give(join_refused(member.joining.version, fenced, former))
        group.members.await_join(member, None)
    group.answer_sync(member, fenced)
    before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    group.rename(member, member_id)
    group.update(member, request, protocols, None)
    group.sessions.alive(member)
    if group.state is not GroupState.STABLE or group.members.elected_protocol() != group.protocol:
        group.members.await_join(member, reply)
        group.rebalance()
        return
    try:
        group.write_generation({each.member_id: each.assignment for each in group.members})
    except KafkaError:
        group.members.set_protocols(member, before[0])
        member.rebalance_timeout_ms, member.session_timeout_ms = before[1:]
        group.rename(member, former)
        raise
    if reply.version >= SKIP_ASSIGNMENT_SINCE:
        reply.give(joined(group, member, skip_assignment=group.leader == member_id))
    else:
        reply.give(joined(group, member, leader=leader))
