"""Envelopes: how a broker forwards a client's request to the controller when there are access rules. Source: KIP-590.

The controller checks the request for the client's principal and address. It believes them only from a sender with ClusterAction on the
cluster: who may send an Envelope may act for every client. The client id of a request has no part in this.

::

    client ──CreateTopics──▶ broker ──Envelope(CreateTopics, User:alice, 10.0.0.7)──▶ controller: ClusterAction of the broker,
                                                                                       then Create of User:alice
"""

from typing import Any

import msgspec

from ottla.base.origin import Origin
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS
from ottla.wire import errors
from ottla.wire.compile import decode
from ottla.wire.declare import MalformedMessage
from ottla.wire.framing import SIZE_BYTES, decode_request_header, decode_response, encode_request
from ottla.wire.messages import API
from ottla.wire.messages.envelope import EnvelopeRequest, EnvelopeResponse

ENVELOPE_VERSION = 0


def enveloped(message: Any, version: int, origin: Origin, client_id: str | None, *, correlation_id: int = 0) -> EnvelopeRequest:
    """A request of a client with this origin, to forward."""
    frame = b"".join(encode_request(message, version, correlation_id, client_id))  # type: ignore[arg-type]
    return EnvelopeRequest(
        request_data=frame[SIZE_BYTES:], request_principal=origin.principal.encode(), client_host_address=origin.host.encode()
    )


def opened(call: RequestArrived[EnvelopeRequest]) -> RequestArrived[Any]:
    """The request in an Envelope. Raises: InvalidRequest unless it is one that brokers forward."""
    data = call.body.request_data
    try:
        header, position = decode_request_header(data)
        handler = HANDLERS.get(header.api_key)
        if handler is None or not handler.at_controller or not handler.versions[0] <= header.api_version <= handler.versions[1]:
            raise errors.InvalidRequest(f"API {header.api_key} version {header.api_version} is not forwarded in an Envelope")
        body = decode(handler.request, data, header.api_version, position)
        principal = (call.body.request_principal or b"").decode()
        host = call.body.client_host_address.decode()
    except (MalformedMessage, UnicodeDecodeError) as error:
        raise errors.InvalidRequest(f"the request in the Envelope cannot be read: {error}") from None
    if ":" not in principal:
        raise errors.InvalidRequest(f"{principal!r} is no principal")
    return RequestArrived(
        connection=call.connection,
        correlation_id=header.correlation_id,
        api_key=header.api_key,
        api_version=header.api_version,
        client_id=header.client_id,
        body=body,
        origin=msgspec.structs.replace(call.origin, host=host, principal=principal),
        ticket=call.ticket,
        envelope=call,
    )


def response_in(call: RequestArrived[Any], response: EnvelopeResponse) -> Any:
    """The response to a client's request that was forwarded; None if the Envelope was refused."""
    if response.error_code or response.response_data is None:
        return None
    try:
        return decode_response(API[call.api_key].response, response.response_data, call.api_version)[1]
    except MalformedMessage:
        return None
