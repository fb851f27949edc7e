"""A cluster of several processes over a real ZooKeeper, while brokers, the controller and the ensemble fail and return."""

from __future__ import annotations

import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kazoo.client import KazooClient
from live_load import ConfluentWriter, OttlaWriter, Reader, Writer, check, running

from ottla.server.zookeeper_ensemble import Ensemble
from ottla.wire import framing
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from serving import SOURCE, Serving

pytestmark = pytest.mark.server

SESSION_MS = 2_000
CHROOTS = count(1)
R = TypeVar("R")


class Processes:
    """Brokers 1 to N, each a process of its own."""

    def __init__(self, directory: Path, zookeeper: Ensemble, brokers: int) -> None:
        self.connect = f"{zookeeper.connect}/cluster-{next(CHROOTS)}"
        self._directory = directory
        self.brokers = {number: self.broker(number) for number in range(1, brokers + 1)}

    def broker(self, number: int, *, name: str | None = None) -> Serving:
        arguments = ["--zookeeper", self.connect, "--broker-id", str(number)]
        settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), "log.flush.offset.checkpoint.interval.ms": "500"}
        return Serving(self._directory / (name or f"broker-{number}"), settings=settings, arguments=arguments)

    def start(self) -> None:
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(Serving.start, self.brokers.values()))

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers.values())

    def metadata(self, *topics: str) -> MetadataResponse:
        """As the first broker sees it that answers."""
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False)
        for broker in self.brokers.values():
            if broker.alive:
                try:
                    return ask(broker.address, request, 9, MetadataResponse)
                except OSError:
                    continue
        raise AssertionError("no broker answers")

    def controller(self) -> int:
        return self.metadata().controller_id

    def leaders(self, topic: str) -> dict[int, tuple[int, int]]:
        """Leader and leader epoch by partition."""
        (found,) = self.metadata(topic).topics
        return {partition.partition_index: (partition.leader_id, partition.leader_epoch) for partition in found.partitions}

    def broker_epoch(self, broker: int) -> int:
        """The zxid of the transaction that registered a broker."""
        client = KazooClient(hosts=self.connect)
        client.start()
        try:
            return int(client.get(f"/brokers/ids/{broker}")[1].czxid)
        finally:
            client.stop()
            client.close()

    def create(self, topic: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)
        until(lambda: len(self.leaders(topic)) == partitions and all(leader != -1 for leader, _ in self.leaders(topic).values()))

    def check(self, writers: list[Writer], readers: list[Reader]) -> int:
        """Holds each partition's leader to what was seen."""
        total = 0
        for writer in writers:

            def leader(topic: str = writer.topic, partition: int = writer.partition) -> tuple[str, int]:
                return until(lambda: self.brokers.get(self.leaders(topic)[partition][0])).address  # type: ignore[union-attr]

            own = [reader for reader in readers if reader.partition == writer.partition]
            total += check(leader, [writer], own)
        return total


def until(true: Callable[[], R], *, timeout_s: float = 20.0) -> R:
    deadline_s = time.monotonic() + timeout_s
    while not (found := true()):
        assert time.monotonic() < deadline_s, "it comes about in time"
        time.sleep(0.02)
    return found


def ask(address: tuple[str, int], message: Any, version: int, response: type[R]) -> R:
    """One request on a connection of its own. Raises OSError when there is no answer."""
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(b"".join(framing.encode_request(message, version, 1, "test")))  # type: ignore[arg-type]
        frame = b""
        while len(frame) < 4 or len(frame) < 4 + struct.unpack(">i", frame[:4])[0]:
            part = connection.recv(65536)
            if not part:
                raise ConnectionError("hung up")
            frame += part
    return framing.decode_response(response, memoryview(frame)[4:], version)[1]  # type: ignore[type-var]


@contextmanager
def processes(directory: Path, zookeeper: Ensemble, brokers: int = 3, *, source: Path = SOURCE) -> Iterator[Processes]:
    """``source``: the package that the brokers run."""
    made = Processes(directory, zookeeper, brokers)
    for broker in made.brokers.values():
        broker.source = source
    try:
        made.start()
        yield made
    finally:
        for broker in made.brokers.values():
            broker.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: Ensemble) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("cluster"), zookeeper) as made:
        yield made


