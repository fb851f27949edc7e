"""One-time setup of Spark's Python processes."""

from __future__ import annotations

import subprocess
import sys

import pytest


def test_objects_created_before_the_first_task_are_excluded_from_garbage_collection() -> None:
    program = """
import gc, pyarrow
from ottla.spark.worker_setup import prepare_process
before = len(gc.get_objects())
prepare_process()
assert gc.get_freeze_count() > before * 0.9, (gc.get_freeze_count(), before)
assert len(gc.get_objects()) < before * 0.1
settled = gc.get_freeze_count()
kept = [[] for _ in range(10_000)]
prepare_process()
assert gc.get_freeze_count() == settled, "only once"
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr


def test_freed_memory_is_reused_without_page_faults() -> None:
    program = """
import resource, platform
from ottla.spark.worker_setup import prepare_process
prepare_process()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    pieces = [bytearray(8 << 20) for _ in range(4)]
work()
before = faults()
for _ in range(10):
    work()
print(platform.libc_ver()[0], faults() - before)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    library, faults = ended.stdout.split()
    # 32 MiB ten times are 80,000 pages of 4 KiB.
    assert int(faults) < 1000 or library != "glibc"


@pytest.mark.parametrize(("context", "settled"), [("None", False), ("TaskContext()", True)])
def test_only_processes_that_run_tasks_are_prepared(context: str, settled: bool) -> None:
    program = f"""
import gc
from pyspark import TaskContext
from ottla.spark.worker_setup import prepare_task_process
TaskContext._taskContext = {context}
prepare_task_process()
print(gc.get_freeze_count() > 0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split() == [str(settled)]
