"""What happens to records between a poll and the output: filters, the limit, the pace, and the count for whoever watches."""

from __future__ import annotations

import time
from collections.abc import Sequence

import click

from ottla.cli.common.progress import Progress
from ottla.cli.common.rate_limit import Pace
from ottla.cli.consume.filter import Filter
from ottla.cli.consume.output import Output
from ottla.client.consumer.record import ConsumerRecord

#: Records in one poll, and so between two looks at the limits.
POLL_RECORDS = 5000


class Printer:
    """Prints records until there were enough."""

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
        self._pace = None if rate is None else Pace(rate)
        self._keep_going = keep_going
        #: Records that were read, and their bytes, printed or not.
        self.read = self.read_bytes = 0
        self.printed = self.skipped = 0
        self.progress: Progress | None = None

    @property
    def enough(self) -> bool:
        """Whether nothing more is to be printed."""
        return self._left <= 0

    @property
    def poll_records(self) -> int:
        """How many records to poll for."""
        most = POLL_RECORDS if self._pace is None else min(POLL_RECORDS, self._pace.portion)
        return most if self._keep is not None else int(min(most, self._left))

    def take(self, records: Sequence[ConsumerRecord]) -> int:
        """Print what is wanted of these, and say how many of them are done with: fewer than there are when the limit is reached.

        Raises: ValueError over a record that cannot be shown, naming it; BrokenPipeError.
        """
        chosen, done = self._chosen(records)
        if chosen:
            self._write(chosen)
            self._left -= len(chosen)
            self.printed += len(chosen)
        self.read += done
        if self._pace is not None and chosen:
            self._pace.wait(len(chosen))
        return done

    def watched(self, done: int, records: Sequence[ConsumerRecord]) -> None:
        """Show how far it is, to whoever watches."""
        if self.progress is not None:
            self.read_bytes += sum(len(record.key or b"") + len(record.value or b"") for record in records)
            self.progress.update(done, self.read, self.read_bytes)

    def _chosen(self, records: Sequence[ConsumerRecord]) -> tuple[Sequence[ConsumerRecord], int]:
        if self._keep is None:
            chosen = records if len(records) <= self._left else records[: int(self._left)]
            return chosen, len(chosen)
        found: list[ConsumerRecord] = []
        for number, record in enumerate(records, 1):
            if self._keep(record):
                found.append(record)
                if len(found) >= self._left:
                    return found, number
        return found, len(records)

    def _write(self, records: Sequence[ConsumerRecord]) -> None:
        try:
            self.output.write(records)
            return
        except BrokenPipeError:
            raise
        except ValueError:
            # Nothing of them was written: they are rendered together first.
            pass
        for record in records:
            try:
                self.output.write([record])
            except ValueError as error:
                self._cannot_show(record, error)

    def _cannot_show(self, record: ConsumerRecord, error: ValueError) -> None:
        told = f"{record.topic}-{record.partition} at offset {record.offset}: {error}"
        if not self._keep_going:
            raise ValueError(f"{told}; --keep-going leaves such records out") from None
        self.skipped += 1
        if self.progress is not None:
            self.progress.wipe()
        click.echo(f"Warning: {told}", err=True)


class Every:
    """Says now and then that it is time again."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last = time.monotonic()

    def due(self) -> bool:
        """Whether so many seconds have passed since it was due the last time."""
        now = time.monotonic()
        if now - self._last <= self._seconds:
            return False
        self._last = now
        return True
