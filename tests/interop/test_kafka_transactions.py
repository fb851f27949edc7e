"""Files with transactions are exchanged: Ottla serves committed, aborted and open ones that Apache Kafka left, and Kafka those of Ottla.

Kafka comes from Maven, as in the benchmarks; without it these tests are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from bench import kafka as apache
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from java_programs import Program, jars, running
from kafka_tools import tools_command
from test_kafka_files import Left, adopt

from ottla.base.ids import TopicId
from ottla.base.ids import TopicPartition as Partition
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, marker
from ottla.server.disk import RealDisk
from plain_kafka import Cursor, ask, create_topics, frame, offset_at, string
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("kafka_files"),
    pytest.mark.usefixtures("own_server_only"),
]

SETTINGS = {"segment.bytes": "1048576", "index.interval.bytes": "2000"}
ONE_OFFSETS_PARTITION = {"offsets.topic.num.partitions": "1"}
#: Fills a segment with a few records.
LARGE = 300_000
READ_COMMITTED = 1
NOW_MS = time.time_ns() // 1_000_000

#: Value of each record without its filling -> whether it belongs to a committed transaction, or to none. "open" begins a transaction that
#: nothing ends; what follows is not read at read_committed.
WRITTEN = {b"plain": True, b"commit-1": True, b"abort-1": False, b"commit-2": True, b"abort-2": False, b"between": True}
AFTER = {b"open": False, b"after": True}


def address_of(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.rpartition(":")
    return host, int(port)


def fetched(bootstrap: str, topic: str, offset: int, isolation_level: int) -> tuple[int, list[tuple[int, int]], bytes]:
    """Fetch v4: last stable offset, aborted transactions (producer id, first offset), and the batches."""
    where = struct.pack(">i", 1) + string(topic) + struct.pack(">iiqi", 1, 0, offset, 1 << 26)
    body = Cursor(ask(address_of(bootstrap), frame(1, 4, struct.pack(">iiiib", -1, 100, 1, 1 << 26, isolation_level) + where)))
    body.take(8)
    body.string()
    body.take(8)
    assert body.unpack("h") == 0
    body.take(8)
    stable = body.unpack("q")
    aborted = [(body.unpack("q"), body.unpack("q")) for _ in range(max(0, body.unpack("i")))]
    return stable, aborted, body.take(max(0, body.unpack("i")))


def consumed(bootstrap: str, topic: str | TopicPartition, isolation: str) -> list[bytes]:
    """Values that librdkafka delivers, without their filling, up to the end that its isolation level has. A topic means partition 0."""
    settings = {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0) if isinstance(topic, str) else topic])
    found: list[bytes] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None:
            continue
        if message.error():
            if message.error().code() == KafkaError._PARTITION_EOF:
                consumer.close()
                return found
            continue
        found.append(message.value().split(b" ")[0])
    raise AssertionError(f"the end is reached: {found}")


def served_rightly(bootstrap: str, topic: str) -> None:
    """A broker with the copied partition, before anything ends the open transaction."""
    deadline = time.monotonic() + 30
    while offset_at(address_of(bootstrap), topic, 0, -1)[0]:
        assert time.monotonic() < deadline, "the partition has a leader"
        time.sleep(0.1)
    assert consumed(bootstrap, topic, "read_committed") == [value for value, counts in WRITTEN.items() if counts]
    assert consumed(bootstrap, topic, "read_uncommitted") == [*WRITTEN, *AFTER]
    stable, aborted, _ = fetched(bootstrap, topic, 0, READ_COMMITTED)
    assert stable < offset_at(address_of(bootstrap), topic, 0, -1)[1]
    assert fetched(bootstrap, topic, stable, READ_COMMITTED)[2] == b"", "nothing at or above the last stable offset"
    assert 0 < len(aborted) <= 2


def filled(value: bytes) -> bytes:
    return value + b" " + os.urandom(LARGE)


def write_with_kafka(bootstrap: str) -> list[Producer]:
    """Writes the records and, for three groups, offsets of a committed, an aborted and an open transaction. The producers stay open."""
    create_topics(address_of(bootstrap), {"made": 1}, SETTINGS)
    plain = Producer({"bootstrap.servers": bootstrap})
    alive = []
    for value in [*WRITTEN, *AFTER]:
        if value in (b"plain", b"between", b"after"):
            plain.produce("made", filled(value), partition=0)
            plain.flush()
            continue
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": value.decode(), "linger.ms": 0})
        producer.init_transactions(30)
        producer.begin_transaction()
        producer.produce("made", filled(value), partition=0)
        kind = value.decode().partition("-")[0]
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": f"of-{kind}"})
        producer.send_offsets_to_transaction([TopicPartition("made", 0, len(value))], reader.consumer_group_metadata(), 30)
        producer.flush()
        if kind == "commit":
            producer.commit_transaction(30)
        elif kind == "abort":
            producer.abort_transaction(30)
        alive.append(producer)
    return alive


@pytest.fixture(scope="module")
def of_kafka(apache_kafka: apache.Distribution, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """Log directories of a Kafka that was stopped, and of one that was killed."""
    roots = {}
    for ended in ("stopped", "killed"):
        root = tmp_path_factory.mktemp(f"kafka-{ended}")
        with apache.running(apache_kafka, root, settings=ONE_OFFSETS_PARTITION) as (bootstrap, process):
            producers = write_with_kafka(bootstrap)
            if ended == "killed":
                os.kill(process.pid, signal.SIGKILL)
        del producers
        roots[ended] = root / "logs"
    yield roots


@pytest.mark.parametrize("ended", ["stopped", "killed"])
def test_ottla_serves_transactions_that_kafka_left(of_kafka: dict[str, Path], tmp_path: Path, ended: str) -> None:
    source = of_kafka[ended]
    with Serving(tmp_path / "data", settings=ONE_OFFSETS_PARTITION) as server:
        create_topics(server.address, {"made": 1}, SETTINGS)
        committed_of(server.bootstrap, "of-commit")  # It creates __consumer_offsets.
        server.stop()
        broker = server.data_dir / "broker-1"
        if ended == "killed":
            (broker / ".kafka_cleanshutdown").unlink()
        for topic in ("made-0", "__consumer_offsets-0"):
            adopt(Left(source / topic, []), broker / topic)
        for _ in range(2):
            server.start()
            served_rightly(server.bootstrap, "made")
            found = {kind: committed_of(server.bootstrap, f"of-{kind}") for kind in ("commit", "abort", "open")}
            assert found == {"commit": len("commit-2"), "abort": -1001, "open": -1001}
            server.stop()


def committed_of(bootstrap: str, group: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted"})
    [found] = consumer.committed([TopicPartition("made", 0)], 30)
    consumer.close()
    return int(found.offset)


# Ottla's files.


def append(log: Log, value: bytes, sequence: int = -1, **fields: Any) -> None:
    batch = memoryview(build_batch([(NOW_MS, None, filled(value), ())], base_sequence=sequence, **fields))
    log.append(batch, parse_header(batch), leader_epoch=0, now_ms=NOW_MS)


def append_marker(log: Log, producer: int, kind: int) -> None:
    key, value = marker(kind, 3)
    batch = memoryview(build_batch([(NOW_MS, key, value, ())], control=True, transactional=True, producer_id=producer, producer_epoch=0))
    log.append(batch, parse_header(batch), leader_epoch=0, now_ms=NOW_MS)


@pytest.fixture(scope="module")
def of_ottla(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A partition that Ottla's log wrote and closed."""
    root = tmp_path_factory.mktemp("ottla")
    topic = TopicOptions.of(SETTINGS)
    directory = LogDirectory.open(RealDisk(root), broker_id=1, cluster_id="c", now_ms=NOW_MS, options_for=lambda _: topic)
    log = directory.create(Partition("made", 0), TopicId(bytes(range(16))), topic, NOW_MS)
    for producer, value in enumerate([*WRITTEN, *AFTER], 4_000):
        if value in (b"plain", b"between", b"after"):
            append(log, value)
            continue
        append(log, value, 0, producer_id=producer, producer_epoch=0, transactional=True)
        if value != b"open":
            append_marker(log, producer, COMMIT_MARKER if value.startswith(b"commit") else ABORT_MARKER)
    assert directory.close()
    return root / "made-0"


