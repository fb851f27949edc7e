"""`python -m bench.spark_memory`: memory of Spark for a topic that is many times larger than its heap.

    read        spark.read, and the rows are dropped
    copy        spark.read into another topic
    stream      one AvailableNow batch without any limit, into another topic
    pipeline    `ottla pipeline run --once` in a process of its own: a topic and a Delta table from one view

For each it prints the peak of resident memory: of the JVM (its fixed heap and some hundred MB more), of the largest Python worker,
and of all Python workers together, about one for each core and kind of work.
None of these grows with the topic: readers and writers hold a few fetches and batches, Spark some rows of each task.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ottla import Admin, Consumer, NewTopic, Producer
from ottla.base.units import KiB, MiB
from ottla.demo.brokers import serving

SOURCE, PARTITIONS = "source", 4
VALUE_BYTES = KiB
TABLE_BYTES = 16 * MiB
SAMPLE_S = 0.1
#: Bytes as letters, so that a value is text.
LETTERS = bytes(ord("0") + byte % 64 for byte in range(256))
#: Spark refuses a heap below one and a half times its reserved memory, 300 MiB by default.
RESERVED_BYTES = 64 * MiB
PIPELINE = """name = "memory"
bootstrap = "{bootstrap}"
checkpoint = "{directory}/checkpoint"

[source]
topic = "source"

[[step]]
name = "copied"
sql = "SELECT value, _partition AS part, _offset AS place FROM records"

[[sink]]
type = "topic"
topic = "pipeline"

[[sink]]
type = "delta"
path = "{directory}/table"
mode = "append"

[spark]
{settings}
"""


def children(pid: int) -> dict[int, tuple[str, int]]:
    """The descendants of a process: program name and resident bytes."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            parents.setdefault(int((entry / "stat").read_text().rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found: dict[int, tuple[str, int]] = {}
    waiting = [pid]
    while waiting:
        for one in parents.get(waiting.pop(), []):
            waiting.append(one)
            with contextlib.suppress(OSError, ValueError):
                program = Path(f"/proc/{one}/cmdline").read_text(errors="replace").partition("\0")[0]
                pages = int(Path(f"/proc/{one}/statm").read_text().split()[1])
                found[one] = (Path(program).name, pages * os.sysconf("SC_PAGE_SIZE"))
    return found


@dataclass(slots=True)
class MemoryPeak:
    """The maxima, in bytes."""

    jvm: int = 0
    python: int = 0
    largest_python: int = 0

    def look(self, pid: int) -> None:
        now = children(pid)
        jvms = {one for one, (program, _) in now.items() if program == "java"}
        workers = [size for jvm in jvms for program, size in children(jvm).values() if program != "java"]
        self.jvm = max([self.jvm, *(now[jvm][1] for jvm in jvms)])
        self.python = max(self.python, sum(workers))
        self.largest_python = max([self.largest_python, *workers])


@contextlib.contextmanager
def watched(pid: int) -> Iterator[MemoryPeak]:
    """The peak memory of the JVMs below a process and their Python workers, for the time of the block."""
    peak, ending = MemoryPeak(), threading.Event()

    def look() -> None:
        while not ending.wait(SAMPLE_S):
            peak.look(pid)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield peak
    finally:
        ending.set()
        thread.join()


