"""DescribeCluster, key 60: the brokers of the cluster (KIP-700).

| version | change |
|-|-|
| 1 | brokers or controllers may be asked for (KIP-919): endpoint type 1 or 2 |
| 2 | fenced brokers may be listed too (KIP-1073) |
"""

from typing import Annotated

from ottla.wire.declare import Int8, Int16, Int32, Since, Struct, message
from ottla.wire.messages.metadata import NOT_REQUESTED


@message(key=60, since=0, until=2, flexible_since=0)
class DescribeClusterRequest(Struct):
    """Which brokers to list, and whether to include the client's authorized operations on the cluster."""

    include_cluster_authorized_operations: bool = False
    endpoint_type: Annotated[Int8, Since(1)] = 1
    include_fenced_brokers: Annotated[bool, Since(2)] = False


class DescribeClusterBroker(Struct):
    """A broker with the address of the listener that received the request."""

    broker_id: Int32 = 0
    host: str = ""
    port: Int32 = 0
    rack: str | None = None
    is_fenced: Annotated[bool, Since(2)] = False


@message(key=60, since=0, until=2, flexible_since=0)
class DescribeClusterResponse(Struct):
    """The cluster as one broker sees it."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: str | None = None
    endpoint_type: Annotated[Int8, Since(1)] = 1
    cluster_id: str = ""
    controller_id: Int32 = -1
    brokers: list[DescribeClusterBroker] = []
    cluster_authorized_operations: Int32 = NOT_REQUESTED
