"""Decodes a frame into an event for the broker, or into an immediate answer.

* A header that cannot be decoded, an API or version that is not served, a malformed body: the connection is closed without an answer.
* ApiVersions with a version above ours is answered in version 0 with UNSUPPORTED_VERSION and the served range. Its body is not decoded.

Source: KIP-511; Kafka's SocketServer and RequestContext.
"""

from collections.abc import Generator
from typing import Any

from ottla.broker.apis import HANDLERS
from ottla.broker.events import RequestArrived
from ottla.broker.isolation import refusal
from ottla.net.server_connection import ServerConnection
from ottla.wire import framing
from ottla.wire.compile import decode, decode_in_turns
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError, UnsupportedVersion
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

API_VERSIONS = 18


class Refused(Exception):
    """A request without an answer; its connection must be closed."""


def read_request(connection: ServerConnection, frame: memoryview) -> RequestArrived[Any] | list[Any]:
    """The event, or the chunks of an immediate answer. Raises: Refused, MalformedMessage."""
    header, position = framing.decode_request_header(frame)
    api_key, version, correlation_id, _ = header
    handler = HANDLERS.get(api_key)
    if handler is None:
        raise Refused(f"API {api_key} is not served")
    since, until = handler.versions
    if not since <= version <= until:
        if api_key == API_VERSIONS and version > until:
            return framing.encode_response(_range(handler.versions), 0, correlation_id)
        raise Refused(f"version {version} of API {api_key} is not served")
    if version < handler.declared_since:
        # Produce 0 to 2 are advertised because old clients look for them, and are not implemented.
        raise Refused(f"version {version} of API {api_key} is advertised only")
    return _event(connection, header, decode(handler.request, frame, version, position), len(frame))


def read_request_in_turns(connection: ServerConnection, frame: memoryview) -> Generator[None, None, RequestArrived[Any] | list[Any]]:
    """The same as ``read_request`` in steps of about 0.2 ms; each ``yield`` ends a step. The frame must not change until the last one."""
    header, position = framing.decode_request_header(frame)
    api_key, version, _, _ = header
    handler = HANDLERS.get(api_key)
    if handler is None or not max(handler.versions[0], handler.declared_since) <= version <= handler.versions[1]:
        return read_request(connection, frame)
    event = _event(connection, header, None, len(frame))
    event.body = yield from decode_in_turns(handler.request, frame, version, position)
    return event


def undecoded_request(connection: ServerConnection, frame: memoryview) -> RequestArrived[Any] | None:
    """The event of a request whose body could not be decoded, with an empty body. None: bad header, or API not served."""
    try:
        header, _ = framing.decode_request_header(frame)
    except MalformedMessage:
        return None
    handler = HANDLERS.get(header[0])
    return None if handler is None else _event(connection, header, handler.request(), len(frame))


def _event(connection: ServerConnection, header: tuple[int, int, int, str | None], body: Any, size: int) -> RequestArrived[Any]:
    api_key, version, correlation_id, client_id = header
    return RequestArrived(
        connection=connection.number,
        correlation_id=correlation_id,
        ticket=connection.ticket,
        api_key=api_key,
        api_version=version,
        client_id=client_id,
        body=body,
        origin=connection.origin,
        size=size,
    )


def failure_response(request: RequestArrived[Any]) -> list[Any]:
    """Chunks of an answer with UNKNOWN_SERVER_ERROR for the whole request. Raises: ValueError when the API has no such answer."""
    answer = refusal(request)
    if answer is None:
        raise ValueError("this API has no error for a whole request")
    return framing.encode_response(answer, request.api_version, request.correlation_id)


def error_response(request: RequestArrived[Any], error: KafkaError) -> list[Any]:
    """Chunks of an answer that reports ``error`` in each place where this API reports errors."""
    answer = HANDLERS[request.api_key].refuse(request, error)
    return framing.encode_response(answer, request.api_version, request.correlation_id)


def _range(versions: tuple[int, int]) -> ApiVersionsResponse:
    entry = ApiVersion(api_key=API_VERSIONS, min_version=versions[0], max_version=versions[1])
    return ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[entry])
