"""ApiVersions: supported APIs and versions.

Behaviour: the ranges of Kafka 4.3 for every supported API. A request in a later version is answered in version 0 with UNSUPPORTED_VERSION
and the supported range, so that the client can retry; the shell does that, because the body cannot be decoded. From version 3 on the
client's name and version must be valid. Source: KIP-511, KIP-584.
"""

import re

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS, handles, whole_error
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse

NAMED_SINCE = 3
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def served_versions() -> list[ApiVersion]:
    """The advertised versions in the order of keys."""
    return [
        ApiVersion(api_key=key, min_version=served.versions[0], max_version=served.versions[1])
        for key, served in sorted(HANDLERS.items())
        if served.advertised
    ]


@handles(ApiVersionsRequest, (0, 4), refuse=whole_error(ApiVersionsResponse))
def api_versions(node: Node, call: RequestArrived[ApiVersionsRequest]) -> ApiVersionsResponse:
    request = call.body
    if call.api_version >= NAMED_SINCE:
        for name in (request.client_software_name, request.client_software_version):
            if not _NAME.fullmatch(name):
                raise errors.InvalidRequest(f"{name!r} is not the name or version of a client")
    return ApiVersionsResponse(api_keys=served_versions())
