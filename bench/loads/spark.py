"""What Spark's sources and sinks can move when nobody does anything with the rows: a batch read, a stream of what is there, a batch write.

One session, the one that Ottla's pipelines run in, measures in turn, pass by pass, against the same server:

    ottla    Ottla's source or sink
    kafka    Spark's own Kafka connector, where its jars are given and it runs in this Spark
    ready    of the reads: a source that does nothing (`ready_source`), so the most that a source in Python can come to here

A pass before the measured ones warms the JVM and its Python workers, and those that read count the rows, which checks the source. Reads go
to Spark's "noop" sink, with all columns; writes come of numbers that Spark makes. Spark's CPU is that of the driver, the JVM and its Python
workers, the start of them left out.
"""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from pyspark.sql import SparkSession

from bench.load import Window
from bench.loads.ready_source import ReadySource
from ottla.spark.session import start_session

WAIT_S = 250


def read(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Reads `topic` as a batch."""
    at, rows = f"{host}:{port}", arguments["rows"]
    ways: dict[str, Prepared] = {
        "ottla": lambda session: _batch_read(_from(session.read, at, topic, "ottla"), rows),
        "kafka": lambda session: _batch_read(_from(session.read, at, topic, "kafka"), rows),
        "ready": lambda session: _batch_read(_ready(session.read, arguments), rows),
    }
    return _measured(pid, arguments, ways)


def stream(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """The same as a stream with Trigger.AvailableNow, with its start and its end."""
    at, rows = f"{host}:{port}", arguments["rows"]
    ways: dict[str, Prepared] = {
        "ottla": lambda session: _stream_read(lambda: _from(session.readStream, at, topic, "ottla"), rows),
        "kafka": lambda session: _stream_read(lambda: _from(session.readStream, at, topic, "kafka"), rows),
        "ready": lambda session: _stream_read(lambda: _ready(session.readStream, arguments), rows),
    }
    return _measured(pid, arguments, ways)


def write(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Writes so many rows to `topic`."""
    at, chosen = f"{host}:{port}", {name: arguments[name] for name in ("value_size", "rows")}
    ways: dict[str, Prepared] = {
        "ottla": lambda session: _batch_write(session, at, topic, source="ottla", **chosen),
        "kafka": lambda session: _batch_write(session, at, topic, source="kafka", **chosen),
    }
    return _measured(pid, arguments, ways)


Prepared = Callable[[SparkSession], Callable[[], object]]


@dataclass(slots=True)
class Way:
    """One of the ways that are measured in turn, and what its passes took."""

    one_pass: Callable[[], object]
    seconds: list[float] = field(default_factory=list)
    spark_cpu_s: float = 0.0
    server_cpu_s: float = 0.0

    def go(self, window: Window) -> None:
        cpu_s = _spark_cpu_s()
        window.open()
        self.one_pass()
        closed = window.close()
        self.seconds.append(closed["seconds"])
        self.server_cpu_s += closed["server_cpu_s"]
        self.spark_cpu_s += _spark_cpu_s() - cpu_s

    def told(self, rows: int) -> dict[str, Any]:
        """Rows a second of the median pass, and the sums of all passes."""
        return {
            "records": rows * len(self.seconds),
            "rows_per_s": rows / statistics.median(self.seconds),
            "pass_seconds": self.seconds,
            "spark_cpu_s": self.spark_cpu_s,
            "server_cpu_s": self.server_cpu_s,
        }


def _measured(pid: int, arguments: dict[str, Any], ways: dict[str, Prepared]) -> dict[str, Any]:
    """What each way came to by its name; for the connector, if it does not run, why."""
    session = _session(arguments["jars"], arguments["java_home"])
    try:
        there: dict[str, Way] = {}
        why_not = ""
        for name, prepared in ways.items():
            if name == "kafka" and not arguments["jars"]:
                continue
            try:
                there[name] = Way(prepared(session))
                there[name].one_pass()
            except Exception as error:
                if name != "kafka":
                    raise
                there.pop(name, None)
                why_not = str(error).splitlines()[0][:300]
        window = Window(pid)
        for _ in range(arguments["passes"]):
            for way in there.values():
                way.go(window)
        return {"ways": {name: way.told(arguments["rows"]) for name, way in there.items()}, "connector_failed": why_not}
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


def _batch_write(session: SparkSession, bootstrap: str, topic: str, *, value_size: int, source: str, rows: int) -> Callable[[], object]:
    frame = session.range(0, rows, 1, session.sparkContext.defaultParallelism).selectExpr(
        f"rpad(CAST(id AS STRING), {value_size}, 'x') AS value"
    )
    writer = frame.write.format(source).options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).mode("append")
    return lambda: writer.save()
