"""Exponential backoff with jitter."""

from __future__ import annotations

from random import Random

#: Relative jitter, so that clients that failed together do not retry together. Source: KIP-580.
JITTER = 0.2


class Backoff:
    """Delays: first, 2 x first, 4 x first, ... most; each times a random factor of 0.8 to 1.2, in milliseconds."""

    __slots__ = ("_failures", "_first_ms", "_most_ms", "_rng")

    def __init__(self, first_ms: float, most_ms: float, rng: Random) -> None:
        self._first_ms = first_ms
        self._most_ms = max(first_ms, most_ms)
        self._rng = rng
        #: Since the last success.
        self._failures = 0

    @property
    def failures(self) -> int:
        """Number of consecutive failures."""
        return self._failures

    def failed(self) -> float:
        """Counts a failure and returns the delay after it."""
        pause = min(self._most_ms, self._first_ms * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return pause * self._rng.uniform(1 - JITTER, 1 + JITTER)

    def succeeded(self) -> None:
        """Resets the backoff."""
        self._failures = 0
