"""Functions shared by the handlers of group requests."""

from collections.abc import Callable, Generator, Iterable
from typing import Any, Protocol, TypeVar

from ottla.broker.apis.authorized_operations import group_operations
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.groups.group import Group, GroupClient
from ottla.broker.groups.groups import Groups
from ottla.broker.handlers import Deferred
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError

#: What a group weighs in a turn, and each of its members.
WEIGHT = 5
#: What a regular expression needs to match a topic.
MATCHING_TOPICS = REQUIREMENTS[68].parts["matching topics"]


def shard_of_members(node: Node, group_id: str) -> Shard[Groups]:
    """The shard of a member's group. Raises: InvalidGroupId, NotCoordinator, CoordinatorLoadInProgress."""
    if not group_id:
        raise errors.InvalidGroupId("the id of a group with members has at least one character")
    return node.groups.shard_of(group_id)


def client_of(node: Node, call: RequestArrived[Any]) -> GroupClient:
    """The sender in Kafka's form: the address has a leading slash."""
    access = node.context.access
    return GroupClient(call.client_id or "", f"/{call.origin.host}", None if access is None else access.filter_of(call, MATCHING_TOPICS))


class DescribeResponse(Protocol):
    """The response of DescribeGroups or ConsumerGroupDescribe."""

    groups: list[Any]


D = TypeVar("D", bound=DescribeResponse)


def describe_each(
    node: Node,
    call: RequestArrived[Any],
    group_ids: Iterable[str],
    response: D,
    describe: Callable[[Shard[Groups], Group], Any],
    refused: Callable[[str, KafkaError], Any],
) -> D | Deferred:
    """Completes ``response`` with each group's description or error.

    Many groups are described in turns (``turns.py``). The size of the response is limited: all groups of a broker, each named once, always
    fit. Further ones are INVALID_REQUEST.
    """
    shards: list[tuple[Shard[Groups], str]] = []

    def work() -> Generator[int, None, D]:
        size, limit = 0, node.context.options.groups_max_bytes
        for group_id in group_ids:
            try:
                node.context.demand(call, REQUIREMENTS[call.api_key].parts["groups"], group_id)
                shard = node.groups.shard_of(group_id)
                shards.append((shard, group_id))
                group = shard.machine.find(group_id)
                size += group.footprint.bytes
                if size > limit:
                    raise errors.InvalidRequest(
                        f"the answer would have more than ottla.groups.max.bytes, {limit}; name fewer groups, and each once"
                    )
                found = describe(shard, group)
                if call.body.include_authorized_operations:
                    found.authorized_operations = group_operations(node, call, group_id)
                weight = WEIGHT + WEIGHT * len(found.members)
            except KafkaError as error:
                found, weight = refused(group_id, error), WEIGHT
            response.groups.append(found)
            yield weight
        return response

    answer: D | Deferred = node.context.turns.answer(call, work(), lambda found: when_committed(call, found, shards))
    return answer
