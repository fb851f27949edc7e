"""The admin client against an in-memory cluster: requests, their versions and destinations, and the results."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from memory_cluster import MemoryCluster, MemoryNode

import ottla
import ottla.broker.node  # the handlers
from ottla import KafkaError, NewTopic, Resource, aio, unwrap
from ottla.aio import Admin
from ottla.broker.apis import HANDLERS
from ottla.client.fetch import offsets
from ottla.client.group import coordinator_lookup
from ottla.errors import (
    BrokerIncompatible,
    InvalidTopic,
    KafkaStorageError,
    LogDirNotFound,
    ReplicaNotAvailable,
    TopicAlreadyExists,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from ottla.results import EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, Operation, QuotaEntity, QuotaMatch, Replica, ReplicaPlace, VersionRange
from ottla.wire import messages as m
from ottla.wire.messages import describe_client_quotas as describing
from ottla.wire.messages.alter_client_quotas import EntryResult
from ottla.wire.messages.incremental_alter_configs import AlterConfigsResourceResponse
from ottla.wire.messages.metadata import NOT_REQUESTED


class AdministeredNode(MemoryNode):
    """A broker with log directories and a quorum whose state the test defines."""

    def on_DescribeLogDirs(self, request: Any, header: Any) -> Any:
        dirs: dict[str, dict[str, m.DescribeLogDirsTopic]] = {"/a": {}, "/b": {}}
        for (topic, partition, broker), (path, future) in PLACES.items():
            for at, is_future in ((path, False), (future, True)):
                if broker == self.node_id and at is not None:
                    there = dirs[at].setdefault(topic, m.DescribeLogDirsTopic(name=topic, partitions=[]))
                    there.partitions.append(
                        m.DescribeLogDirsPartition(partition_index=partition, offset_lag=7 * is_future, is_future_key=is_future)
                    )
        return m.DescribeLogDirsResponse(
            results=[m.DescribeLogDirsResult(log_dir=path, topics=list(topics.values())) for path, topics in dirs.items()]
        )

    def on_AlterReplicaLogDirs(self, request: Any, header: Any) -> Any:
        topics = []
        for where in request.dirs:
            for topic in where.topics:
                codes = [
                    57 if where.path == "/c" else 9 if (topic.name, index, self.node_id) not in PLACES else 0 for index in topic.partitions
                ]
                answers = [
                    m.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=code)
                    for index, code in zip(topic.partitions, codes, strict=True)
                ]
                topics.append(m.AlterReplicaLogDirTopicResult(topic_name=topic.name, partitions=answers))
        return m.AlterReplicaLogDirsResponse(results=topics)

    def on_DescribeQuorum(self, request: Any, header: Any) -> Any:
        voter = m.QuorumReplicaState(replica_id=1, log_end_offset=9, last_fetch_timestamp=-1, last_caught_up_timestamp=5)
        log = m.DescribeQuorumResponsePartition(leader_id=1, leader_epoch=2, high_watermark=8, current_voters=[voter])
        return m.DescribeQuorumResponse(topics=[m.DescribeQuorumResponseTopic(topic_name="__cluster_metadata", partitions=[log])])

    def on_DescribeCluster(self, request: Any, header: Any) -> Any:
        bits = 1 << Operation.ALTER | 1 << 30 if request.include_cluster_authorized_operations else NOT_REQUESTED
        return m.DescribeClusterResponse(cluster_id="memory", controller_id=1, cluster_authorized_operations=bits)

    def on_DescribeConfigs(self, request: Any, header: Any) -> Any:
        asked = [(one.resource_type, one.resource_name) for one in request.resources]
        return m.DescribeConfigsResponse(results=[m.DescribeConfigsResult(resource_type=kind, resource_name=name) for kind, name in asked])


#: Directory and future directory by (topic, partition, broker).
PLACES: dict[tuple[str, int, int], tuple[str, str | None]] = {
    ("t", 0, 1): ("/a", None),
    ("many", 0, 1): ("/a", "/b"),
    ("many", 1, 2): ("/b", None),
}


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    """Two nodes; `t` with one partition, `many` with three."""
    made = MemoryCluster(2)
    for node_id in made.nodes:
        made.nodes[node_id] = AdministeredNode(made, node_id)
    made.create("t")
    made.create("many", 3)
    monkeypatch.setattr("ottla.client.transport.network.open_connection", made.connect)
    return made


@pytest.fixture
async def admin(two: MemoryCluster, quick: dict[str, Any]) -> AsyncIterator[Admin]:
    async with Admin(retries=1, **quick) as made:
        yield made


def sent(cluster: MemoryCluster, request: type[Any]) -> list[tuple[int, Any]]:
    return [(node, one) for node, one in cluster.requests if isinstance(one, request)]


def test_the_blocking_api_has_every_call_with_the_same_parameters_and_docstrings() -> None:
    calls = {name: call for name, call in inspect.getmembers(aio.Admin, inspect.iscoroutinefunction) if not name.startswith("_")}
    assert len(calls) > 35
    for name, call in calls.items():
        blocking = getattr(ottla.Admin, name)
        if name != "close":
            assert list(inspect.signature(call).parameters) == list(inspect.signature(blocking).parameters), name
            assert call.__doc__.splitlines()[0][:40] == blocking.__doc__.splitlines()[0][:40], name


#: APIs of producers, consumers, connections and brokers; the admin client has no call for them.
OTHERS = {
    "Produce", "Fetch", "OffsetForLeaderEpoch", "InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "EndTxn", "TxnOffsetCommit",
    "WriteTxnMarkers", "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "SaslHandshake", "SaslAuthenticate",
    "AlterPartition", "GetTelemetrySubscriptions", "PushTelemetry",
}  # fmt: skip


def test_every_admin_api_has_a_call() -> None:
    advertised_apis = {served.request.__name__.removesuffix("Request") for served in HANDLERS.values() if served.advertised}
    assert len(advertised_apis) > 30, "the handlers are registered"
    modules = {inspect.getmodule(call) for _, call in inspect.getmembers(aio.Admin, inspect.isfunction)} | {offsets, coordinator_lookup}
    used = {name for module in modules if module is not None for name in re.findall(r"\b(\w+)Request\(", inspect.getsource(module))}
    assert advertised_apis - OTHERS - used == set()


def test_unwrapping_raises_the_first_error_with_the_others_as_notes() -> None:
    assert unwrap({"a": 1, "b": None}) == {"a": 1, "b": None}
    with pytest.raises(TopicAlreadyExists) as raised:
        unwrap({"a": 1, "b": TopicAlreadyExists("b is there"), "c": InvalidTopic("no name")})
    assert raised.value.__notes__ == ["and c: no name"]


# -- topics


async def test_a_description_combines_all_its_pages(two: MemoryCluster, admin: Admin) -> None:
    def half(node: Any, request: Any) -> Any:
        one = m.DescribeTopicPartitionsResponsePartition
        first = request.cursor.partition_index if request.cursor else 0
        topic = m.DescribeTopicPartitionsResponseTopic(
            name="many", partitions=[one(partition_index=index) for index in range(first, first + 2)]
        )
        return m.DescribeTopicPartitionsResponse(topics=[topic], next_cursor=None if first else m.Cursor("many", 2))

    two.faults["DescribeTopicPartitions"] += [half, half]
    assert [one.partition for one in (await admin.describe_topic("many")).partitions] == [0, 1, 2, 3]


async def test_topics_of_earlier_pages_are_not_requested_again(two: MemoryCluster, admin: Admin) -> None:
    assert set(unwrap(await admin.describe_topics(["t", "many"]))) == {"t", "many"}
    assert [[one.name for one in request.topics] for _, request in sent(two, m.DescribeTopicPartitionsRequest)] == [["many", "t"], ["t"]]


async def test_a_cursor_that_does_not_advance_ends_the_pages(two: MemoryCluster, admin: Admin) -> None:
    def stuck(node: Any, request: Any) -> Any:
        topic = m.DescribeTopicPartitionsResponseTopic(name="t", partitions=[m.DescribeTopicPartitionsResponsePartition()])
        return m.DescribeTopicPartitionsResponse(topics=[topic], next_cursor=m.Cursor("t", 0))

    two.faults["DescribeTopicPartitions"] += [stuck] * 3
    await admin.describe_topic("t")
    assert len(sent(two, m.DescribeTopicPartitionsRequest)) == 2


async def test_a_broker_without_paged_descriptions_gets_a_metadata_request(two: MemoryCluster, admin: Admin) -> None:
    two.versions = {75: (1, 1)}
    found = await admin.describe_topics(["t", "nope"])
    assert isinstance(found["nope"], UnknownTopicOrPartition)
    assert unwrap({"t": found["t"]})["t"].partitions[0].elr is None


async def test_topic_ids_and_authorized_operations_need_a_recent_broker(two: MemoryCluster, admin: Admin) -> None:
    topic_id = two.topic_ids["t"]
    assert (await admin.describe_topic(topic_id)).name == "t"
    two.versions = {3: (0, 7), 20: (1, 5), 75: (1, 1)}
    for node in two.nodes.values():
        for transport in node.transports:
            transport.cut()
    with pytest.raises(BrokerIncompatible, match=r"Metadata: .* has versions 0 to 7, needed are 12 to"):
        await admin.describe_topic(topic_id)
    with pytest.raises(BrokerIncompatible, match="needed are 8 to"):
        await admin.describe_topic("t", authorized_operations=True)
    with pytest.raises(BrokerIncompatible, match=r"DeleteTopics: .* 1 to 5, needed are 6"):
        await admin.delete_topic(topic_id)


async def test_an_unknown_topic_id_is_an_error_in_kafkas_text_form(two: MemoryCluster, admin: Admin) -> None:
    def unknown(node: Any, request: Any) -> Any:
        return m.DeleteTopicsResponse(responses=[m.DeletableTopicResult(name=None, topic_id=bytes(16), error_code=100)])

    two.faults["DeleteTopics"].append(unknown)
    with pytest.raises(UnknownTopicId):
        await admin.delete_topic(bytes(16))
    assert len(sent(two, m.DeleteTopicsRequest)) == 1


async def test_validate_only_creates_no_topic(two: MemoryCluster, admin: Admin) -> None:
    await admin.create_topic(NewTopic("new"), validate_only=True)
    ((_, request),) = sent(two, m.CreateTopicsRequest)
    assert request.validate_only


# -- settings


async def test_settings_of_a_broker_and_its_loggers_are_requested_from_that_broker(two: MemoryCluster, admin: Admin) -> None:
    resources = [Resource.broker(2), Resource.broker_logger(2), Resource.broker(1)]
    assert set(await admin.describe_configs(resources)) == set(resources)
    asked = {node: [one.resource_type for one in request.resources] for node, request in sent(two, m.DescribeConfigsRequest)}
    assert asked == {2: [4, 8], 1: [4]}


# -- brokers


async def test_replicas_are_looked_up_on_their_own_brokers(admin: Admin) -> None:
    found = await admin.describe_replica_log_dirs([("t", 0, 1), ("many", 0, 1), ("many", 1, 2), ("many", 1, 1)])
    assert unwrap(found) == {
        Replica("t", 0, 1): ReplicaPlace("/a", 0),
        Replica("many", 0, 1): ReplicaPlace("/a", 0, "/b", 7),
        Replica("many", 1, 2): ReplicaPlace("/b", 0),
        Replica("many", 1, 1): ReplicaPlace(None),
    }


async def test_each_replica_move_has_its_own_result(two: MemoryCluster, admin: Admin) -> None:
    def no_disk(node: Any, request: Any) -> Any:
        answers = [m.AlterReplicaLogDirPartitionResult(partition_index=1, error_code=56)]
        return m.AlterReplicaLogDirsResponse(results=[m.AlterReplicaLogDirTopicResult(topic_name="many", partitions=answers)])

    two.faults["AlterReplicaLogDirs"].append(lambda node, request: no_disk(node, request) if node.node_id == 2 else None)
    wanted = {("t", 0, 1): "/b", ("many", 0, 1): "/c", ("many", 2, 1): "/b", ("many", 1, 2): "/a", ("many", 2, 2): "/a"}
    done = await admin.alter_replica_log_dirs(wanted)
    assert [type(outcome).__name__ for outcome in done.values()] == [
        "NoneType",
        LogDirNotFound.__name__,
        ReplicaNotAvailable.__name__,
        KafkaStorageError.__name__,
        "UnknownServerError",
    ]
    assert "left it out of its answer" in str(done[Replica("many", 2, 2)])
    assert sorted(node for node, _ in sent(two, m.AlterReplicaLogDirsRequest)) == [1, 2]


async def test_authorized_operations_are_returned_on_request(admin: Admin) -> None:
    assert (await admin.describe_cluster()).authorized_operations is None
    assert (await admin.describe_cluster(authorized_operations=True)).authorized_operations == {Operation.ALTER}  # type: ignore[comparison-overlap]


async def test_features_and_versions_are_those_of_the_requested_broker(two: MemoryCluster, admin: Admin) -> None:
    def features(node: Any, request: Any) -> Any:
        return m.ApiVersionsResponse(
            api_keys=[m.ApiVersion(api_key=3, min_version=0, max_version=99), m.ApiVersion(api_key=999, min_version=1, max_version=2)],
            supported_features=[m.SupportedFeatureKey(name="metadata.version", min_version=1, max_version=9)],
            finalized_features=[m.FinalizedFeatureKey(name="metadata.version", max_version_level=7, min_version_level=7)],
            finalized_features_epoch=5,
        )

    await admin.describe_cluster()
    await admin.describe_api_versions(broker=2)
    two.faults["ApiVersions"] += [features, features]
    found = await admin.describe_features(broker=2)
    assert (found.supported, found.finalized) == ({"metadata.version": VersionRange(1, 9)}, {"metadata.version": VersionRange(7, 7)})
    assert found.finalized_epoch == 5
    assert two.requests[-1][0] == 2
    metadata, unknown = await admin.describe_api_versions(broker=2)
    assert (metadata.name, metadata.used) == ("Metadata", m.API[3].versions[1])
    assert (unknown.name, unknown.client, unknown.used) == ("", None, None)


async def test_a_quorum_has_timestamps_only_where_known(admin: Admin) -> None:
    quorum = await admin.describe_quorum()
    assert (quorum.leader, quorum.leader_epoch, quorum.high_watermark, quorum.observers) == (1, 2, 8, [])
    assert (quorum.voters[0].last_fetch_ms, quorum.voters[0].last_caught_up_ms) == (None, 5)


async def test_results_are_immutable(admin: Admin) -> None:
    described = await admin.describe_topic("t")
    with pytest.raises(AttributeError, match=re.escape("immutable")):
        described.name = "u"  # type: ignore[misc]


# -- old brokers


async def test_a_broker_without_describecluster_returns_it_with_the_topics(two: MemoryCluster, admin: Admin) -> None:
    two.versions = {60: (5, 5)}
    with pytest.raises(BrokerIncompatible):
        await admin.describe_cluster(fenced=True)
    described = await admin.describe_cluster(authorized_operations=True)
    assert (described.cluster_id, described.controller, [one.id for one in described.nodes]) == ("memory", 1, [1, 2])
    assert described.authorized_operations is None


async def test_timestamps_an_old_broker_does_not_support_fail_alone(two: MemoryCluster, admin: Admin) -> None:
    two.versions = {2: (1, 6)}
    found = await admin.list_offsets({("many", 0): LATEST, ("many", 2): MAX_TIMESTAMP, ("t", 0): EARLIEST_LOCAL})
    latest, largest, local = found.values()
    assert not isinstance(latest, KafkaError)
    assert isinstance(largest, BrokerIncompatible)
    assert isinstance(local, BrokerIncompatible)
    assert "needed are 7 to 11, which Kafka has since 3.0" in str(largest)


async def test_setting_values_can_be_python_values(two: MemoryCluster, admin: Admin) -> None:
    def altered(node: Any, request: Any) -> Any:
        results = [AlterConfigsResourceResponse(resource_type=2, resource_name="t")]
        return m.IncrementalAlterConfigsResponse(responses=results)

    two.faults["IncrementalAlterConfigs"].append(altered)
    await admin.create_topic(NewTopic("new", configs={"preallocate": True, "retention.ms": 1000, "cleanup.policy": "compact"}))
    ((_, request),) = sent(two, m.CreateTopicsRequest)
    assert [one.value for one in request.topics[0].configs] == ["true", "1000", "compact"]
    await admin.incremental_alter_config(Resource.topic("t"), {"min.cleanable.dirty.ratio": 0.5, "retention.ms": None})
    ((_, change),) = sent(two, m.IncrementalAlterConfigsRequest)
    assert [(one.value, one.config_operation) for one in change.resources[0].configs] == [("0.5", 0), (None, 1)]


async def test_a_throttled_admin_waits_before_its_next_request(admin: Admin, two: MemoryCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[float] = []
    answer = AdministeredNode.on_DescribeCluster

    def throttled(self: Any, request: Any, header: Any) -> Any:
        times.append(asyncio.get_running_loop().time())
        response = answer(self, request, header)
        response.throttle_time_ms = 60
        return response

    monkeypatch.setattr(AdministeredNode, "on_DescribeCluster", throttled)
    for _ in range(3):
        await admin.describe_cluster()
    assert len(times) == 3 and times[2] - times[0] >= 0.06
    figures = admin.metrics()["admin-client-metrics"]
    assert (figures["throttle-time-total"], figures["throttle-time-max"], figures["connection-count"]) == (180, 60, 1)
    assert 0 < figures["throttle-time-avg"] <= 60


class LimitedNode(MemoryNode):
    """A broker that keeps quotas, and refuses those of user `nobody`."""

    def on_AlterClientQuotas(self, request: Any, header: Any) -> Any:
        self.cluster.quotas = request  # type: ignore[attr-defined]
        return m.AlterClientQuotasResponse(
            entries=[
                EntryResult(error_code=42 * (entry.entity[0].entity_name == "nobody"), entity=entry.entity) for entry in request.entries
            ]
        )

    def on_DescribeClientQuotas(self, request: Any, header: Any) -> Any:
        self.cluster.filter = request  # type: ignore[attr-defined]
        parts = [describing.EntityData("user", "alice"), describing.EntityData("client-id", None)]
        entry = describing.EntryData(entity=parts, values=[describing.ValueData("producer_byte_rate", 5.0)])
        return m.DescribeClientQuotasResponse(entries=[entry])


async def test_quotas_are_described_and_altered(admin: Admin, two: MemoryCluster) -> None:
    for node_id in two.nodes:
        two.nodes[node_id] = LimitedNode(two, node_id)
    found = await admin.describe_client_quotas(user="alice", client_id=QuotaMatch.ANY, strict=True)
    assert found == {QuotaEntity(user="alice", client_id=""): {"producer_byte_rate": 5.0}}
    conditions = [(one.entity_type, one.match_type, one.match) for one in two.filter.components]  # type: ignore[attr-defined]
    assert conditions == [("user", 0, "alice"), ("client-id", 2, None)] and two.filter.strict  # type: ignore[attr-defined]
    await admin.describe_client_quotas(ip="")
    assert [(one.entity_type, one.match_type, one.match) for one in two.filter.components] == [("ip", 1, None)]  # type: ignore[attr-defined]
    alice, nobody = QuotaEntity(user="alice", client_id=""), QuotaEntity(user="nobody")
    done = await admin.alter_client_quotas({alice: {"producer_byte_rate": 7, "request_percentage": None}, nobody: {"x": 1}})
    assert done[alice] is None and isinstance(done[nobody], KafkaError)
    [first, _] = two.quotas.entries  # type: ignore[attr-defined]
    assert [(part.entity_type, part.entity_name) for part in first.entity] == [("user", "alice"), ("client-id", None)]
    assert [(op.key, op.value, op.remove) for op in first.ops] == [("producer_byte_rate", 7.0, False), ("request_percentage", 0.0, True)]
