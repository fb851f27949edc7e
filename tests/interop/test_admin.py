"""The admin interface of each client: its requests, and the results it returns."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import aiokafka.admin
import confluent_kafka
import kafka.admin
import pytest
from aiokafka.admin.config_resource import ConfigResource as AioConfigResource
from aiokafka.admin.config_resource import ConfigResourceType as AioConfigResourceType
from client_adapters import ADAPTERS, Sent
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from kafka.admin import ConfigResource as PyConfigResource
from kafka.admin import KafkaAdminClient

import kafka

pytestmark = [pytest.mark.interop, pytest.mark.server]

T = TypeVar("T")
UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC, TOPIC_EXISTS, INVALID_PARTITIONS, INVALID_REPLICATION, INVALID_CONFIG = 3, 17, 36, 37, 38, 40
NOW_MS = time.time_ns() // 1_000_000


def fresh() -> str:
    return f"a-{uuid.uuid4().hex[:12]}"


def until(condition: Callable[[], object], what: str, timeout_s: float = 10.0) -> None:
    """A broker updates its metadata after it answers, as every Kafka does; clients ask again."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"within {timeout_s} s: {what}"
        time.sleep(0.02)


# confluent-kafka


def refusal(future: Any) -> int:
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        future.result(10)
    return int(raised.value.args[0].code())


def test_confluent_creates_describes_grows_and_deletes_topics(admin: AdminClient) -> None:
    name = fresh()
    created = admin.create_topics([NewTopic(name, 3, 1, config={"retention.ms": "3600000"})])
    created[name].result(10)
    assert refusal(admin.create_topics([NewTopic(name, 1, 1)])[name]) == TOPIC_EXISTS
    until(lambda: name in admin.list_topics(timeout=10).topics, "the topic is listed")
    topic = admin.list_topics(name, timeout=10).topics[name]
    assert sorted(topic.partitions) == [0, 1, 2] and topic.error is None
    assert all(partition.replicas == partition.isrs == [partition.leader] for partition in topic.partitions.values())
    described = admin.describe_topics(confluent_kafka.TopicCollection([name]))[name].result(10)
    assert described.name == name and len(described.partitions) == 3 and not described.is_internal
    assert str(described.topic_id) not in ("", "AAAAAAAAAAAAAAAAAAAAAA"), "a topic has an id"
    admin.create_partitions([NewPartitions(name, 5)])[name].result(10)
    until(lambda: len(admin.list_topics(name, timeout=10).topics[name].partitions) == 5, "the topic has grown")
    assert refusal(admin.create_partitions([NewPartitions(name, 2)])[name]) == INVALID_PARTITIONS
    admin.delete_topics([name])[name].result(10)
    until(lambda: name not in admin.list_topics(timeout=10).topics, "the topic is deleted")
    assert refusal(admin.delete_topics([name])[name]) == UNKNOWN_TOPIC_OR_PARTITION


def test_confluent_reports_why_a_topic_is_refused(admin: AdminClient) -> None:
    asked = {
        "no/slash": (NewTopic("no/slash", 1, 1), INVALID_TOPIC),
        "x" * 250: (NewTopic("x" * 250, 1, 1), INVALID_TOPIC),
        "..": (NewTopic("..", 1, 1), INVALID_TOPIC),
        "none": (NewTopic("none", 0, 1), INVALID_PARTITIONS),
        "many": (NewTopic("many", 1, 32), INVALID_REPLICATION),
        "config": (NewTopic("config", 1, 1, config={"retention.ms": "soon"}), INVALID_CONFIG),
        "unknown": (NewTopic("unknown", 1, 1, config={"no.such.setting": "1"}), INVALID_CONFIG),
    }
    futures = admin.create_topics([topic for topic, _ in asked.values()])
    assert {name: refusal(future) for name, future in futures.items()} == {name: code for name, (_, code) in asked.items()}
    only_checked = fresh()
    admin.create_topics([NewTopic(only_checked, 1, 1)], validate_only=True)[only_checked].result(10)
    assert only_checked not in admin.list_topics(timeout=10).topics


