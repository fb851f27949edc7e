"""DescribeQuorum: this cluster has no quorum.

Behaviour: always UNSUPPORTED_VERSION, because the metadata is in the coordination store; from version 2 on with an error message.
ApiVersions does not advertise it, like a Kafka broker with ZooKeeper, so clients usually do not send it: Java's Admin raises
UnsupportedVersionException. DescribeCluster and Metadata return the controller.

Source: KIP-595, KIP-836.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse


@handles(DescribeQuorumRequest, (0, 2), refuse=whole_error(DescribeQuorumResponse), advertised=False)
def describe_quorum(node: Node, call: RequestArrived[DescribeQuorumRequest]) -> DescribeQuorumResponse:
    raise errors.UnsupportedVersion("this cluster keeps its metadata in a coordination store; there is no quorum of brokers to describe")
