"""`ottla consume --group`: prints records as a member of a group, and commits printed offsets.

Only offsets of records that were written to standard output are committed, so after an interrupt or a closed pipe the next run misses no
record. The start position is committed, too: a run that begins at the log end and prints nothing lets the next run begin at the same place.
With `--exit` the member stops at the log end that each partition had when it was assigned; later records are left to the next run.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from typing import Any

import click

from ottla.base.ids import TopicPartition
from ottla.cli.common.errors import sigterm_as_interrupt
from ottla.cli.consume.printer import Printer
from ottla.cli.consume.ranges import POLL_MS
from ottla.client.consumer.rebalance import RebalanceListener
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import MetadataTimedOut
from ottla.client.sync.consumer import Consumer
from ottla.wire.errors import KafkaError, RequestTimedOut

#: Interval of commits.
COMMIT_S = 1.0
#: auto.offset.reset, in words.
RESET_TEXTS = {"earliest": "at the start of the log (with -O end: at the end)", "latest": "at the end of the log"}
#: Timeout of a poll while offsets of partitions are unknown.
PENDING_POLL_MS = 50
#: Timeout of one query of log end offsets, which delays printing, and of all of them.
ENDS_MS, ENDS_TIMEOUT_S = 1_000, 30.0


class _PrintedOffsets(RebalanceListener):
    """Offsets of the assigned partitions: printed, and at which to stop."""

    def __init__(self, group: str, to_end: bool) -> None:
        self.consumer: Consumer
        self._group = group
        self._to_end = to_end
        #: Partitions whose committed offsets were not checked yet; and those checked. If there is none, a message is printed once.
        self._unchecked: set[TopicPartition] = set()
        self._checked: set[TopicPartition] = set()
        #: The next offset to print of each partition.
        self.offsets: dict[TopicPartition, int] = {}
        #: Offset at which to stop; None before the first assignment, and without --exit.
        self.ends: dict[TopicPartition, int] | None = None
        #: Partitions whose start, or end with --exit, is unknown yet.
        self._new: set[TopicPartition] = set()
        self._new_since = 0.0
        self._committed_at = time.monotonic()

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        self._new.update(partitions)
        self._unchecked.update(set(partitions) - self._checked)
        self._new_since = time.monotonic()
        if self._to_end:
            self.ends = self.ends or {}

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        self._resolve_starts()
        self.commit()
        self.on_partitions_lost(partitions)

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        self._new.difference_update(partitions)
        self._unchecked.difference_update(partitions)
        for tp in partitions:
            self.offsets.pop(tp, None)
            if self.ends is not None:
                self.ends.pop(tp, None)

    @property
    def is_pending(self) -> bool:
        """Whether offsets of partitions are unknown yet."""
        return bool(self._new) or (self._to_end and self.ends is None)

    def report_resets(self) -> None:
        """Prints once where partitions without committed offsets begin."""
        partitions = sorted(self._unchecked)
        if not partitions:
            return
        try:
            committed = self.consumer.committed(partitions, timeout_ms=ENDS_MS)
        except RequestTimedOut:
            # Retried after the next poll.
            return
        self._unchecked.difference_update(partitions)
        self._checked.update(partitions)
        fresh = [tp for tp in partitions if committed[tp] is None]
        if fresh:
            reset = self.consumer.options.auto_offset_reset
            which = "" if len(fresh) == len(partitions) else f" for {', '.join(map(str, fresh[:5]))}{', ...' if len(fresh) > 5 else ''}"
            begin = RESET_TEXTS.get(reset, f"as auto.offset.reset={reset} sets")
            click.echo(f"Group {self._group} has no offsets{which} yet: it begins {begin}", err=True)

    def resolve_offsets(self) -> None:
        """Queries start and end offsets of new partitions. A partition without a leader is retried after each poll.

        Raises: RequestTimedOut after `ENDS_TIMEOUT_S`; KafkaError.
        """
        if not self._new:
            return
        self._resolve_starts()
        if self.ends is not None:
            may_retry = time.monotonic() - self._new_since < ENDS_TIMEOUT_S
            self.ends |= self._ends_of(sorted(self._new - self.ends.keys()), may_retry)
        self._new -= self.offsets.keys() & (self.offsets if self.ends is None else self.ends).keys()

    def _resolve_starts(self) -> None:
        for tp in sorted(self._new - self.offsets.keys()):
            begin = self._position(tp)
            if begin is not None:
                self.offsets[tp] = begin

    def _position(self, tp: TopicPartition) -> int | None:
        """The position of a partition, None while it is unknown."""
        try:
            return self.consumer.position(tp, timeout_ms=0)
        except MetadataTimedOut:
            return None

    def _ends_of(self, partitions: list[TopicPartition], may_retry: bool) -> dict[TopicPartition, int]:
        """The log end offsets of partitions with a leader."""
        try:
            return self.consumer.end_offsets(partitions, timeout_ms=ENDS_MS)
        except RequestTimedOut:
            ends: dict[TopicPartition, int] = {}
            for tp in partitions:
                try:
                    ends |= self.consumer.end_offsets([tp], timeout_ms=ENDS_MS // 10)
                except RequestTimedOut:
                    if not may_retry:
                        raise
            return ends

    def is_before_end(self, record: ConsumerRecord) -> bool:
        """Whether the record is before the offset at which to stop."""
        tp = TopicPartition(record.topic, record.partition)
        return self.ends is None or tp in self._new or record.offset < self.ends.get(tp, 0)

    def at_end(self) -> bool:
        """Whether all partitions were read to their end."""
        if self.ends is None or self._new:
            return False
        return all((position := self._position(tp)) is not None and position >= end for tp, end in self.ends.items())

    def mark_printed(self, records: Sequence[ConsumerRecord]) -> None:
        """These records were printed or filtered out."""
        self.offsets |= {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}

    def commit(self) -> None:
        """Commits the printed offsets."""
        self._committed_at = time.monotonic()
        if self.offsets:
            self.consumer.commit(self.offsets.copy())

    def commit_if_due(self) -> None:
        """Commits the printed offsets every `COMMIT_S`, without waiting."""
        if self.offsets and time.monotonic() - self._committed_at > COMMIT_S:
            self._committed_at = time.monotonic()
            self.consumer.commit_async(self.offsets.copy(), _report_commit_error)


def _report_commit_error(offsets: Any, error: KafkaError | None) -> None:
    if error is not None:
        click.echo(f"Warning: committing printed offsets failed: {' '.join(str(error).split())}", err=True)


def consume(topics: Sequence[str] | re.Pattern[str], group: str, printer: Printer, to_end: bool, settings: dict[str, Any]) -> None:
    """Prints records until the limit, the end with `to_end`, or Ctrl-C. Raises: KafkaError."""
    printed = _PrintedOffsets(group, to_end)
    with Consumer(group_id=group, enable_auto_commit=False, **settings) as consumer:
        printed.consumer = consumer
        consumer.subscribe(topics, listener=printed)
        # Ctrl-C and SIGTERM are the usual ends. Closing the consumer commits printed offsets and leaves the group.
        with contextlib.suppress(KeyboardInterrupt), sigterm_as_interrupt():
            _print(consumer, [] if isinstance(topics, re.Pattern) else topics, printed, printer)


def _print(consumer: Consumer, topics: Sequence[str], printed: _PrintedOffsets, printer: Printer) -> None:
    while not printer.enough and not printed.at_end():
        polled = consumer.poll(PENDING_POLL_MS if printed.is_pending else POLL_MS, printer.poll_records)
        printed.report_resets()
        printed.resolve_offsets()
        records = [record for record in polled if printed.is_before_end(record)]
        if records:
            printed.mark_printed(records[: printer.take(records)])
        elif not polled and printer.output.is_abandoned():
            raise BrokenPipeError
        else:
            for topic in topics:
                # Raises for a topic that was deleted, which would wait forever.
                consumer.partitions_for(topic)
            if printed.ends is None and (assigned := consumer.assignment()):
                printer.note_waiting(map(consumer.current_lag, assigned))
        printer.update_progress(0, records)
        printed.commit_if_due()
