"""Directories that Apache Kafka wrote are imported, served by Ottla and read back by Kafka's clients; the source does not change.

Kafka comes from Maven, as in the benchmarks; without it these tests are skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench import kafka as apache
from bench.clusters import RunningCluster
from bench.process import ServerProcess
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic
from test_kafka_transactions import consumed

from ottla.records.batch import headers
from ottla.records.read import records as batch_records
from serving import Serving

pytestmark = [
    pytest.mark.interop,
    pytest.mark.server,
    pytest.mark.timeout(420),
    pytest.mark.xdist_group("kafka_import"),
    pytest.mark.usefixtures("own_server_only"),
]

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
GROUPS = {"classic": {"group.protocol": "classic"}, "modern": {"group.protocol": "consumer"}}
TOPICS = {
    "plain": {"segment.bytes": "1048576", "retention.ms": "987654321"},
    "compacted": {"segment.bytes": "1048576", "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"},
}
Read = dict[tuple[int, int], tuple[bytes | None, bytes | None, int]]


@dataclass
class Written:
    """What a Kafka held when it stopped."""

    topics: dict[str, Read] = field(default_factory=dict)
    committed: dict[str, dict[int, int]] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)


def write(bootstrap: str, replicas: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    created = admin.create_topics([NewTopic(name, 3, replicas, config=config) for name, config in TOPICS.items()])
    for one in created.values():
        one.result(30)
    admin.create_topics([NewTopic("deleted", 1, replicas)])["deleted"].result(30)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": codec, "batch.size": 20_000})
        for number in range(2_000):
            producer.produce("plain", key=b"%d" % number, value=os.urandom(600) + codec.encode(), headers=[("codec", codec.encode())])
            producer.produce("compacted", key=b"%d" % (number % 40), value=os.urandom(900))
            producer.poll(0)
        assert producer.flush(60) == 0
    admin.delete_topics(["deleted"])["deleted"].result(30)
    for group, protocol in GROUPS.items():
        consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **protocol}
        )
        consumer.subscribe(["plain"])
        assert sum(len(consumer.consume(500, 10)) for _ in range(6)) > 0
        consumer.commit(asynchronous=False)
        consumer.close()


def held(bootstrap: str) -> Written:
    """All records of the topics, the committed offsets and topic ids, by confluent-kafka."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = Written()
    for name in TOPICS:
        found.topics[name] = records(bootstrap, name)
        described = admin.describe_topics(TopicCollection([name]))[name].result(30)
        found.topic_ids[name] = str(described.topic_id)
    for group in GROUPS:
        listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(30)
        found.committed[group] = {one.partition: one.offset for one in listed.topic_partitions if one.offset >= 0}
    return found


def records(bootstrap: str, topic: str) -> Read:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "check.crcs": True,
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
    found: Read = {}
    ended = 0
    while ended < 3:
        one = consumer.poll(30)
        assert one is not None, f"{topic} is read within 30 s"
        if one.error():
            ended += 1
        else:
            found[one.partition(), one.offset()] = (one.key(), one.value(), one.timestamp()[1])
    consumer.close()
    return found


def fingerprint(*directories: Path) -> dict[str, tuple[int, int, str]]:
    """Size, time and hash of every file."""
    paths = sorted(path for directory in directories for path in directory.rglob("*") if path.is_file())
    states = {path: path.stat() for path in paths}
    return {str(p): (s.st_size, s.st_mtime_ns, hashlib.sha256(p.read_bytes()).hexdigest()) for p, s in states.items()}


def ottla(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "ottla", *arguments], capture_output=True, text=True, timeout=120)


def take_over(sources: Sequence[Path], data_dir: Path) -> dict[str, Any]:
    """Imports and verifies; returns the report."""
    directories = [str(source) for source in sources]
    imported = ottla("import", *directories, "--data-dir", str(data_dir), "-o", "json")
    assert imported.returncode == 0, imported.stderr
    verified = ottla("import", "verify", *directories, "--data-dir", str(data_dir), "-o", "json")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert json.loads(verified.stdout)["differences"] == []
    report: dict[str, Any] = json.loads(imported.stdout)
    return report


