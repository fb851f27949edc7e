"""Three broker processes with a real ZooKeeper and topics with three replicas, used by clients of other projects."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import pytest
from client_adapters import KAFKA_PYTHON_POLL_MS
from confluent_kafka import ConsumerGroupTopicPartitions, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec, ResourceType
from kafka.admin import KafkaAdminClient

import kafka
from ottla.server.local_cluster import ClusterRequest, LocalCluster
from ottla.server.zookeeper_ensemble import Ensemble

pytestmark = [pytest.mark.interop, pytest.mark.server, pytest.mark.xdist_group("replicated"), pytest.mark.usefixtures("own_server_only")]
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT = 38, 39
SETTINGS = {"zookeeper.session.timeout.ms": "2000", "min.insync.replicas": "2", "group.initial.rebalance.delay.ms": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: Ensemble) -> Iterator[LocalCluster]:
    """The cluster as `ottla cluster up` starts it."""
    request = ClusterRequest(listen="127.0.0.1:0", settings=SETTINGS)
    made = LocalCluster.create_or_change(tmp_path_factory.mktemp("replicated") / "cluster", request)
    try:
        made.start()
        yield made
    finally:
        for process in [*made.brokers.values(), made.zookeeper]:
            process.stop(timeout_s=0)


@pytest.fixture
def topic(cluster: LocalCluster) -> str:
    """A topic with three partitions and three replicas."""
    name = f"r-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 3, 3)])[name].result(20)
    return name


def until(true: Callable[[], bool], *, timeout_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "the condition holds in time"
        time.sleep(0.1)


NO_LEADER = -1
Seen = list[tuple[int, set[int], set[int]]]


def confluent_sees(bootstrap: str, topic: str) -> Seen:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    described = admin.describe_topics(TopicCollection([topic]))[topic].result(20)
    return [
        # A partition whose leader is fenced and whose next leader is not elected yet has none.
        (NO_LEADER if one.leader is None else one.leader.id, {node.id for node in one.replicas}, {node.id for node in one.isr})
        for one in described.partitions
    ]


def kafka_python_sees(bootstrap: str, topic: str) -> Seen:
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        (described,) = admin.describe_topics([topic])
        return [(one["leader_id"], set(one["replica_nodes"]), set(one["isr_nodes"])) for one in described["partitions"]]
    finally:
        admin.close()


def aiokafka_sees(bootstrap: str, topic: str) -> Seen:
    async def ask() -> Seen:
        admin = aiokafka.admin.AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await admin.start()
        try:
            (described,) = await admin.describe_topics([topic])
            return [(one["leader"], set(one["replicas"]), set(one["isr"])) for one in described["partitions"]]
        finally:
            await admin.close()

    return asyncio.run(ask())


CLIENTS = [confluent_sees, kafka_python_sees, aiokafka_sees]


@pytest.mark.parametrize("sees", CLIENTS)
def test_each_broker_reports_three_in_sync_replicas_and_leaders_on_all(
    cluster: LocalCluster, topic: str, sees: Callable[[str, str], Seen]
) -> None:
    for bootstrap in cluster.spec.brokers.values():

        def all_reported(bootstrap: str = bootstrap) -> bool:
            # A client that knows one broker can ask any.
            partitions = sees(bootstrap, topic)
            alike = all(replicas == isr == {1, 2, 3} for _, replicas, isr in partitions)
            return alike and {leader for leader, _, _ in partitions} == {1, 2, 3}

        until(all_reported)


def test_the_replication_factor_cannot_exceed_the_brokers(cluster: LocalCluster) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:
        for factor in (0, 4):
            with pytest.raises(confluent_kafka.KafkaException) as raised:
                admin.create_topics([NewTopic("too-many", 1, factor)])["too-many"].result(20)
            assert raised.value.args[0].code() == INVALID_REPLICATION_FACTOR
        with pytest.raises(kafka.errors.InvalidReplicationFactorError):
            python.create_topics({"too-many": {"num_partitions": 1, "replication_factor": 4}})
        with pytest.raises(confluent_kafka.KafkaException) as raised:
            admin.create_topics([NewTopic("twice", 1, replica_assignment=[[1, 1]])])["twice"].result(20)
        assert raised.value.args[0].code() == INVALID_REPLICA_ASSIGNMENT
        assert {"too-many", "twice"}.isdisjoint(admin.list_topics(timeout=20).topics)
    finally:
        python.close()


def test_manual_assignments_keep_their_order(cluster: LocalCluster) -> None:
    name = f"hand-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic(name, 2, replica_assignment=[[3, 1], [2, 3]])])[name].result(20)
    until(lambda: len(admin.list_topics(name, timeout=20).topics[name].partitions) == 2)
    partitions = admin.list_topics(name, timeout=20).topics[name].partitions
    assert [(partitions[number].leader, partitions[number].replicas) for number in (0, 1)] == [(3, [3, 1]), (2, [2, 3])]


def test_every_broker_describes_its_replica_of_every_partition(cluster: LocalCluster, topic: str) -> None:
    python = KafkaAdminClient(bootstrap_servers=cluster.bootstrap)
    try:

        def found() -> dict[int, list[int]]:
            return {
                one["broker"]: sorted(
                    partition["partition_index"]
                    for log_dir in one["log_dirs"]
                    for held in log_dir["topics"]
                    for partition in held["partitions"]
                )
                for one in python.describe_log_dirs({topic: [0, 1, 2]})
            }

        until(lambda: found() == {1: [0, 1, 2], 2: [0, 1, 2], 3: [0, 1, 2]})
    finally:
        python.close()


def test_admin_requests_are_answered_whichever_broker_they_concern(cluster: LocalCluster, topic: str) -> None:
    for number, bootstrap in cluster.spec.brokers.items():
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for broker in cluster.brokers:
            (described,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
            entries = described.result(20)
            assert (entries["broker.id"].value, entries["min.insync.replicas"].value) == (str(broker), "2")
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all"})
        for partition in range(3):
            producer.produce(topic, b"x", partition=partition)
        assert producer.flush(20) == 0
        partitions = [confluent_kafka.TopicPartition(topic, partition) for partition in range(3)]
        ends = admin.list_offsets({partition: OffsetSpec.latest() for partition in partitions})
        assert {one.partition: future.result(20).offset for one, future in ends.items()} == dict.fromkeys(range(3), number)
        group = f"g-{topic}-{number}"
        consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, number)], asynchronous=False)
        consumer.close()
        listed = admin.list_consumer_groups().result(20)
        assert not listed.errors and group in {one.group_id for one in listed.valid}
        (seen,) = (future.result(20) for future in admin.describe_consumer_groups([group]).values())
        assert seen.coordinator.id in cluster.brokers
        (kept,) = (future.result(20) for future in admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values())
        assert [(one.topic, one.partition, one.offset) for one in kept.topic_partitions] == [(topic, 0, number)]
        deleted = admin.delete_records([confluent_kafka.TopicPartition(topic, partition, number) for partition in range(3)])
        assert [future.result(20).low_watermark for future in deleted.values()] == [number] * 3
    for process in cluster.brokers.values():
        assert "internal error" not in process.output.read_text()


class Load:
    """A client that writes numbers in a thread until it is stopped."""

    def __init__(self, work: Callable[[Load], Any]) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[str] = []
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=work, args=(self,))
        self._thread.start()

    def continues(self) -> None:
        aim = len(self.acknowledged) + 50
        until(lambda: len(self.acknowledged) >= aim)

    def stop(self) -> None:
        self.stopped.set()
        self._thread.join()


def confluent_load(bootstrap: str, topic: str) -> Callable[[Load], None]:
    def work(load: Load) -> None:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 1})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                load.acknowledged.append(message.value())
            else:
                load.failed.append(error.str())

        number = 0
        while not load.stopped.is_set():
            producer.produce(topic, b"confluent %d" % number, on_delivery=delivered)
            producer.poll(0.002)
            number += 1
        producer.flush(60)

    return work


def kafka_python_load(bootstrap: str, topic: str) -> Callable[[Load], None]:
    def work(load: Load) -> None:
        producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=1)
        number = 0
        while not load.stopped.is_set():
            value = b"kafka-python %d" % number
            future = producer.send(topic, value)
            future.add_callback(lambda _, value=value: load.acknowledged.append(value))
            future.add_errback(lambda error: load.failed.append(str(error)))
            number += 1
            time.sleep(0.002)
        producer.flush(60)
        producer.close(10)

    return work


def aiokafka_load(bootstrap: str, topic: str) -> Callable[[Load], None]:
    async def write(load: Load) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, linger_ms=1)
        await producer.start()
        number = 0
        while not load.stopped.is_set():
            value = b"aiokafka %d" % number
            try:
                await producer.send_and_wait(topic, value)
                load.acknowledged.append(value)
            except aiokafka.errors.KafkaError as error:
                load.failed.append(str(error))
            number += 1
        await producer.stop()

    return lambda load: asyncio.run(write(load))


class Readers:
    """A group of two: confluent-kafka and kafka-python, each with its own partitions, together all."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.seen: set[bytes] = set()
        self.stopped = threading.Event()
        self._threads = [threading.Thread(target=read, args=(bootstrap, topic, f"g-{topic}")) for read in (self._confluent, self._python)]
        for thread in self._threads:
            thread.start()

    def _confluent(self, bootstrap: str, topic: str, group: str) -> None:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": "range",
                "session.timeout.ms": 6_000,
            }
        )
        consumer.subscribe([topic])
        while not self.stopped.is_set():
            self.seen.update(message.value() for message in consumer.consume(500, 0.2) if message.error() is None)
        consumer.close()

    def _python(self, bootstrap: str, topic: str, group: str) -> None:
        consumer = kafka.KafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", session_timeout_ms=6_000
        )
        while not self.stopped.is_set():
            self.seen.update(record.value for records in consumer.poll(KAFKA_PYTHON_POLL_MS).values() for record in records)
        consumer.close()

    def stop(self) -> None:
        self.stopped.set()
        for thread in self._threads:
            thread.join()