def test_confluent_reads_and_changes_the_settings_of_a_topic(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(retention_ms=1_000_000)
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def settings() -> dict[str, ConfigEntry]:
        found: dict[str, ConfigEntry] = admin.describe_configs([resource])[resource].result(10)
        return found

    first = settings()
    assert first["retention.ms"].value == "1000000"
    assert first["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert first["cleanup.policy"].value == "delete" and first["cleanup.policy"].is_default
    changes = [
        ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ConfigEntry("segment.bytes", "2097152", incremental_operation=AlterConfigOpType.SET),
        ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=changes)
    admin.incremental_alter_configs([resource])[resource].result(10)
    until(lambda: settings()["segment.bytes"].value == "2097152", "the setting has changed")
    second = settings()
    assert second["retention.ms"].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert set(second["cleanup.policy"].value.split(",")) == {"delete", "compact"}
    resource = ConfigResource(ResourceType.TOPIC, topic, set_config={"max.message.bytes": "2000000"})
    admin.alter_configs([resource])[resource].result(10)
    until(lambda: settings()["max.message.bytes"].value == "2000000", "the setting has changed")
    assert settings()["segment.bytes"].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value, "the old call replaces all settings of the topic"
    bad = [ConfigEntry("retention.ms", "soon", incremental_operation=AlterConfigOpType.SET)]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=bad)
    assert refusal(admin.incremental_alter_configs([resource])[resource]) == INVALID_CONFIG


def test_confluent_describes_the_cluster_and_its_brokers(admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(10)
    assert cluster.cluster_id == admin.list_topics(timeout=10).cluster_id == admin.cluster_id(timeout=10)
    assert cluster.controller is not None and cluster.controller.id in {node.id for node in cluster.nodes}
    node = cluster.nodes[0]
    resource = ConfigResource(ResourceType.BROKER, str(node.id))
    settings = admin.describe_configs([resource])[resource].result(10)
    assert settings["message.max.bytes"].value == "1048588"


def test_confluent_lists_offsets_and_deletes_records(admin: AdminClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    # The largest timestamp is not the last one.
    times = [NOW_MS, NOW_MS + 500, NOW_MS + 100, NOW_MS + 200]
    ADAPTERS[0].produce(bootstrap, topic, [Sent(None, b"x", (), at) for at in times])
    place = confluent_kafka.TopicPartition(topic, 0)

    def offset(spec: OffsetSpec) -> int:
        return int(admin.list_offsets({place: spec})[place].result(10).offset)

    assert (offset(OffsetSpec.earliest()), offset(OffsetSpec.latest()), offset(OffsetSpec.max_timestamp())) == (0, 4, 1)
    assert offset(OffsetSpec.for_timestamp(NOW_MS + 1)) == 1
    deleted = admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 2)])[place].result(10)
    assert deleted.low_watermark == 2
    assert offset(OffsetSpec.earliest()) == 2
    assert [record.offset for record in ADAPTERS[0].consume(bootstrap, topic, 2, offset=2)] == [2, 3]
    everything = confluent_kafka.TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
    assert admin.delete_records([everything])[place].result(10).low_watermark == 4
    assert ADAPTERS[0].watermarks(bootstrap, topic) == (4, 4)
    offset_out_of_range = 1
    assert refusal(admin.delete_records([confluent_kafka.TopicPartition(topic, 0, 99)])[place]) == offset_out_of_range


# kafka-python


@pytest.fixture
def py_admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_detects_kafka_4_3(py_admin: KafkaAdminClient) -> None:
    nodes = [node["broker_id"] for node in py_admin.describe_cluster()["brokers"]]
    assert {py_admin.get_broker_version_data(node).broker_version for node in nodes} == {(4, 3)}


def test_kafka_python_creates_describes_grows_and_deletes_topics(py_admin: KafkaAdminClient) -> None:
    name = fresh()
    topics = {name: {"num_partitions": 2, "replication_factor": 1, "configs": {"segment.bytes": "2097152"}}}
    created = py_admin.create_topics(topics, wait_for_metadata=True)
    assert created["topics"][0]["num_partitions"] == 2
    with pytest.raises(kafka.errors.TopicAlreadyExistsError):
        py_admin.create_topics(topics)
    assert name in py_admin.list_topics()
    (described,) = py_admin.describe_topics([name])
    assert [partition["partition_index"] for partition in described["partitions"]] == [0, 1]
    (by_id,) = py_admin.describe_topics([uuid.UUID(described["topic_id"])])
    assert by_id["error_code"] == 0 and len(by_id["partitions"]) == 2
    py_admin.create_partitions({name: 4})
    until(lambda: len(py_admin.describe_topics([name])[0]["partitions"]) == 4, "the topic has grown")
    page = py_admin.describe_topic_partitions([name], response_partition_limit=3)
    assert len(page["topics"][0]["partitions"]) == 3
    assert page["next_cursor"] == {"topic_name": name, "partition_index": 3}
    rest = py_admin.describe_topic_partitions([name], cursor=page["next_cursor"])
    assert [partition["partition_index"] for partition in rest["topics"][0]["partitions"]] == [3]
    py_admin.delete_topics([uuid.UUID(described["topic_id"])])
    until(lambda: name not in py_admin.list_topics(), "the topic is deleted")
    with pytest.raises(kafka.errors.UnknownTopicOrPartitionError):
        py_admin.delete_topics([name])


