"""Counters of a process, which the event loop keeps: of all its brokers, since the start."""

from dataclasses import dataclass, field
from typing import Any

from ottla.server.metrics.histogram import Histogram


@dataclass(slots=True)
class Counters:
    """Counters since the start, of all brokers of the process."""

    #: By API key.
    requests: dict[int, int] = field(default_factory=dict)
    failed_requests: int = 0
    #: Accesses that access rules refused.
    denied: int = 0
    #: Answers of clients above a quota, and the sum of their throttle times.
    throttled_requests: int = 0
    throttle_ms: int = 0
    #: Flush batches, and the partition flushes in them.
    commits: int = 0
    flushes: int = 0
    #: Times of flush batches: from their begin to their end on the loop, and those of the syncs alone.
    commit_times: Histogram = field(default_factory=Histogram)
    sync_times: Histogram = field(default_factory=Histogram)
    #: Times of writes to the coordination store, and delays of the loop's ticks.
    store_times: Histogram = field(default_factory=Histogram)
    loop_lags: Histogram = field(default_factory=Histogram)
    #: Monotonic time of the last tick of the loop.
    beat_s: float = 0.0
    #: Compacted logs, and bytes read and written for it.
    compactions: int = 0
    scrubbed_bytes: int = 0
    scrub_damages: int = 0
    compaction_read_bytes: int = 0
    compaction_written_bytes: int = 0
    #: Exchanges of certificates, and days until the first certificate of a listener expires; None without TLS.
    certificate_exchanges: int = 0
    certificate_days_left: float | None = None
    #: Longest stall of the loop; number of times it was blocked, or starved, for longer than ``STALL_S``.
    lag_max_s: float = 0.0
    stalls: int = 0
    starved: int = 0

    def snapshot(self) -> dict[str, Any]:
        """All counters by name."""
        return {name: value for name in self.__slots__ if not isinstance(value := getattr(self, name), Histogram)}
