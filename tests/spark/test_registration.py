"""``format("ottla")`` works in every session of a Python that runs by its full path, without its environment on the PATH."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ottla.spark.java import java_home

from .conftest import Topic

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook" / "orders.ipynb"
pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(300)]
SLOW = pytest.mark.slow
RUN_S = 240


def run_by_full_path(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Like a cron job or a notebook kernel: no environment variables except the location and the options of Java."""
    plain = {"PATH": "/usr/bin:/bin", "HOME": os.environ.get("HOME", "/"), "JAVA_HOME": str(java_home()), **environment}
    plain["JDK_JAVA_OPTIONS"] = os.environ["JDK_JAVA_OPTIONS"]
    # Tests may run from a checkout that is not installed.
    plain["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=plain, timeout=RUN_S)


@pytest.mark.parametrize(
    "master",
    [
        "local[1]",
        pytest.param("local-cluster[1,1,1024]", marks=[SLOW, pytest.mark.long]),
        pytest.param("remote:local[1]", marks=[SLOW, pytest.mark.long]),
    ],
)
def test_the_source_is_found_in_sessions_from_before_and_after_the_import(master: str, a_topic: Callable[..., Topic]) -> None:
    connect = master.startswith("remote")
    if connect:
        pytest.importorskip("grpc", reason="Spark Connect needs grpc: pip install 'ottla[declarative]'")
    topic = a_topic()
    topic.add(b"1", b"2", b"3")
    # With SPARK_TESTING the server of Spark Connect uses a free port.
    more = {"SPARK_TESTING": "1"} if connect else {}
    done = run_by_full_path(str(Path(__file__).with_name("read_topic.py")), topic.bootstrap, topic.name, master, **more)
    counts = done.stdout.splitlines()[-1:] if done.stdout else []
    assert counts == [str([3] * (3 if connect else 4))], done.stdout + done.stderr[-3000:]


def test_the_notebook_of_the_examples_runs(bootstrap: str, tmp_path: Path) -> None:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    program = "\n".join("".join(cell["source"]) + "\n" for cell in cells if cell["cell_type"] == "code")
    assert not any(cell.get("outputs") for cell in cells), "the notebook is stored without output"
    # Like a kernel: the cells one after the other, in a process without a script.
    done = run_by_full_path("-c", program, OTTLA_BOOTSTRAP_SERVERS=bootstrap, EXAMPLE_DIRECTORY=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.splitlines()[-1].startswith("anna 2 "), done.stdout
