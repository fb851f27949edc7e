"""The seam to the log, against a real server, without Spark: ranges, gaps, loss, damage."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, NewTopic
from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.errors import ConnectionFailed
from ottla.records.errors import CorruptBatch
from ottla.spark.columns import arrow_schema, record_batch
from ottla.spark.log_access import Log, open_log
from ottla.spark.loss import DataLoss, Losses
from ottla.spark.offsets import EARLIEST, OffsetRange
from ottla.spark.positions import NoSuchData
from serving import Serving

from .conftest import Topic

pytestmark = [pytest.mark.server, pytest.mark.xdist_group("spark")]

Topics = Callable[..., Topic]


def read(log: Log, topic: Topic, start: int, end: int, **options: Any) -> list[tuple[int, bytes]]:
    given = {"with_headers": False, "losses": Losses(), "timeout_ms": 3000, **options}
    schema = arrow_schema(("offset", "value"))
    parts = log.read(OffsetRange(topic.name, 0, start, end), **given)
    return [tuple(row.values()) for part in parts for row in record_batch(part, schema, topic.name, 0).to_pylist()]


@pytest.fixture
def log(bootstrap: str) -> Log:
    return open_log(bootstrap, {})


def test_a_log_is_opened_once_in_a_process(bootstrap: str, log: Log) -> None:
    assert open_log(bootstrap, {}) is log
    assert open_log(bootstrap, {"client.id": "other"}) is not log


def test_a_property_that_the_client_does_not_have_is_refused(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match="did you mean client_id"):
        open_log(bootstrap, {"clientid": "x"})


def test_brokers_that_are_away_for_a_while_are_waited_for(tmp_path: Path) -> None:
    with Serving(tmp_path / "data") as server:
        with Admin(bootstrap_servers=server.bootstrap) as admin:
            admin.create_topic(NewTopic("t", 1))
        log = Log(server.bootstrap, {})
        assert log.partition_count("t") == 1
        server.kill()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(log.partition_count, "t")
            with pytest.raises(TimeoutError):
                asked.result(0.5)
            server.start()
            assert asked.result(60) == 1
        server.kill()
        with pytest.raises(ConnectionFailed, match="is the broker running"):
            Log(server.bootstrap, {"max.block.ms": "100"}).partition_count("t")


def test_a_range_begins_and_ends_within_batches(log: Log, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(10)])
    topic.add(*[b"%d" % number for number in range(10, 20)])
    assert read(log, topic, 7, 13) == [(number, b"%d" % number) for number in range(7, 13)]


def test_records_that_are_gone_are_loss_or_passed_over(log: Log, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(10)])
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.delete_records({(topic.name, 0): 6})
    with pytest.raises(DataLoss, match="offset 2 is gone, the log begins at 6"):
        read(log, topic, 2, 10)
    assert [offset for offset, _ in read(log, topic, 2, 10, losses=Losses("warn"))] == [6, 7, 8, 9]
    assert read(log, topic, 2, 5, losses=Losses("warn")) == []


def test_a_range_that_the_log_never_fills_ends_with_a_time_out(log: Log, a_topic: Topics) -> None:
    topic = a_topic()
    topic.add(b"only one")
    with pytest.raises(TimeoutError, match="nothing came from offset 1 on"):
        read(log, topic, 0, 2, timeout_ms=500)


def test_times_become_offsets(log: Log, a_topic: Topics) -> None:
    topic = a_topic()
    for time_ms in (1000, 2000):
        topic.add(b"x", timestamp_ms=time_ms)
    tp = TopicPartition(topic.name, 0)
    assert [log.offsets_at({tp: time_ms})[tp] for time_ms in (0, 1500, 2500)] == [0, 1, None]


def test_partitions_of_a_topic_that_is_not_there_are_refused_with_what_to_do(log: Log) -> None:
    with pytest.raises(NoSuchData, match="create it with: ottla topic create nowhere"):
        log.partition_count("nowhere")
    assert log.topics(["nowhere"]) == {}


def test_a_damaged_batch_is_refused_before_it_is_decoded(log: Log, a_topic: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_offsets_of_no_partition_ask_nobody(log: Log) -> None:
    assert log.end_offsets([], EARLIEST) == {}
    parts: Iterator[Any] = log.read(OffsetRange("t", 0, 5, 5), with_headers=False, losses=Losses(), timeout_ms=1)
    assert list(parts) == []
