"""Clusters of three brokers, each a process: Ottla's on one ZooKeeper, and Apache Kafka's, whose nodes are broker and controller in one.

Both have the same session timeout, so failovers can be compared; all other settings are defaults.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from bench import kafka
from bench.load import LoadFailed
from bench.process import ServerProcess
from bench.servers import OTTLA_READY, Contestant, KafkaServer, OttlaServer
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import java_home

BROKERS = 3
#: A third of Kafka's default, so that failovers take less time.
SESSION_MS = 3_000
READY_S = 60.0


class RunningCluster:
    """Running brokers by id; a broker can be killed and restarted."""

    def __init__(self, start: Callable[[int], ServerProcess], ids: range) -> None:
        self._start = start
        self.nodes: dict[int, ServerProcess] = {}
        # All at once: Kafka's first node is ready only when another one runs.
        with ThreadPoolExecutor(len(ids)) as threads:
            started = {number: threads.submit(start, number) for number in ids}
        try:
            for number, future in started.items():
                self.nodes[number] = future.result()
        except BaseException:
            self.stop()
            raise

    @property
    def pids(self) -> list[int]:
        return [node.pid for node in self.nodes.values()]

    def kill(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.nodes[number].pid, signal.SIGKILL)
        self.nodes[number].stop()

    def restart(self, number: int) -> None:
        """Restart a killed broker."""
        self.kill(number)
        self.nodes[number] = self._start(number)

    def stop(self) -> None:
        for node in self.nodes.values():
            node.stop()


class Cluster:
    """A cluster and an admin client for its topics."""

    def __init__(self, running: RunningCluster, bootstrap: str) -> None:
        self.running = running
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        deadline_s = time.monotonic() + READY_S
        # A client that does not know all brokers yet may fail requests to the bootstrap brokers.
        while len(self._admin.list_topics(timeout=10).brokers) < BROKERS and time.monotonic() < deadline_s:
            time.sleep(0.1)

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic with a replica on each broker and min.insync.replicas=2; returns when all are in sync."""
        config = {"min.insync.replicas": "2", "file.delete.delay.ms": "1000"}
        self._admin.create_topics([NewTopic(name, partitions, BROKERS, config=config)])[name].result(30)
        self.await_in_sync(name, partitions)

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def await_in_sync(self, name: str, partitions: int) -> None:
        deadline_s = time.monotonic() + READY_S
        while time.monotonic() < deadline_s:
            found = self._admin.list_topics(name, timeout=10).topics[name].partitions
            if len(found) == partitions and all(len(one.isrs) == BROKERS and one.leader >= 0 for one in found.values()):
                return
            time.sleep(0.1)
        raise LoadFailed(f"the replicas of {name} are not in sync after {READY_S:.0f} s")

    def leader(self, name: str) -> tuple[int, str, int]:
        """Broker, host and port of the leader of partition 0."""
        metadata = self._admin.list_topics(name, timeout=10)
        leader = metadata.topics[name].partitions[0].leader
        return leader, metadata.brokers[leader].host, metadata.brokers[leader].port


@contextlib.contextmanager
def cluster_of(contestant: Contestant, directory: Path) -> Iterator[Cluster]:
    """Start three brokers of the contestant's kind. Raises ServerDied, PeerUnavailable."""
    if isinstance(contestant, KafkaServer):
        with _kafka(contestant.distribution, directory) as found:
            yield found
    else:
        with _ottla(contestant, directory) as found:
            yield found


@contextlib.contextmanager
def _ottla(contestant: OttlaServer, directory: Path) -> Iterator[Cluster]:
    zookeeper = Ensemble(directory / "zookeeper", java_home(needed_by="ZooKeeper"))
    settings = {"zookeeper.session.timeout.ms": str(SESSION_MS), **contestant.settings}
    listens: dict[int, str] = {}

    def start(number: int) -> ServerProcess:
        home = directory / f"broker-{number}"
        command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(home), "--listen", listens.get(number, "127.0.0.1:0")]
        command += ["--zookeeper", f"{zookeeper.connect}/bench", "--broker-id", str(number)]
        for key, value in settings.items():
            command += ["--set", f"{key}={value}"]
        process = ServerProcess(command, log_path=directory / f"broker-{number}.log", ready=OTTLA_READY)
        listens[number] = process.ready_match.group(1)
        return process

    try:
        zookeeper.start()
        running = RunningCluster(start, range(1, BROKERS + 1))
        try:
            yield Cluster(running, ",".join(listens.values()))
        finally:
            running.stop()
    finally:
        zookeeper.stop()


@contextlib.contextmanager
def _kafka(found: kafka.Distribution, directory: Path) -> Iterator[Cluster]:
    places = kafka.places(directory, BROKERS)
    settings = {"broker.session.timeout.ms": str(SESSION_MS), "broker.heartbeat.interval.ms": str(SESSION_MS // 4)}
    commands = kafka.formatted(found, places, settings)

    def start(number: int) -> ServerProcess:
        place = places[number - 1]
        return ServerProcess(commands[number - 1], log_path=place.data_dir / "server.log", ready=kafka.READY, port=place.port)

    running = RunningCluster(start, range(1, BROKERS + 1))
    try:
        yield Cluster(running, ",".join(f"127.0.0.1:{place.port}" for place in places))
    finally:
        running.stop()
