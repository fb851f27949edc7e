"""UnregisterBroker: not needed in this cluster.

Behaviour: always UNSUPPORTED_VERSION with an error message: a registration is an ephemeral node, and ends with its broker's session.
ApiVersions does not advertise it, like a Kafka broker with ZooKeeper; `kafka-cluster.sh unregister` then reports that the cluster does not
support it. Use a reassignment to move the replicas of a broker.

Source: KIP-500, KIP-631.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(UnregisterBrokerRequest, (0, 0), refuse=whole_error(UnregisterBrokerResponse), advertised=False)
def unregister_broker(node: Node, call: RequestArrived[UnregisterBrokerRequest]) -> UnregisterBrokerResponse:
    raise errors.UnsupportedVersion("a broker's registration ends with its session; there is nothing to unregister")
