"""AlterConfigs: on the controller; replaces all overrides of a topic or broker. Settings that are not named get their defaults.

Behaviour, errors: see ``config_alteration.py``; a setting without a value is INVALID_REQUEST. validate_only checks everything and changes
nothing. Differences from Kafka: a broker's settings can be changed through any broker. Source: KIP-133.
"""

from collections.abc import Mapping

from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.apis.config_alteration import Entity, alter, certificates, refusals
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResponse,
)


def refuse(call: RequestArrived[AlterConfigsRequest], error: KafkaError) -> AlterConfigsResponse:
    return AlterConfigsResponse(responses=refusals(call, error))


def _certificates(node: Node, call: RequestArrived[AlterConfigsRequest]) -> dict[str, ListenerSslOptions]:
    return certificates(node, call, _replaced)


@handles(AlterConfigsRequest, (0, 2), refuse=refuse, at_controller=True, certificates=_certificates)
def alter_configs(node: Node, call: RequestArrived[AlterConfigsRequest]) -> AlterConfigsResponse | Deferred:
    return alter(node, call, _replaced, AlterConfigsResponse())


def _replaced(entity: Entity, present: Mapping[str, str], resource: AlterConfigsResource) -> dict[str, str]:
    overrides: dict[str, str] = {}
    for config in resource.configs:
        if config.value is None:
            raise errors.InvalidRequest(f"{config.name} has no value; leave it out to have its default")
        overrides[config.name] = config.value
    return overrides
