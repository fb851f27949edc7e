"""The clients and the command line against a real `ottla serve` in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import ottla
from ottla import Admin, Consumer, ConsumerRecord, NewTopic, Producer, TopicPartition
from ottla.client.admin.results import ConfigChange, ConfigOperation, NewPartitions, Resource, ResourceType
from ottla.client.errors import AlreadyClosed, ConnectionFailed, MetadataTimedOut
from ottla.client.fetch.offsets import EARLIEST, LATEST, MAX_TIMESTAMP, OffsetAndTime
from ottla.records.build import build_batch
from ottla.wire.errors import InvalidConfig, KafkaError, OffsetOutOfRange, TopicAlreadyExists, UnknownTopicOrPartition
from serving import ELSEWHERE, Elsewhere, Serving

pytestmark = pytest.mark.server


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving | Elsewhere]:
    """One server for all tests that do not damage it. Each test uses its own topics."""
    if ELSEWHERE:
        yield Elsewhere()
        return
    with Serving(tmp_path_factory.mktemp("served") / "data") as made:
        yield made


@pytest.fixture
def topic(server: Serving, request: pytest.FixtureRequest) -> str:
    """A topic of three partitions for one test."""
    name = re.sub(r"\W", ".", request.node.name)[-100:]
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic(name, 3))
        wait_until(lambda: len(admin.describe_topic(name).partitions) == 3)
    return name


def read(server: Serving, topic: str, count: int, **settings: Any) -> list[ConsumerRecord]:
    """The first `count` records of a topic, from all partitions."""
    found: list[ConsumerRecord] = []
    with Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", **settings) as consumer:
        consumer.assign(consumer.partitions_for(topic))
        deadline = time.monotonic() + 20
        while len(found) < count and time.monotonic() < deadline:
            found += consumer.poll(1000)
    return found


def wait_until(true: Callable[[], bool]) -> None:
    """Waits for a change that needs a moment: a broker of Apache Kafka learns later than its controller of a change that the controller
    made."""
    deadline_s = time.monotonic() + 30
    while True:
        with contextlib.suppress(UnknownTopicOrPartition):
            if true():
                return
        assert time.monotonic() < deadline_s, "the condition holds in time"
        time.sleep(0.02)


# -- producing and consuming


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_consumed_records_equal_the_sent_ones(server: Serving, topic: str, codec: str) -> None:
    sent = [(b"k%d" % index, b"v" * index, [("h", b"%d" % index), ("n", None)], 1000 + index) for index in range(500)]
    with Producer(bootstrap_servers=server.bootstrap, compression_type=codec) as producer:
        for key, value, headers, timestamp_ms in sent:
            producer.send(topic, value, key, headers, timestamp_ms=timestamp_ms)
    found = sorted(read(server, topic, len(sent)), key=lambda record: record.timestamp)
    assert [(record.key, record.value, list(record.headers), record.timestamp) for record in found] == sent


def test_null_keys_and_values_differ_from_empty_ones(server: Serving, topic: str) -> None:
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for key, value in ((None, None), (b"", b""), (None, b""), (b"", None)):
            producer.send(topic, value, key, partition=0)
    assert [(record.key, record.value) for record in read(server, topic, 4)] == [(None, None), (b"", b""), (None, b""), (b"", None)]


@pytest.mark.parametrize("acks", ["all", 1, 0])
def test_each_acks_setting_writes(server: Serving, topic: str, acks: Any) -> None:
    with Producer(bootstrap_servers=server.bootstrap, acks=acks) as producer:
        places = [producer.send(topic, b"%d" % index, partition=0) for index in range(10)]
        assert [place.result(timeout_ms=5000).offset for place in places] == ([-1] * 10 if acks == 0 else list(range(10)))
    assert len(read(server, topic, 10)) == 10


def test_threads_can_share_a_producer(server: Serving, topic: str) -> None:
    with Producer(bootstrap_servers=server.bootstrap) as producer:

        def work(number: int) -> None:
            for index in range(500):
                producer.send(topic, b"%d" % index, partition=0, key=b"%d" % number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = read(server, topic, 2000)
    for number in range(4):
        assert [int(record.value) for record in found if record.key == b"%d" % number] == list(range(500))


def test_killing_the_broker_under_load_neither_loses_nor_duplicates_acknowledged_records(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("t", 2))
        stop = threading.Event()

        def kill_repeatedly() -> None:
            for _ in range(3):
                if stop.wait(0.4):
                    return
                server.kill()
                server.start()

        chaos = threading.Thread(target=kill_repeatedly)
        with Producer(bootstrap_servers=server.bootstrap, linger_ms=1, batch_size=2000, buffer_memory=100_000) as producer:
            chaos.start()
            deliveries = []
            index = 0
            while chaos.is_alive() or index < 2000:
                deliveries.append(producer.send("t", b"%d" % index, partition=index % 2))
                index += 1
            stop.set()
            chaos.join()
            producer.flush(30_000)
        offsets = [delivery.result().offset for delivery in deliveries]
        found = read(server, "t", index)
        for partition in range(2):
            values = [int(record.value) for record in found if record.partition == partition]
            assert values == list(range(partition, index, 2))
            assert [record.offset for record in found if record.partition == partition] == list(range(len(values)))
        assert sorted(offset for offset in offsets) == sorted(record.offset for record in found)


def test_a_consumer_continues_at_its_position_after_a_restart(tmp_path: Path) -> None:
    with (
        Serving(tmp_path / "data") as server,
        Producer(bootstrap_servers=server.bootstrap) as producer,
        Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50) as consumer,
    ):
        producer.send("t", b"before").result()
        consumer.assign([("t", 0)])
        assert [record.value for record in consumer.poll(5000)] == [b"before"]
        server.kill()
        server.start()
        assert producer.send("t", b"after").result().offset == 1
        assert [record.value for record in consumer.poll(10_000)] == [b"after"]


def test_a_batch_encoded_elsewhere_is_written_and_raw_bytes_are_read(server: Serving, topic: str) -> None:
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        data = build_batch([(1000, b"k", b"v", ()), (1001, None, b"w", ())])
        assert producer.send_batch(topic, 1, bytes(data)).result(timeout_ms=5000).offset == 0
        assert producer.send_batch(topic, 1, data).result(timeout_ms=5000).offset == 2
    with Consumer(bootstrap_servers=server.bootstrap) as consumer:
        raw = consumer.fetch_raw((topic, 1), 0)
        assert (raw.high_watermark, raw.log_start_offset, raw.last_stable_offset) == (4, 0, 4)
        assert len(raw.records) == 2 * len(data)
        assert len(consumer.fetch_raw((topic, 1), 4, max_wait_ms=0).records) == 0
        with pytest.raises(OffsetOutOfRange, match=r"-1 at offset 5"):
            consumer.fetch_raw((topic, 1), 5, max_wait_ms=0)


def test_a_consumer_seeks_pauses_and_knows_the_end_offsets(server: Serving, topic: str) -> None:
    a, b = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for index in range(20):
            producer.send(topic, b"%d" % index, partition=index % 2, timestamp_ms=1000 + index)
    with Consumer(bootstrap_servers=server.bootstrap, max_poll_records=5) as consumer:
        consumer.assign([a, b])
        assert (consumer.assignment(), consumer.position(a)) == ([a, b], 10)
        assert consumer.beginning_offsets([a, b]) == {a: 0, b: 0}
        assert consumer.end_offsets([a, (topic, 2)]) == {a: 10, TopicPartition(topic, 2): 0}
        found = consumer.offsets_for_times({a: 1005, b: 99_999})
        assert (found[a], found[b]) == (OffsetAndTime(3, 1006, 0), None)
        consumer.pause(b)
        consumer.seek_to_beginning()
        assert {record.partition for _ in range(2) for record in consumer.poll(5000)} == {0}
        consumer.resume(b)
        consumer.pause(a)
        assert consumer.paused() == [a]
        assert [record.offset for record in consumer.poll(5000)] == [0, 1, 2, 3, 4]
        consumer.seek(a, 9)
        consumer.resume(a)
        consumer.seek_to_end(b)
        assert [(record.partition, record.offset) for record in consumer.poll(5000)] == [(0, 9)]
        assert consumer.poll(0) == []


def test_positions_before_the_log_start_are_reset_or_raise(server: Serving, topic: str) -> None:
    with Producer(bootstrap_servers=server.bootstrap) as producer:
        for index in range(10):
            producer.send(topic, b"%d" % index, partition=0)
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        assert admin.delete_records({(topic, 0): 6}) == {TopicPartition(topic, 0): 6}
    for policy in ("earliest", "none"):
        with Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset=policy) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek((topic, 0), 2)
            if policy == "earliest":
                assert consumer.poll(5000)[0].offset == 6
            else:
                with pytest.raises(OffsetOutOfRange, match="offset 2 is not in the log"):
                    consumer.poll(5000)


# -- administering


def test_topics_are_created_described_extended_and_deleted(server: Serving) -> None:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        made = admin.create_topic(NewTopic("admin.one", 2, 1, {"retention.ms": "60000"}))
        assert (made.num_partitions, made.replication_factor, made.configs["retention.ms"]) == (2, 1, "60000")
        again = admin.create_topics([NewTopic("admin.one"), NewTopic("admin.two")])
        assert isinstance(again["admin.one"], TopicAlreadyExists)
        assert not isinstance(again["admin.two"], KafkaError)
        assert admin.create_topics([NewTopic("admin.three")], validate_only=True)["admin.three"]
        wait_until(lambda: {"admin.one", "admin.two"} <= {listing.name for listing in admin.list_topics()})
        names = {listing.name: listing.partition_count for listing in admin.list_topics()}
        assert (names["admin.one"], "admin.three" in names) == (2, False)
        assert admin.create_partitions({"admin.one": NewPartitions(4), "nope": 2})["admin.one"] is None
        wait_until(lambda: len(admin.describe_topic("admin.one").partitions) == 4)
        described = admin.describe_topic("admin.one")
        assert described.topic_id == made.topic_id
        assert [(one.partition, one.isr) for one in described.partitions] == [
            (index, one.replicas) for index, one in enumerate(described.partitions)
        ]
        admin.delete_topic("admin.one")
        wait_until(lambda: "admin.one" not in {listing.name for listing in admin.list_topics()})
        with pytest.raises(UnknownTopicOrPartition, match=r"admin\.one"):
            admin.describe_topic("admin.one")
        assert isinstance(admin.delete_topics(["admin.two", "nope"])["nope"], UnknownTopicOrPartition)


def test_settings_are_described_and_changed(server: Serving, topic: str) -> None:
    resource = Resource.topic(topic)

    def now(name: str) -> str | None:
        found = admin.describe_configs([resource], names=[name])[resource]
        assert isinstance(found, dict)
        return found[name].value

    with Admin(bootstrap_servers=server.bootstrap) as admin:
        changes = {resource: [ConfigChange("retention.ms", "5000"), ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND)]}
        assert admin.incremental_alter_configs(changes) == {resource: None}
        bad = admin.incremental_alter_configs({resource: [ConfigChange("retention.ms", "soon")]})[resource]
        assert isinstance(bad, InvalidConfig)
        wait_until(lambda: now("retention.ms") == "5000")
        configs = admin.describe_configs([resource], documentation=True, synonyms=True)[resource]
        assert isinstance(configs, dict)
        assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("5000", "delete,compact")
        assert configs["retention.ms"].documentation
        assert not configs["retention.ms"].is_default
        assert configs["segment.ms"].is_default
        assert admin.alter_configs({resource: {"retention.ms": "7000"}}) == {resource: None}
        wait_until(lambda: now("retention.ms") == "7000")
        after = admin.describe_configs([resource], names=["retention.ms", "cleanup.policy"])[resource]
        assert isinstance(after, dict)
        assert {name: entry.value for name, entry in after.items()} == {"retention.ms": "7000", "cleanup.policy": "delete"}
        assert resource in admin.list_config_resources([ResourceType.TOPIC])


def test_offsets_producers_and_log_directories_are_described(server: Serving, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with Admin(bootstrap_servers=server.bootstrap) as admin, Producer(bootstrap_servers=server.bootstrap) as producer:
        for index in range(10):
            producer.send(topic, b"x", partition=0, timestamp_ms=1000 + index)
        producer.flush()
        for when, offset in ((EARLIEST, 0), (LATEST, 10), (MAX_TIMESTAMP, 9), (1003, 3)):
            found = admin.list_offsets({place: when})[place]
            assert isinstance(found, OffsetAndTime)
            assert found.offset == offset
        (active,) = admin.describe_producers([place])[place]  # type: ignore[misc]
        assert active.last_sequence == 9
        cluster = admin.describe_cluster()
        assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [server.bootstrap]
        (directories,) = admin.describe_log_dirs(topics=[topic]).values()
        assert isinstance(directories, list)
        sizes = {(one.topic, one.partition): one.size_bytes for one in directories[0].replicas}
        assert sizes[place] > 0
        assert sizes[topic, 1] == 0


# -- errors


def test_a_closed_port_is_one_sentence() -> None:
    address = f"127.0.0.1:{_free_port()}"
    with Admin(bootstrap_servers=address, retries=1) as admin, pytest.raises(ConnectionFailed, match=f"connection refused by {address}"):
        admin.list_topics()
    with Consumer(bootstrap_servers=address) as consumer, pytest.raises(MetadataTimedOut, match=f"after 200 ms: .*refused by {address}"):
        consumer.partitions_for("t", timeout_ms=200)
    with (
        Admin(bootstrap_servers="no.such.host.invalid:9092", retries=0) as admin,
        pytest.raises(ConnectionFailed, match="cannot find the host"),
    ):
        admin.list_topics()


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "an HTTP server answers"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "speaks TLS"),
        (b"", "closed the connection before it answered ApiVersions"),
        (None, "did not answer ApiVersions v5 within 300 ms"),
    ],
)
def test_a_server_that_is_not_kafka_is_recognized(reply: bytes | None, message: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepted: list[socket.socket] = []

        def answer() -> None:
            with contextlib.suppress(OSError):
                while True:
                    peer, _ = listener.accept()
                    accepted.append(peer)
                    if reply is not None:
                        peer.recv(1000)
                        peer.sendall(reply)
                        peer.close()

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        settings = {"retries": 0, "socket_connection_setup_timeout_ms": 300}
        with Admin(bootstrap_servers=address, **settings) as admin, pytest.raises(KafkaError, match=message):  # type: ignore[arg-type]
            admin.list_topics()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)
        for peer in accepted:
            peer.close()


def test_ctrl_c_ends_a_poll_at_once(server: Serving, topic: str) -> None:
    program = (
        "import sys, ottla\n"
        "with ottla.Consumer(bootstrap_servers=sys.argv[1]) as consumer:\n"
        "    consumer.assign([(sys.argv[2], 0)])\n"
        "    print('polling', flush=True)\n"
        "    consumer.poll()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, server.bootstrap, topic], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        # Without the signal the poll would wait for ever.
        _, err = process.communicate(timeout=30)
    assert b"KeyboardInterrupt" in err


def test_records_of_a_producer_that_was_not_closed_are_sent_when_the_program_ends(server: Serving, topic: str) -> None:
    program = "import sys, ottla; p = ottla.Producer(bootstrap_servers=sys.argv[1], linger_ms=60000); p.send(sys.argv[2], b'last')"
    subprocess.run([sys.executable, "-c", program, server.bootstrap, topic], check=True, timeout=20)
    assert [record.value for record in read(server, topic, 1)] == [b"last"]


def test_calls_on_closed_clients_are_refused(server: Serving, topic: str) -> None:
    producer, consumer, admin = (face(bootstrap_servers=server.bootstrap) for face in (Producer, Consumer, Admin))
    for face in (producer, consumer, admin):
        face.close()
        face.close()
    for call in (lambda: producer.send(topic, b"x"), lambda: consumer.poll(0), admin.list_topics):  # type: ignore[union-attr]
        with pytest.raises(AlreadyClosed):
            call()


def test_the_package_imports_fast_and_lazily() -> None:
    program = "import sys, ottla; print([name for name in sys.modules if name.startswith('ottla.')])"
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
    for name in ottla.__all__:
        assert getattr(ottla, name) is not None


# -- the command line


def run(server: Serving, *arguments: str, given: str | bytes = b"", code: int = 0, from_stdout: bool = False) -> str:
    """Standard output of a command, or standard error if the command must fail, unless standard output is requested."""
    done = subprocess.run(
        [sys.executable, "-m", "ottla", *arguments],
        input=given.encode() if isinstance(given, str) else given,
        capture_output=True,
        timeout=40,
        env={**os.environ, "OTTLA_BOOTSTRAP_SERVERS": server.bootstrap},
    )
    assert done.returncode == code, done.stderr.decode()
    assert b"Traceback" not in done.stderr
    return (done.stderr if code and not from_stdout else done.stdout).decode()


def test_topics_on_the_command_line(server: Serving) -> None:
    assert run(server, "topic", "create", "cli.a", "cli.b", "-p", "2", "-c", "retention.ms=60000") == "cli.a\tcreated\ncli.b\tcreated\n"
    assert "already exists" in run(server, "topic", "create", "cli.a", code=1)
    assert run(server, "topic", "create", "cli.a", "--if-not-exists") == "cli.a\texists\n"
    wait_until(lambda: "\ncli.a\t2\t1\t" in run(server, "topic", "list"))
    assert {"name": "cli.b", "partitions": 2, "replicas": 1, "internal": False}.items() <= next(
        one for one in json.loads(run(server, "topic", "list", "-o", "json")) if one["name"] == "cli.b"
    ).items()
    run(server, "topic", "alter", "cli.a", "-p", "3", "-c", "segment.ms=10000", "-d", "retention.ms")
    wait_until(lambda: "\ncli.a\t3\t1\t" in run(server, "topic", "list"))
    (described,) = json.loads(run(server, "topic", "describe", "cli.a", "-o", "json"))
    assert len(described["partitions"]) == 3
    # Apache Kafka also lists the dynamic settings of the cluster.
    assert described["configs"].get("segment.ms") == "10000" and "retention.ms" not in described["configs"]
    assert "topic nope does not exist" in run(server, "topic", "describe", "nope", code=1)
    lines = [line.split("\t")[:2] for line in run(server, "topic", "describe", "cli.a", "cli.b", "--no-headers").splitlines()]
    assert [line for line in lines if line[1] != "min.insync.replicas"] == [
        ["cli.a", "0"], ["cli.a", "1"], ["cli.a", "2"], ["cli.a", "segment.ms"], ["cli.b", "0"], ["cli.b", "1"], ["cli.b", "retention.ms"]
    ]  # fmt: skip
    made = json.loads(run(server, "topic", "create", "cli.a", "cli.json", "--if-not-exists", "-o", "json"))
    assert made == [{"name": "cli.a", "outcome": "exists", "error": None}, {"name": "cli.json", "outcome": "created", "error": None}]
    (refused,) = json.loads(run(server, "topic", "delete", "nope", "-y", "-o", "json", code=1, from_stdout=True))
    assert (refused["outcome"], refused["error"]["code"]) == (None, 3)
    assert run(server, "topic", "delete", "cli.a", "cli.b", "--yes") == "cli.a\tdeleted\ncli.b\tdeleted\n"
    assert run(server, "topic", "delete", "cli.a", "--if-exists", "--yes") == "cli.a\tnot there\n"


def test_produce_accepts_the_json_that_consume_prints(server: Serving, topic: str) -> None:
    run(server, "produce", topic, "-K", ":", "-H", "from=test", "-z", "zstd", "-p", "0", given="a:1\nb:2\nno key\n")
    run(server, "produce", topic, "-p", "0", given=b"\xff\xfe\n")
    printed = run(server, "consume", topic, "--from-beginning", "-e", "-o", "json")
    lines = [json.loads(line) for line in printed.splitlines()]
    assert [(line["key"], line["value"], line["headers"]) for line in lines] == [
        ("a", "1", [["from", "test"]]),
        ("b", "2", [["from", "test"]]),
        (None, "no key", [["from", "test"]]),
        (None, {"base64": "//4="}, []),
    ]
    run(server, "topic", "create", f"{topic}.2")
    run(server, "produce", f"{topic}.2", "-i", "json", given=printed)
    again = [json.loads(line) for line in run(server, "consume", f"{topic}.2", "-O", "0", "-e", "-o", "json").splitlines()]
    assert [{**line, "topic": ""} for line in again] == [{**line, "topic": ""} for line in lines]


def test_consume_starts_and_formats_as_requested(server: Serving, topic: str) -> None:
    run(
        server,
        "produce",
        topic,
        "-i",
        "json",
        given="".join(f'{{"value": "{index}", "partition": 0, "timestamp": {1_700_000_000_000 + index}}}\n' for index in range(10)),
    )
    assert run(server, "consume", topic, "-O", "-2", "-e") == "8\n9\n"
    assert (
        run(server, "consume", topic, "-O", "@1700000000007", "-n", "2", "-f", "%p/%o=%s(%S) %k%K %T%% %h;")
        == "0/7=7(1) -1 1700000000007% ;0/8=8(1) -1 1700000000008% ;"
    )
    assert run(server, "consume", topic, "-O", "end", "-e") == ""
    assert run(server, "consume", topic, "-O", "3", "-p", "0", "-n", "1") == "3\n"
    assert "partition 7 does not exist" in run(server, "consume", topic, "-p", "7", code=1)
    assert "unknown token %q" in run(server, "consume", topic, "-f", "%q", code=2)
    assert "yesterday" in run(server, "consume", topic, "-O", "yesterday", code=2)


def test_bad_lines_are_reported_by_number(server: Serving, topic: str) -> None:
    assert "line 2: no field 'value'" in run(server, "produce", topic, "-i", "json", given='{"value": 1}\n{"key": "x"}\n', code=1)
    assert "line 1: Object contains unknown field `vlaue`" in run(server, "produce", topic, "-i", "json", given='{"vlaue": 1}\n', code=1)


def test_an_unreachable_cluster_is_one_line_and_fast(server: Serving) -> None:
    address = f"127.0.0.1:{_free_port()}"
    started = time.monotonic()
    for command in (["topic", "list"], ["topic", "create", "x"], ["consume", "x"], ["produce", "x"]):
        message = run(server, *command, "-b", address, given="x\n", code=1)
        assert len(message.splitlines()) == 1
        assert f"connection refused by {address}" in message
    assert time.monotonic() - started < 60


def test_log_dump_reads_the_files_of_a_running_broker(server: Serving, topic: str) -> None:
    run(server, "produce", topic, "-K", ":", "-p", "0", given="k:one\nk:two\n")
    directory = server.data_dir / f"{topic}-0"
    (found,) = [path for path in server.data_dir.rglob(f"{topic}-0") if path.is_dir()] if not directory.is_dir() else [directory]
    rows = [json.loads(line) for line in run(server, "log", "dump", "--deep", "-o", "json", str(found)).splitlines()]
    batch = next(row for row in rows if row["file"].endswith(".log") and "record" not in row)
    assert (batch["offset"], batch["last"], batch["count"], batch["codec"], batch["sequence"]) == (0, 1, 2, "none", 0)
    assert [row["value"] for row in rows if "record" in row] == ["one", "two"]
    assert any("topic_id" in row for row in rows)
    text = run(server, "log", "dump", str(found / "00000000000000000000.log"))
    assert text.startswith("offset 0\tlast 1\tcount 2\t")


def test_log_dump_reports_damage_by_its_exit_code(server: Serving, tmp_path: Path) -> None:
    data = bytearray(build_batch([(1, b"k", b"v", ())]))
    whole, torn, damaged = (
        tmp_path / name for name in ("00000000000000000000.log", "00000000000000000001.log", "00000000000000000002.log")
    )
    whole.write_bytes(data)
    torn.write_bytes(data + data[:30])
    data[-1] ^= 1
    damaged.write_bytes(data)
    assert "count 1" in run(server, "log", "dump", str(whole))
    assert "tail incomplete batch" in run(server, "log", "dump", str(torn))
    run(server, "log", "dump", str(damaged), code=1)
    assert "expected a file of a log directory" in run(server, "log", "dump", __file__, code=1)


def test_doctor_reports_a_healthy_cluster_and_perf_measures_it(server: Serving, topic: str) -> None:
    checks = [word for check in ("listeners", "brokers", "versions", "controller") for word in ("--check", check)]
    report = json.loads(run(server, "doctor", *checks, "-o", "json"))
    assert (report["reachable"], report["findings"]) == (True, [])
    measured = json.loads(run(server, "perf", "produce", topic, "--num-records", "200", "--record-size", "100", "-o", "json"))
    assert measured["records"] == 200
