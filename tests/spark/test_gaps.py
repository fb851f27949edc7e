"""Offsets without a record in real topics: gaps of compaction and transactions are not data loss, deleted records are."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, NewTopic, Producer
from ottla.records.build import build_batch
from ottla.records.read import marker
from plain_kafka import fetch_all
from serving import Serving

from .conftest import Topic
from .test_source import refusal

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Row = tuple[int, bytes | None]
PATIENCE_S = 60.0
WRITTEN = 3_000
KEYS = 20
#: The cleaner runs ten times a second; a segment has about 150 records.
QUICK_CLEANER = {"log.cleaner.backoff.ms": "100"}
COMPACTED = {"cleanup.policy": "compact", "internal.segment.bytes": "20000", "min.cleanable.dirty.ratio": "0.2"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A broker of this module, which compacts at once."""
    with Serving(tmp_path_factory.mktemp("gaps") / "data", settings=QUICK_CLEANER) as running:
        yield running


def read(spark: Any, server: Serving, topic: str, **options: str) -> list[Row]:
    """Records that Spark reads from a topic with one partition, with failOnDataLoss."""
    reader = spark.read.format("ottla").option("bootstrap.servers", server.bootstrap).option("subscribe", topic)
    rows = reader.options(**{"onDataLoss": "fail", **options}).load().select("offset", "value").collect()
    return sorted((row.offset, row.value and bytes(row.value)) for row in rows)


def held(server: Serving, topic: str) -> list[Row]:
    """The records of the broker, read independently of Spark."""
    return [(record.offset, record.value) for batch in fetch_all(server.address, topic) for record in batch.records]


def test_compacted_records_are_not_data_loss(spark: Any, server: Serving, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic("compacted", 1, configs=COMPACTED))
    written: dict[int, bytes] = {}
    with Producer(bootstrap_servers=server.bootstrap, batch_size=4_000) as producer:
        sent = [(b"%04d" % n * 25, producer.send("compacted", b"%04d" % n * 25, key=b"%d" % (n % KEYS))) for n in range(WRITTEN)]
        for value, delivery in sent:
            written[delivery.result().offset] = value
    deadline = time.monotonic() + PATIENCE_S
    while len(before := held(server, "compacted")) > WRITTEN / 4:
        assert time.monotonic() < deadline, "the broker compacts"
        time.sleep(0.05)
    assert before[0][0] > 1, "the topic begins with a gap, and its log with 0"
    reporting = {"dataLossReportTo": str(tmp_path / "losses")}
    whole = read(spark, server, "compacted", maxRecordsPerPartition="500", **reporting)
    begun_in_a_gap = read(
        spark, server, "compacted", startingOffsets='{"compacted": {"0": 1}}', endingOffsets='{"compacted": {"0": 900}}', **reporting
    )
    after = held(server, "compacted")
    # Compaction can remove more records at any time.
    assert set(after) <= set(whole) <= set(before)
    assert {one for one in after if one[0] < 900} <= set(begun_in_a_gap) <= {one for one in before if one[0] < 900}
    assert [written[offset] for offset, _ in whole] == [value for _, value in whole]
    assert {offset for offset, _ in whole} >= set(range(WRITTEN - KEYS, WRITTEN)), "the last value of each key is there"
    assert not (tmp_path / "losses").exists()


def a_log_with_transactions() -> bytes:
    """The log file of a broker with transactions: after one record three are aborted, two committed, one written alone, one aborted.

    The log ends with a marker.
    """

    def batch(base_offset: int, *values: bytes, producer_id: int = -1) -> bytes:
        of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": base_offset, "transactional": True}
        return bytes(build_batch([(0, b"k", value, ()) for value in values], base_offset=base_offset, **of if producer_id > 0 else {}))  # type: ignore[arg-type]

    def end(offset: int, producer_id: int, *, commit: bool) -> bytes:
        of = {"producer_id": producer_id, "producer_epoch": 0, "transactional": True, "control": True}
        return bytes(build_batch([(0, *marker(int(commit), 0), ())], base_offset=offset, **of))  # type: ignore[arg-type]

    return b"".join([
        batch(0, b"first"),
        batch(1, b"x", b"x", b"x", producer_id=7), end(4, 7, commit=False),
        batch(5, b"five", b"six", producer_id=8), end(7, 8, commit=True),
        batch(8, b"eight"),
        batch(9, b"x", producer_id=9), end(10, 9, commit=False),
    ])  # fmt: skip


def test_aborted_records_and_transaction_markers_are_not_data_loss(spark: Any, server: Serving, tmp_path: Path) -> None:
    with Admin(bootstrap_servers=server.bootstrap) as admin:
        admin.create_topic(NewTopic("transactions", 1, configs={"retention.ms": "-1"}))
    # Killed instead of stopped, so that the broker recovers from the file.
    server.kill()
    (server.data_dir / "broker-1" / "transactions-0" / f"{0:020d}.log").write_bytes(a_log_with_transactions())
    server.start()
    reporting = {"dataLossReportTo": str(tmp_path / "losses")}
    committed = [(0, b"first"), (5, b"five"), (6, b"six"), (8, b"eight")]
    isolation = {"kafka.isolation.level": "read_uncommitted"}
    assert read(spark, server, "transactions", **reporting) == committed
    # Some tasks read only markers.
    assert read(spark, server, "transactions", maxRecordsPerPartition="1", **reporting) == committed
    everything = sorted([*committed, *[(offset, b"x") for offset in (1, 2, 3, 9)]])
    assert read(spark, server, "transactions", **isolation, **reporting) == everything
    assert not (tmp_path / "losses").exists()


def deleted_before(topic: Topic, offset: int) -> None:
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.delete_records({(topic.name, 0): offset})


def test_records_deleted_between_planning_and_reading_are_loss(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(8)])
    planned = {
        policy: topic.source(spark.read, onDataLoss=policy, dataLossReportTo=str(tmp_path / policy)).load().select("offset").rdd
        for policy in ("fail", "skip")
    }
    assert [rdd.getNumPartitions() for rdd in planned.values()] == [1, 1], "Spark has planned its tasks"
    deleted_before(topic, 5)
    assert f"{topic.name}-0 [0, 8): offset 0 is gone, the log begins at 5" in refusal(planned["fail"].collect)
    assert [row.offset for row in planned["skip"].collect()] == [5, 6, 7]
    for policy in planned:
        (report, *_) = map(json.loads, (tmp_path / policy).read_text().splitlines())
        assert [report[name] for name in ("cause", "topic", "partition", "lost_from", "lost_to", "earliest")] == [
            "deleted", topic.name, 0, 0, 5, 5,
        ]  # fmt: skip


def test_a_start_before_the_log_start_is_data_loss(spark: Any, a_topic: Callable[..., Topic]) -> None:
    topic = a_topic()
    topic.add(*[b"%d" % number for number in range(8)])
    deleted_before(topic, 5)
    start = json.dumps({topic.name: {"0": 2}})
    message = refusal(topic.source(spark.read, startingOffsets=start, onDataLoss="fail").load().count)
    assert f"{topic.name}-0 should be read from 2 but begins at 5" in message
    assert topic.source(spark.read, onDataLoss="fail").load().count() == 3, "earliest is the log start"
