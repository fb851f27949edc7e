"""Killed pipelines and tasks, and topics larger than Spark's memory: each test is a short run of a program with more options.

Slow: each starts Spark's processes again, some of them several times. ``make chaos-pipelines`` kills fifty times.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_S = 900
pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.xdist_group("spark_processes"), pytest.mark.timeout(RUN_S + 60)]


def program_report(outcome: Path, *command: str) -> dict[str, Any]:
    """The report of a program's run."""
    done = subprocess.run(
        [sys.executable, "-m", *command, "--json", str(outcome)], cwd=ROOT, capture_output=True, text=True, timeout=RUN_S, check=False
    )
    assert outcome.exists(), f"{done.stderr[-6000:]}\n{done.stdout}"
    found: dict[str, Any] = json.loads(outcome.read_text())
    return found


@pytest.mark.parametrize(
    # With this seed the kills hit the broker, the driver, the JVM and a Python worker, in this order.
    "killed",
    [["broker", "driver"], pytest.param(["broker", "driver", "jvm", "worker"], marks=pytest.mark.long)],
    ids=" ".join,
)
def test_a_killed_pipeline_writes_each_record_once_to_delta_and_once_to_a_topic(killed: list[str], tmp_path: Path) -> None:
    kills = ("--kills", str(len(killed)), "--seed", "17")
    found = program_report(tmp_path / "outcome.json", "chaos.pipelines", *kills, "--directory", str(tmp_path))
    assert found["problems"] == []
    assert {target: times for target, times in found["kills"].items() if times} == dict.fromkeys(killed, 1)
    assert found["in_table"] == found["in_log"] >= found["acknowledged"] > 100
    assert (found["table_missing"], found["table_doubled"]) == (0, 0)
    assert (found["topic_missing"], found["topic_doubled"], found["open_transactions"]) == (0, 0, 0)


def exact(found: dict[str, Any]) -> bool:
    """Whether readers of committed records get each record of each scenario once."""
    return all((one["missing"], one["doubled"], one["open_transactions"]) == (0, 0, 0) for one in found.values())


def test_no_record_is_missing_or_doubled_when_a_cluster_loses_an_executor(tmp_path: Path) -> None:
    found = program_report(tmp_path / "outcome.json", "chaos.tasks", "executor")
    assert exact(found), found
    assert {"0-1", "1-1"} & set(found["executor"]["attempts"]), "a task of the executor, one of the first two, was tried again"


@pytest.mark.long
def test_no_record_is_missing_or_doubled_when_a_task_fails_or_runs_twice(tmp_path: Path) -> None:
    found = program_report(tmp_path / "outcome.json", "chaos.tasks", "retried", "speculative")
    assert exact(found), found
    assert {"0-0", "0-1"} <= set(found["retried"]["attempts"]), "the first task was tried again"
    assert found["retried"]["of_all_attempts"] > found["retried"]["records"], "records of the first attempt are in the log"
    assert {"0-0", "0-1"} <= set(found["speculative"]["attempts"]), "Spark ran another one of the slow task"
    assert found["speculative"]["of_all_attempts"] > found["speculative"]["records"], "records of the slow task are in the log"


@pytest.mark.long
def test_memory_does_not_grow_with_the_topic(tmp_path: Path) -> None:
    heap_mb, topic_mb = 256, 768
    sizes = ("--heap-mb", str(heap_mb), "--topic-mb", str(topic_mb))
    found = program_report(tmp_path / "outcome.json", "bench.spark_memory", "copy", *sizes, "--directory", str(tmp_path))
    copy = found["ways"]["copy"]
    assert copy["missing"] == 0
    # Besides its heap the JVM has code, classes and buffers: 300 to 460 MiB. A Python worker starts with 160 MiB and needs 40 to 80 for
    # copying; one that held its quarter of the topic would exceed 350.
    assert copy["jvm_mb"] < heap_mb + topic_mb and copy["largest_python_mb"] < 320, found


@pytest.mark.long
def test_each_key_of_a_state_in_rocksdb_is_written_once_by_a_killed_pipeline(tmp_path: Path) -> None:
    bounded = ("--heap-mb", "512", "--set", "sql.streaming.stateStore.rocksdb.boundedMemoryUsage=true")
    sizes = ("--keys", "20000", "--batch", "5000")
    found = program_report(tmp_path / "outcome.json", "bench.spark_state", *sizes, *bounded, "--directory", str(tmp_path))
    assert found["stages"][-1]["keys"] >= 20_000 and "progress_s" in found["restart"], found
    assert (found["missing"], found["doubled"]) == (0, 0)
