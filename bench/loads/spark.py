"""What Spark's sources and sinks can move when nobody does anything with the rows: a batch read, a stream of what is there, a batch write.

A pass before the measured ones warms the JVM and its Python workers, and those that read count the rows, which checks the source. Reads go
to Spark's "noop" sink, with all columns; writes come of numbers that Spark makes. Spark's CPU is that of the driver, the JVM and its Python
workers, the start of them left out.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil
from pyspark.sql import SparkSession

from bench.load import Window

WAIT_S = 250


def read(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Reads `topic` with `format(source)` as a batch; rows a second of the median pass."""
    return _measured(pid, arguments, lambda session: _batch_read(session, f"{host}:{port}", topic, **_chosen(arguments)))


def stream(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """The same as a stream with Trigger.AvailableNow, with its start and its end."""
    return _measured(pid, arguments, lambda session: _stream_read(session, f"{host}:{port}", topic, **_chosen(arguments)))


def write(host: str, port: int, pid: int, topic: str, *, value_size: int, **arguments: Any) -> dict[str, Any]:
    """Writes so many rows to `topic`."""
    return _measured(pid, arguments, lambda session: _batch_write(session, f"{host}:{port}", topic, value_size, **_chosen(arguments)))


def _chosen(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: arguments[name] for name in ("source", "rows")}


def _measured(pid: int, arguments: dict[str, Any], prepared: Callable[[SparkSession], Callable[[], object]]) -> dict[str, Any]:
    """Runs what `prepared` gives once, and then `passes` times in the window."""
    session = _session(arguments["jars"], arguments["java_home"])
    try:
        one_pass = prepared(session)
        one_pass()
        window = Window(pid)
        cpu_s = _spark_cpu_s()
        window.open()
        seconds = []
        for _ in range(arguments["passes"]):
            began = time.perf_counter()
            one_pass()
            seconds.append(time.perf_counter() - began)
        found: dict[str, Any] = {**window.close(), "spark_cpu_s": _spark_cpu_s() - cpu_s}
        rows = arguments["rows"]
        return {**found, "records": rows * len(seconds), "rows_per_s": rows / statistics.median(seconds), "pass_seconds": seconds}
    finally:
        session.stop()


def _spark_cpu_s() -> float:
    """CPU seconds of this process and of all below it, those that have ended included."""
    total = 0.0
    for process in (psutil.Process(), *psutil.Process().children(recursive=True)):
        try:
            total += sum(process.cpu_times()[:4])
        except psutil.NoSuchProcess:
            continue
    return total


def _session(jars: list[str], java_home: str) -> SparkSession:
    os.environ.setdefault("JAVA_HOME", java_home)
    # Spark starts its workers with the first python3 on the PATH, which may know nothing of Ottla.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[*]").appName("ottla-bench")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        **({"spark.jars": ",".join(jars)} if jars else {}),
    }.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _from(reader: Any, source: str, bootstrap: str, topic: str) -> Any:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format(source).options(**options).load()


def _check(counted: int, rows: int, source: str) -> None:
    if counted != rows:
        raise RuntimeError(f"format({source!r}) read {counted:,} rows of {rows:,}")


def _batch_read(session: SparkSession, bootstrap: str, topic: str, *, source: str, rows: int) -> Callable[[], object]:
    frame = _from(session.read, source, bootstrap, topic)
    _check(frame.count(), rows, source)
    return lambda: frame.write.format("noop").mode("overwrite").save()


def _stream_read(session: SparkSession, bootstrap: str, topic: str, *, source: str, rows: int) -> Callable[[], object]:
    def one_pass() -> None:
        checkpoint = tempfile.mkdtemp(prefix="ottla-bench-")
        try:
            writer = _from(session.readStream, source, bootstrap, topic).writeStream.format("noop")
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            if not query.awaitTermination(WAIT_S):
                raise RuntimeError(f"the stream did not end within {WAIT_S} s")
            _check(sum(progress.numInputRows for progress in query.recentProgress), rows, source)
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    return one_pass


def _batch_write(session: SparkSession, bootstrap: str, topic: str, value_size: int, *, source: str, rows: int) -> Callable[[], object]:
    frame = session.range(0, rows, 1, session.sparkContext.defaultParallelism).selectExpr(
        f"rpad(CAST(id AS STRING), {value_size}, 'x') AS value"
    )
    writer = frame.write.format(source).options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).mode("append")
    return lambda: writer.save()
