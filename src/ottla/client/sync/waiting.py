"""Waits of one thread for another that Ctrl-C always interrupts.

Python runs signal handlers in the main thread, between two bytecode instructions. So there are two ways to wait forever:

    the signal comes after the last instruction before a wait     the wait does not notice it and does not end
    ... between the lock of a Condition and its release           the next thread that needs the lock waits: Condition, Event and Future
                                                                  are Python code with a lock inside

So results are passed to a waiting thread through a SimpleQueue, which is compiled and can be filled by a signal handler too, and the main
thread waits in slices.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
#: How long the main thread waits before handlers run. Most waits are short, and so are the first slices.
SLICE_MIN_S = 0.02
SLICE_MAX_S = 0.5


def taken(queue: SimpleQueue[T], timeout_s: float | None = None) -> T:
    """The next item of the queue. Raises: queue.Empty after the timeout; exceptions of signal handlers."""
    if threading.current_thread() is not threading.main_thread():
        return queue.get(timeout=timeout_s)
    deadline_s = None if timeout_s is None else monotonic() + timeout_s
    slice_s = SLICE_MIN_S
    while True:
        left_s = slice_s if deadline_s is None else min(slice_s, max(deadline_s - monotonic(), 0))
        try:
            return queue.get(timeout=left_s)
        except Empty:
            if deadline_s is not None and monotonic() >= deadline_s:
                raise
        slice_s = min(slice_s * 2, SLICE_MAX_S)


class Stop:
    """A request to stop: like `threading.Event`, but a signal handler may set it while its own thread waits for it."""

    def __init__(self) -> None:
        self._wished = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Requests the stop; any thread or signal handler may call it."""
        self._wished = True
        self._bell.put(None)

    def is_set(self) -> bool:
        return self._wished

    def wait(self, timeout_s: float | None = None) -> bool:
        """Waits for the request or the timeout; returns whether it was requested."""
        if not self._wished:
            with suppress(Empty):
                taken(self._bell, timeout_s)
                # Wakes other waiting threads, too.
                self._bell.put(None)
        return self._wished


@contextmanager
def stopped_by_signals(stop: Stop | None = None) -> Iterator[Stop]:
    """A request to stop that SIGINT and SIGTERM make during the block. A second signal raises KeyboardInterrupt."""
    chosen = stop or Stop()

    def on_signal(number: int, frame: object) -> None:
        if chosen.is_set():
            raise KeyboardInterrupt
        chosen.set()

    before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield chosen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
