"""A client for asyncio lives in one event loop, the one in which it is first used: its connections, timers and tasks are that loop's. In
another one it would wait for what never comes, so it says so there.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, get_running_loop


class OneLoop:
    """The loop of one client."""

    __slots__ = ("_kind", "loop")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        #: None until the client is used.
        self.loop: AbstractEventLoop | None = None

    def check(self) -> None:
        """Bind to the running loop, or see that it is still the one. Raises: RuntimeError."""
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
        """Whether the client was used in another loop than the one that runs."""
        return self.loop is not None and self.loop is not get_running_loop()

    def wrong(self) -> RuntimeError:
        """What to tell who uses the client in another loop."""
        over = ", which is closed by now" if self.loop is not None and self.loop.is_closed() else ""
        return RuntimeError(
            f"this ottla.aio.{self._kind} belongs to the event loop in which it was first used{over}, and this is another one: make one"
            f" within each asyncio.run(), or do everything within the same; ottla.{self._kind}, the blocking one, belongs to no loop"
        )
