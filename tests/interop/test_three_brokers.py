"""Three brokers in one process, used by clients that know the address of one."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from functools import partial
from typing import Any

import confluent_kafka
import pytest
from client_adapters import ADAPTERS, ClientAdapter, Sent
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, ResourceType
from kafka.admin import KafkaAdminClient
from test_admin import until

import kafka
from serving import Serving

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.xdist_group("three_brokers"), pytest.mark.usefixtures("own_server_only")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    with Serving(tmp_path_factory.mktemp("three") / "data", brokers=3) as server:
        yield server


def each(cluster: Serving) -> list[str]:
    """The address of each broker."""
    addresses = cluster.bootstrap.split(",")
    assert len(addresses) == 3
    return addresses


def new_topic(bootstrap: str, name: str, partitions: int) -> str:
    """Creates a topic through this broker; its unique name starts with `name`."""
    topic = f"{name}-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(10)
    return topic


def led_evenly(admin: AdminClient, name: str) -> bool:
    """Whether the topic is known, and each of three brokers leads two of its six partitions."""
    topic = admin.list_topics(timeout=10).topics.get(name)
    return topic is not None and sorted(partition.leader for partition in topic.partitions.values()) == [1, 1, 2, 2, 3, 3]


def test_topics_are_administered_through_any_broker_and_leaders_are_spread(cluster: Serving) -> None:
    for bootstrap in each(cluster):
        name = f"spread-{uuid.uuid4().hex[:8]}"
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(name, 6, 1, config={"retention.ms": "3600000"})])[name].result(10)
        for seen_by in each(cluster):
            seen = AdminClient({"bootstrap.servers": seen_by})

            until(partial(led_evenly, seen, name), f"{seen_by} sees two partitions led by each broker")
            resource = ConfigResource(ResourceType.TOPIC, name)
            assert seen.describe_configs([resource])[resource].result(10)["retention.ms"].value == "3600000"
            described = seen.describe_cluster().result(10)
            assert sorted(f"{node.host}:{node.port}" for node in described.nodes) == sorted(each(cluster))
        admin.create_partitions([NewPartitions(name, 9)])[name].result(10)
        other = AdminClient({"bootstrap.servers": each(cluster)[0]})
        until(lambda: len(other.list_topics(timeout=10).topics[name].partitions) == 9, "the topic has grown")  # noqa: B023
        other.delete_topics([name])[name].result(10)
        until(lambda: name not in admin.list_topics(timeout=10).topics, "the topic is deleted")  # noqa: B023


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)
def test_a_client_that_knows_one_broker_reaches_partitions_on_all(cluster: Serving, adapter: ClientAdapter) -> None:
    bootstrap = each(cluster)[ADAPTERS.index(adapter)]
    topic = new_topic(bootstrap, "reach", 3)
    for partition in range(3):
        sent = [Sent(b"%d" % partition, b"%d" % i) for i in range(50)]
        adapter.produce(bootstrap, topic, sent, partition=partition, idempotent=True, codec="zstd")
        read = adapter.consume(each(cluster)[partition], topic, 50, partition=partition)
        assert [(r.key, r.value) for r in read] == [(s.key, s.value) for s in sent]
        assert adapter.watermarks(bootstrap, topic, partition=partition) == (0, 50)
        assert adapter.offset_at(bootstrap, topic, 0, partition=partition) == 0


def test_one_consumer_reads_partitions_of_all_brokers(cluster: Serving) -> None:
    topic = new_topic(each(cluster)[1], "all", 6)
    producer = confluent_kafka.Producer({"bootstrap.servers": each(cluster)[2], "linger.ms": 5, "enable.idempotence": True})
    for i in range(600):
        producer.produce(topic, b"%d" % i, b"key %d" % i)
    assert producer.flush(20) == 0
    consumer = kafka.KafkaConsumer(bootstrap_servers=each(cluster)[0], group_id=None, auto_offset_reset="earliest")
    consumer.assign([kafka.TopicPartition(topic, partition) for partition in range(6)])
    found: list[tuple[int, int]] = []
    for _ in range(100):
        found += [(int(r.value), r.partition) for batch in consumer.poll(200).values() for r in batch]
        if len(found) >= 600:
            break
    consumer.close()
    assert sorted(number for number, _ in found) == list(range(600))
    assert {partition for _, partition in found} == set(range(6))


def _placed(described: list[Any]) -> list[int]:
    """The described partitions, sorted."""
    return sorted(
        partition["partition_index"]
        for broker in described
        for directory in broker["log_dirs"]
        for found in directory["topics"]
        for partition in found["partitions"]
    )


def test_each_broker_describes_its_own_directory_and_partitions(cluster: Serving) -> None:
    topic = f"dirs-{uuid.uuid4().hex[:8]}"
    admin = KafkaAdminClient(bootstrap_servers=each(cluster)[0])
    try:
        admin.create_topics({topic: {"num_partitions": 3, "replication_factor": 1}}, wait_for_metadata=True)
        # Leaders create their logs after the topic is in their metadata.
        until(lambda: _placed(admin.describe_log_dirs({topic: [0, 1, 2]})) == [0, 1, 2], "a log of each partition")
        described = admin.describe_log_dirs({topic: [0, 1, 2]})
        assert sorted(broker["broker"] for broker in described) == [1, 2, 3]
        assert len({directory["log_dir"] for broker in described for directory in broker["log_dirs"]}) == 3
    finally:
        admin.close()


def test_an_impossible_replication_factor_is_refused(cluster: Serving) -> None:
    name = f"replicas-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": each(cluster)[0]})
    with pytest.raises(confluent_kafka.KafkaException) as raised:
        admin.create_topics([NewTopic(name, 1, 4)])[name].result(10)
    invalid_replication_factor = 38
    assert raised.value.args[0].code() == invalid_replication_factor
