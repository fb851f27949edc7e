"""The counters of a measurement, and the documents that `ottla perf` prints.

A tally counts the records of a time interval. A run has three: the total, the steady part after the warm-up, and the window since the last
report. Callers pass the time in nanoseconds.

MB are 2**20 bytes, as in Kafka's tools. Rates count acknowledged (or received) records, from the first send to the last acknowledgement.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ottla.cli.perf.histogram import Histogram

NS, MB = 10**9, 2**20
PERCENTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99, "p99_9": 0.999}
#: Fields of `latency_document`.
LATENCY = {
    "avg": "average latency in ms",
    "max": "maximum latency in ms",
    "p50": "median latency in ms; percentiles are at most 0.8 % too high",
    "p95": "95th percentile in ms",
    "p99": "99th percentile in ms",
    "p99_9": "99.9th percentile in ms",
}
#: Fields of `Tally.document`.
TALLY = {
    "records": "number of records",
    "bytes": "size of keys and values",
    "seconds": "duration",
    "records_per_s": "records per second",
    "mb_per_s": "MB (2**20 bytes) per second",
}


#: Fields of the result and of an interval of `ottla perf produce` and `latency`.
INTERVAL = {**TALLY, **{f"latency_ms.{name}": help for name, help in LATENCY.items()}}
#: Fields that these results have after the others.
COMMON_FIELDS = {
    "latency_from": "due (with --throughput): latency counts from the due time; sent: from the send",
    "intervals[].after_s": "start of the interval in seconds; only with --show-detailed-stats",
    **{f"intervals[].{name}": f"{help}, in the interval" for name, help in INTERVAL.items()},
    "metrics.*": "with --print-metrics: metrics of the clients by group and name",
}


class Tally:
    """Counts of the records in a time interval."""

    __slots__ = ("began_ns", "bytes", "ended_ns", "latencies", "records")

    def __init__(self, began_ns: int) -> None:
        self.began_ns = self.ended_ns = began_ns
        self.records = self.bytes = 0
        self.latencies = Histogram()

    def add(self, records: int, size: int, at_ns: int) -> None:
        self.records += records
        self.bytes += size
        self.ended_ns = max(self.ended_ns, at_ns)

    @property
    def seconds(self) -> float:
        """Time to the last record, or to the end of the interval."""
        return (self.ended_ns - self.began_ns) / NS

    def per_second(self, amount: float) -> float:
        """The amount per second; 0 for an interval without duration."""
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
    """The fields of `LATENCY`; null without records."""
    values_ns = {"avg": latencies.average, "max": latencies.greatest if latencies.count else None}
    values_ns |= {name: latencies.percentile(share) for name, share in PERCENTILES.items()}
    return {name: None if ns is None else round(ns / 1e6, 3) for name, ns in values_ns.items()}


class Figures:
    """The counters of a run. `warmup`: number of records before the steady part."""

    def __init__(self, now_ns: int, *, warmup: int = 0) -> None:
        self.total = Tally(now_ns)
        self.window = Tally(now_ns)
        self.warmup = warmup
        #: Records after the warm-up, from their first send. None without a warm-up, and during it.
        self.steady: Tally | None = None
        self.failed = 0
        #: Error of the first failed record.
        self.error: str | None = None

    def steady_from(self, now_ns: int) -> None:
        """Begins the steady part."""
        if self.warmup and self.steady is None:
            self.steady = Tally(now_ns)

    def add_acknowledged(self, sent_ns: Sequence[int], size: int, at_ns: int, *, warm: bool) -> None:
        """Counts records that were due at `sent_ns` and acknowledged at `at_ns`. `warm`: they were sent after the warm-up."""
        latencies = [max(at_ns - one, 0) for one in sent_ns]
        for tally in self._tallies(warm):
            tally.add(len(latencies), size, at_ns)
            tally.latencies.add_each(latencies)

    def add_acknowledged_together(self, records: int, sent_ns: int, size: int, at_ns: int, *, warm: bool) -> None:
        """The same for records with one due time."""
        for tally in self._tallies(warm):
            tally.add(records, size, at_ns)
            tally.latencies.add(max(at_ns - sent_ns, 0), records)

    def add_received(self, records: int, size: int, at_ns: int) -> None:
        """Counts records without latency."""
        for tally in self._tallies(False):
            tally.add(records, size, at_ns)

    def add_failed(self, records: int, error: str) -> None:
        """Counts records that were not written."""
        self.failed += records
        self.error = self.error or error

    def _tallies(self, warm: bool) -> list[Tally]:
        return [self.total, self.window, self.steady] if warm and self.steady is not None else [self.total, self.window]

    def next_window(self, now_ns: int) -> Tally:
        """Ends the window and begins the next; returns the ended one."""
        ended, self.window = self.window, Tally(now_ns)
        ended.ended_ns = now_ns
        return ended
