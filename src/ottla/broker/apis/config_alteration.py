"""AlterConfigs and IncrementalAlterConfigs: validation of settings and their write to the store.

The overrides of a topic or broker are one store node, written as a whole with its version; after a conflict the change is applied to the
new content. A node without overrides is deleted.

==============  =====================================  ==============================================================
resource        settings                               errors
==============  =====================================  ==============================================================
a topic         any topic setting                      unknown topic 3; unknown setting or bad value INVALID_CONFIG
a live broker   those not read-only                    all of them INVALID_REQUEST, as in Kafka
"", all of them those not read-only nor per-broker     INVALID_REQUEST
a group         those of the consumer protocol         unknown setting, or not within the broker's INVALID_CONFIG
this broker's   levels, by IncrementalAlterConfigs     unknown logger or level INVALID_CONFIG; another broker's, or mixed
loggers         only; not stored                       with resources that the controller changes: INVALID_REQUEST
client metrics  those of a subscription                unknown setting or bad value INVALID_REQUEST; bad match INVALID_CONFIG
==============  =====================================  ==============================================================

Names and values of one resource have at most ottla.config.overrides.max.bytes: every broker has them in memory, and the store in one node.
All overrides have at most ottla.config.max.bytes, because clients can set some for groups that do not exist.

What the start of a broker refuses is refused here too, and what it accepts without meaning is accepted (``kafka_settings``). An unknown
broker setting is stored without effect, as in Kafka, where it may belong to a plugin: tools that copy settings between clusters
or versions work. ``ottla config`` asks for confirmation if a name looks mistyped.

TLS settings of a listener are checked by the broker itself, before the request is forwarded: its files must be readable, and the
certificates must fit the present ones (``net/tls/listener_tls.py``).

A resource or setting that is named twice is INVALID_REQUEST. Source: KIP-133, KIP-226, KIP-339, KIP-848.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar

from ottla.base.acls import CLUSTER_NAME
from ottla.base.options import ConfigError, OptionSpec
from ottla.base.ports import Op
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.controller.topics import check_name, check_overrides
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred
from ottla.broker.metadata.config_entries import BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP, TOPIC, no_settings
from ottla.broker.metadata.configs import ClientMetricsOptions, broker_spec, check_size, listener_setting, with_prefix
from ottla.broker.metadata.image import entry_bytes
from ottla.broker.metadata.kafka_settings import check_at_run_time, group_spec
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.telemetry import match_patterns
from ottla.broker.turns import counted, free_counted
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.store.layout import DEFAULT_ENTITY
from ottla.wire import errors
from ottla.wire.codegen import STRING_BYTES_MAX
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_configs import AlterConfigsResourceResponse

#: Timeout of the store: these requests have none.
ANSWER_MS = 30_000
_PARTS = REQUIREMENTS[44].parts
#: By resource type; settings of clients' metrics and of a broker's loggers belong to the brokers.
REQUIRED = {TOPIC: _PARTS["topics"], GROUP: _PARTS["groups"]} | dict.fromkeys((BROKER, BROKER_LOGGER, CLIENT_METRICS), _PARTS["brokers"])

#: Kind and name of the owner of overrides, as in the store.
Entity = tuple[str, str]
#: (entity, present overrides, resource of the request) -> new overrides.
Changed = Callable[[Entity, Mapping[str, str], Any], dict[str, str]]
SetLevels = Callable[[Node, Any], None]
#: Of a resource in a turn, and of each of its settings.
WEIGHT, SETTING_WEIGHT = 8, 3


class Response(Protocol):
    """The response of either API."""

    responses: list[AlterConfigsResourceResponse]


R = TypeVar("R", bound=Response)


def refusals(call: RequestArrived[Any], error: KafkaError) -> list[AlterConfigsResourceResponse]:
    """The same error for each resource of the request."""
    found = [AlterConfigsResourceResponse(resource_type=one.resource_type, resource_name=one.resource_name) for one in call.body.resources]
    for result in found:
        note(result, error)
    return found


def of_loggers(call: RequestArrived[Any]) -> bool:
    """Whether a request changes only loggers, so that the broker that gets it carries it out."""
    return bool(call.body.resources) and all(resource.resource_type == BROKER_LOGGER for resource in call.body.resources)


def alter(node: Node, call: RequestArrived[Any], changed: Changed, response: R, *, set_levels: SetLevels | None = None) -> R | Deferred:
    """Changes the overrides of every resource of the request separately; the response gets a result for each. ``set_levels`` changes, or
    with validate_only checks, the levels of a broker's loggers."""
    writes = Writes(node, call)
    return writes.answer_in_turns(_work(node, call, changed, response, writes, set_levels), ANSWER_MS)


