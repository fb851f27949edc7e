"""``ottla cluster up``, ``status``, ``restart`` and ``down``."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

import ottla
from ottla import ConfigChange, NewTopic, Resource
from ottla.server.daemon import Daemon, birth_of
from ottla.server.local_cluster import ClusterRequest, LocalCluster, free_ports
from ottla.server.zookeeper_ensemble import Ensemble
from serving import SOURCE

pytestmark = pytest.mark.server
READY = re.compile(r"^ottla: cluster ready on (\S+)\n$")


class Commands:
    """``ottla cluster`` on a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.profiles = directory.parent / "config.toml"

    def run(self, *arguments: str, code: int | None = 0, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-m", "ottla", "cluster", *arguments, "--data-dir", str(self.directory)],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": path, "OTTLA_CONFIG": str(self.profiles), **(environment or {})},
        )
        assert code is None or done.returncode == code, (arguments, done.stdout, done.stderr)
        return done

    def up(self, *arguments: str) -> str:
        """Where its brokers are."""
        done = self.run("up", "--listen", "127.0.0.1:0", *arguments)
        assert re.search(r"ottla: profile local (added|updated): use it with --profile local\n", done.stderr)
        found = READY.match(done.stdout)
        assert found, done
        return found[1]

    def refusal(self, *arguments: str, code: int = 1) -> str:
        said = self.run(*arguments, code=code).stderr
        return said.splitlines()[-1]

    def status(self, *, code: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("status", "-o", "json", code=code).stdout)
        return found

    def until_well(self) -> None:
        deadline_s = time.monotonic() + 30
        while self.run("status", code=None).returncode:
            assert time.monotonic() < deadline_s
            time.sleep(0.1)

    def pids(self) -> dict[str, int]:
        return {one["name"]: one["pid"] for one in self.status()["processes"]}


@pytest.fixture
def commands(tmp_path: Path, zookeeper: Ensemble) -> Iterator[Commands]:
    """Whatever a test leaves running is ended."""
    made = Commands(tmp_path / "cluster")
    yield made
    if (made.directory / "cluster.json").exists():
        cluster = LocalCluster.load(made.directory)
        for process in [*cluster.brokers.values(), cluster.zookeeper]:
            process.stop(timeout_s=0)


def state(status: dict[str, Any]) -> dict[str, bool]:
    return {one["name"]: one["up"] for one in status["processes"]}


def cluster_address(status: dict[str, Any], name: str) -> str:
    return next(str(one["address"]) for one in status["processes"] if one["name"] == name)


def test_a_cluster_outlives_its_command_and_a_second_start_changes_nothing(commands: Commands) -> None:
    bootstrap = commands.up("--brokers", "2")
    pids = commands.pids()
    assert f'[profiles.local]\nbootstrap_servers = "{bootstrap}"\n' in commands.profiles.read_text()
    assert list(pids) == ["zookeeper 1", "broker 1", "broker 2"] and len(set(pids.values())) == 3
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("t", 1, 2))
        assert [f"{node.host}:{node.port}" for node in admin.describe_cluster().nodes] == bootstrap.split(",")
    again = commands.run("up")
    assert again.stdout == f"ottla: cluster ready on {bootstrap}\n" and again.stderr == ""
    assert commands.pids() == pids
    with ottla.Producer(bootstrap_servers=bootstrap) as producer:
        producer.send("t", b"kept").result()
    said = commands.run("down").stderr
    assert said == "ottla: broker 2 stopped\nottla: broker 1 stopped\nottla: zookeeper stopped\nottla: profile local removed\n"
    assert not any(birth_of(pid) for pid in pids.values())
    status = commands.status(code=1)
    assert not any(state(status).values()) and status["controller"] is None
    assert commands.run("down").stderr == "" and "local" not in commands.profiles.read_text()
    assert commands.up() == bootstrap
    with ottla.Consumer("t", group_id="g", auto_offset_reset="earliest", bootstrap_servers=bootstrap) as consumer:
        assert [record.value for record in consumer.poll(timeout_ms=10_000)] == [b"kept"]


