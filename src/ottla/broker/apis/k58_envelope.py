"""Envelope: a client's request that another broker forwards to this controller.

Behaviour: the sender needs ClusterAction on the cluster; the request in the Envelope is then checked for the principal in it, and answered
like one of that client (``security/envelope.py``). A broker that is not the controller answers NOT_CONTROLLER. Only requests that the
controller handles can be in an Envelope; others are INVALID_REQUEST.

Difference from Kafka: brokers send Envelopes only with access rules. Source: KIP-590.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.broker.security.envelope import opened
from ottla.wire.errors import NotController
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse


@handles(EnvelopeRequest, (0, 0), refuse=whole_error(EnvelopeResponse), advertised=False, from_brokers=True)
def envelope(node: Node, call: RequestArrived[EnvelopeRequest]) -> EnvelopeResponse | Deferred:
    if not node.controller.active:
        raise NotController(f"broker {node.context.broker_id} is not the controller")
    node.handle(opened(call))
    return PENDING