def check(bootstrap: str, written: Written) -> None:
    """Ottla serves what Kafka held, and accepts more."""
    found = held(bootstrap)
    assert found.committed == written.committed and all(written.committed.values())
    assert found.topic_ids == written.topic_ids
    for name, theirs in written.topics.items():
        if name == "plain":
            assert found.topics[name] == theirs
        else:
            # Kafka may have compacted until the kill: the newest record of each key is what counts.
            assert newest(found.topics[name]) == newest(theirs)
    # Kept until the result is there: librdkafka crashes otherwise.
    admin = AdminClient({"bootstrap.servers": bootstrap})
    config = admin.describe_configs([ConfigResource("topic", "plain")])
    (texts,) = [one.result(30) for one in config.values()]
    assert texts["retention.ms"].value == "987654321"
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "acks": "all"})
    ends = {partition: max(offset for number, offset in written.topics["plain"] if number == partition) + 1 for partition in range(3)}
    for partition in range(3):
        producer.produce("plain", b"more", partition=partition)
    assert producer.flush(30) == 0
    after = records(bootstrap, "plain")
    assert [after[partition, end][1] for partition, end in ends.items()] == [b"more"] * 3


# Transactions.

#: Short for the transaction that times out, and long enough that Kafka does not abort it before it is killed.
LEFT_MS, LONG_MS = 15_000, 300_000
TRANSACTIONS = {"transaction.state.log.num.partitions": "3", "offsets.topic.num.partitions": "1"}


def begun(bootstrap: str, transactional_id: str, timeout_ms: int = LONG_MS) -> Producer:
    """A producer with a record in an open transaction, and an offset of a group with the transactional id as its name."""
    settings = {"transactional.id": transactional_id, "transaction.timeout.ms": timeout_ms, "linger.ms": 0}
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("paid", transactional_id.encode(), partition=0)
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": transactional_id})
    producer.send_offsets_to_transaction([TopicPartition("paid", 0, 7)], reader.consumer_group_metadata(), 30)
    assert producer.flush(30) == 0
    return producer


def offsets(bootstrap: str, *groups: str) -> list[int]:
    """The committed offset of each group; -1 without one, -2 while it is in an open transaction."""
    found = []
    for group in groups:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": "read_uncommitted"})
        [partition] = consumer.committed([TopicPartition("paid", 0)], 30)
        found.append(max(int(partition.offset), -1))
        consumer.close()
    return found


def test_ottla_goes_on_with_the_transactions_of_a_kafka_that_was_killed(apache_kafka: apache.Distribution, tmp_path: Path) -> None:
    """An open transaction is committed by its own producer, which has the same address before and after; another one times out."""
    with apache.running(apache_kafka, tmp_path / "kafka", settings=TRANSACTIONS) as (bootstrap, process):
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("paid", 1, 1)])["paid"].result(30)
        begun(bootstrap, "committed").commit_transaction(30)
        begun(bootstrap, "aborted").abort_transaction(30)
        continuing = begun(bootstrap, "continuing")
        left = begun(bootstrap, "left", LEFT_MS)
        os.kill(process.pid, signal.SIGKILL)
    report = take_over([tmp_path / "kafka" / "logs"], tmp_path / "data")
    assert (report["transactional_ids"], report["open_transactions"], report["decided_transactions"]) == (4, 2, 0)
    assert not [one for one in report["not_imported"] if "transactions" in one["kind"]]
    assert report["committed_offsets"] == 1
    server = Serving(tmp_path / "data", settings={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"})
    server.bootstrap = bootstrap
    with server:
        assert consumed(bootstrap, "paid", "read_committed") == [b"committed"]
        continuing.produce("paid", b"more", partition=0)
        continuing.commit_transaction(60)
        plain = Producer({"bootstrap.servers": bootstrap})
        plain.produce("paid", b"after", partition=0)
        assert plain.flush(30) == 0
        deadline = time.monotonic() + 60
        while (found := consumed(bootstrap, "paid", "read_committed"))[-1] != b"after":
            assert time.monotonic() < deadline, found
            time.sleep(0.2)
        assert found == [b"committed", b"continuing", b"more", b"after"]
        assert offsets(bootstrap, "committed", "aborted", "continuing", "left") == [7, -1, 7, -1]
    del left


#: Values of `transaction_status` in the records of __transaction_state, and where they have it.
COMPLETE, STATUS_AT = (b"\x04", b"\x05"), 16


def cut(log: Path) -> int:
    """Cuts a log at its first marker, or at the coordinator's first record of a complete transaction; the number of such batches."""
    data = log.read_bytes()
    ends = []
    for position, header in headers(data):
        values = [record[3] for record in batch_records(data, position)]
        if header.is_control or any(value is not None and value[STATUS_AT : STATUS_AT + 1] in COMPLETE for value in values):
            ends.append(position)
    os.truncate(log, ends[0])
    return len(ends)


def test_ottla_completes_the_transactions_that_kafka_had_decided(apache_kafka: apache.Distribution, tmp_path: Path) -> None:
    """Kafka's files as a loss of power may leave them: the decisions are on disk, the markers and what follows them are not."""
    with apache.running(apache_kafka, tmp_path / "kafka", settings=TRANSACTIONS | {"transaction.state.log.num.partitions": "2"}) as started:
        bootstrap, process = started
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic("paid", 1, 1)])["paid"].result(30)
        committed, aborted = begun(bootstrap, "a"), begun(bootstrap, "b")
        committed.commit_transaction(30)
        aborted.abort_transaction(30)
        assert consumed(bootstrap, "paid", "read_committed") == [b"a"], "the markers are written"
        os.kill(process.pid, signal.SIGKILL)
    logs = tmp_path / "kafka" / "logs"
    # The coordinators of "a" and "b" are different partitions: their hashes are odd and even.
    lost = [
        cut(logs / name / f"{0:020}.log") for name in ("paid-0", "__consumer_offsets-0", "__transaction_state-0", "__transaction_state-1")
    ]
    assert lost == [2, 2, 1, 1]
    report = take_over([logs], tmp_path / "data")
    assert (report["transactional_ids"], report["open_transactions"], report["decided_transactions"]) == (2, 0, 2)
    with Serving(tmp_path / "data") as server:
        deadline = time.monotonic() + 30
        while (found := (consumed(server.bootstrap, "paid", "read_committed"), offsets(server.bootstrap, "a", "b"))) != ([b"a"], [7, -1]):
            assert time.monotonic() < deadline, found
            time.sleep(0.1)
        begun(server.bootstrap, "b").commit_transaction(30)
        while (again := consumed(server.bootstrap, "paid", "read_committed")) != [b"a", b"b"]:
            assert time.monotonic() < deadline, again
            time.sleep(0.1)


