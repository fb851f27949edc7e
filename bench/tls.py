"""Cost of TLS: processor time of a broker per GB, beside that of Apache Kafka, and the latency of a client during handshakes.

    python -m bench.tls [--megabytes 500] [--rounds 3] [--no-kafka]

"ottla cached" is Ottla with write.caching=true, which acknowledges from memory as Kafka does.
Each broker has a PLAINTEXT and an SSL listener with the same certificate; the same librdkafka client writes and reads over each. The
broker's processor time is that of its process, so the client's share of the machine does not count. The brokers take turns. Each is warmed
up first: a JVM compiles its code in the first gigabytes.

The second part measures ApiVersions requests over an open TLS connection, one after another, while 200 other clients, in another process,
begin their handshakes together: with this broker, and as a control with a second one on the same machine. The control shows the effect of
the shared processors; the rest is the broker's.
"""

from __future__ import annotations

import argparse
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench import kafka
from bench.maven import PeerUnavailable
from bench.process import ServerProcess
from bench.servers import OTTLA_READY
from ottla.wire import framing
from ottla.wire.messages import ApiVersionsRequest

RECORD_BYTES = 10_000
HANDSHAKES = 200
REQUESTS = 3_000
#: Bytes that warm a broker up, over each listener.
WARM_UP_BYTES = {"ottla": 100_000_000, "ottla cached": 100_000_000, "kafka": 1_000_000_000}


class Certificates:
    """Files of `ottla tls init`, which both brokers read."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "ottla", "tls", "init", "127.0.0.1", "--dir", str(directory)]
        subprocess.run(command, check=True, capture_output=True)
        self.authority = directory / "ca.pem"
        self.settings = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(directory / "127.0.0.1.pem")}


class Broker:
    """A broker process with both listeners."""

    def __init__(self, name: str, process: ServerProcess, ports: dict[str, int], authority: Path) -> None:
        self.name = name
        self.process = process
        self.ports = ports
        self.authority = authority

    def cpu_s(self) -> float:
        return self.process.cpu_s()

    def client(self, protocol: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[protocol]}",
            "security.protocol": protocol,
            **({"ssl.ca.location": str(self.authority)} if protocol == "SSL" else {}),
        }


@contextmanager
def ottla(directory: Path, certificates: Certificates, caching: bool = False) -> Iterator[Broker]:
    ports = {"PLAINTEXT": free_port(), "SSL": free_port()}
    settings = {
        "listeners": ",".join(f"{protocol}://127.0.0.1:{port}" for protocol, port in ports.items()),
        "log.segment.bytes": "1073741824",
        "write.caching": str(caching).lower(),
        **certificates.settings,
    }
    directory.mkdir()
    properties = directory / "server.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(directory / "data"), "--config", str(properties)]
    with ServerProcess(command, log_path=directory / "server.log", ready=OTTLA_READY) as process:
        yield Broker("ottla cached" if caching else "ottla", process, ports, certificates.authority)


@contextmanager
def apache_kafka(directory: Path, certificates: Certificates) -> Iterator[Broker]:
    """Raises PeerUnavailable."""
    found, places = kafka.distribution(), kafka.places(directory, 1)
    ports = {"PLAINTEXT": places[0].port, "SSL": free_port()}
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in {**ports, "CONTROLLER": places[0].controller_port}.items())
    settings = {
        "listeners": listeners,
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
        **certificates.settings,
    }
    [command] = kafka.formatted(found, places, settings)
    with ServerProcess(command, log_path=directory / "server.log", ready=kafka.READY, port=places[0].port) as process:
        yield Broker("kafka", process, ports, certificates.authority)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measured(broker: Broker, size: int, work: Callable[[], None]) -> float:
    """The broker's processor seconds per GB."""
    cpu_s = broker.cpu_s()
    work()
    return (broker.cpu_s() - cpu_s) * 1e9 / size