def test_kafka_python_uses_the_brokers_defaults_for_a_topic(py_admin: KafkaAdminClient) -> None:
    name = fresh()
    created = py_admin.create_topics([name], wait_for_metadata=True)["topics"][0]
    assert (created["num_partitions"], created["replication_factor"]) == (1, 1)


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "whole"])
def test_kafka_python_reads_and_changes_settings(py_admin: KafkaAdminClient, new_topic: Callable[..., str], incremental: bool) -> None:
    topic = new_topic(retention_ms=1_000_000, segment_bytes=3_000_000)

    def settings() -> dict[str, Any]:
        found: dict[str, Any] = py_admin.describe_configs([PyConfigResource("TOPIC", topic)])["topic"][topic]
        return found

    assert {"retention.ms", "segment.bytes"} <= settings().keys()
    change = PyConfigResource("TOPIC", topic, configs={"retention.ms": "2000000"})
    py_admin.alter_configs([change], incremental=incremental)
    until(lambda: settings()["retention.ms"]["value"] == "2000000", "the setting has changed")
    assert settings()["segment.bytes"]["value"] == "3000000"
    broker = str(py_admin.describe_cluster()["brokers"][0]["broker_id"])
    everything = py_admin.describe_configs([PyConfigResource("BROKER", broker)], include_synonyms=True, config_filter="all")
    assert everything["broker"][broker]["message.max.bytes"]["value"] == "1048588"


def test_kafka_python_changes_levels_of_loggers_as_kafka_configs_does(py_admin: KafkaAdminClient) -> None:
    """What `kafka-configs.sh --entity-type broker-loggers` sends: DescribeConfigs and IncrementalAlterConfigs of resources of type 8."""
    broker = str(py_admin.describe_cluster()["brokers"][0]["broker_id"])

    def levels() -> dict[str, Any]:
        found = py_admin.describe_configs([PyConfigResource("BROKER_LOGGER", broker)], config_filter="all")
        return {name: setting["value"] for name, setting in found["broker_logger"][broker].items()}

    def alter(**configs: Any) -> str:
        """The result, as the client reports it: a text with the error."""
        named = {name.replace("_", "."): value for name, value in configs.items()}
        resource = PyConfigResource("BROKER_LOGGER", broker, configs=named)
        result = py_admin.alter_configs([resource], raise_on_unknown=False, incremental=True)
        return str(result["broker_logger"][broker])

    # Another test on the same server may have set them.
    alter(ottla_group=("DELETE", None), ottla_replica=("DELETE", None))
    before = levels()
    assert {"root", "ottla.group", "ottla.replica"} <= before.keys()
    alter(ottla_group=("SET", "DEBUG"), ottla_replica=("SET", "WARN"))
    until(lambda: (levels()["ottla.group"], levels()["ottla.replica"]) == ("DEBUG", "WARN"), "the levels have changed")
    # A deleted level is that of the logger above.
    alter(ottla_group=("DELETE", None), ottla_replica=("DELETE", None))
    until(lambda: levels() == before, "the levels are inherited again")
    assert "there is no logger 'kafka.server.ReplicaManager'" in alter(kafka_server_ReplicaManager=("SET", "DEBUG"))
    assert "there is no level 'LOUD'" in alter(ottla_group=("SET", "LOUD"))
    assert "it is no list" in alter(ottla_group=("APPEND", "DEBUG"))
    assert "the root logger can be set, not deleted" in alter(root=("DELETE", None))
    assert levels() == before