def tool(found: apache.Distribution, name: str, *arguments: str) -> str:
    command = [*tools_command(found), f"org.apache.kafka.tools.{name}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_kafkas_tool_reads_markers_transaction_indexes_and_snapshots(apache_kafka: apache.Distribution, of_ottla: Path) -> None:
    def dump(suffix: str, *options: str) -> str:
        files = ",".join(map(str, sorted(of_ottla.glob(f"*.{suffix}"))))
        return tool(apache_kafka, "DumpLogSegments", "--files", files, *options)

    log = dump("log", "--deep-iteration")
    assert set(re.findall(r"isvalid: (\w+)", log)) == {"true"}
    assert re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", log) == [
        ("COMMIT", "3"),
        ("ABORT", "3"),
        ("COMMIT", "3"),
        ("ABORT", "3"),
    ]
    entries = re.findall(r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)", dump("txnindex"))
    assert entries == [("4002", "3", "4", "5"), ("4004", "7", "8", "9")]
    snapshot = tool(apache_kafka, "DumpLogSegments", "--files", str(sorted(of_ottla.glob("*.snapshot"))[-1]))
    assert re.search(r"producerId: 4006 .*currentTxnFirstOffset: Optional(Long)?\[10\]", snapshot), snapshot


def test_kafka_serves_and_ends_transactions_that_ottla_left(apache_kafka: apache.Distribution, of_ottla: Path, tmp_path: Path) -> None:
    with apache.running(apache_kafka, tmp_path) as (bootstrap, _):
        create_topics(address_of(bootstrap), {"adopted": 1}, SETTINGS)
    left = shutil.copytree(of_ottla, tmp_path / "copy")
    adopt(Left(left, []), tmp_path / "logs" / "adopted-0")
    with apache.running(apache_kafka, tmp_path) as (bootstrap, _):
        served_rightly(bootstrap, "adopted")
        place = ("--topic", "adopted", "--partition", "0")
        described = tool(apache_kafka, "TransactionsCommand", "--bootstrap-server", bootstrap, "describe-producers", *place)
        assert re.search(r"^4006\s+0\s+-1\s+0\s+\d+\s+10", described, re.MULTILINE), described
        tool(apache_kafka, "TransactionsCommand", "--bootstrap-server", bootstrap, "abort", *place, "--start-offset", "10")
        everything = [value for value, counts in (WRITTEN | AFTER).items() if counts]
        deadline = time.monotonic() + 30
        while consumed(bootstrap, "adopted", "read_committed") != everything:
            assert time.monotonic() < deadline, "the transaction was aborted"
            time.sleep(0.2)


