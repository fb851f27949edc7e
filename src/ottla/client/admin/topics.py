"""Admin requests about topics.

    await admin.create_topics([NewTopic("orders", partitions=6)])
    await admin.describe_topics(["orders"])

A topic is named by its name (str) or its id (16 bytes). A recreated topic has the same name and another id (KIP-516).

DescribeTopicPartitions describes topics page by page, with the eligible leader replicas (KIP-966). Older brokers and topic ids need
Metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from ottla.base.acls import Operation
from ottla.base.ids import topic_id_text
from ottla.client.access_errors import refused_access
from ottla.client.admin import results as r
from ottla.client.admin.calls import AdminCalls, HasCalls, Outcome, each_once, failed, good
from ottla.client.errors import BrokerIncompatible
from ottla.client.html_tables import HtmlRows, Outcomes
from ottla.client.options import AdminOptions
from ottla.client.transport.cluster import topic_error
from ottla.client.transport.network import METADATA_VERSION_MIN
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, UnknownTopicId, UnknownTopicOrPartition, error_for
from ottla.wire.messages import describe_topic_partitions as pages

#: A topic's name or id.
N = TypeVar("N", bound=str | bytes)
#: Last DeleteTopics version with names only; first Metadata version with ids, and with authorized operations.
DELETE_BY_NAME_UNTIL = 5
IDS_SINCE = 12
OPERATIONS_SINCE = 8
#: Default limit of brokers (max.request.partition.size.limit).
PAGE_PARTITIONS = 2000


async def create_topics(
    self: HasCalls, topics: Iterable[r.NewTopic], *, validate_only: bool = False, timeout_ms: float | None = None
) -> dict[str, Outcome[r.CreatedTopic]]:
    """Create topics; with `validate_only` only check whether they can be created.

    Example: `admin.create_topics([NewTopic("orders", partitions=6), NewTopic("payments", configs={"retention.ms": 86_400_000})])`.
    """
    wanted: dict[str, r.NewTopic] = {}
    for topic in topics:
        wanted[topic.name] = topic

    async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[r.CreatedTopic]]:
        request = m.CreateTopicsRequest(
            topics=[_creatable(wanted[name]) for name in names], timeout_ms=int(left_ms), validate_only=validate_only
        )
        response = await self._calls.controller(request, lambda answer: [topic.error_code for topic in answer.topics], left_ms)
        return {topic.name: failed(topic) or _created(topic) for topic in response.topics}

    return await self._calls.each(list(wanted), ask, timeout_ms, "creating topic")


async def create_topic(
    self: HasCalls, topic: r.NewTopic, *, validate_only: bool = False, timeout_ms: float | None = None
) -> r.CreatedTopic:
    """Create one topic. Raises: TopicAlreadyExists, InvalidTopic, InvalidConfig and the like.

    Example: `admin.create_topic(NewTopic("orders", partitions=6, replication_factor=3))`.
    """
    return good((await create_topics(self, [topic], validate_only=validate_only, timeout_ms=timeout_ms))[topic.name])


async def delete_topics(self: HasCalls, topics: Iterable[N], *, timeout_ms: float | None = None) -> dict[N, Outcome[None]]:
    """Delete topics, by name or id, with all their records. Example: `admin.delete_topics(["orders", "payments"])`."""

    async def ask(some: list[N], left_ms: float) -> dict[N, Outcome[None]]:
        ids = any(isinstance(one, bytes) for one in some)
        states = [m.DeleteTopicState(topic_id=one) if isinstance(one, bytes) else m.DeleteTopicState(name=one) for one in some]
        request = m.DeleteTopicsRequest(timeout_ms=int(left_ms))
        if ids:
            request.topics = states
        else:
            request.topic_names = [one for one in some if isinstance(one, str)]
        response = await self._calls.controller(
            request,
            lambda answer: [topic.error_code for topic in answer.responses],
            left_ms,
            at_least=DELETE_BY_NAME_UNTIL + 1 if ids else 0,
            at_most=1000 if ids else DELETE_BY_NAME_UNTIL,
        )
        found: dict[Any, Outcome[None]] = {topic.name: failed(topic) for topic in response.responses}
        found |= {topic.topic_id: failed(topic) for topic in response.responses}
        return {one: found[one] for one in some if one in found}

    return await self._calls.each(list(each_once(topics)), ask, timeout_ms, "deleting topic")


async def delete_topic(self: HasCalls, topic: str | bytes, *, timeout_ms: float | None = None) -> None:
    """Delete one topic, by name or id. Raises: UnknownTopicOrPartition, UnknownTopicId and the like.

    Example: `admin.delete_topic("orders")`.
    """
    good((await delete_topics(self, [topic], timeout_ms=timeout_ms))[topic])


async def create_partitions(
    self: HasCalls, partitions: Mapping[str, r.NewPartitions | int], *, validate_only: bool = False, timeout_ms: float | None = None
) -> dict[str, Outcome[None]]:
    """Increase the number of partitions of topics to a new total. This changes which partition a key maps to.

    Example: `admin.create_partitions({"orders": 12}, validate_only=True)`.
    """

    async def ask(names: list[str], left_ms: float) -> dict[str, Outcome[None]]:
        request = m.CreatePartitionsRequest(
            topics=[_growing(name, partitions[name]) for name in names], timeout_ms=int(left_ms), validate_only=validate_only
        )
        response = await self._calls.controller(request, lambda answer: [topic.error_code for topic in answer.results], left_ms)
        return {topic.name: failed(topic) for topic in response.results}

    return await self._calls.each(list(partitions), ask, timeout_ms, "creating partitions of")


async def list_topics(self: HasCalls, *, internal: bool = False, timeout_ms: float | None = None) -> list[r.TopicListing]:
    """All topics that the client may see, by name. Raises: ConnectionFailed, RequestTimedOut.

    Example: `admin.list_topics(internal=True)`.
    """
    request = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = await self._calls.any_broker(request, timeout_ms, "listing topics", at_least=METADATA_VERSION_MIN)
    return HtmlRows(
        r.TopicListing(
            topic.name,
            topic.topic_id,
            topic.is_internal,
            len(topic.partitions),
            len(topic.partitions[0].replica_nodes) if topic.partitions else 0,
        )
        for topic in sorted(response.topics, key=lambda topic: topic.name or "")
        if (internal or not topic.is_internal) and not topic.error_code
    )


async def describe_all(self: HasCalls, *, timeout_ms: float | None = None) -> dict[str, r.TopicDescription]:
    """All topics that the client may see, by name, from one Metadata response. Raises: ConnectionFailed, RequestTimedOut.

    For the console, which measures whole clusters: `list_topics` and `describe_topics` would decode the partitions twice. There are no
    eligible leader replicas in it.
    """
    request = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    response = await self._calls.any_broker(request, timeout_ms, "describing topics", at_least=METADATA_VERSION_MIN)
    found = {topic.name or "": _described(topic, self._calls.options, operations=False) for topic in response.topics}
    return {name: one for name, one in found.items() if not isinstance(one, KafkaError)}


async def describe_topics(
    self: HasCalls, topics: Iterable[N], *, authorized_operations: bool = False, timeout_ms: float | None = None
) -> dict[N, Outcome[r.TopicDescription]]:
    """Partitions, leaders and replicas of topics, by name or id; optionally the operations this client is authorized for.

    Example: `admin.describe_topics(["orders", "payments"])`.
    """

    async def ask(some: list[N], left_ms: float) -> dict[N, Outcome[r.TopicDescription]]:
        found: dict[Any, Outcome[r.TopicDescription]] = {}
        names = [one for one in some if isinstance(one, str)]
        ids = [one for one in some if isinstance(one, bytes)]
        try:
            told = await _pages(self._calls, names) if names else []
        except BrokerIncompatible:
            told = await _metadata(self._calls, [m.MetadataRequestTopic(name=name) for name in names], authorized_operations)
        found |= {topic.name: _described(topic, self._calls.options, authorized_operations) for topic in told}
        if ids:
            asked = [m.MetadataRequestTopic(topic_id=one, name=None) for one in ids]
            by_id = await _metadata(self._calls, asked, authorized_operations, at_least=IDS_SINCE)
            found |= {topic.topic_id: _described(topic, self._calls.options, authorized_operations) for topic in by_id}
        return {one: found.get(one) or UnknownTopicOrPartition(f"there is no topic {called(one)}") for one in some}

    return Outcomes(await self._calls.each(list(each_once(topics)), ask, timeout_ms, "describing topic"))


async def describe_topic(
    self: HasCalls, topic: str | bytes, *, authorized_operations: bool = False, timeout_ms: float | None = None
) -> r.TopicDescription:
    """One topic, by name or id. Raises: UnknownTopicOrPartition, UnknownTopicId and the like.

    Example: `admin.describe_topic("orders", authorized_operations=True)`.
    """
    found = await describe_topics(self, [topic], authorized_operations=authorized_operations, timeout_ms=timeout_ms)
    return good(found[topic])


async def _metadata(
    calls: AdminCalls, asked: list[m.MetadataRequestTopic], operations: bool, *, at_least: int = METADATA_VERSION_MIN
) -> list[Any]:
    request = m.MetadataRequest(topics=asked, allow_auto_topic_creation=False, include_topic_authorized_operations=operations)
    response = await calls.network.ask_any(request, at_least=max(at_least, OPERATIONS_SINCE) if operations else at_least)
    if error := failed(response):
        raise error
    return list(response.topics)


async def _pages(calls: AdminCalls, names: Sequence[str]) -> list[Any]:
    """All pages of DescribeTopicPartitions; a topic's partitions may span pages."""
    topics: dict[str | None, Any] = {}
    cursor: pages.Cursor | None = None
    while True:
        left = [name for name in sorted(names) if cursor is None or name >= cursor.topic_name]
        request = m.DescribeTopicPartitionsRequest(
            topics=[pages.TopicRequest(name=name) for name in left], response_partition_limit=PAGE_PARTITIONS, cursor=cursor
        )
        response = await calls.network.ask_any(request)
        for topic in response.topics:
            if topic.name in topics and not topic.error_code:
                topics[topic.name].partitions.extend(topic.partitions)
            else:
                topics[topic.name] = topic
        after = response.next_cursor
        if after is None or (
            cursor is not None and (after.topic_name, after.partition_index) <= (cursor.topic_name, cursor.partition_index)
        ):
            return list(topics.values())
        cursor = after