def _work(
    node: Node, call: RequestArrived[Any], changed: Changed, response: R, writes: Writes, set_levels: SetLevels | None
) -> Generator[int, None, R]:
    request, context = call.body, node.context
    times = yield from counted((resource.resource_type, resource.resource_name) for resource in request.resources)
    room = context.options.config_max_bytes - context.image.configs_bytes
    for resource in request.resources:
        result = AlterConfigsResourceResponse(
            resource_type=resource.resource_type, resource_name=resource.resource_name, error_message=None
        )
        response.responses.append(result)
        plan = partial(_plan, node, resource, changed)
        done = partial(note, result)
        yield WEIGHT + SETTING_WEIGHT * len(resource.configs)
        try:
            if times[resource.resource_type, resource.resource_name] > 1:
                raise errors.InvalidRequest(f"resource {resource.resource_name!r} is named more than once in this request")
            required = REQUIRED.get(resource.resource_type)
            if required is not None:
                context.demand(call, required, resource.resource_name)
            if resource.resource_type == BROKER_LOGGER and set_levels is not None:
                set_levels(node, resource)
                continue
            ops = plan()
            growth = _growth(node, resource, ops)
            if growth > max(room, 0):
                limit = context.options.config_max_bytes
                raise errors.PolicyViolation(f"all settings in the store would exceed ottla.config.max.bytes, {limit}; delete some")
            room -= growth
        except KafkaError as error:
            done(error)
            continue
        if ops and not request.validate_only:
            writes.add(ops, done, again=plan)
    free_counted(context, times)
    return response


def certificates(node: Node, call: RequestArrived[Any], changed: Changed) -> dict[str, ListenerSslOptions]:
    """Listeners of this broker whose TLS settings the request changes, with the settings that they would have. None for a client that
    may not change them, which the handler refuses: the broker opens no files for it, and does not say which of them exist.

    Raises: InvalidRequest for listeners of another broker: only that one can read its files.
    """
    context, found = node.context, dict[str, ListenerSslOptions]()
    if context.access is not None and not context.access.filter_of(call, REQUIRED[BROKER])(CLUSTER_NAME):
        return found
    for resource in call.body.resources:
        if resource.resource_type != BROKER or not resource.resource_name:
            continue
        present = context.image.overrides("brokers", resource.resource_name)
        try:
            after = changed(("brokers", resource.resource_name), present, resource)
        except KafkaError:
            # The handler refuses this resource alone.
            continue
        touched = {name for name in {*present, *after} if present.get(name) != after.get(name)}
        own = [setting for name in touched if (setting := listener_setting(name)) is not None and setting.spec.name.startswith("ssl.")]
        if own and resource.resource_name != str(context.broker_id):
            raise errors.InvalidRequest(f"only broker {resource.resource_name} can check its certificates; send the request to it")
        texts = {**context.settings.texts, **context.image.overrides("brokers", DEFAULT_ENTITY), **after}
        try:
            found |= {one.listener: with_prefix(texts, one.listener, context.options) for one in own}
        except ConfigError as error:
            raise errors.InvalidRequest(str(error)) from None
    return found


def spec_of(entity: Entity, name: str) -> OptionSpec | None:
    """The declaration of a setting; None for an unknown broker setting. Raises: InvalidConfig for one of a topic or group."""
    kind, _ = entity
    if kind != "brokers":
        try:
            if kind == "client-metrics":
                return ClientMetricsOptions.spec(name)
            return TopicOptions.spec(name) if kind == "topics" else group_spec(name)
        except ConfigError as error:
            raise errors.InvalidConfig(str(error)) from None
    return broker_spec(name)


def _growth(node: Node, resource: Any, ops: list[Op]) -> int:
    """Growth of the overrides' memory."""
    present = node.context.image.overrides(*_entity(node, resource)) if ops else {}
    before = entry_bytes(ops[-1].path, layout.encode_config(present)) if present else 0
    return sum(entry_bytes(op.path, op.data) - before for op in ops if op.kind in ("create", "set"))


