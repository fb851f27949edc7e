"""DeleteGroups: deletes groups without members, with their offsets.

Behaviour: each group has its own error: NON_EMPTY_GROUP with members, GROUP_ID_NOT_FOUND for an unknown one. The group with an empty id,
for which old clients store offsets, can be deleted too. A group that a request names twice is deleted once and answered once. Source:
KIP-229. Versions: error messages from 3 on.

Many groups, and a group with many offsets, take turns (``turns.py``). A group that gets a member or offsets between two turns is
NON_EMPTY_GROUP, without the offsets that were deleted by then.
"""

from collections.abc import Generator
from itertools import islice

from ottla.base.units import KiB
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import counted, free_counted
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_groups import DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse

GROUPS = REQUIREMENTS[42].parts["groups"]
#: What a group weighs in a turn, and each of its offsets, with its share of a batch.
WEIGHT, OFFSET_WEIGHT = 5, 2
#: What the last batch of a group weighs.
BATCH_WEIGHT = 50


def refuse(call: RequestArrived[DeleteGroupsRequest], error: KafkaError) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(results=[_failed(name, error) for name in call.body.groups_names])


def _failed(group_id: str, error: KafkaError) -> DeletableGroupResult:
    return DeletableGroupResult(group_id=group_id, error_code=error.code, error_message=str(error))


@handles(DeleteGroupsRequest, (0, 3), refuse=refuse)
def delete_groups(node: Node, call: RequestArrived[DeleteGroupsRequest]) -> DeleteGroupsResponse | Deferred:
    shards: list[tuple[Shard[Groups], str]] = []

    def work() -> Generator[int, None, DeleteGroupsResponse]:
        response = DeleteGroupsResponse()
        names = yield from counted(call.body.groups_names)
        for group_id in names:
            try:
                node.context.demand(call, GROUPS, group_id)
                yield from _deleted(node, group_id, shards)
                response.results.append(DeletableGroupResult(group_id=group_id))
                yield BATCH_WEIGHT
            except KafkaError as error:
                response.results.append(_failed(group_id, error))
            yield WEIGHT
        free_counted(node.context, names)
        return response

    answer: DeleteGroupsResponse | Deferred = node.context.turns.answer(call, work(), lambda found: when_committed(call, found, shards))
    return answer


def _deleted(node: Node, group_id: str, shards: list[tuple[Shard[Groups], str]]) -> Generator[int, None, None]:
    """Deletes offsets in portions, the last one with the group. Adds the shards that it wrote to. Raises: KafkaError."""
    shard = node.groups.shard_of(group_id)
    if shard.committed(group_id) is not None:
        shards.append((shard, group_id))
    shard.machine.check_delete(group_id)
    shards.append((shard, group_id))
    one = OFFSET_WEIGHT + len(group_id) // KiB
    size = max(node.context.turns.elements // one, 1)
    left = shard.machine.offsets.places(group_id)
    portion = list(islice(left, size))
    while len(portion) == size:
        shard.machine.delete_offsets(group_id, portion)
        yield size * one
        now = node.groups.shard_of(group_id)
        if now is not shard:
            shard = now
            shards.append((shard, group_id))
        shard.machine.check_delete(group_id)
        portion = list(islice(left, size))
    shard.machine.delete(group_id, portion)
