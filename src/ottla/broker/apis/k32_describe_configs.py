"""DescribeConfigs: settings of topics, this broker, all brokers, and groups.

==============  ============  =====================================================
resource type   name          result
==============  ============  =====================================================
2 topic         a topic       all topic settings with their sources
4 broker        this broker   all settings of this broker
4 broker        empty         dynamic settings of all brokers
8 broker logger this broker   the levels of all loggers of its process
16 client metrics any         settings of a subscription (KIP-714)
32 group        any           settings of consumer groups
==============  ============  =====================================================

Behaviour: no keys, or null, means all; unknown keys are omitted. Secrets have no value. An unknown topic is UNKNOWN_TOPIC_OR_PARTITION;
another broker's id, or another resource type, INVALID_REQUEST. A resource that is named again is described again until REPEATED_MAX
settings are repeated, then INVALID_REQUEST: a broker has 300 settings, so a request of 15 KB could have a response of 100 MB. Many
resources are described in turns (``turns.py``).
Versions: types and documentation from 3 on.

Difference from Kafka: the names of loggers are Ottla's. Source: KIP-133, KIP-226, KIP-412 (loggers), KIP-569, KIP-714, KIP-848.
"""

from collections.abc import Generator, Iterable, Iterator

from ottla.broker.controller.topics import check_name
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.config_entries import (
    BROKER,
    BROKER_LOGGER,
    CLIENT_METRICS,
    GROUP,
    TOPIC,
    ConfigEntry,
    broker_entries,
    client_metrics_entries,
    cluster_entries,
    group_entries,
    logger_entries,
    no_settings,
    topic_entries,
)
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

#: What a resource weighs in a turn, and each of its settings, with their sources and documentation.
RESOURCE_WEIGHT, SETTING_WEIGHT = 3, 4
#: Settings that a response has of resources that the request named before; the last one is described whole.
REPEATED_MAX = 1_000
_PARTS = REQUIREMENTS[32].parts
#: By resource type; settings of clients' metrics and of a broker's loggers belong to the brokers.
REQUIRED = {TOPIC: _PARTS["topics"], GROUP: _PARTS["groups"]} | dict.fromkeys((BROKER, BROKER_LOGGER, CLIENT_METRICS), _PARTS["brokers"])


def refuse(call: RequestArrived[DescribeConfigsRequest], error: KafkaError) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(results=[_refused(resource, error) for resource in call.body.resources])


@handles(DescribeConfigsRequest, (1, 4), refuse=refuse)
def describe_configs(node: Node, call: RequestArrived[DescribeConfigsRequest]) -> DescribeConfigsResponse | Deferred:
    def work() -> Generator[int, None, DescribeConfigsResponse]:
        response, describe = DescribeConfigsResponse(), Description(node, call).of
        for resource in call.body.resources:
            response.results.append((yield from describe(resource)))
            yield RESOURCE_WEIGHT
        return response

    answer: DescribeConfigsResponse | Deferred = node.context.turns.answer(call, work())
    return answer


class Description:
    """The answer to one request, resource by resource."""

    def __init__(self, node: Node, call: RequestArrived[DescribeConfigsRequest]) -> None:
        self._node, self._call = node, call
        self._named: set[tuple[int, str]] = set()
        #: Settings of resources that were named before.
        self._repeated = 0

    def of(self, resource: DescribeConfigsResource) -> Generator[int, None, DescribeConfigsResult]:
        """The settings of one resource, or its error; yields the weight of each setting."""
        node, call = self._node, self._call
        configs: list[DescribeConfigsResourceResult] = []
        try:
            required = REQUIRED.get(resource.resource_type)
            if required is not None:
                node.context.demand(call, required, resource.resource_name)
            for entry in self._entries_of(resource):
                configs.append(_shown(entry, call.body))
                yield SETTING_WEIGHT
        except KafkaError as error:
            return _refused(resource, error)
        return DescribeConfigsResult(
            error_message=None, resource_type=resource.resource_type, resource_name=resource.resource_name, configs=configs
        )

    def _entries_of(self, resource: DescribeConfigsResource) -> Iterator[ConfigEntry]:
        """The requested settings of a resource. Raises: KafkaError."""
        named = resource.resource_type, resource.resource_name
        repeated = named in self._named
        if repeated and self._repeated >= REPEATED_MAX:
            raise errors.InvalidRequest("the answer would have too many settings of resources that were named before; name each once")
        keys = frozenset(resource.configuration_keys or ())
        self._named.add(named)
        for entry in _entries(self._node, resource):
            if not keys or entry.name in keys:
                self._repeated += repeated
                yield entry


def _entries(node: Node, resource: DescribeConfigsResource) -> Iterable[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_name(name)
        if name not in node.context.image.topics:
            raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
        return topic_entries(node.context, node.context.image.overrides("topics", name))
    if resource.resource_type == BROKER:
        if not name:
            return cluster_entries(node.context)
        if name != str(node.context.broker_id):
            raise errors.InvalidRequest(f"this is broker {node.context.broker_id}; ask broker {name!r} for its own settings")
        return broker_entries(node.context)
    if resource.resource_type == BROKER_LOGGER:
        if name != str(node.context.broker_id):
            raise errors.InvalidRequest(f"this is broker {node.context.broker_id}; ask broker {name!r} for its own loggers")
        return logger_entries(node.context)
    if resource.resource_type == CLIENT_METRICS:
        if not name:
            raise errors.InvalidRequest("a subscription of client metrics has a name")
        return client_metrics_entries(node.context.image.overrides("client-metrics", name))
    if resource.resource_type == GROUP:
        if not name:
            raise errors.InvalidRequest("settings for all groups are settings of the brokers")
        return group_entries(node.context, node.context.image.overrides("groups", name))
    raise no_settings(resource.resource_type)


def _shown(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    shown = DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        config_type=entry.kind,
        documentation=entry.doc if request.include_documentation else None,
    )
    if request.include_synonyms:
        shown.synonyms = [DescribeConfigsSynonym(name=one.name, value=one.value, source=one.source) for one in entry.synonyms]
    return shown


def _refused(resource: DescribeConfigsResource, error: KafkaError) -> DescribeConfigsResult:
    return DescribeConfigsResult(
        error_code=error.code, error_message=str(error), resource_type=resource.resource_type, resource_name=resource.resource_name
    )