def _plan(node: Node, resource: Any, changed: Changed) -> list[Op]:
    """Operations for the change; none if the overrides are unchanged. Raises: KafkaError."""
    twice = [name for name, times in Counter(config.name for config in resource.configs).items() if times > 1]
    if twice:
        raise errors.InvalidRequest(f"setting {twice[0]} is named more than once for resource {resource.resource_name!r}")
    entity = _entity(node, resource)
    present = node.context.image.overrides(*entity)
    overrides = changed(entity, present, resource)
    _check_lengths(entity, overrides)
    _check(node, entity, {name: text for name, text in overrides.items() if present.get(name) != text})
    try:
        check_size(node.context.options, entity[1], overrides, present)
    except ConfigError as error:
        raise (errors.InvalidRequest if entity[0] == "brokers" else errors.InvalidConfig)(str(error)) from None
    path = layout.config(*entity)
    version = node.context.image.versions.get(path)
    if overrides == present:
        return []
    ops = [Op("check", layout.topic(entity[1]))] if entity[0] == "topics" else []
    if version is None:
        ops.append(Op("create", path, layout.encode_config(overrides)))
    elif overrides:
        ops.append(Op("set", path, layout.encode_config(overrides), version=version))
    else:
        ops.append(Op("delete", path, version=version))
    return ops


def _entity(node: Node, resource: Any) -> Entity:
    name: str = resource.resource_name
    if resource.resource_type == TOPIC:
        if not name:
            raise errors.InvalidRequest("settings for all topics are settings of the brokers")
        check_name(name)
        if name not in node.context.image.topics:
            raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
        return "topics", name
    if resource.resource_type == BROKER:
        if not name:
            return "brokers", DEFAULT_ENTITY
        if name not in map(str, node.context.image.brokers):
            raise errors.InvalidRequest(f"no broker {name!r} is alive; there are {list(node.context.image.brokers)}")
        return "brokers", name
    if resource.resource_type == GROUP:
        if not name:
            raise errors.InvalidRequest("settings for all groups are settings of the brokers")
        return "groups", name
    if resource.resource_type == CLIENT_METRICS:
        if not name:
            raise errors.InvalidRequest("a subscription of client metrics has a name")
        return "client-metrics", name
    raise no_settings(resource.resource_type)


def _check(node: Node, entity: Entity, changed: Mapping[str, str]) -> None:
    """Raises: InvalidConfig for a topic or group, InvalidRequest for a broker."""
    if entity[0] == "topics":
        check_overrides(changed, node.context.options)
        return
    if entity[0] == "groups":
        _check_group(node, changed)
        return
    if entity[0] == "client-metrics":
        _check_client_metrics(changed)
        return
    for name, text in changed.items():
        try:
            check_at_run_time(entity[1], name, text, in_zookeeper=bool(node.context.options.zookeeper_connect))
        except ConfigError as error:
            raise errors.InvalidRequest(str(error)) from None


def _check_client_metrics(changed: Mapping[str, str]) -> None:
    """Raises: InvalidRequest, or InvalidConfig for patterns. Source: Kafka's ClientMetricsConfigs."""
    for name, text in changed.items():
        try:
            value = ClientMetricsOptions.spec(name).parse(text)
        except ConfigError as error:
            raise errors.InvalidRequest(str(error)) from None
        if name == "match":
            try:
                match_patterns(value)
            except ConfigError as error:
                raise errors.InvalidConfig(str(error)) from None


def _check_lengths(entity: Entity, overrides: Mapping[str, str]) -> None:
    """APPEND can make a value longer than a string of a response. Raises: InvalidRequest for a broker, else InvalidConfig."""
    for name, text in overrides.items():
        if len(text.encode()) > STRING_BYTES_MAX:
            wrong = errors.InvalidRequest if entity[0] == "brokers" else errors.InvalidConfig
            raise wrong(f"{name} would have {len(text.encode())} bytes; a value has at most {STRING_BYTES_MAX}")


def _check_group(node: Node, changed: Mapping[str, str]) -> None:
    """Raises: InvalidConfig."""
    options = node.context.options
    ranges = {
        "consumer.session.timeout.ms": (options.group_consumer_min_session_timeout_ms, options.group_consumer_max_session_timeout_ms),
        "consumer.heartbeat.interval.ms": (
            options.group_consumer_min_heartbeat_interval_ms,
            options.group_consumer_max_heartbeat_interval_ms,
        ),
        "consumer.assignment.interval.ms": (
            options.group_consumer_min_assignment_interval_ms,
            options.group_consumer_max_assignment_interval_ms,
        ),
    }
    for name, text in changed.items():
        try:
            value = group_spec(name).parse(text)
        except ConfigError as error:
            raise errors.InvalidConfig(str(error)) from None
        least, most = ranges[name]
        if not least <= value <= most:
            raise errors.InvalidConfig(f"{name} is {least} to {most} here, not {value}")