def newest(found: Read) -> dict[bytes | None, bytes | None]:
    return {key: value for _, (key, value, _) in sorted(found.items())}


def test_ottla_continues_the_directory_of_a_kafka_that_was_stopped(apache_kafka: apache.Distribution, tmp_path: Path) -> None:
    """Codecs, an idempotent producer, compaction, groups of both protocols, a deleted topic."""
    with apache.running(apache_kafka, tmp_path / "kafka", settings={"log.cleaner.backoff.ms": "300"}) as (bootstrap, _):
        write(bootstrap, 1)
        refused = ottla("import", str(tmp_path / "kafka" / "logs"), "--data-dir", str(tmp_path / "data"))
        assert refused.returncode == 1 and "in use by a running Kafka broker" in refused.stderr
        written = held(bootstrap)
    source = tmp_path / "kafka" / "logs"
    before = fingerprint(source)
    raw = ottla("serve", "--data-dir", str(source))
    assert raw.returncode == 1 and f"ottla import {source} --data-dir NEW" in raw.stderr
    report = take_over([source], tmp_path / "data")
    assert report["linked_bytes"], "closed segments are linked"
    with Serving(tmp_path / "data") as server:
        check(server.bootstrap, written)
        server.stop()
        server.start()
        assert len(records(server.bootstrap, "plain")) == len(written.topics["plain"]) + 3
    assert fingerprint(source) == before


@pytest.mark.long
def test_the_directories_of_three_brokers_that_were_killed_become_three_brokers(apache_kafka: apache.Distribution, tmp_path: Path) -> None:
    places = apache.places(tmp_path / "kafka", 3)
    commands = apache.formatted(apache_kafka, places, {"log.cleaner.backoff.ms": "300"})

    def start(node: int) -> ServerProcess:
        place = places[node - 1]
        return ServerProcess(commands[node - 1], log_path=place.data_dir / "server.log", ready=apache.READY, port=place.port)

    running = RunningCluster(start, range(1, 4))
    try:
        bootstrap = ",".join(f"127.0.0.1:{place.port}" for place in places)
        write(bootstrap, 3)
        written = held(bootstrap)
        for pid in running.pids:
            os.kill(pid, signal.SIGKILL)
    finally:
        running.stop()
    sources = [place.data_dir / "logs" for place in places]
    before = fingerprint(*sources)
    report = take_over(sources, tmp_path / "data")
    assert [broker["broker_id"] for broker in report["brokers"]] == [1, 2, 3]
    with Serving(tmp_path / "data", brokers=3) as server:
        check(server.bootstrap, written)
        _await_in_sync(server.bootstrap)
    assert fingerprint(*sources) == before


def _await_in_sync(bootstrap: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    deadline = time.monotonic() + 60
    while True:
        topics = admin.list_topics(timeout=10).topics
        if all(len(p.isrs) == len(p.replicas) == 3 for name in TOPICS for p in topics[name].partitions.values()):
            return
        assert time.monotonic() < deadline, {name: {n: p.isrs for n, p in topics[name].partitions.items()} for name in TOPICS}
        time.sleep(0.2)
