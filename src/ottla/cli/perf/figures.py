"""What a measurement has counted so far, and the documents that `ottla perf` makes of it.

A tally is a stretch of time with the records in it. A run has three: all of it, the part behind the warm-up, and the window since the last
report. The clock comes in with each call, in nanoseconds, so that figures are the same for whoever drives it.

MB are 2**20 bytes, as Kafka's tools count them. A rate is that of records whose outcome is known, from the first that was sent to the last
that was acknowledged (or received).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.cli.perf.histogram import Histogram

NS, MB = 10**9, 2**20
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
#: Fields of `latency_document`.
LATENCY = {
    "avg": "milliseconds",
    "max": "the greatest",
    "p50": "what half of them do not exceed; at most 0.8 % too high, as all percentiles",
    "p95": "95 of 100",
    "p99": "99 of 100",
    "p99_9": "999 of 1,000",
}
#: Fields of `Tally.document`.
TALLY = {
    "records": "how many",
    "bytes": "their keys and values",
    "seconds": "how long it took",
    "records_per_s": "records a second",
    "mb_per_s": "MB (2**20 bytes) a second",
}


class Tally:
    """Records between two moments."""

    __slots__ = ("began_ns", "bytes", "ended_ns", "latencies", "records")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = self.ended_ns = began_ns
        self.records = self.bytes = 0
        self.latencies = Histogram()

    def add(self, records: int, size: int, at_ns: int) -> None:
        """So many came at that moment."""
        self.records += records
        self.bytes += size
        self.ended_ns = max(self.ended_ns, at_ns)

    @property
    def seconds(self) -> float:
        """From its begin to the last record, or to where it was ended."""
        return (self.ended_ns - self.began_ns) / NS

    def per_second(self, amount: float) -> float:
        """An amount over the time it took; 0 when it took none."""
        return amount * NS / (self.ended_ns - self.began_ns) if self.ended_ns > self.began_ns else 0.0

    def document(self) -> dict[str, Any]:
        """The fields of `TALLY`."""
        return {
            "records": self.records,
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "records_per_s": round(self.per_second(self.records), 1),
            "mb_per_s": round(self.per_second(self.bytes) / MB, 3),
        }


def latency_document(latencies: Histogram) -> dict[str, float | None]:
    """The fields of `LATENCY`; null where there was no record."""
    found = {"avg": latencies.average, "max": latencies.greatest if latencies.count else None}
    found |= {name: latencies.percentile(share) for name, share in PERCENTILES.items()}
    return {name: None if ns is None else round(ns / 1e6, 3) for name, ns in found.items()}


class Figures:
    """All of a run. `warmup`: the first so many records count as such, and the rest as its steady part."""

    def __init__(self, now_ns: int, *, warmup: int = 0) -> None:
        self.total = Tally(now_ns)
        self.window = Tally(now_ns)
        self.warmup = warmup
        #: Records behind the warm-up; begins when the first of them is sent. None: there is no warm-up, or it is not over.
        self.steady: Tally | None = None
        self.failed = 0
        #: What the first that failed says.
        self.error: str | None = None

    def steady_from(self, now_ns: int) -> None:
        """The warm-up is sent: what is sent from now on is steady."""
        if self.warmup and self.steady is None:
            self.steady = Tally(now_ns)

    def acknowledged(self, sent_ns: Sequence[int], size: int, at_ns: int, *, warm: bool) -> None:
        """Records were acknowledged at that moment, of which each should have been sent at its own; `warm`: they were sent behind the
        warm-up.
        """
        latencies = [max(at_ns - one, 0) for one in sent_ns]
        for tally in self._tallies(warm):
            tally.add(len(latencies), size, at_ns)
            tally.latencies.add_each(latencies)

    def acknowledged_together(self, records: int, sent_ns: int, size: int, at_ns: int, *, warm: bool) -> None:
        """The same of many that should have been sent at one moment."""
        for tally in self._tallies(warm):
            tally.add(records, size, at_ns)
            tally.latencies.add(max(at_ns - sent_ns, 0), records)

    def received(self, records: int, size: int, at_ns: int) -> None:
        """Records that have no latency."""
        for tally in self._tallies(False):
            tally.add(records, size, at_ns)

    def refused(self, records: int, error: str) -> None:
        """Records that were not written."""
        self.failed += records
        self.error = self.error or error

    def _tallies(self, warm: bool) -> list[Tally]:
        return [self.total, self.window, self.steady] if warm and self.steady is not None else [self.total, self.window]

    def next_window(self, now_ns: int) -> Tally:
        """End the window, and begin another; gives the one that ended."""
        ended, self.window = self.window, Tally(now_ns)
        ended.ended_ns = now_ns
        return ended
