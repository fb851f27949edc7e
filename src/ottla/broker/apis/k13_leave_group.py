"""LeaveGroup: members leave, and the group rebalances.

Behaviour: from version 3 on several members can be named with a response each, static ones also by instance id alone. Without the group
each member is unknown. Source: KIP-345, KIP-800.
"""

from ottla.broker.apis.group_requests import shard_of_members
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.wire.errors import UnknownMemberId
from ottla.wire.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity, MemberResponse

SEVERAL_SINCE = 3


@handles(LeaveGroupRequest, (0, 5), refuse=whole_error(LeaveGroupResponse))
def leave_group(node: Node, call: RequestArrived[LeaveGroupRequest]) -> LeaveGroupResponse | Deferred:
    request = call.body
    shard = shard_of_members(node, request.group_id)
    several = call.api_version >= SEVERAL_SINCE
    members = request.members if several else [MemberIdentity(member_id=request.member_id)]
    try:
        answers = shard.machine.leave(request.group_id, members)
    except UnknownMemberId as error:
        answers = [
            MemberResponse(member_id=member.member_id, group_instance_id=member.group_instance_id, error_code=error.code)
            for member in members
        ]
    response = LeaveGroupResponse(members=answers) if several else LeaveGroupResponse(error_code=answers[0].error_code)
    return shard.answer(call, response, of=request.group_id)
