"""Rate limit: record n is not processed before n / rate seconds have passed since the start.

After a pause, at most one second's worth of records is caught up, so that no burst follows.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import click

#: Duration of one chunk of records at the configured rate.
CHUNK_S = 0.1
BEHIND_MAX_S = 1.0
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kM]?)(?:/s)?")


class RateLimiter:
    """`rate` in records per second."""

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        #: Time on `clock` from which the next record is allowed.
        self._next = clock()

    @property
    def chunk_records(self) -> int:
        """Records to process at once, at least one."""
        return max(1, int(self._rate * CHUNK_S))

    def wait(self, count: int) -> None:
        """Accounts for `count` records and sleeps until the next one is allowed. Ctrl-C interrupts the sleep."""
        now = self._clock()
        self._next = max(self._next, now - BEHIND_MAX_S) + count / self._rate
        if self._next > now:
            self._sleep(self._next - now)


def parse_rate(text: str, option: str) -> float:
    """Records per second from `500`, `2.5`, `10k` or `1M/s`. Raises: UsageError."""
    match = _RATE.fullmatch(text)
    number = float(match[1]) * {"": 1, "k": 1e3, "M": 1e6}[match[2]] if match else 0
    if number <= 0:
        raise click.UsageError(f"{option} expects records per second, such as 500, 10k or 0.5, not {text!r}")
    return number
