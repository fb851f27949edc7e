"""The source's client against a real server, without Spark: ranges, gaps, data loss, corruption."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, NewTopic
from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.base.options import ConfigError
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.records.errors import CorruptBatch
from ottla.spark.source import log_client
from ottla.spark.source.data_loss import DataLoss, DataLossPolicy
from ottla.spark.source.log_client import LogClient, open_log_client
from ottla.spark.source.offset_ranges import EARLIEST, OffsetRange
from ottla.spark.source.rows import arrow_schema, record_batch
from ottla.spark.source.starting_offsets import NoSuchData
from ottla.wire.errors import ClusterAuthorizationFailed, LeaderNotAvailable, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.wire.messages import MetadataRequest, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic
from serving import Serving

from .conftest import Topic

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("spark")]

Topics = Callable[..., Topic]


def read(log: LogClient, topic: Topic, start: int, end: int, **options: Any) -> list[tuple[int, bytes]]:
    given = {"with_headers": False, "loss_policy": DataLossPolicy(), "timeout_ms": 3000, **options}
    schema = arrow_schema(("offset", "value"))
    parts = log.read(OffsetRange(topic.name, 0, start, end), **given)
    return [tuple(row.values()) for part in parts for row in record_batch(part, schema, topic.name, 0).to_pylist()]


@pytest.fixture
def log(bootstrap: str) -> LogClient:
    return open_log_client(bootstrap, {})


def test_a_log_is_opened_once_per_process(bootstrap: str, log: LogClient) -> None:
    assert open_log_client(bootstrap, {}) is log
    assert open_log_client(bootstrap, {"client.id": "other"}) is not log


def test_an_unknown_client_property_is_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match="did you mean client_id"):
        open_log_client(bootstrap, {"clientid": "x"})


def test_temporarily_unreachable_brokers_are_retried(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("t", 1))
        with closing(LogClient(server.bootstrap, {})) as log, ThreadPoolExecutor(1) as pool:
            assert log.partition_count("t") == 1
            server.kill()
            asked = pool.submit(log.partition_count, "t")
            with pytest.raises(TimeoutError):
                asked.result(0.5)
            server.start()
            assert asked.result(60) == 1
        server.kill()
        with (
            closing(LogClient(server.bootstrap, {"max.block.ms": "100"})) as log,
            pytest.raises(ConnectionFailed, match="is the broker running"),
        ):
            log.partition_count("t")


def test_a_range_begins_and_ends_within_batches(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(10)])
    topic.add(*[b"%d" % number for number in range(10, 20)])
    assert read(log, topic, 7, 13) == [(number, b"%d" % number) for number in range(7, 13)]


def test_deleted_records_are_data_loss_or_skipped(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(10)])
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.delete_records({(topic.name, 0): 6})
    with pytest.raises(DataLoss, match="offset 2 is gone, the log begins at 6"):
        read(log, topic, 2, 10)
    assert [offset for offset, _ in read(log, topic, 2, 10, loss_policy=DataLossPolicy("warn"))] == [6, 7, 8, 9]
    assert read(log, topic, 2, 5, loss_policy=DataLossPolicy("warn")) == []


def test_a_range_that_the_log_never_fills_times_out(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b"only one")
    with pytest.raises(TimeoutError, match="nothing came from offset 1 on"):
        read(log, topic, 0, 2, timeout_ms=500)


def test_brokers_without_topic_ids_are_queried_once(log: LogClient, a_topic: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, ask, asked = a_topic(), log._metadata, []

    async def without_ids(names: Any) -> Any:
        asked.append(names)
        response = await ask(names)
        for one in response.topics:
            one.topic_id = NO_TOPIC_ID
        return response

    monkeypatch.setattr(log, "_metadata", without_ids)
    for _ in range(3):
        assert log.topic_ids(frozenset({topic.name})) == {}
    assert asked == [[topic.name]]


def test_the_size_per_offset_is_computed_from_the_brokers_directories(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic(partitions=3)
    topic.add(*[b"x" * 1000] * 50, partition=0)
    topic.add(*[b"x"] * 50, partition=1)
    sizes = log.bytes_per_offset([TopicPartition(topic.name, number) for number in range(3)])
    assert set(sizes) == {TopicPartition(topic.name, 0), TopicPartition(topic.name, 1)}, "an empty partition has no size"
    assert sizes[TopicPartition(topic.name, 0)] > 1000 > 500 > sizes[TopicPartition(topic.name, 1)] > 1


def test_without_directories_sizes_are_unknown(log: LogClient, a_topic: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = a_topic()
    topic.add(b"x")

    async def refuse(*_: object, **__: object) -> Any:
        raise ClusterAuthorizationFailed("not yours")

    monkeypatch.setattr(log._admin(), "describe_log_dirs", refuse)
    assert log.bytes_per_offset([TopicPartition(topic.name, 0)]) == {}


def test_committed_offsets_of_a_group_can_be_read(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic(partitions=2)
    here, there = TopicPartition(topic.name, 0), TopicPartition(topic.name, 1)
    log.commit(f"g-{topic.name}", {here: 7})
    assert log.committed(f"g-{topic.name}", [here, there]) == {here: 7, there: None}


def test_a_range_of_a_recreated_topic_is_data_loss(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b"old")
    topic_id = log.topic_ids(frozenset([topic.name]))[topic.name]
    wanted = OffsetRange(topic.name, 0, 0, 1, topic_id)
    assert len(list(log.read(wanted, with_headers=False, loss_policy=DataLossPolicy(), timeout_ms=3000))) == 1
    topic.delete()
    with pytest.raises(DataLoss, match="its topic was deleted"):
        list(log.read(wanted, with_headers=False, loss_policy=DataLossPolicy(), timeout_ms=3000))
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.create_topic(NewTopic(topic.name, 1))
    topic.add(b"new")
    with pytest.raises(DataLoss, match=f"created again .its id was {topic_id}"):
        list(log.read(wanted, with_headers=False, loss_policy=DataLossPolicy(), timeout_ms=3000))
    assert list(log.read(wanted, with_headers=False, loss_policy=DataLossPolicy("skip"), timeout_ms=3000)) == []


def test_gaps_of_compaction_and_transactions_are_not_data_loss(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def batch(base_offset: int, value: bytes, **fields: Any) -> bytes:
        return bytes(build_batch([(0, b"k", value, ())], base_offset=base_offset, **fields))

    transaction = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    marker = build_batch([(0, bytes(4), bytes(6), ())], base_offset=22, control=True, **{**transaction, "base_sequence": -1})  # type: ignore[arg-type]
    # Compaction has left 4 and 9 of the first ten records; 20 was aborted, 22 is a marker, and 23 to 29 are missing.
    kept = [batch(4, b"four"), batch(9, b"nine"), batch(20, b"aborted", **transaction), bytes(marker), batch(30, b"thirty")]

    async def fetch(tp: TopicPartition, position: int) -> RawFetch:
        later = [one for one in kept if parse_header(one).last_offset >= position]
        return RawFetch(memoryview(b"".join(later)), 31, 0, 31, ((7, 20),))

    log = open_log_client(bootstrap, {"isolation.level": "read_committed"})
    monkeypatch.setattr(log, "_fetch_raw", fetch)
    schema = arrow_schema(("offset", "value"))

    def rows(start: int, end: int) -> list[tuple[int, bytes]]:
        parts = log.read(OffsetRange("t", 0, start, end), with_headers=False, loss_policy=DataLossPolicy("fail"), timeout_ms=500)
        return [tuple(row.values()) for part in parts for row in record_batch(part, schema, "t", 0).to_pylist()]

    assert rows(0, 31) == [(4, b"four"), (9, b"nine"), (30, b"thirty")]
    assert rows(0, 8) == [(4, b"four")]
    assert rows(21, 29) == []


def test_timestamps_are_resolved_to_offsets(log: LogClient, a_topic: Topics) -> None:
    topic = a_topic()
    for time_ms in (1000, 2000):
        topic.add(b"x", timestamp_ms=time_ms)
    tp = TopicPartition(topic.name, 0)
    assert [log.offsets_at({tp: time_ms})[tp] for time_ms in (0, 1500, 2500)] == [0, 1, None]


def test_partitions_of_a_missing_topic_are_an_error_with_advice(log: LogClient) -> None:
    with pytest.raises(NoSuchData, match="create it with: ottla topic create nowhere"):
        log.partition_count("nowhere")
    assert log.topics(["nowhere"]) == {}


def test_a_damaged_batch_is_refused_before_it_is_decoded(log: LogClient, a_topic: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = a_topic()
    topic.add(b"precious")
    with Consumer(bootstrap_servers=topic.bootstrap) as consumer:
        raw = consumer.fetch_raw((topic.name, 0), 0)
    damaged = bytearray(raw.records)
    damaged[-2] ^= 1

    async def fetch(*_: object) -> Any:
        return raw._replace(records=memoryview(damaged))

    monkeypatch.setattr(log, "_fetch_raw", fetch)
    with pytest.raises(CorruptBatch, match="the batch at offset 0 is damaged"):
        read(log, topic, 0, 1)


def test_offsets_of_no_partition_need_no_request(log: LogClient) -> None:
    assert log.end_offsets([], EARLIEST) == {}
    parts: Iterator[Any] = log.read(OffsetRange("t", 0, 5, 5), with_headers=False, loss_policy=DataLossPolicy(), timeout_ms=1)
    assert list(parts) == []


class MetadataResponses:
    """Brokers that answer metadata requests with these topics, repeating the last: (name, error code, partitions)."""

    def __init__(self, *answers: tuple[str, int, int]) -> None:
        self.answers = list(answers)

    async def ask_any(self, request: MetadataRequest, at_least: int) -> MetadataResponse:
        name, code, count = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        partitions = [MetadataResponsePartition(partition_index=index) for index in range(count)]
        topic = MetadataResponseTopic(name=name, error_code=code, topic_id=b"\1" * 16, partitions=partitions)
        return MetadataResponse(topics=[topic])


def answered(*answers: tuple[str, int, int]) -> LogClient:
    log = LogClient("127.0.0.1:1", {})
    log._network = MetadataResponses(*answers)  # type: ignore[assignment]
    return log


def test_a_known_topic_is_missing_only_after_repeated_responses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "GONE_S", 0.3)
    monkeypatch.setattr(log_client, "RETRY_S", 0.01)
    gone = ("t", UnknownTopicOrPartition.code, 0)
    log = answered(("t", 0, 2), gone, gone, ("t", 0, 2), gone)
    assert log.topics(["t"]) == {"t": 2}
    assert log.topics(["t"]) == {"t": 2}, "the restarted broker does not know the producer"
    assert log.topics(["t"]) == {}
    assert answered(("t", LeaderNotAvailable.code, 0), ("t", 0, 2)).topics(["t"]) == {"t": 2}
    with pytest.raises(TopicAuthorizationFailed):
        answered(("t", TopicAuthorizationFailed.code, 0)).topics(["t"])
