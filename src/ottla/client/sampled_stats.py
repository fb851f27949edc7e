"""Statistics of the last minute, for metrics with Kafka's names.

Averages, maxima and rates cover the last half to whole minute: two windows of 30 s, of which the older one is dropped when a new one
begins. A rate of less than one window is divided by a whole one, as in Kafka. Totals cover all time.
"""

from __future__ import annotations

WINDOW_MS = 30_000

Figures = dict[str, float]


class SampledStat:
    """A statistic: its total, and recent samples."""

    __slots__ = ("_began_ms", "_count", "_greatest", "_sum", "total")

    def __init__(self) -> None:
        self.total = 0.0
        #: Of the previous window and the present one.
        self._began_ms = [float("-inf"), float("-inf")]
        self._count = [0, 0]
        self._sum = [0.0, 0.0]
        self._greatest = [0.0, 0.0]

    def add(self, value: float, now_ms: float, times: int = 1) -> None:
        """Adds `times` samples with this sum; the maximum is that of calls."""
        self._roll(now_ms)
        self.total += value
        self._count[1] += times
        self._sum[1] += value
        if value > self._greatest[1]:
            self._greatest[1] = value

    def _roll(self, now_ms: float) -> None:
        age_ms = now_ms - self._began_ms[1]
        if age_ms < WINDOW_MS:
            return
        self._count[:] = self._count[1], 0
        for kept in (self._began_ms, self._sum, self._greatest):
            kept[:] = kept[1], 0.0
        if age_ms >= 2 * WINDOW_MS:
            self._count[0], self._sum[0], self._greatest[0], self._began_ms[0] = 0, 0.0, 0.0, now_ms
        self._began_ms[1] = now_ms

    def average(self, now_ms: float) -> float:
        """Average of recent samples; NaN without any."""
        self._roll(now_ms)
        count = sum(self._count)
        return sum(self._sum) / count if count else float("nan")

    def greatest(self, now_ms: float) -> float:
        """Maximum of recent samples; NaN without any."""
        self._roll(now_ms)
        return max(self._greatest) if any(self._count) else float("nan")

    def rate(self, now_ms: float) -> float:
        """Sum per second."""
        self._roll(now_ms)
        return sum(self._sum) * 1000 / max(now_ms - self._began_ms[0], WINDOW_MS)


def average_and_maximum(name: str, one: SampledStat, now_ms: float) -> Figures:
    """Two metrics."""
    return {f"{name}-avg": one.average(now_ms), f"{name}-max": one.greatest(now_ms)}


def total_and_rate(name: str, one: SampledStat, now_ms: float) -> Figures:
    """Two metrics."""
    return {f"{name}-total": one.total, f"{name}-rate": one.rate(now_ms)}
