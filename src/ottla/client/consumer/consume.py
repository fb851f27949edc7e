"""The short form of consuming, for asyncio: `async for record in ottla.aio.consume("orders", group="billing")`.

With a group, processed records are committed:

    records    0   1   2   3   4
                           ^ being processed
               --------->  processed: the loop asked for the next one. They are committed every `auto_commit_interval_ms`, when their
                           partition is revoked, and when the loop ends

So each record is processed at least once. A plain loop that ends early, by `break` or an exception, cannot distinguish the two: the current
record counts as not processed and is delivered again. In a `with` block it counts as processed after `break`, and not after an exception. A
loop that ends by itself, at its limit or the end of its range, has processed everything.

Without a group, it reads ranges of topics (`ranges`), by default from the log start.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from time import time
from types import TracebackType
from typing import Any, Self, Unpack

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import INT64_MAX, patience, whole_number
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.delivery import LOOP_RECORDS
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.ranges import BoundKind, Range, TopicRange, parse_part, parse_range
from ottla.client.settings import ConsumerSettings

#: Duration of one wait for records; then the end conditions are checked.
WAIT_MS = 1000
#: The same for a loop that ends at an offset: the rest of the range may have no record.
WAIT_FOR_END_MS = 100
#: Reset policies for groups without offsets.
RESETS = {BoundKind.START: "earliest", BoundKind.END: "latest"}


class ConsumeArguments(ConsumerSettings, total=False):
    """Settings of the consumer, and how it reads keys and values."""

    key_deserializer: Any
    value_deserializer: Any
    interceptors: Iterable[Any]


def parts_of(topics: Iterable[str], start: str | int | None, now_ms: int) -> list[TopicRange]:
    """The ranges to read. Raises: BadRange, ValueError."""
    parts = [parse_part(topic, now_ms) for topic in topics]
    if not parts:
        raise ValueError("consume() needs a topic, such as consume('orders')")
    if start is None:
        return parts
    begin = parse_range(str(start), now_ms)
    if begin.last is not None:
        raise ValueError(f"start={start!r} has two ends; a range is written behind its topic, as in 'orders@{start}'")
    return [part._replace(range=begin) if part.range == Range() else part for part in parts]


def group_settings(group: str, parts: Iterable[TopicRange], now_ms: int) -> dict[str, Any]:
    """Consumer settings for a group with these ranges. Raises: ValueError for arguments that need a consumer without a group."""
    firsts = set()
    for part in parts:
        if part.partitions is not None or part.range.last is not None:
            raise ValueError(
                f"group {group} decides which partitions of {part.topic} are read, and reads on and on: leave partitions and ends out"
            )
        firsts.add(part.range.first)
    if len(firsts) > 1:
        raise ValueError(f"group {group} can begin in one way only, where it has no offsets yet")
    (first,) = firsts
    reset = RESETS.get(first.kind)
    if first.kind is BoundKind.TIME:
        reset = f"by_duration:PT{max(now_ms - first.value, 0) / 1000:.3f}S"
    if reset is None:
        raise ValueError(
            f"group {group} can begin at the start, the end or a time (start='-1h') where it has no offsets yet, not at an offset"
        )
    return {"group_id": group, "auto_offset_reset": reset}


class Course:
    """State shared by asyncio and blocking loops: start, group checks, end. Runs on the event loop; `each` runs in the user's thread."""

    def __init__(self, consumer: Consumer, parts: list[TopicRange], limit: int | None, timeout_ms: float | None) -> None:
        if limit is not None:
            whole_number("limit", limit, at_most=INT64_MAX)
        patience(timeout_ms)
        self.consumer = consumer
        self._parts = parts
        self._left = limit
        self._timeout_ms = timeout_ms
        self._begun = False
        #: End offset (exclusive) of partitions that are read up to an end.
        self._ends: dict[TopicPartition, int] = {}

    async def turn(self) -> bool:
        """Waits for records; False at the end. Raises: errors of a poll."""
        consumer = self.consumer
        if self._left == 0:
            return False
        if not self._begun:
            await self._begin()
            self._begun = True
        limit = LOOP_RECORDS if self._left is None else min(LOOP_RECORDS, self._left)
        left_ms = timeout_ms = float("inf") if self._timeout_ms is None else self._timeout_ms
        began_ms = consumer.clock_ms()
        while not self._ends or self._unfinished():
            await consumer.turn(limit, min(left_ms, WAIT_FOR_END_MS if self._ends else WAIT_MS))
            if consumer.delivery.pending:
                return True
            now_ms = consumer.clock_ms()
            if not consumer.settled:
                # Joining a group may take longer than the timeout for records.
                began_ms = now_ms
            left_ms = timeout_ms - (now_ms - began_ms)
            if left_ms <= 0:
                break
            if not consumer.in_group:
                await self._look_for_more()
        return False

    def each(self) -> Iterator[ConsumerRecord]:
        """Records that were received."""
        if self._left is None and not self._ends:
            return self.consumer.delivery.each()
        return self._counted()

    def _counted(self) -> Iterator[ConsumerRecord]:
        ends = self._ends
        for record in self.consumer.delivery.each():
            if ends and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            if self._left is not None:
                self._left -= 1
            yield record
            if self._left == 0:
                return

    # -- Without a group.

    async def _begin(self) -> None:
        """Assigns the ranges to the consumer. Raises: MetadataTimedOut, UnknownTopicOrPartition and others."""
        consumer = self.consumer
        if consumer.in_group:
            consumer.subscribe({part.topic for part in self._parts})
            return
        ranges: dict[TopicPartition, Range] = {}
        for part in self._parts:
            there = await consumer.partitions_to_read(part.topic)
            wanted = there if part.partitions is None else [TopicPartition(part.topic, index) for index in part.partitions]
            missing = sorted(set(wanted) - set(there))
            if missing:
                raise ValueError(f"topic {part.topic} has {len(there)} partitions, no partition {missing[0].partition}")
            ranges |= dict.fromkeys(wanted, part.range)
        bounded = any(one.last is not None for one in ranges.values())
        if bounded and any(one.last is None for one in ranges.values()):
            raise ValueError("some of these topics are read to an end and some without one: give each an end, as in 'orders@start:end'")
        offsets = await consumer.offsets_of(ranges)
        self._ends = {tp: end for tp, (_, end) in offsets.items()} if bounded else {}
        consumer.assign(ranges)
        consumer.seek_each({tp: first for tp, (first, _) in offsets.items()})

    def _unfinished(self) -> bool:
        """Whether records remain; partitions at their end are released."""
        consumer = self.consumer
        assigned = consumer.assignment()
        left = [tp for tp in assigned if not consumer.has_passed(tp, self._ends[tp])]
        if len(left) < len(assigned):
            consumer.assign(left)
        return bool(left)

    async def _look_for_more(self) -> None:
        """Reads partitions that were added meanwhile, from their start."""
        if self._ends:
            return
        consumer = self.consumer
        assigned = consumer.assignment()
        known = set(assigned)
        topics = {part.topic for part in self._parts if part.partitions is None}
        more = [tp for topic in sorted(topics) for tp in await consumer.partitions_for(topic) if tp not in known]
        if more:
            consumer.assign([*assigned, *more])
            consumer.seek_to_beginning(*more)


