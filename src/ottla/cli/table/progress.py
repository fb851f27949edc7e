"""How it goes with a table: a line that moves on a terminal, or lines of JSON.

{"event": "commit", "records": ..., "lag": ..., "version": ..., "offsets": {...}}     rows are in the table; one a second at most
{"event": "note", "kind": "column", "text": "amount double"}                          what a person should know
{"event": "end", ...}                                                                 the same figures as of a commit
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

TOLD_S = 1.0


def watching(output: str, *, follows: bool) -> Lines | Terminal:
    """What tells whoever looks."""
    if output == "json" or (output == "auto" and not sys.stdout.isatty()):
        return Lines()
    return Terminal(follows=follows)


def figures(standing: SyncProgress) -> dict[str, Any]:
    """How far it is, for programs."""
    return {
        "records": standing.records, "bytes": standing.bytes, "lag": standing.lag, "version": standing.version,
        "commits": standing.commits, "corrupt": standing.corrupt, "deleted": standing.deleted, "lost": standing.lost,
        "offsets": {str(partition): offset for partition, offset in sorted(standing.positions.items())},
    }  # fmt: skip


class Lines:
    """For programs."""

    def __init__(self) -> None:
        self._told = 0.0
        self._waiting: dict[str, Any] | None = None

    def moved(self, standing: SyncProgress) -> None:
        """Nothing is told before it is in the table; a commit that came too soon after another is told now, if none followed."""
        if self._waiting is not None and time.monotonic() - self._told >= TOLD_S:
            self._tell()

    def committed(self, standing: SyncProgress) -> None:
        self._waiting = {"event": "commit", **figures(standing)}
        self.moved(standing)

    def _tell(self) -> None:
        if self._waiting is not None:
            _print(self._waiting)
        self._waiting, self._told = None, time.monotonic()

    def noted(self, kind: str, story: str) -> None:
        _print({"event": "note", "kind": kind, "text": story})

    def end(self) -> None:
        """The last commit is told, however soon after the one before."""
        self._tell()

    def summary(self, standing: SyncProgress) -> None:
        """The figures at the end."""
        _print({"event": "end", **figures(standing)})


def _print(line: dict[str, Any]) -> None:
    click.echo(json.dumps(line, ensure_ascii=False))


class _Line(Progress):
    """A transfer, with how far behind the table is."""

    standing: SyncProgress | None = None

    def line(self, done: int, records: int, size: int) -> str:
        said = super().line(done, records, size)
        if self.standing is None:
            return said
        bad = f"  {self.standing.corrupt:,} corrupt" if self.standing.corrupt else ""
        return f"{said}  lag {self.standing.lag:,}  version {self.standing.version}{bad}"


class Terminal:
    """For people."""

    def __init__(self, *, follows: bool) -> None:
        self._follows = follows
        self._line: _Line | None = None
        self._caught_up = False
        #: Records and bytes before the line began: it tells of those since.
        self._before = (0, 0)

    def moved(self, standing: SyncProgress) -> None:
        if not sys.stderr.isatty():
            return
        if self._follows and not standing.lag and not self._caught_up:
            # From now on there is no end that a bar could come to.
            self.end()
            self._caught_up, self._line = True, None
            self._before = standing.records, standing.bytes
        if self._line is None:
            self._line = _Line(None if self._caught_up else standing.total)
        self._line.standing = standing
        records, size = standing.records - self._before[0], standing.bytes - self._before[1]
        self._line.update(max(0, standing.total - standing.lag), records, size)

    def committed(self, standing: SyncProgress) -> None:
        self.moved(standing)

    def noted(self, kind: str, story: str) -> None:
        self.end()
        click.echo(f"{kind}: {story}", err=True)

    def end(self) -> None:
        """Takes the line away."""
        if self._line is not None:
            self._line.wipe()

    def summary(self, standing: SyncProgress) -> None:
        """What came of it."""
        parts = [
            f"{standing.records:,} records",
            bytes_text(standing.bytes),
            f"{standing.commits:,} commit{'' if standing.commits == 1 else 's'}",
            f"version {standing.version}",
        ]
        for count, word in ((standing.deleted, "deleted"), (standing.corrupt, "corrupt"), (standing.lost, "lost")):
            parts += [f"{count:,} {word}"] if count else []
        click.echo("  ".join([*parts, f"lag {standing.lag:,}"]), err=True)
