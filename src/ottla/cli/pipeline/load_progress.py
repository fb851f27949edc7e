"""Progress of a load: a line with a bar on a terminal, or JSON lines. Also handles bad records.

JSON lines on standard output have an `event`:

    file       start of a file: file, from_row, found (records that an earlier run wrote but did not journal), note
    progress   once a second: file, records, bytes, bytes_total, records_per_second, seconds_left
    bad        a skipped record: file, line or record, why
    loaded     the end: files, records, found, bad, seconds, records_per_second
"""

from __future__ import annotations

import json
import sys
import time
from base64 import b64encode
from pathlib import Path
from typing import Any, TextIO

import click

from ottla.cli.common.progress import ProgressBar, rate_text
from ottla.cli.common.rate_limit import RateLimiter
from ottla.lake.load.file_load import BadRow, place
from ottla.lake.load.inputs import Input
from ottla.lake.load.log_tail import Tail
from ottla.lake.load.plan import FilePlan
from ottla.lake.load.reader import RejectedRow
from ottla.lake.load.run import LoadObserver, LoadTotals

#: Interval of progress events.
REPORT_S = 1.0
#: Bad records that are printed; further ones are only counted.
REPORTED_BAD_MAX = 20


class LoadWatch(LoadObserver):
    """Reports progress. ``bad_records`` is fail, skip, or a file for them."""

    def __init__(self, files: list[FilePlan], totals: LoadTotals, bad_records: str, rate: float | None, *, human: bool) -> None:
        self._totals, self._human = totals, human
        self._size = sum(planned.given.size for planned in files)
        self._before = 0
        self._bad_records = bad_records
        self._bad_file: TextIO | None = None if bad_records in ("fail", "skip") else open(bad_records, "a")  # noqa: SIM115
        self._limiter = None if rate is None else RateLimiter(rate)
        self._progress = ProgressBar(self._size or None) if human and sys.stderr.isatty() else None
        self._began = self._told = time.monotonic()
        self._current = ""
        self._bad = 0

    @property
    def portion(self) -> int | None:
        """Records to send at once with a rate limit, else None."""
        return None if self._limiter is None else self._limiter.chunk_records

    def begins(self, planned: FilePlan, tail: Tail | None) -> None:
        given, entry = planned.given, planned.entry
        self._current = given.name
        found = 0 if tail is None else sum(tail.written.values())
        if not self._human:
            rows = 0 if entry is None else entry.rows
            self._say("file", file=given.name, from_row=rows, found=found, note=planned.note or None)
        elif planned.note or found:
            more = f"; {found:,} more were found in the topic" if found else ""
            self.note(f"{given.name} {planned.note}{more}")
        if tail is not None and tail.unsure:
            self.note(f"Warning: {tail.unsure:,} records of {given.name} in the topic are ambiguous: they may be written twice")
        if tail is not None and tail.gone:
            gone = ", ".join(map(str, sorted(tail.gone)))
            self.note(
                f"Warning: records that an earlier run wrote to partition {gone} are deleted: records of {given.name} may be repeated"
            )

    def ended(self, given: Input, done: bool) -> None:
        self._before += given.size

    def on(self, done: int, records: int) -> None:
        now = time.monotonic()
        if self._progress is not None:
            self._progress.update(self._before + done, self._totals.written + records, self._before + done)
        elif not self._human and now - self._told >= REPORT_S:
            self._told = now
            written, passed, read = self._totals.written + records, now - self._began, self._before + done
            left = None if not self._size or not read else round(passed * (self._size - read) / read, 1)
            rate = round(written / passed, 1)
            known = {"bytes": read, "bytes_total": self._size or None, "records_per_second": rate, "seconds_left": left}
            self._say("progress", file=self._current, records=written, **known)

    def pause(self, records: int) -> None:
        if self._limiter is not None:
            self._limiter.wait(records)

    def bad(self, given: Input, row: int, bad: RejectedRow) -> None:
        if self._bad_records == "fail":
            raise BadRow(given, row, bad)
        self._bad += 1
        where: dict[str, Any] = {"line": bad.line} if bad.line is not None else {"record": row + bad.at + 1}
        if self._bad_file is not None:
            try:
                data: Any = bad.data.decode()
            except UnicodeDecodeError:
                data = {"base64": b64encode(bad.data).decode()}
            self._bad_file.write(json.dumps({"file": given.name, **where, "why": bad.why, "data": data}) + "\n")
            self._bad_file.flush()
        if not self._human:
            self._say("bad", file=given.name, **where, why=bad.why)
        elif self._bad <= REPORTED_BAD_MAX:
            self.note(f"Warning: {given.name}, {place(row, bad)}: {bad.why}")

    def note(self, text: str) -> None:
        """Prints a message; the progress line is redrawn later."""
        self.clear()
        click.echo(text, err=True)

    def clear(self) -> None:
        """Clears the progress line."""
        if self._progress is not None:
            self._progress.clear()

    def close(self) -> None:
        """Closes the file of bad records."""
        self.clear()
        if self._bad_file is not None:
            self._bad_file.close()

    def ends(self, topic: str, *, already: int) -> None:
        """Prints the summary of a successful load."""
        totals, seconds = self._totals, max(time.monotonic() - self._began, 1e-3)
        if not self._human:
            rate = round(totals.written / seconds, 1)
            figures = {"found": totals.found, "bad": totals.bad, "already_loaded": already, "seconds": round(seconds, 3)}
            self._say("loaded", files=totals.files, records=totals.written, **figures, records_per_second=rate)
            return
        files = f" of {totals.files:,} files" if totals.files > 1 else ""
        click.echo(
            f"{_records(totals.written)}{files} written to {topic} in {seconds:.1f} s, {rate_text(totals.written / seconds)}", err=True
        )
        if totals.bad:
            where = "" if self._bad_file is None else f", see {Path(self._bad_records)}"
            click.echo(f"{_records(totals.bad)} could not be read and {'was' if totals.bad == 1 else 'were'} skipped{where}", err=True)
        if totals.limited:
            click.echo("The limit was reached; the same command continues here", err=True)

    def _say(self, event: str, **what: Any) -> None:
        click.echo(json.dumps({"event": event, **what}, ensure_ascii=False))


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"
