"""The admin client for asyncio: topics, partitions, records, settings, brokers, groups.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topic(NewTopic("orders", num_partitions=6))

Methods in the plural answer for each item: its result, or the `KafkaError` that befell it (`Outcome`); nothing is raised for an item.
`create_topic` and other methods in the singular raise it. Requests go to the controller, a partition's leader or the broker concerned,
and are tried again, until `default_api_timeout_ms` or `timeout_ms` is over, while the error is one that passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition, as_partition
from ottla.client import results as r
from ottla.client.admin_calls import Outcome, failed, good
from ottla.client.cluster import Cluster
from ottla.client.network import METADATA_VERSION_MIN
from ottla.client.offsets import OffsetAndTime, list_offsets
from ottla.client.partition_admin import PartitionAdmin
from ottla.client.routing import Share, ask_leaders
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition, error_for
from ottla.wire.messages import alter_configs, describe_producers, incremental_alter_configs

#: The last DeleteTopics version that takes names only.
DELETE_BY_NAME_UNTIL = 5


class Admin(PartitionAdmin):
    """Administers a cluster. Settings are those of `AdminOptions`, as keyword arguments; belongs to the loop in which it is first used.

    Raises: ConfigError for a setting that is unknown or makes no sense.
    """

    # -- topics

    async def create_topics(
        self, topics: Iterable[r.NewTopic], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[r.CreatedTopic]]:
        """Create topics, or with `validate_only` see whether they could be."""
        wanted = {topic.name: topic for topic in topics}

        async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[r.CreatedTopic]]:
            request = m.CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in names], timeout_ms=int(left_ms), validate_only=validate_only
            )
            response = await self._controller(request, lambda answer: [topic.error_code for topic in answer.topics], left_ms)
            return {topic.name: failed(topic) or _created(topic) for topic in response.topics}

        return await self._each(list(wanted), ask, timeout_ms, "creating topic")

    async def create_topic(self, topic: r.NewTopic, *, timeout_ms: float | None = None) -> r.CreatedTopic:
        """Create one topic. Raises: TopicAlreadyExists, InvalidTopic, InvalidConfig and the like."""
        return good((await self.create_topics([topic], timeout_ms=timeout_ms))[topic.name])

    async def delete_topics(self, names: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, Outcome[None]]:
        """Delete topics with all their records."""

        async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[None]]:
            request = m.DeleteTopicsRequest(topic_names=names, timeout_ms=int(left_ms))
            response = await self._controller(
                request, lambda answer: [topic.error_code for topic in answer.responses], left_ms,
                at_most=DELETE_BY_NAME_UNTIL,
            )  # fmt: skip
            return {topic.name or "": failed(topic) for topic in response.responses}

        return await self._each(list(dict.fromkeys(names)), ask, timeout_ms, "deleting topic")

    async def delete_topic(self, name: str, *, timeout_ms: float | None = None) -> None:
        """Delete one topic. Raises: UnknownTopicOrPartition and the like."""
        good((await self.delete_topics([name], timeout_ms=timeout_ms))[name])

    async def create_partitions(
        self, partitions: Mapping[str, r.NewPartitions | int], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[None]]:
        """Raise the number of partitions of topics to the number given. Keys then go to other partitions than before."""

        async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[None]]:
            request = m.CreatePartitionsRequest(
                topics=[_growing(name, partitions[name]) for name in names], timeout_ms=int(left_ms), validate_only=validate_only
            )
            response = await self._controller(request, lambda answer: [topic.error_code for topic in answer.results], left_ms)
            return {topic.name: failed(topic) for topic in response.results}

        return await self._each(list(partitions), ask, timeout_ms, "creating partitions of")

    async def list_topics(self, *, internal: bool = False, timeout_ms: float | None = None) -> list[r.TopicListing]:
        """All topics that the client may see, by name. Raises: ConnectionFailed, RequestTimedOut."""
        response = await self._any(_metadata_request(None), timeout_ms, "listing topics", at_least=METADATA_VERSION_MIN)
        cluster = _picture(response, None)
        return [
            r.TopicListing(
                topic.name,
                topic.topic_id,
                topic.is_internal,
                len(topic.partitions),
                len(topic.partitions[0].replicas) if topic.partitions else 0,
            )
            for topic in sorted(cluster.topics.values())
            if internal or not topic.is_internal
        ]

    async def describe_topics(self, names: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, Outcome[r.TopicDescription]]:
        """Partitions, leaders and replicas of topics."""

        async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[r.TopicDescription]]:
            response = await self._network.ask_any(_metadata_request(names), at_least=METADATA_VERSION_MIN)
            cluster = _picture(response, names)
            return {name: _described(cluster, name) if name in cluster.topics else _undescribed(cluster, name) for name in names}

        return await self._each(list(dict.fromkeys(names)), ask, timeout_ms, "describing topic")

    async def describe_topic(self, name: str, *, timeout_ms: float | None = None) -> r.TopicDescription:
        """One topic. Raises: UnknownTopicOrPartition and the like."""
        return good((await self.describe_topics([name], timeout_ms=timeout_ms))[name])

    # -- records

    async def delete_records(
        self, before: Mapping[TopicPartition | tuple[str, int], int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[int]]:
        """Delete the records before an offset (-1: all below the high watermark); gives the new start of each log."""
        limit_ms = self._limit_ms(timeout_ms)

        async def ask(node: int, share: Share[int]) -> dict[TopicPartition, Outcome[int]]:
            topics: dict[str, m.DeleteRecordsTopic] = {}
            for tp, (offset, _) in share.items():
                topic = topics.setdefault(tp.topic, m.DeleteRecordsTopic(name=tp.topic, partitions=[]))
                topic.partitions.append(m.DeleteRecordsPartition(partition_index=tp.partition, offset=offset))
            response = await self._network.ask(node, m.DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=int(limit_ms)))
            return {
                TopicPartition(answer.name, one.partition_index): error_for(one.error_code) if one.error_code else one.low_watermark
                for answer in response.topics
                for one in answer.partitions
            }

        wanted = {as_partition(tp): offset for tp, offset in before.items()}
        return await ask_leaders(self._network, wanted, ask, timeout_ms=limit_ms, doing="deleting records of", patient=False)

    async def list_offsets(
        self, times: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[OffsetAndTime]]:
        """Offsets by time in milliseconds, or by `offsets.LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`."""
        wanted = {as_partition(tp): when for tp, when in times.items()}
        return await list_offsets(
            self._network, wanted, read_committed=read_committed, timeout_ms=self._limit_ms(timeout_ms), patient=False
        )

    async def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
        """Idempotent and transactional producers that each partition's leader remembers."""

        async def ask(node: int, share: Share[None]) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
            topics: dict[str, describe_producers.TopicRequest] = {}
            for tp in share:
                topics.setdefault(tp.topic, describe_producers.TopicRequest(name=tp.topic, partition_indexes=[])).partition_indexes.append(
                    tp.partition
                )
            response = await self._network.ask(node, m.DescribeProducersRequest(topics=list(topics.values())))
            return {
                TopicPartition(topic.name, one.partition_index): failed(one) or [_producer(state) for state in one.active_producers]
                for topic in response.topics
                for one in topic.partitions
            }

        wanted = dict.fromkeys((as_partition(tp) for tp in partitions), None)
        return await ask_leaders(
            self._network, wanted, ask, timeout_ms=self._limit_ms(timeout_ms), doing="describing producers of", patient=False
        )

    # -- settings

    async def describe_configs(
        self,
        resources: Iterable[r.Resource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[r.Resource, Outcome[dict[str, r.ConfigEntry]]]:
        """Settings of topics and brokers, by name; of all names or those given."""
        keys = None if names is None else list(names)

        async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[dict[str, r.ConfigEntry]]]:
            request = m.DescribeConfigsRequest(
                resources=[
                    m.DescribeConfigsResource(resource_type=one.type, resource_name=one.name, configuration_keys=keys) for one in share
                ],
                include_synonyms=synonyms,
                include_documentation=documentation,
            )
            response = await self._node(node, request, left_ms, at_least=3 if documentation else 0)
            return {_resource(one): failed(one) or {entry.name: _entry(entry) for entry in one.configs} for one in response.results}

        return await self._by_broker(resources, ask, timeout_ms, "describing settings of")

    async def incremental_alter_configs(
        self, changes: Mapping[r.Resource, Iterable[r.ConfigChange]], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[r.Resource, Outcome[None]]:
        """Change some settings and leave the others as they are."""
        wanted = {resource: list(each) for resource, each in changes.items()}

        async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[None]]:
            request = m.IncrementalAlterConfigsRequest(
                resources=[
                    incremental_alter_configs.AlterConfigsResource(
                        resource_type=one.type,
                        resource_name=one.name,
                        configs=[
                            incremental_alter_configs.AlterableConfig(
                                name=change.name, config_operation=change.operation, value=change.value
                            )
                            for change in wanted[one]
                        ],
                    )
                    for one in share
                ],
                validate_only=validate_only,
            )
            response = await self._node(node, request, left_ms)
            return {_resource(one): failed(one) for one in response.responses}

        return await self._by_broker(wanted, ask, timeout_ms, "changing settings of")

    async def alter_configs(
        self, configs: Mapping[r.Resource, Mapping[str, str | None]], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[r.Resource, Outcome[None]]:
        """Replace all settings of each resource: what is not named goes back to its default. Rather use `incremental_alter_configs`."""

        async def ask(node: int, share: list[r.Resource], left_ms: float) -> dict[r.Resource, Outcome[None]]:
            request = m.AlterConfigsRequest(
                resources=[
                    alter_configs.AlterConfigsResource(
                        resource_type=one.type,
                        resource_name=one.name,
                        configs=[alter_configs.AlterableConfig(name=name, value=value) for name, value in configs[one].items()],
                    )
                    for one in share
                ],
                validate_only=validate_only,
            )
            response = await self._node(node, request, left_ms)
            return {_resource(one): failed(one) for one in response.responses}

        return await self._by_broker(configs, ask, timeout_ms, "replacing settings of")

    async def list_config_resources(self, types: Iterable[r.ResourceType] = (), *, timeout_ms: float | None = None) -> list[r.Resource]:
        """Things that have settings of their own, of these types or all. Raises: BrokerIncompatible before Kafka 4.1."""
        request = m.ListConfigResourcesRequest(resource_types=[int(kind) for kind in types])
        response = await self._any(request, timeout_ms, "listing resources", at_least=1)
        return [r.Resource(r.ResourceType(one.resource_type), one.resource_name) for one in response.config_resources]

    # -- brokers

    async def describe_cluster(self, *, fenced: bool = False, timeout_ms: float | None = None) -> r.ClusterDescription:
        """The cluster's id, brokers and controller."""
        request = m.DescribeClusterRequest(include_fenced_brokers=fenced)
        response = await self._any(request, timeout_ms, "describing the cluster", at_least=2 if fenced else 0)
        nodes = [r.Node(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in response.brokers]
        return r.ClusterDescription(response.cluster_id, response.controller_id, sorted(nodes, key=lambda node: node.id))

    async def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[int, Outcome[list[r.LogDir]]]:
        """Log directories of brokers (all brokers when None) and what lies in them, of all topics or those given."""
        limit_ms = self._limit_ms(timeout_ms)
        nodes = await self._brokers(limit_ms) if brokers is None else list(brokers)
        asked: list[m.DescribableLogDirTopic] | None = None
        if topics is not None:
            described = await self.describe_topics(topics, timeout_ms=limit_ms)
            asked = [
                m.DescribableLogDirTopic(topic=name, partitions=[one.partition for one in good(topic).partitions])
                for name, topic in described.items()
            ]

        request = m.DescribeLogDirsRequest(topics=asked)
        return await self._each_broker(
            nodes,
            request,
            lambda response: [_log_dir(found) for found in response.results],
            timeout_ms,
            "describing log directories of broker",
        )


def _creatable(topic: r.NewTopic) -> m.CreatableTopic:
    return m.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.num_partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[m.CreatableReplicaAssignment(partition_index=index, broker_ids=nodes) for index, nodes in topic.assignments.items()],
        configs=[m.CreatableTopicConfig(name=name, value=value) for name, value in topic.configs.items()],
    )


def _created(topic: m.CreatableTopicResult) -> r.CreatedTopic:
    configs = {config.name: config.value for config in topic.configs or ()}
    return r.CreatedTopic(topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor, configs)


def _growing(name: str, wanted: r.NewPartitions | int) -> m.CreatePartitionsTopic:
    grown = r.NewPartitions(wanted) if isinstance(wanted, int) else wanted
    assignments = None if grown.assignments is None else [m.CreatePartitionsAssignment(broker_ids=nodes) for nodes in grown.assignments]
    return m.CreatePartitionsTopic(name=name, count=grown.total_count, assignments=assignments)


def _metadata_request(names: list[str] | None) -> m.MetadataRequest:
    topics = None if names is None else [m.MetadataRequestTopic(name=name) for name in names]
    return m.MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _picture(response: m.MetadataResponse, names: list[str] | None) -> Cluster:
    """An answer by itself, apart from what the client keeps to find its way."""
    picture = Cluster(max_age_ms=0)
    picture.apply(response, 0, asked=names)
    return picture


def _described(cluster: Cluster, name: str) -> r.TopicDescription:
    topic = cluster.topics[name]
    partitions = [
        r.PartitionDescription(one.partition, one.leader, one.leader_epoch, list(one.replicas), list(one.isr), list(one.offline))
        for one in topic.partitions
    ]
    return r.TopicDescription(topic.name, topic.topic_id, topic.is_internal, partitions)


def _undescribed(cluster: Cluster, name: str) -> KafkaError:
    error = cluster.errors.get(name)
    if error is None or isinstance(error, UnknownTopicOrPartition):
        return UnknownTopicOrPartition(f"there is no topic {name}")
    return error_for(error.code, f"topic {name}: {error}")


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
        entry.config_type,
        entry.documentation,
        synonyms,
    )


def _source(number: int) -> r.ConfigSource:
    return r.ConfigSource(number) if number in r.ConfigSource.__members__.values() else r.ConfigSource.UNKNOWN


def _producer(state: m.ProducerState) -> r.ActiveProducer:
    return r.ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )


def _log_dir(found: m.DescribeLogDirsResult) -> r.LogDir:
    replicas = [
        r.ReplicaLog(topic.name, one.partition_index, one.partition_size, one.offset_lag, one.is_future_key)
        for topic in found.topics
        for one in topic.partitions
    ]
    error = str(error_for(found.error_code)) if found.error_code else None
    return r.LogDir(found.log_dir, error, found.total_bytes, found.usable_bytes, replicas)
