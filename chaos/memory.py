"""``python -m chaos.memory``: how much memory hostile clients can make a broker use.

Each case starts a broker process, attacks it, and prints its resident memory: before, at the maximum, while the attacker's
connections are open, and some time after they are closed. ``--source DIR`` measures another checkout with the same attacks.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from ottla.base.units import MiB
from ottla.records.build import build_batch
from ottla.wire import framing
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

READY = "ottla: ready on "
TIMEOUT_S = 60.0


class BrokerUnderTest:
    """The broker process under attack."""

    def __init__(self, process: subprocess.Popen[bytes], port: int) -> None:
        self.process = process
        self.port = port

    def status_bytes(self, field: str) -> int:
        """A size of /proc/PID/status: VmRSS is the current one, VmHWM the maximum."""
        with open(f"/proc/{self.process.pid}/status") as status:
            (line,) = [line for line in status if line.startswith(field)]
        return int(line.split()[1]) * 1024

    def connect(self) -> socket.socket:
        """Open a connection and make one valid request, so that the next request may be large."""
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_S)
        sock.sendall(struct.pack(">ihhih", 10, 18, 0, 0, -1))
        receive(sock)
        return sock

    def ask(self, message: Any, version: int) -> bytes:
        with self.connect() as sock:
            send(sock, message, version)
            return receive(sock)


def send(sock: socket.socket, message: Any, version: int) -> None:
    """Send a request. A refusal may close the connection during the write."""
    with suppress(ConnectionError):
        sock.sendall(b"".join(framing.encode_request(message, version, 1, "attacker")))  # type: ignore[arg-type]


def receive(sock: socket.socket) -> bytes:
    """Receive one response; empty if the connection is closed."""
    data = bytearray()
    size = 4
    with suppress(ConnectionError):
        while len(data) < size:
            part = sock.recv(MiB)
            if not part:
                return b""
            data += part
            if len(data) >= 4:
                size = 4 + int(struct.unpack_from(">i", data)[0])
    return bytes(data)


def joining(group: str, member: str, metadata: bytes) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        member_id=member,
        session_timeout_ms=1_800_000,
        rebalance_timeout_ms=30_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
    )


def ready_groups(target: BrokerUnderTest) -> None:
    for _ in range(100):
        if target.ask(FindCoordinatorRequest(key="g", key_type=0), 2)[10:12] == b"\0\0":
            return
        time.sleep(0.1)


def large_joins(target: BrokerUnderTest, ending: ExitStack) -> str:
    """12 JoinGroup requests of 95 MB, each to a group of its own."""
    ready_groups(target)
    metadata, answers = bytes(95_000_000), 0
    for number in range(12):
        sock = ending.enter_context(target.connect())
        send(sock, joining(f"g{number}", "", metadata), 3)
    time.sleep(8)
    return f"{answers} answers"


def large_group(target: BrokerUnderTest, ending: ExitStack) -> str:
    """300 members of one group, each with 900 KB of metadata."""
    ready_groups(target)
    metadata = os.urandom(900_000)
    socks = [ending.enter_context(target.connect()) for _ in range(300)]
    for sock in socks:
        send(sock, joining("g", "", metadata), 3)
    longest = max(len(receive(sock)) for sock in socks)
    return f"largest answer {longest / MiB:.1f} MiB"


def producer_ids(target: BrokerUnderTest, ending: ExitStack) -> str:
    """60,000 producer ids, five batches of each, in one partition."""
    target.ask(CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]), 4)
    sock = ending.enter_context(target.connect())
    now_ms = time.time_ns() // 1_000_000
    for producer in range(60_000):
        for sequence in range(5):
            batch = build_batch([(now_ms, None, b"x", ())], producer_id=producer, producer_epoch=0, base_sequence=sequence)
            data = TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=batch)])
            send(sock, ProduceRequest(acks=0 if sequence < 4 or producer % 100 else 1, timeout_ms=10_000, topic_data=[data]), 7)
        if producer % 100 == 0:
            receive(sock)
    return ""


def fetch_sessions(target: BrokerUnderTest, ending: ExitStack) -> str:
    """3,000 fetch sessions of 200 partitions, none of which is used again."""
    target.ask(CreateTopicsRequest(topics=[CreatableTopic(name="t", num_partitions=200, replication_factor=1)]), 4)
    asked = [FetchPartition(partition=number, partition_max_bytes=1000) for number in range(200)]
    sock = ending.enter_context(target.connect())
    for _ in range(3_000):
        send(sock, FetchRequest(max_wait_ms=0, min_bytes=0, session_epoch=0, topics=[FetchTopic(topic="t", partitions=asked)]), 11)
        receive(sock)
    return ""


CASES: dict[str, Callable[[BrokerUnderTest, ExitStack], str]] = {
    case.__name__.replace("_", "-"): case for case in (large_joins, large_group, producer_ids, fetch_sessions)
}


@contextmanager
def started(source: Path | None, directory: Path, settings: tuple[str, ...]) -> Iterator[BrokerUnderTest]:
    environment = dict(os.environ) | ({"PYTHONPATH": str(source)} if source else {})
    command = [sys.executable, "-m", "ottla", "serve", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0"]
    for setting in settings:
        command += ["--set", setting]
    with (directory / "output").open("wb") as output:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, env=environment)
    try:
        assert process.stdout is not None, "it is a pipe"
        line = process.stdout.readline().decode()
        assert line.startswith(READY), (directory / "output").read_text()
        yield BrokerUnderTest(process, int(line.rpartition(":")[2]))
    finally:
        process.kill()
        process.wait()


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)), metavar="[CASE]...")
@click.option("--source", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Directory with the package to measure.")
@click.option("--set", "settings", metavar="KEY=VALUE", multiple=True, help="A setting of the broker; repeatable.")
@click.option("--after", "after_s", default=15.0, show_default=True, help="Seconds between the attack's end and the last measurement.")
def main(names: tuple[str, ...], source: Path | None, settings: tuple[str, ...], after_s: float) -> None:
    """Measure how much memory hostile clients can make a broker use."""
    click.echo(f"{'case':16} {'before':>8} {'most':>8} {'held':>8} {'after':>8}   MiB resident")
    for name in names or CASES:
        with tempfile.TemporaryDirectory() as directory, started(source, Path(directory), settings) as target, ExitStack() as ending:
            before = target.status_bytes("VmRSS")
            note = CASES[name](target, ending)
            held = target.status_bytes("VmRSS")
            ending.close()
            time.sleep(after_s)
            sizes = (before, target.status_bytes("VmHWM"), held, target.status_bytes("VmRSS"))
            click.echo(f"{name:16} " + " ".join(f"{size / MiB:8.0f}" for size in sizes) + f"   {note}")


if __name__ == "__main__":
    main()
