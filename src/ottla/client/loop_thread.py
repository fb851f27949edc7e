"""An event loop in a thread of its own, for faces that block.

The thread starts with the first use and ends with the last: every face holds the loop it was given until it is closed. Waiting is done in
the caller's thread on a lock, so Ctrl-C interrupts it at once, and what was awaited is cancelled.

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
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from typing import Any, Protocol, TypeVar

from ottla.client.errors import AlreadyClosed

T = TypeVar("T")
FORKED = "this client was made before the process forked; make one after the fork"
#: How long the end of the interpreter may be held up by each face that was not closed.
EXIT_TIMEOUT_MS = 5000


class Closeable(Protocol):
    """A face that the interpreter's end should close."""

    def close(self, timeout_ms: float | None = None) -> None: ...


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

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result; an interrupt of the wait cancels it. Raises what `submit` raises."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the loop; the future is for another thread to wait on.

        Raises: AlreadyClosed after `stop`; RuntimeError in a process forked after the client was made, since sockets and threads do not
        survive that.
        """
        if os.getpid() != self._pid:
            work.close()
            raise RuntimeError(FORKED)
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a callback of this client runs in the client's own thread and must not wait for it")
        if self.loop.is_closed():
            work.close()
            raise AlreadyClosed()
        try:
            return asyncio.run_coroutine_threadsafe(work, self.loop)
        except BaseException:
            # An interrupt came before the loop had it, or just after: nobody will await it, and that is no mistake to warn of.
            with suppress(ValueError):
                work.close()
            raise

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
