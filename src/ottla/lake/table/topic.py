"""A topic as the source of a table: its identity, its offsets, and its records by ranges, as Arrow.

A few partitions are read at a time, so memory is a few fetches of 8 MiB. Each read returns the next offset of its partition even without
records, because after compaction and transactions offsets may have no record.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

import pyarrow as pa

from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.client.admin.calls import good
from ottla.client.admin.results import Resource, ResourceType
from ottla.client.arrow.columns import record_batch, record_schema
from ottla.client.consumer.consumer import Consumer
from ottla.client.fetch.offsets import LATEST
from ottla.client.fetch.range_reader import FETCH_BYTES, Fetched, RangeReader
from ottla.client.fetch.ranges import Range
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.sync.admin import Admin
from ottla.client.sync.loop_thread import LoopCall, LoopThread
from ottla.records.batch import headers
from ottla.wire.errors import KafkaError, UnknownTopicOrPartition

#: Partitions that are read at the same time; each has a fetch in use and one in flight.
PARTITIONS_AT_ONCE = 3
#: Fetches that are decompressed in advance.
AHEAD = 2
#: Maximum wait for a range if the log returns nothing.
IDLE_MS = 60_000


class LostRecords(NamedTuple):
    """Records that were deleted before they were read: offsets `[first, next)` of a partition."""

    topic: str
    partition: int
    first: int
    next: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} offsets {self.first:,} to {self.next - 1:,}"


class DataLost(KafkaError):
    """Records for the table are no longer in the topic."""


class PartitionRead(NamedTuple):
    """Records of `[start, next)` of a partition."""

    partition: int
    start: int
    next: int
    batches: list[pa.RecordBatch]


class Topic:
    """A topic, or some of its partitions (None: all), for one thread. Raises: KafkaError, UnknownTopicOrPartition."""

    def __init__(self, name: str, *, partitions: Sequence[int] | None = None, **settings: Any) -> None:
        self.name = name
        self._chosen = partitions
        self._settings = settings
        self._admin = Admin(**{key: value for key, value in settings.items() if key in ADMIN_SETTINGS}, retries=3)
        self._thread = LoopThread("ottla-lake")
        try:
            self.refresh()
            ours = {"max_partition_fetch_bytes": FETCH_BYTES, "allow_auto_create_topics": False, "isolation_level": "read_committed"}
            self._consumer = self._thread.call(_started({**ours, **settings}))
        except BaseException:
            self._admin.close()
            self._thread.stop()
            raise
        options = self._consumer.options
        self._reader = RangeReader(self._fetch, check_crcs=options.check_crcs, read_committed=options.isolation_level == "read_committed")

    def refresh(self) -> None:
        """Reads the topic's id and partitions."""
        found = self._admin.describe_topic(self.name)
        #: In Kafka's text form; empty if brokers have no topic ids.
        self.topic_id = "" if found.topic_id == NO_TOPIC_ID else found.topic_id_text
        there = [one.partition for one in found.partitions]
        missing = set(self._chosen or ()) - set(there)
        if missing:
            raise UnknownTopicOrPartition(f"topic {self.name} has {len(there)} partitions, no partition {min(missing)}")
        self.partitions: list[int] = there if self._chosen is None else sorted(self._chosen)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Closes its connections."""
        try:
            self._thread.call(self._consumer.close())
        finally:
            self._thread.stop()
            self._admin.close()

    def is_compacted(self) -> bool:
        """Whether the topic keeps the last record of each key."""
        entry = self._admin.describe_config(Resource(ResourceType.TOPIC, self.name), names=["cleanup.policy"]).get("cleanup.policy")
        return entry is not None and "compact" in (entry.value or "")

    def offsets(self, range: Range) -> dict[int, tuple[int, int]]:
        """The present offsets of a range, by partition: the first one and the end."""
        found = self._thread.call(self._consumer.offsets_of(dict.fromkeys(self._tps(), range)))
        return {tp.partition: offsets for tp, offsets in found.items()}

    def ends(self) -> dict[int, int]:
        """End offset of the readable records of each partition."""
        return {tp.partition: end for tp, end in self._thread.call(self._consumer.end_offsets(self._tps())).items()}

    def log_ends(self) -> dict[int, int]:
        """Log end offset of each partition, including open transactions."""
        return {tp.partition: good(one).offset for tp, one in self._admin.list_offsets(dict.fromkeys(self._tps(), LATEST)).items()}

    def _tps(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in self.partitions]

    def commit(self, group: str, positions: Mapping[int, int]) -> None:
        """Commits the table's offsets for a consumer group. Raises: KafkaError, also if the group has members."""
        offsets: dict[Any, Any] = {TopicPartition(self.name, partition): offset for partition, offset in positions.items()}
        for outcome in self._admin.alter_consumer_group_offsets(group, offsets).values():
            good(outcome)

    def read(
        self, wanted: Mapping[int, tuple[int, int]], names: Sequence[str], lost: Callable[[LostRecords], None]
    ) -> Iterator[PartitionRead]:
        """The records of these ranges, with these columns, in order within each partition.

        `lost` is called for deleted records, and may raise. Raises: KafkaError, RecordsError; TimeoutError.
        """
        schema = record_schema(names)
        with ThreadPoolExecutor(AHEAD, "ottla-lake") as pool:
            coming: deque[Future[PartitionRead]] = deque()
            try:
                for fetched in self._fetched(wanted, lost):
                    coming.append(pool.submit(partial(_decoded, fetched, schema)))
                    while len(coming) > AHEAD:
                        yield coming.popleft().result()
                while coming:
                    yield coming.popleft().result()
            finally:
                for one in coming:
                    one.cancel()

    def _fetched(self, wanted: Mapping[int, tuple[int, int]], lost: Callable[[LostRecords], None]) -> Iterator[Fetched]:
        waiting = deque(sorted(wanted.items()))
        open_: deque[Iterator[Fetched]] = deque()
        while waiting or open_:
            while waiting and len(open_) < PARTITIONS_AT_ONCE:
                partition, (start, end) = waiting.popleft()
                tp = TopicPartition(self.name, partition)
                open_.append(self._reader.read(tp, start, end, timeout_ms=IDLE_MS, gone=partial(self._gone, tp, lost)))
            reading = open_.popleft()
            fetched = next(reading, None)
            if fetched is not None:
                yield fetched
                open_.append(reading)

    def _gone(self, tp: TopicPartition, lost: Callable[[LostRecords], None], offset: int) -> int:
        """The present start of the log."""
        begins = self._thread.call(self._consumer.beginning_offsets([tp]))[tp]
        if begins <= offset:
            raise DataLost(f"{tp} ends before offset {offset}: the topic was truncated or created again; check it, then start a new table")
        lost(LostRecords(tp.topic, tp.partition, offset, begins))
        return begins

    def _fetch(self, tp: TopicPartition, offset: int) -> LoopCall[RawFetch]:
        return self._thread.submit(self._consumer.fetch_raw(tp, offset))


#: Settings that both clients have.
ADMIN_SETTINGS = ("bootstrap_servers", "client_id", "default_api_timeout_ms")


async def _started(settings: Mapping[str, Any]) -> Consumer:
    return await Consumer(**settings).start()


def _decoded(fetched: Fetched, schema: pa.Schema) -> PartitionRead:
    behind = max(fetched.start, fetched.raw.empty_until)
    for _, header in headers(fetched.raw.records):
        behind = max(behind, header.last_offset + 1)
    parts = fetched.columns(with_headers="headers" in schema.names)
    batches = [record_batch(part, schema, fetched.tp.topic, fetched.tp.partition) for part in parts]
    return PartitionRead(fetched.tp.partition, fetched.start, min(behind, fetched.end), batches)
