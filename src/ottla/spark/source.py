"""The data source as Spark calls it: planning on the driver, reading in Python workers.

    driver, a Python process per stream     initialOffset, latestOffset (80 times a second when idle), partitions: small JSON and pickles
    driver, a short process per batch read  partitions
    workers, reused between batches         read: ranges of offsets -> Arrow record batches

All Spark gives a reader to carry between these places is itself, pickled; what it holds open (connections) stays in `log_access`, per
process. A task reads one range after the other; a range stops at its end offset, so a batch that is run again reads the same records again.
Source: Spark's Python data source API (SPARK-44076), admission control for Python (SPARK-55304).
"""

import os
import time
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, ReadMinRows, SupportsTriggerAvailableNow

from ottla.base.options import suggestion
from ottla.spark import columns, positions
from ottla.spark.identity import TopicIdentity
from ottla.spark.loss import Losses, logger
from ottla.spark.offsets import OffsetRange, admit, from_json, plan_tasks, ranges_between, to_json
from ottla.spark.options import SourceOptions
from ottla.spark.positions import Offsets
from ottla.spark.progress_group import ProgressGroup, ids_committed
from ottla.spark.sink_options import SinkOptions
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from ottla.spark.log_access import Log

#: Spark asks an idle stream for its latest offset about 80 times a second; the brokers are asked this often at most.
LATEST_MAX_AGE_MS = 50


