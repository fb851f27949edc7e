"""Authorized operations: the bit fields of Metadata and the describe APIs. Without access rules every operation is authorized.

Bit n is the operation with code n: 3 read, 4 write, 5 create, 6 delete, 7 alter, 8 describe, 9 cluster action, 10 describe
configs, 11 alter configs, 12 idempotent write. Source: KIP-430, KIP-848 (settings of groups).
"""

from typing import Any

from ottla.base.acls import CLUSTER_NAME, OPERATIONS, ResourceType
from ottla.broker.events import RequestArrived
from ottla.broker.node import Node
from ottla.broker.security.access import bits
from ottla.broker.security.requirements import CLUSTER, GROUP, TOPIC, Requirement

TOPIC_OPERATIONS = bits(OPERATIONS[TOPIC])
GROUP_OPERATIONS = bits(OPERATIONS[GROUP])
CLUSTER_OPERATIONS = bits(OPERATIONS[CLUSTER])


def topic_operations(node: Node, call: RequestArrived[Any], name: str) -> int:
    return TOPIC_OPERATIONS if node.context.access is None else node.context.access.operations(call, TOPIC, name)


def group_operations(node: Node, call: RequestArrived[Any], name: str) -> int:
    return GROUP_OPERATIONS if node.context.access is None else node.context.access.operations(call, GROUP, name)


def cluster_operations(node: Node, call: RequestArrived[Any], required: Requirement) -> int:
    """Operations on the cluster; 0 for a client that may not describe it."""
    access = node.context.access
    if access is None:
        return CLUSTER_OPERATIONS
    return access.operations(call, ResourceType.CLUSTER, CLUSTER_NAME) if access.permits(call, required) else 0
