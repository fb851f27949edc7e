"""Rows a second of the Spark source and sink, compared with Spark's own Kafka connector on the same server."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path
from typing import Any

from bench import maven
from bench.cases import Case, CaseContext, Figure, Measurement, Scale, Skipped

PARTITIONS = 6
VALUE_SIZE = 100
PASSES = 5
ARTIFACT = "spark-sql-kafka-0-10_2.13"
FIGURES = (
    Figure("rows", "M rows/s", True),
    Figure("Spark CPU", "s/M rows", False),
    Figure("server CPU", "s/GB", False),
    Figure("connector's rows", "M rows/s", True),
    Figure("connector's Spark CPU", "s/M rows", False),
    Figure("rows of the connector's", "times", True),
    Figure("CPU of the connector's", "times", False),
)
#: Relative to the rows a second of a source that does nothing.
OF_READY = Figure("rows of an idle source's", "%", True)
#: A stream of small batches: what each batch costs, the start and the end of the query included.
SMALL_BATCHES, SMALL_BATCHES_ROWS = 40, 200_000
OF_BATCHES = (
    Figure("batch", "ms", False),
    Figure("Spark CPU", "ms/batch", False),
    Figure("first run", "s", False),
    Figure("connector's batch", "ms", False),
    Figure("time of the connector's", "times", False),
    Figure("CPU of the connector's", "times", False),
    Figure("first run of the connector's", "times", False),
)


def cases(scale: Scale) -> list[Case]:
    what = f"{VALUE_SIZE} B values"
    only = frozenset({"ottla", "kafka"})
    return [
        Case("spark source", f"batch read, {what}", (*FIGURES, OF_READY), _read, only, rounds=1),
        Case("spark source", f"stream, available now, {what}", (*FIGURES, OF_READY), _stream, only, rounds=1),
        Case("spark source", f"stream of small batches to Parquet, {what}", OF_BATCHES, _small_batches, only, rounds=1),
        Case("spark sink", f"batch write, {what}", FIGURES, _write, only, rounds=1),
    ]


def _read(context: CaseContext, scale: Scale) -> Measurement:
    topic, rows = context.filled_topic(VALUE_SIZE, PARTITIONS, scale.spark_rows * VALUE_SIZE)
    return _measured(context, "spark_read", topic, rows)


def _stream(context: CaseContext, scale: Scale) -> Measurement:
    topic, rows = context.filled_topic(VALUE_SIZE, PARTITIONS, scale.spark_rows * VALUE_SIZE)
    return _measured(context, "spark_stream", topic, rows)


def _small_batches(context: CaseContext, scale: Scale) -> Measurement:
    topic, rows = context.filled_topic(VALUE_SIZE, PARTITIONS, SMALL_BATCHES_ROWS * VALUE_SIZE)
    detail, version = _detail(context, "spark_batches", topic, rows, batches=SMALL_BATCHES)
    ours, theirs = detail["ways"]["ottla"], detail["ways"].get("kafka")
    figures = {
        "batch": _batch_ms(ours, rows),
        "Spark CPU": 1000 * ours["spark_cpu_s"] / (PASSES * SMALL_BATCHES),
        "first run": ours["first_pass_s"],
    }
    if theirs:
        figures["connector's batch"] = _batch_ms(theirs, rows)
        figures["time of the connector's"] = theirs["rows_per_s"] / ours["rows_per_s"]
        figures["CPU of the connector's"] = _cpu(ours) / _cpu(theirs)
        figures["first run of the connector's"] = ours["first_pass_s"] / theirs["first_pass_s"]
    return Measurement(figures, {**detail, "connector": version})


def _batch_ms(way: dict[str, Any], rows: int) -> float:
    return float(1000 * rows / way["rows_per_s"] / SMALL_BATCHES)


def _write(context: CaseContext, scale: Scale) -> Measurement:
    topic = context.create_topic(PARTITIONS)
    try:
        return _measured(context, "spark_write", topic, scale.spark_rows)
    finally:
        context.delete_topic(topic)


def _detail(context: CaseContext, kind: str, topic: str, rows: int, **more: Any) -> tuple[dict[str, Any], str]:
    """What the program measured, and the version of the connector. Raises: Skipped."""
    if importlib.util.find_spec("pyspark") is None:
        raise Skipped("pyspark is not installed")
    try:
        home = maven.java().home
    except maven.PeerUnavailable as why:
        raise Skipped(str(why)) from None
    if importlib.util.find_spec("pyspark_ottla") is None:
        raise Skipped("this Ottla has no Spark source")
    try:
        version, jars = _connector()
    except Skipped as why:
        version, jars = f"none: {why}", []
    return context.load(kind, topic, jars=jars, rows=rows, passes=PASSES, java_home=home, value_size=VALUE_SIZE, **more), version


def _measured(context: CaseContext, kind: str, topic: str, rows: int) -> Measurement:
    detail, version = _detail(context, kind, topic, rows)
    ways = detail["ways"]
    ours, theirs, ready = ways["ottla"], ways.get("kafka"), ways.get("ready")
    figures = {
        "rows": ours["rows_per_s"] / 1e6,
        "Spark CPU": _cpu(ours),
        "server CPU": ours["server_cpu_s"] / (ours["records"] * VALUE_SIZE / 1e9),
    }
    if theirs:
        figures["connector's rows"] = theirs["rows_per_s"] / 1e6
        figures["connector's Spark CPU"] = _cpu(theirs)
        figures["rows of the connector's"] = ours["rows_per_s"] / theirs["rows_per_s"]
        figures["CPU of the connector's"] = _cpu(ours) / _cpu(theirs)
    if ready:
        figures[OF_READY.key] = 100 * ours["rows_per_s"] / ready["rows_per_s"]
    return Measurement(figures, {**detail, "connector": version})


def _cpu(way: dict[str, Any]) -> float:
    """CPU seconds of Spark per million rows."""
    return float(way["spark_cpu_s"] / (way["records"] / 1e6))


def _line() -> str:
    """The installed Spark's minor version: 4.3 for 4.3.0."""
    return ".".join(importlib.metadata.version("pyspark").split(".")[:2])


def _connector() -> tuple[str, list[str]]:
    """The version and the jars of Spark's own Kafka connector: of the installed Spark's minor version, else the newest release of its
    major version, which may not run in it.
    """
    generation = _line().split(".")[0]
    found: tuple[str, Path] | None = None
    reasons = []
    for pattern in (rf"{re.escape(_line())}\.\d+", rf"{generation}\.\d+\.\d+"):
        try:
            found = maven.newest("spark-connector", "org.apache.spark", ARTIFACT, pattern=pattern)
            break
        except maven.PeerUnavailable as why:
            reasons.append(str(why))
    if found is None:
        raise Skipped(reasons[-1])
    version, lib = found
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "the caller has seen that pyspark is there"
    shipped = {path.name for path in (Path(spec.origin).parent / "jars").glob("*.jar")}
    return version, sorted(str(path) for path in lib.glob("*.jar") if path.name not in shipped)
