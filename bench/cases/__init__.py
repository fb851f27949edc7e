"""The cases: each is one quantity, measured in the same way on every server.

A case runs against a `CaseContext`: one running server with its topics. It returns named figures with units, and the load's
own result, which the JSON contains in full.
"""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from bench import load
from bench.servers import Contestant, Running

MB, GB = 1e6, 1e9


class Skipped(RuntimeError):
    """This case cannot run on this machine; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Sizes and durations of the loads."""

    name: str
    rounds: int
    seconds: float
    bytes_max: int
    fill_bytes: int
    starts: int
    spark_rows: int
    warm_s_max: float
    #: Of the cluster that the console shows; the partitions are those of all topics.
    topics: int
    partitions: int


SCALES = {
    scale.name: scale
    for scale in (
        Scale("quick", 1, 1.0, 150_000_000, 80_000_000, 1, 1_000_000, 30.0, 200, 2_000),
        Scale("default", 2, 1.5, 400_000_000, 250_000_000, 3, 5_000_000, 30.0, 2_000, 20_000),
        Scale("full", 3, 5.0, 2_000_000_000, 1_000_000_000, 5, 5_000_000, 60.0, 2_000, 20_000),
    )
}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure of a case. `higher` tells whether more is better."""

    key: str
    unit: str
    higher: bool
    digits: int = 2


@dataclass
class CaseContext:
    """A running contestant, and the cases' topics on it."""

    contestant: Contestant
    running: Running
    scratch: Path
    filled: dict[tuple[int, int, int], tuple[str, int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.contestant.name

    def load(self, kind: str, topic: str, **arguments: Any) -> dict[str, Any]:
        host, port = self.running.address
        return load.run(kind, host=host, port=port, pid=self.running.process.pid, topic=topic, **arguments)

    def create_topic(self, partitions: int) -> str:
        """Create a topic and wait for its leaders. Files of a deleted topic are removed after a second, not after a minute."""
        name = f"bench-{uuid.uuid4().hex[:12]}"
        admin = self._admin
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config={"file.delete.delay.ms": "1000"})
        admin.create_topics([topic])[name].result(30)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            found = admin.list_topics(name, timeout=10).topics[name].partitions
            if len(found) == partitions and all(partition.leader >= 0 for partition in found.values()):
                return name
            time.sleep(0.02)
        raise load.LoadFailed(f"{name} has no leaders after 30 s")

    def delete_topic(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def filled_topic(self, value_size: int, partitions: int, value_bytes: int) -> tuple[str, int]:
        """A topic with at least `value_bytes` of values in batches of 16 KiB, created on first use, and its number of records."""
        key = (value_size, partitions, value_bytes)
        if key not in self.filled:
            name = self.create_topic(partitions)
            done = self.load(
                "raw_produce",
                name,
                partitions=partitions,
                value_size=value_size,
                batch_size=16 << 10,
                acks=1,
                seconds=120,
                bytes_max=value_bytes,
            )
            self.filled[key] = name, int(done["records_total"])
        return self.filled[key]

    @functools.cached_property
    def _admin(self) -> AdminClient:
        # One for the whole run: a client that is garbage collected while its future is pending fails that future.
        return AdminClient({"bootstrap.servers": self.running.bootstrap, "log_level": 0})


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of one run of a case."""

    figures: dict[str, float]
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One or more rows of the report. `only` limits it to some contestants; none means all."""

    group: str
    name: str
    figures: tuple[Figure, ...]
    run: Callable[[CaseContext, Scale], Measurement]
    only: frozenset[str] | None = None
    rounds: int | None = None

    @property
    def title(self) -> str:
        return f"{self.group}: {self.name}"


def rates(detail: dict[str, Any]) -> Measurement:
    """MB/s and server CPU-seconds per GB, both of record values, not of bytes on the wire."""
    return Measurement(
        {"throughput": detail["bytes"] / MB / detail["seconds"], "server CPU": detail["server_cpu_s"] / (detail["bytes"] / GB)}, detail
    )


RATES = (Figure("throughput", "MB/s", True, 0), Figure("server CPU", "s/GB", False))
