"""The data source as Spark calls it: planning on the driver, reading in Python workers.

    driver, a Python process per stream           initialOffset, latestOffset (80 times a second when idle), partitions: small JSON, pickles
    driver, a short-lived process per batch read  partitions
    workers, reused between batches               read: ranges of offsets -> Arrow record batches

Spark pickles the reader between these processes. Connections are not part of it: `log_client` keeps them per process. A task reads its
ranges one after the other. A range stops at its end offset, so a retried batch reads the same records.
Source: Spark's Python data source API (SPARK-44076), admission control for Python (SPARK-55304).
"""

import os
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow

from ottla.client.arrow.optional import pa
from ottla.spark.sink.options import SinkOptions
from ottla.spark.source import rows, starting_offsets
from ottla.spark.source.data_loss import DataLossPolicy
from ottla.spark.source.offset_ranges import (
    OffsetRange,
    admit,
    compare_topic_ids,
    from_json,
    plan_tasks,
    ranges_between,
    to_json,
    topic_ids_in,
)
from ottla.spark.source.options import SourceOptions, decoded_value
from ottla.spark.source.progress_group import ProgressGroup
from ottla.spark.source.starting_offsets import Offsets, RetryingCatalog
from ottla.spark.worker_setup import prepare_task_process

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from ottla.spark.source.log_client import LogClient

#: Age limit of cached end offsets. Spark asks an idle stream for its latest offset about 80 times a second.
LATEST_MAX_AGE_MS = 50
#: Fewer records are split by number; the brokers are not asked for sizes.
WEIGHED_RECORDS_MIN = 1000


class OttlaDataSource(DataSource):  # type: ignore[misc]
    """``format("ottla")``: topics as DataFrames, DataFrames into topics."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> "str | StructType":
        headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        value, topics = decoded_value(dict(self.options))
        return rows.ddl(headers=headers) if value is None else rows.default_schema(value, topics, headers=headers)

    def reader(self, schema: "StructType") -> "BatchReader":
        options = SourceOptions.of(dict(self.options), streaming=False)
        return BatchReader(options, rows.RowPlan.of(schema, options.value, decoded_value(dict(self.options))[1]))

    def streamReader(self, schema: "StructType") -> "StreamReader":
        options = SourceOptions.of(dict(self.options), streaming=True)
        return StreamReader(options, rows.RowPlan.of(schema, options.value, decoded_value(dict(self.options))[1]))

    def writer(self, schema: "StructType", overwrite: bool) -> Any:
        from ottla.spark.sink.writer import BatchWriter, sink_columns

        if overwrite:
            raise ValueError('a topic cannot be overwritten; write with .mode("append")')
        made = BatchWriter(SinkOptions.of(dict(self.options)), sink_columns(schema))
        made.settle()
        return made

    def streamWriter(self, schema: "StructType", overwrite: bool) -> Any:
        from ottla.spark.sink.writer import StreamWriter, sink_columns

        return StreamWriter(SinkOptions.of(dict(self.options)), sink_columns(schema))


class LogPartition(InputPartition):  # type: ignore[misc]
    """One task: ranges to read one after the other."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)


def topics_of(offsets: Offsets) -> frozenset[str]:
    return frozenset(tp.topic for tp in offsets)


