"""`ottla cluster status`: the shown cluster and the exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_admin import FakeAdmin

from commands import Ottla, documents, good, refused, without_headings
from ottla.client.admin.results import LogDir, ReplicaLog
from ottla.wire.errors import KafkaError


def test_without_a_local_cluster_a_remote_one_is_shown(
    monkeypatch: pytest.MonkeyPatch, cluster: FakeAdmin, ottla: Ottla, tmp_path: Path
) -> None:
    nowhere = ["--data-dir", str(tmp_path / "none")]
    assert "Error: " in refused(ottla("cluster", "status", *nowhere))
    assert not cluster.made
    monkeypatch.setenv("OTTLA_BOOTSTRAP_SERVERS", "e:9092")
    report = documents(ottla("cluster", "status", *nowhere, "-o", "json"), "cluster", "status")
    assert cluster.made[-1]["bootstrap_servers"] == "e:9092"
    assert [(one["name"], one["up"], one["controller"]) for one in report["processes"]] == [
        ("broker 1", True, False),
        ("broker 2", True, True),
    ]
    good(ottla("cluster", "status", "-b", "f:9092"))
    assert cluster.made[-1]["bootstrap_servers"] == "f:9092"


def test_missing_parts_are_listed_and_set_the_exit_code(cluster: FakeAdmin, ottla: Ottla) -> None:
    cluster.topic("behind", isr=[1])
    cluster.topic("away", replicas=[3, 1], isr=[1])
    result = ottla("cluster", "status", "-b", "x:1")
    assert result.exit_code == 1
    assert without_headings(result.stdout).splitlines() == [
        "broker 1\t\tone:9092\tup\t",
        "broker 2\t\ttwo:9092\tup\tcontroller",
        "broker 3\t\t\tdown\t",
        "under-replicated\t2 of 8 partitions",
        "behind-0\t1\t1,2\t1",
        "away-0\t1\t3,1\t1",
        "offline\t0 of 8 partitions",
    ]
    report = documents(ottla("cluster", "status", "-b", "x:1", "-o", "json"), "cluster", "status", code=1)
    assert report["under_replicated"][1] == {"topic": "away", "partition": 0, "leader": 1, "replicas": [3, 1], "isr": [1]}


def test_damaged_logs_are_listed_and_set_the_exit_code(cluster: FakeAdmin, ottla: Ottla, monkeypatch: pytest.MonkeyPatch) -> None:
    log = ReplicaLog("orders", 3, 10, 0, False, "offsets 4 to 4, bytes 62 to 123 of 00.log: the checksum of the batch does not fit")
    monkeypatch.setattr(cluster, "describe_log_dirs", lambda *_, **__: {1: [LogDir("/a", None, 9, 9, [log])], 2: KafkaError("away")})
    result = ottla("cluster", "status", "-b", "x:1")
    assert result.exit_code == 1 and f"orders-3\t1\t{log.damage}" in result.stdout.splitlines()
    report = documents(ottla("cluster", "status", "-b", "x:1", "-o", "json"), "cluster", "status", code=1)
    assert report["damaged"] == [{"topic": "orders", "partition": 3, "broker": 1, "damage": log.damage}]


def test_health_names_what_is_wrong_and_sets_the_exit_code(cluster: FakeAdmin, ottla: Ottla) -> None:
    assert good(ottla("cluster", "health", "-b", "x:1")) == "healthy: 2 brokers, 6 partitions, all replicas in sync\n"
    cluster.topic("behind", isr=[1])
    cluster.topic("away", replicas=[3, 1], isr=[1])
    result = ottla("cluster", "health", "-b", "x:1")
    assert result.exit_code == 1
    assert result.stdout == "not healthy: broker 3 is down; 2 of 8 partitions under-replicated: away-0, behind-0\n"
    report = documents(ottla("cluster", "health", "-b", "x:1", "-o", "json"), "cluster", "health", code=1)
    assert (report["healthy"], report["brokers"], len(report["problems"])) == (False, 2, 2)


def test_health_waits_until_a_cluster_is_healthy(cluster: FakeAdmin, ottla: Ottla, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ottla.cli.cluster.health_command.INTERVAL_S", 0.01)
    cluster.topic("behind", isr=[1])
    readings = iter(range(100))
    describe = cluster.describe_topics

    def in_sync_at_the_third(names: list[str]) -> dict[str, object]:
        if next(readings) == 2:
            cluster.topic("behind")
        return describe(names)

    monkeypatch.setattr(cluster, "describe_topics", in_sync_at_the_third)
    lines = good(ottla("cluster", "health", "-b", "x:1", "--watch", "--exit-when-healthy")).splitlines()
    assert [line.partition(":")[0] for line in lines] == ["not healthy", "healthy"]
    cluster.topic("behind", isr=[1])
    assert ottla("cluster", "health", "-b", "x:1", "--watch", "--timeout", "50ms").exit_code == 1
    usage = ottla("cluster", "health", "-b", "x:1", "--timeout", "1s")
    assert usage.exit_code == 2 and "need --watch" in usage.output
