"""A real server compacts: topics shrink, the files are Kafka's, and a kill at any time loses nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, pairwise
from pathlib import Path
from random import Random
from struct import Struct

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from plain_kafka import batch_at, batches, create_topics, fetch_all
from serving import Serving

pytestmark = pytest.mark.server

KEYS = 50
SETTINGS = {"log.cleaner.backoff.ms": "100", "log.flush.offset.checkpoint.interval.ms": "200"}
TOPIC = {"cleanup.policy": "compact", "internal.segment.bytes": "60000", "min.cleanable.dirty.ratio": "0.2", "file.delete.delay.ms": "200"}


def eventually(true: Callable[[], bool], what: str, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def size(directory: Path) -> int:
    """Bytes of a partition's segments."""
    total = 0
    for path in directory.glob("*.log"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


class Writer:
    """Writes numbers under few keys, some of them tombstones; knows what was acknowledged last for each key."""

    def __init__(self, server: Serving, topic: str) -> None:
        self.topic = topic
        self.numbers = count()
        self.random = Random(3)
        #: Key -> (offset, value).
        self.last: dict[bytes, tuple[int, bytes | None]] = {}
        self.producer = Producer({
            "bootstrap.servers": server.bootstrap, "enable.idempotence": True, "linger.ms": 5, "batch.num.messages": 40,
            "compression.type": "lz4", "reconnect.backoff.max.ms": 100, "log_level": 2,
        })  # fmt: skip

    def write(self, records: int) -> None:
        for _ in range(records):
            number = next(self.numbers)
            value = None if number % 11 == 0 else b"%06d" % number + self.random.randbytes(100)
            self.producer.produce(self.topic, value, b"key-%d" % (number * 7 % KEYS), 0, on_delivery=self._delivered)
        assert self.producer.flush(30) == 0

    def _delivered(self, error: object, message: object) -> None:
        assert error is None, error
        self.last[message.key()] = (message.offset(), message.value())  # type: ignore[attr-defined]


def last_of(found: object) -> dict[bytes | None, tuple[int, bytes | None]]:
    return {record.key: (record.offset, record.value) for batch in found for record in batch.records}  # type: ignore[attr-defined]


def living(table: dict[bytes | None, tuple[int, bytes | None]]) -> dict[bytes | None, tuple[int, bytes | None]]:
    """Without tombstones, which may be there still or not."""
    return {key: entry for key, entry in table.items() if entry[1] is not None}


def left_over(directory: Path) -> list[Path]:
    """Files of a compaction under way or just done. A stop may leave some; the next start removes them."""
    return [path for path in directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]


def test_a_compacted_topic_shrinks_and_its_files_are_what_kafka_would_read(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server:
        create_topics(server.address, {"t": 1}, TOPIC)
        directory = server.data_dir / "broker-1" / "t-0"
        writer = Writer(server, "t")
        writer.write(6_000)
        full = 6_000 * 100
        eventually(lambda: (directory / "holes-checkpoint").read_bytes() != b"0\n1\n0\n", "the topic is compacted")
        eventually(lambda: size(directory) < full / 4, "the topic shrinks")
        eventually(lambda: not left_over(directory), "what was replaced is removed")
        served = fetch_all(server.address, "t")
        assert living(last_of(served)) == living(dict(writer.last))  # type: ignore[arg-type]
        server.stop()
    before = -1
    end = 0
    for path in sorted(directory.glob("*.log")):
        data = path.read_bytes()
        found = list(batches(data))
        assert int(path.stem) >= end, "a segment begins behind the one before"
        for batch in found:
            assert batch.base_offset >= end and all(batch.base_offset <= record.offset <= batch.last_offset for record in batch.records)
            end = batch.last_offset + 1
            for record in batch.records:
                assert record.offset > before
                before = record.offset
        entries = list(Struct(">ii").iter_unpack(path.with_suffix(".index").read_bytes()))
        for relative, position in entries:
            assert batch_at(data, position).last_offset == int(path.stem) + relative
        assert all(a[1] < b[1] for a, b in pairwise(entries))
    files = [batch for path in sorted(directory.glob("*.log")) for batch in batches(path.read_bytes())]
    assert living(last_of(files)) == living(dict(writer.last))  # type: ignore[arg-type]


def test_kills_while_it_is_compacted_lose_nothing(tmp_path: Path) -> None:
    # Slow enough that most of the time a compaction is under way.
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "1000000", "log.cleaner.io.buffer.size": "16384"}
    with Serving(tmp_path / "data", settings=settings) as server:
        create_topics(server.address, {"t": 1}, TOPIC)
        directory = server.data_dir / "broker-1" / "t-0"
        writer = Writer(server, "t")
        caught = 0
        for turn in range(5):
            writer.write(1_500)
            deadline = time.monotonic() + 3
            while time.monotonic() < deadline and not list(directory.glob("*.cleaned")):
                time.sleep(0.002)
            caught += bool(list(directory.glob("*.cleaned")))
            time.sleep(0.03 * turn)
            server.kill()
            server.start()
            table = last_of(fetch_all(server.address, "t"))
            assert living(table) == living(dict(writer.last))  # type: ignore[arg-type]
        assert caught >= 2, "kills met compactions"
        eventually(lambda: size(directory) < 5 * 1_500 * 100 / 3, "the topic shrinks in the end")
        writer.write(100)
        assert living(last_of(fetch_all(server.address, "t"))) == living(dict(writer.last))  # type: ignore[arg-type]


def test_commits_of_a_group_are_compacted_and_a_kill_does_not_take_back_the_last_one(tmp_path: Path) -> None:
    settings = {
        **SETTINGS,
        "offsets.topic.num.partitions": "1",
        "offsets.topic.segment.bytes": "8000",
        "group.initial.rebalance.delay.ms": "0",
    }
    with Serving(tmp_path / "data", settings=settings) as server:
        create_topics(server.address, {"t": 2})
        directory = server.data_dir / "broker-1" / "__consumer_offsets-0"
        consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "g", "log_level": 2})
        for number in range(1, 401):
            done = consumer.commit(offsets=[TopicPartition("t", p, number * 10 + p, "m" * 50) for p in (0, 1)], asynchronous=False)
            assert done is not None and all(place.error is None for place in done)
        eventually(lambda: size(directory) < 10_000, "the offsets topic is compacted")
        for _ in range(2):
            server.kill()
            server.start()
            found = consumer.committed([TopicPartition("t", p) for p in (0, 1)], timeout=20)
            assert [place.offset for place in found] == [4000, 4001]
        consumer.close()


