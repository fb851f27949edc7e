"""The compared servers: Ottla with defaults, Ottla with write.caching, and a stock Apache Kafka.

Their guarantees differ, so Ottla is measured with both:

    ottla          acks=all is acknowledged after fsync                 its default
    ottla cached   acks=all is acknowledged from the page cache         `--set write.caching=true`
    kafka          acks=all is acknowledged from the page cache         its default; compare with "ottla cached"
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bench import kafka
from bench.process import ServerProcess

ROOT = Path(__file__).resolve().parent.parent
OTTLA_READY = re.compile(r"ottla: ready on (\S+)")


def compiled() -> bool:
    """Whether the servers started here use compiled modules, as a pip installation does."""
    spec = importlib.util.find_spec("ottla.broker.node")
    return spec is not None and not str(spec.origin).endswith(".py")


@dataclass(frozen=True, slots=True)
class Running:
    """A running server."""

    name: str
    bootstrap: str
    process: ServerProcess

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = self.bootstrap.split(",")[0].rpartition(":")
        return host, int(port)


@dataclass(frozen=True, slots=True)
class OttlaServer:
    """`ottla serve` as a child of this interpreter, on a free loopback port."""

    name: str = "ottla"
    settings: dict[str, str] = field(default_factory=dict)

    @contextlib.contextmanager
    def running(self, data_dir: Path) -> Iterator[Running]:
        command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(data_dir / "data"), "--listen", "127.0.0.1:0"]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        with ServerProcess(command, log_path=data_dir / "server.log", ready=OTTLA_READY) as process:
            yield Running(self.name, process.ready_match.group(1), process)


@dataclass(frozen=True, slots=True)
class KafkaServer:
    """A stock Apache Kafka."""

    distribution: kafka.Distribution
    name: str = "kafka"

    @contextlib.contextmanager
    def running(self, data_dir: Path) -> Iterator[Running]:
        with kafka.running(self.distribution, data_dir) as (bootstrap, process):
            yield Running(self.name, bootstrap, process)


Contestant = OttlaServer | KafkaServer

OTTLA = OttlaServer()
OTTLA_CACHED = OttlaServer("ottla cached", {"write.caching": "true"})
