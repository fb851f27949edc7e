"""DeleteGroups: deletes groups without members, with their offsets.

Behaviour: each group has its own error: NON_EMPTY_GROUP with members, GROUP_ID_NOT_FOUND for an unknown one. The group with an empty id,
for which old clients store offsets, can be deleted too. A group that a request names twice is deleted once and answered once. Source:
KIP-229. Versions: error messages from 3 on.
"""

from collections.abc import Generator

from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

GROUPS = REQUIREMENTS[42].parts["groups"]
#: What a group weighs in a turn.
WEIGHT = 5


def refuse(call: RequestArrived[DeleteGroupsRequest], error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[_failed(name, error) for name in call.body.groups_names])


def _failed(group_id: str, error: KafkaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=error.code, error_message=str(error))


@handles(DeleteGroupsRequest, (0, 3), refuse=refuse)
def delete_groups(node: Node, call: RequestArrived[DeleteGroupsRequest]) -> DeleteGroupsResponse | Deferred:
    shards: list[tuple[Shard[Groups], str]] = []

    def work() -> Generator[int, None, DeleteGroupsResponse]:
        response = DeleteGroupsResponse()
        for group_id in dict.fromkeys(call.body.groups_names):
            try:
                node.context.demand(call, GROUPS, group_id)
                shard = node.groups.shard_of(group_id)
                shards.append((shard, group_id))
                shard.machine.delete(group_id)
                response.results.append(DeletableGroupResult(group_id=group_id))
            except KafkaError as error:
                response.results.append(_failed(group_id, error))
            yield WEIGHT
        return response

    answer: DeleteGroupsResponse | Deferred = node.context.turns.answer(call, work(), lambda found: when_committed(call, found, shards))
    return answer
