"""`ottla consume` without a group: reads ranges of topics, bounded or unbounded.

The end offsets of a bounded range are resolved once at the beginning; later records are not read. An unbounded range includes partitions
that are added to a topic and, with a pattern, new topics. New partitions are read from their start, because all their records are newer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from ottla.base.ids import TopicPartition
from ottla.cli.consume.printer import Interval, Printer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import MetadataTimedOut
from ottla.client.fetch.ranges import END, START, BoundKind, Range
from ottla.client.sync.consumer import Consumer
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

#: Timeout of a poll. After an empty poll the existence of the topics is checked.
POLL_MS = 500
#: Interval to check the metadata for new partitions, and to query new topics.
NEW_S, TOPICS_S = 1.0, 10.0
UNBOUNDED, NOWHERE = 1 << 63, TopicPartition("", -1)
#: Records of `--tail` are sorted and cut after this many more than needed.
TAIL_SLACK = 10_000


class TopicRange(NamedTuple):
    """A range of a topic, or of some of its partitions, to read."""

    topic: str
    partitions: tuple[int, ...] | None
    range: Range


class RangeConsumer:
    """Reads ranges of topics."""

    def __init__(self, consumer: Consumer, printer: Printer) -> None:
        self._consumer = consumer
        self._printer = printer
        #: All partitions, and the end offsets of those with an end.
        self._chosen: list[TopicPartition] = []
        self._ends: dict[TopicPartition, int] = {}
        #: Start offset and position of each partition with an end.
        self._begins: dict[TopicPartition, int] = {}
        self._at: dict[TopicPartition, int] = {}
        #: Partitions that have not reached their end.
        self._open: set[TopicPartition] = set()
        #: Topics without end and partition list, and the range for their new partitions.
        self._growing: dict[str, Range] = {}
        self._new_partitions = Interval(NEW_S)
        self._new_topics = Interval(TOPICS_S)

    def begin(self, reads: Iterable[TopicRange], counts: dict[str, int]) -> None:
        """Seeks to the beginning of each range. Raises: ClickException for a missing partition; KafkaError."""
        ranges: dict[TopicPartition, Range] = {}
        for read in reads:
            count = counts[read.topic]
            missing = [number for number in read.partitions or () if number >= count]
            if missing:
                raise click.ClickException(f"topic {read.topic} has {count} partitions; partition {missing[0]} does not exist")
            for number in range(count) if read.partitions is None else read.partitions:
                ranges[TopicPartition(read.topic, number)] = read.range
            if read.partitions is None and read.range.last is None:
                self._growing[read.topic] = read.range if read.range.first.kind in (BoundKind.START, BoundKind.OFFSET) else Range(START)
        self._add(ranges)

    def _add(self, ranges: dict[TopicPartition, Range]) -> None:
        simple = {tp: one.first for tp, one in ranges.items() if one.last is None and one.first in (START, END)}
        # Before the assignment: after it, the query would wait on the connection behind a long-polling fetch.
        looked_up = self._consumer.offsets_of({tp: one for tp, one in ranges.items() if tp not in simple})
        self._chosen += ranges
        self._consumer.assign(self._chosen)
        from_start = [tp for tp, first in simple.items() if first == START]
        if from_start and self._consumer.options.auto_offset_reset != "earliest":
            self._consumer.seek_to_beginning(*from_start)
        if from_end := [tp for tp, first in simple.items() if first == END]:
            self._consumer.seek_to_end(*from_end)
        for tp, (first, last) in looked_up.items():
            self._consumer.seek(tp, first)
            if ranges[tp].last is not None:
                self._ends[tp] = last
                self._begins[tp] = first
                self._open.add(tp)
                self._advance(tp, first)

    @property
    def total(self) -> int | None:
        """Number of offsets to read; None for an unbounded range."""
        if len(self._ends) < len(self._chosen):
            return None
        return sum(end - self._begins[tp] for tp, end in self._ends.items())

    @property
    def _done(self) -> bool:
        return not self._open and len(self._ends) == len(self._chosen)

    def read(self, match: Callable[[], dict[str, int]] | None = None, tail: int | None = None) -> None:
        """Reads until the printer has enough records, or all ends are reached.

        `match` returns the topics of the patterns with their partition counts. `tail`: prints only the last `tail` records by timestamp,
        once all ends are reached.
        """
        last: list[ConsumerRecord] = []
        printer = self._printer
        while not printer.enough and not self._done:
            if self._growing and self._new_partitions.due():
                self._add_new_partitions()
            if match is not None and self._new_topics.due():
                self._add_new_topics(match())
            polled = self._polled()
            records = self._within(polled) if self._ends else polled
            if tail is not None:
                last += records
                if len(last) >= 2 * tail + TAIL_SLACK:
                    last = _last(last, tail)
            elif records:
                printer.take(records)
            if printer.progress is not None:
                printer.update_progress(sum(self._at.values()) - sum(self._begins.values()), records)
        if tail is not None:
            printer.take(_last(last, tail))

    def follow(self) -> None:
        """Reads on from the ends, without an end."""
        for tp, end in self._ends.items():
            self._consumer.seek(tp, end)
        self._consumer.resume(*self._ends)
        self._growing = {tp.topic: Range(START) for tp in self._chosen}
        self._ends.clear()
        self.read()

    def _polled(self) -> list[ConsumerRecord]:
        most = self._printer.poll_records
        records = self._consumer.poll(POLL_MS, most)
        if records:
            return records
        if self._printer.output.is_abandoned():
            raise BrokenPipeError
        try:
            self._check_existence()
        except (KafkaError, click.ClickException):
            # Print the records that arrived meanwhile before failing.
            records = self._consumer.poll(0, most)
            if not records:
                raise
            return records
        if self.total is None:
            self._printer.note_waiting(map(self._consumer.current_lag, self._chosen))
        # If the last offsets before an end hold no visible records, only the position shows that the end is reached.
        for tp in sorted(self._open):
            self._advance(tp, self._consumer.position(tp))
        return []

    def _within(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records before the ends."""
        if len(self._chosen) == 1 and records and records[-1].offset < self._ends[self._chosen[0]]:
            # Fast path for one partition.
            self._at[self._chosen[0]] = records[-1].offset + 1
            if self._at[self._chosen[0]] == self._ends[self._chosen[0]]:
                self._advance(self._chosen[0], self._at[self._chosen[0]])
            return records
        within = []
        #: Position of each partition after its last record.
        positions: dict[TopicPartition, int] = {}
        tp, end, offset = NOWHERE, UNBOUNDED, -1
        for record in records:
            # Records of a partition are consecutive.
            if record.partition != tp.partition or record.topic != tp.topic:
                positions[tp] = offset + 1
                tp = TopicPartition(record.topic, record.partition)
                end = self._ends.get(tp, UNBOUNDED)
            offset = record.offset
            if offset < end:
                within.append(record)
        positions[tp] = offset + 1
        for reached in positions.keys() & self._open:
            self._advance(reached, positions[reached])
        return within

    def _advance(self, tp: TopicPartition, at: int) -> None:
        self._at[tp] = min(at, self._ends[tp])
        if at >= self._ends[tp]:
            self._open.discard(tp)
            self._consumer.pause(tp)

    def _add_new_partitions(self) -> None:
        fresh: dict[TopicPartition, Range] = {}
        for topic, begin in self._growing.items():
            known = sum(tp.topic == topic for tp in self._chosen)
            try:
                fresh |= dict.fromkeys(self._consumer.partitions_for(topic, timeout_ms=0)[known:], begin)
            except (MetadataTimedOut, UnknownTopicOrPartition):
                # `_check_existence` reports a missing topic after an empty poll.
                continue
        if fresh:
            self._add(fresh)

    def _add_new_topics(self, counts: dict[str, int]) -> None:
        known = {tp.topic for tp in self._chosen}
        fresh = {topic: count for topic, count in counts.items() if topic not in known}
        if fresh:
            self.begin([TopicRange(topic, None, Range(START)) for topic in fresh], counts)

    def _check_existence(self) -> None:
        """Raises: UnknownTopicOrPartition, ClickException, if a partition was deleted, which would wait forever."""
        lasts = {tp.topic: tp.partition for tp in sorted(self._chosen)}
        for topic, last in lasts.items():
            count = len(self._consumer.partitions_for(topic))
            if last >= count:
                raise click.ClickException(f"topic {topic} was recreated with {count} partitions; {topic}-{last} does not exist any more")


def _last(records: list[ConsumerRecord], count: int) -> list[ConsumerRecord]:
    """The last records by timestamp; the sort is stable, so records of a partition with equal timestamps keep their order."""
    return sorted(records, key=lambda record: record.timestamp)[-count:] if count else []


def matching(patterns: Sequence[re.Pattern[str]], topics: Iterable[str]) -> list[str]:
    """Topics whose whole name matches one of the patterns."""
    return sorted(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns))
