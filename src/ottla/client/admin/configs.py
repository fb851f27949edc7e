"""Admin requests about settings of topics, brokers, groups, loggers and client metrics.

    await admin.describe_config(Resource.topic("orders"))
    await admin.incremental_alter_config(Resource.topic("orders"), {"retention.ms": "86400000", "cleanup.policy": None})

Requests about a broker and its loggers go to that broker, all others to any.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.client.admin import results as r
from ottla.client.admin.calls import HasCalls, Outcome, failed, good
from ottla.wire import messages as m
from ottla.wire.messages import alter_configs as replacing
from ottla.wire.messages import incremental_alter_configs as changing

#: First version of DescribeConfigs with documentation; first version of ListConfigResources with all types.
DOCUMENTATION_SINCE = 3
RESOURCES_SINCE = 1


async def describe_configs(
    self: HasCalls,
    resources: Iterable[r.Resource],
    *,
    names: Iterable[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
    timeout_ms: float | None = None,
) -> dict[r.Resource, Outcome[dict[str, r.ConfigEntry]]]:
    """Settings of topics, brokers and groups by name, all or these.

    Example: `admin.describe_configs([Resource.topic("orders"), Resource.broker(1)], names=["min.insync.replicas"])`.
    """
    keys = None if names is None else list(names)

    async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[dict[str, r.ConfigEntry]]]:
        request = m.DescribeConfigsRequest(
            resources=[m.DescribeConfigsResource(resource_type=one.type, resource_name=one.name, configuration_keys=keys) for one in share],
            include_synonyms=synonyms,
            include_documentation=documentation,
        )
        response = await self._calls.node(node, request, left_ms, at_least=DOCUMENTATION_SINCE if documentation else 0)
        return {_resource(one): failed(one) or {entry.name: _entry(entry) for entry in one.configs} for one in response.results}

    return await self._calls.by_broker(resources, ask, timeout_ms, "describing settings of")


async def describe_config(
    self: HasCalls,
    resource: r.Resource,
    *,
    names: Iterable[str] | None = None,
    synonyms: bool = False,
    documentation: bool = False,
    timeout_ms: float | None = None,
) -> dict[str, r.ConfigEntry]:
    """Settings of one topic, broker or group. Raises: UnknownTopicOrPartition and the like.

    Example: `admin.describe_config(Resource.topic("orders"), synonyms=True)`.
    """
    found = await describe_configs(self, [resource], names=names, synonyms=synonyms, documentation=documentation, timeout_ms=timeout_ms)
    return good(found[resource])


async def incremental_alter_configs(
    self: HasCalls, changes: Mapping[r.Resource, Iterable[r.ConfigChange]], *, validate_only: bool = False, timeout_ms: float | None = None
) -> dict[r.Resource, Outcome[None]]:
    """Change some settings; the others keep their values.

    Example: `admin.incremental_alter_configs({Resource.topic("orders"): [ConfigChange("retention.ms", "86400000")]})`.
    """
    wanted = {resource: list(each) for resource, each in changes.items()}

    async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[None]]:
        request = m.IncrementalAlterConfigsRequest(
            resources=[
                changing.AlterConfigsResource(
                    resource_type=one.type,
                    resource_name=one.name,
                    configs=[
                        changing.AlterableConfig(name=change.name, config_operation=change.operation, value=change.value)
                        for change in wanted[one]
                    ],
                )
                for one in share
            ],
            validate_only=validate_only,
        )
        response = await self._calls.node(node, request, left_ms)
        return {_resource(one): failed(one) for one in response.responses}

    return await self._calls.by_broker(wanted, ask, timeout_ms, "changing settings of")


async def incremental_alter_config(
    self: HasCalls,
    resource: r.Resource,
    values: Mapping[str, r.ConfigValue],
    *,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> None:
    """Change settings of one topic, broker or group; None resets one to its default. Raises: InvalidConfig and the like.

    Example: `admin.incremental_alter_config(Resource.topic("orders"), {"retention.ms": 86_400_000, "cleanup.policy": None})`.
    """
    changes = [
        r.ConfigChange(name, r.config_text(value), r.ConfigOperation.DELETE if value is None else r.ConfigOperation.SET)
        for name, value in values.items()
    ]
    done = await incremental_alter_configs(self, {resource: changes}, validate_only=validate_only, timeout_ms=timeout_ms)
    good(done[resource])


async def alter_configs(
    self: HasCalls,
    configs: Mapping[r.Resource, Mapping[str, r.ConfigValue]],
    *,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> dict[r.Resource, Outcome[None]]:
    """Replace all settings of each resource; others go back to their defaults. Prefer `incremental_alter_configs`.

    Example: `admin.alter_configs({Resource.topic("orders"): {"retention.ms": 86_400_000}})`.
    """

    async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[None]]:
        request = m.AlterConfigsRequest(
            resources=[
                replacing.AlterConfigsResource(
                    resource_type=one.type,
                    resource_name=one.name,
                    configs=[replacing.AlterableConfig(name=name, value=r.config_text(value)) for name, value in configs[one].items()],
                )
                for one in share
            ],
            validate_only=validate_only,
        )
        response = await self._calls.node(node, request, left_ms)
        return {_resource(one): failed(one) for one in response.responses}

    return await self._calls.by_broker(configs, ask, timeout_ms, "replacing settings of")


async def list_config_resources(
    self: HasCalls, types: Iterable[r.ResourceType] = (), *, timeout_ms: float | None = None
) -> list[r.Resource]:
    """Resources with settings, of these types or all. Before Kafka 4.1, brokers list CLIENT_METRICS only.

    Raises: BrokerIncompatible.

    Example: `admin.list_config_resources([ResourceType.GROUP])`.
    """
    wanted = [int(kind) for kind in types]
    only_metrics = wanted == [r.ResourceType.CLIENT_METRICS]
    request = m.ListConfigResourcesRequest(resource_types=[] if only_metrics else wanted)
    at_least, at_most = (0, RESOURCES_SINCE - 1) if only_metrics else (RESOURCES_SINCE, 1000)
    response = await self._calls.any_broker(request, timeout_ms, "listing resources", at_least=at_least, at_most=at_most)
    return [r.Resource(r.ResourceType(one.resource_type), one.resource_name) for one in response.config_resources]


def _resource(answer: Any) -> r.Resource:
    return r.Resource(r.ResourceType(answer.resource_type), answer.resource_name)


def _entry(entry: m.DescribeConfigsResourceResult) -> r.ConfigEntry:
    synonyms = [r.ConfigSynonym(one.name, one.value, _source(one.source)) for one in entry.synonyms]
    return r.ConfigEntry(
        entry.name,
        entry.value,
        _source(entry.config_source),
        entry.is_sensitive,
        entry.read_only,
        r.ConfigType(entry.config_type) if entry.config_type in r.ConfigType.__members__.values() else r.ConfigType.UNKNOWN,
        entry.documentation,
        synonyms,
    )


def _source(number: int) -> r.ConfigSource:
    return r.ConfigSource(number) if number in r.ConfigSource.__members__.values() else r.ConfigSource.UNKNOWN