class _Reader:
    """The common part of both readers. All attributes are picklable."""

    def __init__(self, options: SourceOptions, plan: rows.RowPlan) -> None:
        self.options = options
        self.plan = plan

    def log_client(self) -> "LogClient":
        # Imported here: only processes that plan or read need the client.
        from ottla.spark.source import log_client

        return log_client.open_log_client(self.options.bootstrap, self.options.client)

    def catalog(self) -> RetryingCatalog:
        return RetryingCatalog(self.log_client(), self.options.offset_retries, self.options.offset_retry_ms)

    @cached_property
    def loss_policy(self) -> DataLossPolicy:
        return DataLossPolicy(self.options.on_data_loss, self.options.loss_report_to)

    def tasks(self, start: Mapping[Any, int], end: Offsets, ids: Mapping[str, str]) -> list[LogPartition]:
        options = self.options
        ranges = ranges_between(start, end, ids)
        worth_it = sum(map(len, ranges)) >= WEIGHED_RECORDS_MIN
        planned = plan_tasks(
            ranges,
            tasks_min=options.tasks_min,
            records_per_task_max=options.records_per_task_max,
            cores=os.cpu_count() or 1,
            bytes_per_offset=self.log_client().bytes_per_offset([one.tp for one in ranges]) if worth_it else None,
        )
        return [LogPartition(task) for task in planned]

    def read_ranges(self, ranges: tuple[OffsetRange, ...]) -> "Iterator[pa.RecordBatch]":
        builder, client = rows.RowBuilder(self.plan), self.log_client()
        headers, timeout_ms = "headers" in self.plan.read, self.options.poll_timeout_ms
        prepare_task_process()
        for one in ranges:
            for part in client.read(one, with_headers=headers, loss_policy=self.loss_policy, timeout_ms=timeout_ms):
                yield builder.batch(part, one.topic, one.partition)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """A batch read of the topics' current content, or of the part between two positions."""

    def partitions(self) -> list[LogPartition]:
        start = starting_offsets.resolve_start(self.catalog(), self.options, self.loss_policy)
        end = starting_offsets.resolve_end(self.catalog(), self.options)
        ids = self.log_client().topic_ids(topics_of(end))
        # A partition added meanwhile is not part of this read.
        return self.tasks(start, {tp: max(offset, start[tp]) for tp, offset in end.items() if tp in start}, ids)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Spark creates a partition without a value if there is nothing to read.
        return self.read_ranges(partition.value or ())


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A stream. Its state besides the options: a cache, the target of Trigger.AvailableNow, and the progress of its group."""

    def __init__(self, options: SourceOptions, plan: rows.RowPlan) -> None:
        super().__init__(options, plan)
        #: With Trigger.AvailableNow: the end of the log at the query's start; later records are not read.
        self.target: Offsets | None = None
        self.latest: Offsets = {}
        self.latest_read_ms = -LATEST_MAX_AGE_MS
        self.last_trigger_ms: int | None = None
        self.group = ProgressGroup(options.group) if options.commits and options.group else None
        #: The starting offsets; they are not committed as progress.
        self.initial: Offsets = {}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        self.initial = starting_offsets.resolve_start(self.catalog(), self.options, self.loss_policy)
        if self.target is not None:
            # The log may have grown since the target was set.
            self.target |= {tp: max(offset, self.target.get(tp, 0)) for tp, offset in self.initial.items()}
        return self._json(self.initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.records_per_trigger_max is not None:
            return ReadMaxRows(options.records_per_trigger_max)
        if options.records_per_trigger_min is not None:
            return ReadMinRows(options.records_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        known, client = from_json(start), self.log_client()
        latest = self._latest(known) if self.target is None else self.target
        identity = compare_topic_ids(topic_ids_in(start), client.topic_ids(topics_of(latest)))
        # Spark asks for the next batch after the last one is done; `start` is the end of that one.
        if self.group is not None and known != self.initial:
            self.group.publish(client, known)
        resume = starting_offsets.resume_offsets(self.catalog(), self.options, known, latest, self.loss_policy, identity)
        latest = latest | {tp: resume.begin[tp] for tp in resume.reset}
        if not resume.reset and self._waits_for_more(resume.begin, latest, limit):
            return start
        return self._json(admit(resume.begin, latest, records_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None))

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return self._json(self._latest()) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = starting_offsets.latest_offsets(self.catalog(), self.options)

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[LogPartition]:
        begin, ends = from_json(start), from_json(end)
        added = sorted(set(ends) - set(begin))
        first = starting_offsets.new_partition_offsets(self.catalog(), self.options, added, self.loss_policy)
        return self.tasks({**begin, **first}, ends, topic_ids_in(end))

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self.read_ranges(partition.value)

    def _json(self, offsets: Offsets) -> dict[str, dict[str, int]]:
        return to_json(offsets, self.log_client().topic_ids(topics_of(offsets)))

    def _latest(self, known: Offsets | None = None) -> Offsets:
        """The end offsets, cached for `LATEST_MAX_AGE_MS`. If they equal `known`, waits and asks again: an idle stream waits here."""
        age_ms = time.monotonic_ns() // 1_000_000 - self.latest_read_ms
        if age_ms < LATEST_MAX_AGE_MS and self.latest == known:
            time.sleep((LATEST_MAX_AGE_MS - age_ms) / 1000)
            age_ms = LATEST_MAX_AGE_MS
        if age_ms >= LATEST_MAX_AGE_MS:
            self.latest = starting_offsets.latest_offsets(self.catalog(), self.options)
            self.latest_read_ms = time.monotonic_ns() // 1_000_000
        return self.latest

    def _waits_for_more(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger delays the next batch. The first batch of a query never waits, as in Spark's Kafka source."""
        least = self.options.records_per_trigger_min
        if least is None or self.target is not None or isinstance(limit, ReadAllAvailable):
            return False
        now_ms = time.monotonic_ns() // 1_000_000
        backlog = sum(max(0, latest[tp] - begin[tp]) for tp in latest)
        overdue = self.last_trigger_ms is None or now_ms - self.last_trigger_ms >= self.options.trigger_delay_max_ms
        if backlog < least and not overdue:
            return True
        if backlog:
            self.last_trigger_ms = now_ms
        return False
