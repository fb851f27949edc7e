"""Parts of topics as Arrow tables: `ottla.read_table("orders@-1h:end", bootstrap_servers=...)`.

The ranges of offsets are resolved at the start (`ranges`): later records are not waited for. All partitions are fetched in parallel, and
several threads decode. Rows are in the order of the given parts, their partitions, and offsets.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from time import time
from typing import Any, Unpack

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError, suggestion
from ottla.client.arrow.optional import pa
from ottla.client.arrow.read import THREADS, Piece, TableForm, Tables
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import MetadataTimedOut
from ottla.client.fetch.range_reader import FETCH_BYTES, Fetched, RangeReader
from ottla.client.fetch.ranges import TopicRange, parse_part
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.settings import ConsumerSettings
from ottla.client.sync.loop_thread import LoopCall, LoopThread
from ottla.wire.errors import UnknownTopicOrPartition

#: Maximum wait for the end of a range if the log returns nothing before it.
IDLE_MS = 30_000
#: How long a topic that brokers do not know is requested again: it may be new.
MISSING_MS = 3_000
#: Settings of a consumer that a table cannot use, with the remedy. They are refused rather than ignored.
NOT_FOR_TABLES = {
    "key_deserializer": "tables are decoded column by column: give key_format=",
    "value_deserializer": "tables are decoded column by column: give value_format=",
    "interceptors": "interceptors see records, and tables have none",
    "group": "a table is read without a group; follow one with Consumer(group_id=...).poll_table()",
    "group_id": "a table is read without a group; follow one with Consumer(group_id=...).poll_table()",
}


class TableArguments(TableForm, ConsumerSettings, total=False):
    """The form of a table, and settings of the consumer that reads it."""


def read_table(*topics: str, **form_and_settings: Unpack[TableArguments]) -> pa.Table:
    """Parts of topics, such as "orders", "orders@-1h:end" or "orders/0-2@100:200" (`client.ranges`), as an Arrow table.

    `columns=`, `key_format=`, `value_format=`, `schema=` and `on_corrupt=` define the table (`client.arrow.read`); all other arguments are
    settings of `ConsumerOptions`: `bootstrap_servers=`, `isolation_level=` ... The table has the column topic if several are read.

    Raises: BadRange, a ValueError with the position of the problem, for an invalid part; UnknownTopicOrPartition; CorruptMessage;
    SerializationFailed for an unreadable value; ConfigError; ImportError without pyarrow; KafkaError.
    """
    form, settings = _split(form_and_settings)
    for name, instead in NOT_FOR_TABLES.items():
        if name in settings:
            raise ConfigError(name, instead)
    parts = _parts(topics)
    tables = Tables(form)
    thread = LoopThread("ottla-read-table")
    try:
        consumer = thread.call(_started({"max_partition_fetch_bytes": FETCH_BYTES, "allow_auto_create_topics": False, **settings}))
        try:
            return _Reading(thread, consumer, tables, several=len({part.topic for part in parts}) > 1).read(parts)
        finally:
            thread.call(consumer.close())
    finally:
        thread.stop()


async def read_table_beside(*topics: str, **form_and_settings: Unpack[TableArguments]) -> pa.Table:
    """`read_table` for asyncio: it does not block the event loop."""
    return await asyncio.to_thread(read_table, *topics, **form_and_settings)


async def _started(settings: Mapping[str, Any]) -> Consumer:
    return await Consumer(**settings).start()


def _split(given: Mapping[str, Any]) -> tuple[TableForm, dict[str, Any]]:
    form: Any = {name: value for name, value in given.items() if name in TableForm.__annotations__}
    return form, {name: value for name, value in given.items() if name not in form}


def _parts(topics: Iterable[str]) -> list[TopicRange]:
    now_ms = int(time() * 1000)
    parts = [parse_part(topic, now_ms) for topic in topics]
    if not parts:
        raise ValueError('read_table() needs a topic, such as read_table("orders@-1h:end")')
    return parts


class _Reading:
    """One call of `read_table`."""

    def __init__(self, thread: LoopThread, consumer: Consumer, tables: Tables, *, several: bool) -> None:
        self._thread = thread
        self._consumer = consumer
        self._tables = tables
        self._several = several
        self._schema = tables.read_schema(several=several)
        options = consumer.options
        self._reader = RangeReader(self._fetch, check_crcs=options.check_crcs, read_committed=options.isolation_level == "read_committed")

    def read(self, parts: list[TopicRange]) -> pa.Table:
        wanted = [(tp, *offsets) for part in parts for tp, offsets in self._thread.call(self._planned(part)).items()]
        pieces: list[list[list[Piece]]] = [[] for _ in wanted]
        with ThreadPoolExecutor(THREADS, "ottla-read") as pool:
            coming: deque[tuple[int, Future[list[Piece]]]] = deque()
            for place, fetched in self._fetched(wanted):
                coming.append((place, pool.submit(self._decode, fetched)))
                while len(coming) > 2 * THREADS:
                    # Decode before too much is buffered.
                    place, decoded = coming.popleft()
                    pieces[place].append(decoded.result())
            for place, decoded in coming:
                pieces[place].append(decoded.result())
        return self._tables.table([piece for ranges in pieces for fetch in ranges for piece in fetch], several=self._several)

    async def _planned(self, part: TopicRange) -> dict[TopicPartition, tuple[int, int]]:
        there = await self._partitions_of(part.topic)
        chosen = [tp for tp in there if part.partitions is None or tp.partition in part.partitions]
        missing = set(part.partitions or ()) - {tp.partition for tp in there}
        if missing:
            raise UnknownTopicOrPartition(f"topic {part.topic} has {len(there)} partitions, no partition {min(missing)}")
        return await self._consumer.offsets_of(dict.fromkeys(chosen, part.range))

    async def _partitions_of(self, topic: str) -> list[TopicPartition]:
        """Raises: UnknownTopicOrPartition if brokers do not know the topic after some time, which is shorter than the timeout for a cluster
        that is down, because of misspelled names.
        """
        if (limit_ms := self._consumer.options.default_api_timeout_ms) > MISSING_MS:
            try:
                return await self._consumer.partitions_for(topic, MISSING_MS)
            except MetadataTimedOut:
                there = await self._consumer.list_topics(limit_ms - MISSING_MS)
                if topic not in there:
                    raise UnknownTopicOrPartition(f"there is no topic {topic}{suggestion(topic, there)}") from None
        return await self._consumer.partitions_for(topic)

    def _fetched(self, wanted: list[tuple[TopicPartition, int, int]]) -> Iterator[tuple[int, Fetched]]:
        """Fetched data with the position in `wanted`."""
        rows = deque(
            (place, self._reader.read(tp, start, end, timeout_ms=IDLE_MS, gone=lambda offset, tp=tp: self._start_of(tp, offset)))  # type: ignore[misc]
            for place, (tp, start, end) in enumerate(wanted)
        )
        while rows:
            place, reading = rows.popleft()
            fetched = next(reading, None)
            if fetched is not None:
                yield place, fetched
                rows.append((place, reading))

    def _start_of(self, tp: TopicPartition, offset: int) -> int:
        """The present start of the log, if the requested records were deleted meanwhile. Never before `offset`."""
        return max(offset + 1, self._thread.call(self._consumer.beginning_offsets([tp]))[tp])

    def _decode(self, fetched: Fetched) -> list[Piece]:
        return self._tables.read(fetched.columns(with_headers="headers" in self._schema.names), self._schema, fetched.tp)

    def _fetch(self, tp: TopicPartition, offset: int) -> LoopCall[RawFetch]:
        return self._thread.submit(self._consumer.fetch_raw(tp, offset))


__all__ = ["read_table", "read_table_beside"]
