"""The cluster of three machines in docs/getting-started.md: its six commands run unchanged on three addresses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla
from ottla import NewTopic
from ottla.server.zookeeper_ensemble import Ensemble, _free_ports
from serving import SOURCE

pytestmark = pytest.mark.server
PAGE = Path(__file__).resolve().parents[2] / "docs" / "getting-started.md"
SESSION, SESSION_MS = "zookeeper.session.timeout.ms", 2_000


class Machine:
    """An address, its ports, and a home of its own."""

    def __init__(self, number: int, home: Path) -> None:
        self.host = f"127.0.0.{number}"
        self.home = home
        self.client, self.quorum, self.election, self.broker = _free_ports(self.host, 4)
        self.processes: list[subprocess.Popen[bytes]] = []

    def run(self, arguments: list[str]) -> None:
        path = os.pathsep.join(filter(None, (str(SOURCE), os.environ.get("PYTHONPATH"))))
        self.home.mkdir(exist_ok=True)
        with (self.home / f"{arguments[0]}.log").open("ab") as output:
            command = [sys.executable, "-m", "ottla", *arguments]
            environment = {**os.environ, "PYTHONPATH": path, "XDG_DATA_HOME": str(self.home)}
            self.processes.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment))

    def ready(self, name: str) -> bool:
        return "ready on " in (self.home / f"{name}.log").read_text()

    def off(self) -> None:
        """The plug is pulled."""
        for process in self.processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


@pytest.fixture
def machines(tmp_path: Path, zookeeper: Ensemble) -> Iterator[list[Machine]]:
    made = [Machine(number, tmp_path / str(number)) for number in (1, 2, 3)]
    yield made
    for machine in made:
        machine.off()


def commands() -> list[tuple[int, list[str]]]:
    """Number of the machine, and the words after ``ottla``."""
    found = re.search(r"<!-- example: three machines -->\n```\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    lines = [re.fullmatch(r"10\.0\.0\.(\d)\$ ottla (.*) &", line) for line in found[1].splitlines()]
    return [(int(line[1]), shlex.split(line[2])) for line in lines if line is not None]


def placed(words: list[str], machines: list[Machine]) -> list[str]:
    """The words with this test's addresses and ports: those of the page are others' here."""
    own: list[str] = []
    for option, word in zip([""] + words, words, strict=False):
        numbers = [int(number) - 1 for number in re.findall(r"10\.0\.0\.(\d)", word)]
        if option == "--ensemble":
            own.append(",".join(f"{machines[n].host}:{machines[n].quorum}:{machines[n].election}" for n in numbers))
        elif option == "--zookeeper":
            own.append(",".join(f"{machines[n].host}:{machines[n].client}" for n in numbers) + "/ottla")
        elif option == "--listen":
            own.append(f"{machines[numbers[0]].host}:{machines[numbers[0]].broker}")
        else:
            own.append(word)
    return own


def until(true: object, *, timeout_s: float = 30.0) -> None:
    assert callable(true)
    deadline_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline_s, "it comes about in time"
        time.sleep(0.05)


def test_a_cluster_on_three_machines_takes_six_commands_and_loses_one_machine(machines: list[Machine]) -> None:
    written = commands()
    assert [(number, words[0]) for number, words in written] == [(n, what) for what in ("zookeeper", "serve") for n in (1, 2, 3)]
    for what in ("zookeeper", "serve"):
        for number, words in written:
            if words[0] == what:
                machine = machines[number - 1]
                more = ["--listen", f"{machine.host}:{machine.client}"] if what == "zookeeper" else ["--set", f"{SESSION}={SESSION_MS}"]
                machine.run([*placed(words, machines), *more])
        for machine in machines:
            until(lambda machine=machine, what=what: machine.ready(what))
    bootstrap = ",".join(f"{machine.host}:{machine.broker}" for machine in machines)
    with ottla.Admin(bootstrap_servers=bootstrap) as admin:
        until(lambda: len(admin.describe_cluster().nodes) == 3)
        admin.create_topic(NewTopic("payments", 6, 3, {"min.insync.replicas": "2"}))
    with ottla.Producer(bootstrap_servers=bootstrap) as producer:
        for number in range(60):
            producer.send("payments", b"%d" % number, partition=number % 6).result()
        machines[1].off()
        for number in range(60, 120):
            producer.send("payments", b"%d" % number, partition=number % 6).result()
    with ottla.Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign(consumer.partitions_for("payments"))
        found: list[bytes | None] = []
        deadline_s = time.monotonic() + 30
        while len(found) < 120 and time.monotonic() < deadline_s:
            found += [record.value for record in consumer.poll(timeout_ms=500)]
    assert sorted(int(value or b"-1") for value in found) == list(range(120))
