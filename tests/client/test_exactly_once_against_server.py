"""`process` and the example of exactly-once processing against a real server, while processes are killed; and other clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

import ottla
from ottla import Admin, Consumer, NewTopic, Producer, TopicPartition
from serving import ELSEWHERE, SOURCE, Elsewhere, Serving

pytestmark = pytest.mark.server
EXAMPLE = Path(__file__).parents[2] / "examples" / "exactly-once" / "invoices.py"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving | Elsewhere]:
    if ELSEWHERE:
        yield Elsewhere()
        return
    with Serving(tmp_path_factory.mktemp("exactly_once") / "data") as made:
        yield made


def create(server: Serving, *names: str, partitions: int = 1) -> None:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        for name in names:
            admin.create_topic(NewTopic(name, partitions))


def read(server: Serving, topic: str, isolation_level: str = "read_committed") -> list[bytes]:
    """Values up to the end that this isolation level sees."""
    with Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", isolation_level=isolation_level) as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends = consumer.end_offsets(partitions)
        found: list[bytes] = []
        while not all(consumer.core.has_passed(tp, end) for tp, end in ends.items()):
            found += [record.value or b"" for record in consumer.poll(100)]
    return found


def run_example(server: Serving, name: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OTTLA_BOOTSTRAP_SERVERS": server.bootstrap}
    return subprocess.Popen([sys.executable, str(EXAMPLE), name], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_processes_that_are_killed_write_each_invoice_once(server: Serving) -> None:
    """Two processes are killed in turn while orders arrive; each order has one invoice or one rejection afterwards."""
    create(server, "orders", "invoices", "rejected-orders", partitions=4)
    rng, kills, count = Random(16), 8, 0
    processes = {name: run_example(server, name) for name in ("one", "two")}
    committed = threading.Event()
    with (
        Producer(bootstrap_servers=server.bootstrap, value_serializer="json", linger_ms=1) as orders,
        Consumer("invoices", group_id="watch", bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as watch,
    ):

        def order() -> None:
            nonlocal count
            orders.send("orders", {"id": count, "count": 2, "price_cents": 5} if count % 50 else {"id": count}, key=b"%d" % count)
            count += 1

        try:
            while not watch.poll(10):
                order()
            for number in range(kills):
                name = ("one", "two")[number % 2]
                for _ in range(rng.randrange(5, 30)):
                    for _ in range(10):
                        order()
                    watch.poll(10)
                processes[name].kill()
                processes[name].communicate()
                processes[name] = run_example(server, name)
            orders.flush()
            seen = len(read(server, "invoices")) + len(read(server, "rejected-orders"))
            while seen < count:
                committed.wait(0.05)
                seen = len(read(server, "invoices")) + len(read(server, "rejected-orders"))
            for process in processes.values():
                process.terminate()
            outputs = [process.communicate(timeout=30) for process in processes.values()]
        finally:
            for process in processes.values():
                process.kill()
                process.communicate()
    for (said, errors), process in zip(outputs, processes.values(), strict=True):
        assert process.returncode == 0, errors.decode()
        assert b"orders were processed" in said
    invoices = sorted(json.loads(value)["order"] for value in read(server, "invoices"))
    rejected = sorted(json.loads(value)["id"] for value in read(server, "rejected-orders"))
    assert rejected == [number for number in range(count) if number % 50 == 0]
    assert invoices == [number for number in range(count) if number % 50]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_members_that_come_and_go_process_each_record_once(server: Serving, protocol: str) -> None:
    source, target = f"in-{protocol}", f"out-{protocol}"
    create(server, source, target, partitions=4)
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for number in range(4000):
            producer.send(source, b"%d" % number)
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap, "group_protocol": protocol, "commit_interval_ms": 20}
    if protocol == "classic":
        settings["heartbeat_interval_ms"] = 100
    processed: list[int] = []
    members = []

    def run(processor: ottla.Processor) -> None:
        def function(record: ottla.ConsumerRecord) -> bytes:
            some.set()
            pause.wait(0.0005)
            return bytes(record.value or b"")

        processed.append(processor(function))

    pause = threading.Event()
    for _ in range(3):
        some = threading.Event()
        processor = ottla.process(source, group=f"group-{protocol}", to=target, **settings)
        members.append((processor, threading.Thread(target=run, args=(processor,))))
        members[-1][1].start()
        assert some.wait(20)
    members[0][0].stop()
    members[0][1].join(20)
    pause.set()
    while len(read(server, target)) < 4000:
        assert members[1][1].is_alive()
        threading.Event().wait(0.05)
    for processor, thread in members:
        processor.stop()
        thread.join(20)
    assert sum(processed) == 4000
    assert sorted(read(server, target), key=int) == [b"%d" % number for number in range(4000)]
    with Consumer(bootstrap_servers=server.bootstrap, group_id=f"group-{protocol}") as consumer:
        partitions = [TopicPartition(source, partition) for partition in range(4)]
        kept = consumer.committed(partitions)
        assert sum(one.offset for one in kept.values() if one is not None) == 4000


# -- All readers, and other clients.


@pytest.fixture(scope="module")
def mixed(server: Serving) -> tuple[str, list[bytes]]:
    """A topic with committed, aborted and open transactions and other records, and the values that read_committed sees."""
    topic, expected = "mixed", []
    create(server, topic)
    opened = Producer(bootstrap_servers=server.bootstrap, transactional_id="mixed-open", transaction_timeout_ms=600_000, linger_ms=0)
    with (
        Producer(bootstrap_servers=server.bootstrap, transactional_id="mixed", linger_ms=0) as producer,
        Producer(bootstrap_servers=server.bootstrap, linger_ms=0) as plain,
    ):
        producer.init_transactions()
        for number in range(30):
            commit = number % 3 != 1
            producer.begin()
            for part in range(4):
                producer.send(topic, b"%d.%d" % (number, part))
                producer.flush()
                plain.send(topic, b"%d.plain %d" % (number, part)).result()
            producer.commit() if commit else producer.abort()
            expected += [b"%d.%d" % (number, part) for part in range(4) if commit] + [b"%d.plain %d" % (number, part) for part in range(4)]
        opened.init_transactions()
        opened.begin()
        opened.send(topic, b"open").result()
        plain.send(topic, b"after").result()
    # Closing it leaves the transaction open.
    opened._thread.call(opened.transactions.hand_over())
    opened.close()
    return topic, sorted(expected)


def test_every_reader_sees_what_was_committed(server: Serving, mixed: tuple[str, list[bytes]], tmp_path: Path) -> None:
    topic, expected = mixed
    assert sorted(read(server, topic)) == expected
    everything = read(server, topic, "read_uncommitted")
    assert len(everything) == 30 * 8 + 2
    assert {b"open", b"after"} < set(everything)
    settings: dict[str, Any] = {"bootstrap_servers": server.bootstrap, "isolation_level": "read_committed"}
    table = ottla.read_table(topic, **settings)
    assert sorted(table["value"].to_pylist()) == expected
    with Consumer(auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign([(topic, 0)])
        polled: list[bytes] = []
        while len(polled) < len(expected):
            polled += consumer.poll_table(1000)["value"].to_pylist()
        assert sorted(polled) == expected
        assert consumer.poll_table(300).num_rows == 0
        assert consumer.current_lag((topic, 0)) == 0
    one_by_one = [record.value for record in ottla.consume(f"{topic}@start:end", **settings)]
    assert sorted(one_by_one) == expected
    command = [sys.executable, "-m", "ottla", "consume", topic, "-b", server.bootstrap, "--from-beginning", "-e"]
    for more, wanted in ((["--read-committed"], expected), ([], sorted(everything))):
        done = subprocess.run([*command, *more], capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(SOURCE)})
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == wanted


def test_sparks_source_reads_what_was_committed(server: Serving, mixed: tuple[str, list[bytes]]) -> None:
    """The reader of Spark's tasks, without Spark."""
    from ottla.spark.source.data_loss import DataLossPolicy
    from ottla.spark.source.log_client import LogClient
    from ottla.spark.source.offset_ranges import LATEST, OffsetRange
    from ottla.spark.source.rows import arrow_schema, record_batch

    topic, expected = mixed
    schema, found = arrow_schema(("value",)), {}
    for level in ("read_committed", "read_uncommitted"):
        with closing(LogClient(server.bootstrap, {"isolation.level": level})) as log:
            end = log.end_offsets([TopicPartition(topic, 0)], LATEST)[TopicPartition(topic, 0)]
            parts = log.read(OffsetRange(topic, 0, 0, end), with_headers=False, loss_policy=DataLossPolicy("fail"), timeout_ms=5000)
            found[level] = sorted(value for part in parts for value in record_batch(part, schema, topic, 0)["value"].to_pylist())
    assert found["read_committed"] == expected
    assert found["read_uncommitted"] == sorted(read(server, topic, "read_uncommitted"))


