"""Progress of a table: a line on a terminal, or JSON lines.

{"event": "commit", "records": ..., "lag": ..., "version": ..., "offsets": {...}}     a commit; at most one per second
{"event": "note", "kind": "column", "text": "amount double"}                          a remark
{"event": "end", ...}                                                                 the end, with the fields of a commit
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

import click

from ottla.cli.common.progress import ProgressBar, bytes_text

if TYPE_CHECKING:
    from ottla.lake.table.sync import SyncProgress

REPORT_S = 1.0


def progress_reporter(output: str, *, follows: bool) -> JsonLinesProgress | TerminalProgress:
    """The reporter for `--output`."""
    if output == "json" or (output == "auto" and not sys.stdout.isatty()):
        return JsonLinesProgress()
    return TerminalProgress(follows=follows)


def figures(progress: SyncProgress) -> dict[str, Any]:
    """The fields of a commit event."""
    return {
        "records": progress.records, "bytes": progress.bytes, "lag": progress.lag, "version": progress.version,
        "commits": progress.commits, "corrupt": progress.corrupt, "deleted": progress.deleted, "lost": progress.lost,
        "offsets": {str(partition): offset for partition, offset in sorted(progress.positions.items())},
    }  # fmt: skip


class JsonLinesProgress:
    """Reports as JSON lines."""

    def __init__(self) -> None:
        self._reported_at = 0.0
        self._pending: dict[str, Any] | None = None

    def moved(self, progress: SyncProgress) -> None:
        """Prints the last commit, if it was delayed to keep `REPORT_S` between two. Uncommitted progress is not printed."""
        if self._pending is not None and time.monotonic() - self._reported_at >= REPORT_S:
            self._report()

    def committed(self, progress: SyncProgress) -> None:
        self._pending = {"event": "commit", **figures(progress)}
        self.moved(progress)

    def _report(self) -> None:
        if self._pending is not None:
            _print(self._pending)
        self._pending, self._reported_at = None, time.monotonic()

    def noted(self, kind: str, story: str) -> None:
        _print({"event": "note", "kind": kind, "text": story})

    def end(self) -> None:
        """Prints a delayed commit."""
        self._report()

    def summary(self, progress: SyncProgress) -> None:
        """Prints the final figures."""
        _print({"event": "end", **figures(progress)})


def _print(line: dict[str, Any]) -> None:
    click.echo(json.dumps(line, ensure_ascii=False))


class _TableLine(ProgressBar):
    """A progress line with the table's lag and version."""

    progress: SyncProgress | None = None

    def line(self, done: int, records: int, size: int) -> str:
        line = super().line(done, records, size)
        if self.progress is None:
            return line
        bad = f"  {self.progress.corrupt:,} corrupt" if self.progress.corrupt else ""
        return f"{line}  lag {self.progress.lag:,}  version {self.progress.version}{bad}"


class TerminalProgress:
    """Reports on a terminal."""

    def __init__(self, *, follows: bool) -> None:
        self._follows = follows
        self._line: _TableLine | None = None
        self._caught_up = False
        #: Records and bytes before the current line.
        self._before = (0, 0)

    def moved(self, progress: SyncProgress) -> None:
        if not sys.stderr.isatty():
            return
        if self._follows and not progress.lag and not self._caught_up:
            # There is no end from now on: a line without a bar.
            self.end()
            self._caught_up, self._line = True, None
            self._before = progress.records, progress.bytes
        if self._line is None:
            self._line = _TableLine(None if self._caught_up else progress.total)
        self._line.progress = progress
        records, size = progress.records - self._before[0], progress.bytes - self._before[1]
        self._line.update(max(0, progress.total - progress.lag), records, size)

    def committed(self, progress: SyncProgress) -> None:
        self.moved(progress)

    def noted(self, kind: str, story: str) -> None:
        self.end()
        click.echo(f"{kind}: {story}", err=True)

    def end(self) -> None:
        """Clears the line."""
        if self._line is not None:
            self._line.clear()

    def summary(self, progress: SyncProgress) -> None:
        """Prints the final figures."""
        parts = [
            f"{progress.records:,} records",
            bytes_text(progress.bytes),
            f"{progress.commits:,} commit{'' if progress.commits == 1 else 's'}",
            f"version {progress.version}",
        ]
        for count, word in ((progress.deleted, "deleted"), (progress.corrupt, "corrupt"), (progress.lost, "lost")):
            parts += [f"{count:,} {word}"] if count else []
        click.echo("  ".join([*parts, f"lag {progress.lag:,}"]), err=True)
