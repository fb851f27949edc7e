"""Heartbeat: a member is alive, and learns whether it must rejoin.

Behaviour: REBALANCE_IN_PROGRESS in PreparingRebalance, no error in CompletingRebalance and Stable, UNKNOWN_MEMBER_ID for other senders,
ILLEGAL_GENERATION for a member of another generation. While the group is being loaded its members are unknown, so there is no error.
"""

from ottla.broker.apis.group_requests import shard_of_members
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.wire.errors import CoordinatorLoadInProgress
from ottla.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse


@handles(HeartbeatRequest, (0, 4), refuse=whole_error(HeartbeatResponse))
def heartbeat(node: Node, call: RequestArrived[HeartbeatRequest]) -> HeartbeatResponse | Deferred:
    request = call.body
    try:
        shard = shard_of_members(node, request.group_id)
    except CoordinatorLoadInProgress:
        return HeartbeatResponse()
    shard.machine.heartbeat(request)
    return shard.answer(call, HeartbeatResponse(), of=request.group_id)