class Records:
    """The result of `consume`: iterate over it, in a `with` block or without. `consumer` gives access to lag, metrics and manual
    commits.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._entered = False
        self.consumer = course.consumer

    async def __aenter__(self) -> Self:
        await self.consumer.start()
        self._entered = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.consumer.__aexit__(kind, error, trace)

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """The records."""
        course = self._course
        try:
            while await course.turn():
                for record in course.each():
                    yield record
            self.consumer.delivery.done()
        except BaseException:
            if not self._entered:
                self.consumer.delivery.not_done()
            raise
        finally:
            if not self._entered:
                await self.close()

    async def close(self) -> None:
        """Commits processed records, leaves the group, closes connections."""
        await self.consumer.close()


def consume(
    *topics: str,
    group: str = "",
    start: str | int | None = None,
    limit: int | None = None,
    timeout_ms: float | None = None,
    **settings: Unpack[ConsumeArguments],
) -> Records:
    """Iterates over records: `async for record in consume("orders", group="billing")`.

    With a `group`, its members share the topics, and processed records are committed; see the module. `start` is the start of a group
    without offsets: "start" (the default), "end", or a time such as "-1h". Without a group a topic can have a range:
    `"orders@-1h:end"`, `"orders/0,2@100:200"`; see `ottla.client.fetch.ranges`.

    The loop ends after `limit` records, after `timeout_ms` without a record, or at the end of the ranges. `settings` are those of
    `Consumer`, with `key_deserializer`, `value_deserializer` and `interceptors`.

    Raises: BadRange, ValueError, ConfigError for invalid arguments.
    """
    parts, found = planned(topics, group, start, settings)
    return Records(Course(Consumer(**found), parts, limit, timeout_ms))


def planned(
    topics: Iterable[str], group: str, start: str | int | None, settings: Mapping[str, Any]
) -> tuple[list[TopicRange], dict[str, Any]]:
    """The ranges, and consumer settings for them. Raises: BadRange, ValueError."""
    now_ms = int(time() * 1000)
    parts = parts_of(topics, start, now_ms)
    if group:
        return parts, {**group_settings(group, parts, now_ms), **settings}
    # A position that retention deleted must not end the loop.
    return parts, {"auto_offset_reset": "earliest", **settings}
