"""Files into a topic: read, shaped, sent, and noted, so that whoever comes after a crash goes on where the log ends.

    rows of a file     0 ........ noted ........ acknowledged ........ sent ........ the end
                       in the journal  |  in the log, looked up there |

Rows are in doubt between what the journal says and what was sent. Which of them a dead process had written is asked of the log
(`load_tail`): as a row's partition is decided by the row and its number alone, so many rows of each partition are left out, and the others
sent. Files follow one another, and none begins before the one before it is written: in doubt is a part of one file at most.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from ottla.lake.load.column_mapping import Records, Shape, placed, shaped
from ottla.lake.load.inputs import Input
from ottla.lake.load.load_journal import Entry, Journal, Writer
from ottla.lake.load.log_tail import Tail
from ottla.lake.load.readers import Bad, How, Reader, opened
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.client.arrow.send import BlockingTableDelivery
    from ottla.client.sync.producer import Producer

#: How often the journal is written while a file is on its way.
NOTE_S = 0.5
#: How long what was sent is waited for when the load is given up.
LAST_MS = 10_000


class BadRow(ValueError):
    """A row that makes no record, where such rows end the load."""

    def __init__(self, given: Input, row: int, bad: Bad) -> None:
        super().__init__(f"{given.name}, {place(row, bad)}: {bad.why}")


def place(row: int, bad: Bad) -> str:
    """Where in a file something bad stands, for people."""
    return f"line {bad.line}" if bad.line is not None else f"record {row + bad.at + 1}"


class Watch(Protocol):
    """Who is told how it goes."""

    def bad(self, given: Input, row: int, bad: Bad) -> None:
        """A row makes no record. Raises: BadRow, or it is left out."""

    def on(self, done: int, records: int) -> None:
        """So far: bytes of the file read, records sent of it."""

    def pause(self, records: int) -> None:
        """So many records were sent: wait, if there is a rate to keep."""


class Flight(NamedTuple):
    """Records on their way, and how far the file is when they are written."""

    delivery: BlockingTableDelivery | None
    rows: int
    sent: dict[int, int]


@dataclass(slots=True)
class Outcome:
    """What became of a file."""

    #: Rows of the file that are dealt with, and records that were written in this run.
    rows: int = 0
    written: int = 0
    bad: int = 0
    #: Rows a process before this one had written.
    found: int = 0
    done: bool = False


@dataclass(slots=True)
class Target:
    """The topic, as this run sees it."""

    producer: Producer
    topic: str
    partitions: int
    #: By partition: the end of the log, as far as is known: nothing of ours is behind it that is not noted.
    ends: dict[int, int]
    #: By partition: how many records this producer has put on their way.
    sent: dict[int, int] = field(default_factory=dict)


class FileLoad:
    """One file on its way."""

    def __init__(
        self,
        target: Target,
        given: Input,
        shape: Shape,
        how: How,
        watch: Watch,
        *,
        journal: Journal | None = None,
        entry: Entry | None = None,
        tail: Tail | None = None,
        limit: int | None = None,
        portion: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._target, self._given, self._shape, self._how, self._watch = target, given, shape, how, watch
        self._journal, self._entry, self._clock = journal, entry, clock
        self._limit, self._portion = limit, portion
        self.outcome = Outcome(rows=entry.rows if entry is not None else 0)
        #: By partition: rows from `rows` on that are in the log already.
        self._skips = dict(tail.written) if tail is not None else {}
        #: In doubt: the journal must not say more than it does until all of these were passed over.
        self._doubtful = bool(self._skips and any(self._skips.values()))
        self._partitions = entry.partitions if self._doubtful and entry is not None else target.partitions
        if tail is not None:
            target.ends |= tail.ends
        self._row = self.outcome.rows
        self._flights: deque[Flight] = deque()
        #: Rows are being handed over: an interrupt now leaves it open which of them were.
        self._handing = False
        self._noted_at = clock()

    def run(self) -> Outcome:
        """Load it. Raises: BadRow, CannotLoad, KafkaError, OSError; what was sent before is written and noted then."""
        self._begin()
        try:
            with opened(self._given, self._how) as reader:
                self._shape.check(reader.columns, self._given.name)
                self._read(reader)
        except BaseException as error:
            self._give_up(error)
            raise
        self._settle(wait=True)
        self.outcome.done = not self._at_limit
        self._doubtful = self._doubtful and self._at_limit
        self._note(clean=not self._doubtful)
        return self.outcome

    def _begin(self) -> None:
        """Notes who is going to write before anything is."""
        if self._journal is None or self._entry is None:
            return
        number, epoch = self._target.producer.numbered()
        here = Writer(number, epoch, _keys(self._target.sent))
        if self._doubtful:
            self._entry.writers = [*self._entry.writers, here]
        else:
            self._entry.writers, self._entry.offsets = [here], _keys(self._target.ends)
            self._entry.partitions = self._partitions
        self._entry.done = False
        self._journal.note(self._entry)

    def _give_up(self, error: BaseException) -> None:
        """What was sent gets its outcome, as far as that does not take long."""
        with suppress(KafkaError, TimeoutError, KeyboardInterrupt):
            self._target.producer.flush(LAST_MS if isinstance(error, KeyboardInterrupt) else None)
        with suppress(KafkaError):
            self._settle(wait=False)
        clean = not (self._flights or self._doubtful or self._handing)
        with suppress(OSError):
            self._note(clean=clean)

    # -- rows

    @property
    def _at_limit(self) -> bool:
        return self._limit is not None and self.outcome.written + self._flying >= self._limit

    @property
    def _flying(self) -> int:
        return sum(flight.delivery.rows for flight in self._flights if flight.delivery is not None)

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
            self._watch.on(self._done, self.outcome.written + self._flying)

    def _send(self, batch: Any, bad: list[Bad], whole: str | None) -> None:
        """Rows from `_row` on."""
        records = shaped(self._shape, batch, whole, self._row, self._given.name)
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
        import pyarrow.compute as pc

        partitions = placed(records, self._partitions)
        if self._skips:
            records, partitions = self._without_written(records, partitions)
        count = records.batch.num_rows
        if self._limit is not None and (left := self._limit - self.outcome.written - self._flying) < count:
            count, end = left, records.rows[left].as_py()
        step = min(count, self._portion or count) or 1
        for at in range(0, count, step):
            size = min(step, count - at)
            some, places = records.batch.slice(at, size), partitions.slice(at, size)
            for pair in pc.value_counts(places).to_pylist():
                self._target.sent[pair["values"]] = self._target.sent.get(pair["values"], 0) + pair["counts"]
            last = at + size == count
            self._handing = True
            self._flights.append(Flight(self._put(some, places), end if last else records.rows[at + size].as_py(), dict(self._target.sent)))
            self._handing = False
            self._on()
            self._watch.on(self._done, self.outcome.written + self._flying)
            self._watch.pause(size)
        if not count:
            self._flights.append(Flight(None, end, dict(self._target.sent)))
            self._on()
        self._row = end
        if self._doubtful and not any(self._skips.values()):
            self._end_of_doubt()

    def _without_written(self, records: Records, partitions: Any) -> tuple[Records, Any]:
        """Those that the log has not."""
        import pyarrow as pa

        kept = []
        for partition in partitions.to_pylist():
            left = self._skips.get(partition, 0)
            kept.append(left <= 0)
            if left > 0:
                self._skips[partition] = left - 1
                self.outcome.found += 1
        mask = pa.array(kept, pa.bool_())
        return Records(records.batch.filter(mask), records.rows.filter(mask), []), partitions.filter(mask)

    def _end_of_doubt(self) -> None:
        """All that was in the log is passed over: from here on it is as if it had been written by this producer."""
        self._settle(wait=True)
        self._doubtful, self._skips, self._partitions = False, {}, self._target.partitions
        self._reached(self._row, self._target.sent)
        self._note_progress()

    def _put(self, batch: Any, partitions: Any) -> BlockingTableDelivery:
        import pyarrow as pa

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

    def _on(self) -> None:
        self._settle(wait=False)
        if self._clock() - self._noted_at >= NOTE_S:
            self._note_progress()

    def _settle(self, *, wait: bool) -> None:
        """Takes note of what was written, in the order in which it was sent. Raises: KafkaError."""
        while self._flights and (wait or self._flights[0].delivery is None or self._flights[0].delivery.done()):
            flight = self._flights[0]
            if flight.delivery is not None:
                written = flight.delivery.result()
                self.outcome.written += written.rows
                for partition, (_, end) in written.offsets.items():
                    self._target.ends[partition] = max(self._target.ends.get(partition, 0), end)
            self._flights.popleft()
            if not self._doubtful:
                self._reached(flight.rows, flight.sent)

    def _reached(self, rows: int, sent: dict[int, int]) -> None:
        """All rows before this one are written, for certain."""
        self.outcome.rows = rows
        if self._entry is not None and self._entry.writers:
            here = self._entry.writers[-1]
            self._entry = msgspec.structs.replace(
                self._entry,
                rows=rows,
                writers=[Writer(here.id, here.epoch, _keys(sent))],
                offsets=_keys(self._target.ends),
                partitions=self._partitions,
            )

    def _note_progress(self) -> None:
        self._noted_at = self._clock()
        if self._journal is not None and self._entry is not None and not self._doubtful:
            self._journal.note(self._entry)

    def _note(self, *, clean: bool) -> None:
        """The last word about the file in this run. Clean: nothing of it is in doubt."""
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
    """Those of rows with smaller numbers."""
    import pyarrow.compute as pc

    count = pc.sum(pc.less(records.rows, row)).as_py() or 0
    return Records(records.batch.slice(0, count), records.rows.slice(0, count), [])
