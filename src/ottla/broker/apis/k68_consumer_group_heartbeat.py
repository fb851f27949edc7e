"""ConsumerGroupHeartbeat: membership and assignment in the consumer protocol.

Behaviour: epoch 0 joins, -1 leaves, -2 leaves temporarily (static members), other epochs keep the session alive. Errors:
FENCED_MEMBER_EPOCH 110 makes the member rejoin, UNRELEASED_INSTANCE_ID 111 if its instance id is in use, UNSUPPORTED_ASSIGNOR 112,
INVALID_REGULAR_EXPRESSION 128, UNKNOWN_MEMBER_ID for an unknown member. The first consumer member converts a classic group
(group.consumer.migration.policy). Version 1: regular expressions, and the client generates its member id.

Differences from Kafka: see ``groups/consumer/heartbeats.py``. Source: KIP-848, KIP-1082.
"""

from ottla.broker.apis.group_requests import client_of
from ottla.broker.events import RequestArrived
from ottla.broker.groups.consumer import heartbeats, service
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.metadata.features import GROUP_VERSION
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

TOPICS = REQUIREMENTS[68].parts["topics"]


@handles(ConsumerGroupHeartbeatRequest, (0, 1), refuse=whole_error(ConsumerGroupHeartbeatResponse))
def consumer_group_heartbeat(node: Node, call: RequestArrived[ConsumerGroupHeartbeatRequest]) -> ConsumerGroupHeartbeatResponse | Deferred:
    request = call.body
    if GROUP_VERSION not in node.context.image.levels:
        raise errors.UnsupportedVersion("group.version is 0 in this cluster, so groups have the classic protocol only")
    refused = node.context.refusals(call, TOPICS, dict.fromkeys(request.subscribed_topic_names or ()))
    if refused:
        raise next(iter(refused.values()))
    heartbeats.check(request, call.api_version, service.assignors(node.context.options))
    shard = node.groups.shard_of(request.group_id)
    response = service.heartbeat(shard.machine, request, client_of(node, call))
    return shard.answer(call, response, of=request.group_id)
