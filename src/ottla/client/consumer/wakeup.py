"""An alarm that ends what a consumer waits for, from any thread: what waits now raises WokenUp, or what waits next does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from ottla.client.errors import WokenUp

T = TypeVar("T")


class Alarm:
    """See the module. Belongs to the loop that it is bound to; `wake` to everybody."""

    def __init__(self) -> None:
        self._woken = False
        self._bound: tuple[asyncio.AbstractEventLoop, Callable[[], Any]] | None = None
        #: What runs in `wakeable` now.
        self._sleeping: set[asyncio.Future[Any]] = set()

    def bind(self, ring: Callable[[], Any]) -> None:
        """Have `ring` called on the running loop at each alarm, for those who look whether there was one."""
        self._bound = asyncio.get_running_loop(), ring

    def wake(self) -> None:
        """Wake whoever waits, or who waits next."""
        self._woken = True
        if self._bound is not None:
            loop, ring = self._bound
            loop.call_soon_threadsafe(self._ring, ring)

    def _ring(self, ring: Callable[[], Any]) -> None:
        ring()
        for one in list(self._sleeping):
            one.cancel()

    def look(self) -> None:
        """Raises: WokenUp, once for all alarms so far."""
        if self._woken:
            self._woken = False
            raise WokenUp()

    async def wakeable(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this, unless an alarm ends it. Raises: WokenUp."""
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