def writers_and_readers(cluster: Processes, topic: str) -> tuple[list[Writer], list[Reader]]:
    """A writer for a partition on each of three brokers, which is where new partitions go in turn."""
    cluster.create(topic, 3)
    assert len({leader for leader, _ in cluster.leaders(topic).values()}) == 3
    bootstrap = cluster.bootstrap
    writers: list[Writer] = [
        ConfluentWriter("first", bootstrap, topic, 0, idempotent=True),
        ConfluentWriter("plain", bootstrap, topic, 1, idempotent=False),
        OttlaWriter("ottla", bootstrap, topic, 2),
    ]
    return writers, [Reader(bootstrap, topic, 0)]


def progress(writers: list[Writer], *, records: int = 100, timeout_s: float = 30.0) -> None:
    goals = [(writer, len(writer.acknowledged) + records) for writer in writers]
    until(lambda: all(len(writer.acknowledged) >= goal for writer, goal in goals), timeout_s=timeout_s)


def test_a_topic_created_through_any_broker_has_replicas_on_all(cluster: Processes) -> None:
    for number, broker in cluster.brokers.items():
        topics = [CreatableTopic(name=f"by-way-of-{number}", num_partitions=6, replication_factor=1)]
        answer = ask(broker.address, CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7, CreateTopicsResponse)
        assert (answer.topics[0].error_code, answer.topics[0].num_partitions) == (0, 6)
        until(
            lambda number=number: (  # type: ignore[misc]
                sorted(leader for leader, _ in cluster.leaders(f"by-way-of-{number}").values()) == [1, 1, 2, 2, 3, 3]
            )
        )
    again = ask(cluster.brokers[1].address, CreateTopicsRequest(topics=topics, timeout_ms=10_000), 7, CreateTopicsResponse)
    assert again.topics[0].error_code == 36, "refused by the controller, through the broker that was asked"


def test_every_broker_returns_all_brokers_one_controller_and_one_cluster_id(cluster: Processes) -> None:
    request = MetadataRequest(topics=[])
    seen = [ask(broker.address, request, 9, MetadataResponse) for broker in cluster.brokers.values()]
    addresses = {number: broker.address for number, broker in cluster.brokers.items()}
    for metadata in seen:
        assert {broker.node_id: (broker.host, broker.port) for broker in metadata.brokers} == addresses
    assert len({(metadata.controller_id, metadata.cluster_id) for metadata in seen}) == 1


def test_writers_and_readers_begin_at_any_broker(cluster: Processes) -> None:
    writers, readers = writers_and_readers(cluster, "anywhere")
    with running(*writers, *readers):
        progress(writers)
    assert cluster.check(writers, readers) >= 300


def test_a_broker_number_is_taken_once(cluster: Processes) -> None:
    twin = cluster.broker(1, name="twin")
    said = twin.fails_to_start()
    assert f"broker id 1 is already registered in this cluster, at {cluster.brokers[1].bootstrap}; give this one another" in said


def test_a_broker_of_another_cluster_is_refused_by_its_log_directory(cluster: Processes, zookeeper: Ensemble) -> None:
    mine = cluster.broker(9, name="other")
    with mine:
        pass
    other = Processes(cluster._directory, zookeeper, 0).broker(9, name="other")
    assert "cluster" in other.fails_to_start()


def test_broker_without_an_ensemble_names_the_address_that_it_tried(tmp_path: Path) -> None:
    arguments = ["--zookeeper", "127.0.0.1:1/x", "--set", "zookeeper.connection.timeout.ms=500"]
    said = Serving(tmp_path / "data", arguments=arguments).fails_to_start()
    assert (
        "no ZooKeeper answers at 127.0.0.1:1 within 500 ms (zookeeper.connection.timeout.ms); is it running? See zookeeper.connect" in said
    )


def test_broker_that_listens_on_all_addresses_needs_advertised_listeners(tmp_path: Path) -> None:
    server = Serving(tmp_path / "data", arguments=["--zookeeper", "127.0.0.1:1"])
    server.bootstrap = "0.0.0.0:0"
    assert "advertised.listeners: a broker that listens on every address" in server.fails_to_start()


