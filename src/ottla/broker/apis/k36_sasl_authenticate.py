"""SaslAuthenticate: refused with ILLEGAL_SASL_STATE, because no exchange is in progress when a request reaches the broker.

Behaviour: as that of SaslHandshake. Source: KIP-152; Kafka's KafkaApis.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse


@handles(SaslAuthenticateRequest, (0, 2), refuse=whole_error(SaslAuthenticateResponse))
def sasl_authenticate(node: Node, call: RequestArrived[SaslAuthenticateRequest]) -> SaslAuthenticateResponse:
    raise errors.IllegalSaslState("no SASL exchange is in progress on this connection")
