"""Progress of a measurement on standard error: one line that is redrawn on a terminal, a line per interval in a file.

    37 % ━━━━━━━━━━────────────────── 371,000 records  now 231,000/s  22.0 MB/s  average 210,300/s  p99 4.12 ms  3s left

    100,000 records, 20,000/s, 1.91 MB/s, latency avg 1.20 ms, p99 4.12 ms, max 15.30 ms

Lines are computed from the figures and the time; only `Display` writes.
"""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple, TextIO

from ottla.cli.common.arguments import duration_text
from ottla.cli.common.progress import BAR, REDRAW_S, RedrawnLine, rate_text
from ottla.cli.perf.figures import MB, NS, Figures, Tally, latency_document

#: The current rate is measured over this time.
RATE_NS = 2 * NS


class Goal(NamedTuple):
    """Limits of a run; None: unlimited."""

    records: int | None
    duration_ns: int | None


class Snapshot(NamedTuple):
    """The values of a progress line."""

    records: int
    bytes: int
    elapsed_ns: int
    #: Current records and bytes per second.
    rate: float
    byte_rate: float
    #: Nanoseconds; None: no latencies.
    p99_ns: int | None


def live_line(goal: Goal, moment: Snapshot) -> str:
    """The line on a terminal."""
    parts = [f"{moment.records:,} records", f"now {rate_text(moment.rate)}", f"{moment.byte_rate / MB:.1f} MB/s"]
    if moment.elapsed_ns > 0:
        parts.append(f"average {rate_text(moment.records * NS / moment.elapsed_ns)}")
    if moment.p99_ns is not None:
        parts.append(f"p99 {ms_text(moment.p99_ns)}")
    left_ns, share = _left_ns(goal, moment), _share(goal, moment)
    if share is not None:
        full = int(share * BAR)
        parts[0] = f"{share * 100:3.0f} % {'━' * full}{'─' * (BAR - full)} {parts[0]}"
    if left_ns is not None:
        parts.append(f"{duration_text(left_ns // 1_000_000)} left")
    return "  ".join(parts)


def _share(goal: Goal, moment: Snapshot) -> float | None:
    """The share that is done; None without limits."""
    shares = [] if not goal.records else [moment.records / goal.records]
    if goal.duration_ns:
        shares.append(moment.elapsed_ns / goal.duration_ns)
    return min(max(shares), 1.0) if shares else None


def _left_ns(goal: Goal, moment: Snapshot) -> int | None:
    left: list[int] = []
    if goal.duration_ns is not None:
        left.append(max(goal.duration_ns - moment.elapsed_ns, 0))
    if goal.records is not None and moment.rate > 0:
        left.append(int(max(goal.records - moment.records, 0) * NS / moment.rate))
    return min(left, default=None)


def interval_line(window: Tally) -> str:
    """The line of an interval, in a file."""
    parts = [
        f"{window.records:,} records",
        rate_text(window.per_second(window.records)),
        f"{window.per_second(window.bytes) / MB:.2f} MB/s",
    ]
    latencies = window.latencies
    if latencies.count:
        average, p99 = latencies.average or 0.0, latencies.percentile(0.99) or 0
        parts.append(f"latency avg {ms_text(average)}, p99 {ms_text(p99)}, max {ms_text(latencies.greatest)}")
    return ", ".join(parts)


def ms_text(ns: float) -> str:
    """Nanoseconds as milliseconds with a unit."""
    ms = ns / 1e6
    return f"{ms:,.0f} ms" if ms >= 1000 else f"{ms:.1f} ms" if ms >= 100 else f"{ms:.2f} ms"


class Display(RedrawnLine):
    """Prints progress, and with `detailed` keeps a document of each interval."""

    def __init__(
        self,
        figures: Figures,
        goal: Goal,
        *,
        interval_ns: int,
        detailed: bool = False,
        stream: TextIO | None = None,
        terminal: bool | None = None,
        columns: int | None = None,
    ) -> None:
        self._figures, self._goal, self._interval_ns = figures, goal, interval_ns
        super().__init__(sys.stderr if stream is None else stream, columns)
        self._terminal = self._stream.isatty() if terminal is None else terminal
        self._detailed = detailed
        began_ns = figures.total.began_ns
        self._drawn_ns = began_ns
        #: (time, records, bytes), the oldest about RATE_NS old.
        self._samples: deque[tuple[int, int, int]] = deque([(began_ns, 0, 0)])
        #: Documents of the ended intervals.
        self.intervals: list[dict[str, Any]] = []

    def update(self, now_ns: int) -> None:
        """Prints the lines that are due."""
        if now_ns - self._figures.window.began_ns >= self._interval_ns:
            self._end_window(now_ns)
        if self._terminal and now_ns - self._drawn_ns >= REDRAW_S * NS:
            self._drawn_ns = now_ns
            self.draw(live_line(self._goal, self.moment(now_ns)))

    def _end_window(self, now_ns: int) -> None:
        window = self._figures.next_window(now_ns)
        if self._detailed:
            self.intervals.append(interval_document(window, self._figures.total.began_ns))
        if not self._terminal:
            self._stream.write(interval_line(window) + "\n")
            self._stream.flush()

    def moment(self, now_ns: int) -> Snapshot:
        """The values for a progress line now."""
        total = self._figures.total
        self._samples.append((now_ns, total.records, total.bytes))
        while len(self._samples) > 2 and now_ns - self._samples[1][0] >= RATE_NS:
            self._samples.popleft()
        at_ns, records, size = self._samples[0]
        passed_s = max(now_ns - at_ns, 1) / NS
        return Snapshot(
            total.records, total.bytes, now_ns - total.began_ns, (total.records - records) / passed_s, (total.bytes - size) / passed_s,
            total.latencies.percentile(0.99),
        )  # fmt: skip

    def end(self, now_ns: int) -> None:
        """Ends the display and the current interval."""
        self.clear()
        if self._detailed and self._figures.window.records:
            self.intervals.append(interval_document(self._figures.next_window(now_ns), self._figures.total.began_ns))


def interval_document(window: Tally, began_ns: int) -> dict[str, Any]:
    """The document of an interval: start, tally, and latencies if it has any."""
    latency = latency_document(window.latencies) if window.latencies.count else None
    return {"after_s": round((window.began_ns - began_ns) / NS, 3), **window.document(), "latency_ms": latency}
