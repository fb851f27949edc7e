"""Rates over a sliding window of samples, and token buckets, as Kafka measures quotas.

::

    sample      1    2    3   ...   10   11      a new sample begins when the current one is ``sample_ms`` old
             ├────┼────┼────┼ ... ┼────┼──▶      rate = sum of the samples / time since the start of the oldest one
                                                 (at least ``samples - 1`` whole samples)

So with 11 samples of 1 s a rate is a mean over 10 to 11 s. A sample without an event for the length of all samples counts no more.

A client that always sends what such a rate permits uses the quota of the whole window within one sample, and waits until this sample counts
no more. A bucket gets tokens continuously, so that the same client is held to the quota over each minute (docs/decisions/0051).

Time is an argument in ms and never decreases. Source: Kafka's SampledStat, Rate, TokenBucket and QuotaUtils.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Window:
    """Number and length of the samples of a rate."""

    samples: int = 11
    sample_ms: int = 1_000

    @property
    def whole_ms(self) -> int:
        """Length of all samples."""
        return self.samples * self.sample_ms

    @property
    def least_ms(self) -> int:
        """The least time that a rate is measured over."""
        return max(self.samples - 1, 1) * self.sample_ms


class SampledRate:
    """The rate of something per second."""

    __slots__ = ("_current", "_samples", "_window")

    def __init__(self, window: Window) -> None:
        self._window = window
        #: Start, last event and sum of each sample; one more than the window has, used in turn.
        self._samples: list[list[float]] = []
        self._current = 0

    def record(self, value: float, now_ms: int) -> None:
        """Counts a value now."""
        samples = self._samples
        if not samples:
            samples.append([now_ms, now_ms, 0.0])
        sample = samples[self._current]
        if now_ms - sample[0] >= self._window.sample_ms:
            self._current = (self._current + 1) % (self._window.samples + 1)
            if self._current == len(samples):
                samples.append([now_ms, now_ms, 0.0])
            sample = samples[self._current]
            sample[:] = (now_ms, now_ms, 0.0)
        sample[1] = now_ms
        sample[2] += value

    def rate(self, now_ms: int) -> float:
        """Per second."""
        total, span_ms = self._measure(now_ms)
        return total * 1000 / span_ms

    def throttle_ms(self, bound: float, now_ms: int, *, more: float = 0) -> int:
        """The time after which the rate is down to ``bound`` if nothing more is counted; 0 if it is not above.

        With ``more`` it is the rate after ``record(more)``.
        """
        total, span_ms = self._measure(now_ms)
        value = (total + more) * 1000 / span_ms
        return round((value - bound) / bound * span_ms) if value > bound else 0

    def _measure(self, now_ms: int) -> tuple[float, float]:
        """The sum of the samples, and the time that they cover in ms."""
        whole_ms = self._window.whole_ms
        total, oldest_ms = 0.0, float(now_ms)
        for sample in self._samples:
            if now_ms - sample[1] >= whole_ms:
                sample[:] = (now_ms, now_ms, 0.0)
            total += sample[2]
            oldest_ms = min(oldest_ms, sample[0])
        span_ms = now_ms - oldest_ms
        sample_ms = self._window.sample_ms
        missing = self._window.samples - 1 - span_ms // sample_ms
        if missing > 0:
            span_ms += missing * sample_ms
        return total, max(span_ms, 1)


class TokenBucket:
    """Tokens that return at a rate per second, up to those of ``capacity_ms``. They may be overdrawn. Source: KIP-599."""

    __slots__ = ("_at_ms", "_capacity_ms", "_tokens")

    def __init__(self, capacity_ms: int, now_ms: int, rate: float) -> None:
        """Full."""
        self._capacity_ms = capacity_ms
        self._tokens = self._burst(rate)
        self._at_ms = now_ms

    def tokens(self, rate: float, now_ms: int) -> float:
        """Remaining tokens; negative if overdrawn."""
        self._tokens = min(self._burst(rate), self._tokens + rate * (now_ms - self._at_ms) / 1000)
        self._at_ms = now_ms
        return self._tokens

    def take(self, count: float, rate: float, now_ms: int) -> None:
        """Takes tokens, also more than there are."""
        self._tokens = self.tokens(rate, now_ms) - count

    def throttle_ms(self, rate: float, now_ms: int) -> int:
        """The time until the bucket is not overdrawn any more."""
        tokens = self.tokens(rate, now_ms)
        return round(-tokens / rate * 1000) if tokens < 0 else 0

    def _burst(self, rate: float) -> float:
        return rate * self._capacity_ms / 1000
