"""A large cluster loses a broker, then its controller: time until both survivors name a leader for every partition again.

Three brokers, a replica of each of thousands of partitions on every one, over a real ZooKeeper. The time until a killed broker's session
ends is a setting, and not measured. The clock starts when the first survivor no longer lists the broker, and stops when both
survivors name a living leader for all partitions. They are queried by Metadata; with so many partitions this is work for the measured
brokers, too.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from bench.cases import Case, CaseContext, Figure, Measurement, Scale
from bench.clusters import BROKERS, Cluster, cluster_of
from bench.load import LoadFailed
from ottla.wire import framing
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

PARTITIONS = 10_000
TOPIC = "many"
PATIENCE_S = 60.0
POLL_S = 0.1
VERSION = 9
FIGURES = (
    Figure("a broker, until all are led", "s", False),
    Figure("the controller, until all are led", "s", False),
    Figure("CPU of both survivors, a broker", "s", False),
    Figure("CPU of both survivors, the controller", "s", False),
)
Addresses = Mapping[int, tuple[str, int]]


def cases(scale: Scale) -> list[Case]:
    partitions = PARTITIONS // 10 if scale.name == "quick" else PARTITIONS

    def run(context: CaseContext, scale: Scale) -> Measurement:
        with tempfile.TemporaryDirectory(dir=context.scratch, ignore_cleanup_errors=True) as directory:
            return _failovers(context, Path(directory), partitions)

    return [Case("failover", f"{partitions:,} partitions, 3 replicas each", FIGURES, run, frozenset({"ottla"}), rounds=1)]


def _failovers(context: CaseContext, directory: Path, partitions: int) -> Measurement:
    with cluster_of(context.contestant, directory) as cluster:
        addresses = _addresses(cluster)
        cluster.create_topic(TOPIC, partitions)
        office = _metadata(addresses[1]).controller_id
        other = next(number for number in addresses if number != office)
        first = _lose(cluster, addresses, other)
        cluster.running.restart(other)
        cluster.await_in_sync(TOPIC, partitions)
        second = _lose(cluster, addresses, office)
    figures = {
        "a broker, until all are led": first["led_s"],
        "the controller, until all are led": second["led_s"],
        "CPU of both survivors, a broker": first["cpu_s"],
        "CPU of both survivors, the controller": second["cpu_s"],
    }
    return Measurement(figures, {"partitions": partitions, "broker": first, "controller": second})


def _addresses(cluster: Cluster) -> Addresses:
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    found = {broker.node_id: (broker.host, broker.port) for broker in _metadata((host, int(port))).brokers}
    if len(found) != BROKERS:
        raise LoadFailed(f"{len(found)} brokers of {BROKERS} are there")
    return found


def _lose(cluster: Cluster, addresses: Addresses, victim: int) -> dict[str, float]:
    """Kill a broker; returns seconds until it is detected, from then until both survivors name all leaders, and the survivors' CPU."""
    survivors = {number: address for number, address in addresses.items() if number != victim}
    nodes = [cluster.running.nodes[number] for number in survivors]
    killed = time.perf_counter()
    cluster.running.kill(victim)
    for _ in _polls():
        if any(victim not in {broker.node_id for broker in _metadata(address).brokers} for address in survivors.values()):
            break
    noticed, cpu_s = time.perf_counter(), sum(node.cpu_s() for node in nodes)
    for address in survivors.values():
        for _ in _polls():
            (topic,) = _metadata(address, TOPIC).topics
            if all(partition.leader_id in survivors for partition in topic.partitions):
                break
    led = time.perf_counter()
    return {"noticed_s": noticed - killed, "led_s": led - noticed, "cpu_s": sum(node.cpu_s() for node in nodes) - cpu_s}


def _polls() -> Iterator[None]:
    """Repeat until the caller stops. Raises: LoadFailed."""
    deadline = time.perf_counter() + PATIENCE_S
    while time.perf_counter() < deadline:
        yield
        time.sleep(POLL_S)
    raise LoadFailed(f"not every partition has a leader within {PATIENCE_S:.0f} s")


def _metadata(address: tuple[str, int], *topics: str) -> MetadataResponse:
    """The response of one broker, on a separate connection. Raises: OSError."""
    request = MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False)
    with contextlib.closing(socket.create_connection(address, timeout=PATIENCE_S)) as connection:
        connection.sendall(b"".join(framing.encode_request(request, VERSION, 1, "bench")))  # type: ignore[arg-type]
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            return framing.decode_response(MetadataResponse, answer.read(size), VERSION)[1]
