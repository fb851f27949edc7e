"""ConsumerGroupDescribe: consumer groups with epochs, members, assignments and targets.

Behaviour: an unknown or classic group is GROUP_ID_NOT_FOUND. Version 1 has the protocol of each member. Source: KIP-848, KIP-1099.
"""

from ottla.broker.apis.authorized_operations import GROUP_OPERATIONS
from ottla.broker.apis.group_requests import check_answer
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.consumer.describe import described
from ottla.broker.groups.consumer.service import ConsumerGroupService, assignors
from ottla.broker.groups.groups import Groups
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.consumer_group_describe import ConsumerGroupDescribeRequest, ConsumerGroupDescribeResponse, DescribedGroup


def refuse(call: RequestArrived[ConsumerGroupDescribeRequest], error: KafkaError) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=[_refused(group_id, error) for group_id in call.body.group_ids])


@handles(ConsumerGroupDescribeRequest, (0, 1), refuse=refuse, reads_groups=True)
def consumer_group_describe(node: Node, call: RequestArrived[ConsumerGroupDescribeRequest]) -> ConsumerGroupDescribeResponse | Deferred:
    request = call.body
    response = ConsumerGroupDescribeResponse()
    shards: list[tuple[Shard[Groups], str]] = []
    size = 0
    for group_id in request.group_ids:
        try:
            shard = node.groups.shard_of(group_id)
            shards.append((shard, group_id))
            size += shard.machine.find(group_id).footprint.bytes
            check_answer(node, size)
            found = _described(shard, group_id)
            if request.include_authorized_operations:
                found.authorized_operations = GROUP_OPERATIONS
        except KafkaError as error:
            found = _refused(group_id, error)
        response.groups.append(found)
    return when_committed(call, response, shards)


def _described(shard: Shard[Groups], group_id: str) -> DescribedGroup:
    group = shard.machine.find(group_id)
    if not isinstance(group, ConsumerGroupService):
        raise errors.GroupIdNotFound(f"group {group_id!r} is not a group of the new protocol")
    return described(group.group, shard.machine.topics, assignors(shard.options))


def _refused(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(group_id=group_id, error_code=error.code, error_message=str(error))
