"""A pipeline with its checkpoint at a URL, through Spark's Hadoop file systems: state moves to another machine, each record counts once."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench.maven import cache_dir
from chaos.object_store import hadoop_aws
from click.testing import CliRunner

from object_store import BUCKET, SECRET, ObjectStore
from ottla.cli.groups import pipeline as command
from ottla.demo.verification import read_table
from ottla.spark.pipeline.checkpoint import LOCK, HeldCheckpoint, checkpoint_lock
from ottla.spark.pipeline.checkpoint_access import holding, to_read
from ottla.spark.pipeline.checkpoint_errors import CheckpointTakenOver, CheckpointUnavailable
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.hadoop_files import HadoopFiles
from ottla.spark.pipeline.progress import BatchProgress
from ottla.spark.pipeline.reset import apply_reset, plan_reset
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]
PIPELINE = """
name = "counts"
bootstrap = "${bootstrap}"
checkpoint = "${checkpoint:-s3a://bucket/counts}"
trigger = "${trigger:-available-now}"
[source]
topic = "${topic}"
options = { maxOffsetsPerTrigger = "10" }
[[step]]
name = "counts"
sql = "SELECT CAST(value AS STRING) AS word, count(*) AS n FROM records GROUP BY value"
[[sink]]
type = "delta"
path = "${dir}/table"
mode = "merge"
keys = ["word"]
"""


def pipeline_on(machine: str, topic: Topic, directory: Path) -> Pipeline:
    """The pipeline on a machine of its own, with its checkpoint at a file URL. It ends when it has read everything."""
    file = directory / "p.toml"
    file.write_text(PIPELINE)
    pipeline = load(file, {"bootstrap": topic.bootstrap, "topic": topic.name, "dir": str(directory)})
    return replace(pipeline, checkpoint=str(directory / machine), checkpoint_url=f"file://{directory}/shared")


@contextmanager
def held_by(pipeline: Pipeline, session: Any) -> Iterator[HeldCheckpoint]:
    with checkpoint_lock(Path(pipeline.checkpoint)), holding(pipeline, session) as held:
        yield held


def run(pipeline: Pipeline, session: Any, held: HeldCheckpoint) -> list[BatchProgress]:
    running = RunningPipeline(pipeline, session, lambda *_: None, held)
    try:
        running.start()
        assert running.queries[0].query.awaitTermination(120)
        return running.reports()
    finally:
        running.stop()


def counts(directory: Path) -> dict[str, int]:
    rows = read_table(directory / "table").to_pylist()
    return {row["word"]: row["n"] for row in rows}


def test_state_goes_on_on_another_machine_and_a_reset_forgets_it(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(*[b"a", b"b"] * 6)
    one, two = (pipeline_on(machine, topic, tmp_path) for machine in ("one", "two"))
    with held_by(one, spark) as held:
        assert held.is_empty
        assert [report.batch for report in run(one, spark, held)] == [0, 1]
    assert (tmp_path / "shared" / "counts-update" / "state").is_dir()
    # The end of batch 1 is lost with its machine.
    (tmp_path / "shared" / "counts-update" / "commits" / "1").unlink()
    shutil.rmtree(tmp_path / "one")
    topic.add(b"a", b"c")
    with held_by(two, spark) as held:
        assert [report.batch for report in run(two, spark, held)] == [1, 2]
    assert counts(tmp_path) == {"a": 7, "b": 6, "c": 1}

    with to_read(two, spark) as local:
        assert (Path(local.checkpoint) / "counts-update" / "offsets" / "2").is_file()
    apply_reset(two, plan_reset(two, "latest", spark), spark)
    assert sorted(path.name for path in (tmp_path / "shared").iterdir() if path.name[0] != ".") == [LOCK, "pipeline.owner", "start.json"]


def test_a_batch_of_a_process_that_was_taken_over_is_not_written(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    topic.add(b"a")
    one, two = (pipeline_on(machine, topic, tmp_path) for machine in ("one", "two"))
    with held_by(one, spark) as first:
        files = HadoopFiles(spark, two.checkpoint_place, {})
        lock = json.loads(files.read(LOCK) or b"")
        # As if it had been stopped for long.
        files.write(LOCK, json.dumps({**lock, "beat": 1.0}).encode())
        with held_by(two, spark) as second:
            with pytest.raises(Exception, match="was taken over by process"):
                run(one, spark, first)
            assert not (tmp_path / "table").exists()
            # It has planned batch 0 before it ended, and the new owner runs that.
            assert [(report.batch, report.rows_in) for report in run(two, spark, second)] == [(0, 1)]
    with pytest.raises(CheckpointTakenOver):
        first.save()
    assert counts(tmp_path) == {"a": 1}


def test_a_file_system_that_spark_lacks_is_an_error_with_the_line_to_write(spark: Any, tmp_path: Path) -> None:
    pipeline = replace(pipeline_on("one", a_topic_elsewhere(), tmp_path), checkpoint_url="s3a://bucket/counts")
    hadoop = spark._jvm.org.apache.hadoop.util.VersionInfo.getVersion()
    with pytest.raises(CheckpointUnavailable) as refused, holding(pipeline, spark):
        pass
    assert f'write below [spark]: packages = ["org.apache.hadoop:hadoop-aws:{hadoop}"]' in str(refused.value)


def a_topic_elsewhere() -> Any:
    """A topic that nobody reads."""

    class Named:
        bootstrap, name = "127.0.0.1:1", "t"

    return Named()


# -- an object store


@pytest.fixture
def jars() -> Path:
    """hadoop-aws for this Spark's Hadoop, with its SDK of 650 MB, if it was fetched before."""
    found = cache_dir() / hadoop_aws()
    if not found.exists():
        pytest.skip(f"{found.name} is not here (700 MB): python -m chaos.pipelines --object-store fetches it")
    return found


