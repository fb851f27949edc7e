"""`python -m bench.iceberg_connect`: a topic into an Iceberg table, by `ottla table sync` and by Kafka Connect.

    topic orders ──► ottla table sync --format iceberg --once     ──► table of the catalog
                 ──► Kafka Connect, Apache Iceberg's sink, 4 tasks ──► another table of it

Both read the same topic of one `ottla serve` in turn, each round into new tables of one REST catalog (Apache Iceberg's own, on SQLite). For
each it prints records a second from the start of the process until the table has all rows, and for Connect also from when its tasks run;
CPU seconds of the process until then, and its peak of resident memory. Medians of the rounds are printed at the end.

Needs Java 17 and Maven, pyspark for its jars of Hadoop, and pyiceberg.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc
import pyspark

from bench import maven
from bench.spark_delivery import cpu_s
from ottla import Admin, NewTopic, Producer
from ottla.demo.brokers import serving

TOPIC, CONTROL, PARTITIONS = "orders", "control-iceberg", 4
TABLE_ROWS = 500_000
LOOK_S, ROUND_S = 0.25, 900
SINK, CATALOG = "1.12.0", "1.10.0"
#: As in tests/lake/test_iceberg_rest.py.
CATALOG_JARS = (
    f"org.apache.iceberg:iceberg-core:{CATALOG}",
    f"org.apache.iceberg:iceberg-core:{CATALOG}:tests",
    f"org.apache.iceberg:iceberg-data:{CATALOG}",
    f"org.apache.iceberg:iceberg-parquet:{CATALOG}",
    "org.eclipse.jetty:jetty-servlet:11.0.25",
    "org.xerial:sqlite-jdbc:3.50.3.0",
    "org.slf4j:slf4j-nop:2.0.17",
)
SERVER = Path(__file__).parent.parent / "tests" / "lake" / "foreign" / "RestCatalog.java"
WORKER = """bootstrap.servers={bootstrap}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
offset.storage.file.filename={directory}/offsets
plugin.path={directory}/plugins
plugin.discovery=hybrid_warn
listeners=http://127.0.0.1:{port}
connector.client.config.override.policy=All
"""
CONNECTOR = """name={name}
connector.class=org.apache.iceberg.connect.IcebergSinkConnector
tasks.max=4
topics={topic}
iceberg.tables=shop.{name}
iceberg.tables.auto-create-enabled=true
iceberg.catalog.type=rest
iceberg.catalog.uri={uri}
iceberg.control.topic={control}
iceberg.control.commit.interval-ms=10000
consumer.override.auto.offset.reset=earliest
consumer.override.max.poll.records=5000
"""


def fill(bootstrap: str, rows: int) -> None:
    """Write values of JSON with four fields, about 85 bytes."""
    with Producer(bootstrap_servers=bootstrap, compression_type="lz4") as producer:
        for first in range(0, rows, TABLE_ROWS):
            ids = pa.array(range(first, min(first + TABLE_ROWS, rows)), pa.int64())
            text = pc.cast(ids, pa.string())
            users = pc.cast(pc.bit_wise_and(pc.multiply(ids, 7919), 131_071), pa.string())
            amounts = pc.cast(pc.divide(pc.cast(pc.bit_wise_and(pc.multiply(ids, 31), 65_535), pa.float64()), 8.0), pa.string())
            parts = ['{"id": ', text, ', "user": "user-', users, '", "amount": ', amounts, ', "text": "x', text, "-", text, '"}', ""]
            values = pc.binary_join_element_wise(*parts)
            producer.send_table(TOPIC, pa.table({"value": values}), value="value").result()


def memory_mb(pid: int) -> int:
    """Peak of resident memory of a process so far."""
    found = re.search(r"^VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found[1]) // 1024 if found else 0


@contextlib.contextmanager
def rest_catalog(directory: Path) -> Iterator[str]:
    """Apache Iceberg's REST catalog; yields its address."""
    jars = maven.resolved(f"iceberg-rest-and-readers-{CATALOG}", *CATALOG_JARS)
    classes = ":".join([f"{jars}/*", *map(str, hadoop_jars())])
    command = [
        maven.java().path,
        "-Xmx512M",
        "-XX:+UseSerialGC",
        "-cp",
        classes,
        str(SERVER),
        f"{directory}/c.db",
        f"file://{directory}/lake",
    ]
    with (directory / "catalog.log").open("wb") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as server:
        try:
            assert server.stdout is not None, "it is a pipe"
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def hadoop_jars() -> list[Path]:
    """Hadoop's file systems, which the sink and the catalog need for a directory."""
    found = (Path(pyspark.__file__).parent / "jars").glob("*.jar")
    return [one for one in found if one.name.startswith(("hadoop-client", "commons-logging"))]


