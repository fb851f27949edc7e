"""`python -m bench.spark_state`: a pipeline whose state grows to millions of keys, and how long its restart takes.

    topic ──► deduplicate = ["id"], forever ──► Delta table     each key once

A key is text of 16 bytes. Of five records four have a new key; the fifth repeats an earlier one, far back. `ottla pipeline run` reads
batches of `--batch` records, one after the other. When the state has `--keys` keys, its processes are killed (-9), most often in the middle
of a batch, and it starts again. In the end the table must have each key once.

For stages of the state it prints records a second, the median time of a batch, the peaks of resident memory since the stage before (the
JVM, with memory outside of its heap; all Python processes of the pipeline), and the size of the checkpoint and of Spark's local files. A
pipeline that ends before, for lack of memory say, is a result too.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from bench.spark_delivery import cpu_s
from bench.spark_memory import children
from ottla import Admin, NewTopic, Producer
from ottla.base.units import KiB, MiB
from ottla.demo.brokers import serving
from ottla.lake.table.delta import opened

SOURCE, PARTITIONS = "source", 4
SEND_ROWS = 500_000
SAMPLE_S = 0.5
#: Keys are numbers of 16 digits in an order of no use to a sorted store: the step has no factor in common with the range.
FIRST_KEY, KEY_RANGE, KEY_STEP = 10**15, 9 * 10**15, 899_999_999_981
#: One record in so many repeats an earlier key.
REPEAT_ONE_IN = 5
#: Parts of `--keys` after which figures are printed.
STAGES = (0.1, 0.2, 0.5, 1.0)
#: Batches that are left when the pipeline is killed.
BATCHES_LEFT = 2
PROVIDER = "org.apache.spark.sql.execution.streaming.state"
STORES = {"rocksdb": f"{PROVIDER}.RocksDBStateStoreProvider", "memory": f"{PROVIDER}.HDFSBackedStateStoreProvider"}
PIPELINE = """name = "state"
bootstrap = "{bootstrap}"
checkpoint = "{directory}/checkpoint"
trigger = "continuous"

[source]
topic = "source"
options = {{ maxOffsetsPerTrigger = {batch} }}

[decode]
format = "text"

[[step]]
name = "keys"
sql = "SELECT value AS id FROM records"
deduplicate = ["id"]

[[sink]]
type = "delta"
path = "{directory}/table"
mode = "append"

[spark]
master = "local[2]"
"local.dir" = "{directory}/local"
{settings}
"""


@dataclass(slots=True)
class Peak:
    """Resident memory of a pipeline, in bytes: the maxima since the last call of `take`. Pages that processes share count once."""

    jvm: int = 0
    python: int = 0

    def look(self, pid: int) -> None:
        found = children(pid)
        self.jvm = max([self.jvm, *(size for program, size in found.values() if program == "java")])
        others = [one for one, (program, _) in found.items() if program != "java"]
        self.python = max(self.python, sum(map(share_of_memory, [pid, *others])))

    def take(self) -> dict[str, int]:
        found = {"jvm_mb": self.jvm // MiB, "python_mb": self.python // MiB}
        self.jvm = self.python = 0
        return found


def share_of_memory(pid: int) -> int:
    """Resident bytes of a process, and of pages that it shares its part; 0 if it has ended."""
    with contextlib.suppress(OSError):
        found = re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
        return int(found[1]) * KiB if found else 0
    return 0


@dataclass
class Run:
    """One `ottla pipeline run`, with its memory."""

    file: Path
    peak: Peak = field(default_factory=Peak)

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "ottla", "pipeline", "run", str(self.file), "-o", "json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._ended = threading.Event()
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            try:
                self.peak.look(self.process.pid)
            except OSError:
                return

    def events(self) -> Iterator[dict[str, Any]]:
        """The lines of the command, as they come."""
        assert self.process.stdout is not None, "it is a pipe"
        for line in self.process.stdout:
            if line.startswith("{"):
                yield json.loads(line)

    def kill(self) -> None:
        """kill -9 of the command and all below it."""
        self._ended.set()
        for pid in [self.process.pid, *children(self.process.pid)]:
            os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate()
        self._ended.set()


def size_mb(path: Path) -> int:
    """Bytes that a directory takes on disk, a file with several names once, in MiB."""
    found = subprocess.run(["du", "-sk", str(path)], capture_output=True, text=True, check=False).stdout
    return int(found.split()[0]) // 1024 if found else 0


def key_numbers(first: int, count: int) -> Any:
    """Which key each record has, from record `first` on: 0 1 2 3 (0) 4 5 6 7 (2) 8 ..."""
    records = pa.array(range(first, first + count), pa.int64())
    new = pc.subtract(records, pc.divide(records, REPEAT_ONE_IN))
    repeats = pc.equal(pc.subtract(records, pc.multiply(pc.divide(records, REPEAT_ONE_IN), REPEAT_ONE_IN)), REPEAT_ONE_IN - 1)
    return pc.if_else(repeats, pc.divide(new, 2), new)


def fill(bootstrap: str, rows: int) -> int:
    """Write the records; returns the number of different keys."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for first in range(0, rows, SEND_ROWS):
            numbers = key_numbers(first, min(SEND_ROWS, rows - first))
            places = pc.multiply(numbers, KEY_STEP)
            places = pc.subtract(places, pc.multiply(pc.divide(places, KEY_RANGE), KEY_RANGE))
            keys = pc.cast(pc.add(places, FIRST_KEY), pa.string())
            producer.send_table(SOURCE, pa.table({"value": keys}), value="value").result()
    return rows - rows // REPEAT_ONE_IN