def test_kafka_python_describes_log_directories_and_producers(
    py_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    ADAPTERS[1].produce(bootstrap, topic, [Sent(None, b"v" * 500)] * 10, partition=1, idempotent=True)
    (broker,) = py_admin.describe_log_dirs({topic: [0, 1]})
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for directory in broker["log_dirs"]
        for found in directory["topics"]
        if found["name"] == topic
        for partition in found["partitions"]
    }
    assert sizes[0] == 0 and sizes[1] > 500 * 10
    assert all(directory["total_bytes"] > directory["usable_bytes"] > 0 for directory in broker["log_dirs"])
    place = kafka.TopicPartition(topic, 1)
    (producer,) = py_admin.describe_producers([place])[place].active_producers
    assert producer.producer_id >= 0 and producer.producer_epoch == 0 and producer.last_sequence == 9


def test_kafka_python_lists_offsets_and_deletes_records(py_admin: KafkaAdminClient, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    ADAPTERS[1].produce(bootstrap, topic, [Sent(None, b"x", (), at) for at in (NOW_MS, NOW_MS + 500, NOW_MS + 100)])
    place = kafka.TopicPartition(topic, 0)

    def offset(spec: int) -> int:
        return int(py_admin.list_partition_offsets({place: spec})[place].offset)

    latest, earliest, max_timestamp, earliest_local = -1, -2, -3, -4
    assert [offset(spec) for spec in (earliest, latest, max_timestamp, earliest_local, NOW_MS + 100)] == [0, 3, 1, 0, 1]
    assert py_admin.delete_records({place: 2})[place]["low_watermark"] == 2
    assert offset(earliest) == offset(earliest_local) == 2


def test_kafka_python_lists_resources_with_dynamic_settings(py_admin: KafkaAdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    listed = py_admin.list_config_resources(["TOPIC", "BROKER"])
    names = {kind.lower(): found for kind, found in listed.items()}
    assert topic in names["topic"]
    assert {str(node["broker_id"]) for node in py_admin.describe_cluster()["brokers"]} <= set(names["broker"])


# aiokafka


def aio(bootstrap: str, what: Callable[[aiokafka.admin.AIOKafkaAdminClient], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        client = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            return await asyncio.wait_for(what(client), 30)
        finally:
            await client.close()

    return asyncio.run(run())


def test_aiokafka_creates_describes_grows_and_deletes_topics(bootstrap: str) -> None:
    name = fresh()

    async def create_describe_grow_delete(admin: aiokafka.admin.AIOKafkaAdminClient) -> None:
        created = await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1, topic_configs={"retention.ms": "5000000"})])
        assert [error for _, error, *_ in created.topic_errors] == [0]
        again = await admin.create_topics([aiokafka.admin.NewTopic(name, 2, 1)])
        assert [error for _, error, *_ in again.topic_errors] == [TOPIC_EXISTS]
        assert name in await admin.list_topics()
        (described,) = await admin.describe_topics([name])
        assert sorted(partition["partition"] for partition in described["partitions"]) == [0, 1]
        grown = await admin.create_partitions({name: aiokafka.admin.NewPartitions(3)})
        assert [error for _, error, *_ in grown.topic_errors] == [0]
        cluster = await admin.describe_cluster()
        assert cluster["brokers"] and cluster["cluster_id"]
        (answer,) = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, name)])
        values = {entry[0]: entry[1] for entry in answer.resources[0][4]}
        assert values["retention.ms"] == "5000000"
        change = AioConfigResource(AioConfigResourceType.TOPIC, name, configs={"retention.ms": "6000000"})
        answers = await admin.alter_configs([change])
        assert answers[0].resources[0][0] == 0
        (answer,) = await admin.describe_configs([AioConfigResource(AioConfigResourceType.TOPIC, name)])
        assert {entry[0]: entry[1] for entry in answer.resources[0][4]}["retention.ms"] == "6000000"
        deleted = await admin.delete_topics([name])
        assert [error for _, error, *_ in deleted.topic_error_codes] == [0]
        deadline = time.monotonic() + 10
        while name in await admin.list_topics():
            assert time.monotonic() < deadline, "the topic is deleted"
            await asyncio.sleep(0.02)

    aio(bootstrap, create_describe_grow_delete)


def test_aiokafka_deletes_records(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    ADAPTERS[2].produce(bootstrap, topic, [Sent(None, b"x")] * 5)

    async def create_describe_grow_delete(admin: aiokafka.admin.AIOKafkaAdminClient) -> dict[Any, int]:
        place = aiokafka.TopicPartition(topic, 0)
        return dict(await admin.delete_records({place: aiokafka.admin.RecordsToDelete(before_offset=3)}))

    assert list(aio(bootstrap, create_describe_grow_delete).values()) == [3]
    assert ADAPTERS[2].watermarks(bootstrap, topic) == (3, 5)
