"""Wakeup from any thread: the present or next wait raises WokenUp."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.errors import WokenUp

T = TypeVar("T")


class Alarm:
    """The wakeup of one consumer. Belongs to its event loop; any thread may call `wake`."""

    def __init__(self) -> None:
        self._woken = False
        self._bound: tuple[asyncio.AbstractEventLoop, Callable[[], Any]] | None = None
        #: Work that `wakeable` awaits now.
        self._sleeping: set[asyncio.Future[Any]] = set()

    def bind(self, ring: Callable[[], Any]) -> None:
        """Calls `ring` on the running event loop at each wakeup."""
        self._bound = asyncio.get_running_loop(), ring

    def wake(self) -> None:
        """Wakes the present or next wait."""
        self._woken = True
        if self._bound is not None:
            loop, ring = self._bound
            loop.call_soon_threadsafe(self._ring, ring)

    def _ring(self, ring: Callable[[], Any]) -> None:
        ring()
        for one in list(self._sleeping):
            one.cancel()

    def look(self) -> None:
        """Raises: WokenUp, once for all wakeups so far."""
        if self._woken:
            self._woken = False
            raise WokenUp()

    async def wakeable(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits ``work``, unless a wakeup ends it. Raises: WokenUp."""
        if self._woken:
            work.close()
            self.look()
        task = asyncio.ensure_future(work)
        self._sleeping.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            if task.cancelled():
                self.look()
            raise
        finally:
            self._sleeping.discard(task)
