"""UnregisterBroker: nothing has to be unregistered.

Behaviour: always UNSUPPORTED_VERSION, with the sentence that says why: a registration is an ephemeral node, and ends with its broker's
session. ApiVersions does not tell of it, as that of a Kafka broker with ZooKeeper does not; `kafka-cluster.sh unregister` then says that
the cluster does not support it. Replicas that a broker held are moved away by a reassignment.

Source: KIP-500, KIP-631.
"""

from typing import TYPE_CHECKING

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from ottla.broker.node import Node


def refuse(call: RequestArrived, error: KafkaError) -> UnregisterBrokerResponse:
    return UnregisterBrokerResponse(error_code=error.code, error_message=str(error))


@handles(UnregisterBrokerRequest, (0, 0), refuse=refuse, told=False)
def unregister_broker(node: "Node", call: RequestArrived) -> UnregisterBrokerResponse:
    raise errors.UnsupportedVersion("a broker's registration ends with its session; there is nothing to unregister")
