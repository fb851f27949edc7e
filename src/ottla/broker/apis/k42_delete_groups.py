"""DeleteGroups: deletes groups without members, with their offsets.

Behaviour: each group has its own error: NON_EMPTY_GROUP with members, GROUP_ID_NOT_FOUND for an unknown one. The group with an empty id,
for which old clients store offsets, can be deleted too. A group that a request names twice is deleted once and answered once. Source:
KIP-229.
"""

from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


def refuse(call: RequestArrived[DeleteGroupsRequest], error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[DeletableGroupResult(group_id=name, error_code=error.code) for name in call.body.groups_names])


@handles(DeleteGroupsRequest, (0, 2), refuse=refuse)
def delete_groups(node: Node, call: RequestArrived[DeleteGroupsRequest]) -> DeleteGroupsResponse | Deferred:
    response = DeleteGroupsResponse()
    shards: list[tuple[Shard[Groups], str]] = []
    for group_id in dict.fromkeys(call.body.groups_names):
        result = DeletableGroupResult(group_id=group_id)
        try:
            shard = node.groups.shard_of(group_id)
            shards.append((shard, group_id))
            shard.machine.delete(group_id)
        except KafkaError as error:
            result.error_code = error.code
        response.results.append(result)
    return when_committed(call, response, shards)
