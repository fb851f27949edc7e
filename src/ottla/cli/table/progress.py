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

from ottla.cli.common.progress import Progress, bytes_text

if TYPE_CHECKING:
    from ottla.lake.table.sync import SyncProgress

REPORT_S = 1.0


def progress_reporter(output: str, *, follows: bool) -> JsonLinesProgress | TerminalProgress:
    """The reporter for `--output`."""
    if output == "json" or (output == "auto" and not sys.stdout.isatty()):
        return JsonLinesProgress()
    return TerminalProgress(follows=follows)


def figures(standing: SyncProgress) -> dict[str, Any]:
    """The fields of a commit event."""
    return {
        "records": standing.records, "bytes": standing.bytes, "lag": standing.lag, "version": standing.version,
        "commits": standing.commits, "corrupt": standing.corrupt, "deleted": standing.deleted, "lost": standing.lost,
        "offsets": {str(partition): offset for partition, offset in sorted(standing.positions.items())},
    }  # fmt: skip


class JsonLinesProgress:
    """Reports as JSON lines."""

    def __init__(self) -> None:
        self._reported_at = 0.0
        self._pending: dict[str, Any] | None = None

    def moved(self, standing: SyncProgress) -> None:
        """Prints the last commit, if it was delayed to keep `REPORT_S` between two. Uncommitted progress is not printed."""
        if self._pending is not None and time.monotonic() - self._reported_at >= REPORT_S:
            self._report()

    def committed(self, standing: SyncProgress) -> None:
        self._pending = {"event": "commit", **figures(standing)}
        self.moved(standing)

    def _report(self) -> None:
        if self._pending is not None:
            _print(self._pending)
        self._pending, self._reported_at = None, time.monotonic()

    def noted(self, kind: str, story: str) -> None:
        _print({"event": "note", "kind": kind, "text": story})

    def end(self) -> None:
        """Prints a delayed commit."""
        self._report()

    def summary(self, standing: SyncProgress) -> None:
        """Prints the final figures."""
        _print({"event": "end", **figures(standing)})


def _print(line: dict[str, Any]) -> None:
    click.echo(json.dumps(line, ensure_ascii=False))


class _TableLine(Progress):
    """A progress line with the table's lag and version."""

    standing: SyncProgress | None = None

    def line(self, done: int, records: int, size: int) -> str:
        line = super().line(done, records, size)
        if self.standing is None:
            return line
        bad = f"  {self.standing.corrupt:,} corrupt" if self.standing.corrupt else ""
        return f"{line}  lag {self.standing.lag:,}  version {self.standing.version}{bad}"


class TerminalProgress:
    """Reports on a terminal."""

    def __init__(self, *, follows: bool) -> None:
        self._follows = follows
        self._line: _TableLine | None = None
        self._caught_up = False
        #: Records and bytes before the current line.
        self._before = (0, 0)

    def moved(self, standing: SyncProgress) -> None:
        if not sys.stderr.isatty():
            return
        if self._follows and not standing.lag and not self._caught_up:
            # There is no end from now on: a line without a bar.
            self.end()
            self._caught_up, self._line = True, None
            self._before = standing.records, standing.bytes
        if self._line is None:
            self._line = _TableLine(None if self._caught_up else standing.total)
        self._line.standing = standing
        records, size = standing.records - self._before[0], standing.bytes - self._before[1]
        self._line.update(max(0, standing.total - standing.lag), records, size)

    def committed(self, standing: SyncProgress) -> None:
        self.moved(standing)

    def noted(self, kind: str, story: str) -> None:
        self.end()
        click.echo(f"{kind}: {story}", err=True)

    def end(self) -> None:
        """Clears the line."""
        if self._line is not None:
            self._line.clear()

    def summary(self, standing: SyncProgress) -> None:
        """Prints the final figures."""
        parts = [
            f"{standing.records:,} records",
            bytes_text(standing.bytes),
            f"{standing.commits:,} commit{'' if standing.commits == 1 else 's'}",
            f"version {standing.version}",
        ]
        for count, word in ((standing.deleted, "deleted"), (standing.corrupt, "corrupt"), (standing.lost, "lost")):
            parts += [f"{count:,} {word}"] if count else []
        click.echo("  ".join([*parts, f"lag {standing.lag:,}"]), err=True)
