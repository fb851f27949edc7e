"""Runs a search: fetches raw batches on the loop, and matches them in threads, several partitions at a time.

A search ends with its limit, with the end of its range, or when the browser closes the connection, which cancels it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from time import monotonic
from typing import Any

import msgspec

from ottla.aio import Consumer
from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.fetch.ranges import Range
from ottla.console.messages.matching import Matcher, Unreadable, predicate
from ottla.console.messages.query import Query, Window, rounds
from ottla.wire.errors import OffsetOutOfRange, UnknownTopicOrPartition

#: Partitions that are read at once, and bytes of a fetch: small for the first windows, so that they come soon.
AT_ONCE = 4
FETCH_BYTES_LEAST, FETCH_BYTES_MOST = 512 * 1024, 4 * 2**20
SMALL_WINDOW = 5_000
FETCH_WAIT_MS = 100
PROGRESS_S = 0.25
#: Of unreadable batches, and of matches that are kept for the order of a round.
UNREADABLE_MAX, SLACK = 20, 4
#: Records of one poll of a live tail, and the wait for them.
POLL_RECORDS, POLL_MS = 1_000, 1_000
#: Matches of a live tail that are shown per second.
LIVE_ROWS = 60


class SearchProgress(msgspec.Struct, kw_only=True):
    """How far a search is. Offsets and bytes are those of the log; `found` counts matches."""

    done: int = 0
    total: int = 0
    size_bytes: int = 0
    found: int = 0
    seconds: float = 0.0
    #: Matches of a live tail that were too many to be shown.
    skipped: int = 0
    is_complete: bool = False


class Results(msgspec.Struct):
    """A part of the results, in order, and the progress so far."""

    records: list[ConsumerRecord]
    unreadable: list[Unreadable]
    progress: SearchProgress


def consumer_of(bootstrap: str, settings: Mapping[str, Any], query: Query) -> Consumer:
    """A consumer for a search, without a group."""
    return Consumer(
        bootstrap_servers=bootstrap, client_id="ottla-console", allow_auto_create_topics=False, max_poll_records=POLL_RECORDS,
        isolation_level="read_committed" if query.is_committed else "read_uncommitted",
        **{"default_api_timeout_ms": 15_000, **settings, "auto_offset_reset": "latest"},
    )  # fmt: skip


async def chosen(consumer: Consumer, query: Query) -> list[TopicPartition]:
    """The partitions of a search. Raises: UnknownTopicOrPartition, MetadataTimedOut."""
    partitions = await consumer.partitions_for(query.topic)
    if query.partitions is None:
        return partitions
    missing = [number for number in query.partitions if number >= len(partitions)]
    if missing:
        raise UnknownTopicOrPartition(f"topic {query.topic} has {len(partitions)} partitions; partition {missing[0]} does not exist")
    return [partitions[number] for number in query.partitions]


class Search:
    """One search of a range."""

    def __init__(self, consumer: Consumer, query: Query, limit: int | None = None) -> None:
        self._consumer = consumer
        self._query = query
        self._limit = query.limit if limit is None else limit
        self._matcher = Matcher(query)
        self._progress = SearchProgress()
        self._began_s = monotonic()
        self._unreadable: list[Unreadable] = []

    async def spans(self, given: Range | None = None) -> dict[int, tuple[int, int]]:
        """The offsets to read, by partition."""
        tps = await chosen(self._consumer, self._query)
        found = await self._consumer.offsets_of(dict.fromkeys(tps, given or self._query.range))
        spans = {tp.partition: span for tp, span in found.items()}
        self._progress.total = sum(last - first for first, last in spans.values())
        return spans

    def progress(self) -> SearchProgress:
        """A copy of the progress."""
        return msgspec.structs.replace(self._progress, seconds=monotonic() - self._began_s)

    async def results(self) -> AsyncGenerator[Results, None]:
        """Results of each round, newest or oldest first, with progress in between; the last part is complete."""
        left = self._limit
        for windows in rounds(await self.spans(), self._query):
            async with aclosing(self._round(windows, left)) as parts:
                async for part in parts:
                    left -= len(part.records)
                    yield part
            if left <= 0:
                break
        self._progress.is_complete = True
        yield self._part([])

    async def _round(self, windows: Sequence[Window], limit: int) -> AsyncGenerator[Results, None]:
        """The matches of a round; progress meanwhile."""
        kept: list[ConsumerRecord] = []
        waiting = asyncio.Semaphore(AT_ONCE)

        async def one(window: Window) -> None:
            async with waiting:
                async for records in self.window(window):
                    kept.extend(records)
                    if len(kept) > SLACK * limit + POLL_RECORDS:
                        kept[:] = self._ordered(kept)[:limit]

        tasks = [asyncio.create_task(one(window)) for window in windows]
        pending = set(tasks)
        try:
            while pending:
                done, pending = await asyncio.wait(pending, timeout=PROGRESS_S, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if pending:
                    yield self._part([])
        finally:
            for task in tasks:
                task.cancel()
        shown = self._ordered(kept)[:limit]
        self._progress.found += len(shown)
        yield self._part(shown)

    def _ordered(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """By time; equal times, and records of a partition, by offset."""
        newest = self._query.is_newest_first
        return sorted(records, key=lambda one: (one.timestamp, one.partition, one.offset), reverse=newest)

    def _part(self, records: list[ConsumerRecord]) -> Results:
        unreadable, self._unreadable = self._unreadable, []
        return Results(records, unreadable, self.progress())

    async def window(self, window: Window) -> AsyncGenerator[list[ConsumerRecord], None]:
        """The matches of a window, fetch by fetch, in the order of offsets. The next fetch runs while a fetch is matched."""
        tp = TopicPartition(self._query.topic, window.partition)
        size = FETCH_BYTES_LEAST if window.last - window.first <= SMALL_WINDOW else FETCH_BYTES_MOST
        position = window.first
        while position < window.last:
            try:
                raw = await self._consumer.fetch_raw(tp, position, size, max_wait_ms=FETCH_WAIT_MS)
            except OffsetOutOfRange:
                # Retention deleted it meanwhile.
                start = (await self._consumer.beginning_offsets([tp]))[tp]
                if start <= position:
                    raise
                self._progress.done += min(start, window.last) - position
                position = start
                continue
            found = await asyncio.to_thread(self._matcher.match, raw, window.partition, position, window.last)
            self._progress.size_bytes += found.size_bytes
            self._progress.done += max(found.next_offset - position, 0)
            if len(self._unreadable) < UNREADABLE_MAX:
                self._unreadable += found.unreadable
            position = found.next_offset
            if found.records:
                yield found.records


async def live(consumer: Consumer, query: Query) -> AsyncGenerator[Results, None]:
    """New records that match, without an end."""
    matches = predicate(query)
    progress, began_s = SearchProgress(), monotonic()
    tps = await chosen(consumer, query)
    ends = await consumer.end_offsets(tps)
    consumer.assign(tps)
    consumer.seek_each(ends)
    while True:
        polled = await consumer.poll(POLL_MS)
        progress.done += len(polled)
        progress.size_bytes += sum(len(one.value or b"") + len(one.key or b"") for one in polled)
        found = polled if matches is None else [one for one in polled if matches(one)]
        progress.found += len(found)
        progress.skipped += max(len(found) - LIVE_ROWS, 0)
        progress.seconds = monotonic() - began_s
        yield Results(found[-LIVE_ROWS:], [], progress)


async def record_at(consumer: Consumer, topic: str, partition: int, offset: int) -> ConsumerRecord | None:
    """The record at an offset; None if there is none. Raises: KafkaError."""
    query = Query(topic=topic, partitions=(partition,))
    await chosen(consumer, query)
    search = Search(consumer, query, limit=1)
    try:
        start, end = (await consumer.offsets_of({TopicPartition(topic, partition): Range()}))[TopicPartition(topic, partition)]
        if not start <= offset < end:
            return None
        async for records in search.window(Window(partition, offset, offset + 1)):
            return records[0]
    except OffsetOutOfRange:
        return None
    return None
