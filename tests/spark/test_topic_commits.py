"""Topics as sinks of a pipeline, without Spark: gathered batches are written and committed, and run again after a restart."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from ottla import Admin, Consumer, NewTopic
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.dead_letters import DeadLetterTarget
from ottla.spark.pipeline.sinks import MicroBatch, TopicTarget
from ottla.testing import broker

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(120)]

FILE = """
name = "p"
bootstrap = "${bootstrap}"
checkpoint = "c"
[source]
topic = "visits"
[decode]
format = "json"
bad_records = "dead_letter"
[decode.fields]
n = "int"
[[sink]]
type = "topic"
topic = "${topic}"
[dead_letters]
topic = "${topic}"
"""
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with broker() as serving:
        yield serving.bootstrap_servers


def pipeline_to(bootstrap: str, topic: str) -> Pipeline:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topic(NewTopic(topic, 1))
    return parse(FILE, Path("p.toml"), {"bootstrap": bootstrap, "topic": topic})


def rows(target: TopicTarget, *values: str) -> pa.Table:
    """A gathered table, with the columns of the target."""
    columns = {"value": pa.array(values, pa.string()), "key": pa.nulls(len(values), pa.binary()), "headers": pa.nulls(len(values), HEADERS)}
    return pa.table({extra: columns[column] for column, extra in zip(target.columns, target.extras, strict=True)})


def letters_of(pipeline: Pipeline) -> TopicTarget:
    target = DeadLetterTarget(pipeline).target
    assert isinstance(target, TopicTarget)
    return target


def values(bootstrap: str, topic: str) -> list[str]:
    found = []
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            found += [(record.value or b"").decode() for record in consumer.poll(timeout_ms=500)]
    return sorted(found)


def test_a_batch_that_runs_again_after_a_restart_is_written_once(bootstrap: str) -> None:
    pipeline = pipeline_to(bootstrap, "once")
    for run in ("run-1", "run-2"):
        target = TopicTarget(pipeline.sinks[0], pipeline)
        for number, chosen in enumerate((["a"], [], ["c"])):
            target.write_table(rows(target, *chosen), MicroBatch("q", number, run_id=run))
    assert values(bootstrap, "once") == ["a", "c"]


def test_a_restart_after_an_empty_batch_does_not_tell_that_rows_are_written_twice(
    bootstrap: str, spark_log: Callable[[], list[str]]
) -> None:
    pipeline = pipeline_to(bootstrap, "empty")
    target = TopicTarget(pipeline.sinks[0], pipeline)
    for number, chosen in enumerate((["a"], [])):
        target.write_table(rows(target, *chosen), MicroBatch("q", number, run_id="run-1"))
    # The process is killed in batch 2, after its task has begun a transaction with the id of batch 0.
    killed = TopicTarget(pipeline.sinks[0], pipeline)
    killed.commits.commit_task = lambda *given: None  # type: ignore[method-assign]
    killed.write_table(rows(killed, "c"), MicroBatch("q", 2, run_id="run-1"))
    target = TopicTarget(pipeline.sinks[0], pipeline)
    target.write_table(rows(target, "c"), MicroBatch("q", 2, run_id="run-2"))
    assert values(bootstrap, "empty") == ["a", "c"]
    assert spark_log() == []


def test_dead_letters_in_the_topic_of_a_sink_are_each_written_once(bootstrap: str) -> None:
    pipeline = pipeline_to(bootstrap, "shared")
    for run in ("run-1", "run-2"):
        letters, target = letters_of(pipeline), TopicTarget(pipeline.sinks[0], pipeline)
        letters.write_table(rows(letters, "bad"), MicroBatch("q", 0, content=5, run_id=run))
        target.write_table(rows(target, "good"), MicroBatch("q", 0, run_id=run))
    assert values(bootstrap, "shared") == ["bad", "good"]