def in_table(path: Path) -> tuple[int, int]:
    """Rows of the table, and different keys in it."""
    column = pa.table(opened(str(path)).scan(columns=["id"]).read_all()).column("id").cast(pa.string())
    return len(column), pc.count_distinct(column).as_py()


def grow(run: Run, keys: int, directory: Path) -> Iterator[dict[str, Any]]:
    """Run until the state has so many keys, or the pipeline ends; yields the figures of each stage."""
    stages = [max(1, int(keys * part)) for part in STAGES]
    began_s, began_cpu_s, records, batches_ms = time.monotonic(), cpu_s(run.process.pid), 0, []
    for event in run.events():
        if event["event"] == "stopped":
            sizes = {"checkpoint_mb": size_mb(directory / "checkpoint"), "local_mb": size_mb(directory / "local")}
            yield {"ended": event.get("error") or event["reason"], **run.peak.take(), **sizes}
            return
        if event["event"] != "progress":
            if event["event"] == "started":
                began_s, began_cpu_s = time.monotonic(), cpu_s(run.process.pid)
            continue
        records += event["rows_in"]
        batches_ms.append(event["batch_ms"])
        if event["state_rows"] < stages[0]:
            continue
        while stages and event["state_rows"] >= stages[0]:
            del stages[0]
        sizes = {"checkpoint_mb": size_mb(directory / "checkpoint"), "local_mb": size_mb(directory / "local")}
        rate = {
            "records_per_s": round(records / (time.monotonic() - began_s)),
            "cpu_s_per_million": round((cpu_s(run.process.pid) - began_cpu_s) * 1e6 / records, 1),
            "batch_s": round(statistics.median(batches_ms) / 1000, 1),
        }
        yield {"keys": event["state_rows"], **rate, "load": round(os.getloadavg()[0], 1), **run.peak.take(), **sizes}
        if not stages:
            return
        began_s, began_cpu_s, records, batches_ms = time.monotonic(), cpu_s(run.process.pid), 0, []


def restart(file: Path) -> tuple[Run, dict[str, Any]]:
    """Start again after a kill; until the first new batch is complete."""
    began_s = time.monotonic()
    run = Run(file)
    found: dict[str, Any] = {}
    for event in run.events():
        if event["event"] in ("started", "progress"):
            found.setdefault(f"{event['event']}_s", round(time.monotonic() - began_s, 1))
        if event["event"] == "progress":
            found |= {"batch_s": round(event["batch_ms"] / 1000, 1), "cpu_s": round(cpu_s(run.process.pid), 1)}
            break
    return run, {**found, "load": round(os.getloadavg()[0], 1), **run.peak.take()}


def measured(settings: dict[str, str], keys: int, batch: int, directory: Path) -> dict[str, Any]:
    """All figures, and whether the table has each key once."""
    file = directory / "state.toml"
    (directory / "local").mkdir()
    lines = "\n".join(f'"{name}" = "{value}"' for name, value in settings.items())
    outcome: dict[str, Any] = {"settings": settings, "stages": []}
    with serving(directory / "data", directory / "server.log", brokers=1) as bootstrap:
        with Admin(bootstrap_servers=bootstrap) as admin:
            admin.create_topic(NewTopic(SOURCE, PARTITIONS))
        rows = math.ceil(keys / (1 - 1 / REPEAT_ONE_IN)) + BATCHES_LEFT * batch
        expected = fill(bootstrap, rows)
        file.write_text(PIPELINE.format(bootstrap=bootstrap, directory=directory, batch=batch, settings=lines))
        run = Run(file)
        try:
            for stage in grow(run, keys, directory):
                outcome["stages"].append(stage)
                click.echo(json.dumps(stage), err=True)
            if "ended" in outcome["stages"][-1]:
                return outcome
            run.kill()
            run, outcome["restart"] = restart(file)
            click.echo(f"restart: {json.dumps(outcome['restart'])}", err=True)
            next((event for event in run.events() if event["event"] == "progress" and event["lag"] == 0), None)
            run.stop()
        finally:
            if run.process.poll() is None:
                run.kill()
    found, different = in_table(directory / "table")
    return {**outcome, "records": rows, "doubled": found - different, "missing": expected - different}


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--store", type=click.Choice(sorted(STORES)), default="rocksdb", show_default=True, help="Where Spark keeps the state.")
@click.option("--keys", type=click.IntRange(10), default=10_000_000, show_default=True, help="Size of the state.")
@click.option("--batch", type=click.IntRange(5), default=500_000, show_default=True, help="Records of a batch.")
@click.option("--heap-mb", type=click.IntRange(512), default=2048, show_default=True, help="Of the JVM (driver.memory).")
@click.option("--set", "more", multiple=True, metavar="NAME=VALUE", help="Another setting of [spark]; repeatable.")
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the outcome here, too.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data is kept for the time.")
def main(store: str, keys: int, batch: int, heap_mb: int, more: tuple[str, ...], json_path: Path | None, directory: Path | None) -> None:
    """Measure a pipeline with a large state, and its restart."""
    # Child processes must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    settings = {"driver.memory": f"{heap_mb}m", "sql.streaming.stateStore.providerClass": STORES[store]}
    settings |= dict(one.partition("=")[::2] for one in more)
    with tempfile.TemporaryDirectory(prefix="ottla-state-", dir=directory, ignore_cleanup_errors=True) as made:
        outcome = measured(settings, keys, batch, Path(made))
    text = json.dumps(outcome, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")
    # A pipeline that lacks memory is a result; rows that are missing or doubled are not.
    sys.exit(1 if outcome.get("missing") or outcome.get("doubled") else 0)


if __name__ == "__main__":
    main()
