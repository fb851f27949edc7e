"""Controlled shutdown over a real ZooKeeper: writers continue, and the duration is limited."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from live_load import ConfluentWriter, OttlaWriter, Writer, running
from test_cluster import Processes, processes, progress, until

from ottla.server.zookeeper_ensemble import Ensemble
from serving import Serving

pytestmark = pytest.mark.server

#: Below the patience of a controlled shutdown; a machine with nothing else to do takes a tenth of it.
SOON_S = 12.0


def replicated(cluster: Processes, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    replicas = len(cluster.brokers)
    admin.create_topics([NewTopic(topic, partitions, replicas, config={"min.insync.replicas": "2"})])[topic].result(20)
    until(lambda: len(cluster.leaders(topic)) == partitions and all(leader != -1 for leader, _ in cluster.leaders(topic).values()))


def stopped_in_s(broker: Serving) -> float:
    begun = time.monotonic()
    broker.stop(timeout_s=SOON_S)
    return time.monotonic() - begun


def test_brokers_that_are_stopped_and_started_in_turn_cost_no_acknowledged_record_and_no_wait_for_a_session(
    tmp_path: Path, zookeeper: Ensemble
) -> None:
    with processes(tmp_path, zookeeper) as cluster:
        replicated(cluster, "rolled", 3)
        writers: list[Writer] = [
            ConfluentWriter("first", cluster.bootstrap, "rolled", 0, idempotent=True),
            ConfluentWriter("second", cluster.bootstrap, "rolled", 1, idempotent=True),
            OttlaWriter("ottla", cluster.bootstrap, "rolled", 2),
        ]
        with running(*writers):
            progress(writers)
            for number, broker in cluster.brokers.items():
                before = cluster.leaders("rolled")
                stopped_in_s(broker)
                led = cluster.leaders("rolled")
                assert all(leader != number for leader, _ in led.values())
                moved = {partition for partition, (leader, _) in before.items() if leader == number}
                if not any("the session with the store is suspended" in one.logs() for one in cluster.brokers.values()):
                    assert all(led[partition][1] == before[partition][1] + (partition in moved) for partition in led), "moved once"
                progress(writers)
                broker.start()
                until(lambda: all(len(one.isr_nodes) == 3 for one in cluster.metadata("rolled").topics[0].partitions))
        assert cluster.check(writers, []) >= 300


def test_a_broker_that_is_alone_over_zookeeper_stops_soon(tmp_path: Path, zookeeper: Ensemble) -> None:
    with processes(tmp_path, zookeeper, brokers=1) as cluster:
        cluster.create("alone", 3)
        stopped_in_s(cluster.brokers[1])
        assert "Traceback" not in cluster.brokers[1].logs()


def test_brokers_of_one_process_that_are_the_whole_cluster_stop_soon(tmp_path: Path, zookeeper: Ensemble) -> None:
    settings = {"default.replication.factor": "3"}
    for name, arguments in (("embedded", []), ("shared", ["--zookeeper", f"{zookeeper.connect}/one-process", "--broker-id", "1"])):
        server = Serving(tmp_path / name, brokers=3, settings=settings, arguments=arguments)
        with server:
            admin = AdminClient({"bootstrap.servers": server.bootstrap})
            admin.create_topics([NewTopic("t", 6, 3)])["t"].result(20)
            stopped_in_s(server)
        with server:
            assert server.alive, "it leads again all that it led"
            server.stop()
