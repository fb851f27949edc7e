"""Threads that work for an event loop, and do not interrupt it."""

import os
from contextlib import suppress


def enter_batch_thread() -> None:
    """Gives the calling thread the scheduling policy SCHED_BATCH, where there is one: when it wakes it preempts no other thread.

    A thread that flushes files wakes after each of them. With the usual policy it interrupts the event loop each time, if they share a
    processor, and the loop's steps take two to three times as long. With SCHED_BATCH it runs when the loop waits, or when the loop's time
    slice of some milliseconds ends; on another processor that is idle it runs at once. Source: sched(7).

    Call it first in a thread, or as the ``initializer`` of a ``ThreadPoolExecutor``.
    """
    if hasattr(os, "SCHED_BATCH"):
        # A sandbox may forbid the system call; the thread then works as others do.
        with suppress(OSError):
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
