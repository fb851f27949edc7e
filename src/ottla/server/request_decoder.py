"""From a frame to an event: what the broker shall see, what is answered before it, and what closes the connection.

* A header that cannot be read, an API or version not served, a body that does not decode: the connection is closed, without an answer.
* ApiVersions in a version above ours is answered in version 0, with UNSUPPORTED_VERSION and the range we serve; its body is not read.

Source: KIP-511; facts of Kafka's SocketServer and RequestContext.
"""

from typing import Any

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS
from ottla.broker.isolation import refusal
from ottla.net.server_connection import Connection
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError, UnsupportedVersion
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsResponse

API_VERSIONS = 18


class Refused(Exception):
    """A request that has no answer; its connection is to be closed."""


def read_request(connection: Connection, frame: memoryview) -> RequestArrived | list[Any]:
    """The event, or the chunks of an answer to be given at once. Raises: Refused, MalformedMessage."""
    (api_key, version, correlation_id, client_id), position = framing.decode_request_header(frame)
    served = HANDLERS.get(api_key)
    if served is None:
        raise Refused(f"API {api_key} is not served")
    since, until = served.versions
    if not since <= version <= until:
        if api_key == API_VERSIONS and version > until:
            return framing.encode_response(_range(served.versions), 0, correlation_id)
        raise Refused(f"version {version} of API {api_key} is not served")
    if version < served.declared_since:
        # Produce 0 to 2: in the advertised range for the sake of old clients that look for them there, and served by nobody any more.
        raise Refused(f"version {version} of API {api_key} is advertised only")
    return RequestArrived(
        connection=connection.number,
        correlation_id=correlation_id,
        ticket=connection.ticket,
        api_key=api_key,
        api_version=version,
        client_id=client_id,
        body=decode(served.request, frame, version, position),
        host=connection.host,
        local=connection.local,
    )


def unread_request(connection: Connection, frame: memoryview) -> RequestArrived | None:
    """A request whose body could not be decoded, with an empty body; None when its header cannot be read, or its API is not served."""
    try:
        (api_key, version, correlation_id, client_id), _ = framing.decode_request_header(frame)
    except MalformedMessage:
        return None
    served = HANDLERS.get(api_key)
    if served is None:
        return None
    return RequestArrived(
        connection=connection.number,
        correlation_id=correlation_id,
        ticket=connection.ticket,
        api_key=api_key,
        api_version=version,
        client_id=client_id,
        body=served.request(),
        host=connection.host,
    )


def refused_unread(request: RequestArrived) -> list[Any]:
    """The chunks of an answer with UNKNOWN_SERVER_ERROR for a whole request. Raises: ValueError, where the API has no such answer."""
    answer = refusal(request)
    if answer is None:
        raise ValueError("this API has no error for a whole request")
    return framing.encode_response(answer, request.api_version, request.correlation_id)


def refused(request: RequestArrived, error: KafkaError) -> list[Any]:
    """The chunks of an answer that says so, wherever this API says such a thing, whatever the broker would have answered."""
    answer = HANDLERS[request.api_key].refuse(request, error)
    return framing.encode_response(answer, request.api_version, request.correlation_id)


def _range(versions: tuple[int, int]) -> ApiVersionsResponse:
    entry = ApiVersion(api_key=API_VERSIONS, min_version=versions[0], max_version=versions[1])
    return ApiVersionsResponse(error_code=UnsupportedVersion.code, api_keys=[entry])
