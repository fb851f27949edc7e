"""What Spark's sources and sinks can move when nobody does anything with the rows: a batch read, a stream of what is there, a batch write.

The session is the one that Ottla's pipelines run in, for every source. A pass before the measured ones warms the JVM and its Python
workers, and those that read count the rows, which checks the source. Reads go to Spark's "noop" sink, with all columns; writes come of
numbers that Spark makes. Spark's CPU is that of the driver, the JVM and its Python workers, the start of them left out.

In turn with the measured passes of a read go passes of a source that does nothing (`ready_source`): what share of its rows a second the
measured source comes to says more about the source than rows a second, which are Spark's and the machine's first of all.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil
from pyspark.sql import SparkSession

from bench.load import Window
from bench.loads.ready_source import ReadySource
from ottla.spark.session import start_session

WAIT_S = 250


def read(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Reads `topic` with `format(source)` as a batch; rows a second of the median pass."""
    rows = arguments["rows"]
    return _measured(
        pid,
        arguments,
        lambda session: _batch_read(_from(session.read, f"{host}:{port}", topic, arguments["source"]), rows),
        lambda session: _batch_read(_ready(session.read, arguments), rows),
    )


def stream(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """The same as a stream with Trigger.AvailableNow, with its start and its end."""
    rows = arguments["rows"]
    return _measured(
        pid,
        arguments,
        lambda session: _stream_read(lambda: _from(session.readStream, f"{host}:{port}", topic, arguments["source"]), rows),
        lambda session: _stream_read(lambda: _ready(session.readStream, arguments), rows),
    )


def write(host: str, port: int, pid: int, topic: str, *, value_size: int, **arguments: Any) -> dict[str, Any]:
    """Writes so many rows to `topic`."""
    chosen = {name: arguments[name] for name in ("source", "rows")}
    return _measured(pid, arguments, lambda session: _batch_write(session, f"{host}:{port}", topic, value_size, **chosen))


Prepared = Callable[[SparkSession], Callable[[], object]]


def _measured(pid: int, arguments: dict[str, Any], prepared: Prepared, beside: Prepared | None = None) -> dict[str, Any]:
    """Runs what `prepared` gives once, and then `passes` times in the window; what `beside` gives before each of them, outside."""
    session = _session(arguments["jars"], arguments["java_home"])
    try:
        one_pass = prepared(session)
        other_pass = beside(session) if beside else None
        for warming in filter(None, (other_pass, one_pass)):
            warming()
        window = Window(pid)
        seconds, ready_seconds, sums = [], [], dict.fromkeys(("server_cpu_s", "load_cpu_s", "spark_cpu_s", "seconds"), 0.0)
        for _ in range(arguments["passes"]):
            if other_pass:
                ready_seconds.append(_seconds(other_pass))
            cpu_s = _spark_cpu_s()
            window.open()
            seconds.append(_seconds(one_pass))
            found = {**window.close(), "spark_cpu_s": _spark_cpu_s() - cpu_s}
            sums = {name: sums[name] + found[name] for name in sums}
        rows = arguments["rows"]
        beside_it = {"ready_seconds": ready_seconds, "of_ready": statistics.median(ready_seconds) / statistics.median(seconds)}
        return {
            **sums,
            "records": rows * len(seconds),
            "rows_per_s": rows / statistics.median(seconds),
            "pass_seconds": seconds,
            **(beside_it if other_pass else {}),
        }
    finally:
        session.stop()


def _seconds(one_pass: Callable[[], object]) -> float:
    began = time.perf_counter()
    one_pass()
    return time.perf_counter() - began


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
    settings = {"spark.driver.memory": "2g", **({"spark.jars": ",".join(jars)} if jars else {})}
    session: SparkSession = start_session("ottla-bench", settings)
    session.dataSource.register(ReadySource)
    return session


def _from(reader: Any, bootstrap: str, topic: str, source: str) -> Any:
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    return reader.format(source).options(**options).load()


def _ready(reader: Any, arguments: dict[str, Any]) -> Any:
    tasks = os.cpu_count() or 1
    return reader.format(ReadySource.name()).options(rows=arguments["rows"], tasks=tasks, valueSize=arguments["value_size"]).load()


def _check(counted: int, rows: int) -> None:
    if counted != rows:
        raise RuntimeError(f"the source read {counted:,} rows of {rows:,}")


def _batch_read(frame: Any, rows: int) -> Callable[[], object]:
    _check(frame.count(), rows)
    return lambda: frame.write.format("noop").mode("overwrite").save()


def _stream_read(frame: Callable[[], Any], rows: int) -> Callable[[], object]:
    def one_pass() -> None:
        checkpoint = tempfile.mkdtemp(prefix="ottla-bench-")
        try:
            writer = frame().writeStream.format("noop").option("checkpointLocation", checkpoint)
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(WAIT_S):
                raise RuntimeError(f"the stream did not end within {WAIT_S} s")
            _check(sum(progress.numInputRows for progress in query.recentProgress), rows)
        finally:
            shutil.rmtree(checkpoint, ignore_errors=True)

    return one_pass


def _batch_write(session: SparkSession, bootstrap: str, topic: str, value_size: int, *, source: str, rows: int) -> Callable[[], object]:
    frame = session.range(0, rows, 1, session.sparkContext.defaultParallelism).selectExpr(
        f"rpad(CAST(id AS STRING), {value_size}, 'x') AS value"
    )
    writer = frame.write.format(source).options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).mode("append")
    return lambda: writer.save()
