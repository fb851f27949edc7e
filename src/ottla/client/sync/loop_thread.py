"""An event loop in a thread of its own, for blocking clients.

The thread starts with the first client and ends with the last. The caller's thread waits as in `waiting`: Ctrl-C interrupts the wait at
once and cancels the awaited call.

At the end of the interpreter open clients are closed first. In a forked process no client works, because threads and connections stay with
the parent: each client is disabled and raises an error when it is used.
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
#: Functions that the waiting thread must call for a coroutine on the loop.
Errands = SimpleQueue[Callable[[], Any] | None]
FORKED = "this client was made before the process forked; make one after the fork"
#: Maximum delay of the interpreter's end by each open client.
EXIT_TIMEOUT_MS = 5000


class Closeable(Protocol):
    """A client that is closed at the end of the interpreter."""

    def close(self, timeout_ms: float | None = None) -> None: ...


class LoopCall(Generic[T]):
    """A coroutine on a loop, for the one thread that waits for it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T], errands: Errands | None = None) -> None:
        self._loop = loop
        self._work = work
        #: None: there are no more, and the outcome is known.
        self._errands: Errands = SimpleQueue() if errands is None else errands
        # Until then the following belong to the loop.
        self._given_up = False
        #: While it runs. Released on the loop: the finalizer of a task is Python code, which would swallow an interrupt.
        self._task: asyncio.Task[T] | None = None
        self._value: T | None = None
        self._error: BaseException | None = None

    def begin(self) -> None:
        """Starts the coroutine. Called once."""
        self._loop.call_soon_threadsafe(self._begin)

    def result(self) -> T:
        """Waits for the outcome and meanwhile runs errands. Called once. Raises: errors of the coroutine; CancelledError."""
        while (errand := taken(self._errands)) is not None:
            errand()
        if (error := self._error) is None:
            return self._value  # type: ignore[return-value]
        try:
            raise error
        finally:
            # The error's traceback refers to this frame.
            del error, self._error

    def cancel(self) -> None:
        """Cancels the coroutine unless it ended: no thread waits any more."""
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
    """One loop in one daemon thread."""

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
        """Runs a coroutine on the loop and waits for its result; an interrupt of the wait cancels it. Meanwhile runs its `errands` for this
        thread. Raises: as `submit`.
        """
        call = self._call_of(work, errands)
        try:
            call.begin()
            return call.result()
        except BaseException:
            call.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> LoopCall[T]:
        """Runs a coroutine on the loop; another thread waits for its result.

        Raises: AlreadyClosed after `stop`; RuntimeError in a process that was forked after the client was created, because sockets and
        threads do not survive a fork.
        """
        call = self._call_of(work, None)
        try:
            call.begin()
        except BaseException:
            call.cancel()
            raise
        return call

    def _call_of(self, work: Coroutine[Any, Any, T], errands: Errands | None) -> LoopCall[T]:
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(FORKED)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of this client runs in the client's own thread and must not wait for it")
        if self.loop.is_closed():
            work.close()
            raise AlreadyClosed()
        return LoopCall(self.loop, work, errands)

    def run(self, work: Callable[[], T]) -> T:
        """Runs a function in the loop's thread and waits for its result."""

        async def call() -> T:
            return work()

        return self.call(call())

    def stop(self) -> None:
        """Ends the thread after what runs in it now."""
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
    """Replaces a lock in a forked process, where another thread may have held it."""

    def __enter__(self) -> bool:
        raise RuntimeError(FORKED)

    def __exit__(self, *of_what: object) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_fork_handlers: weakref.WeakSet[Any] = weakref.WeakSet()


def close_at_exit(face: Closeable) -> None:
    """Closes this client at the end of the interpreter, unless it is closed before; unsent records get a few seconds. A method
    `close_at_exit(timeout_ms)` is called instead of `close` if it exists.
    """
    _open.add(face)


def register_fork_handler(face: Any) -> None:
    """Calls the client's `forked()` in a child process, before other code runs there."""
    _fork_handlers.add(face)


@atexit.register
def _close_all() -> None:
    with ExitStack() as each:
        for face in list(_open):
            each.callback(getattr(face, "close_at_exit", face.close), timeout_ms=EXIT_TIMEOUT_MS)


def _forked() -> None:
    # Open clients belong to the parent.
    _open.clear()
    for face in list(_fork_handlers):
        face.forked()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
