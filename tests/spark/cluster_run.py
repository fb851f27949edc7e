"""A pipeline file on a cluster's executors while records arrive: its processes may be killed, and its outputs must be exact.

topic in ──► copies    each record once, at read_committed
         └─► table     count and sum by the last digit: state in the executors, merged by the driver
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ottla
import pyspark_ottla
from ottla.demo.verification import read_table
from ottla.testing import Broker, broker

from .test_standalone_cluster import JOB

USER, PASSWORD = "spark", "s3ntinel-of-the-cluster"
DIGITS = 10
PIPELINE = """
name = "run"
bootstrap = "{bootstrap}"
checkpoint = "{checkpoint}"
trigger = "1 second"
[kafka]
security.protocol = "SASL_PLAINTEXT"
sasl.mechanism = "SCRAM-SHA-512"
sasl.username = "{user}"
sasl.password = "${{PIPELINE_PASSWORD}}"
[source]
topic = "in"
[[step]]
name = "copied"
sql = "SELECT value FROM records"
[[step]]
name = "by_digit"
sql = "SELECT CAST(value AS BIGINT) % {digits} AS digit, count(*) AS many, sum(CAST(value AS BIGINT)) AS total FROM records GROUP BY 1"
[[sink]]
type = "topic"
topic = "copies"
from = "copied"
[[sink]]
type = "delta"
path = "{directory}/table"
mode = "merge"
keys = ["digit"]
from = "by_digit"
[spark]
"""


def send_packages(archive: Path) -> None:
    """Write an archive of Ottla's packages, without dependencies."""
    with tarfile.open(archive, "w") as tar:
        for package in (ottla, pyspark_ottla):
            home = Path(str(package.__file__)).parent
            tar.add(home, home.name, filter=lambda one: None if "__pycache__" in one.name else one)


class ClusterRun:
    """`ottla pipeline run` of the file in `directory`, with a producer."""

    def __init__(self, broker: Broker, directory: Path, checkpoint: str, spark: Mapping[str, str], environment: Mapping[str, str]) -> None:
        self._broker = broker
        self._directory = directory
        self._producing = True
        self._produced = 0
        #: The last batch of each query.
        self._batches: dict[str, int] = {}
        text = PIPELINE.format(bootstrap=broker.bootstrap_servers, checkpoint=checkpoint, user=USER, digits=DIGITS, directory=directory)
        self._file = directory / "run.toml"
        self._file.write_text(text + "".join(f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in spark.items()))
        self._environment = {
            **os.environ,
            **environment,
            "PIPELINE_PASSWORD": PASSWORD,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }
        for topic in ("in", "copies"):
            broker.topic(topic, partitions=4)
        self._producer = threading.Thread(target=self._produce)
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ClusterRun:
        self._producer.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._producing = False
        self._producer.join()
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait()

    def start(self) -> None:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(self._file), "-o", "json"]
        self._events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self._environment, cwd=self._directory)
        threading.Thread(target=self._follow, args=(self._process.stdout,), daemon=True).start()

    def kill(self) -> None:
        """kill -9 of the driver; its JVM ends by itself."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._batches.clear()

    def work(self, batches: int = 2) -> None:
        """Wait until each query has done so many more batches with records."""
        before = dict(self._batches)
        self._until(lambda: len(self._batches) == 2 and all(last >= before.get(name, -1) + batches for name, last in self._batches.items()))

    def finish(self) -> None:
        """Stop producing, wait until the outputs are complete, and stop."""
        self._producing = False
        self._producer.join()
        self._until(
            lambda: set(self._copies()) == set(range(self._produced)) and sum(row["many"] for row in self._rows()) >= self._produced
        )
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        assert self._process.wait() == 0
        self._process = None

    def check(self) -> None:
        """Assert that both outputs are exact."""
        copies = self._copies()
        assert set(copies) == set(range(self._produced))
        assert {number for number, times in copies.items() if times > 1} == set()
        numbers = [range(digit, self._produced, DIGITS) for digit in range(DIGITS)]
        assert {row["digit"]: (row["many"], row["total"]) for row in self._rows()} == {n[0]: (len(n), sum(n)) for n in numbers}
        assert self._produced > 0

    def _copies(self) -> Counter[int]:
        """How often each number is in the topic."""
        settings = {**self._broker.client_settings(USER), "isolation_level": "read_committed"}
        values = ottla.read_table("copies", **settings).column("value").to_pylist()
        return Counter(int(json.loads(value)["value"]) for value in values)

    def _rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = read_table(self._directory / "table").to_pylist()
        return rows

    def _until(self, reached: Callable[[], bool]) -> None:
        """Follow the pipeline's events until `reached`, which is looked at after each event and every second."""
        while not reached():
            with suppress(queue.Empty):
                event = self._events.get(timeout=1)
                assert event["event"] != "stopped", event
                if event["event"] == "progress":
                    self._batches[event["query"]] = event["batch"]

    def _follow(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._events.put(json.loads(line))

    def _produce(self) -> None:
        pause = threading.Event()
        with ottla.Producer(**self._broker.client_settings(USER)) as producer:
            while self._producing:
                numbers = range(self._produced, self._produced + 50)
                for delivery in [producer.send("in", str(number).encode()) for number in numbers]:
                    delivery.result()
                self._produced = numbers.stop
                pause.wait(0.3)


class Exposed:
    """Looks for the password in command lines and environments of all processes, as long as the block lasts."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)
        #: Descriptions of the processes that had it.
        self.found: set[str] = set()

    def __enter__(self) -> Exposed:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(2):
            for process in Path("/proc").iterdir():
                with suppress(OSError):
                    command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    if PASSWORD in command:
                        self.found.add(f"arguments: {command}")
                    # The driver and its JVM have it from the caller.
                    if PASSWORD.encode() in (process / "environ").read_bytes() and "Executor" in command:
                        self.found.add(f"environment: {command}")


def files_with_password(*places: Path) -> list[str]:
    """Names of files below `places` that contain the password, also in zip archives."""
    return [str(path) for place in places for path in place.rglob("*") if path.is_file() and _has_password(path)]


def _has_password(path: Path) -> bool:
    data = path.read_bytes()
    if PASSWORD.encode() in data:
        return True
    if not zipfile.is_zipfile(path):
        return False
    # The last block in HDFS of a larger archive, that of Spark's jars, is no archive.
    with suppress(OSError, zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        return any(PASSWORD.encode() in archive.read(name) for name in archive.namelist())
    return False


def java_processes(program: str) -> list[int]:
    """The JVMs whose command line has `program`."""
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().split(b"\0") if process.name.isdigit() else []
            if command and command[0].endswith(b"/java") and any(program.encode() in part for part in command):
                found.append(int(process.name))
    return sorted(found)


def run_job(submit: Sequence[str], environment: Mapping[str, str], directory: Path) -> str:
    """Copy 60 records from one topic to another by a job; `submit` is the command without the job. Returns what the job printed."""
    (directory / "job.py").write_text(JOB)
    with broker() as brokers:
        for topic in ("in", "out"):
            brokers.topic(topic, partitions=2)
        with ottla.Producer(**brokers.client_settings()) as producer:
            for delivery in [producer.send("in", b"%d" % number) for number in range(60)]:
                delivery.result()
        done = subprocess.run(
            [*submit, str(directory / "job.py"), brokers.bootstrap_servers, "in", "out"],
            capture_output=True, text=True, env=environment, cwd=directory, timeout=900,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-5000:]
        written = ottla.read_table("out", **brokers.client_settings()).column("value").to_pylist()
    assert sorted(written) == sorted(b"%d" % number for number in range(60))
    return done.stdout