def fill(bootstrap: str, size: int) -> int:
    """Write this many bytes of values into the source topic; returns the number of rows."""
    import pyarrow as pa

    rows = TABLE_BYTES // VALUE_BYTES
    text = os.urandom(TABLE_BYTES).translate(LETTERS)
    values = pa.array([text[at : at + VALUE_BYTES] for at in range(0, TABLE_BYTES, VALUE_BYTES)], pa.binary())
    table = pa.table({"value": values})
    times = -(-size // TABLE_BYTES)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for _ in range(times):
            producer.send_table(SOURCE, table, value="value").result()
    return times * rows


def size_of(bootstrap: str, topic: str) -> int:
    """Number of committed records in a topic. Offsets count transaction markers too, so the records are read."""
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(topic)
        consumer.assign(partitions)
        ends, count = consumer.end_offsets(partitions), 0
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            count += consumer.poll_table(timeout_ms=1000).num_rows
        return count


def settings_for(heap_mb: int) -> dict[str, str]:
    return {"spark.driver.memory": f"{heap_mb}m", "spark.testing.reservedMemory": str(RESERVED_BYTES)}


def in_spark(bootstrap: str, heap_mb: int, directory: Path, ways: tuple[str, ...]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The measurements that one session can make."""
    from ottla.spark.session import start_session

    if not set(ways) - {"pipeline"}:
        return
    spark = start_session("bench.spark_memory", settings_for(heap_mb), log_file=directory / "spark.log")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": SOURCE}
    to = {"kafka.bootstrap.servers": bootstrap}

    def stream() -> None:
        frame = spark.readStream.format("ottla").options(**options, startingOffsets="earliest").load().select("value")
        writer = frame.writeStream.format("ottla").options(**to, topic="stream").option("checkpointLocation", str(directory / "stream"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        assert len(query.recentProgress) == 1, "all in one batch"

    def copy() -> None:
        spark.read.format("ottla").options(**options).load().select("value").write.format("ottla").options(**to, topic="copy").mode(
            "append"
        ).save()

    def read() -> None:
        spark.read.format("ottla").options(**options).load().write.format("noop").mode("overwrite").save()

    try:
        for way, go in {"read": read, "copy": copy, "stream": stream}.items():
            if way in ways:
                yield way, go
    finally:
        spark.stop()


def run_pipeline(bootstrap: str, heap_mb: int, directory: Path) -> None:
    file = directory / "memory.toml"
    settings = "\n".join(f'"{name.removeprefix("spark.")}" = "{value}"' for name, value in settings_for(heap_mb).items())
    file.write_text(PIPELINE.format(bootstrap=bootstrap, directory=directory, settings=settings))
    command = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "--once", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"


def measured(ways: tuple[str, ...], heap_mb: int, topic_mb: int, directory: Path) -> dict[str, Any]:
    """The peaks of each measurement in MiB, and whether all rows arrived."""
    with serving(directory / "data", directory / "server.log", brokers=1) as bootstrap:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(SOURCE, PARTITIONS))
            for way in set(ways) - {"read"}:
                # The output is counted, and need not be kept.
                admin.create_topic(NewTopic(way, PARTITIONS))
        rows = fill(bootstrap, topic_mb * MiB)
        outcome: dict[str, Any] = {"heap_mb": heap_mb, "topic_mb": rows * VALUE_BYTES // MiB, "rows": rows, "ways": {}}
        pipeline = [("pipeline", lambda: run_pipeline(bootstrap, heap_mb, directory))] if "pipeline" in ways else []
        for source in (in_spark(bootstrap, heap_mb, directory, ways), iter(pipeline)):
            for way, go in source:
                began_s = time.monotonic()
                with watched(os.getpid()) as peak:
                    go()
                took_s = time.monotonic() - began_s
                found = {"jvm_mb": peak.jvm // MiB, "largest_python_mb": peak.largest_python // MiB, "python_mb": peak.python // MiB}
                arrived = rows if way == "read" else size_of(bootstrap, way)
                outcome["ways"][way] = {**found, "missing": rows - arrived, "seconds": round(took_s, 1)}
                click.echo(f"{way}: {outcome['ways'][way]}", err=True)
    return outcome


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("ways", nargs=-1, type=click.Choice(["read", "copy", "stream", "pipeline"]), metavar="[WAY]...")
@click.option("--heap-mb", type=click.IntRange(192), default=256, show_default=True, help="Of the JVM (spark.driver.memory).")
@click.option("--topic-mb", type=click.IntRange(16), help="Bytes of values in the topic. [default: ten times the heap]")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here, too.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data is kept for the time.")
def main(ways: tuple[str, ...], heap_mb: int, topic_mb: int | None, json_path: Path | None, directory: Path | None) -> None:
    """Measure the memory that Spark uses for a large topic."""
    # Child processes must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory(prefix="ottla-memory-", dir=directory, ignore_cleanup_errors=True) as made:
        outcome = measured(ways or ("read", "copy", "stream", "pipeline"), heap_mb, topic_mb or 10 * heap_mb, Path(made))
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")


if __name__ == "__main__":
    main()
