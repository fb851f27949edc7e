"""Reassignment of partitions with data between three processes over a real ZooKeeper under load, with an operator's commands."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from kazoo.client import KazooClient
from live_load import ConfluentWriter, OttlaWriter, Reader, Writer, running
from test_cluster import Processes, processes, progress, until

import ottla
from commands import without_headings
from ottla import NewTopic
from ottla.cli.main import main
from ottla.server.zookeeper_ensemble import Ensemble

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, zookeeper: Ensemble) -> Iterator[Processes]:
    with processes(tmp_path_factory.mktemp("reassignment"), zookeeper) as made:
        yield made


def reassign(cluster: Processes, *arguments: str, code: int = 0, **more: Any) -> str:
    """What `ottla cluster reassign` printed."""
    result = CliRunner().invoke(main, ["cluster", "reassign", *arguments, "-b", cluster.bootstrap], **more)
    assert result.exit_code == code, result.output
    return result.stdout


def plan(topic: str, replicas: dict[int, tuple[int, ...]]) -> str:
    wished = [{"topic": topic, "partition": number, "replicas": ids} for number, ids in replicas.items()]
    return json.dumps({"version": 1, "partitions": wished})


def holders(cluster: Processes, topic: str, partition: int = 0) -> list[int]:
    """Brokers on whose disk the partition has a directory."""
    name = f"{topic}-{partition}"
    return [number for number, broker in cluster.brokers.items() if any(path.is_dir() for path in broker.data_dir.rglob(name))]


def directory(cluster: Processes, number: int, name: str) -> Path:
    return next(cluster.brokers[number].data_dir.rglob(name))


def a_topic(cluster: Processes, name: str, *replicas: list[int], **configs: str | None) -> None:
    settings: dict[str, str | None] = {key.replace("_", "."): value for key, value in configs.items()}
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        admin.create_topic(NewTopic(name, assignments=dict(enumerate(replicas)), configs=settings))
    until(lambda: len(cluster.leaders(name)) == len(replicas) and all(leader != -1 for leader, _ in cluster.leaders(name).values()))


def fill(cluster: Processes, topic: str) -> None:
    """Three megabytes, in batches of which a follower gets some at once, but not all."""
    with ottla.Producer(bootstrap_servers=cluster.bootstrap) as producer:
        for _ in range(100):
            producer.send(topic, bytes(30_000), partition=0)
            producer.flush()


def test_partitions_move_under_load_and_lose_nothing(cluster: Processes) -> None:
    a_topic(cluster, "moved", [1, 2], [2, 3], [3, 1], min_insync_replicas="2")
    writers: list[Writer] = [
        ConfluentWriter("first", cluster.bootstrap, "moved", 0, idempotent=True),
        ConfluentWriter("plain", cluster.bootstrap, "moved", 1, idempotent=False),
        OttlaWriter("ottla", cluster.bootstrap, "moved", 2),
    ]
    readers = [Reader(cluster.bootstrap, "moved", 0)]
    places = cycle([{0: (3, 2), 1: (1, 3), 2: (2, 1)}, {0: (1, 3), 1: (2, 1), 2: (3, 2)}, {0: (2, 1), 1: (3, 2), 2: (1, 3)}])
    with running(*writers, *readers):
        progress(writers)
        for _ in range(4):
            here = next(places)
            reassign(cluster, "execute", "-", "--yes", input=plan("moved", here))  # type: ignore[arg-type]
            reassign(cluster, "verify", "-", "--wait", input=plan("moved", here))  # type: ignore[arg-type]
            assert {number: leader for number, (leader, _) in cluster.leaders("moved").items()}.keys() == here.keys()
            progress(writers)
    assert cluster.check(writers, readers) >= 1500
    for number, ids in here.items():
        until(lambda number=number, ids=ids: holders(cluster, "moved", number) == sorted(ids))  # type: ignore[misc]
        assert cluster.leaders("moved")[number][0] in ids


def test_a_move_outlives_the_controller_and_the_broker_that_is_added(cluster: Processes) -> None:
    a_topic(cluster, "outlived", [1, 2])
    fill(cluster, "outlived")
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        cluster.brokers[3].kill()
        until(lambda: 3 not in [node.id for node in admin.describe_cluster().nodes])
        assert admin.alter_partition_reassignments({("outlived", 0): [3, 2]})[("outlived", 0)] is not None, "3 is dead"  # type: ignore[index]
        cluster.brokers[3].start()
        until(lambda: 3 in [node.id for node in admin.describe_cluster().nodes])
        # After the first answer, so slow that the move lasts as long as the test wants.
        reassign(cluster, "execute", "-", "--yes", "--throttle", "1", input=plan("outlived", {0: (3, 2)}))
        assert without_headings(reassign(cluster, "list")) == "outlived-0\t3,2,1\t3\t1\n"
        controller = cluster.controller()
        cluster.brokers[controller].kill()
        cluster.brokers[controller].start()
        until(lambda: sorted(node.id for node in admin.describe_cluster().nodes) == [1, 2, 3])
        until(lambda: cluster.controller() in (1, 2, 3))
        assert "moving" in reassign(cluster, "verify", "-", code=1, input=plan("outlived", {0: (3, 2)}))
        reassign(cluster, "cancel", "--all", "--yes")
        assert without_headings(reassign(cluster, "list")) == ""
        reassign(cluster, "execute", "-", "--yes", input=plan("outlived", {0: (3, 1)}))
        reassign(cluster, "verify", "-", "--wait", input=plan("outlived", {0: (3, 1)}))
    until(lambda: holders(cluster, "outlived") == [1, 3])


def test_tools_that_know_only_zookeeper_move_partitions_too(cluster: Processes) -> None:
    a_topic(cluster, "wished", [1, 2], [1, 2])
    path = "/admin/reassign_partitions"
    client = KazooClient(cluster.connect)
    client.start()
    try:
        client.create(path, plan("wished", {0: (3, 2), 1: (2, 3)}).encode())
        until(lambda: client.exists(path) is None)
        topic = json.loads(client.get("/brokers/topics/wished")[0])
        assert topic["partitions"] == {"0": [3, 2], "1": [2, 3]} and topic["adding_replicas"] == {}
    finally:
        client.stop()
        client.close()
    until(lambda: holders(cluster, "wished", 0) == [2, 3])


def test_a_throttle_bounds_the_bytes_that_are_copied(cluster: Processes) -> None:
    a_topic(cluster, "throttled", [1])
    fill(cluster, "throttled")
    rate = 500_000
    begun_s = time.monotonic()
    reassign(cluster, "execute", "-", "--yes", "--throttle", str(rate), input=plan("throttled", {0: (2,)}))
    reassign(cluster, "verify", "-", "--wait", input=plan("throttled", {0: (2,)}))
    size = sum(path.stat().st_size for path in directory(cluster, 2, "throttled-0").glob("*.log"))
    assert size > 2_900_000
    # One answer of a megabyte may go over what a second allows, at either side.
    assert time.monotonic() - begun_s > (size - rate - 2 * 1024 * 1024) / rate > 0.5
    with ottla.Admin(bootstrap_servers=cluster.bootstrap) as admin:
        shown = admin.describe_configs([ottla.Resource.topic("throttled")])
        (entries,) = shown.values()
        assert not isinstance(entries, Exception)
        assert entries["leader.replication.throttled.replicas"].value == ""
