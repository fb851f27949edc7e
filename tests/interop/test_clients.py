"""confluent-kafka, kafka-python and aiokafka write and read as their users would; each reads what the others wrote."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count, pairwise
from random import Random

import confluent_kafka
import pytest
from client_adapters import ADAPTERS, TODAY_MS, ClientAdapter, Refused, Sent

from plain_kafka import CODECS, Record, api_versions, fetch_all

pytestmark = [pytest.mark.interop, pytest.mark.server]

NOW_MS = TODAY_MS
MESSAGE_BYTES_MAX = 1_048_588
MESSAGE_TOO_LARGE = 10
FIND_COORDINATOR = 10
each_face = pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.name)


def sample(adapter: ClientAdapter) -> list[Sent]:
    """Every form of key, value, headers and timestamp that the client can write."""
    headers = (("trace", b"\x00\xff"), ("trace", b"again"), ("empty", b""), ("größe", "日本".encode()), ("", b"nameless"))
    shapes = [
        Sent(b"key", b"value", headers, NOW_MS),
        Sent(None, b"no key", (), NOW_MS + 1),
        Sent(b"no value", None, (("null", None),), NOW_MS - 1),
        Sent(None, None, (), 1_234),
        Sent(b"", b"", (("a", b"1"),), NOW_MS - 86_400_000),
        Sent(bytes(range(256)), bytes(range(255, -1, -1)), (), NOW_MS),
    ]
    random = Random(5)
    shapes += [Sent(b"k%d" % (i % 7), random.randbytes(random.randrange(60)) * 9, (), NOW_MS + i) for i in range(300)]
    return [record for record in shapes if adapter.can_write(record)]


def expected(sent: list[Sent], first_offset: int = 0) -> list[Record]:
    return [Record(first_offset + i, r.timestamp_ms, r.key, r.value, r.headers) for i, r in enumerate(sent)]


def address(bootstrap: str) -> tuple[str, int]:
    host, _, port = bootstrap.split(",")[0].rpartition(":")
    return host, int(port)


@pytest.mark.parametrize("codec", CODECS)
@each_face
def test_every_client_reads_unchanged_what_another_wrote(
    adapter: ClientAdapter, codec: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic, sent = new_topic(), sample(adapter)
    assert adapter.produce(bootstrap, topic, sent, codec=codec) == list(range(len(sent)))
    stored = fetch_all(address(bootstrap), topic)
    found = {batch.codec for batch in stored}
    if codec == "lz4" and adapter.name == "confluent-kafka" and FIND_COORDINATOR not in api_versions(address(bootstrap)):
        assert found == {"none"}, "librdkafka uses LZ4 only if the broker supports FindCoordinator"
        codec = "none"
    assert codec in found and found <= {codec, "none"}, "batches are stored as the client compressed them, if compression made them smaller"
    assert [record for batch in stored for record in batch.records] == expected(sent)
    # One reader each, chosen so that every pair of clients occurs with some codec and each client reads every codec.
    reader = ADAPTERS[(ADAPTERS.index(adapter) + CODECS.index(codec)) % len(ADAPTERS)]
    assert reader.consume(bootstrap, topic, len(sent)) == expected(sent)


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@each_face
def test_records_are_written_with_every_acks_setting(
    adapter: ClientAdapter, acks: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic, sent = new_topic(), sample(adapter)
    adapter.produce(bootstrap, topic, sent, acks=acks)
    assert adapter.consume(bootstrap, topic, len(sent)) == expected(sent)


@each_face
def test_an_idempotent_producer_numbers_its_batches(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, sent = new_topic(), sample(adapter)
    for number in range(2):
        adapter.produce(bootstrap, topic, sent, idempotent=True, codec="lz4")
        assert adapter.watermarks(bootstrap, topic) == (0, (number + 1) * len(sent))
    stored = fetch_all(address(bootstrap), topic)
    producers = [batch.producer_id for batch in stored]
    assert min(producers) >= 0 and len(set(producers)) == 2, "each producer got an id of its own"
    for producer in set(producers):
        own = [batch for batch in stored if batch.producer_id == producer]
        assert own[0].base_sequence == 0
        assert all(b.base_sequence == a.base_sequence + a.last_offset_delta + 1 for a, b in pairwise(own)), "sequences have no gap"


@each_face
def test_a_message_just_below_the_limit_is_written_and_one_above_refused(
    adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic()
    room = MESSAGE_BYTES_MAX - 100
    just = Sent(b"k", Random(1).randbytes(room))
    assert adapter.produce(bootstrap, topic, [just], request_bytes_max=4 << 20) == [0]
    assert adapter.consume(bootstrap, topic, 1) == expected([just])
    with pytest.raises(Refused) as refusal:
        adapter.produce(bootstrap, topic, [Sent(b"k", Random(2).randbytes(MESSAGE_BYTES_MAX))], request_bytes_max=4 << 20)
    assert refusal.value.code == MESSAGE_TOO_LARGE
    assert adapter.watermarks(bootstrap, topic) == (0, 1), "no record of the refused batch was written"


@each_face
def test_the_limit_of_a_topic_overrides_that_of_the_broker(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(max_message_bytes=5_000_000)
    big = Sent(None, Random(3).randbytes(4_900_000))
    assert adapter.produce(bootstrap, topic, [big], request_bytes_max=6 << 20) == [0]
    assert adapter.consume(bootstrap, topic, 1) == expected([big])


@each_face
def test_megabytes_in_several_partitions_arrive_complete(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(partitions=3)
    random = Random(adapter.name)
    written = {partition: [Sent(b"%d" % i, random.randbytes(90_000)) for i in range(60)] for partition in range(3)}
    for partition, sent in written.items():
        adapter.produce(bootstrap, topic, sent, partition=partition, codec="none" if partition else "snappy")
    for partition, sent in written.items():
        read = adapter.consume(bootstrap, topic, len(sent), partition=partition)
        assert digest(r.value for r in read) == digest(r.value for r in sent)
        assert [r.offset for r in read] == list(range(len(sent)))


def test_one_large_response_carries_several_partitions(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """librdkafka requests all of it at once, which is far more than one socket write accepts."""
    topic, partitions, count = new_topic(partitions=3), range(3), 80
    random = Random(6)
    written = {p: [Sent(b"%d" % i, random.randbytes(100_000)) for i in range(count)] for p in partitions}
    for partition, sent in written.items():
        ADAPTERS[0].produce(bootstrap, topic, sent, partition=partition)
    settings = {
        "bootstrap.servers": bootstrap, "group.id": "assigned-only", "enable.auto.commit": False,
        "fetch.message.max.bytes": 16 << 20, "fetch.max.bytes": 50 << 20, "fetch.min.bytes": 20 << 20, "fetch.wait.max.ms": 1_000,
    }  # fmt: skip
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in partitions])
    found: dict[int, list[bytes | None]] = {partition: [] for partition in partitions}
    deadline = time.monotonic() + 30
    while sum(map(len, found.values())) < count * len(partitions) and time.monotonic() < deadline:
        for message in consumer.consume(100, 0.2):
            assert message.error() is None, message.error()
            found[message.partition()].append(message.value())
    consumer.close()
    assert {p: digest(iter(values)) for p, values in found.items()} == {p: digest(r.value for r in sent) for p, sent in written.items()}


def digest(values: Iterator[bytes | None]) -> str:
    return hashlib.sha256(b"".join(value or b"" for value in values)).hexdigest()


@each_face
def test_reading_can_start_at_any_offset_and_time(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic()
    sent = [Sent(None, b"%d" % i, (), NOW_MS + 10 * i) for i in range(500)]
    for first in range(0, 500, 100):
        adapter.produce(bootstrap, topic, sent[first : first + 100], codec=CODECS[first // 100])
    assert adapter.watermarks(bootstrap, topic) == (0, 500)
    for offset in (0, 1, 99, 100, 250, 499):
        assert adapter.consume(bootstrap, topic, 1, offset=offset)[0].value == b"%d" % offset
    assert adapter.offset_at(bootstrap, topic, 0) == 0
    assert adapter.offset_at(bootstrap, topic, NOW_MS + 2500) == 250, "the record of that time itself"
    assert adapter.offset_at(bootstrap, topic, NOW_MS + 2501) == 251, "between two, the later one"
    assert adapter.offset_at(bootstrap, topic, NOW_MS + 4990) == 499
    assert adapter.offset_at(bootstrap, topic, NOW_MS + 4991) is None, "no record after the last one"


@each_face
def test_reading_keeps_up_with_writing(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, sent, rounds = new_topic(), sample(adapter)[:100], 5
    failure: list[BaseException] = []

    def write() -> None:
        try:
            for number in range(rounds):
                adapter.produce(bootstrap, topic, sent, codec=CODECS[number])
        except BaseException as error:
            failure.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    read = adapter.consume(bootstrap, topic, rounds * len(sent))
    writer.join()
    assert not failure, failure
    assert [record.offset for record in read] == list(range(rounds * len(sent)))
    assert [record.value for record in read] == [record.value for record in sent] * rounds


@each_face
def test_log_append_time_replaces_the_producers_time(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(message_timestamp_type="LogAppendTime")
    before_ms = time.time_ns() // 1_000_000
    adapter.produce(bootstrap, topic, [Sent(None, b"%d" % i, (), 1_000) for i in range(3)], codec="gzip")
    times = {record.timestamp_ms for record in adapter.consume(bootstrap, topic, 3)}
    assert len(times) == 1 and before_ms <= min(times) <= time.time_ns() // 1_000_000


@each_face
def test_a_timestamp_too_far_ahead_is_refused(adapter: ClientAdapter, bootstrap: str, new_topic: Callable[..., str]) -> None:
    invalid_timestamp = 32
    with pytest.raises(Refused) as refusal:
        adapter.produce(bootstrap, new_topic(), [Sent(None, b"tomorrow", (), NOW_MS + 86_400_000)])
    assert refusal.value.code == invalid_timestamp


def test_two_clients_writing_at_once_share_one_order(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic, numbers, per_face = new_topic(), count(), 200
    threads = [
        threading.Thread(target=adapter.produce, args=(bootstrap, topic, [Sent(adapter.name.encode(), b"%d" % i) for i in range(per_face)]))
        for adapter in ADAPTERS
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    read = ADAPTERS[0].consume(bootstrap, topic, per_face * len(ADAPTERS))
    assert all(record.offset == next(numbers) for record in read) and len(read) == per_face * len(ADAPTERS)
    for adapter in ADAPTERS:
        assert [r.value for r in read if r.key == adapter.name.encode()] == [b"%d" % i for i in range(per_face)]
