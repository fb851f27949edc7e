"""What Spark's sources and sinks can move when nobody does anything with the rows: a batch read, a stream of what is there, one of small
batches, a batch write.

The ways to do it are measured in turn, pass by pass, against the same server:

    ottla    Ottla's source or sink
    kafka    Spark's own Kafka connector, where its jars are given and it runs in this Spark
    ready    of the reads: a source that does nothing (`ready_source`), so the most that a source in Python can come to here

Each has a process of its own with a session of its own, the one that Ottla's pipelines run in, as it would have where it is used: in one
JVM they would spoil what the compiler has learnt of each other. Passes before the measured ones warm the JVM and its Python workers, and
those that read count the rows first, which checks the source. The time of the first pass, with a session just started, is kept too. Reads
go to Spark's "noop" sink, with all columns, and small batches to Parquet files; writes come of numbers that Spark makes. Spark's CPU is
that of the driver, the JVM and its Python workers, the start of them left out.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from multiprocessing.connection import Connection
from typing import Any

import psutil
from pyspark.sql import SparkSession

from bench.load import Window
from bench.loads.ready_source import ReadySource
from ottla.spark.session import start_session

WAIT_S = 250
#: The compiler is done with most of it by then.
WARM_UP_PASSES = 3


def read(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Reads `topic` as a batch."""
    return _measured(pid, "read", ("ottla", "kafka", "ready"), {"at": f"{host}:{port}", "topic": topic, **arguments})