def test_a_stop_while_a_compaction_is_under_way_is_quick_and_clean(tmp_path: Path) -> None:
    settings = {**SETTINGS, "log.cleaner.io.max.bytes.per.second": "100000", "log.cleaner.io.buffer.size": "8192"}
    with Serving(tmp_path / "data", settings=settings) as server:
        create_topics(server.address, {"t": 1}, TOPIC)
        directory = server.data_dir / "broker-1" / "t-0"
        writer = Writer(server, "t")
        writer.write(3_000)
        eventually(lambda: bool(list(directory.glob("*.cleaned"))), "a compaction begins to write")
        server.stop()
        assert (directory.parent / ".kafka_cleanshutdown").exists()
        assert size(directory) > 250_000, "it was too slow to be done"
        server.start()
        assert living(last_of(fetch_all(server.address, "t"))) == living(dict(writer.last))  # type: ignore[arg-type]


def test_a_disk_failure_during_a_compaction_makes_its_directory_offline(tmp_path: Path) -> None:
    with Serving(tmp_path / "data", settings=SETTINGS) as server:
        create_topics(server.address, {"t": 1}, TOPIC)
        # No file can be made of this name: the compaction meets an error that no other user of the directory does.
        (server.data_dir / "broker-1" / "t-0" / f"{0:020d}.log.cleaned").mkdir()
        producer = Producer({"bootstrap.servers": server.bootstrap, "message.timeout.ms": 3000, "batch.num.messages": 40, "log_level": 0})
        for number in range(3_000):
            producer.produce("t", b"x" * 100, b"%d" % (number % 5))
        eventually(lambda: producer.poll(0.01) is not None and not server.alive, "a broker without a directory ends")
        assert "log.cleaned" in server.logs() and "Traceback" not in server.logs()
