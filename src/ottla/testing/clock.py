"""The broker's time, which a test can put forward.

The core of a broker takes time as events, so an hour can pass for it in a moment: retention, session time-outs, expiry of offsets and of
groups, log append time, everything that it does by the clock happens, and in the order in which it would have happened.

What follows this clock: whatever the broker decides by time. What does not: clients, which live in real time (a record's create time, back
off, heartbeats, ``request.timeout.ms``), and what the broker's network layer does to slow or idle connections. To the broker, a client that
does nothing while an hour passes has done nothing for an hour: its session is over.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

#: Into how many steps a stretch of time is cut at most.
STEPS_MAX = 1000
#: What a broker does again and again, it does at least so often; time goes on for so long at the end, so that all of it has been done.
PERIOD_MS = 1000


class Clock:
    """Real time, plus what a test has added. ``broker.clock``."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        """``advance`` has so many milliseconds pass for the broker."""
        self._began_ns = time.monotonic_ns()
        self._ahead_ms = 0
        self._advance = advance

    def __repr__(self) -> str:
        return f"Clock({self.now.isoformat()}, {timedelta(milliseconds=self._ahead_ms)} ahead)"

    @property
    def now(self) -> datetime:
        """What the broker takes for the present, in UTC."""
        return datetime.fromtimestamp(self.wall_ms() / 1000, UTC)

    @property
    def ahead(self) -> timedelta:
        """How much a test has added to real time."""
        return timedelta(milliseconds=self._ahead_ms)

    def advance(
        self, delta: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """Let this much time pass for the broker, and a second more: so long it takes until all that is periodic has been done once.
        Returns when everything has happened that the broker does by itself.

        A long time passes in a thousand steps. What is due within one of them happens at its end: within a day, at most 90 s late.

        Raises: ValueError for a time below zero.
        """
        whole = (delta or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        total_ms = round(whole.total_seconds() * 1000)
        if total_ms < 0:
            raise ValueError(f"time goes forward, not by {whole}")
        self._advance(total_ms)

    def move_to(self, when: datetime) -> None:
        """Let time pass until then. Raises: ValueError for a time that is over."""
        self.advance(when - self.now)

    # The broker's side.

    def now_ms(self) -> int:
        """The brokers' time: never goes back, and goes on over restarts."""
        return (time.monotonic_ns() - self._began_ns) // 1_000_000 + self._ahead_ms

    def wall_ms(self) -> int:
        """The calendar's."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def put_forward(self, ms: int) -> None:
        """On the broker's loop."""
        self._ahead_ms += ms