def touch_memory(directory: Path, size: int) -> None:
    """Writes a file of this size and removes it: the system has memory for as much of its page cache then.

    Where a virtual machine gets memory from its host at its first use, that use counts for the process: more than two seconds of processor
    time for each GB that any program writes, against a fifth of a second with memory that is there.
    """
    path = directory / "memory"
    with path.open("wb") as file:
        for _ in range(size // 1_000_000):
            file.write(bytes(1_000_000))
        file.flush()
        os.fsync(file.fileno())
    path.unlink()


def throughput(brokers: list[Broker], scratch: Path, size: int, rounds: int) -> None:
    """Prints the cost of each broker, the median of the rounds."""
    for broker in brokers:
        for protocol in ("PLAINTEXT", "SSL"):
            produce(broker, protocol, "warm-up", WARM_UP_BYTES[broker.name] // RECORD_BYTES)
            fetch(broker, protocol, "warm-up", WARM_UP_BYTES[broker.name] // RECORD_BYTES)
    costs: dict[tuple[str, str, str], list[float]] = {}
    for number in range(rounds):
        for broker in brokers if number % 2 else reversed(brokers):
            for protocol in ("PLAINTEXT", "SSL"):
                topic, count = f"{protocol.lower()}-{number}", size // RECORD_BYTES
                for what, work in (("produce", produce), ("fetch", fetch)):
                    touch_memory(scratch, size * 5 // 4)
                    cost = measured(broker, size, lambda: work(broker, protocol, topic, count))  # noqa: B023
                    costs.setdefault((what, protocol, broker.name), []).append(cost)
    for (what, protocol, name), found in sorted(costs.items()):
        spread = f"{min(found):.2f} to {max(found):.2f}"
        print(
            f"{what:8} {protocol:10} {name:12} {median(found):6.2f} CPU-s/GB ({spread})  {1 / median(found):5.2f} GB/s per core", flush=True
        )


def produce(broker: Broker, protocol: str, topic: str, count: int) -> None:
    producer = Producer({**broker.client(protocol), "batch.size": 1_000_000, "linger.ms": 20, "queue.buffering.max.kbytes": 200_000})
    value = os.urandom(RECORD_BYTES)
    for _ in range(count):
        while True:
            try:
                producer.produce(topic, value, partition=0)
                break
            except BufferError:
                producer.poll(0.05)
    producer.flush(120)


def fetch(broker: Broker, protocol: str, topic: str, count: int) -> None:
    settings = {"group.id": "bench", "auto.offset.reset": "earliest", "enable.auto.commit": False, "fetch.message.max.bytes": 50_000_000}
    consumer = Consumer({**broker.client(protocol), **settings, "queued.max.messages.kbytes": 200_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    seen = 0
    while seen < count:
        seen += len(consumer.consume(10_000, 1))
    consumer.close()


def p99_ms(broker: Broker, busy: Callable[[], bool] = lambda: True) -> tuple[float, float]:
    """Median and 99th percentile of ApiVersions over one TLS connection, in ms."""
    context = ssl.create_default_context(cafile=str(broker.authority))
    request = b"".join(framing.encode_request(ApiVersionsRequest(), 0, 1, "bench"))  # type: ignore[arg-type]
    times: list[float] = []
    with (
        socket.create_connection(("127.0.0.1", broker.ports["SSL"])) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as peer,
    ):
        while len(times) < REQUESTS and busy():
            began_s = time.perf_counter()
            peer.sendall(request)
            size = int.from_bytes(_exactly(peer, 4), "big")
            _exactly(peer, size)
            times.append((time.perf_counter() - began_s) * 1000)
            time.sleep(0.001)
    times.sort()
    return times[len(times) // 2], times[len(times) * 99 // 100]


def _exactly(peer: ssl.SSLSocket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += peer.recv(size - len(data))
    return data


#: Connects HANDSHAKES sockets, then does all handshakes at once in threads; prints the seconds of each round.
STORM = """
import socket, ssl, sys, time
from concurrent.futures import ThreadPoolExecutor
port, authority, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
context = ssl.create_default_context(cafile=authority)
with ThreadPoolExecutor(count) as threads:
    for _ in range(5):
        plain = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
        began = time.monotonic()
        done = list(threads.map(lambda one: context.wrap_socket(one, server_hostname="127.0.0.1"), plain))
        print(f"{time.monotonic() - began:.3f}", flush=True)
        for one in done:
            one.close()
"""


def storm(probed: Broker, other: Broker) -> tuple[float, float]:
    """Latency of requests to one broker during handshakes with another, or the same."""
    command = [sys.executable, "-c", STORM, str(other.ports["SSL"]), str(other.authority), str(HANDSHAKES)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as storming:
        found = p99_ms(probed, lambda: storming.poll() is None)
        times = (storming.communicate()[0] or "").split()
    print(f"  {HANDSHAKES} handshakes at once took {', '.join(times)} s", flush=True)
    return found


def handshakes(brokers: dict[str, tuple[Broker, Broker]], rounds: int) -> None:
    """``brokers``: by name the one that is probed, and the one of the control."""
    costs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for name, (probed, control) in brokers.items():
            costs.setdefault((name, "alone"), []).append(p99_ms(probed))
            costs.setdefault((name, "control"), []).append(storm(probed, control))
            costs.setdefault((name, "handshakes"), []).append(storm(probed, probed))
    for (name, what), found in costs.items():
        p50, p99 = (median(column) for column in zip(*found, strict=True))
        print(f"{name:6} {what:12} p50 {p50:6.2f} ms, p99 {p99:6.2f} ms", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-kafka", action="store_true")
    options = parser.parse_args()
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as made, ExitStack() as running:
        scratch = Path(made)
        certificates = Certificates(scratch / "tls")
        brokers = [running.enter_context(ottla(scratch / str(caching), certificates, caching)) for caching in (False, True)]
        try:
            if not options.no_kafka:
                brokers.append(running.enter_context(apache_kafka(scratch / "kafka", certificates)))
        except PeerUnavailable as why:
            print(f"without Kafka: {why}")
        throughput(brokers, scratch, options.megabytes * 1_000_000, options.rounds)
        control = running.enter_context(ottla(scratch / "control", certificates))
        handshakes({broker.name: (broker, control) for broker in brokers if broker.name != "ottla cached"}, options.rounds)


if __name__ == "__main__":
    main()