def stream(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """The same as a stream with Trigger.AvailableNow, with its start and its end."""
    return _measured(pid, "stream", ("ottla", "kafka", "ready"), {"at": f"{host}:{port}", "topic": topic, **arguments})


def batches(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Writes `topic` to Parquet files as a stream of small batches, with its start and its end."""
    return _measured(pid, "batches", ("ottla", "kafka"), {"at": f"{host}:{port}", "topic": topic, **arguments})


def write(host: str, port: int, pid: int, topic: str, **arguments: Any) -> dict[str, Any]:
    """Writes so many rows to `topic`."""
    return _measured(pid, "write", ("ottla", "kafka"), {"at": f"{host}:{port}", "topic": topic, **arguments})


class MeasuredProcess:
    """One of the ways that are measured in turn, in a process of its own, and what its passes took."""

    def __init__(self, kind: str, source: str, arguments: dict[str, Any]) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._asked, self._theirs = spawning.Pipe()
        self._process = spawning.Process(target=_passes, args=(self._theirs, kind, source, arguments))
        self.seconds: list[float] = []
        self.first_s = 0.0
        self.spark_cpu_s = 0.0
        self.server_cpu_s = 0.0

    def __enter__(self) -> MeasuredProcess:
        self._process.start()
        # Theirs alone, so that each end sees when the other is gone.
        self._theirs.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._asked.close()
        self._process.join()

    def why_not(self) -> str:
        """Waits until it is warm; why it cannot be measured, or nothing."""
        why_not, self.first_s = self._asked.recv()
        return str(why_not)

    def go(self, window: Window) -> None:
        window.open()
        self._asked.send(None)
        cpu_s, failed = self._asked.recv()
        closed = window.close()
        if failed:
            raise RuntimeError(failed)
        self.seconds.append(closed["seconds"])
        self.server_cpu_s += closed["server_cpu_s"]
        self.spark_cpu_s += cpu_s

    def told(self, rows: int) -> dict[str, Any]:
        """Rows a second of the median pass, and the sums of all passes."""
        return {
            "records": rows * len(self.seconds),
            "rows_per_s": rows / statistics.median(self.seconds),
            "pass_seconds": self.seconds,
            "first_pass_s": self.first_s,
            "spark_cpu_s": self.spark_cpu_s,
            "server_cpu_s": self.server_cpu_s,
        }


def _measured(pid: int, kind: str, sources: tuple[str, ...], arguments: dict[str, Any]) -> dict[str, Any]:
    """What each way came to by its name; for the connector, if it does not run, why."""
    failed = ""
    with ExitStack() as running:
        there: dict[str, MeasuredProcess] = {}
        for source in sources:
            if source == "kafka" and not arguments["jars"]:
                continue
            way = running.enter_context(MeasuredProcess(kind, source, arguments))
            why_not = way.why_not()
            if not why_not:
                there[source] = way
            elif source == "kafka":
                failed = why_not
            else:
                raise RuntimeError(why_not)
        window = Window(pid)
        for _ in range(arguments["passes"]):
            for way in there.values():
                way.go(window)
        return {"ways": {name: way.told(arguments["rows"]) for name, way in there.items()}, "connector_failed": failed}


def _passes(asked: Connection, kind: str, source: str, arguments: dict[str, Any]) -> None:
    """In a process of its own: warms up, says so, and does one pass for each question, until nobody asks any more."""
    session = _session(arguments["jars"] if source == "kafka" else [], arguments["java_home"])
    try:
        why_not, first_s = "", 0.0
        try:
            began_s = time.perf_counter()
            one_pass = _prepared(session, kind, source, arguments)
            for _ in range(WARM_UP_PASSES):
                one_pass()
                first_s = first_s or time.perf_counter() - began_s
        except Exception as error:
            why_not = _said(error)
        asked.send((why_not, first_s))
        while True:
            try:
                asked.recv()
            except EOFError:
                return
            began_s, failed = _spark_cpu_s(), ""
            try:
                one_pass()
            except Exception as error:
                failed = _said(error)
            asked.send((_spark_cpu_s() - began_s, failed))
    finally:
        session.stop()


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def _prepared(session: SparkSession, kind: str, source: str, arguments: dict[str, Any]) -> Callable[[], object]:
    rows = arguments["rows"]
    if kind == "write":
        return _batch_write(session, arguments, source)
    if kind == "stream":
        return _stream_read(lambda: _from(session.readStream, source, arguments), rows)
    if kind == "batches":
        small = {"maxOffsetsPerTrigger": str(rows // arguments["batches"])}
        return _stream_read(lambda: _from(session.readStream, source, arguments, small), rows, "parquet")
    return _batch_read(_from(session.read, source, arguments), rows)


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


def _from(reader: Any, source: str, arguments: dict[str, Any], more: Mapping[str, str] = {}) -> Any:
    if source == "ready":
        options = {"rows": arguments["rows"], "tasks": os.cpu_count() or 1, "valueSize": arguments["value_size"]}
        return reader.format(ReadySource.name()).options(**options).load()
    options = {"kafka.bootstrap.servers": arguments["at"], "subscribe": arguments["topic"], "startingOffsets": "earliest", **more}
    return reader.format(source).options(**options).load()


def _check(counted: int, rows: int) -> None:
    if counted != rows:
        raise RuntimeError(f"the source read {counted:,} rows of {rows:,}")


def _batch_read(frame: Any, rows: int) -> Callable[[], object]:
    _check(frame.count(), rows)
    return lambda: frame.write.format("noop").mode("overwrite").save()


def _stream_read(frame: Callable[[], Any], rows: int, sink: str = "noop") -> Callable[[], object]:
    def one_pass() -> None:
        directory = tempfile.mkdtemp(prefix="ottla-bench-")
        try:
            writer = frame().writeStream.format(sink).option("checkpointLocation", f"{directory}/checkpoint")
            writer = writer.option("path", f"{directory}/files") if sink == "parquet" else writer
            query = writer.trigger(availableNow=True).start()
            if not query.awaitTermination(WAIT_S):
                raise RuntimeError(f"the stream did not end within {WAIT_S} s")
            _check(sum(progress.numInputRows for progress in query.recentProgress), rows)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    return one_pass


def _batch_write(session: SparkSession, arguments: dict[str, Any], source: str) -> Callable[[], object]:
    frame = session.range(0, arguments["rows"], 1, session.sparkContext.defaultParallelism).selectExpr(
        f"rpad(CAST(id AS STRING), {arguments['value_size']}, 'x') AS value"
    )
    writer = frame.write.format(source).options(**{"kafka.bootstrap.servers": arguments["at"], "topic": arguments["topic"]}).mode("append")
    return lambda: writer.save()
