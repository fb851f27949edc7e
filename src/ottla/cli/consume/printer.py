"""Applies filters, the record limit and the rate limit to polled records, and prints them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence

import click

from ottla.cli.common.output_formats import note
from ottla.cli.common.progress import ProgressBar
from ottla.cli.common.rate_limit import RateLimiter
from ottla.cli.consume.output import Output
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.values.record_filter import Filter

#: Maximum records of a poll.
POLL_RECORDS = 5000


class Printer:
    """Prints records until the limit is reached."""

    def __init__(
        self,
        output: Output,
        *,
        keep: Filter | None = None,
        limit: int | None = None,
        rate: float | None = None,
        keep_going: bool = False,
    ) -> None:
        self.output = output
        self._keep = keep
        self._left: float = float("inf") if limit is None else limit
        self._limiter = None if rate is None else RateLimiter(rate)
        self._keep_going = keep_going
        #: Number of records read, printed or not, and their bytes.
        self.read = self.read_bytes = 0
        self.printed = self.skipped = 0
        self.progress: ProgressBar | None = None
        self._is_waiting = False

    def note_waiting(self, lags: Iterable[int | None]) -> None:
        """Says once, at a terminal, that all records are read and new ones are awaited. ``lags``: of each partition; None: unknown."""
        if self._is_waiting or any(lag != 0 for lag in lags):
            return
        self._is_waiting = True
        if sys.stderr.isatty():
            note("All records are read; waiting for new ones. Ctrl-C ends, and -e stops at the end of the log.")

    @property
    def enough(self) -> bool:
        """Whether the limit is reached."""
        return self._left <= 0

    @property
    def poll_records(self) -> int:
        """Maximum number of records for the next poll."""
        most = POLL_RECORDS if self._limiter is None else min(POLL_RECORDS, self._limiter.chunk_records)
        return most if self._keep is not None else int(min(most, self._left))

    def take(self, records: Sequence[ConsumerRecord]) -> int:
        """Prints the records that match. Returns the number of processed records, less than all if the limit is reached.

        Raises: ValueError for a record that does not fit its format; BrokenPipeError.
        """
        chosen, done = self._chosen(records)
        if chosen:
            self._write(chosen)
            self._left -= len(chosen)
            self.printed += len(chosen)
        self.read += done
        if self._limiter is not None and chosen:
            self._limiter.wait(len(chosen))
        return done

    def update_progress(self, done: int, records: Sequence[ConsumerRecord]) -> None:
        if self.progress is not None:
            self.read_bytes += sum(len(record.key or b"") + len(record.value or b"") for record in records)
            self.progress.update(done, self.read, self.read_bytes)

    def _chosen(self, records: Sequence[ConsumerRecord]) -> tuple[Sequence[ConsumerRecord], int]:
        if self._keep is None:
            chosen = records if len(records) <= self._left else records[: int(self._left)]
            return chosen, len(chosen)
        matching: list[ConsumerRecord] = []
        for number, record in enumerate(records, 1):
            if self._keep(record):
                matching.append(record)
                if len(matching) >= self._left:
                    return matching, number
        return matching, len(records)

    def _write(self, records: Sequence[ConsumerRecord]) -> None:
        try:
            self.output.write(records)
            return
        except BrokenPipeError:
            raise
        except ValueError:
            # Records are formatted before any is written, so none was written yet.
            pass
        for record in records:
            try:
                self.output.write([record])
            except ValueError as error:
                self._report_format_error(record, error)

    def _report_format_error(self, record: ConsumerRecord, error: ValueError) -> None:
        message = f"{record.topic}-{record.partition} at offset {record.offset}: {error}"
        if not self._keep_going:
            raise ValueError(f"{message}; skip such records with --keep-going") from None
        self.skipped += 1
        if self.progress is not None:
            self.progress.clear()
        click.echo(f"Warning: {message}", err=True)


class Interval:
    """A timer that is due every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether `seconds` have passed since it was last due; restarts the timer."""
        now = time.monotonic()
        if now - self._last <= self._seconds:
            return False
        self._last = now
        return True
