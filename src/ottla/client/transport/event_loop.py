"""An asyncio client belongs to the event loop of its first use: connections, timers and tasks are bound to it. In another loop it would
wait for ever, so it raises an error.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop


class OneLoop:
    """The event loop of one client."""

    __slots__ = ("_kind", "loop")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        #: None before the first use.
        self.loop: AbstractEventLoop | None = None

    def check(self) -> None:
        """Binds to the running loop, or checks that it is the same. Raises: RuntimeError."""
        try:
            running = get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                f"no event loop is running here: an ottla.aio.{self._kind} is used from coroutines, and ottla.{self._kind} from anywhere"
            ) from None
        if self.loop is None:
            self.loop = running
        elif self.loop is not running:
            raise self.wrong()

    def elsewhere(self) -> bool:
        """Whether another loop is running than the client's."""
        return self.loop is not None and self.loop is not get_running_loop()

    def wrong(self) -> RuntimeError:
        """The error for use in another loop."""
        over = ", which is closed by now" if self.loop is not None and self.loop.is_closed() else ""
        return RuntimeError(
            f"this ottla.aio.{self._kind} belongs to the event loop in which it was first used{over}, and this is another one: make one"
            f" within each asyncio.run(), or do everything within the same; ottla.{self._kind}, the blocking one, belongs to no loop"
        )
