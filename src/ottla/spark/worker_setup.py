"""What a Python process that Spark keeps for tasks is told once, so that each task finds it quick.

garbage    Spark collects it after every task, which looks at every object of every module there is: 35 ms, more than a small batch
           takes otherwise. What is there before the first task stays, and is not looked at again.
memory     A task takes pieces of some MiB and gives them back, and glibc gives them back to the kernel, which clears every page of them
           for the next one. It keeps so much instead.
"""

import ctypes
import functools
import gc
from contextlib import suppress

from ottla.base.units import MiB

#: `mallopt` of glibc: the free memory at the end of the heap that it keeps, and the size from which a piece is not taken from the heap.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
#: More than a task has in hand at once: two fetches and the columns of one.
KEPT_BYTES = 64 * MiB
#: Glibc's own limit is half of that; larger pieces are rare.
PIECE_BYTES = 32 * MiB


@functools.cache
def settle() -> None:
    """Once in a process, when what its tasks import is imported."""
    gc.collect()
    gc.freeze()
    # Other C libraries do without.
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, PIECE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def settle_in_task() -> None:
    """`settle` in a process of Spark's. Any other is its user's, and stays as it is: the driver's, which also reads and writes."""
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        settle()