def test_a_broker_that_was_killed_is_shown_as_down_and_started_again(commands: Commands) -> None:
    bootstrap = commands.up("--set", "zookeeper.session.timeout.ms=2000")
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic("three", 1, 3), NewTopic("one", assignments={0: [2]})])
    commands.until_well()
    before = commands.pids()
    os.kill(before["broker 2"], signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while not (status := commands.status(code=1))["offline"] or [one["isr"] for one in status["under_replicated"]] not in (
        [[1, 3]],
        [[3, 1]],
    ):
        assert time.monotonic() < deadline_s
    assert state(status) == {"zookeeper 1": True, "broker 1": True, "broker 2": False, "broker 3": True}
    assert [(one["topic"], one["partition"], one["leader"]) for one in status["offline"]] == [("one", 0, None)]
    (under,) = status["under_replicated"]
    assert (under["topic"], sorted(under["replicas"]), sorted(under["isr"])) == ("three", [1, 2, 3], [1, 3])
    shown = commands.run("status", code=1).stdout
    assert "broker 2\t\t" in shown and "under-replicated\t1 of 2 partitions" in shown and "one-0\tnone\t2\t2" in shown
    dead = f"{cluster_address(status, 'broker 2')},{bootstrap}"
    for _ in range(3):
        with ottla.Admin(bootstrap_servers=dead, retries=0) as admin:
            topic = Resource.topic("three")
            assert admin.incremental_alter_configs({topic: [ConfigChange("retention.ms", "1")]}) == {topic: None}, (
                "asked of one that answers"
            )
    elsewhere = commands.run("status", "-b", bootstrap, code=1).stdout
    assert (
        elsewhere.startswith("PROCESS\tPID\tADDRESS\tSTATE\tROLE\nbroker 1\t\t")
        and "broker 2\t\t\tdown\t\n" in elsewhere
        and shown.partition("under")[2] in elsewhere
    )
    assert "down: start missing brokers with ottla cluster up" in commands.refusal("restart")
    assert re.fullmatch(r"ottla: broker 2 started, process \d+\n", commands.run("up").stderr)
    commands.until_well()
    after = commands.pids()
    assert {name for name in before if before[name] != after[name]} == {"broker 2"}


def test_a_zookeeper_that_was_killed_is_shown_as_down_and_started_again_and_brokers_go_on(commands: Commands) -> None:
    bootstrap = commands.up("--brokers", "2")
    before = commands.pids()
    os.kill(before["zookeeper 1"], signal.SIGKILL)
    assert state(commands.status(code=1)) == {"zookeeper 1": False, "broker 1": True, "broker 2": True}
    assert re.fullmatch(r"ottla: zookeeper started, process \d+\n", commands.run("up").stderr)
    commands.until_well()
    after = commands.pids()
    assert {name for name in before if before[name] != after[name]} == {"zookeeper 1"}
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("t", 2, 2))
    with ottla.Producer(bootstrap_servers=bootstrap) as producer:
        assert producer.send("t", b"x").result().offset == 0


def test_brokers_are_restarted_one_after_another_while_a_writer_goes_on(commands: Commands) -> None:
    bootstrap = commands.up("--zookeeper-nodes", "3", "--set", "min.insync.replicas=2")
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic("t", 3, 3))
    controller = commands.status()["controller"]
    before = commands.pids()
    assert [name for name in before if name.startswith("zookeeper")] == ["zookeeper 1", "zookeeper 2", "zookeeper 3"]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all", "linger.ms": 1})
    stop, acknowledged, failed = threading.Event(), [], []  # type: ignore[var-annotated]

    def delivered(error: Any, message: Any) -> None:
        (failed if error else acknowledged).append(message.value())

    def write() -> None:
        number = 0
        while not stop.is_set():
            producer.produce("t", b"%d" % number, on_delivery=delivered)
            producer.poll(0)
            number += 1
            time.sleep(0.002)
        producer.flush(60)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        said = commands.run("restart").stderr
    finally:
        stop.set()
        writer.join()
    assert re.fullmatch(r"(ottla: broker \d restarted, process \d+\n){3}", said)
    assert [int(number) for number in re.findall(r"broker (\d)", said)] == [*sorted({1, 2, 3} - {controller}), controller]
    after = commands.pids()
    assert {name for name in before if before[name] == after[name]} == {"zookeeper 1", "zookeeper 2", "zookeeper 3"}
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        assert all(one.leader == one.replicas[0] for one in admin.describe_topic("t").partitions)
    assert len(acknowledged) > 300 and not failed
    with ottla.Consumer("t", group_id="g", auto_offset_reset="earliest", bootstrap_servers=bootstrap) as consumer:
        found: list[bytes | None] = []
        deadline_s = time.monotonic() + 30
        while len(found) < len(acknowledged) and time.monotonic() < deadline_s:
            found += [record.value for record in consumer.poll(timeout_ms=1_000)]
    assert sorted(value or b"" for value in found) == sorted(acknowledged)


