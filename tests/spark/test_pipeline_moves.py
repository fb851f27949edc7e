"""A pipeline with its checkpoint in a topic goes on where another machine stopped, and writes each record once."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, Consumer, NewTopic
from ottla.demo.verification import read_table
from ottla.spark.pipeline.checkpoint_topic import CheckpointTopic, holding
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.progress import BatchProgress
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
PIPELINE = """
name = "${name}"
bootstrap = "${bootstrap}"
checkpoint = "ottla:"
trigger = "50 milliseconds"
[source]
topic = "${topic}"
options = { maxOffsetsPerTrigger = "10" }
[[step]]
name = "chosen"
sql = "${sql:-SELECT CAST(value AS STRING) AS value FROM records}"
[[sink]]
type = "delta"
path = "${dir}/table"
[[sink]]
type = "topic"
topic = "${name}-copies"
value = "value"
[spark]
"driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""


def variables(topic: Topic, directory: Path) -> dict[str, str]:
    return {"bootstrap": topic.bootstrap, "dir": str(directory), "topic": topic.name, "name": topic.name}


def pipeline_on(machine: str, topic: Topic, directory: Path, **more: str) -> Pipeline:
    """The pipeline on a machine of its own. It ends when it has read everything."""
    file = directory / "p.toml"
    file.write_text(PIPELINE)
    pipeline = load(file, {**variables(topic, directory), **more})
    return replace(pipeline, checkpoint=str(directory / machine), trigger="available-now")


def run(pipeline: Pipeline, session: Any, checkpoint: CheckpointTopic) -> list[BatchProgress]:
    running = RunningPipeline(pipeline, session, lambda *_: None, checkpoint)
    try:
        running.start()
        assert running.queries[0].query.awaitTermination(120)
        return running.reports()
    finally:
        running.stop()


def written(topic: Topic, directory: Path) -> tuple[list[int], list[int]]:
    """The numbers in the table and in the topic of copies."""
    with Consumer(bootstrap_servers=topic.bootstrap, isolation_level="read_committed") as consumer:
        partitions = consumer.partitions_for(f"{topic.name}-copies")
        ends = consumer.end_offsets(partitions)
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        copies: list[int] = []
        while any(consumer.position(tp) < end for tp, end in ends.items()):
            copies += [int(record.value or b"") for record in consumer.poll(500)]
    return sorted(map(int, read_table(directory / "table").column("value").to_pylist())), sorted(copies)


def test_a_batch_whose_end_was_not_noted_is_repeated_elsewhere_and_written_once(
    spark: Any, a_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic = a_topic()
    a_topic_of_copies(topic)
    topic.add(*[b"%d" % number for number in range(15)])
    first = CheckpointTopic(pipeline_on("one", topic, tmp_path))
    first.take_over()
    assert [report.rows_out for report in run(pipeline_on("one", topic, tmp_path), spark, first)] == [10, 5]
    # It dies before it notes that batch 1 is finished.
    shutil.rmtree(tmp_path / "one")
    topic.add(*[b"%d" % number for number in range(15, 20)])
    with holding(pipeline_on("two", topic, tmp_path)) as second:
        assert second is not None
        reports = run(pipeline_on("two", topic, tmp_path), spark, second)
    # The sinks have batch 1, so nothing is read for it.
    assert [(report.batch, report.rows_out) for report in reports] == [(1, 0), (2, 5)]
    assert written(topic, tmp_path) == (list(range(20)), list(range(20)))


@pytest.mark.slow
def test_a_machine_goes_on_after_another_was_killed(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic, machine = a_topic(), tmp_path / "one"
    a_topic_of_copies(topic)
    machine.mkdir()
    topic.add(*[b"%d" % number for number in range(40)])
    pipeline = pipeline_on("two", topic, tmp_path)
    given = [part for name, value in variables(topic, tmp_path).items() for part in ("--var", f"{name}={value}")]
    run_it = [sys.executable, "-m", "ottla", "pipeline", "run", str(pipeline.file), *given]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(run_it, cwd=machine, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as child:
        assert child.stdout is not None
        finished = 0
        while finished < 2:
            line = child.stdout.readline()
            assert line, "it runs until it is killed"
            finished += '"event": "progress"' in line
        os.killpg(child.pid, signal.SIGKILL)
    shutil.rmtree(machine, ignore_errors=True)
    topic.add(*[b"%d" % number for number in range(40, 45)])
    with holding(pipeline) as checkpoint:
        assert checkpoint is not None and not checkpoint.is_empty
        reports = run(pipeline, spark, checkpoint)
    assert reports and reports[0].batch > 0, "it did not start over"
    assert written(topic, tmp_path) == (list(range(45)), list(range(45)))


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT value, count(*) AS n FROM records GROUP BY value", "aggregate"),
        ("SELECT DISTINCT value FROM records", "deduplicate"),
        ("SELECT a.value FROM records a JOIN records b ON a.value = b.value", "join"),
        ("SELECT value FROM records LIMIT 3", "limit"),
    ],
)
def test_a_pipeline_with_state_is_refused_at_its_start(
    spark: Any, a_topic: Callable[..., Topic], tmp_path: Path, sql: str, kind: str
) -> None:
    topic = a_topic()
    pipeline = pipeline_on("one", topic, tmp_path, sql=sql)
    with pytest.raises(PipelineError, match=rf"p.toml:4: checkpoint: chosen keeps state \({kind}\), which is not in a topic"):
        RunningPipeline(pipeline, spark, lambda *_: None, CheckpointTopic(pipeline)).start()


def a_topic_of_copies(topic: Topic) -> None:
    with Admin(bootstrap_servers=topic.bootstrap) as admin:
        admin.create_topic(NewTopic(f"{topic.name}-copies", 2))