class Rounds:
    """The two programs, each into a new table at each call."""

    def __init__(self, directory: Path, bootstrap: str, uri: str, rows: int) -> None:
        from pyiceberg.catalog import load_catalog

        self.directory, self.bootstrap, self.uri, self.rows = directory, bootstrap, uri, rows
        self.catalog = load_catalog("rest", type="rest", uri=uri)
        self.catalog.create_namespace("shop")
        self.connect_jars = maven.newest(
            "connect-mirror", "org.apache.kafka", "connect-mirror", pattern=r"4\.\d+\.\d+", also="org.apache.kafka:connect-file:{version}"
        )
        plugin = directory / "plugins" / "iceberg"
        plugin.mkdir(parents=True)
        sink = maven.resolved(f"iceberg-kafka-connect-{SINK}", f"org.apache.iceberg:iceberg-kafka-connect:{SINK}")
        for jar in [*sink.glob("*.jar"), *hadoop_jars()]:
            (plugin / jar.name).symlink_to(jar)

    def rows_of(self, table: str) -> int:
        from pyiceberg.exceptions import NoSuchTableError

        with contextlib.suppress(NoSuchTableError):
            snapshot = self.catalog.load_table(f"shop.{table}").current_snapshot()
            return 0 if snapshot is None or snapshot.summary is None else int(snapshot.summary["total-records"] or 0)
        return 0

    def ottla(self, table: str) -> dict[str, Any]:
        command = [sys.executable, "-m", "ottla", "table", "sync", TOPIC, "--to", f"shop.{table}", "--format", "iceberg", "--once"]
        command += ["--catalog", "rest", "--catalog-option", "type=rest", "--catalog-option", f"uri={self.uri}", "-b", self.bootstrap]
        began_s = time.monotonic()
        with (self.directory / f"{table}.log").open("wb") as log:
            child = subprocess.Popen(command, stdout=log, stderr=log)
            _, status, usage = os.wait4(child.pid, 0)
            child.returncode = os.waitstatus_to_exitcode(status)
        took_s = time.monotonic() - began_s
        found = self.rows_of(table)
        assert (child.returncode, found) == (0, self.rows), (self.directory / f"{table}.log").read_text(errors="replace")[-2000:]
        cpu = usage.ru_utime + usage.ru_stime
        return {"seconds": took_s, "records_per_s": self.rows / took_s, "cpu_s": cpu, "memory_mb": usage.ru_maxrss // 1024}

    def connect(self, table: str) -> dict[str, Any]:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        files = [self.directory / "worker.properties", self.directory / f"{table}.properties"]
        files[0].write_text(WORKER.format(bootstrap=self.bootstrap, directory=self.directory, port=port))
        files[1].write_text(CONNECTOR.format(name=table, topic=TOPIC, control=CONTROL, uri=self.uri))
        command = [maven.java().path, "-Xmx2G", "-cp", f"{self.connect_jars[1]}/*", "org.apache.kafka.connect.cli.ConnectStandalone"]
        began_s, running_s, running_cpu_s = time.monotonic(), 0.0, 0.0
        with (self.directory / f"{table}.log").open("wb") as log:
            child = subprocess.Popen([*command, *map(str, files)], stdout=log, stderr=log)
        try:
            while (found := self.rows_of(table)) < self.rows:
                assert child.poll() is None and time.monotonic() < began_s + ROUND_S, f"{found} rows; see {self.directory}/{table}.log"
                if not running_s and tasks_run(port, table):
                    running_s, running_cpu_s = time.monotonic(), cpu_s(child.pid)
                time.sleep(LOOK_S)
            ended_s, cpu = time.monotonic(), cpu_s(child.pid)
            assert found == self.rows, f"{found} rows of {self.rows} records"
            rates = {"records_per_s": self.rows / (ended_s - began_s), "records_per_s_running": self.rows / (ended_s - running_s)}
            memory = memory_mb(child.pid)
        finally:
            child.kill()
            child.wait()
        return {"seconds": ended_s - began_s, **rates, "cpu_s": cpu, "cpu_s_running": cpu - running_cpu_s, "memory_mb": memory}


def tasks_run(port: int, name: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/connectors/{name}/status", timeout=2) as answer:
        tasks = json.load(answer)["tasks"]
        return bool(tasks) and all(task["state"] == "RUNNING" for task in tasks)
    return False


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--records", type=click.IntRange(1), default=4_000_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rounds here, too.")
@click.option("--directory", type=click.Path(file_okay=False, exists=True, path_type=Path), help="Where data is kept for the time.")
def main(records: int, rounds: int, json_path: Path | None, directory: Path | None) -> None:
    """Compare `ottla table sync` with Kafka Connect's Iceberg sink."""
    # Child processes must not outlive a terminated run.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    found: dict[str, list[dict[str, Any]]] = {"ottla": [], "connect": []}
    with tempfile.TemporaryDirectory(prefix="ottla-iceberg-", dir=directory, ignore_cleanup_errors=True) as made:
        home = Path(made)
        with rest_catalog(home) as uri, serving(home / "data", home / "server.log", brokers=1) as bootstrap:
            with Admin(bootstrap_servers=bootstrap) as admin:
                for topic, partitions in ((TOPIC, PARTITIONS), (CONTROL, 1)):
                    admin.create_topic(NewTopic(topic, partitions))
            fill(bootstrap, records)
            programs = Rounds(home, bootstrap, uri, records)
            click.echo(f"Kafka Connect {programs.connect_jars[0]}, iceberg-kafka-connect {SINK}", err=True)
            for number in range(rounds):
                for name, program in (("ottla", programs.ottla), ("connect", programs.connect)):
                    figures = {key: round(value, 1) for key, value in program(f"{name}{number}").items()}
                    found[name].append({**figures, "load": round(os.getloadavg()[0], 1)})
                    click.echo(f"{name}: {json.dumps(found[name][-1])}", err=True)
    medians = {name: {key: statistics.median(one[key] for one in all_) for key in all_[0]} for name, all_ in found.items()}
    text = json.dumps({"records": records, "rounds": found, "medians": medians}, indent=1)
    click.echo(text)
    if json_path is not None:
        json_path.write_text(text + "\n")


if __name__ == "__main__":
    main()
