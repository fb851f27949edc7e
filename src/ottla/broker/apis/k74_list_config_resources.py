"""ListConfigResources: names of resources that have, or can have, settings.

Versions: 0 lists only subscriptions of client metrics. Version 1 has resource types; none means every type, and a type that Kafka does not
list either is UNSUPPORTED_VERSION. Groups with settings are listed. A broker's loggers have the name of the broker.

Source: KIP-1000, KIP-1142.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles, whole_error
from ottla.broker.metadata.config_entries import BROKER, GROUP, TOPIC
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.messages.list_config_resources import (
    CLIENT_METRICS,
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)

TYPES_SINCE = 1
BROKER_LOGGER = 8
LISTED = (TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP)


@handles(ListConfigResourcesRequest, (0, 1), refuse=whole_error(ListConfigResourcesResponse))
def list_config_resources(node: Node, call: RequestArrived[ListConfigResourcesRequest]) -> ListConfigResourcesResponse:
    types = set(call.body.resource_types or LISTED) if call.api_version >= TYPES_SINCE else {CLIENT_METRICS}
    unknown = sorted(types.difference(LISTED))
    if unknown:
        raise errors.UnsupportedVersion(f"resources of type {unknown[0]} are not listed")
    response = ListConfigResourcesResponse()
    if TOPIC in types:
        response.config_resources += [ConfigResource(resource_name=name, resource_type=TOPIC) for name in sorted(node.context.image.topics)]
    for listed in (BROKER, BROKER_LOGGER):
        brokers = node.context.image.brokers if listed in types else ()
        response.config_resources += [ConfigResource(resource_name=str(broker), resource_type=listed) for broker in brokers]
    for listed, kind in ((CLIENT_METRICS, "client-metrics"), (GROUP, "groups")):
        names = sorted(name for each, name in node.context.image.configs if each == kind) if listed in types else ()
        response.config_resources += [ConfigResource(resource_name=name, resource_type=listed) for name in names]
    return response
