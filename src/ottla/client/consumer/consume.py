"""Consuming in one line, for asyncio: `async for record in ottla.aio.consume("orders", group="billing")`.

With a group, what was read is committed as the loop goes on:

    records    0   1   2   3   4
                           ^ the body works on this one
               --------->  these are done: the body came back for the next. They are committed every `auto_commit_interval_ms`,
                           when their partition goes to another member, and when the loop is left

So each record is worked on at least once. Left in the middle, by `break` or by an exception, a plain loop cannot tell one from the other:
the record it was at counts as not done, and comes again. In a `with` block, `break` counts it as done, and an exception does not. A loop
that ends by itself, at its limit or the end of what it reads, has done everything.

Without a group, it reads parts of topics as `ranges` says them, from the start of the log where nothing is said.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from time import time
from types import TracebackType
from typing import Any, Self

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import INT64_MAX, patience, whole_number
from ottla.client.consumer.consumer import Consumer
from ottla.client.consumer.delivery import LOOP_RECORDS
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.ranges import Kind, Part, Range, parse_part, parse_range

#: How long one wait for records lasts: after it we see whether there is reason to go on.
WAIT_MS = 1000
#: The same while a loop is to end at some offset: what is left of the log before it may hold no record.
WAIT_FOR_END_MS = 100
#: Policies for groups without offsets.
RESETS = {Kind.START: "earliest", Kind.END: "latest"}


def parts_of(topics: Iterable[str], start: str | int | None, now_ms: int) -> list[Part]:
    """What to read. Raises: BadRange, ValueError."""
    parts = [parse_part(topic, now_ms) for topic in topics]
    if not parts:
        raise ValueError("consume() needs a topic, such as consume('orders')")
    if start is None:
        return parts
    begin = parse_range(str(start), now_ms)
    if begin.last is not None:
        raise ValueError(f"start={start!r} has two ends; a range is written behind its topic, as in 'orders@{start}'")
    return [part._replace(range=begin) if part.range == Range() else part for part in parts]


def group_settings(group: str, parts: Iterable[Part], now_ms: int) -> dict[str, Any]:
    """What to set for a group to read these. Raises: ValueError for what only a reader without a group can do."""
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
    if first.kind is Kind.TIME:
        reset = f"by_duration:PT{max(now_ms - first.value, 0) / 1000:.3f}S"
    if reset is None:
        raise ValueError(
            f"group {group} can begin at the start, the end or a time (start='-1h') where it has no offsets yet, not at an offset"
        )
    return {"group_id": group, "auto_offset_reset": reset}


class Course:
    """What both faces share: where to begin, when to see to the group, when it is over. Belongs to the loop, `each` to the user."""

    def __init__(self, consumer: Consumer, parts: list[Part], limit: int | None, timeout_ms: float | None) -> None:
        if limit is not None:
            whole_number("limit", limit, at_most=INT64_MAX)
        patience(timeout_ms)
        self.consumer = consumer
        self._parts = parts
        self._left = limit
        self._timeout_ms = timeout_ms
        self._begun = False
        #: Where partitions end that are read up to somewhere; the offset is exclusive.
        self._ends: dict[TopicPartition, int] = {}

    async def turn(self) -> bool:
        """Wait until there are records; False when it is over. Raises: what a poll raises."""
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
            if consumer.giving.pending:
                return True
            now_ms = consumer.clock_ms()
            if not consumer.settled:
                # Joining a group may take longer than records do.
                began_ms = now_ms
            left_ms = timeout_ms - (now_ms - began_ms)
            if left_ms <= 0:
                break
            if not consumer.in_group:
                await self._look_for_more()
        return False

    def each(self) -> Iterator[ConsumerRecord]:
        """Records that are there."""
        if self._left is None and not self._ends:
            return self.consumer.giving.each()
        return self._counted()

    def _counted(self) -> Iterator[ConsumerRecord]:
        ends = self._ends
        for record in self.consumer.giving.each():
            if ends and record.offset >= ends[TopicPartition(record.topic, record.partition)]:
                continue
            if self._left is not None:
                self._left -= 1
            yield record
            if self._left == 0:
                return

    # -- without a group

    async def _begin(self) -> None:
        """Have the consumer read what was asked for. Raises: MetadataTimedOut, UnknownTopicOrPartition and the like."""
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
        """Whether something is left to read; partitions that are read up to their end are let go."""
        consumer = self.consumer
        assigned = consumer.assignment()
        left = [tp for tp in assigned if not consumer.has_passed(tp, self._ends[tp])]
        if len(left) < len(assigned):
            consumer.assign(left)
        return bool(left)

    async def _look_for_more(self) -> None:
        """Read partitions that were added meanwhile, from their start."""
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
    """What `consume` gives: to be iterated over, in a `with` block or without. `consumer` is there for what goes beyond that: its lag, its
    metrics, commits of your own.
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
        """Record after record."""
        course = self._course
        try:
            while await course.turn():
                for record in course.each():
                    yield record
            self.consumer.giving.done()
        except BaseException:
            if not self._entered:
                self.consumer.giving.not_done()
            raise
        finally:
            if not self._entered:
                await self.close()

    async def close(self) -> None:
        """Commit what is done, leave the group, close the connections."""
        await self.consumer.close()


def consume(
    *topics: str,
    group: str = "",
    start: str | int | None = None,
    limit: int | None = None,
    timeout_ms: float | None = None,
    **settings: Any,
) -> Records:
    """Iterate over records of these topics: `async for record in consume("orders", group="billing")`.

    With a `group`, its members share the topics, and what the loop is done with is committed; see the module. `start` says where a group
    without offsets begins: "start" (the default), "end", or "-1h", which stands for an hour ago. Without a group a topic may say it itself,
    and where to end: `"orders@-1h:end"`, `"orders/0,2@100:200"`; see `ottla.client.fetch.ranges`.

    The loop ends after `limit` records, when none came for `timeout_ms`, or at the end of what it reads. `settings` are those of
    `Consumer`, with its `key_deserializer`, `value_deserializer` and `interceptors`.

    Raises: BadRange, ValueError, ConfigError for what cannot be understood.
    """
    parts, found = planned(topics, group, start, settings)
    return Records(Course(Consumer(**found), parts, limit, timeout_ms))


def planned(topics: Iterable[str], group: str, start: str | int | None, settings: Mapping[str, Any]) -> tuple[list[Part], dict[str, Any]]:
    """What to read, and a consumer's settings for it. Raises: BadRange, ValueError."""
    now_ms = int(time() * 1000)
    parts = parts_of(topics, start, now_ms)
    if group:
        return parts, {**group_settings(group, parts, now_ms), **settings}
    # A position that the log has lost is nothing to end a loop for.
    return parts, {"auto_offset_reset": "earliest", **settings}
