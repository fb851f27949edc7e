"""A pipeline on a real Spark cluster, of one machine: a master, a worker and an executor, each a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ottla.demo.verdict import read_table
from ottla.spark.java import java_home

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

PATIENCE_S = 120.0
PIPELINE = """
bootstrap = "${bootstrap}"
checkpoint = "${dir}/checkpoint"
[source]
topic = "${topic}"
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


@contextmanager
def running(log: Path, pattern: str, *arguments: str) -> Iterator[str]:
    """A process of Spark, for the time of a block; gives what it says in the first group of `pattern` when it is ready."""
    import pyspark

    home = Path(pyspark.__file__).parent
    # The cluster knows nothing of this process's modules: executors are told by the driver.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "PYTHON"))}
    environment |= {"SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1", "JAVA_HOME": str(java_home())}
    with log.open("wb") as said:
        child = subprocess.Popen(
            [home / "bin" / "spark-class", *arguments], stdout=said, stderr=said, env=environment, start_new_session=True
        )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            assert child.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-2000:]
            time.sleep(0.05)
        yield found[1]
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with one worker."""
    directory = tmp_path_factory.mktemp("cluster")
    package = "org.apache.spark.deploy"
    leader = (f"{package}.master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
    with running(directory / "master.log", r"Starting Spark master at (spark://\S+)", *leader) as address:
        follower = (f"{package}.worker.Worker", "--host", "127.0.0.1", "--cores", "2", "--memory", "1g", "--webui-port", "0")
        work = ("--work-dir", str(directory / "work"), address)
        with running(directory / "worker.log", r"Successfully registered with master (\S+)", *follower, *work):
            yield address


def test_a_pipeline_runs_on_a_cluster(master: str, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic(partitions=2)
    topic.add(*[b"%d" % (number % 3) for number in range(60)])
    file = tmp_path / "p.toml"
    file.write_text(PIPELINE)
    variables = {"bootstrap": topic.bootstrap, "dir": str(tmp_path), "topic": topic.name, "master": master}
    given = [part for name, value in variables.items() for part in ("--var", f"{name}={value}")]
    # On the executors the package is where it is here: they are on this machine.
    file.write_text(PIPELINE + f'"executorEnv.PYTHONPATH" = "{os.pathsep.join(filter(None, sys.path))}"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "--once", "-o", "json", *given]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-1] == "stopped"
    assert Counter(read_table(tmp_path / "table").column("value").to_pylist()) == {"0": 20, "1": 20, "2": 20}