class OttlaDataSource(DataSource):  # type: ignore[misc]
    """``format("ottla")``: topics as DataFrames, DataFrames into topics."""

    @classmethod
    def name(cls) -> str:
        return "ottla"

    def schema(self) -> str:
        return columns.ddl(headers=str(self.options.get("includeHeaders", "false")).lower() == "true")

    def reader(self, schema: "StructType") -> "BatchReader":
        return BatchReader(SourceOptions.of(dict(self.options), streaming=False), chosen_columns(schema))

    def streamReader(self, schema: "StructType") -> "StreamReader":
        return StreamReader(SourceOptions.of(dict(self.options), streaming=True), chosen_columns(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> Any:
        from ottla.spark.sink import BatchWriter, sink_columns

        if overwrite:
            raise ValueError('a topic cannot be overwritten; write with .mode("append")')
        return BatchWriter(SinkOptions.of(dict(self.options)), sink_columns(schema))

    def streamWriter(self, schema: "StructType", overwrite: bool) -> Any:
        from ottla.spark.sink import StreamWriter, sink_columns

        return StreamWriter(SinkOptions.of(dict(self.options)), sink_columns(schema))


class LogPartition(InputPartition):  # type: ignore[misc]
    """One task: ranges to read in turn."""

    def __init__(self, ranges: tuple[OffsetRange, ...]) -> None:
        super().__init__(ranges)


def chosen_columns(schema: "StructType") -> tuple[str, ...]:
    """The columns to read, from the schema Spark planned with: the source's own, or the user's subset of it.

    Raises: ValueError when a column is unknown or of another type.
    """
    known = {**columns.SCHEMA, "headers": columns.HEADERS_TYPE}
    for field in schema.fields:
        if field.name not in known:
            raise ValueError(f"a topic has no column {field.name!r}{suggestion(field.name, known)}; it has {', '.join(known)}")
        wanted = known[field.name].replace(" ", "").lower()
        if field.dataType.simpleString().lower() != wanted or not field.nullable:
            raise ValueError(f"column {field.name} is {known[field.name]}, not {field.dataType.simpleString()}; cast it with SQL")
    return tuple(field.name for field in schema.fields)


class _Reader:
    """What both readers do alike. Holds only what may travel to a worker."""

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        self.options = options
        self.names = names

    def log(self) -> "Log":
        # Only processes that plan or read need the client.
        from ottla.spark import log_access

        return log_access.open_log(self.options.bootstrap, self.options.client)

    @cached_property
    def losses(self) -> Losses:
        return Losses(self.options.on_data_loss, self.options.loss_report_to)

    def tasks(self, start: Mapping[Any, int], end: Offsets) -> list[LogPartition]:
        options = self.options
        ids = self.log().topic_ids(frozenset(tp.topic for tp in end))
        ranges = ranges_between(start, end, ids)
        planned = plan_tasks(
            ranges, tasks_min=options.tasks_min, records_per_task_max=options.records_per_task_max, cores=os.cpu_count() or 1
        )
        return [LogPartition(task) for task in planned]

    def read_ranges(self, ranges: tuple[OffsetRange, ...]) -> "Iterator[pa.RecordBatch]":
        schema = columns.arrow_schema(self.names)
        log, options = self.log(), self.options
        for wanted in ranges:
            found = log.read(
                wanted,
                with_headers="headers" in self.names,
                losses=self.losses,
                timeout_ms=options.poll_timeout_ms,
            )
            for part in found:
                yield columns.record_batch(part, schema, wanted.topic, wanted.partition)


class BatchReader(_Reader, DataSourceReader):  # type: ignore[misc]
    """A read of what the topics hold now, or of the part between two positions."""

    def partitions(self) -> list[LogPartition]:
        start = positions.starting(self.log(), self.options, self.losses)
        end = positions.ending(self.log(), self.options)
        return self.tasks(start, {tp: max(offset, start[tp]) for tp, offset in end.items()})

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Spark makes up a partition without a value when there is nothing to read.
        return self.read_ranges(partition.value or ())


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """An endless read, batch after batch. Its state beside the options is a cache, the target of Trigger.AvailableNow, and what it knows of
    the topics that it reads.
    """

    def __init__(self, options: SourceOptions, names: tuple[str, ...]) -> None:
        super().__init__(options, names)
        #: With Trigger.AvailableNow, the end of the log when the query started; nothing later is read.
        self.target: Offsets | None = None
        self.latest: Offsets = {}
        self.latest_read_ms = -LATEST_MAX_AGE_MS
        self.last_trigger_ms: int | None = None
        self.identity = TopicIdentity()
        self.group = ProgressGroup(options.group) if options.commits and options.group else None
        #: What the query began with: that is no progress.
        self.initial: Offsets = {}

    def initialOffset(self) -> dict[str, dict[str, int]]:
        self.initial = positions.starting(self.log(), self.options, self.losses)
        if self.target is not None:
            # The log may have grown since the target was set.
            self.target |= {tp: max(offset, self.target.get(tp, 0)) for tp, offset in self.initial.items()}
        return to_json(self.initial)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.records_per_trigger_max is not None:
            return ReadMaxRows(options.records_per_trigger_max)
        if options.records_per_trigger_min is not None:
            return ReadMinRows(options.records_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, dict[str, int]], limit: ReadLimit) -> dict[str, dict[str, int]]:
        known, log = from_json(start), self.log()
        latest = self._newest(known) if self.target is None else self.target
        ids = log.topic_ids(frozenset(tp.topic for tp in (*known, *latest)))
        if not self.identity.known:
            self.identity.remember(self._ids_committed(known))
        same = self.identity.compared(known, ids)
        # Spark asks for the next batch when the last one is done, and it ended here.
        if self.group is not None and known != self.initial:
            self.group.publish(log, known, self.identity.ids)
        carried = positions.carried_over(log, self.options, known, latest, self.losses, same)
        latest = latest | {tp: carried.begin[tp] for tp in carried.anew}
        if not carried.anew and self._waits_for_more(carried.begin, latest, limit):
            return to_json(known)
        end = admit(carried.begin, latest, records_max=limit.max_rows if isinstance(limit, ReadMaxRows) else None)
        self.identity.planned(end, ids)
        return to_json(end)

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:
        return to_json(self._newest()) or None

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = positions.newest(self.log(), self.options)

    def partitions(self, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[LogPartition]:
        known, wanted = from_json(start), from_json(end)
        appeared = sorted(set(wanted) - set(known))
        first = positions.first_seen(self.log(), self.options, appeared, self.losses)
        return self.tasks({**known, **first}, wanted)

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        return self.read_ranges(partition.value)

    def _newest(self, known: Offsets | None = None) -> Offsets:
        """The end of the logs, asked for some ms ago at most. Where that is `known` already, later: an idle stream waits here."""
        age_ms = time.monotonic_ns() // 1_000_000 - self.latest_read_ms
        if age_ms < LATEST_MAX_AGE_MS and self.latest == known:
            time.sleep((LATEST_MAX_AGE_MS - age_ms) / 1000)
            age_ms = LATEST_MAX_AGE_MS
        if age_ms >= LATEST_MAX_AGE_MS:
            self.latest = positions.newest(self.log(), self.options)
            self.latest_read_ms = time.monotonic_ns() // 1_000_000
        return self.latest

    def _ids_committed(self, known: Offsets) -> dict[str, str]:
        """The ids that topics had when the group was told of what is `known`."""
        if self.options.group is None:
            return {}
        try:
            return ids_committed(self.log(), self.options.group, known)
        except KafkaError as error:
            logger.warning("consumer group %s does not tell which topics were read: %s", self.options.group, error)
            return {}

    def _waits_for_more(self, begin: Offsets, latest: Offsets, limit: ReadLimit) -> bool:
        """Whether minOffsetsPerTrigger holds the next batch back. The first batch of a query never waits, as in Spark's Kafka source."""
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


__all__ = ["BatchReader", "LogPartition", "OttlaDataSource", "StreamReader", "chosen_columns"]
