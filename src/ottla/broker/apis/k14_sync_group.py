"""SyncGroup: the leader sends the assignment, and every member gets its part; answered when the leader's assignment is written.

Behaviour: only the leader's assignment counts; a member that it omits gets an empty one. A stable group answers at once. From version 5 on
the request has the protocol, and is refused if it is not the group's. Source: KIP-559.
"""

from ottla.broker.apis.group_requests import shard_of_members
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupResponse


@handles(SyncGroupRequest, (0, 5), refuse=whole_error(SyncGroupResponse))
def sync_group(node: Node, call: RequestArrived[SyncGroupRequest]) -> SyncGroupResponse | Deferred:
    request = call.body
    shard = shard_of_members(node, request.group_id)
    return shard.later(call, lambda reply: shard.machine.sync(request, reply), of=request.group_id)
