"""`python -m chaos.attacks`: hostile peers of a broker with TLS and SASL, and what they cost: the latency of others, and memory.

Each attack runs in a process of its own against one `ottla serve`. A well-behaved client on an authenticated TLS connection measures the
time of Metadata requests before, during and after it; the result is the 99th percentile of each, and the broker's resident memory. The
short forms of the attacks are tests (`tests/server/test_hostile_peers.py`).

The client, the attackers and the broker share the machine, so the latency during an attack includes the attackers' own work. With
``--apart`` it does not: the broker has the first processor alone, and of the others the client has a real-time priority.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import resource
import socket
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import zstandard

from chaos.cluster import Process, free_port
from chaos.fuzz.oracle import Finding
from chaos.fuzz.secured import PASSWORDS, authenticated, frame_of, listeners, resident_bytes
from chaos.namespaces import Location
from ottla.base.jaas import login_module_text
from ottla.net.tls.authority import Authority
from ottla.records.build import build_batch
from ottla.records.checksum import crc32c
from ottla.wire.framing import decode_response
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnResponse, AddPartitionsToTxnTopic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.wire.messages.delete_topics import DeleteTopicsRequest
from ottla.wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from ottla.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.wire.messages.incremental_alter_configs import AlterConfigsResource, IncrementalAlterConfigsRequest
from ottla.wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsResponse, ListOffsetsTopic
from ottla.wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData

MIB = 1 << 20
TOPIC = "victim"
#: A topic of the attacks that need one with very many partitions.
WIDE, WIDE_PARTITIONS = "wide", 2_000
#: Resource type of a broker.
BROKER = 4
#: Seconds of each measurement.
MEASURE_S = 6.0
PAUSE_S = 0.002
IDLE = 10_000
READERS = SLOW = 500
RATE = 1_000
HANDSHAKES = 200


@dataclass(frozen=True)
class Target:
    """A broker under attack."""

    tls: int
    clear: int
    trusted: str
    pid: int
    #: Connections of the attacks with idle ones. A broker takes more than half of `ulimit -n` as connections.
    idle: int = IDLE

    def encrypted(self) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=self.trusted)
        return context.wrap_socket(socket.create_connection(("127.0.0.1", self.tls), timeout=60), server_hostname="127.0.0.1")

    def client(self, user: str = "good") -> socket.socket:
        """An authenticated connection with TLS. The user "none" has no rights, the others have all."""
        return authenticated(self.encrypted(), user)


def answer(sock: socket.socket) -> bytes:
    data = bytearray()
    while len(data) < 4 or len(data) < 4 + struct.unpack_from(">i", data)[0]:
        got = sock.recv(MIB)
        if not got:
            raise ConnectionError("the broker closed the connection")
        data += got
    return bytes(data)


# Attacks: each begins, says so, and goes on until it is ended.

Begun = Callable[[], None]


def idle_clear(target: Target, begun: Begun) -> None:
    """Plaintext connections that made one request."""
    request = frame_of(MetadataRequest(topics=[]), 9, 1)
    kept = []
    for _ in range(target.idle):
        sock = socket.create_connection(("127.0.0.1", target.clear), timeout=60)
        sock.sendall(request)
        answer(sock)
        kept.append(sock)
    begun()
    time.sleep(3600)


def idle_tls(target: Target, begun: Begun) -> None:
    """Authenticated connections with TLS."""
    context = ssl.create_default_context(cafile=target.trusted)
    kept: list[socket.socket] = []
    while len(kept) < target.idle:
        plain = socket.create_connection(("127.0.0.1", target.tls), timeout=60)
        try:
            kept.append(authenticated(context.wrap_socket(plain, server_hostname="127.0.0.1"), "good"))
        except (OSError, Finding) as error:
            # On a busy machine a handshake may take longer than the broker waits.
            click.echo(f"idle-tls: connection {len(kept)}: {error}", err=True)
    begun()
    time.sleep(3600)


def readers(target: Target, begun: Begun) -> None:
    """Connections that request 50 MB each, again and again, and read nothing."""
    asked = frame_of(fetch_request(), 12, 1) * 20
    kept = []
    for _ in range(READERS):
        sock = target.client()
        sock.sendall(asked)
        kept.append(sock)
    begun()
    time.sleep(3600)


def drip(make: Callable[[], tuple[socket.socket, bytes]], begun: Begun) -> None:
    """Connections that send a byte each second; those that the broker closes are opened again."""
    kept = [make() for _ in range(SLOW)]
    begun()
    while True:
        for index, (sock, data) in enumerate(kept):
            try:
                sock.send(data[:1])
                kept[index] = sock, data[1:] or b"x"
            except OSError:
                sock.close()
                kept[index] = make()
        time.sleep(1)


def hello(target: Target) -> bytes:
    to_server = ssl.MemoryBIO()
    client = ssl.create_default_context(cafile=target.trusted).wrap_bio(ssl.MemoryBIO(), to_server, server_hostname="127.0.0.1")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return to_server.read()


def slow_before_tls(target: Target, begun: Begun) -> None:
    """500 connections that drip a ClientHello."""
    data = hello(target)
    drip(lambda: (socket.create_connection(("127.0.0.1", target.tls)), data), begun)


def slow_in_handshake(target: Target, begun: Begun) -> None:
    """500 connections that send a ClientHello, and drip what follows."""
    data = hello(target)

    def make() -> tuple[socket.socket, bytes]:
        sock = socket.create_connection(("127.0.0.1", target.tls))
        sock.sendall(data)
        return sock, b"\x14\x03\x03\x00\x01\x01" * 100

    drip(make, begun)


def slow_before_sasl(target: Target, begun: Begun) -> None:
    """500 connections with TLS that drip a frame and do not authenticate."""
    drip(lambda: (target.encrypted(), struct.pack(">i", 100_000)), begun)


def slow_in_frame(target: Target, begun: Begun) -> None:
    """500 authenticated connections that drip a frame of 100 MB."""
    drip(lambda: (target.client(), struct.pack(">i", 100 * MIB) + b"\0\0\0\x0c"), begun)


def storm(target: Target, begun: Begun) -> None:
    """1,000 connections a second from one address to the port with TLS, closed at once."""
    begun()
    began_s, made = time.monotonic(), 0
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", target.tls), timeout=5).close()
        made += 1
        ahead_s = made / RATE - (time.monotonic() - began_s)
        if ahead_s > 0:
            time.sleep(ahead_s)


def handshakes(target: Target, begun: Begun) -> None:
    """200 clients that begin their TLS handshakes at once, and begin again when all are done."""
    context = ssl.create_default_context(cafile=target.trusted)

    def shake_hands(sock: socket.socket) -> None:
        with contextlib.suppress(OSError), context.wrap_socket(sock, server_hostname="127.0.0.1"):
            pass

    with ThreadPoolExecutor(HANDSHAKES) as threads:
        begun()
        while True:
            list(threads.map(shake_hands, [socket.create_connection(("127.0.0.1", target.tls)) for _ in range(HANDSHAKES)]))


def bombs(target: Target, begun: Begun) -> None:
    """Batches of a few KB that decompress to 500 MB."""
    packer = zstandard.ZstdCompressor(level=1).compressobj()
    payload = b"".join(packer.compress(bytes(MIB)) for _ in range(500)) + packer.flush()
    now_ms = time.time_ns() // 1_000_000
    checked = struct.pack(">hiqqqhii", 4, 0, now_ms, now_ms, -1, -1, -1, 1) + payload
    batch = struct.pack(">qiibI", 0, 9 + len(checked), -1, 2, crc32c(checked)) + checked
    ask_forever(target, frame_of(produce_request(batch), 9, 1), begun)


def nested_counts(target: Target, begun: Begun) -> None:
    """Requests that announce two thousand million elements, in arrays and in tags."""
    lies = [
        struct.pack(">hhih", 3, 1, 1, -1) + struct.pack(">i", 2**31 - 1),
        struct.pack(">hhih", 1, 4, 1, -1) + struct.pack(">iiiibi", -1, 0, 0, MIB, 0, 2**31 - 1),
        struct.pack(">hhih", 18, 3, 1, -1) + b"\xff\xff\xff\xff\x07" + b"\1\0" * 100_000,
    ]
    begun()
    while True:
        for lie in lies:
            with contextlib.suppress(OSError), target.client() as sock:
                sock.sendall(struct.pack(">i", len(lie)) + lie)
                sock.recv(1)


def control(target: Target, begun: Begun) -> None:
    """No attack: one client that sends small requests without a pause, and so takes as much of the processors as those below."""
    ask_forever(target, frame_of(MetadataRequest(topics=[]), 9, 1), begun)


def flushed(target: Target, begun: Begun) -> None:
    """No attack: one client that sends a small batch to one partition, waits until it is flushed, and sends the next."""
    batch = bytes(build_batch([(time.time_ns() // 1_000_000, None, b"x", ())]))
    data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
    ask_forever(target, frame_of(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data), 9, 1), begun)


def many_topics(target: Target, begun: Begun) -> None:
    """Metadata requests about 20,000 topics that do not exist."""
    names = [MetadataRequestTopic(name=f"unknown-{number}") for number in range(20_000)]
    ask_forever(target, frame_of(MetadataRequest(topics=names, allow_auto_topic_creation=False), 9, 1), begun)


def many_partitions(target: Target, begun: Begun) -> None:
    """Fetch requests about one partition 20,000 times."""
    place = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)
    topic = FetchTopic(topic=TOPIC, partitions=[place] * 20_000)
    ask_forever(target, frame_of(FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[topic]), 12, 1), begun)


def different_partitions(target: Target, begun: Begun) -> None:
    """Fetch requests about 20,000 partitions, of which one exists."""
    places = [FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in range(20_000)]
    request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1, topics=[FetchTopic(topic=TOPIC, partitions=places)])
    ask_forever(target, frame_of(request, 12, 1), begun)


def many_offsets(target: Target, begun: Begun) -> None:
    """ListOffsets requests about 20,000 partitions, of which one exists."""
    places = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(20_000)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=TOPIC, partitions=places)])
    ask_forever(target, frame_of(request, 7, 1), begun)


def offset_commits(target: Target, begun: Begun) -> None:
    """OffsetCommit requests that store the offset of one partition 20,000 times."""
    with target.client() as sock:
        # The first one creates the topic of the offsets.
        while True:
            sock.sendall(frame_of(FindCoordinatorRequest(key="attack"), 2, 1))
            # After size, correlation id and throttle time.
            if struct.unpack_from(">h", answer(sock), 12)[0] == 0:
                break
            time.sleep(0.1)
    place = OffsetCommitRequestPartition(partition_index=0, committed_offset=0)
    topic = OffsetCommitRequestTopic(name=TOPIC, partitions=[place] * 20_000)
    ask_forever(target, frame_of(OffsetCommitRequest(group_id="attack", topics=[topic]), 8, 1), begun)


def many_batches(target: Target, begun: Begun) -> None:
    """Produce requests with a batch for each of 10,000 partitions, of which one exists."""
    batch = bytes(build_batch([(time.time_ns() // 1_000_000, None, b"x", ())]))
    data = [PartitionProduceData(index=number, records=batch) for number in range(10_000)]
    request = ProduceRequest(acks=1, timeout_ms=10_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=data)])
    ask_forever(target, frame_of(request, 9, 1), begun)


def many_settings(target: Target, begun: Begun) -> None:
    """DescribeConfigs requests about the settings of the broker 3,000 times."""
    resources = [DescribeConfigsResource(resource_type=BROKER, resource_name="1")] * 3_000
    request = DescribeConfigsRequest(resources=resources, include_synonyms=True, include_documentation=True)
    ask_forever(target, frame_of(request, 4, 1), begun)


def new_topics(target: Target, begun: Begun, user: str = "good") -> None:
    """CreateTopics requests about 20,000 topics, which only check them."""
    topics = [CreatableTopic(name=f"new-{number}", num_partitions=1, replication_factor=1) for number in range(20_000)]
    ask_forever(target, frame_of(CreateTopicsRequest(topics=topics, timeout_ms=5_000, validate_only=True), 7, 1), begun, user)


def deleted_topics(target: Target, begun: Begun, user: str = "good") -> None:
    """DeleteTopics requests about 20,000 topics that do not exist."""
    names = [f"unknown-{number}" for number in range(20_000)]
    ask_forever(target, frame_of(DeleteTopicsRequest(topic_names=names, timeout_ms=5_000), 5, 1), begun, user)


def altered_topics(target: Target, begun: Begun, user: str = "good") -> None:
    """IncrementalAlterConfigs requests about 20,000 topics that do not exist."""
    resources = [AlterConfigsResource(resource_type=2, resource_name=f"unknown-{number}") for number in range(20_000)]
    ask_forever(target, frame_of(IncrementalAlterConfigsRequest(resources=resources), 1, 1), begun, user)


def denied_new_topics(target: Target, begun: Begun) -> None:
    """The same of a client without rights."""
    new_topics(target, begun, "none")


def denied_deleted_topics(target: Target, begun: Begun) -> None:
    """The same of a client without rights, with a line for each in the audit log."""
    deleted_topics(target, begun, "none")


def denied_altered_topics(target: Target, begun: Begun) -> None:
    """The same of a client without rights, with a line for each in the audit log."""
    altered_topics(target, begun, "none")


# Partitions that exist: what follows a request, such as flushes and the sending of records, is about all of them, too.


def created(target: Target) -> None:
    """Creates a topic of thousands of partitions, and waits until it can be used and all of its files are on the device."""
    topic = CreatableTopic(name=WIDE, num_partitions=WIDE_PARTITIONS, replication_factor=1)
    deadline_s = time.monotonic() + 120
    with target.client() as sock:
        sock.sendall(frame_of(CreateTopicsRequest(topics=[topic], timeout_ms=60_000), 7, 1))
        answer(sock)
        while any(wide_produce(sock)):
            if time.monotonic() > deadline_s:
                raise SystemExit("the topic was not created in time")
        wide_produce(sock, acks=-1)


def wide_produce(sock: socket.socket, acks: int = 1) -> list[int]:
    """Sends a batch to every partition. Returns the error codes."""
    batch = bytes(build_batch([(time.time_ns() // 1_000_000, None, b"x", ())]))
    data = [PartitionProduceData(index=number, records=batch) for number in range(WIDE_PARTITIONS)]
    request = ProduceRequest(acks=acks, timeout_ms=30_000, topic_data=[TopicProduceData(name=WIDE, partition_data=data)])
    response = asked(sock, request, ProduceResponse, 9)
    return [each.error_code for topic in response.responses for each in topic.partition_responses]


def asked(sock: socket.socket, request: Any, response: type[Any], version: int) -> Any:
    sock.sendall(frame_of(request, version, 1))
    return decode_response(response, memoryview(answer(sock))[4:], version)[1]


def wide_fetch(offsets: dict[int, int], wait_ms: int) -> bytes:
    places = [FetchPartition(partition=each, fetch_offset=offset, partition_max_bytes=1_000) for each, offset in offsets.items()]
    request = FetchRequest(max_wait_ms=wait_ms, min_bytes=1, max_bytes=4 * MIB, topics=[FetchTopic(topic=WIDE, partitions=places)])
    return frame_of(request, 12, 1)


def all_batches(target: Target, begun: Begun) -> None:
    """Produce requests with a batch for each of 2,000 partitions, written and flushed."""
    created(target)
    begun()
    with target.client() as sock:
        while True:
            wide_produce(sock, acks=-1)


def all_records(target: Target, begun: Begun) -> None:
    """Fetch requests of 2,000 partitions with records in each."""
    created(target)
    ask_forever(target, wide_fetch(dict.fromkeys(range(WIDE_PARTITIONS), 0), 0), begun)


def all_waits(target: Target, begun: Begun) -> None:
    """Fetch requests that wait 10 ms for records of 2,000 partitions, without a session."""
    created(target)
    places = [ListOffsetsPartition(partition_index=number, timestamp=-1) for number in range(WIDE_PARTITIONS)]
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=WIDE, partitions=places)])
    with target.client() as sock:
        [topic] = asked(sock, request, ListOffsetsResponse, 7).topics
    ask_forever(target, wide_fetch({each.partition_index: each.offset for each in topic.partitions}, 10), begun)


def all_transactions(target: Target, begun: Begun) -> None:
    """Transactions to which 2,000 partitions are added, and which are committed."""
    created(target)
    with target.client() as sock:
        while asked(sock, FindCoordinatorRequest(key="attack", key_type=1), FindCoordinatorResponse, 2).error_code:
            time.sleep(0.1)
        begin = InitProducerIdRequest(transactional_id="attack", transaction_timeout_ms=60_000)
        while (producer := asked(sock, begin, InitProducerIdResponse, 3)).error_code:
            time.sleep(0.1)
        identity = {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
        add = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="attack",
            **{f"v3_and_below_{name}": value for name, value in identity.items()},
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=WIDE, partitions=list(range(WIDE_PARTITIONS)))],
        )
        end = EndTxnRequest(transactional_id="attack", **identity, committed=True)
        begun()
        while True:
            asked(sock, add, AddPartitionsToTxnResponse, 3)
            asked(sock, end, EndTxnResponse, 3)


def ask_forever(target: Target, request: bytes, begun: Begun, user: str = "good") -> None:
    """One connection that sends a request again when it is answered."""
    begun()
    while True:
        with contextlib.suppress(OSError), target.client(user) as sock:
            while True:
                sock.sendall(request)
                answer(sock)


ATTACKS = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        control, flushed, readers, slow_before_tls, slow_in_handshake, slow_before_sasl, slow_in_frame, storm, handshakes, bombs,
        nested_counts, many_topics, many_partitions, different_partitions, many_offsets, offset_commits, many_batches, many_settings,
        new_topics, deleted_topics, altered_topics, all_batches, all_records, all_waits, all_transactions,
        denied_new_topics, denied_deleted_topics, denied_altered_topics, idle_clear, idle_tls,
    )
}  # fmt: skip


def produce_request(batch: bytes) -> ProduceRequest:
    data = [TopicProduceData(name=TOPIC, partition_data=[PartitionProduceData(index=0, records=batch)])]
    return ProduceRequest(transactional_id=None, acks=1, timeout_ms=10_000, topic_data=data)


def properties(directory: Path, tls: int, clear: int) -> str:
    users = {f"user_{name}": PASSWORDS[name] for name in ("good", "none")}
    module = login_module_text("PLAIN", {"username": "good", "password": PASSWORDS["good"], **users})
    settings = {
        **listeners(directory, tls, clear, clear_protocol="PLAINTEXT", module=module),
        "sasl.enabled.mechanisms": "PLAIN",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:good;User:ANONYMOUS",
        # All attackers have one address.
        "max.connections.per.ip": "20000",
        "ottla.handshake.timeout.ms": "5000",
        "ottla.request.read.timeout.ms": "5000",
        "ottla.connection.write.timeout.ms": "5000",
        "ottla.authentication.timeout.ms": "5000",
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def fill(target: Target, records: int) -> None:
    """Creates the topic, with records of 900,000 bytes."""
    with target.client() as sock:
        wanted = CreatableTopic(name=TOPIC, num_partitions=1, replication_factor=1)
        sock.sendall(frame_of(CreateTopicsRequest(topics=[wanted], timeout_ms=5_000), 7, 1))
        answer(sock)
        batch = bytes(build_batch([(time.time_ns() // 1_000_000, None, os.urandom(900_000), ())]))
        for _ in range(records):
            sock.sendall(frame_of(produce_request(batch), 9, 1))
            answer(sock)


def fetch_request() -> FetchRequest:
    """All of the topic, up to 50 MB."""
    place = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 * MIB, topics=[FetchTopic(topic=TOPIC, partitions=[place])])


@contextlib.contextmanager
def served(*, apart: bool = False) -> Iterator[Target]:
    """A broker with a topic of 60 MB; ``apart``: on a processor that this process then does not use."""
    with tempfile.TemporaryDirectory(prefix="ottla-attacks-") as name:
        directory, now = Path(name), datetime.datetime.now(datetime.UTC)
        Authority.create(directory / "tls", "attacks", now=now).issue("127.0.0.1", ["127.0.0.1"], now=now)
        tls, clear = free_port(), free_port()
        (directory / "server.properties").write_text(properties(directory, tls, clear))
        arguments = ["serve", "--data-dir", str(directory / "data"), "--config", str(directory / "server.properties")]
        process = Process(Location("here"), arguments, directory / "output")
        first, *others = sorted(os.sched_getaffinity(0))
        if apart:
            if not others:
                raise SystemExit("--apart needs two processors")
            os.sched_setaffinity(0, {first})
        process.spawn()
        if apart:
            os.sched_setaffinity(0, others)
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        try:
            process.await_ready()
            target = Target(tls, clear, str(directory / "tls" / "ca.pem"), process.pid)
            fill(target, 60)
            yield target
        except BaseException:
            click.echo(process.output_text()[-3000:], err=True)
            raise
        finally:
            process.kill()
            os.sched_setaffinity(0, {first, *others})
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


def latencies_ms(target: Target, duration_s: float) -> list[float]:
    """Times of Metadata requests of a well-behaved client, sorted."""
    request, times = frame_of(MetadataRequest(topics=[]), 9, 1), []
    with target.client() as sock:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            began_s = time.perf_counter()
            sock.sendall(request)
            answer(sock)
            times.append((time.perf_counter() - began_s) * 1000)
            time.sleep(PAUSE_S)
    return sorted(times)


def p99(times: list[float]) -> float:
    return times[len(times) * 99 // 100]


def attack(name: str, target: Target, begun: Begun) -> None:
    """In a process of its own, with normal priority."""
    os.setpriority(os.PRIO_PROCESS, 0, 0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    ATTACKS[name](target, begun)


def measured(target: Target, name: str) -> str:
    """A line of the result."""
    before = latencies_ms(target, MEASURE_S)
    resident = resident_bytes(target.pid)
    started: Any = multiprocessing.Event()
    attacker = multiprocessing.Process(target=attack, args=(name, target, started.set), daemon=True)
    attacker.start()
    try:
        if not started.wait(600):
            raise SystemExit(f"{name}: did not begin")
        during = latencies_ms(target, MEASURE_S)
        peak = resident_bytes(target.pid)
        if not attacker.is_alive():
            raise SystemExit(f"{name}: ended by itself")
    finally:
        attacker.kill()
        attacker.join()
    time.sleep(2)
    after = latencies_ms(target, MEASURE_S)
    base = (p99(before) + p99(after)) / 2
    return (
        f"{name:18} p99 {p99(before):6.1f} | {p99(during):7.1f} | {p99(after):6.1f} ms, x{p99(during) / base:5.2f}, median "
        f"{before[len(before) // 2]:.1f} | {during[len(during) // 2]:.1f} ms, RSS {resident >> 20} -> {peak >> 20} MiB, "
        f"after {resident_bytes(target.pid) >> 20} MiB"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--nice", "niceness", type=click.IntRange(-20, 19), default=0, show_default=True,
    help="Priority of the broker and of the client that measures, not of the attackers; below 0 for a busy machine, as root.",
)  # fmt: skip
@click.option(
    "--apart", is_flag=True, help="The broker on a processor of its own, and the client that measures in front of all attackers; as root."
)
@click.option("--idle", type=click.IntRange(1), default=IDLE, show_default=True, help="Connections of idle-clear and idle-tls.")
@click.option("--attack", "names", type=click.Choice(list(ATTACKS)), multiple=True, help="Only this one; repeatable.")
def main(names: tuple[str, ...], idle: int, niceness: int, apart: bool) -> None:
    """Attack a broker with TLS and SASL, and measure what others notice."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.setpriority(os.PRIO_PROCESS, 0, niceness)
    click.echo("attack             p99 before | during | after, ratio, medians, resident memory of the broker")
    for name in names or ATTACKS:
        # A broker for each: memory of one attack is not that of the next.
        with served(apart=apart) as target:
            click.echo(measured(replace(target, idle=idle), name))
            sys.stdout.flush()


if __name__ == "__main__":
    os.environ.setdefault("OTTLA_LOG", "error")
    main()
