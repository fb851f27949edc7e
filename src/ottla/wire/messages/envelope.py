"""Envelope, key 58: a request that a broker forwards to the controller for a client (KIP-590). Flexible in its only version, 0."""

from ottla.wire.declare import Int16, Struct, message

__all__ = ["EnvelopeRequest", "EnvelopeResponse"]


@message(key=58, since=0, until=0, flexible_since=0)
class EnvelopeRequest(Struct):
    """The request with its header, and who sent it.

    Kafka encodes the principal as a structure and the address as its four or sixteen bytes. Ottla's brokers send both as UTF-8 text.
    """

    request_data: bytes = b""
    request_principal: bytes | None = b""
    client_host_address: bytes = b""


@message(key=58, since=0, until=0, flexible_since=0)
class EnvelopeResponse(Struct):
    """The response with its header, or an error of the envelope."""

    response_data: bytes | None = None
    error_code: Int16 = 0