def called(topic: str | bytes) -> str:
    """A topic's name, or its id in Kafka's text form."""
    return topic if isinstance(topic, str) else topic_id_text(topic)


def _creatable(topic: r.NewTopic) -> m.CreatableTopic:
    return m.CreatableTopic(
        name=topic.name,
        num_partitions=-1 if topic.assignments else topic.num_partitions,
        replication_factor=-1 if topic.assignments else topic.replication_factor,
        assignments=[
            m.CreatableReplicaAssignment(partition_index=index, broker_ids=list(nodes)) for index, nodes in topic.assignments.items()
        ],
        configs=[m.CreatableTopicConfig(name=name, value=r.config_text(value)) for name, value in topic.configs.items()],
    )


def _created(topic: m.CreatableTopicResult) -> r.CreatedTopic:
    configs = {config.name: config.value for config in topic.configs or ()}
    return r.CreatedTopic(topic.name, topic.topic_id, topic.num_partitions, topic.replication_factor, configs)


def _growing(name: str, wanted: r.NewPartitions | int) -> m.CreatePartitionsTopic:
    grown = r.NewPartitions(wanted) if isinstance(wanted, int) else wanted
    assignments = None if grown.assignments is None else [m.CreatePartitionsAssignment(broker_ids=nodes) for nodes in grown.assignments]
    return m.CreatePartitionsTopic(name=name, count=grown.total_count, assignments=assignments)


