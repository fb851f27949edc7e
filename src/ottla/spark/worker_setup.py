"""One-time setup of the Python processes that Spark reuses for tasks. It makes each task faster.

garbage    Spark runs the garbage collector after every task, which visits every object of every module: 35 ms, more than a small batch
           takes otherwise. Objects that exist before the first task are frozen, so the collector skips them.
memory     A task allocates and frees blocks of several MiB. By default glibc returns them to the kernel, which clears their pages for the
           next task. The thresholds make glibc keep up to KEPT_BYTES.
"""

import ctypes
import functools
import gc
from contextlib import suppress

from pyspark import TaskContext

from ottla.base.units import MiB

#: Parameters of glibc's `mallopt`: free memory kept at the end of the heap, and the size from which a block is allocated outside of it.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: More than a task uses at once: two fetches and the columns of one.
KEPT_BYTES = 64 * MiB
#: Glibc's maximum is half of KEPT_BYTES. Larger blocks are rare.
BLOCK_BYTES = 32 * MiB


@functools.cache
def prepare_process() -> None:
    """Runs once per process, after the modules that tasks use are imported."""
    gc.collect()
    gc.freeze()
    # Other C libraries have no mallopt.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def prepare_task_process() -> None:
    """`prepare_process` in Spark's worker processes only. The driver, which also reads and writes, belongs to the user."""
    if TaskContext.get() is not None:
        prepare_process()