# Kafka's own client.

COPIED, COPIERS = 1_000, 2


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param("assigned", marks=pytest.mark.long), "group"])
def test_kafkas_message_copiers_copy_each_record_once_while_they_and_the_broker_are_killed(
    apache_kafka: apache.Distribution, tmp_path: Path, mode: str
) -> None:
    """TransactionalMessageCopier, the program of Kafka's system tests: it aborts a third of its transactions by itself. Two of them have
    one partition each, or share a group, whose metadata fences a member that lost its partitions (KIP-447).
    """
    tools = jars("kafka-tools")
    main = ("org.apache.kafka.tools.TransactionalMessageCopier", "--enable-random-aborts", "--transaction-size", "10")
    kind = ("--group-mode", "--use-group-metadata") if mode == "group" else ()
    with Serving(tmp_path / "data", settings={"transaction.state.log.num.partitions": "2"}) as server, ExitStack() as stack:
        create_topics(server.address, {"before": COPIERS, "after": COPIERS}, {})
        producer = Producer({"bootstrap.servers": server.bootstrap})
        for number in range(COPIED):
            for partition in range(COPIERS):
                producer.produce("before", str(number).encode(), partition=partition)
        producer.flush()

        def copied(partition: int) -> list[int]:
            where = TopicPartition("after", partition, 0)
            return [int(value) for value in consumed(server.bootstrap, where, "read_committed")]

        def start(number: int) -> Program:
            names = ("--transactional-id", f"copier-{number}", "--consumer-group", "copiers", "--transaction-timeout", "10000")
            where = ("--broker-list", server.bootstrap, "--input-topic", "before", "--output-topic", "after")
            command = (*main, *kind, *names, *where, "--input-partition", str(number))
            return stack.enter_context(running(apache_kafka, tools, tmp_path, *command, name=f"copier-{number}"))

        copiers = [start(number) for number in range(COPIERS)]
        for kill in range(2):
            goal = COPIED * (kill + 1) // 4
            copiers[0].until(lambda: len(copied(0)) >= goal, f"{goal} records are copied")  # noqa: B023
            if kill == 1:
                server.kill()
                server.start()
            for copier in copiers:
                copier.kill()
                copier.start()
        for number in range(COPIERS):
            deadline = time.monotonic() + 90
            while len(copied(number)) < COPIED:
                assert time.monotonic() < deadline, f"every record is copied: {copiers[number].log.read_text()[-3000:]}"
                time.sleep(0.2)
        for number in range(COPIERS):
            assert copied(number) == list(range(COPIED))
