"""Loads one file into a topic, and records the progress in the journal. A restart after a crash continues where the log ends.

    rows of a file     0 ....... in the journal ....... acknowledged ....... sent ....... the end
                                        |<------ looked up in the log ------>|

After a crash the rows behind the journal's position may or may not be in the log. `log_tail` counts those of each partition in the log.
The partition of a row depends only on the row and its number, so the load skips that many rows of each partition and sends the others.
Files are loaded one after the other, so at most one file is uncertain.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.send import BlockingTableDelivery
from ottla.client.sync.producer import Producer
from ottla.lake.load.column_mapping import ColumnMapping, Records, choose_partitions, map_columns
from ottla.lake.load.inputs import Input
from ottla.lake.load.load_journal import JournalEntry, LoadJournal, Writer
from ottla.lake.load.log_tail import Tail
from ottla.lake.load.reader import Reader, ReadOptions, RejectedRow
from ottla.lake.load.readers import open_reader
from ottla.wire.errors import KafkaError

#: Interval at which the journal is written during a load.
WRITE_INTERVAL_S = 0.5
#: Timeout of the flush after an interrupt.
FLUSH_ON_INTERRUPT_MS = 10_000


class BadRow(ValueError):
    """A rejected row, if such rows end the load."""

    def __init__(self, given: Input, row: int, bad: RejectedRow) -> None:
        super().__init__(f"{given.name}, {place(row, bad)}: {bad.why}")


def place(row: int, bad: RejectedRow) -> str:
    """Position of a rejected row, for messages."""
    return f"line {bad.line}" if bad.line is not None else f"record {row + bad.at + 1}"


class FileObserver(Protocol):
    """Receives the progress of a file."""

    def bad(self, given: Input, row: int, bad: RejectedRow) -> None:
        """A row was rejected. Raises: BadRow to end the load; else the row is skipped."""

    def on(self, done: int, records: int) -> None:
        """So far: bytes of the file read, and records sent."""

    def pause(self, records: int) -> None:
        """So many records were sent; sleeps to keep a rate."""


class PendingDelivery(NamedTuple):
    """Records without an acknowledgement, and the progress of the file once they are written."""

    delivery: BlockingTableDelivery | None
    rows: int
    sent: dict[int, int]


@dataclass(slots=True)
class FileOutcome:
    """Result of a file."""

    #: Rows that are done, and records that this run has written.
    rows: int = 0
    written: int = 0
    bad: int = 0
    #: Rows that an earlier process had written and that the journal lacked.
    found: int = 0
    done: bool = False


@dataclass(slots=True)
class LoadTarget:
    """The topic and what this run knows of it."""

    producer: Producer
    topic: str
    partitions: int
    #: By partition: an offset behind which the log holds no record of this load that the journal lacks.
    ends: dict[int, int]
    #: By partition: how many records this producer has sent.
    sent: dict[int, int] = field(default_factory=dict)


class FileLoad:
    """The load of one file."""

    def __init__(
        self,
        target: LoadTarget,
        given: Input,
        mapping: ColumnMapping,
        options: ReadOptions,
        watch: FileObserver,
        *,
        journal: LoadJournal | None = None,
        entry: JournalEntry | None = None,
        tail: Tail | None = None,
        limit: int | None = None,
        portion: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self._given, self._mapping, self._options, self._watch = target, given, mapping, options, watch
        self._journal, self._entry, self._clock = journal, entry, clock
        self._limit, self._portion = limit, portion
        self.outcome = FileOutcome(rows=entry.rows if entry is not None else 0)
        #: By partition: how many of the next rows are in the log already.
        self._skips = dict(tail.written) if tail is not None else {}
        #: True until these rows are skipped; until then the journal must not advance.
        self._uncertain = bool(self._skips and any(self._skips.values()))
        self._partitions = entry.partitions if self._uncertain and entry is not None else target.partitions
        if tail is not None:
            target.ends |= tail.ends
        self._row = self.outcome.rows
        self._pending: deque[PendingDelivery] = deque()
        #: True while rows are passed to the producer; after an interrupt then, it is unknown which were.
        self._sending = False
        self._written_at = clock()

    def run(self) -> FileOutcome:
        """Load the file. Raises: BadRow, CannotLoad, KafkaError, OSError, after a flush and a journal entry for the rows before."""
        self._begin()
        try:
            with open_reader(self._given, self._options) as reader:
                self._mapping.check(reader.columns, self._given.name)
                self._read(reader)
        except BaseException as error:
            self._close_after_error(error)
            raise
        self._collect(wait=True)
        self.outcome.done = not self._at_limit
        self._uncertain = self._uncertain and self._at_limit
        self._write_final_entry(clean=not self._uncertain)
        return self.outcome

    def _begin(self) -> None:
        """Writes the producer id to the journal before the first record is sent."""
        if self._journal is None or self._entry is None:
            return
        number, epoch = self._target.producer.numbered()
        writer = Writer(number, epoch, _keys(self._target.sent))
        if self._uncertain:
            self._entry.writers = [*self._entry.writers, writer]
        else:
            self._entry.writers, self._entry.offsets = [writer], _keys(self._target.ends)
            self._entry.partitions = self._partitions
        self._entry.done = False
        self._journal.note(self._entry)

    def _close_after_error(self, error: BaseException) -> None:
        """Flushes, then writes the last journal entry."""
        with suppress(KafkaError, TimeoutError, KeyboardInterrupt):
            self._target.producer.flush(FLUSH_ON_INTERRUPT_MS if isinstance(error, KeyboardInterrupt) else None)
        with suppress(KafkaError):
            self._collect(wait=False)
        clean = not (self._pending or self._uncertain or self._sending)
        with suppress(OSError):
            self._write_final_entry(clean=clean)

    # -- rows

    @property
    def _at_limit(self) -> bool:
        return self._limit is not None and self.outcome.written + self._records_pending >= self._limit

    @property
    def _records_pending(self) -> int:
        return sum(pending.delivery.rows for pending in self._pending if pending.delivery is not None)

    def _read(self, reader: Reader) -> None:
        first = 0
        for portion in reader.portions(self._row):
            self._done = portion.done
            first += reader.skipped
            reader.skipped = 0
            batch, last = portion.batch, first + portion.batch.num_rows
            if last > self._row or any(first + one.at >= self._row for one in portion.bad):
                drop = self._row - first
                bad = [one._replace(at=one.at - drop) for one in portion.bad if one.at >= drop]
                self._send(batch.slice(drop), bad, reader.value)
                if self._at_limit:
                    return
            first = last
            self._watch.on(self._done, self.outcome.written + self._records_pending)

    def _send(self, batch: Any, bad: list[RejectedRow], whole: str | None) -> None:
        """Send rows; the first is row `_row`."""
        records = map_columns(self._mapping, batch, whole, self._row, self._given.name)
        problem: BadRow | None = None
        end = self._row + batch.num_rows
        for one in sorted([*bad, *records.bad], key=lambda one: one.at):
            try:
                self._watch.bad(self._given, self._row, one)
            except BadRow as error:
                problem, end = error, self._row + one.at
                break
            self.outcome.bad += 1
        if problem is not None:
            records = _before(records, end)
        self._send_records(records, end)
        if problem is not None and not self._at_limit:
            raise problem

    def _send_records(self, records: Records, end: int) -> None:
        partitions = choose_partitions(records, self._partitions)
        if self._skips:
            records, partitions = self._drop_written(records, partitions)
        count = records.batch.num_rows
        if self._limit is not None and (left := self._limit - self.outcome.written - self._records_pending) < count:
            count, end = left, records.rows[left].as_py()
        step = min(count, self._portion or count) or 1
        for at in range(0, count, step):
            size = min(step, count - at)
            some, places = records.batch.slice(at, size), partitions.slice(at, size)
            for pair in pc.value_counts(places).to_pylist():
                self._target.sent[pair["values"]] = self._target.sent.get(pair["values"], 0) + pair["counts"]
            last = at + size == count
            self._sending = True
            self._pending.append(
                PendingDelivery(self._put(some, places), end if last else records.rows[at + size].as_py(), dict(self._target.sent))
            )
            self._sending = False
            self._after_send()
            self._watch.on(self._done, self.outcome.written + self._records_pending)
            self._watch.pause(size)
        if not count:
            self._pending.append(PendingDelivery(None, end, dict(self._target.sent)))
            self._after_send()
        self._row = end
        if self._uncertain and not any(self._skips.values()):
            self._end_uncertainty()

    def _drop_written(self, records: Records, partitions: Any) -> tuple[Records, Any]:
        """The records that are not in the log."""
        kept = []
        for partition in partitions.to_pylist():
            left = self._skips.get(partition, 0)
            kept.append(left <= 0)
            if left > 0:
                self._skips[partition] = left - 1
                self.outcome.found += 1
        mask = pa.array(kept, pa.bool_())
        return Records(records.batch.filter(mask), records.rows.filter(mask), []), partitions.filter(mask)

    def _end_uncertainty(self) -> None:
        """All rows that were in the log are skipped; the journal may advance again."""
        self._collect(wait=True)
        self._uncertain, self._skips, self._partitions = False, {}, self._target.partitions
        self._advance(self._row, self._target.sent)
        self._write_progress()

    def _put(self, batch: Any, partitions: Any) -> BlockingTableDelivery:
        named = {name: name for name in ("key", "headers", "timestamp") if name in batch.schema.names}
        columns: dict[str, Any] = {"value": "value", **named}
        if self._partitions == 1:
            columns["partition"] = 0
        else:
            arrays = [batch.column(name) for name in ("value", *named)]
            batch = pa.RecordBatch.from_arrays([*arrays, partitions], names=["value", *named, "partition"])
            columns["partition"] = "partition"
        return self._target.producer.send_table(self._target.topic, batch, **columns)

    # -- outcomes

    def _after_send(self) -> None:
        self._collect(wait=False)
        if self._clock() - self._written_at >= WRITE_INTERVAL_S:
            self._write_progress()

    def _collect(self, *, wait: bool) -> None:
        """Processes acknowledgements in the order of sending. Raises: KafkaError."""
        while self._pending and (wait or self._pending[0].delivery is None or self._pending[0].delivery.done()):
            pending = self._pending[0]
            if pending.delivery is not None:
                written = pending.delivery.result()
                self.outcome.written += written.rows
                for partition, (_, end) in written.offsets.items():
                    self._target.ends[partition] = max(self._target.ends.get(partition, 0), end)
            self._pending.popleft()
            if not self._uncertain:
                self._advance(pending.rows, pending.sent)

    def _advance(self, rows: int, sent: dict[int, int]) -> None:
        """All rows before this one are written."""
        self.outcome.rows = rows
        if self._entry is not None and self._entry.writers:
            writer = self._entry.writers[-1]
            self._entry = msgspec.structs.replace(
                self._entry,
                rows=rows,
                writers=[Writer(writer.id, writer.epoch, _keys(sent))],
                offsets=_keys(self._target.ends),
                partitions=self._partitions,
            )

    def _write_progress(self) -> None:
        self._written_at = self._clock()
        if self._journal is not None and self._entry is not None and not self._uncertain:
            self._journal.note(self._entry)

    def _write_final_entry(self, *, clean: bool) -> None:
        """Write the last entry of this run. ``clean``: no row is uncertain."""
        if self._journal is None or self._entry is None:
            return
        self._entry.done = self.outcome.done
        if clean:
            self._entry.rows = self.outcome.rows
            self._entry.writers, self._entry.offsets, self._entry.partitions = [], {}, 0
        self._journal.note(self._entry)


def _keys(given: Mapping[int, int]) -> dict[str, int]:
    return {str(partition): number for partition, number in given.items()}


def _before(records: Records, row: int) -> Records:
    """The records of rows before ``row``."""
    count = pc.sum(pc.less(records.rows, row)).as_py() or 0
    return Records(records.batch.slice(0, count), records.rows.slice(0, count), [])
