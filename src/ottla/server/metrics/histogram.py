"""Histograms of times. Buckets are powers of two, so that an observation is a shift and an addition::

bucket k has times below 16.384 µs * 2**k, k = 0..BUCKETS-2; the last one has the others
"""

#: Smallest bucket: 2**14 ns.
SHIFT = 14
BUCKETS = 23


def bound_s(bucket: int) -> float:
    """Upper bound of a bucket in seconds."""
    return float((1 << (SHIFT + bucket)) / 1e9)


class Histogram:
    """Counts of times by bucket. Written by one thread; another one may read it at any time."""

    __slots__ = ("counts", "sum_ns")

    def __init__(self) -> None:
        self.counts = [0] * BUCKETS
        self.sum_ns = 0

    def observe(self, ns: int) -> None:
        bucket = (ns >> SHIFT).bit_length()
        self.counts[bucket if bucket < BUCKETS else BUCKETS - 1] += 1
        self.sum_ns += ns

    def quantile_s(self, share: float) -> float:
        """The time below which this share of the observations is, interpolated within its bucket; 0 without observations."""
        return quantile_s(self.counts, share)


def quantile_s(counts: list[int], share: float) -> float:
    total = sum(counts)
    wanted, seen = total * share, 0
    for bucket, count in enumerate(counts):
        if count and seen + count >= wanted:
            low = bound_s(bucket - 1) if bucket else 0.0
            return low + (bound_s(bucket) - low) * max(wanted - seen, 0) / count
        seen += count
    return 0.0