def test_when_the_controllers_process_is_killed_another_one_decides_and_the_killed_one_comes_back(cluster: Processes) -> None:
    writers, readers = writers_and_readers(cluster, "killed")
    with running(*writers, *readers):
        progress(writers)
        first = cluster.controller()
        cluster.brokers[first].kill()
        until(lambda: cluster.controller() not in (-1, first), timeout_s=SESSION_MS / 1000 + 15)
        survivors = [writer for writer in writers if cluster.leaders("killed")[writer.partition][0] not in (-1, first)]
        assert len(survivors) == 2
        progress(survivors)
        cluster.brokers[first].start()
        progress(writers)
    assert cluster.check(writers, readers) >= 500
    epochs = dict(cluster.leaders("killed").values())
    assert epochs[first] > 0


def test_broker_paused_for_longer_than_its_session_timeout_registers_again(cluster: Processes) -> None:
    writers, readers = writers_and_readers(cluster, "frozen")
    victim = cluster.leaders("frozen")[0][0]
    before = cluster.broker_epoch(victim)
    with running(*writers, *readers):
        progress(writers)
        os.kill(cluster.brokers[victim].pid, signal.SIGSTOP)
        others = [number for number in cluster.brokers if number != victim]
        try:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="frozen")], allow_auto_topic_creation=False)
            seen = lambda: ask(cluster.brokers[others[0]].address, request, 9, MetadataResponse)  # noqa: E731
            until(lambda: victim not in [broker.node_id for broker in seen().brokers], timeout_s=SESSION_MS / 1000 + 5)  # type: ignore[no-untyped-call]
        finally:
            os.kill(cluster.brokers[victim].pid, signal.SIGCONT)
        progress(writers)
    assert cluster.check(writers, readers) >= 300
    assert cluster.leaders("frozen")[0][1] > 0, "under a larger leader epoch"
    assert cluster.broker_epoch(victim) > before, "it registered again"
    assert "the session with the store is lost" in cluster.brokers[victim].logs()


def test_broker_paused_for_less_than_its_session_timeout_revalidates_its_session_first(cluster: Processes) -> None:
    writers, readers = writers_and_readers(cluster, "paused")
    victim = next(number for number in cluster.brokers if number != cluster.controller())
    led = {partition: epoch for partition, (leader, epoch) in cluster.leaders("paused").items() if leader == victim}
    with running(*writers, *readers):
        progress(writers)
        os.kill(cluster.brokers[victim].pid, signal.SIGSTOP)
        time.sleep(SESSION_MS / 1000 * 0.6)
        os.kill(cluster.brokers[victim].pid, signal.SIGCONT)
        progress(writers)
    assert cluster.check(writers, readers) >= 300
    said = cluster.brokers[victim].logs().partition("no event was handled for ")[2]
    assert "the session with the store is back" in said
    if "the session with the store is lost" not in said:
        assert {partition: epoch for partition, (leader, epoch) in cluster.leaders("paused").items() if leader == victim} == led


@pytest.mark.long
def test_nothing_acknowledged_is_lost_while_the_ensemble_is_killed_and_comes_back(tmp_path: Path, zookeepers: Ensemble) -> None:
    with processes(tmp_path, zookeepers) as cluster:
        writers, readers = writers_and_readers(cluster, "orphaned")
        with running(*writers, *readers):
            progress(writers)
            leader = next(server for server in zookeepers.servers if server.mode() == "leader")
            zookeepers.kill(leader)
            progress(writers)
            zookeepers.spawn(leader)
            zookeepers.await_ready(leader)
            progress(writers)
            for server in zookeepers.servers:
                zookeepers.kill(server)
            time.sleep(0.5)
            for server in zookeepers.servers:
                zookeepers.spawn(server)
            for server in zookeepers.servers:
                zookeepers.await_ready(server)
            progress(writers)
        assert cluster.check(writers, readers) >= 900
        for broker in cluster.brokers.values():
            assert broker.alive
            assert "the session with the store is back" in broker.logs()
