"""Writes DataFrames to topics: each task sends Arrow tables with the client's `send_table`, acknowledged by all in-sync replicas.

Columns, as with Spark's Kafka sink: `value` (string or binary, required), `key`, `headers`, `topic` (the option `topic` takes precedence)
and `partition`. Other columns of the source (`offset`, `timestamp`, `timestampType`) are ignored, so that rows of the source can be
written unchanged. `task_producer` describes partitioning.

At least once: a task ends only after every batch is acknowledged. A task that Spark retries writes its rows again. To detect duplicates,
write a key or an id.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ottla.base.options import suggestion
from ottla.base.units import MiB
from ottla.client.arrow.columns import gathered
from ottla.spark.sink.options import SinkOptions
from ottla.spark.worker_setup import prepare_task_process

SINK_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
#: Columns of the source that are not written.
SOURCE_ONLY_COLUMNS = frozenset({"offset", "timestamp", "timestampType"})
#: Size to which Spark's batches of 10,000 rows are combined before partitioning. Smaller ones would make small record batches.
GATHER_BYTES = 4 * MiB


@dataclass(frozen=True, slots=True)
class Origin:
    """Identifies the rows that a task wrote.

    In a query, (query_id, batch_id) identifies the batch permanently, also after a restart. Which of its rows a partition holds depends on
    the plan, for example on the number of cores. A batch write has no ids. Source: local properties that Spark's StreamExecution and
    MicroBatchExecution set for the jobs of a batch, also for a batch write inside foreachBatch.
    """

    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int

    @classmethod
    def current(cls) -> "Origin":
        """The origin of the task in this process, or of the driver."""
        context = TaskContext.get()
        if context is None:
            return cls(None, None, 0, 0)
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        return cls(query_id, None if batch_id is None else int(batch_id), context.partitionId(), context.attemptNumber())


@dataclass
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """The number of records that a task wrote, and its origin."""

    records: int
    origin: Origin


def sink_columns(schema: "StructType") -> tuple[str, ...]:
    """The names of the columns to write. Raises: ValueError if one is unknown or has an unsupported type."""
    fields = [field for field in schema.fields if field.name not in SOURCE_ONLY_COLUMNS]
    for field in fields:
        if field.name not in SINK_TYPES:
            raise ValueError(
                f"a topic has no column {field.name!r}{suggestion(field.name, SINK_TYPES)}; it has {', '.join(SINK_TYPES)}. "
                "Put other columns into the value, with to_json(struct(*)) AS value"
            )
        kind = field.dataType.simpleString()
        if kind not in SINK_TYPES[field.name]:
            raise ValueError(f"column {field.name} is {kind} and must be {' or '.join(SINK_TYPES[field.name])}; cast it with SQL")
    if "value" not in schema.fieldNames():
        raise ValueError("there is no column value; select one, such as to_json(struct(*)) AS value")
    return tuple(field.name for field in fields)


def require_topic(options: SinkOptions, names: tuple[str, ...]) -> None:
    if options.topic is None and "topic" not in names:
        raise ValueError("no topic to write to; set the option topic, or select a column topic")


class _Writer:
    def __init__(self, options: SinkOptions, names: tuple[str, ...]) -> None:
        require_topic(options, names)
        self.options = options
        self.names = names

    def write_all(self, batches: "Iterator[pa.RecordBatch]") -> TaskResult:
        # Imported here: only processes that write need the client.
        from ottla.spark.sink.task_producer import TaskProducer

        producer = TaskProducer(self.options, random.Random())
        prepare_task_process()
        written = 0
        for batch in gathered((one.select(self.names) for one in batches), GATHER_BYTES):
            for topic, rows in _by_topic(batch, self.options.topic):
                producer.send(topic, rows)
            written += batch.num_rows
        producer.finish()
        return TaskResult(written, Origin.current())

    def commit(self, messages: list[Any], *_: int) -> None:
        """Reports the number of records. They are in the log since the tasks ended."""
        if self.options.report_to is not None:
            written = sum(message.records for message in messages if message is not None)
            Path(self.options.report_to).write_text(str(written), encoding="utf-8")

    def abort(self, messages: list[Any], *_: int) -> None:
        """Does nothing: records cannot be removed from a log. Spark retries the batch, and its rows are written again."""


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("ottla").mode("append")``."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        return self.write_all(iterator)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream.format("ottla")``."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        return self.write_all(iterator)


def _by_topic(batch: "pa.RecordBatch", topic: str | None) -> "Iterator[tuple[str, pa.RecordBatch]]":
    """Each topic with its rows. Raises: ValueError for a row without a topic."""
    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic")
    if names.null_count:
        raise ValueError("a row has no topic: its column topic is null; set the option topic, or filter such rows out")
    for name in pc.unique(names):
        yield name.as_py(), batch.filter(pc.equal(names, name))
