"""ListGroups: the groups that this broker coordinates.

Behaviour: filters of states (from version 4 on) and types (from 5 on) ignore case; an unknown value matches nothing. While a shard is
being loaded the response is COORDINATOR_LOAD_IN_PROGRESS, because it would be incomplete.

Difference from Kafka: a group has its present state, and uncommitted groups are listed. Source: KIP-518, KIP-848.
"""

from ottla.broker.coordinator import ShardState
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse

CLUSTER = REQUIREMENTS[16].parts["cluster"]
GROUPS = REQUIREMENTS[16].parts["groups"]


@handles(ListGroupsRequest, (0, 5), refuse=whole_error(ListGroupsResponse), reads_groups=True)
def list_groups(node: Node, call: RequestArrived[ListGroupsRequest]) -> ListGroupsResponse:
    request = call.body
    states = {name.strip().lower() for name in request.states_filter}
    types = {name.strip().lower() for name in request.types_filter}
    response = ListGroupsResponse()
    for number in sorted(node.groups.shards):
        shard = node.groups.shards[number]
        if shard.state is ShardState.LOADING:
            raise errors.CoordinatorLoadInProgress(f"{shard.partition} is being loaded; try again")
        if shard.state is not ShardState.ACTIVE:
            continue
        for group_id, group in sorted(shard.machine.by_id.items()):
            if (states and group.state_name.lower() not in states) or (types and group.kind not in types):
                continue
            listed = ListedGroup(
                group_id=group_id, protocol_type=group.protocol_type or "", group_state=group.state_name, group_type=group.kind
            )
            response.groups.append(listed)
    access = node.context.access
    if access is not None and not access.permits(call, CLUSTER):
        response.groups = [group for group in response.groups if access.permits(call, GROUPS, group.group_id)]
    return response
