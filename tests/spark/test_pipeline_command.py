"""``ottla pipeline`` as a separate process: stopped with Ctrl-C, and restarted."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ottla.cli.groups import pipeline as command
from ottla.demo.verification import read_table
from ottla.spark.pipeline.config.file import load
from ottla.spark.pipeline.run import RunningPipeline

from .conftest import Topic

PIPELINE = """
bootstrap = "${bootstrap}"
checkpoint = "${dir}/checkpoint"
trigger = "100 milliseconds"
[source]
topic = "${topic}"
[[sink]]
type = "delta"
path = "${dir}/table"
[spark]
"driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"""


def test_validate_summarizes_a_pipeline(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    filled = ["--var", "bootstrap=h:1", "--var", "dir=/d", "--var", "topic=t"]
    done = CliRunner().invoke(command, ["validate", str(file), "--no-spark", *filled])
    assert (done.exit_code, done.output) == (0, f"{file}: pipeline p: 1 source, 0 steps, 1 sink; SQL not checked; written exactly once\n")


def test_without_spark_the_remedy_is_one_line(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pyspark'] = None; from ottla.cli.main import main; main(['pipeline', 'run', 'p.toml'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (3, "ottla: pipelines need pyspark: pip install 'ottla[spark]'\n")


def test_validate_refuses_with_file_line_and_key(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    done = CliRunner().invoke(command, ["validate", str(file), "--var", "bootstrap=h:1", "--var", "dir=/d"])
    assert done.exit_code == 2
    assert f"ottla: {file}:6: source.topic: ${{topic}} has no value" in done.output


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_ctrl_c_stops_a_pipeline_and_a_restart_resumes_it(spark: Any, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    topic.add(*[b"%d" % number for number in range(10)])
    events = stopped_after_progress(file, topic, tmp_path)
    assert [event["rows_out"] for event in events if event["event"] == "progress"] == [10]
    assert events[-1]["event"] == "stopped"
    topic.add(*[b"%d" % number for number in range(10, 15)])
    pipeline = replace(load(file, variables(topic, tmp_path)), trigger="available-now")
    again = RunningPipeline(pipeline, spark, lambda *_: None)
    again.start()
    assert again.queries[0].query.awaitTermination(60)
    assert [report.rows_out for report in again.reports() if report.rows_in] == [5]
    rows = read_table(tmp_path / "table")
    assert sorted(map(int, rows.column("value").to_pylist())) == list(range(15))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the process is found in /proc")
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_the_death_of_spark_is_reported_first_and_as_json(a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic()
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    topic.add(b"1", b"2")
    events = []
    with started(file, topic, tmp_path) as child:
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "progress":
                for one in Path(f"/proc/{child.pid}/task/{child.pid}/children").read_text().split():
                    os.kill(int(one), signal.SIGKILL)
        assert child.wait(60) == 1
        said = child.stderr.read()
    log = tmp_path / "checkpoint" / "spark.log"
    assert said.startswith("ottla: p: Spark died: its Java process was killed by signal SIGKILL") and said.count("\n") == 1, said
    assert str(log) in said and "Traceback (most recent call last)" in log.read_text()
    last = events[-1]
    assert (last["event"], last["reason"], last["cause"], last["signal"], last["exit_code"]) == (
        "stopped",
        "spark_died",
        "signal",
        "SIGKILL",
        None,
    )
    assert (last["rows_in"], last["rows_out"], last["log"]) == (2, 2, str(log)) and last["error"] in said


def variables(topic: Topic, directory: Path) -> dict[str, str]:
    return {"bootstrap": topic.bootstrap, "dir": str(directory), "topic": topic.name}


def started(file: Path, topic: Topic, directory: Path) -> "subprocess.Popen[str]":
    given = [part for name, value in variables(topic, directory).items() for part in ("--var", f"{name}={value}")]
    run = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), *given]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True, start_new_session=True)


def stopped_after_progress(file: Path, topic: Topic, directory: Path) -> list[dict[str, Any]]:
    """Runs the pipeline until its first batch, sends Ctrl-C to its process group, and returns its output."""
    events = []
    with started(file, topic, directory) as child:
        assert child.stdout is not None and child.stderr is not None
        for line in child.stdout:
            events.append(json.loads(line))
            if events[-1]["event"] == "progress":
                os.killpg(child.pid, signal.SIGINT)
        assert child.wait(60) == 0, child.stderr.read()
        assert child.stderr.read() == ""
    return events