def test_clients_and_groups_continue_when_a_broker_is_killed_and_when_it_returns(cluster: LocalCluster, topic: str) -> None:
    loads = [Load(make(cluster.bootstrap, topic)) for make in (confluent_load, kafka_python_load, aiokafka_load)]
    readers = Readers(cluster.bootstrap, topic)
    try:
        for load in loads:
            load.continues()
        # In a topic with three partitions each broker leads one; the location of the group coordinator is random.
        victim = cluster.brokers[2]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        for load in loads:
            load.continues()
        until(lambda: {leader for leader, _, _ in confluent_sees(cluster.bootstrap, topic)} == {1, 3})
        victim.spawn()
        victim.await_ready(time.monotonic() + 30)
        until(lambda: all(isr == {1, 2, 3} for _, _, isr in confluent_sees(cluster.bootstrap, topic)))
        for load in loads:
            load.continues()
    finally:
        for load in loads:
            load.stop()
        written = {value for load in loads for value in load.acknowledged}
        try:
            until(lambda: written <= readers.seen, timeout_s=60)
        finally:
            readers.stop()
    assert [load.failed for load in loads] == [[], [], []]
    offsets = AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics("__consumer_offsets", timeout=20)
    assert all(set(one.replicas) == {1, 2, 3} for one in offsets.topics["__consumer_offsets"].partitions.values())
