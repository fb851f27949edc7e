"""ApiVersions: supported APIs and versions.

Behaviour: the ranges of Kafka 4.4 for every supported API. A request in a later version is answered in version 0 with UNSUPPORTED_VERSION
and the supported range, so that the client can retry; the shell does that, because the body cannot be decoded. From version 3 on the
client's name and version must be valid. From version 5 on a client may name the cluster and the broker to which it means to connect; if
this is another one, the response is REBOOTSTRAP_REQUIRED, and the client asks its bootstrap servers again.

Source: KIP-511, KIP-584, KIP-1242.
"""

import re

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import HANDLERS, handles, whole_error
from ottla.broker.metadata import features
from ottla.broker.metadata.configs import BrokerOptions
from ottla.broker.node import Node
from ottla.broker.telemetry import note_software
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.api_versions import (
    ApiVersion,
    ApiVersionsRequest,
    ApiVersionsResponse,
    FinalizedFeatureKey,
    SupportedFeatureKey,
)

NAMED_SINCE = 3
#: First version in which a supported level may be 0; older clients refuse it (KAFKA-17492).
ZERO_SINCE = 4
NO_BROKER = -1
_NAME = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def served_versions(options: BrokerOptions) -> list[ApiVersion]:
    """The advertised versions in the order of keys."""
    return [
        ApiVersion(api_key=key, min_version=served.versions[0], max_version=served.last_version(options))
        for key, served in sorted(HANDLERS.items())
        if served.advertised and (served.enabled is None or served.enabled(options))
    ]


@handles(ApiVersionsRequest, (0, 5), refuse=whole_error(ApiVersionsResponse))
def api_versions(node: Node, call: RequestArrived[ApiVersionsRequest]) -> ApiVersionsResponse:
    request = call.body
    if call.api_version >= NAMED_SINCE:
        for name in (request.client_software_name, request.client_software_version):
            if not _NAME.fullmatch(name):
                raise errors.InvalidRequest(f"{name!r} is not the name or version of a client")
        note_software(node.context, call.connection, request.client_software_name, request.client_software_version)
    if (request.cluster_id is None) != (request.node_id == NO_BROKER):
        raise errors.InvalidRequest("a client names both the cluster and the broker, or neither")
    context = node.context
    if request.cluster_id not in (None, context.cluster_id) or request.node_id not in (NO_BROKER, context.broker_id):
        raise errors.RebootstrapRequired(f"this is broker {context.broker_id} of cluster {context.cluster_id}")
    image = context.image
    return ApiVersionsResponse(
        api_keys=served_versions(context.options),
        supported_features=[
            SupportedFeatureKey(name=name, min_version=levels.lowest, max_version=levels.highest)
            for name, levels in sorted(features.SUPPORTED.items())
            if levels.lowest > 0 or call.api_version >= ZERO_SINCE
        ],
        finalized_features_epoch=image.versions.get(layout.FEATURE, -1),
        finalized_features=[
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level) for name, level in image.levels.items()
        ],
    )
