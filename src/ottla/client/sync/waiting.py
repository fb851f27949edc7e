"""Waiting in one thread for what another does, so that Ctrl-C ends it whenever it comes.

Python runs a signal's handler in the main thread, between two of its own instructions. From that follow two ways to wait forever:

    the signal comes after the last instruction before a wait     the wait sees nothing of it, and has no end
    ... between the lock of a Condition, and its release          whoever needs the lock next waits: Condition, Event and Future are
                                                                  Python code with a lock inside

So what is handed to a waiting thread goes through a SimpleQueue, which is compiled and may be filled by a signal's handler too, and the
main thread waits in slices.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TypeVar

T = TypeVar("T")
#: How long the main thread waits before it lets handlers run. Most waits are short, and so are the first slices of long ones.
SLICE_MIN_S = 0.02
SLICE_MAX_S = 0.5


def taken(queue: SimpleQueue[T], timeout_s: float | None = None) -> T:
    """What comes next out of the queue. Raises: queue.Empty when nothing has come in time; what handlers of signals raise."""
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
    """A wish to stop: `threading.Event`, as far as a wish goes, that a signal's handler may set while its own thread waits for it."""

    def __init__(self) -> None:
        self._wished = False
        self._bell: SimpleQueue[None] = SimpleQueue()

    def set(self) -> None:
        """Any thread, any handler."""
        self._wished = True
        self._bell.put(None)

    def is_set(self) -> bool:
        return self._wished

    def wait(self, timeout_s: float | None = None) -> bool:
        """Until the wish is there, or so long; whether it is there."""
        if not self._wished:
            with suppress(Empty):
                taken(self._bell, timeout_s)
                # It is there for others who wait, too.
                self._bell.put(None)
        return self._wished
