"""Starts a pipeline's Spark session, or a small one for commands, and turns a failure into one sentence.

If the Java process ends at its start, its log holds the cause among irrelevant lines. If it runs, it may still fail, for example without a
reachable master; Py4J then raises Java's exception.
"""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.spark_refusals import SAME_PYTHON, reason, spark_errors, without_code
from ottla.spark.session import driver_path, on_other_machines, start_session, tasks_python

#: Prefixes of Java's log lines that do not name the cause.
EMPTY = ("Error occurred during", "Error: Could not create", "Error: A fatal exception", "WARNING", "NOTE: ", "Picked up ", "\tat ", "#")
#: How much of the log is searched.
READ_BYTES = 65_536
#: Prefixes of the settings that a session needs to open a Hadoop file system.
FILE_SETTINGS = ("spark.hadoop.", "spark.jars", "spark.driver.extraClassPath", "spark.driver.extraJavaOptions", "spark.repositories")


def started(pipeline: Pipeline, name: str, settings: Mapping[str, str], log_file: Path, *, cores: int | None = None) -> Any:
    """A SparkSession. Raises: NoJava; PipelineError if Spark does not start."""
    python = tasks_python(settings)
    if on_other_machines(settings.get("spark.master", "local")) and shutil.which(python, path=driver_path(python)) is None:
        raise pipeline.error("spark", f"the Python of tasks, {python}, is not on this machine. {SAME_PYTHON}")
    before = log_file.stat().st_size if log_file.exists() else 0
    try:
        return start_session(name, settings, log_file=log_file, cores=cores)
    except (PySparkException, Py4JError) as error:
        raise _start_error(pipeline, error, log_file, before) from error


@contextmanager
def planning_session(pipeline: Pipeline, *, files: bool = False) -> Iterator[Any]:
    """A small local Spark session for the block. The file's master is ignored: plans need no executors.

    `files`: with the settings of Hadoop's file systems, and the packages.

    Raises: NoJava, PipelineError.
    """
    settings = sql_settings(pipeline)
    if files:
        settings |= {name: value for name, value in pipeline.spark.items() if name.startswith(FILE_SETTINGS)}
    with TemporaryDirectory(prefix="ottla-plan-") as directory:
        session = started(pipeline, f"ottla plan {pipeline.name}", settings, Path(directory) / "spark.log", cores=1)
        try:
            yield session
        finally:
            session.stop()


def sql_settings(pipeline: Pipeline) -> dict[str, str]:
    return {name: value for name, value in pipeline.spark.items() if name.startswith("spark.sql.")}


def session_beside(session: Any, pipeline: Pipeline) -> Any:
    """A session for another pipeline in the same JVM, with views and SQL settings of its own.

    Raises: PipelineError for a setting that Spark takes only at the start of a JVM.
    """
    other = session.newSession()
    for name, value in sql_settings(pipeline).items():
        try:
            other.conf.set(name, value)
        except spark_errors():
            key = f"spark.{name.removeprefix('spark.')}"
            raise pipeline.error(key, "Spark takes this setting only at its start: check this file in a call of its own") from None
    return other


def _start_error(pipeline: Pipeline, error: Exception, log_file: Path, before: int) -> PipelineError:
    ended = "JAVA_GATEWAY_EXITED" in str(getattr(error, "getCondition", str)() or error)
    cause = (_logged_cause(log_file, before) or "its Java process ended at once") if ended else without_code(reason(error))
    cause, where = cause.rstrip("."), f"its output is in {log_file}"
    if not pipeline.spark:
        return pipeline.error("", f"Spark does not start: {cause}; {where}")
    return pipeline.error("spark", f"Spark does not start with these settings of [spark]: {cause}; {where}")


def _logged_cause(log_file: Path, before: int) -> str:
    """The first relevant line of the log from byte `before` on; empty without one."""
    if not log_file.exists():
        return ""
    with log_file.open("rb") as log:
        log.seek(before)
        lines = log.read(READ_BYTES).decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in lines if line.strip() and not line.startswith(EMPTY)), "")
