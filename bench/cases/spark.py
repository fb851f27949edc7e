"""Rows a second of the Spark source; beside it, Spark's own Kafka connector reading from Apache Kafka."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
from pathlib import Path

from bench import maven
from bench.cases import Case, Figure, Measured, Scale, Skipped, Stage

PARTITIONS = 6
VALUE_SIZE = 100
PASSES = 3
ARTIFACT = "spark-sql-kafka-0-10_2.13"
ROWS = (Figure("rows", "M rows/s", True), Figure("server CPU", "s/GB", False))


def cases(scale: Scale) -> list[Case]:
    return [Case("spark source", f"batch read, {VALUE_SIZE} B values", ROWS, _read, frozenset({"ottla", "kafka"}), rounds=1)]


def _read(stage: Stage, scale: Scale) -> Measured:
    if importlib.util.find_spec("pyspark") is None:
        raise Skipped("pyspark is not installed")
    try:
        home = maven.java().home
    except maven.PeerUnavailable as why:
        raise Skipped(str(why)) from None
    source, version, jars = ("kafka", *_connector()) if stage.name == "kafka" else ("ottla", "", [])
    if source == "ottla" and importlib.util.find_spec("pyspark_ottla") is None:
        raise Skipped("this Ottla has no Spark source")
    topic, rows = stage.filled_topic(VALUE_SIZE, PARTITIONS, scale.spark_rows * VALUE_SIZE)
    detail = stage.load("spark_read", topic, source=source, jars=jars, rows=rows, passes=PASSES, java_home=home)
    figures = {"rows": detail["rows_per_s"] / 1e6, "server CPU": detail["server_cpu_s"] / (detail["records"] * VALUE_SIZE / 1e9)}
    return Measured(figures, {**detail, "connector": version})


def _connector() -> tuple[str, list[str]]:
    """The version and the jars of Spark's own Kafka connector: of the installed Spark's line (4.3.x for 4.3.0)."""
    line = ".".join(importlib.metadata.version("pyspark").split(".")[:2])
    try:
        version, lib = maven.newest("spark-connector", "org.apache.spark", ARTIFACT, pattern=rf"{re.escape(line)}\.\d+")
    except maven.PeerUnavailable as why:
        raise Skipped(str(why)) from None
    spec = importlib.util.find_spec("pyspark")
    assert spec is not None and spec.origin is not None, "the caller has seen that pyspark is there"
    shipped = {path.name for path in (Path(spec.origin).parent / "jars").glob("*.jar")}
    return version, sorted(str(path) for path in lib.glob("*.jar") if path.name not in shipped)
