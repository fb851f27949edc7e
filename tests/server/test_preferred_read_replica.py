"""Brokers in three racks over a real ZooKeeper: consumers read from the replica in their rack, with Ottla's and another client."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ottla.base.ids import TopicPartition
from ottla.client.consumer.consumer import Consumer
from ottla.server.zookeeper_ensemble import Ensemble
from serving import Serving

pytestmark = [pytest.mark.server, pytest.mark.interop]

SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
COUNT = 200


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, zookeeper: Ensemble) -> Iterator[str]:
    """Bootstrap servers of three brokers; topic t has one partition, led by 1, with records."""
    directory = tmp_path_factory.mktemp("near")
    running = [broker(directory, zookeeper, number) for number in (1, 2, 3)]
    try:
        for one in running:
            one.start()
        bootstrap = ",".join(one.bootstrap for one in running)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2, 3]])])["t"].result(20)
        producer = ConfluentProducer({"bootstrap.servers": bootstrap, "acks": "all"})
        for number in range(COUNT):
            producer.produce("t", b"%d" % number)
        assert producer.flush(20) == 0
        yield bootstrap
    finally:
        for one in running:
            one.kill()


def broker(directory: Path, zookeeper: Ensemble, number: int) -> Serving:
    settings = {"broker.rack": f"rack-{number}", "replica.selector.class": SELECTOR}
    arguments = ["--zookeeper", f"{zookeeper.connect}/near", "--broker-id", str(number)]
    return Serving(directory / f"broker-{number}", settings=settings, arguments=arguments)


@pytest.mark.parametrize("rack", [2, 3])
def test_a_foreign_consumer_reads_from_the_replica_in_its_rack(brokers: str, rack: int) -> None:
    read_from: list[int] = []

    def reported(text: str) -> None:
        read_from.append(json.loads(text)["topics"]["t"]["partitions"]["0"]["broker"])

    settings = {"bootstrap.servers": brokers, "group.id": f"g{rack}", "client.rack": f"rack-{rack}", "auto.offset.reset": "earliest"}
    consumer = ConfluentConsumer({**settings, "statistics.interval.ms": 100, "stats_cb": reported})
    consumer.assign([ConfluentPartition("t", 0, 0)])
    values: list[bytes] = []
    deadline_s = time.monotonic() + 30
    while (len(values) < COUNT or rack not in read_from) and time.monotonic() < deadline_s:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    assert values == [b"%d" % number for number in range(COUNT)]
    assert rack in read_from


async def test_our_consumer_reads_from_the_replica_in_its_rack(brokers: str) -> None:
    async with Consumer(bootstrap_servers=brokers, client_rack="rack-3", auto_offset_reset="earliest") as consumer:
        partition = TopicPartition("t", 0)
        consumer.assign([partition])
        values: list[bytes | None] = []
        deadline_s = time.monotonic() + 30
        while len(values) < COUNT and time.monotonic() < deadline_s:
            values += [record.value for record in await consumer.poll(timeout_ms=200)]
        assert values == [b"%d" % number for number in range(COUNT)]
        assert consumer._fetcher.preferred_replicas.nodes == {3}
