"""Java programs of Apache Kafka as child processes: frameworks and tools that are started, watched and killed."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from bench import kafka as apache
from bench import maven
from bench.maven import PeerUnavailable

WAIT_S = 120
LOGGING = """rootLogger.level=warn
rootLogger.appenderRef.out.ref=out
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%p %c %m%n
"""


def jars(artifact: str, also: str | None = None) -> Path:
    """The newest 4.x release of a module of Apache Kafka with its dependencies. It may be older than the broker's: Maven has some modules
    of a release later than others, or never.
    """
    try:
        return maven.newest(artifact, "org.apache.kafka", artifact, pattern=r"4\.\d+\.\d+", also=also)[1]
    except PeerUnavailable as why:
        pytest.skip(f"{artifact} cannot be had here: {why}")


class Program:
    """A Java program and its output. `kill` ends it with SIGKILL, and `start` begins its next run."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self.command, self.log = command, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(20)

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + WAIT_S
        while not true():
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text()[-4000:]}"
            assert time.monotonic() < deadline_s, f"{what} holds in time:\n{self.log.read_text()[-4000:]}"
            time.sleep(0.1)


@contextmanager
def running(apache_kafka: apache.Distribution, lib: Path, directory: Path, *command: str, name: str = "java") -> Iterator[Program]:
    logging = directory / "log4j2.properties"
    logging.write_text(LOGGING)
    path = f"{lib}/*{os.pathsep}{apache_kafka.lib}/*"
    options = ("-Xmx256M", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Dlog4j2.configurationFile={logging}")
    program = Program([apache_kafka.java.path, *options, "-cp", path, *command], directory / f"{name}.log")
    try:
        yield program
        program.process.terminate()
        program.process.wait(60)
    finally:
        program.kill()


def properties(path: Path, values: dict[str, object]) -> str:
    path.write_text("".join(f"{name}={value}\n" for name, value in values.items()))
    return str(path)
