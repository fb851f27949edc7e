"""Spark Declarative Pipelines: the example, run with Spark's command as in its README."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla import Admin, Consumer, NewTopic, Producer
from ottla.spark.java import java_home, launcher_home

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "declarative"
NEEDED = ("pandas", "grpc", "grpc_status", "google.rpc", "zstandard", "yaml")
TOPICS = ("orders", "large-orders")


@pytest.fixture
def topics(bootstrap: str) -> Iterator[None]:
    """The topics of the example, under the names in its files."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        for name in TOPICS:
            admin.create_topic(NewTopic(name, 2))
        yield
        admin.delete_topics(list(TOPICS))


def pipelines_command(project: Path, bootstrap: str) -> "subprocess.CompletedProcess[str]":
    import pyspark

    environment = {
        **os.environ,
        "JAVA_HOME": str(launcher_home(java_home(), project / "java")),
        "OTTLA_BOOTSTRAP_SERVERS": bootstrap,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    settings = {
        "spark.sql.catalogImplementation": "hive",
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-pipelines"), "run", *given]
    return subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=500)


@pytest.mark.usefixtures("topics")
def test_a_declared_pipeline_reads_a_topic_updates_tables_and_writes_a_topic(bootstrap: str, tmp_path: Path) -> None:
    for name in NEEDED:
        pytest.importorskip(name, reason=f"spark-pipelines needs {name}: pip install 'ottla[declarative]'")
    from pyarrow.dataset import dataset

    project = tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/ottla-declarative", (tmp_path / "storage").as_uri()))
    with Producer(bootstrap_servers=bootstrap) as producer:
        for line in (project / "orders.jsonl").read_bytes().splitlines():
            producer.send("orders", line)
    done = pipelines_command(project, bootstrap)
    assert done.returncode == 0 and "Run is COMPLETED" in done.stdout + done.stderr, done.stdout[-4000:] + done.stderr[-4000:]
    orders = dataset(project / "spark-warehouse" / "orders", format="parquet").to_table()
    assert sorted(orders.column("id").to_pylist()) == [1, 2, 3, 4, 5]
    revenue = dataset(project / "spark-warehouse" / "revenue", format="parquet").to_table().to_pylist()
    assert sorted((row["product"], row["orders"], row["revenue"]) for row in revenue) == [
        ("apple", 2, 20.0),
        ("pear", 2, 280.0),
        ("plum", 1, 100.0),
    ]
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for("large-orders")
        consumer.assign(partitions)
        sent: list[tuple[bytes | None, int]] = []
        ends = consumer.end_offsets(partitions)
        # A transaction marker takes an offset.
        while any(consumer.position(partition) < end for partition, end in ends.items()):
            sent += [(record.key, json.loads(record.value)["id"]) for record in consumer.poll(timeout_ms=1000)]
    assert sorted(sent) == [(b"pear", 2), (b"plum", 4)]
