"""A pipeline on a real Spark cluster, of one machine: a master, a worker and an executor, each a process of its own."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from chaos.standalone import cluster

from ottla.demo.verdict import read_table

from .conftest import Topic

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark"), pytest.mark.timeout(600)]

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
sql = "SELECT named(value) AS value FROM records"
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


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a cluster with one worker."""
    with cluster(tmp_path_factory.mktemp("cluster")) as address:
        yield address


def test_a_pipeline_runs_on_a_cluster_to_which_its_functions_travel(master: str, a_topic: Callable[..., Topic], tmp_path: Path) -> None:
    topic = a_topic(partitions=2)
    topic.add(*[b"%d" % (number % 3) for number in range(60)])
    file = tmp_path / "p.toml"
    # Beside the file, where executors do not look: both modules travel to them.
    (tmp_path / "named.py").write_text("import digits\n\ndef named(value: str) -> str:\n    return digits.NAMES[value]\n")
    (tmp_path / "digits.py").write_text('NAMES = {"0": "zero", "1": "one", "2": "two"}\n')
    variables = {"bootstrap": topic.bootstrap, "dir": str(tmp_path), "topic": topic.name, "master": master}
    given = [part for name, value in variables.items() for part in ("--var", f"{name}={value}")]
    # On the executors the package is where it is here: they are on this machine.
    file.write_text(PIPELINE + f'"executorEnv.PYTHONPATH" = "{os.pathsep.join(filter(None, sys.path))}"\n')
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    run = [sys.executable, "-m", "ottla", "pipeline", "run", str(file), "--once", "-o", "json", *given]
    done = subprocess.run(run, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [json.loads(line)["event"] for line in done.stdout.splitlines()][-1] == "stopped"
    assert Counter(read_table(tmp_path / "table").column("value").to_pylist()) == {"zero": 20, "one": 20, "two": 20}
