"""Keeping to a rate: after the nth record, n / rate seconds must have passed since the first.

Who was held up may catch up by one second's worth at most, so that a pause is not followed by a flood.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

#: One portion lasts so long at the rate that is wanted.
PORTION_S = 0.1
BEHIND_MAX_S = 1.0
_RATE = re.compile(r"(\d+(?:\.\d+)?)([kM]?)(?:/s)?")


class Pace:
    """`rate` in records per second."""

    def __init__(self, rate: float, *, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        #: When the next record may come.
        self._next = clock()

    @property
    def portion(self) -> int:
        """How many records to take at a time, at least one."""
        return max(1, int(self._rate * PORTION_S))

    def wait(self, count: int) -> None:
        """So many records came: sleep until the next may. Ctrl-C interrupts it."""
        now = self._clock()
        self._next = max(self._next, now - BEHIND_MAX_S) + count / self._rate
        if self._next > now:
            self._sleep(self._next - now)


def rate(text: str, option: str) -> float:
    """Records per second of `500`, `2.5`, `10k`, `1M/s`. Raises: ValueError."""
    found = _RATE.fullmatch(text)
    number = float(found[1]) * {"": 1, "k": 1e3, "M": 1e6}[found[2]] if found else 0
    if number <= 0:
        raise ValueError(f"{option} expects records per second, such as 500, 10k or 0.5, not {text!r}")
    return number
