"""`ottla consume --group`: a topic's records as a member of a group, committed once they are printed.

Nothing is committed that was not written to standard output, so that after an interrupt, or a reader that goes away, the next run begins
with what was not seen. Where a partition was begun is committed too: who begins at its end, and sees nothing, begins there the next time,
not at a later end. With `--exit` the member stops at what was the end of each partition when it got it; what came later is left to the
next run.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from ottla.base.ids import TopicPartition
from ottla.cli.common.errors import terminated
from ottla.cli.consume.printer import Printer
from ottla.cli.consume.ranges import POLL_MS
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import MetadataTimedOut
from ottla.client.sync.consumer import Consumer
from ottla.wire.errors import KafkaError, RequestTimedOut

#: How often what was printed is committed.
COMMIT_S = 1.0
#: Where a group without offsets begins, in words.
BEGINS = {"earliest": "at the start of what is there (-O end: with what comes from now on)", "latest": "with what comes from now on"}
#: How soon it is looked again where partitions begin and end.
LOOK_MS = 50
#: How long one look at the ends of partitions may hold up what others have to print, and how long all of them may take.
ENDS_MS, LOOK_S = 1_000, 30.0


class _Printed(RebalanceListener):
    """What was printed of the partitions that are read, and where to stop in them."""

    def __init__(self, group: str, to_end: bool) -> None:
        self.consumer: Consumer
        self._group = group
        self._to_end = to_end
        #: Partitions of which it is not known yet whether the group has offsets; of those it has not, the user is told once.
        self._unasked: set[TopicPartition] = set()
        self._told: set[TopicPartition] = set()
        #: The next offset to print of each partition.
        self.offsets: dict[TopicPartition, int] = {}
        #: Where to stop; None before the first assignment, and for who reads on and on.
        self.ends: dict[TopicPartition, int] | None = None
        #: Partitions of which it is not known yet where they begin, or end.
        self._new: set[TopicPartition] = set()
        self._new_since = 0.0
        self._committed_at = time.monotonic()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._new.update(partitions)
        self._unasked.update(set(partitions) - self._told)
        self._new_since = time.monotonic()
        if self._to_end:
            self.ends = self.ends or {}

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._look_at_begins()
        self.commit()
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._new.difference_update(partitions)
        self._unasked.difference_update(partitions)
        for tp in partitions:
            self.offsets.pop(tp, None)
            if self.ends is not None:
                self.ends.pop(tp, None)

    @property
    def looking(self) -> bool:
        """Whether something is not known yet that there is to wait for."""
        return bool(self._new) or (self._to_end and self.ends is None)

    def tell_of_begin(self) -> None:
        """Say where partitions begin that the group has no offsets of: whoever expected otherwise should not have to find out."""
        asked = sorted(self._unasked)
        if not asked:
            return
        try:
            kept = self.consumer.committed(asked, timeout_ms=ENDS_MS)
        except RequestTimedOut:
            # It is asked again with the next poll.
            return
        self._unasked.difference_update(asked)
        self._told.update(asked)
        fresh = [tp for tp in asked if kept[tp] is None]
        if fresh:
            reset = self.consumer.options.auto_offset_reset
            which = "" if len(fresh) == len(asked) else f" of {', '.join(map(str, fresh[:5]))}{', ...' if len(fresh) > 5 else ''}"
            click.echo(f"Group {self._group} has no offsets{which} yet: it begins {BEGINS.get(reset, f'where {reset} says')}", err=True)

    def look(self) -> None:
        """Find out where new partitions begin and end. One that has no leader now is looked at again with each poll: it holds up nobody but
        who waits for its end. Raises: RequestTimedOut when that takes too long, and what else will not pass.
        """
        if not self._new:
            return
        self._look_at_begins()
        if self.ends is not None:
            patient = time.monotonic() - self._new_since < LOOK_S
            self.ends |= self._ends_of(sorted(self._new - self.ends.keys()), patient)
        self._new -= self.offsets.keys() & (self.offsets if self.ends is None else self.ends).keys()

    def _look_at_begins(self) -> None:
        for tp in sorted(self._new - self.offsets.keys()):
            begin = self._position(tp)
            if begin is not None:
                self.offsets[tp] = begin

    def _position(self, tp: TopicPartition) -> int | None:
        """The next offset of a partition, None while it is not known."""
        try:
            return self.consumer.position(tp, timeout_ms=0)
        except MetadataTimedOut:
            return None

    def _ends_of(self, partitions: list[TopicPartition], patient: bool) -> dict[TopicPartition, int]:
        """The ends of those that have a leader."""
        try:
            return self.consumer.end_offsets(partitions, timeout_ms=ENDS_MS)
        except RequestTimedOut:
            found: dict[TopicPartition, int] = {}
            for tp in partitions:
                try:
                    found |= self.consumer.end_offsets([tp], timeout_ms=ENDS_MS // 10)
                except RequestTimedOut:
                    if not patient:
                        raise
            return found

    def wanted(self, record: ConsumerRecord) -> bool:
        """Whether the record came before the end."""
        tp = TopicPartition(record.topic, record.partition)
        return self.ends is None or tp in self._new or record.offset < self.ends.get(tp, 0)

    def at_end(self) -> bool:
        """Whether all that is read was read to its end."""
        if self.ends is None or self._new:
            return False
        return all((position := self._position(tp)) is not None and position >= end for tp, end in self.ends.items())

    def keep(self, records: Sequence[ConsumerRecord]) -> None:
        """These were printed, or were not wanted."""
        self.offsets |= {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}

    def commit(self) -> None:
        """Keep what was printed."""
        self._committed_at = time.monotonic()
        if self.offsets:
            self.consumer.commit(self.offsets.copy())

    def commit_if_due(self) -> None:
        """Keep it now and then, without waiting."""
        if self.offsets and time.monotonic() - self._committed_at > COMMIT_S:
            self._committed_at = time.monotonic()
            self.consumer.commit_async(self.offsets.copy(), _tell)


def _tell(offsets: Any, error: KafkaError | None) -> None:
    if error is not None:
        click.echo(f"Warning: what was printed is not committed yet: {' '.join(str(error).split())}", err=True)


def consume(topics: Sequence[str] | re.Pattern[str], group: str, printer: Printer, to_end: bool, settings: dict[str, Any]) -> None:
    """Print records until there were enough, or until Ctrl-C. Raises: KafkaError."""
    printed = _Printed(group, to_end)
    with Consumer(group_id=group, enable_auto_commit=False, **settings) as consumer:
        printed.consumer = consumer
        consumer.subscribe(topics, listener=printed)
        # An interrupt is the usual way to end it, a SIGTERM that of others; closing commits what was printed, and leaves.
        with contextlib.suppress(KeyboardInterrupt), terminated():
            _print(consumer, [] if isinstance(topics, re.Pattern) else topics, printed, printer)


def _print(consumer: Consumer, topics: Sequence[str], printed: _Printed, printer: Printer) -> None:
    while not printer.enough and not printed.at_end():
        polled = consumer.poll(LOOK_MS if printed.looking else POLL_MS, printer.poll_records)
        printed.tell_of_begin()
        printed.look()
        records = [record for record in polled if printed.wanted(record)]
        if records:
            printed.keep(records[: printer.take(records)])
        elif not polled and printer.output.unread():
            raise BrokenPipeError
        else:
            for topic in topics:
                # Nothing would ever come of a topic that was deleted, which this raises.
                consumer.partitions_for(topic)
        printer.watched(0, records)
        printed.commit_if_due()
