"""Exactly once with Spark: streams and pipelines whose tasks fail, and whose batches run again."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla import Consumer
from ottla.spark.pipeline.run import QueryFailed
from ottla.spark.sink.batch_commits import BatchCommits

from .conftest import Topic
from .test_sink import run_to_end
from .test_source import refusal

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

Topics = Callable[..., Topic]


def values(topic: Topic, isolation: str = "read_committed") -> Counter[str]:
    found: Counter[str] = Counter()
    with Consumer(bootstrap_servers=topic.bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic.name)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found.update((record.value or b"").decode() for record in consumer.poll(timeout_ms=500))
    return found


def run_again(checkpoint: str, batch: int) -> None:
    """The driver was killed after the sink's commit and before Spark's own: the batch runs again."""
    for name in (f"{batch}", f".{batch}.crc"):
        (Path(checkpoint) / "commits" / name).unlink(missing_ok=True)


def copying(source: Topic, target: Topic, frame: Any, checkpoint: str, **options: str) -> Any:
    writer = frame.writeStream.format("ottla").option("kafka.bootstrap.servers", source.bootstrap).option("topic", target.name)
    return writer.options(**options).option("checkpointLocation", checkpoint).trigger(availableNow=True)


def test_a_batch_that_spark_runs_again_in_other_partitions_is_written_once(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    source, target = a_topic(partitions=2), a_topic(partitions=2)
    for partition in range(2):
        source.add(*[b"%d" % number for number in range(partition, 20, 2)], partition=partition)
    frame = source.source(spark.readStream, startingOffsets="earliest").load().selectExpr("CAST(value AS STRING) AS value")
    run_to_end(copying(source, target, frame, checkpoint))
    once = Counter(str(number) for number in range(20))
    assert values(target) == once
    run_again(checkpoint, 0)
    source.add(b"new")
    run_to_end(copying(source, target, frame.repartition(3), checkpoint))
    assert values(target) == once + Counter(["new"])
    assert values(target, "read_uncommitted").total() > 21, "the batch was written again, and aborted"


def test_a_batch_that_foreach_batch_writes_again_is_in_each_of_its_topics_once(spark: Any, a_topic: Topics, checkpoint: str) -> None:
    source, targets = a_topic(partitions=2), [a_topic(), a_topic()]
    frame = source.source(spark.readStream, startingOffsets="earliest").load().selectExpr("CAST(value AS STRING) AS value")

    def write(batch: Any, number: int) -> None:
        for target in targets:
            options = {"kafka.bootstrap.servers": source.bootstrap, "topic": target.name, "txnAppId": source.name, "txnVersion": number}
            for _ in range(2):
                batch.write.format("ottla").options(**options).mode("append").save()

    for rows in (["a", "b"], ["c"], ["d"]):
        source.add(*[row.encode() for row in rows])
        run_to_end(frame.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).trigger(availableNow=True))
    for target in targets:
        assert values(target) == Counter(["a", "b", "c", "d"])


def test_rows_of_a_task_that_fails_after_it_has_written_are_not_visible(spark: Any, a_topic: Topics) -> None:
    target = a_topic()

    def failing(number: int) -> str:
        if number == 11:
            raise RuntimeError("the row is bad")
        return "x" * 900_000

    from pyspark.sql.functions import udf

    # The other rows are more than a task gathers, so they are sent before.
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")
    try:
        frame = spark.range(0, 12, 1, 1).select(udf(failing, "string")("id").alias("value"))
        writer = frame.write.format("ottla").option("kafka.bootstrap.servers", target.bootstrap).option("topic", target.name)
        assert "the row is bad" in refusal(lambda: writer.mode("append").save())
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(target, "read_uncommitted")
    assert values(target) == Counter()
    spark.sql("SELECT 'v' AS value").write.format("ottla").option("kafka.bootstrap.servers", target.bootstrap).option(
        "topic", target.name
    ).mode("append").save()
    assert values(target) == Counter(["v"])


PIPELINE = """
[decode]
format = "json"
fields = { user = "string", n = "int" }
[[step]]
name = "counts"
sql = "SELECT user, count(*) AS n FROM records GROUP BY user"
[[sink]]
type = "topic"
topic = "${gathered}"
key = "user"
value = "struct(user, n)"
[[sink]]
type = "topic"
from = "records"
topic = "${spread}"
value = "CAST(n AS STRING)"
"""


def test_a_pipeline_with_state_continues_exactly_once_after_any_crash_of_its_driver(
    spark: Any, a_topic: Topics, run: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, gathered, spread = a_topic(partitions=2), a_topic(), a_topic()
    names = {"gathered": gathered.name, "spread": spread.name}

    def add(first: int) -> None:
        source.add(
            *[json.dumps({"user": f"u{number % 2}", "n": number}).encode() for number in range(first, first + 10)], partition=first % 2
        )

    def results() -> tuple[dict[tuple[str, int], int], Counter[str]]:
        counts = Counter({(found["user"], found["n"]): times for one, times in values(gathered).items() for found in [json.loads(one)]})
        return dict(counts), values(spread)

    add(0)
    run(source, PIPELINE, **names)
    expected: tuple[dict[tuple[str, int], int], Counter[str]] = ({("u0", 5): 1, ("u1", 5): 1}, Counter(str(number) for number in range(10)))
    assert results() == expected

    # Killed after the decisions, before the transactions of the tasks are committed.
    end_each = BatchCommits._end_each

    async def killed(self: BatchCommits, identities: Any, *, commit: bool) -> list[bool]:
        if identities:
            raise RuntimeError("killed")
        return await end_each(self, identities, commit=commit)

    add(11)
    with monkeypatch.context() as crash:
        crash.setattr(BatchCommits, "_end_each", killed)
        with pytest.raises(QueryFailed, match="killed"):
            run(source, PIPELINE, **names)
    assert results() == expected, "nothing is visible before the next start"
    run(source, PIPELINE, **names)
    expected = ({**expected[0], ("u0", 10): 1, ("u1", 10): 1}, expected[1] + Counter(str(number) for number in range(11, 21)))
    assert results() == expected

    # Killed after the sinks' commits, before Spark's.
    for query in ("counts-update", "records-append"):
        run_again(str(tmp_path / "checkpoint" / query), 1)
    run(source, PIPELINE, **names)
    assert results() == expected
    assert values(spread, "read_uncommitted") == values(spread), "a batch that is decided is not written"
