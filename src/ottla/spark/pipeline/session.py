"""A pipeline's Spark session, started; where it does not start, that is one sentence, which tells where to look.

A Java process that ends before it answers has said why in its log, beside sentences that say nothing. One that answers may still refuse,
such as a master that is not there; Py4J raises what Java raised.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ottla.spark.pipeline.config.model import Pipeline
from ottla.spark.pipeline.config.toml_table import PipelineError
from ottla.spark.pipeline.spark_refusals import reason, without_code
from ottla.spark.session import start_session

#: How lines of Java begin that do not say what is wrong.
EMPTY = ("Error occurred during", "Error: Could not create", "Error: A fatal exception", "WARNING", "NOTE: ", "Picked up ", "\tat ", "#")
#: Enough for what is said at the start, of a log that may be long.
READ_BYTES = 65_536


def started(pipeline: Pipeline, name: str, settings: Mapping[str, str], log_file: Path, *, cores: int | None = None) -> Any:
    """A SparkSession. Raises: NoJava; PipelineError where Spark does not start."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    before = log_file.stat().st_size if log_file.exists() else 0
    try:
        return start_session(name, settings, log_file=log_file, cores=cores)
    except (PySparkException, Py4JError) as error:
        raise _refused(pipeline, error, log_file, before) from error


def _refused(pipeline: Pipeline, error: Exception, log_file: Path, before: int) -> PipelineError:
    ended = "JAVA_GATEWAY_EXITED" in str(getattr(error, "getCondition", str)() or error)
    said = (_said(log_file, before) or "its Java process ended at once") if ended else without_code(reason(error))
    said, where = said.rstrip("."), f"what it said is in {log_file}"
    if not pipeline.spark:
        return pipeline.error("", f"Spark does not start: {said}; {where}")
    return pipeline.error("spark", f"Spark does not start with these settings of [spark]: {said}; {where}")


def _said(log_file: Path, before: int) -> str:
    """The first sentence in the log, from byte `before` on, that says something; empty without one."""
    if not log_file.exists():
        return ""
    with log_file.open("rb") as log:
        log.seek(before)
        lines = log.read(READ_BYTES).decode("utf-8", "replace").splitlines()
    return next((line.strip() for line in lines if line.strip() and not line.startswith(EMPTY)), "")
