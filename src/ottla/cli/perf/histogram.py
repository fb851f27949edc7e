"""Latencies by the million in a few kilobytes: counts in buckets that widen with the value, as in an HDR histogram.

    value (ns)    0 1 2 ... 255   256-257  258-259 ... 510-511   512-515 ...
    bucket        0 1 2 ... 255   256      257     ... 383       384     ...

Each power of two has 128 buckets, so a percentile is at most 1/128 (0.8 %) above the latency that stands there, and never below it. Count,
average and maximum are exact. There is no upper limit that a latency could be cut off at.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Buckets in each power of two; the error is one part in so many.
SHARES = 128
_BITS = SHARES.bit_length()
_BUCKETS = (64 - _BITS + 2) * SHARES


class Histogram:
    """Counts values; they are whole numbers from 0 to 2**63 - 1."""

    __slots__ = ("_counts", "count", "greatest", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        #: How many, their sum, and the greatest of them.
        self.count = self.total = self.greatest = 0

    def add(self, value: int, times: int = 1) -> None:
        """So many of one value."""
        shift = max(value.bit_length() - _BITS, 0)
        self._counts[shift * SHARES + (value >> shift)] += times
        self.count += times
        self.total += value * times
        if value > self.greatest:
            self.greatest = value

    def add_each(self, values: Iterable[int]) -> None:
        """One of each."""
        for value in values:
            self.add(value)

    @property
    def average(self) -> float | None:
        """None when there is nothing."""
        return self.total / self.count if self.count else None

    def percentile(self, share: float) -> int | None:
        """The value that this share of all do not exceed: 0.5 is the median. None when there is nothing."""
        if not self.count:
            return None
        # A product like 0.99 * 100 may be a hair above the whole number that is meant.
        wanted, seen = max(round(share * self.count, 6), 1), 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_last_of(bucket), self.greatest)
        raise AssertionError("the buckets hold as many as were counted")


def _last_of(bucket: int) -> int:
    """The greatest value of a bucket."""
    if bucket < 2 * SHARES:
        return bucket
    shift = bucket // SHARES - 1
    return ((bucket - shift * SHARES + 1) << shift) - 1
