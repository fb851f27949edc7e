"""DescribeGroups: classic groups with their members.

Behaviour: metadata and assignments are returned while the group is stable. An unknown group is Dead, without an error until version 5 and
GROUP_ID_NOT_FOUND from 6 on; so is a consumer group. Operations are returned for every group without an error. Source: KIP-430, KIP-1043.
"""

from functools import partial
from typing import Any

from ottla.broker.apis.authorized_operations import group_operations
from ottla.broker.apis.group_requests import describe_each
from ottla.broker.coordinator import Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.classic.states import GroupState
from ottla.broker.groups.group import Group
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire.errors import GroupIdNotFound, KafkaError
from ottla.wire.messages.describe_groups import DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse
from ottla.wire.messages.metadata import NOT_REQUESTED

NOT_FOUND_SINCE = 6


def refuse(call: RequestArrived[DescribeGroupsRequest], error: KafkaError) -> DescribeGroupsResponse:
    return DescribeGroupsResponse(groups=[_refused(None, call, group_id, error) for group_id in call.body.groups])


@handles(DescribeGroupsRequest, (0, 6), refuse=refuse, reads_groups=True)
def describe_groups(node: Node, call: RequestArrived[DescribeGroupsRequest]) -> DescribeGroupsResponse | Deferred:
    def described(shard: Shard[Any], group: Group) -> DescribedGroup:
        found: DescribedGroup = group.described()
        return found

    return describe_each(node, call, call.body.groups, DescribeGroupsResponse(), described, partial(_refused, node, call))


def _refused(node: Node | None, call: RequestArrived[DescribeGroupsRequest], group_id: str, error: KafkaError) -> DescribedGroup:
    unknown, tells = isinstance(error, GroupIdNotFound), call.api_version >= NOT_FOUND_SINCE
    code = 0 if unknown and not tells else error.code
    wanted = code == 0 and call.body.include_authorized_operations and node is not None
    return DescribedGroup(
        error_code=code,
        authorized_operations=group_operations(node, call, group_id) if wanted and node is not None else NOT_REQUESTED,
        error_message=str(error) if tells else None,
        group_id=group_id,
        group_state=GroupState.DEAD.value if unknown else "",
    )
