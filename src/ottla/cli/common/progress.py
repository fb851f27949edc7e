"""A progress line on a terminal: share done, rate and remaining time of a transfer.

    45 % ━━━━━━━━━━━━─────────────── 450,000 records  43.2 MB  231,000/s  2s left

It goes to standard error, only if that is a terminal. It is redrawn several times a second and cleared at the end.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from ottla.cli.common.arguments import duration_text

REDRAW_S = 0.2
#: The rate is measured over this time.
RATE_S = 5.0
BAR = 28
_UNITS = ("B", "kB", "MB", "GB", "TB")


def bytes_text(count: float) -> str:
    """A size in a decimal unit: `43.2 MB`."""
    unit = 0
    while count >= 1000 and unit < len(_UNITS) - 1:
        count /= 1000
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def rate_text(rate: float) -> str:
    """A rate per second: `231,000/s`."""
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


class RedrawnLine:
    """A line on a terminal that is drawn over itself."""

    def __init__(self, stream: TextIO, width: int | None = None) -> None:
        self._stream, self._width = stream, width
        self._shown = False

    def draw(self, line: str) -> None:
        """Draws the line, cut to the terminal's width."""
        columns = self._width or shutil.get_terminal_size().columns
        self._stream.write("\r" + line[: columns - 1] + "\x1b[K")
        self._stream.flush()
        self._shown = True

    def clear(self) -> None:
        """Clears the line, before other output and at the end."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


class ProgressBar(RedrawnLine):
    """Progress of a transfer. `total` and `done` share a unit, bytes of input or offsets. Without a total no bar is drawn."""

    def __init__(
        self, total: int | None, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic, width: int | None = None
    ) -> None:
        super().__init__(sys.stderr if stream is None else stream, width)
        self._clock = clock
        self._total = total
        self._began = self._drawn = clock()
        self._samples: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])

    def update(self, done: int, records: int, size: int) -> None:
        """Takes the progress so far, with the number of records and bytes. Redraws if `REDRAW_S` have passed."""
        now = self._clock()
        if now - self._drawn < REDRAW_S:
            return
        self._drawn = now
        self._samples.append((now, done, records))
        while len(self._samples) > 2 and now - self._samples[1][0] >= RATE_S:
            self._samples.popleft()
        self.draw(self.line(done, records, size))

    def line(self, done: int, records: int, size: int) -> str:
        at, done_then, records_then = self._samples[0]
        passed = max(self._samples[-1][0] - at, 1e-9)
        parts = [f"{records:,} records", bytes_text(size), rate_text((records - records_then) / passed)]
        if self._total:
            share = min(done / self._total, 1.0)
            full = int(share * BAR)
            parts.insert(0, f"{share:4.0%} {'━' * full}{'─' * (BAR - full)}".replace("%", " %"))
            speed = (done - done_then) / passed
            if speed > 0 and done < self._total:
                parts.append(f"{duration_text(int((self._total - done) / speed * 1000))} left")
        return "  ".join(parts)


def terminal_progress(total: int | None) -> ProgressBar | None:
    """A progress line, if standard error is a terminal."""
    return ProgressBar(total) if sys.stderr.isatty() else None
