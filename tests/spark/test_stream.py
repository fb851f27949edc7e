"""Streaming reads: triggers, restarts, limits, topics that change."""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyspark.errors import StreamingQueryException

from ottla import Admin, NewPartitions, NewTopic
from ottla.spark.pipeline.retryable_errors import full_text, is_retryable
from ottla.spark.source.progress_group import publish_progress

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]
PATIENCE_S = 60.0
#: The module of the Python process that runs a query's source.
HOLDER = "pyspark.sql.streaming.python_streaming_source_runner"


class RecordedBatches:
    """Batches of a query, in their order."""

    def __init__(self) -> None:
        self.batches: list[list[bytes]] = []

    def __call__(self, frame: Any, number: int) -> None:
        self.batches.append([bytes(row.value) for row in frame.orderBy("partition", "offset").collect()])

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.batches for value in batch]


def available(frame: Any, checkpoint: str) -> RecordedBatches:
    """Runs a query over the current records."""
    seen = RecordedBatches()
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    assert query.awaitTermination(PATIENCE_S), "the query ends by itself"
    return seen


def wait_until(holds: Callable[[], bool], query: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert query.exception() is None, query.exception()
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, end)]


def test_a_restart_resumes_where_the_last_run_ended(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic = a_topic()
    topic.add(*numbers(0, 5))
    frame = topic.source(spark.readStream, startingOffsets="earliest").load()
    assert available(frame, checkpoint).values == numbers(0, 5)
    topic.add(*numbers(5, 9))
    assert available(frame, checkpoint).values == numbers(5, 9)
    assert available(frame, checkpoint).batches == []


def test_a_limit_splits_the_backlog_into_batches(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic = a_topic(partitions=2)
    topic.add(*numbers(0, 30), partition=0)
    topic.add(*numbers(30, 40), partition=1)
    seen = available(topic.source(spark.readStream, startingOffsets="earliest", maxOffsetsPerTrigger="20").load(), checkpoint)
    assert [len(batch) for batch in seen.batches] == [20, 20]
    assert sorted(map(int, seen.values)) == list(range(40))


def test_a_running_query_reads_new_records_and_added_partitions(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic, seen = a_topic(), RecordedBatches()
    topic.add(b"before")
    frame = topic.source(spark.readStream).load()
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: query.lastProgress is not None, query)
        topic.add(*numbers(0, 3))
        wait_until(lambda: seen.values == numbers(0, 3), query)
        with Admin(bootstrap_servers=topic.bootstrap) as admin:
            admin.create_partitions({topic.name: NewPartitions(2)})
        topic.add(b"new", partition=1)
        wait_until(lambda: seen.values == [*numbers(0, 3), b"new"], query)
        # Spark reports a batch after its sink has returned.
        wait_until(lambda: json.loads(query.lastProgress["sources"][0]["endOffset"])[topic.name] == {"0": 4, "1": 1}, query)
    finally:
        query.stop()


def test_a_query_waits_for_the_minimum_number_of_records(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic, seen = a_topic(), RecordedBatches()
    topic.add(b"first")
    frame = topic.source(spark.readStream, startingOffsets="earliest", minOffsetsPerTrigger="5", maxTriggerDelay="1h").load()
    query = frame.writeStream.foreachBatch(seen).option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: len(seen.batches) == 1, query)
        topic.add(*numbers(0, 3))
        topic.add(*numbers(3, 6))
        wait_until(lambda: len(seen.values) == 7, query)
        assert [len(batch) for batch in seen.batches] in ([1, 6], [1, 5, 1])
    finally:
        query.stop()


def test_records_deleted_before_they_were_read_end_the_query_or_are_skipped(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic = a_topic()
    topic.add(*numbers(0, 3))
    strict = topic.source(spark.readStream, startingOffsets="earliest").load()
    assert len(available(strict, checkpoint).values) == 3
    topic.add(*numbers(3, 8))
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.delete_records({(topic.name, 0): 6})
    with pytest.raises(Exception, match="Set failOnDataLoss to false") as lost:
        available(strict, checkpoint)
    assert "the log begins at 6" in str(lost.value)
    lenient = topic.source(spark.readStream, startingOffsets="earliest", failOnDataLoss="false").load()
    assert available(lenient, checkpoint).values == numbers(6, 8)


def committed(topic: Topic, group: str) -> dict[int, int]:
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        found: Any = admin.list_consumer_group_offsets([group])[group]
        return {tp.partition: one.offset for tp, one in found.items()}


def test_a_listener_commits_a_finished_batch_for_a_group(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic = a_topic()
    topic.add(*numbers(0, 3))
    group = f"g-{topic.name}"
    listener = publish_progress(spark, topic.bootstrap, group, query=topic.name)
    frame = topic.source(spark.readStream, startingOffsets="earliest").load()
    # The next batch, with which the source itself would commit, is an hour away.
    writer = frame.writeStream.queryName(topic.name).format("noop").option("checkpointLocation", checkpoint)
    query = writer.trigger(processingTime="1 hour").start()
    try:
        wait_until(lambda: committed(topic, group) == {0: 3}, query)
    finally:
        query.stop()
        spark.streams.removeListener(listener)


def test_a_recreated_topic_is_detected_by_its_id_and_read_from_its_beginning(
    spark: Any, a_topic: Topics, checkpoint: str, tmp_path: Path
) -> None:
    topic = a_topic()
    topic.add(*numbers(0, 2))
    assert available(topic.source(spark.readStream, startingOffsets="earliest").load(), checkpoint).values == numbers(0, 2)
    topic.delete()
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.create_topic(NewTopic(topic.name, 1))
    topic.add(*numbers(10, 15))
    lenient = topic.source(spark.readStream, onDataLoss="skip", dataLossReportTo=str(tmp_path / "losses")).load()
    assert available(lenient, checkpoint).values == numbers(10, 15), "offsets 0 and 1 of the new topic do not count as read"
    (report,) = map(json.loads, (tmp_path / "losses").read_text().splitlines())
    assert (report["cause"], report["lost_from"], report["earliest"]) == ("recreated", 2, 0)


def test_a_killed_python_process_fails_the_query_with_a_retryable_error(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    topic = a_topic()
    topic.add(b"1")
    query = topic.source(spark.readStream).load().writeStream.format("noop").option("checkpointLocation", checkpoint).start()
    try:
        wait_until(lambda: query.lastProgress is not None, query)
        for child in psutil.Process().children(recursive=True):
            # Other processes may have just ended.
            with contextlib.suppress(psutil.NoSuchProcess):
                if HOLDER in child.cmdline():
                    child.kill()
        with pytest.raises(StreamingQueryException):
            query.awaitTermination(PATIENCE_S)
        assert is_retryable(full_text(query.exception()))
    finally:
        query.stop()
