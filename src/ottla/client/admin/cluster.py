"""Admin requests about the cluster, its brokers and their log directories.

    (await admin.describe_cluster()).nodes
    await admin.describe_log_dirs([1, 2])
    await admin.alter_replica_log_dirs({Replica("orders", 0, 1): "/disk2"})

Requests that only a KRaft cluster supports (`describe_quorum`, `unregister_broker`) raise BrokerIncompatible elsewhere: Ottla keeps its
metadata in a coordination store, and a broker's registration ends with its session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from ottla.base.version import VERSION
from ottla.client.admin import cluster_results as c
from ottla.client.admin import results as r
from ottla.client.admin.calls import AdminCalls, HasCalls, Outcome, failed, good
from ottla.client.admin.topics import OPERATIONS_SINCE, describe_topics
from ottla.client.errors import BrokerIncompatible
from ottla.client.transport.network import METADATA_VERSION_MIN, SOFTWARE_NAME
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, UnknownServerError, error_for

#: First version of DescribeCluster with fenced brokers; first version of ApiVersions with features.
FENCED_SINCE = 2
FEATURES_SINCE = 3
#: Last version of Metadata with authorized operations of the cluster.
OPERATIONS_UNTIL = 10
METADATA_LOG = "__cluster_metadata"
#: Types of UpdateFeatures.
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3


async def describe_cluster(
    self: HasCalls, *, fenced: bool = False, authorized_operations: bool = False, timeout_ms: float | None = None
) -> r.ClusterDescription:
    """The cluster's id, brokers and controller; optionally with fenced brokers and the operations this client is authorized for.

    Example: `admin.describe_cluster(fenced=True)`.
    """
    request = m.DescribeClusterRequest(include_fenced_brokers=fenced, include_cluster_authorized_operations=authorized_operations)
    doing = "describing the cluster"
    try:
        response = await self._calls.any_broker(request, timeout_ms, doing, at_least=FENCED_SINCE if fenced else 0)
    except BrokerIncompatible:
        if fenced:
            raise
        return await _cluster_of_metadata(self._calls, authorized_operations, timeout_ms, doing)
    nodes = [r.Node(one.broker_id, one.host, one.port, one.rack, one.is_fenced) for one in response.brokers]
    allowed = r.Operation.of_bits(response.cluster_authorized_operations) if authorized_operations else None
    return r.ClusterDescription(response.cluster_id, response.controller_id, sorted(nodes, key=lambda node: node.id), allowed)


async def _cluster_of_metadata(calls: AdminCalls, operations: bool, timeout_ms: float | None, doing: str) -> r.ClusterDescription:
    """The same from a broker before Kafka 2.8, whose Metadata response has it."""
    old = m.MetadataRequest(topics=[], allow_auto_topic_creation=False, include_cluster_authorized_operations=operations)
    at_least = OPERATIONS_SINCE if operations else METADATA_VERSION_MIN
    response = await calls.any_broker(old, timeout_ms, doing, at_least=at_least, at_most=OPERATIONS_UNTIL)
    nodes = [r.Node(one.node_id, one.host, one.port, one.rack) for one in response.brokers]
    allowed = r.Operation.of_bits(response.cluster_authorized_operations) if operations else None
    return r.ClusterDescription(response.cluster_id, response.controller_id, sorted(nodes, key=lambda node: node.id), allowed)


async def describe_features(self: HasCalls, *, broker: int | None = None, timeout_ms: float | None = None) -> c.Features:
    """Feature levels that a broker supports and that are finalized in the cluster; empty without features. Source: KIP-584.

    Example: `admin.describe_features()`.
    """
    response = await _api_versions(self._calls, broker, timeout_ms, at_least=FEATURES_SINCE)
    return c.Features(
        {one.name: c.VersionRange(one.min_version, one.max_version) for one in response.supported_features},
        {one.name: c.VersionRange(one.min_version_level, one.max_version_level) for one in response.finalized_features},
        response.finalized_features_epoch if response.finalized_features_epoch >= 0 else None,
    )


async def update_features(
    self: HasCalls,
    levels: Mapping[str, int],
    *,
    downgrade: bool = False,
    unsafe: bool = False,
    validate_only: bool = False,
    timeout_ms: float | None = None,
) -> None:
    """Finalize levels of features by name: all of them, or none.

    A lower level needs ``downgrade``; ``unsafe`` also permits one that loses metadata. Raises: InvalidUpdateVersion if a broker does not
    support a level, or if it cannot be lowered; InvalidRequest. Source: KIP-584.

    Example: `admin.update_features({"ottla.version": 2}, validate_only=True)`.
    """
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE if downgrade else UPGRADE
    limit_ms = self._calls.limit_ms(timeout_ms)
    updates = [
        m.FeatureUpdateKey(feature=name, max_version_level=level, allow_downgrade=kind != UPGRADE, upgrade_type=kind)
        for name, level in levels.items()
    ]
    request = m.UpdateFeaturesRequest(timeout_ms=int(limit_ms), feature_updates=updates, validate_only=validate_only)
    # Version 0 has no requests that only check.
    response = await self._calls.any_broker(request, limit_ms, "updating features", at_least=1 if validate_only else 0)
    for result in response.results:
        if error := failed(result):
            raise error


async def describe_api_versions(self: HasCalls, *, broker: int | None = None, timeout_ms: float | None = None) -> list[c.ApiSupport]:
    """All APIs of a broker (None: any) with their versions, beside this client's versions; by API key.

    Example: `admin.describe_api_versions(broker=1)`.
    """
    response = await _api_versions(self._calls, broker, timeout_ms)
    found = []
    for one in sorted(response.api_keys, key=lambda one: int(one.api_key)):
        ours = m.API.get(one.api_key)
        theirs = c.VersionRange(one.min_version, one.max_version)
        found.append(c.ApiSupport(one.api_key, ours.name if ours else "", theirs, c.VersionRange(*ours.versions) if ours else None))
    return found


async def _api_versions(calls: AdminCalls, broker: int | None, timeout_ms: float | None, *, at_least: int = 0) -> m.ApiVersionsResponse:
    request = m.ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=VERSION)
    doing = "asking for versions of broker"
    if broker is None:
        response: m.ApiVersionsResponse = await calls.any_broker(request, timeout_ms, f"{doing}s", at_least=at_least)
        return response
    told = await calls.each_broker([broker], request, lambda response: response, timeout_ms, doing, at_least=at_least)
    response = good(told[broker])
    return response


async def describe_quorum(self: HasCalls, *, timeout_ms: float | None = None) -> c.Quorum:
    """Leader, voters and observers of a KRaft cluster's metadata log. Raises: BrokerIncompatible in other clusters.

    Example: `admin.describe_quorum()`.
    """
    request = m.DescribeQuorumRequest(
        topics=[m.DescribeQuorumRequestTopic(topic_name=METADATA_LOG, partitions=[m.DescribeQuorumRequestPartition()])]
    )
    response = await self._calls.any_broker(request, timeout_ms, "describing the quorum")
    partitions = [one for topic in response.topics for one in topic.partitions]
    if len(partitions) != 1:
        raise UnknownServerError(f"the broker described {len(partitions)} metadata logs; one was asked for")
    (log,) = partitions
    if error := failed(log):
        raise error
    listeners = {node.node_id: [c.QuorumListener(one.name, one.host, one.port) for one in node.listeners] for node in response.nodes}
    voters, observers = ([_replica(one) for one in some] for some in (log.current_voters, log.observers))
    return c.Quorum(log.leader_id, log.leader_epoch, log.high_watermark, voters, observers, listeners)


async def unregister_broker(self: HasCalls, broker: int, *, timeout_ms: float | None = None) -> None:
    """Remove a broker from a KRaft cluster's metadata. Raises: BrokerIdNotRegistered; BrokerIncompatible in other clusters.

    Example: `admin.unregister_broker(3)`.
    """
    await self._calls.any_broker(m.UnregisterBrokerRequest(broker_id=broker), timeout_ms, f"unregistering broker {broker}")


async def describe_log_dirs(
    self: HasCalls, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None, timeout_ms: float | None = None
) -> dict[int, Outcome[list[r.LogDir]]]:
    """Log directories of brokers (all brokers when None) with their replicas, of all topics or of these.

    Example: `admin.describe_log_dirs([1, 2], topics=["orders"])`.
    """
    limit_ms = self._calls.limit_ms(timeout_ms)
    nodes = await self._calls.brokers(limit_ms) if brokers is None else list(brokers)
    asked: list[m.DescribableLogDirTopic] | None = None
    if topics is not None:
        described = await describe_topics(self, topics, timeout_ms=limit_ms)
        asked = [
            m.DescribableLogDirTopic(topic=name, partitions=[one.partition for one in good(topic).partitions])
            for name, topic in described.items()
        ]
    request = m.DescribeLogDirsRequest(topics=asked)
    return await self._calls.each_broker(
        nodes,
        request,
        lambda response: [_log_dir(found) for found in response.results],
        timeout_ms,
        "describing log directories of broker",
    )


async def describe_replica_log_dirs(
    self: HasCalls, replicas: Iterable[c.Replica | tuple[str, int, int]], *, timeout_ms: float | None = None
) -> dict[c.Replica, Outcome[c.ReplicaPlace]]:
    """The log directory of each replica (topic, partition, broker), and the one to which it is moving.

    Example: `admin.describe_replica_log_dirs([("orders", 0, 1)])`.
    """
    wanted = list(dict.fromkeys(c.Replica(*one) for one in replicas))

    async def of_broker(broker: int, share: list[c.Replica]) -> dict[c.Replica, Outcome[c.ReplicaPlace]]:
        topics: dict[str, m.DescribableLogDirTopic] = {}
        for one in share:
            topics.setdefault(one.topic, m.DescribableLogDirTopic(topic=one.topic, partitions=[])).partitions.append(one.partition)
        request = m.DescribeLogDirsRequest(topics=list(topics.values()))
        told = await self._calls.each_broker(
            [broker], request, lambda response: response.results, timeout_ms, "describing log directories of broker"
        )
        results = told[broker]
        if isinstance(results, KafkaError):
            return dict.fromkeys(share, results)
        places = _places(results)
        return {one: places.get((one.topic, one.partition), c.ReplicaPlace(None)) for one in share}

    by_broker: dict[int, list[c.Replica]] = {}
    for one in wanted:
        by_broker.setdefault(one.broker, []).append(one)
    found: dict[c.Replica, Outcome[c.ReplicaPlace]] = {}
    for some in await asyncio.gather(*(of_broker(*each) for each in by_broker.items())):
        found.update(some)
    return {one: found[one] for one in wanted}


async def alter_replica_log_dirs(
    self: HasCalls, places: Mapping[c.Replica | tuple[str, int, int], str], *, timeout_ms: float | None = None
) -> dict[c.Replica, Outcome[None]]:
    """Start to move replicas (topic, partition, broker) to other directories of the same broker, given by absolute paths.

    A move is complete when `describe_replica_log_dirs` has no future path for it. LogDirNotFound, ReplicaNotAvailable and
    KafkaStorageError are outcomes; BrokerIncompatible if brokers do not support it.

    Example: `admin.alter_replica_log_dirs({("orders", 0, 1): "/data/2"})`.
    """
    wanted = {c.Replica(*one): path for one, path in places.items()}

    by_broker: dict[int, list[c.Replica]] = {}
    for one in wanted:
        by_broker.setdefault(one.broker, []).append(one)

    async def of_broker(broker: int, left_ms: float) -> Outcome[m.AlterReplicaLogDirsResponse]:
        dirs: dict[str, dict[str, m.AlterReplicaLogDirTopic]] = {}
        for one in by_broker[broker]:
            topics = dirs.setdefault(wanted[one], {})
            topics.setdefault(one.topic, m.AlterReplicaLogDirTopic(name=one.topic, partitions=[])).partitions.append(one.partition)
        asked = [m.AlterReplicaLogDir(path=path, topics=list(topics.values())) for path, topics in dirs.items()]
        try:
            response: m.AlterReplicaLogDirsResponse = await self._calls.node(broker, m.AlterReplicaLogDirsRequest(dirs=asked), left_ms)
        except KafkaError as error:
            return error
        return response

    async def ask(brokers: list[int], left_ms: float) -> dict[int, Outcome[m.AlterReplicaLogDirsResponse]]:
        return dict(zip(brokers, await asyncio.gather(*(of_broker(broker, left_ms) for broker in brokers)), strict=True))

    # Errors of single replicas are not retried: a missing replica does not appear by waiting.
    told = await self._calls.each(list(by_broker), ask, timeout_ms, "moving replicas on broker")
    found: dict[c.Replica, Outcome[None]] = {}
    for broker, answer in told.items():
        if isinstance(answer, KafkaError):
            found.update(dict.fromkeys(by_broker[broker], answer))
            continue
        left_out = UnknownServerError(f"broker {broker} left it out of its answer")
        found.update(dict.fromkeys(by_broker[broker], left_out))
        for topic in answer.results:
            found.update({c.Replica(topic.topic_name, one.partition_index, broker): failed(one) for one in topic.partitions})
    return {one: found[one] for one in wanted}


def _replica(one: m.QuorumReplicaState) -> c.QuorumReplica:
    times = (time if time >= 0 else None for time in (one.last_fetch_timestamp, one.last_caught_up_timestamp))
    return c.QuorumReplica(one.replica_id, one.replica_directory_id, one.log_end_offset, *times)


def _places(results: Iterable[m.DescribeLogDirsResult]) -> dict[tuple[str, int], c.ReplicaPlace]:
    now: dict[tuple[str, int], tuple[str, int]] = {}
    future: dict[tuple[str, int], tuple[str, int]] = {}
    for found in results:
        for topic in found.topics:
            for one in topic.partitions:
                (future if one.is_future_key else now)[topic.name, one.partition_index] = (found.log_dir, one.offset_lag)
    return {tp: c.ReplicaPlace(*now.get(tp, (None, -1)), *future.get(tp, (None, -1))) for tp in {**now, **future}}


def _log_dir(found: m.DescribeLogDirsResult) -> r.LogDir:
    replicas = [
        r.ReplicaLog(topic.name, one.partition_index, one.partition_size, one.offset_lag, one.is_future_key, one.damage)
        for topic in found.topics
        for one in topic.partitions
    ]
    error = str(error_for(found.error_code)) if found.error_code else None
    return r.LogDir(found.log_dir, error, found.total_bytes, found.usable_bytes, replicas, found.is_cordoned)
