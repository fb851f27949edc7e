"""Memory limits of the classic protocol; see ``memory_limits.py``. Both checks run before any change."""

from typing import TYPE_CHECKING

from ottla.broker.groups.classic.members import Protocols, said_bytes
from ottla.broker.groups.group import Client
from ottla.broker.groups.memory_limits import check_growth, check_member
from ottla.wire.messages.join_group import JoinGroupRequest

if TYPE_CHECKING:
    from ottla.broker.groups.classic.group import ClassicGroup
    from ottla.broker.groups.groups import Groups


def check_join(group: "ClassicGroup", groups: "Groups", request: JoinGroupRequest, client: Client, protocols: Protocols) -> None:
    """Checks a JoinGroup of a new or existing member. Raises: InvalidRequest, GroupMaxSizeReached."""
    size = said_bytes(request.member_id, request.group_instance_id, client, protocols)
    check_member(groups, group.group_id, size)
    known = group.members.by_instance.get(request.group_instance_id or "", request.member_id)
    member = group.members.by_id.get(known)
    before = 0 if member is None else member.size_bytes - len(member.assignment)
    check_growth(groups, group.group_id, group.footprint.bytes, size - before)


def check_assignment(group: "ClassicGroup", groups: "Groups", assigned: dict[str, bytes]) -> None:
    """Checks the leader's SyncGroup, by member id. Raises: InvalidRequest, GroupMaxSizeReached."""
    growth = 0
    for member in group.members:
        more = len(assigned.get(member.member_id, b"")) - len(member.assignment)
        if more > 0:
            check_member(groups, group.group_id, member.size_bytes + more)
        growth += more
    check_growth(groups, group.group_id, group.footprint.bytes, growth)