def _described(topic: Any, options: AdminOptions, operations: bool) -> Outcome[r.TopicDescription]:
    """The description from a Metadata or DescribeTopicPartitions response."""
    if topic.error_code:
        return _undescribed(topic, options)
    partitions = [
        r.PartitionDescription(
            one.partition_index,
            one.leader_id,
            one.leader_epoch,
            one.replica_nodes,
            one.isr_nodes,
            one.offline_replicas,
            getattr(one, "eligible_leader_replicas", None),
            getattr(one, "last_known_elr", None),
        )
        for one in sorted(topic.partitions, key=lambda one: one.partition_index)
    ]
    allowed = r.Operation.of_bits(topic.topic_authorized_operations) if operations else None
    return r.TopicDescription(topic.name or "", topic.topic_id, topic.is_internal, partitions, allowed)


def _undescribed(topic: Any, options: AdminOptions) -> KafkaError:
    error = error_for(topic.error_code)
    if isinstance(error, UnknownTopicOrPartition):
        return UnknownTopicOrPartition(f"there is no topic {topic.name}")
    if isinstance(error, UnknownTopicId):
        return UnknownTopicId(f"there is no topic with the id {topic_id_text(topic.topic_id)}")
    name = topic.name or topic_id_text(topic.topic_id)
    return topic_error(topic.error_code, name, refused_access(topic.error_code, options, Operation.DESCRIBE, name))
