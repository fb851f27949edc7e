"""Three brokers on this machine, a replica on each of them, acks=all: the cost of replication, and the time of a failover.

The clusters are started one at a time; those of Ottla have a ZooKeeper, whose CPU is not counted, while Kafka's nodes are controllers
too. All brokers share the machine with the load, so CPU-seconds per GB, summed over the brokers, say more than MB/s.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench import load
from bench.cases import GB, MB, Case, CaseContext, Figure, Measurement, Scale
from bench.clusters import Cluster, cluster_of

VALUE_SIZE = 1024
BATCH_SIZE = 16 << 10
PARTITIONS = 6
STEADY_RATE, STEADY_CONNECTIONS = 500.0, 10
#: Same criterion as for a single server: another turn makes the cluster cheaper by less than this share. Three JVMs on one
#: machine take long, so the criterion has the time limit of a single server.
WARM_GAIN, WARM_TURN_S = 0.05, 1.5
GROUP = "replicated"
COSTS = (
    Figure("raw, 1 partition", "MB/s", True, 0),
    Figure("raw, 1 partition, CPU of all brokers", "s/GB", False),
    Figure("librdkafka, 6 partitions", "MB/s", True, 0),
    Figure("librdkafka, 6 partitions, CPU of all brokers", "s/GB", False),
    Figure("latency at 500/s, p50", "ms", False),
    Figure("latency at 500/s, p99", "ms", False),
    Figure("idle CPU of all brokers", "% of a core", False, 1),
)
FAILOVER = (Figure("median", "s", False), Figure("slowest", "s", False))


def cases(scale: Scale) -> list[Case]:
    return [
        Case(GROUP, "acks=all, 1 KiB", COSTS, _costs, rounds=1),
        Case(GROUP, "kill -9 of the leader, until acknowledged", FAILOVER, _failover, frozenset({"ottla", "kafka"}), rounds=1),
    ]


@contextlib.contextmanager
def _cluster(context: CaseContext) -> Iterator[Cluster]:
    """Start a cluster of the contestant's kind, on an empty directory."""
    with (
        tempfile.TemporaryDirectory(dir=context.scratch, ignore_cleanup_errors=True) as directory,
        cluster_of(context.contestant, Path(directory)) as cluster,
    ):
        yield cluster


def _costs(context: CaseContext, scale: Scale) -> Measurement:
    with _cluster(context) as cluster:
        warm = _warm(cluster, scale)
        raw = _load(cluster, "raw_produce", 1, batch_size=BATCH_SIZE, seconds=scale.seconds, bytes_max=scale.bytes_max, warm_s=0.3)
        client = _load(cluster, "librdkafka_produce", PARTITIONS, seconds=scale.seconds, bytes_max=scale.bytes_max)
        steady = _steady(cluster, seconds=max(scale.seconds, 3.0))
        time.sleep(1.0)
        idle = load.Window(cluster.running.pids)
        idle.open()
        time.sleep(2.0)
        resting = idle.close()
    figures = {}
    for name, detail in (("raw, 1 partition", raw), ("librdkafka, 6 partitions", client)):
        figures[name] = detail["bytes"] / MB / detail["seconds"]
        figures[f"{name}, CPU of all brokers"] = detail["server_cpu_s"] / (detail["bytes"] / GB)
    figures["latency at 500/s, p50"], figures["latency at 500/s, p99"] = steady["p50_ms"], steady["p99_ms"]
    figures["idle CPU of all brokers"] = resting["server_cpu_s"] / resting["seconds"] * 100
    return Measurement(figures, {"warm_up_cpu_s_per_gb": warm, "raw": raw, "librdkafka": client, "steady": steady})


def _warm(cluster: Cluster, scale: Scale) -> list[float]:
    """CPU-seconds per GB of each turn."""
    costs: list[float] = []
    began = time.monotonic()
    while time.monotonic() - began < 2 * scale.warm_s_max:
        _load(cluster, "librdkafka_produce", PARTITIONS, seconds=WARM_TURN_S, bytes_max=scale.bytes_max)
        done = _load(cluster, "raw_produce", 1, batch_size=BATCH_SIZE, seconds=WARM_TURN_S, bytes_max=scale.bytes_max)
        costs.append(done["server_cpu_s"] / done["bytes"] * GB)
        if len(costs) >= 2 and time.monotonic() - began > scale.warm_s_max and costs[-1] > costs[-2] * (1 - WARM_GAIN):
            break
    _steady(cluster, seconds=1.0)
    return costs


def _load(cluster: Cluster, kind: str, partitions: int, **arguments: Any) -> dict[str, Any]:
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    cluster.create_topic(topic, partitions)
    _, host, port = cluster.leader(topic)
    # Dirty pages of the previous run must not be written during this one.
    os.sync()
    if kind == "raw_produce":
        arguments["partitions"] = partitions
    try:
        shape = {"value_size": VALUE_SIZE, "acks": -1, **arguments}
        return load.run(kind, host=host, port=port, pid=cluster.running.pids, topic=topic, **shape)
    finally:
        cluster.delete_topic(topic)


def _steady(cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    topic = f"bench-{uuid.uuid4().hex[:12]}"
    cluster.create_topic(topic, 1)
    _, host, port = cluster.leader(topic)
    shape = {"request": "produce acks=all", "connections": STEADY_CONNECTIONS, "rate": STEADY_RATE, "seconds": seconds}
    return load.run("steady", host=host, port=port, pid=cluster.running.pids, topic=topic, **shape)


def _failover(context: CaseContext, scale: Scale) -> Measurement:
    topic = "failover"
    details = []
    with _cluster(context) as cluster:
        cluster.create_topic(topic, 1)
        for _ in range(2 if scale.name == "quick" else 5):
            pids = {str(number): node.pid for number, node in cluster.running.nodes.items()}
            details.append(load.run("failover", bootstrap=cluster.bootstrap, topic=topic, pids=pids))
            cluster.running.restart(details[-1]["leader"])
            cluster.await_in_sync(topic, 1)
    seconds = [detail["seconds"] for detail in details]
    return Measurement({"median": statistics.median(seconds), "slowest": max(seconds)}, {"kills": details})
