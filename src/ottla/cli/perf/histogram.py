"""A histogram of latencies of constant size: counts in buckets that widen with the value, as in an HDR histogram.

    value (ns)    0 1 2 ... 255   256-257  258-259 ... 510-511   512-515 ...
    bucket        0 1 2 ... 255   256      257     ... 383       384     ...

Each power of two has 128 buckets, so a percentile is at most 1/128 (0.8 %) above the exact one, and never below it. Count, average and
maximum are exact. Values are not limited.
"""

from __future__ import annotations

from collections.abc import Iterable

#: Buckets per power of two; the relative error is its inverse.
BUCKETS_PER_POWER = 128
_BITS = BUCKETS_PER_POWER.bit_length()
_BUCKETS = (64 - _BITS + 2) * BUCKETS_PER_POWER


class Histogram:
    """Counts of integers from 0 to 2**63 - 1."""

    __slots__ = ("_counts", "count", "greatest", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        #: Number, sum and maximum of the values.
        self.count = self.total = self.greatest = 0

    def add(self, value: int, times: int = 1) -> None:
        shift = max(value.bit_length() - _BITS, 0)
        self._counts[shift * BUCKETS_PER_POWER + (value >> shift)] += times
        self.count += times
        self.total += value * times
        if value > self.greatest:
            self.greatest = value

    def add_each(self, values: Iterable[int]) -> None:
        for value in values:
            self.add(value)

    @property
    def average(self) -> float | None:
        """None without values."""
        return self.total / self.count if self.count else None

    def percentile(self, share: float) -> int | None:
        """The value that this share of all values does not exceed: 0.5 is the median. None without values."""
        if not self.count:
            return None
        # Rounded, because a product like 0.99 * 100 can be slightly above the integer.
        rank, passed = max(round(share * self.count, 6), 1), 0
        for bucket, count in enumerate(self._counts):
            passed += count
            if count and passed >= rank:
                return min(_bucket_max(bucket), self.greatest)
        raise AssertionError("the sum of the buckets is the count")


def _bucket_max(bucket: int) -> int:
    if bucket < 2 * BUCKETS_PER_POWER:
        return bucket
    shift = bucket // BUCKETS_PER_POWER - 1
    return ((bucket - shift * BUCKETS_PER_POWER + 1) << shift) - 1
