"""The producer against a real `ottla serve`: broker limits, and record order under threads and crashes."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, NewTopic, Producer
from ottla.wire.errors import InvalidRecord, MessageTooLarge
from serving import ELSEWHERE, Elsewhere, Serving

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving | Elsewhere]:
    if ELSEWHERE:
        yield Elsewhere()
        return
    with Serving(tmp_path_factory.mktemp("producer") / "data") as made:
        yield made


def create(server: Serving, name: str, partitions: int = 1, **configs: Any) -> str:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        settings = {key.replace("_", "."): str(value) for key, value in configs.items()}
        admin.create_topic(NewTopic(name, partitions, configs=settings))
    return name


def read(server: Serving, topic: str) -> list[Any]:
    """All records, by partition and offset."""
    with Consumer(bootstrap_servers=server.bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        left = sum(consumer.end_offsets(partitions).values())
        found: list[Any] = []
        while len(found) < left:
            found += consumer.poll(5000)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def test_batches_over_max_message_bytes_are_split_until_accepted(server: Serving) -> None:
    topic = create(server, "small", max_message_bytes=2000)
    with Producer(bootstrap_servers=server.bootstrap, linger_ms=50) as producer:
        deliveries = [producer.send(topic, b"%04d" % number * 25) for number in range(500)]
        too_large = producer.send(topic, b"x" * 3000)
        deliveries += [producer.send(topic, b"%04d" % number * 25) for number in range(500, 600)]
        places = [delivery.result(timeout_ms=20_000).offset for delivery in deliveries]
        with pytest.raises(MessageTooLarge):
            too_large.result(timeout_ms=20_000)
        own: Any = producer.metrics()["producer-metrics"]
        assert own["batch-split-total"] > 10
    assert [record.value for record in read(server, topic)] == [b"%04d" % number * 25 for number in range(600)]
    assert places == list(range(600))


def test_only_the_invalid_record_of_a_batch_fails_with_its_error(server: Serving) -> None:
    topic = create(server, "compacted", cleanup_policy="compact")
    with Producer(bootstrap_servers=server.bootstrap, linger_ms=100) as producer:
        good, bad = producer.send(topic, b"v", b"k"), producer.send(topic, b"v")
        with pytest.raises(InvalidRecord, match="key"):
            bad.result(timeout_ms=10_000)
        with pytest.raises(InvalidRecord, match="another record of the batch is invalid"):
            good.result(timeout_ms=10_000)
        assert producer.send(topic, b"v", b"k").result(timeout_ms=10_000).offset == 0


LEVELS = [("gzip", 1), ("gzip", 9), ("lz4", 1), ("lz4", 17), ("zstd", -5), ("zstd", 22)]


def test_every_level_of_every_codec_is_accepted_and_read_back(server: Serving) -> None:
    topic = create(server, "levels")
    value = b"".join(b"%d," % number for number in range(500))
    for codec, level in LEVELS:
        with Producer(bootstrap_servers=server.bootstrap, compression_type=codec, **{f"compression_{codec}_level": level}) as producer:  # type: ignore[arg-type]
            producer.send(topic, value)
    assert [record.value for record in read(server, topic)] == [value] * len(LEVELS)


def test_broker_crashes_neither_lose_duplicate_nor_reorder_records_of_threads(tmp_path: Path) -> None:
    threads, records = 6, 4000
    with Serving(tmp_path / "data") as server:
        topic = create(server, "crashes", partitions=4)
        halfway = threading.Barrier(threads + 1)
        with Producer(bootstrap_servers=server.bootstrap, buffer_memory=200_000, reconnect_backoff_max_ms=100) as producer:

            def send(number: int) -> None:
                for index in range(records):
                    if index == records // 2:
                        halfway.wait(60)
                    producer.send(topic, b"%d" % index, b"thread %d" % number)

            running = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
            for thread in running:
                thread.start()
            halfway.wait(60)
            server.kill()
            server.start()
            for thread in running:
                thread.join()
            producer.flush(60_000)
        found = defaultdict(list)
        for record in read(server, topic):
            found[record.key].append(int(record.value))
    assert found == {b"thread %d" % number: list(range(records)) for number in range(threads)}
