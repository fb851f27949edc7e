"""Functions shared by the handlers of group requests."""

from typing import Any

from ottla.broker.coordinator import Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.group import Client
from ottla.broker.groups.groups import Groups
from ottla.broker.node import Node
from ottla.wire import errors


def shard_of_members(node: Node, group_id: str) -> Shard[Groups]:
    """The shard of a member's group. Raises: InvalidGroupId, NotCoordinator, CoordinatorLoadInProgress."""
    if not group_id:
        raise errors.InvalidGroupId("the id of a group with members has at least one character")
    return node.groups.shard_of(group_id)


def client_of(call: RequestArrived[Any]) -> Client:
    """The sender in Kafka's form: the address has a leading slash."""
    return Client(call.client_id or "", f"/{call.host}")


def check_answer(node: Node, size: int) -> None:
    """Limits the size of a response: ``size`` has the bytes of all groups described so far, including this one.

    All groups of a broker, each named once, always fit. Raises: InvalidRequest.
    """
    limit = node.context.options.groups_max_bytes
    if size > limit:
        raise errors.InvalidRequest(f"the answer would have more than ottla.groups.max.bytes, {limit}; name fewer groups, and each once")
