"""Cost of TLS: processor time of a broker per GB fetched and produced, and the latency of a client during many handshakes.

    python -m bench.tls [--megabytes 500]

One broker with a PLAINTEXT and an SSL listener; the same librdkafka client reads and writes over each. The broker's processor time is that
of its process, so the client's share of the machine does not count. The second part measures ApiVersions requests over an open TLS
connection, one after another: alone, and while 200 other clients, in another process, begin their handshakes together.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from ottla.wire import framing
from ottla.wire.messages import ApiVersionsRequest

RECORD_BYTES = 10_000
HANDSHAKES = 200
REQUESTS = 3_000
READY = re.compile(rb"ottla: ready on (\S+)")


class Broker:
    """A broker process with both listeners; certificates of `ottla tls init`."""

    def __init__(self, directory: Path) -> None:
        plain, secured = free_port(), free_port()
        self.certificate = directory / "tls" / "127.0.0.1.pem"
        self.authority = directory / "tls" / "ca.pem"
        command = [sys.executable, "-m", "ottla"]
        subprocess.run([*command, "tls", "init", "127.0.0.1", "--dir", str(directory / "tls")], check=True, capture_output=True)
        properties = directory / "server.properties"
        properties.write_text(
            f"listeners=PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{secured}\nssl.keystore.type=PEM\n"
            f"ssl.keystore.location={self.certificate}\nlog.segment.bytes=1073741824\n"
        )
        self.ports = {"PLAINTEXT": plain, "SSL": secured}
        self.process = subprocess.Popen(
            [*command, "serve", "--data-dir", str(directory / "data"), "--config", str(properties)], stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None, "its output is a pipe"
        while not READY.search(line := self.process.stdout.readline()):
            if not line:
                raise SystemExit("the broker did not start")

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def client(self, protocol: str) -> dict[str, Any]:
        return {
            "bootstrap.servers": f"127.0.0.1:{self.ports[protocol]}",
            "security.protocol": protocol,
            **({"ssl.ca.location": str(self.authority)} if protocol == "SSL" else {}),
        }

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def measured(broker: Broker, what: str, size: int, work: Callable[[], None]) -> None:
    cpu_s, wall_s = broker.cpu_s(), time.monotonic()
    work()
    cpu_s, wall_s = broker.cpu_s() - cpu_s, time.monotonic() - wall_s
    gb = size / 1e9
    print(f"{what:20} {gb / wall_s:6.2f} GB/s  {cpu_s / gb:6.2f} CPU-s/GB  {gb / cpu_s:6.2f} GB/s per core of the broker", flush=True)


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


def handshakes(broker: Broker) -> None:
    median, p99 = p99_ms(broker)
    print(f"{'requests alone':20} median {median:.2f} ms, p99 {p99:.2f} ms", flush=True)
    command = [sys.executable, "-c", STORM, str(broker.ports["SSL"]), str(broker.authority), str(HANDSHAKES)]
    storm = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    median, p99 = p99_ms(broker, lambda: storm.poll() is None)
    rounds = (storm.communicate()[0] or "").split()
    print(f"{'with handshakes':20} median {median:.2f} ms, p99 {p99:.2f} ms; 200 handshakes at once took {', '.join(rounds)} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=500)
    size = parser.parse_args().megabytes * 1_000_000
    count = size // RECORD_BYTES
    print(f"load average before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as scratch:
        broker = Broker(Path(scratch))
        try:
            for protocol in ("PLAINTEXT", "SSL"):
                topic = protocol.lower()
                measured(broker, f"produce {protocol}", size, lambda: produce(broker, protocol, topic, count))  # noqa: B023
                measured(broker, f"fetch {protocol}", size, lambda: fetch(broker, protocol, topic, count))  # noqa: B023
            handshakes(broker)
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
