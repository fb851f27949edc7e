"""Quantities of which the last minute counts, under Kafka's names.

Averages, maxima and rates are of the last half to whole minute: two windows of 30 s, the older dropped as a new one begins; a rate of less
than one window is spread over a whole one, as Kafka does it. Totals are of all time.
"""

from __future__ import annotations

WINDOW_MS = 30_000

Figures = dict[str, float]


class Moving:
    """A quantity: its sum of all time, and what was measured of it lately."""

    __slots__ = ("_began_ms", "_count", "_greatest", "_sum", "total")

    def __init__(self) -> None:
        self.total = 0.0
        #: Of the window before, and of this one.
        self._began_ms = [float("-inf"), float("-inf")]
        self._count = [0, 0]
        self._sum = [0.0, 0.0]
        self._greatest = [0.0, 0.0]

    def add(self, value: float, now_ms: float, times: int = 1) -> None:
        """Measured `times` times, `value` in sum; the maximum is of whole calls."""
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
        """Of what was measured lately; NaN if nothing was."""
        self._roll(now_ms)
        count = sum(self._count)
        return sum(self._sum) / count if count else float("nan")

    def greatest(self, now_ms: float) -> float:
        """Of what was measured lately; NaN if nothing was."""
        self._roll(now_ms)
        return max(self._greatest) if any(self._count) else float("nan")

    def rate(self, now_ms: float) -> float:
        """Sum per second."""
        self._roll(now_ms)
        return sum(self._sum) * 1000 / max(now_ms - self._began_ms[0], WINDOW_MS)


def average_and_maximum(name: str, one: Moving, now_ms: float) -> Figures:
    """Two figures."""
    return {f"{name}-avg": one.average(now_ms), f"{name}-max": one.greatest(now_ms)}


def total_and_rate(name: str, one: Moving, now_ms: float) -> Figures:
    """Two figures."""
    return {f"{name}-total": one.total, f"{name}-rate": one.rate(now_ms)}