def test_more_brokers_are_added_and_none_left_out(commands: Commands) -> None:
    first = commands.up("--brokers", "1")
    both = commands.up("--brokers", "2")
    assert both.startswith(f"{first},")
    assert state(commands.status()) == {"zookeeper 1": True, "broker 1": True, "broker 2": True}
    assert "holds a cluster of 2 brokers; brokers cannot be removed" in commands.refusal("up", "--brokers", "1")
    assert "holds a cluster with --zookeeper-nodes 1; leave the option out" in commands.refusal("up", "--zookeeper-nodes", "3")
    assert f"holds a cluster with --listen {first}; leave" in commands.refusal("up", "--listen", "127.0.0.1:19092")
    said = commands.run("up", "--set", "write.caching=true").stderr
    assert said == "ottla: broker 1, broker 2 keep their old settings; apply new ones with ottla cluster restart\n"
    commands.run("restart", "--broker", "2")
    with ottla.Admin(bootstrap_servers=both) as admin:
        found = admin.describe_configs([Resource.broker(number) for number in (1, 2)])
        assert [entries["write.caching"].value for entries in found.values() if not isinstance(entries, Exception)] == ["false", "true"]


def test_failed_start_is_reported_in_one_line_and_can_be_retried(commands: Commands) -> None:
    port = free_ports("127.0.0.1", 2)
    arguments = ("--brokers", "2", "--listen", f"127.0.0.1:{port}", "--zookeeper-listen", "127.0.0.1:0")
    with socket.create_server(("127.0.0.1", port + 1)):
        said = commands.refusal("up", *arguments)
        assert said.startswith(
            f"Error: broker 2 does not start: cannot listen on 127.0.0.1:{port + 1}: Address already in use; choose another"
        )
    assert state(commands.status(code=1)) == {"zookeeper 1": True, "broker 1": True, "broker 2": False}
    assert re.match(r"ottla: broker 2 started, process \d+\nottla: profile local added", commands.run("up").stderr)


def test_a_broker_directory_of_another_cluster_is_refused_with_its_reason(commands: Commands) -> None:
    commands.up("--brokers", "1")
    commands.run("down")
    marked = commands.directory / "broker-1" / "broker-1" / "meta.properties"
    unchecked = re.sub("#crc32c=.*\n", "", marked.read_text())
    marked.write_text(re.sub("cluster.id=.*", "cluster.id=AAAAAAAAAAAAAAAAAAAAAA", unchecked))
    said = commands.refusal("up")
    assert said.startswith("Error: broker 1 does not start: cannot open the log directory") and "AAAAAAAAAAAAAAAAAAAAAA" in said


def test_without_java_nothing_is_started(tmp_path: Path) -> None:
    commands = Commands(tmp_path / "cluster")
    home = tmp_path / "home"
    (home / "lib").mkdir(parents=True)
    said = commands.run("up", "--listen", "127.0.0.1:0", code=1, environment={"ZOOKEEPER_HOME": str(home)}).stderr
    assert "Error: zookeeper does not start: " in said and said.count("\n") == 1
    assert not any(state(commands.status(code=1)).values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--set", "broker.id=7"], "broker.id is set for each broker automatically; leave it out"),
        (["--set", "no.such.setting=1"], "no.such.setting"),
        (["--set", "nonsense"], "--set expects NAME=VALUE"),
        (["--listen", "0.0.0.0:9092"], "expected the address of this machine"),
        (["--listen", "nowhere"], "expected HOST:PORT"),
        (["--listen", "127.0.0.1:65535"], "above 65535"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused_before_anything_is_kept(tmp_path: Path, arguments: list[str], said: str) -> None:
    commands = Commands(tmp_path / "cluster")
    assert said in commands.run("up", *arguments, code=2).stderr
    assert not (tmp_path / "cluster" / "cluster.json").exists()


def test_a_directory_that_is_something_else_is_left_alone(tmp_path: Path) -> None:
    commands = Commands(tmp_path)
    (tmp_path / "letters").mkdir()
    assert "holds other files (letters); choose another --data-dir" in commands.refusal("up")
    for command in ("status", "down", "restart"):
        assert "no cluster was started in" in commands.refusal(command)
    (tmp_path / "cluster.json").write_text("{}")
    assert "cannot read" in commands.refusal("status")


def test_a_process_that_took_over_the_number_of_another_is_not_touched(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as stranger:
        process = Daemon("broker 1", tmp_path / "broker-1", [], ready="ottla: ready on ")
        process.pid_file.write_text(f"{stranger.pid} 12345\n")
        assert process.pid is None
        assert process.stop(timeout_s=0)
        assert stranger.poll() is None
        stranger.communicate(b"\n")


def test_cluster_is_created_and_changed_without_starting_processes(tmp_path: Path) -> None:
    made = LocalCluster.create_or_change(tmp_path, ClusterRequest(listen="127.0.0.1:9192"))
    assert made.bootstrap == "127.0.0.1:9192,127.0.0.1:9193,127.0.0.1:9194" and made.spec.zookeeper == "127.0.0.1:2281"
    again = LocalCluster.create_or_change(tmp_path, ClusterRequest(brokers=4, settings={"log.retention.ms": "1"}))
    assert again.bootstrap == f"{made.bootstrap},127.0.0.1:9195"
