"""The broker's clock, which a test can advance.

A broker's core gets the time from events, so an hour can pass in an instant: retention, session timeouts, expiry of offsets and groups, and
log append time all take effect, in the order in which they would in real time.

The clock drives every time-based decision of the broker. It does not drive clients, which use real time (a record's create time, backoff,
heartbeats, ``request.timeout.ms``), nor the network layer's handling of slow or idle connections. If an hour passes and a client sends
nothing, its session expires.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

#: Maximum number of steps of one advance.
STEPS_MAX = 1000
#: Maximum interval of periodic tasks. Each advance adds it, so that every periodic task has run.
PERIOD_MS = 1000


class Clock:
    """Real time plus the time added by a test. ``broker.clock``."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        """``advance(ms)`` lets the milliseconds pass for the broker."""
        self._began_ns = time.monotonic_ns()
        self._ahead_ms = 0
        self._advance = advance

    def __repr__(self) -> str:
        return f"Clock({self.now.isoformat()}, {timedelta(milliseconds=self._ahead_ms)} ahead)"

    @property
    def now(self) -> datetime:
        """The broker's current time, in UTC."""
        return datetime.fromtimestamp(self.wall_ms() / 1000, UTC)

    @property
    def ahead(self) -> timedelta:
        """The time that a test has added to real time."""
        return timedelta(milliseconds=self._ahead_ms)

    def advance(
        self, delta: timedelta | None = None, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, ms: float = 0
    ) -> None:
        """Lets this much time pass for the broker, plus one second for periodic tasks. Returns after the broker's own actions.

        A long time passes in at most 1000 steps. Actions due within a step happen at its end: for a day, at most 90 s late.

        Raises: ValueError for a negative time.
        """
        whole = (delta or timedelta()) + timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=ms)
        total_ms = round(whole.total_seconds() * 1000)
        if total_ms < 0:
            raise ValueError(f"time goes forward, not by {whole}")
        self._advance(total_ms)

    def move_to(self, when: datetime) -> None:
        """Lets time pass until ``when``. Raises: ValueError for a time in the past."""
        self.advance(when - self.now)

    # For the broker.

    def now_ms(self) -> int:
        """The broker's monotonic time, which continues over restarts."""
        return (time.monotonic_ns() - self._began_ns) // 1_000_000 + self._ahead_ms

    def wall_ms(self) -> int:
        """Calendar time, ms since 1970."""
        return time.time_ns() // 1_000_000 + self._ahead_ms

    def add(self, ms: int) -> None:
        """Adds to the clock, on the broker's loop."""
        self._ahead_ms += ms
