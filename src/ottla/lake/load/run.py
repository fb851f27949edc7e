"""Loads files into a topic, one after the other, each from the position in the journal and the log."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ottla.base.ids import TopicPartition
from ottla.client.sync.consumer import Consumer
from ottla.client.sync.producer import Producer
from ottla.lake.load.column_mapping import ColumnMapping
from ottla.lake.load.file_load import FileLoad, FileObserver, LoadTarget
from ottla.lake.load.inputs import Input
from ottla.lake.load.load_journal import LoadJournal
from ottla.lake.load.log_tail import Tail, tail
from ottla.lake.load.plan import FilePlan
from ottla.lake.load.reader import ReadOptions


class LoadObserver(FileObserver):
    """Receives the progress of all files."""

    def begins(self, planned: FilePlan, tail: Tail | None) -> None:
        """A file starts; ``tail``: its records that an earlier process wrote without a journal entry."""

    def ended(self, given: Input, done: bool) -> None:
        """A file is complete, or stopped at the limit."""


@dataclass(slots=True)
class LoadTotals:
    """Totals of a run."""

    files: int = 0
    #: Records written by this run; written by an earlier process and skipped; rejected.
    written: int = 0
    found: int = 0
    bad: int = 0
    #: The limit was reached before the end of the files.
    limited: bool = False
    #: The file that is being loaded.
    current: FileLoad | None = field(default=None, repr=False)


def load_files(
    files: list[FilePlan],
    producer: Producer,
    consumer: Callable[[], Consumer],
    topic: str,
    shape: ColumnMapping,
    how: ReadOptions,
    watch: LoadObserver,
    totals: LoadTotals,
    *,
    journal: LoadJournal | None = None,
    limit: int | None = None,
    portion: int | None = None,
) -> None:
    """Loads the files; ``totals`` is kept up to date. ``portion``: records that are sent together at most, to keep to a rate.

    ``consumer`` is asked for only where there is a journal. Raises: BadRow, CannotLoad, KafkaError, OSError.
    """
    partitions = len(producer.partitions_for(topic))
    target = LoadTarget(producer, topic, partitions, {})
    if journal is not None:
        with consumer() as ends:
            target.ends = {
                tp.partition: end for tp, end in ends.end_offsets([TopicPartition(topic, one) for one in range(partitions)]).items()
            }
    for planned in files:
        found = _tail(planned, topic, consumer)
        watch.begins(planned, found)
        left = None if limit is None else limit - totals.written
        totals.current = FileLoad(
            target, planned.given, shape, how, watch, journal=journal, entry=planned.entry, tail=found, limit=left, portion=portion
        )
        try:
            done = totals.current.run().done
        finally:
            outcome = totals.current.outcome
            totals.current = None
            totals.written, totals.found, totals.bad = (
                totals.written + outcome.written,
                totals.found + outcome.found,
                totals.bad + outcome.bad,
            )
        watch.ended(planned.given, done)
        if not done:
            totals.limited = True
            return
        totals.files += 1


def _tail(planned: FilePlan, topic: str, consumer: Callable[[], Consumer]) -> Tail | None:
    entry = planned.entry
    if entry is None or not entry.writers:
        return None
    with consumer() as reading:
        return tail(reading, topic, {int(partition): offset for partition, offset in entry.offsets.items()}, entry.writers)