def test_a_table_has_what_was_committed(server: Serving, mixed: tuple[str, list[bytes]], tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    from ottla.demo.verification import read_table

    topic, expected = mixed
    command = [sys.executable, "-m", "ottla", "table", "sync", topic, "-b", server.bootstrap, "--once", "--value", "text"]
    for more, wanted in (([], expected), (["-X", "isolation.level=read_uncommitted"], sorted(read(server, topic, "read_uncommitted")))):
        directory = tmp_path / f"table{len(more)}"
        done = subprocess.run(
            [*command, "--to", str(directory), *more], capture_output=True, timeout=60, env={**os.environ, "PYTHONPATH": str(SOURCE)}
        )
        assert done.returncode == 0, done.stderr
        assert sorted(value.encode() for value in read_table(directory)["value"].to_pylist()) == wanted


def test_librdkafka_reads_what_was_committed(server: Serving, mixed: tuple[str, list[bytes]]) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    topic, expected = mixed
    settings = {"bootstrap.servers": server.bootstrap, "group.id": "librdkafka", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed", "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while True:
        message = consumer.poll(10)
        assert message is not None
        if message.error():
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            break
        found.append(message.value())
    consumer.close()
    assert sorted(found) == expected


def test_transactions_of_librdkafka_are_read_and_its_offsets_are_seen(server: Serving) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    create(server, "from_librdkafka")
    producer = confluent_kafka.Producer({"bootstrap.servers": server.bootstrap, "transactional.id": "librdkafka"})
    producer.init_transactions()
    consumer = confluent_kafka.Consumer({"bootstrap.servers": server.bootstrap, "group.id": "offsets of librdkafka"})
    for value, commit in ((b"a", True), (b"b", False), (b"c", True)):
        producer.begin_transaction()
        producer.produce("from_librdkafka", value)
        offset = confluent_kafka.TopicPartition("from_librdkafka", 0, 1 if value == b"a" else 2)
        producer.send_offsets_to_transaction([offset], consumer.consumer_group_metadata())
        producer.commit_transaction() if commit else producer.abort_transaction()
    consumer.close()
    assert read(server, "from_librdkafka") == [b"a", b"c"]
    with Consumer(bootstrap_servers=server.bootstrap, group_id="offsets of librdkafka") as ours:
        (kept,) = ours.committed([("from_librdkafka", 0)]).values()
        assert kept is not None
        assert kept.offset == 2
