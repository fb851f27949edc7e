"""An event loop in a thread of its own, for faces that block.

The thread starts with the first use and ends with the last: every face holds the loop it was given until it is closed. Waiting is done in
the caller's thread, as `waiting` says: Ctrl-C interrupts it at once, and what was awaited is cancelled.

At the end of the interpreter what is still open is closed first. In a process that was forked nothing of it works, since threads and
connections stay with the parent: every face is told so, and says so to whoever uses it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError
from contextlib import ExitStack, suppress
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

from ottla.client.errors import AlreadyClosed
from ottla.client.sync.waiting import taken

T = TypeVar("T")
#: What a coroutine on the loop has to be done by the thread that waits for it.
Errands = SimpleQueue[Callable[[], Any] | None]
FORKED = "this client was made before the process forked; make one after the fork"
#: How long the end of the interpreter may be held up by each face that was not closed.
EXIT_TIMEOUT_MS = 5000


class Closeable(Protocol):
    """A face that the interpreter's end should close."""

    def close(self, timeout_ms: float | None = None) -> None: ...


class Call(Generic[T]):
    """A coroutine on a loop, for the one thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], errands: Errands | None = None) -> None:
        self._loop = loop
        self._work = work
        #: None: there are no more, the outcome is there.
        self._errands: Errands = SimpleQueue() if errands is None else errands
        # What follows is the loop's until then.
        self._given_up = False
        #: While it runs. Let go of on the loop: what is run when a task goes away is Python code, which would swallow an interrupt.
        self._task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Once."""
        self._loop.call_soon_threadsafe(self._begin)

    def result(self) -> T:
        """Wait for the outcome, and meanwhile do errands; once. Raises: what the coroutine raises; CancelledError."""
        while (errand := taken(self._errands)) is not None:
            errand()
        if (error := self._error) is None:
            return self._value  # type: ignore[return-value]
        try:
            raise error
        finally:
            # The error's traceback has this frame.
            del error, self._error

    def cancel(self) -> None:
        """Nobody waits any more. What has ended is left as it is."""
        with suppress(RuntimeError):
            # The loop may be closed by now.
            self._loop.call_soon_threadsafe(self._cancel)

    def _begin(self) -> None:
        if not self._given_up:
            self._task = self._loop.create_task(self._work)
            self._task.add_done_callback(self._ended)

    def _cancel(self) -> None:
        self._given_up = True
        if self._task is not None:
            self._task.cancel()
        else:
            self._work.close()

    def _ended(self, task: asyncio.Task[T]) -> None:
        self._task = None
        if task.cancelled():
            self._error = CancelledError()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._value = task.result()
        self._errands.put(None)


class LoopThread:
    """One loop, one daemon thread."""

    def __init__(self, name: str) -> None:
        self.loop = _new_loop()
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def here(self) -> bool:
        """Whether the caller runs on the loop."""
        return threading.current_thread() is self._thread

    def call(self, work: Coroutine[Any, Any, T], errands: Errands | None = None) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt of the wait cancels it. Meanwhile run the `errands` that it has
        for this thread. Raises what `submit` raises.
        """
        call = self._call_of(work, errands)
        try:
            call.begin()
            return call.result()
        except BaseException:
            call.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Call[T]:
        """Run a coroutine on the loop, for another thread to wait for its result.

        Raises: AlreadyClosed after `stop`; RuntimeError in a process forked after the client was made, since sockets and threads do not
        survive that.
        """
        call = self._call_of(work, None)
        try:
            call.begin()
        except BaseException:
            call.cancel()
            raise
        return call

    def _call_of(self, work: Coroutine[Any, Any, T], errands: Errands | None) -> Call[T]:
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(FORKED)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of this client runs in the client's own thread and must not wait for it")
        if self.loop.is_closed():
            work.close()
            raise AlreadyClosed()
        return Call(self.loop, work, errands)

    def run(self, work: Callable[[], T]) -> T:
        """Run a function on the loop's thread and wait for its result."""

        async def call() -> T:
            return work()

        return self.call(call())

    def stop(self) -> None:
        """End the thread, after what is running on it now."""
        if os.getpid() == self._pid and self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(timeout=EXIT_TIMEOUT_MS / 1000)
            if not self._thread.is_alive():
                self.loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


class Forked:
    """Stands where a lock was, in a process that was forked while another thread may have held it."""

    def __enter__(self) -> bool:
        raise RuntimeError(FORKED)

    def __exit__(self, *of_what: object) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_told_of_forks: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(face: Closeable) -> None:
    """Close this face at the end of the interpreter, unless it was closed before; what it has not sent by then gets a few seconds. A face
    that has something to say about its end does it in a method `close_at_exit(timeout_ms)` instead of `close`.
    """
    _open.add(face)


def tell_of_forks(face: Any) -> None:
    """Call the face's `forked()` in a child process, before anything else runs there."""
    _told_of_forks.add(face)


@atexit.register
def _close_all() -> None:
    with ExitStack() as each:
        for face in list(_open):
            each.callback(getattr(face, "close_at_exit", face.close), timeout_ms=EXIT_TIMEOUT_MS)


def _forked() -> None:
    # What is open is the parent's to close.
    _open.clear()
    for face in list(_told_of_forks):
        face.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
