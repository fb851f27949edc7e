"""`ottla consume` without a group: parts of topics, each from where it begins to where it ends, or on and on.

What the ends of a bounded range are is settled once, at the beginning: records that come later are left to the next run. Who reads on
finds partitions that a topic gets meanwhile, and, by a pattern, new topics; of a partition that is new everything is read, since all of it
came after we began.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import click

from ottla.base.ids import TopicPartition
from ottla.cli.consume.printer import Every, Printer
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import MetadataTimedOut
from ottla.client.fetch.ranges import END, START, Kind, Range
from ottla.client.sync.consumer import Consumer
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

#: How long a poll waits: after one that gave nothing we see whether the topic is still there.
POLL_MS = 500
#: How often we look for new partitions in what is known of topics, and ask for new topics.
NEW_S, TOPICS_S = 1.0, 10.0
UNBOUNDED, NOWHERE = 1 << 63, TopicPartition("", -1)
#: Records of `--tail` are sorted when there are so many more than wanted.
TAIL_SLACK = 10_000


class Read(NamedTuple):
    """A part of a topic to read."""

    topic: str
    partitions: tuple[int, ...] | None
    range: Range


class Parts:
    """Reads parts of topics."""

    def __init__(self, consumer: Consumer, printer: Printer) -> None:
        self._consumer = consumer
        self._printer = printer
        #: Partitions read, and where to stop in those that have an end.
        self._chosen: list[TopicPartition] = []
        self._ends: dict[TopicPartition, int] = {}
        #: Where each of those began, and where it is.
        self._begins: dict[TopicPartition, int] = {}
        self._at: dict[TopicPartition, int] = {}
        #: Those of them that have not reached their end.
        self._open: set[TopicPartition] = set()
        #: Topics read whole: what of new partitions is read.
        self._growing: dict[str, Range] = {}
        self._look = Every(NEW_S)
        self._ask = Every(TOPICS_S)

    # -- where to read

    def begin(self, reads: Iterable[Read], counts: dict[str, int]) -> None:
        """Go to where each part begins. Raises: ClickException for a partition that is not there; KafkaError."""
        ranges: dict[TopicPartition, Range] = {}
        for read in reads:
            count = counts[read.topic]
            missing = [number for number in read.partitions or () if number >= count]
            if missing:
                raise click.ClickException(f"topic {read.topic} has {count} partitions, no partition {missing[0]}")
            for number in range(count) if read.partitions is None else read.partitions:
                ranges[TopicPartition(read.topic, number)] = read.range
            if read.partitions is None and read.range.last is None:
                self._growing[read.topic] = read.range if read.range.first.kind in (Kind.START, Kind.OFFSET) else Range(START)
        self._add(ranges)

    def _add(self, ranges: dict[TopicPartition, Range]) -> None:
        simple = {tp: one.first for tp, one in ranges.items() if one.last is None and one.first in (START, END)}
        # Asked before the partitions are assigned: behind a fetch that waits for records the answer would come late.
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
                self._arrive(tp, first)

    @property
    def total(self) -> int | None:
        """Offsets to read; None when there is no end."""
        if len(self._ends) < len(self._chosen):
            return None
        return sum(end - self._begins[tp] for tp, end in self._ends.items())

    @property
    def _done(self) -> bool:
        return not self._open and len(self._ends) == len(self._chosen)

    # -- reading

    def read(self, match: Callable[[], dict[str, int]] | None = None, tail: int | None = None) -> None:
        """Until there were enough records, or all ends are reached. `match` gives the topics of a pattern and how many partitions they
        have; `tail`: only the last so many of all that is read, in the order of their times, once all ends are reached.
        """
        last: list[ConsumerRecord] = []
        printer = self._printer
        while not printer.enough and not self._done:
            if self._growing and self._look.due():
                self._take_new()
            if match is not None and self._ask.due():
                self._take_topics(match())
            polled = self._polled()
            records = self._within(polled) if self._ends else polled
            if tail is not None:
                last += records
                if len(last) >= 2 * tail + TAIL_SLACK:
                    last = _last(last, tail)
            elif records:
                printer.take(records)
            if printer.progress is not None:
                printer.watched(sum(self._at.values()) - sum(self._begins.values()), records)
        if tail is not None:
            printer.take(_last(last, tail))

    def follow(self) -> None:
        """Read on from the ends that were reached."""
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
        if self._printer.output.unread():
            raise BrokenPipeError
        try:
            self._check_there()
        except (KafkaError, click.ClickException):
            # What has come meanwhile is printed before it ends.
            records = self._consumer.poll(0, most)
            if not records:
                raise
            return records
        # Where the last offsets before an end are no records to us, only the position tells that they are passed.
        for tp in sorted(self._open):
            self._arrive(tp, self._consumer.position(tp))
        return []

    def _within(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """Those that come before the ends."""
        if len(self._chosen) == 1 and records and records[-1].offset < self._ends[self._chosen[0]]:
            # Nearly always, of one partition.
            self._at[self._chosen[0]] = records[-1].offset + 1
            if self._at[self._chosen[0]] == self._ends[self._chosen[0]]:
                self._arrive(self._chosen[0], self._at[self._chosen[0]])
            return records
        found = []
        #: Where each partition is behind the last record of it.
        behind: dict[TopicPartition, int] = {}
        tp, end, offset = NOWHERE, UNBOUNDED, -1
        for record in records:
            # They come in runs.
            if record.partition != tp.partition or record.topic != tp.topic:
                behind[tp] = offset + 1
                tp = TopicPartition(record.topic, record.partition)
                end = self._ends.get(tp, UNBOUNDED)
            offset = record.offset
            if offset < end:
                found.append(record)
        behind[tp] = offset + 1
        for reached in behind.keys() & self._open:
            self._arrive(reached, behind[reached])
        return found

    def _arrive(self, tp: TopicPartition, at: int) -> None:
        self._at[tp] = min(at, self._ends[tp])
        if at >= self._ends[tp]:
            self._open.discard(tp)
            self._consumer.pause(tp)

    # -- what changes meanwhile

    def _take_new(self) -> None:
        """Read partitions that topics have got meanwhile, too."""
        fresh: dict[TopicPartition, Range] = {}
        for topic, begin in self._growing.items():
            known = sum(tp.topic == topic for tp in self._chosen)
            try:
                fresh |= dict.fromkeys(self._consumer.partitions_for(topic, timeout_ms=0)[known:], begin)
            except (MetadataTimedOut, UnknownTopicOrPartition):
                # Whoever waits in vain for records is told.
                continue
        if fresh:
            self._add(fresh)

    def _take_topics(self, counts: dict[str, int]) -> None:
        """Read new topics, too."""
        known = {tp.topic for tp in self._chosen}
        fresh = {topic: count for topic, count in counts.items() if topic not in known}
        if fresh:
            self.begin([Read(topic, None, Range(START)) for topic in fresh], counts)

    def _check_there(self) -> None:
        """Nothing would ever come of a partition that was deleted. Raises: UnknownTopicOrPartition, ClickException."""
        lasts = {tp.topic: tp.partition for tp in sorted(self._chosen)}
        for topic, last in lasts.items():
            count = len(self._consumer.partitions_for(topic))
            if last >= count:
                raise click.ClickException(f"topic {topic} was made again with {count} partitions, {topic}-{last} is gone")


def _last(records: list[ConsumerRecord], count: int) -> list[ConsumerRecord]:
    """The last so many by time; those of a partition stay in their order where their times are the same."""
    return sorted(records, key=lambda record: record.timestamp)[-count:] if count else []


def matching(patterns: Sequence[re.Pattern[str]], topics: Iterable[str]) -> list[str]:
    """Topics whose whole name fits one of the patterns."""
    return sorted(topic for topic in topics if any(pattern.fullmatch(topic) for pattern in patterns))
