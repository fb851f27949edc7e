"""SaslHandshake: refused, because the connection authenticates its client before its requests reach the broker.

Behaviour: this handler gets the request on a listener without SASL, and on a connection that is authenticated and whose session has no end.
Then the answer is ILLEGAL_SASL_STATE, as in Kafka. ``net/sasl/authentication.py`` handles all others.

Source: KIP-43, KIP-368; Kafka's KafkaApis.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse


@handles(SaslHandshakeRequest, (0, 1), refuse=whole_error(SaslHandshakeResponse))
def sasl_handshake(node: Node, call: RequestArrived[SaslHandshakeRequest]) -> SaslHandshakeResponse:
    raise errors.IllegalSaslState("this connection cannot authenticate now")
