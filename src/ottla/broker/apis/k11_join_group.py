"""JoinGroup: join a group or start a rebalance; answered at the end of the join phase.

Behaviour: a dynamic member without an id gets one with MEMBER_ID_REQUIRED from version 4 on, and joins at once before. The leader's
response lists all members with their metadata, the others' none. Session timeouts outside group.min.session.timeout.ms to
group.max.session.timeout.ms are refused. Before version 1 the session timeout is the rebalance timeout.

Source: KIP-62, KIP-345, KIP-394, KIP-814.
"""

from ottla.broker.apis.group_requests import client_of, shard_of_members
from ottla.broker.events import RequestArrived
from ottla.broker.groups.classic.responses import join_refused
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupResponse

REBALANCE_TIMEOUT_SINCE = 1
#: Characters of a reason that are kept. Source: Kafka's clients send at most 255 (KIP-800).
REASON_CHARS_MAX = 255


def refuse(call: RequestArrived[JoinGroupRequest], error: KafkaError) -> JoinGroupResponse:
    return join_refused(call.api_version, error, call.body.member_id)


@handles(JoinGroupRequest, (0, 9), refuse=refuse)
def join_group(node: Node, call: RequestArrived[JoinGroupRequest]) -> JoinGroupResponse | Deferred:
    request = call.body
    shard = shard_of_members(node, request.group_id)
    shortest, longest = node.context.options.group_min_session_timeout_ms, node.context.options.group_max_session_timeout_ms
    if not shortest <= request.session_timeout_ms <= longest:
        raise errors.InvalidSessionTimeout(f"a session timeout is {shortest} to {longest} ms, not {request.session_timeout_ms}")
    if call.api_version < REBALANCE_TIMEOUT_SINCE:
        request.rebalance_timeout_ms = request.session_timeout_ms
    # For the log; the request is in memory while it waits.
    request.reason = (request.reason or "")[:REASON_CHARS_MAX]
    client = client_of(node, call)
    return shard.later(call, lambda reply: shard.machine.join(request, client, reply), of=request.group_id)