@pytest.mark.slow
def test_a_pipeline_goes_on_from_an_object_store_after_its_machine_was_killed(
    jars: Path, a_topic: Callable[..., Topic], tmp_path: Path
) -> None:
    topic, file = a_topic(), tmp_path / "p.toml"
    with ObjectStore() as store:
        settings = '"hadoop.fs.s3a.path.style.access" = true\n"driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"\n'
        file.write_text(f'{PIPELINE}[spark]\n"driver.extraClassPath" = "{jars}/*"\n{settings}')
        environment = {
            **os.environ, "AWS_ACCESS_KEY_ID": "a-key-id", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ENDPOINT_URL": store.endpoint,
            "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }  # fmt: skip
        given = {"bootstrap": topic.bootstrap, "topic": topic.name, "dir": str(tmp_path), "checkpoint": f"s3a://{BUCKET}/counts"}
        variables = [part for name, value in given.items() for part in ("--var", f"{name}={value}")]
        topic.add(*[b"a", b"b"] * 20)
        killed = start(file, tmp_path / "one", [*variables, "--var", "trigger=50 milliseconds"], environment)
        assert killed.stdout is not None
        output = [killed.stdout.readline() for _ in range(5)]
        while sum('"event": "progress"' in line for line in output) < 2:
            output.append(killed.stdout.readline())
            assert output[-1], f"it runs until it is killed: {output}"
        os.killpg(killed.pid, signal.SIGKILL)
        killed.wait()
        shutil.rmtree(tmp_path / "one")
        topic.add(b"a", b"c")
        second = start(file, tmp_path / "two", variables, environment)
        text, _ = second.communicate(timeout=200)
        assert second.returncode == 0, text
        first = next(json.loads(line) for line in text.splitlines() if '"event": "progress"' in line)
        assert first["batch"] > 0, "it did not start over"
        with pytest.MonkeyPatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            # No Java is needed.
            patch.setenv("JAVA_HOME", "/none")
            status = CliRunner().invoke(command, ["status", str(file), *variables, "-o", "json"])
    document = json.loads(status.output)
    assert (document["state"], document["queries"][0]["lag"]) == ("stopped", 0)
    assert counts(tmp_path) == {"a": 21, "b": 20, "c": 1}
    assert SECRET not in "".join(output) + text + status.output


def start(file: Path, machine: Path, variables: list[str], environment: dict[str, str]) -> "subprocess.Popen[str]":
    """`ottla pipeline run` in an empty directory."""
    machine.mkdir()
    words = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "-o", "json", *variables]
    return subprocess.Popen(words, cwd=machine, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
