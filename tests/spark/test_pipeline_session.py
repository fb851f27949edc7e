"""The Spark session of a pipeline, and errors if it does not start."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError
from pyspark.errors import PySparkRuntimeError

from ottla.cli.groups import pipeline as command
from ottla.spark.pipeline import foreground, session
from ottla.spark.pipeline.config.file import parse
from ottla.spark.pipeline.config.model import MASTER, Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"


def a_pipeline(directory: Path, spark: str = "") -> Pipeline:
    text = f'checkpoint = "{directory}/state"\n[source]\ntopic = "t"\n[[sink]]\ntype = "console"\n{spark}'
    return parse(text, directory / "p.toml", {})


class SessionRequested(Exception):
    """A session was requested."""


@pytest.mark.parametrize(("spark", "master"), [("", MASTER), ('[spark]\nmaster = "local[2,4]"\n', "local[2,4]")])
def test_a_run_has_the_master_of_the_plan_and_of_the_page(spark: str, master: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Mapping[str, str]] = []

    def start_session(_: str, settings: Mapping[str, str], **__: Any) -> None:
        asked.append(settings)
        raise SessionRequested

    monkeypatch.setattr(session, "start_session", start_session)
    pipeline = a_pipeline(tmp_path, spark)
    with pytest.raises(SessionRequested):
        foreground.run_until_stopped(pipeline, output="json")
    assert asked[0]["spark.master"] == pipeline.master == master
    reported = re.search(r"`master`, by default `([^`]+)`", PAGE.read_text())
    assert reported is not None and reported[1] == MASTER


#: Message of a Java that cannot allocate its heap.
JAVA = "WARNING: Using incubator modules: jdk.incubator.vector\nError occurred during initialization of VM\nToo small maximum heap\n"
LOST = "An error occurred while calling None.x.\n: org.apache.spark.SparkException: Invalid master URL: spark://head:7\n\tat org.apache.x\n"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={}), "Too small maximum heap"),
        (Py4JError(LOST), "Invalid master URL: spark://head:7"),
    ],
)
def test_a_session_that_does_not_start_is_an_error_with_the_settings_and_the_log(
    error: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "state" / "spark.log"
    log.parent.mkdir()
    log.write_text("of an earlier run\n")

    def start_session(*_: object, log_file: Path, **__: object) -> None:
        with log_file.open("a") as out:
            out.write(JAVA)
        raise error

    monkeypatch.setattr(session, "start_session", start_session)
    pipeline = a_pipeline(tmp_path, '[spark]\n"driver.memory" = "1m"\n')
    pipeline.file.write_text(pipeline.text)
    done = CliRunner().invoke(command, ["run", str(pipeline.file), "-o", "json"])
    reported = f"ottla: {pipeline.file}:6: spark: Spark does not start with these settings of [spark]: {said}; its output is in {log}\n"
    assert (done.exit_code, done.stderr) == (2, reported)


@pytest.mark.parametrize(
    ("said", "line", "key", "sentence"),
    [
        ('"driver.memory" = "4 gigs"', 7, "spark.driver.memory", "such as \"4g\", not '4 gigs'"),
        ('"driver.memory" = "4gb"', 7, "spark.driver.memory", "a whole number and k, m, g or t"),
        ('"driver.memory" = 4', 7, "spark.driver.memory", "a whole number and k, m, g or t"),
        ('"spark.driver.memory" = "1.5g"', 7, "spark.spark.driver.memory", "not '1.5g'"),
        ('driver = { cores = 1, memory = "much" }', 7, "spark.driver.memory", "not 'much'"),
        ('"executor.memory" = "2 g"', 7, "spark.executor.memory", 'such as "512m" or "4g"'),
        ('master = "lokal"', 7, "spark.master", "not 'lokal'; did you mean local?"),
        ('master = "local[0]"', 7, "spark.master", "expected where Spark runs"),
        ('master = "spark://head"', 7, "spark.master", "spark://HOST:PORT"),
        ('master = "local-cluster[2,1]"', 7, "spark.master", "local-cluster[N,CORES,MIB]"),
        ('master = ["local"]', 7, "spark.master", "expected one text"),
        ('jars = [\n"a.jar",\n"b.jar"]', 7, "spark.jars", "with commas between several values"),
        ('"ui.enabled" = 2026-01-01', 7, "spark.ui.enabled", "expected a text, a number, true or false"),
        ('"kafka.consumer.cache.capacity" = 8', 7, "spark.kafka.consumer.cache.capacity", "a Python process keeps its connections"),
        ('kafka.clusters.a.auth.bootstrap.servers = "h:1"', 7, "spark.kafka.clusters.a.auth.bootstrap.servers", "kafka.security.protocol"),
        ('"driver.memory" = "${much}"', 7, "spark.driver.memory", "--var much=VALUE"),
    ],
)
def test_values_with_which_spark_cannot_start_are_refused_with_their_line(
    said: str, line: int, key: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(PipelineError) as refused:
        a_pipeline(tmp_path, f"[spark]\n{said}\n")
    assert (refused.value.where, refused.value.key) == (f"{tmp_path / 'p.toml'}:{line}", key)
    assert sentence in refused.value.problem


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("master", ["local", "local[2]", "local[*]", "local[2,4]", "local[*, 4]", "local-cluster[2,1,1024]", "yarn", "k8s://https://h:1"]),
        ("master", ["spark://head:7077", "spark://one:7077,two:7077"]),
        ("driver.memory", ["512m", "4g", "4G", "1000000k"]),
        ("executor.memory", ["512m", "4gb", "2g", "1024"]),
        ("driver.maxResultSize", ["0", "2g"]),
    ],
)
def test_other_values_are_passed_to_spark(name: str, values: list[str], tmp_path: Path) -> None:
    for value in values:
        assert a_pipeline(tmp_path, f'[spark]\n"{name}" = "{value}"\n').spark == {f"spark.{name}": value}
