"""DescribeQuorum: there is no quorum to describe.

Behaviour: always UNSUPPORTED_VERSION, since the metadata of this cluster is in its coordination store, not in a log that brokers vote on;
from version 2 on with the sentence that says so. ApiVersions does not tell of it, as that of a Kafka broker with ZooKeeper does not, so
a client usually finds out without asking: Java's Admin raises UnsupportedVersionException, and kafka-metadata-quorum.sh shows that. Who
is controller is told by DescribeCluster and Metadata.

Source: KIP-595, KIP-836.
"""

from typing import TYPE_CHECKING

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_quorum import DescribeQuorumRequest, DescribeQuorumResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


def refuse(call: RequestArrived, error: KafkaError) -> DescribeQuorumResponse:
    return DescribeQuorumResponse(error_code=error.code, error_message=str(error))


@handles(DescribeQuorumRequest, (0, 2), refuse=refuse, told=False)
def describe_quorum(node: "Node", call: RequestArrived) -> DescribeQuorumResponse:
    raise errors.UnsupportedVersion("this cluster keeps its metadata in a coordination store; there is no quorum of brokers to describe")
