"""IncrementalAlterConfigs: on the controller; changes single overrides of a topic or broker.

=========  ==============================================================================
operation  effect
=========  ==============================================================================
0 SET      the given value
1 DELETE   the default; no error without an override
2 APPEND   adds values that the list does not have
3 SUBTRACT removes values from the list
=========  ==============================================================================

The levels of a broker's loggers are set by the broker that gets the request, until its process ends: SET, or DELETE for the level of the
logger above. Other operations on them are INVALID_REQUEST.

Behaviour, errors: see ``config_alteration.py``. Without an override, APPEND and SUBTRACT start with the setting's declared default; for a
setting that is not a list they are INVALID_CONFIG. A missing value, except for DELETE, is INVALID_REQUEST. Source: KIP-339, KIP-412.
"""

from collections.abc import Mapping
from functools import partial

from ottla.base.log_levels import LEVELS, LOGGERS, ROOT, SESSION, LogLevel
from ottla.base.options import ConfigType
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.apis.config_alteration import Entity, alter, certificates, of_loggers, refusals, spec_of
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.incremental_alter_configs import (
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

SET, DELETE, APPEND, SUBTRACT = range(4)


def refuse(call: RequestArrived[IncrementalAlterConfigsRequest], error: KafkaError) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(responses=refusals(call, error))


def _certificates(node: Node, call: RequestArrived[IncrementalAlterConfigsRequest]) -> dict[str, ListenerSslOptions]:
    return certificates(node, call, _changed)


@handles(IncrementalAlterConfigsRequest, (0, 1), refuse=refuse, at_controller=True, certificates=_certificates, own=of_loggers)
def incremental_alter_configs(
    node: Node, call: RequestArrived[IncrementalAlterConfigsRequest]
) -> IncrementalAlterConfigsResponse | Deferred:
    levels = partial(_set_levels, only_check=call.body.validate_only)
    return alter(node, call, _changed, IncrementalAlterConfigsResponse(), set_levels=levels)


def _set_levels(node: Node, resource: AlterConfigsResource, *, only_check: bool) -> None:
    """Raises: InvalidRequest, InvalidConfig."""
    if resource.resource_name != str(node.context.broker_id):
        raise errors.InvalidRequest(
            f"this is broker {node.context.broker_id}; send changes of the loggers of broker {resource.resource_name!r} to it, "
            "in a request without other resources"
        )
    levels: dict[str, LogLevel | None] = {}
    for config in resource.configs:
        if config.name not in LOGGERS:
            raise errors.InvalidConfig(f"there is no logger {config.name!r}; there are {', '.join(LOGGERS)}")
        if config.config_operation == DELETE and config.name == ROOT:
            raise errors.InvalidRequest("the level of the root logger can be set, not deleted")
        if config.config_operation not in (SET, DELETE):
            raise errors.InvalidRequest(f"the level of logger {config.name} can be set or deleted; it is no list")
        if config.config_operation == SET and config.value not in LEVELS:
            raise errors.InvalidConfig(f"there is no level {config.value!r} for logger {config.name}; levels are {', '.join(LEVELS)}")
        levels[config.name] = LEVELS[config.value or ""] if config.config_operation == SET else None
    if not only_check:
        node.context.set_log_levels(levels)
        texts = {name: "inherited" if level is None else level.name for name, level in levels.items()}
        node.context.log.info(SESSION, "levels of loggers were changed", levels=texts)


def _changed(entity: Entity, present: Mapping[str, str], resource: AlterConfigsResource) -> dict[str, str]:
    overrides = dict(present)
    for config in resource.configs:
        if config.config_operation == DELETE:
            overrides.pop(config.name, None)
            continue
        if config.value is None:
            raise errors.InvalidRequest(f"{config.name} has no value; delete it to have its default")
        match config.config_operation:
            case 0:
                overrides[config.name] = config.value
            case 2:
                held = _list(entity, overrides, config.name)
                overrides[config.name] = ",".join(dict.fromkeys([*held, *_parts(config.value)]))
            case 3:
                gone = _parts(config.value)
                overrides[config.name] = ",".join(part for part in _list(entity, overrides, config.name) if part not in gone)
            case unknown:
                raise errors.InvalidRequest(f"{config.name}: there is no operation {unknown} on a setting")
    return overrides


def _list(entity: Entity, overrides: Mapping[str, str], name: str) -> list[str]:
    spec = spec_of(entity, name)
    if spec is None or spec.kind is not ConfigType.LIST:
        raise errors.InvalidConfig(f"{name} is no list; it can be set, not appended to or subtracted from")
    return _parts(overrides[name]) if name in overrides else list(spec.default)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
