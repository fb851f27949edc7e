"""A pipeline and a job on a real Spark cluster on one machine: master, worker and executor processes."""

import json
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.standalone import cluster

import ottla
import pyspark_ottla
from ottla.demo.verification import read_table
from ottla.spark.java import java_home

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(600)]

PIPELINE = """
bootstrap = "${bootstrap}"
checkpoint = "${dir}/checkpoint"
[source]
topic = "${topic}"
[functions]
module = "named.py"
files = ["digits.py"]
[[step]]
name = "named"
sql = "SELECT same(named(value)) AS value FROM records"
function = "whole"
columns = "value STRING"
[[sink]]
type = "delta"
path = "${dir}/table"
[spark]
master = "${master}"
"driver.host" = "127.0.0.1"
"driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"executor.extraJavaOptions" = "-XX:TieredStopAtLevel=1"
"executor.memory" = "512m"
"sql.shuffle.partitions" = 2
"""
FUNCTIONS = """
import digits
import pyarrow as pa


def named(value: str) -> str:
    return digits.NAMES[value]


def same(value: pa.StringArray) -> pa.StringArray:
    return value


def whole(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch.filter(pa.array([name in digits.NAMES.values() for name in batch["value"].to_pylist()]))
"""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with one worker."""
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


def test_a_pipeline_runs_on_a_cluster_that_receives_its_functions(master: str, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic(partitions=2)
    topic.add(*[b"%d" % (number % 3) for number in range(60)])
    file = tmp_path / "p.toml"
    # In a directory that executors do not see: both modules are sent to them.
    (tmp_path / "named.py").write_text(FUNCTIONS)
    (tmp_path / "digits.py").write_text('NAMES = {"0": "zero", "1": "one", "2": "two"}\n')
    variables = {"bootstrap": topic.bootstrap, "dir": str(tmp_path), "topic": topic.name, "master": master}
    given = [part for name, value in variables.items() for part in ("--var", f"{name}={value}")]
    # Executors find the package at the same path: they run on this machine.
    file.write_text(PIPELINE + f'"executorEnv.PYTHONPATH" = "{os.pathsep.join(filter(None, sys.path))}"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "--once", "-o", "json", *given]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-1] == "stopped"
    assert Counter(read_table(tmp_path / "table").column("value").to_pylist()) == {"zero": 20, "one": 20, "two": 20}


JOB = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
rows = spark.read.format("ottla").option("bootstrap.servers", sys.argv[1]).option("subscribe", sys.argv[2]).load()
count = rows.count()
rows.write.format("ottla").option("bootstrap.servers", sys.argv[1]).option("topic", sys.argv[3]).mode("append").save()
where = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("ottla").__file__).collect()
print(json.dumps({"count": count, "where": where}))
"""


def test_a_job_finds_the_package_in_its_archive(master: str, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    import pyspark

    topic, copy = a_topic(partitions=2), a_topic(partitions=2)
    topic.add(*[b"%d" % number for number in range(60)])
    packages, job = tmp_path / "packages.tar", tmp_path / "job.py"
    job.write_text(JOB)
    with tarfile.open(packages, "w") as archive:
        for package in (ottla, pyspark_ottla):
            home = Path(str(package.__file__)).parent
            archive.add(home, home.name, filter=lambda one: None if "__pycache__" in one.name else one)
    # The executors have a Python without this environment, and the package's dependencies.
    python, others = getattr(sys, "_base_executable", sys.executable), sysconfig.get_path("platlib")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"PYSPARK_PYTHON": python, "SPARK_HOME": str(Path(pyspark.__file__).parent), "JAVA_HOME": str(java_home())}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(str(ottla.__file__)).parents[1]), others])
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(["packages", others]),
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    }
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master, "--archives", f"{packages}#packages"]
    given = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    done = subprocess.run(
        [*submit, *given, str(job), topic.bootstrap, topic.name, copy.name],
        capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr[-5000:]
    reported = json.loads(done.stdout.splitlines()[-1])
    assert reported["count"] == 60
    assert reported["where"][0].split(os.sep)[-3:] == ["packages", "ottla", "__init__.py"], "it was sent with the job"
    written = ottla.read_table(copy.name, bootstrap_servers=copy.bootstrap).column("value").to_pylist()
    assert sorted(written) == sorted(b"%d" % number for number in range(60))
