"""DataFrames into topics: each task sends its Arrow tables as the client does (`send_table`), acknowledged by all in-sync replicas.

Columns, as with Spark's Kafka sink: `value` (string or binary, required), `key`, `headers`, `topic` (unless the option `topic` is set,
which wins) and `partition`. What else a record of the source has (`offset`, `timestamp`, `timestampType`) is left out, so that what was
read can be written as it is. A row goes to its `partition`; without one, where Java's default partitioner sends its key; without a key to
any partition, with its neighbours.

At least once: a task answers only when every batch is acknowledged, so what Spark counts as written is written; a task that Spark runs
again writes its rows again. Where that matters, write a key or an id that readers can go by.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.base.options import suggestion
from ottla.base.units import MiB
from ottla.client.arrow.columns import gathered
from ottla.spark.sink.options import SinkOptions
from ottla.spark.worker_setup import settle_in_task

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SINK_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": ("array<struct<key:string,value:binary>>",),
    "topic": ("string",),
    "partition": ("int",),
}
#: Columns of the source that nobody writes.
OF_THE_SOURCE = frozenset({"offset", "timestamp", "timestampType"})
#: About this much is put together before it is shared out: Spark sends 10,000 rows at a time, and over many partitions that is little.
GATHER_BYTES = 4 * MiB


@dataclass(frozen=True, slots=True)
class Origin:
    """Which rows a task wrote.

    In a query, (query_id, batch_id) names the batch for ever, also when it is run again after a restart; which of its rows a partition has
    depends on how the query is planned, on the number of cores for one. A write of its own has no ids. Source: the local properties that
    Spark's StreamExecution and MicroBatchExecution give to the jobs of a batch; they reach a batch write inside foreachBatch, too.
    """

    query_id: str | None
    batch_id: int | None
    partition: int
    attempt: int

    @classmethod
    def here(cls) -> "Origin":
        """Of the task that this process runs; of the driver, where there is none."""
        context = TaskContext.get()
        if context is None:
            return cls(None, None, 0, 0)
        batch_id = context.getLocalProperty("streaming.sql.batchId")
        query_id = context.getLocalProperty("sql.streaming.queryId")
        return cls(query_id, None if batch_id is None else int(batch_id), context.partitionId(), context.attemptNumber())


class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task wrote."""

    def __init__(self, records: int, origin: Origin) -> None:
        self.records = records
        self.origin = origin


def sink_columns(schema: "StructType") -> tuple[str, ...]:
    """The names of the columns to write. Raises: ValueError when one is unknown or of a type that cannot be written."""
    fields = [field for field in schema.fields if field.name not in OF_THE_SOURCE]
    for field in fields:
        if field.name not in SINK_TYPES:
            raise ValueError(
                f"a topic takes no column {field.name!r}{suggestion(field.name, SINK_TYPES)}; it takes {', '.join(SINK_TYPES)}. "
                "Put other columns into the value, with to_json(struct(*)) AS value"
            )
        kind = field.dataType.simpleString()
        if kind not in SINK_TYPES[field.name]:
            raise ValueError(f"column {field.name} is {kind} and must be {' or '.join(SINK_TYPES[field.name])}; cast it with SQL")
    if "value" not in schema.fieldNames():
        raise ValueError("there is no column value; select one, such as to_json(struct(*)) AS value")
    return tuple(field.name for field in fields)


def refuse_missing_topic(options: SinkOptions, names: tuple[str, ...]) -> None:
    if options.topic is None and "topic" not in names:
        raise ValueError("no topic to write to; set the option topic, or select a column topic")


class _Writer:
    def __init__(self, options: SinkOptions, names: tuple[str, ...]) -> None:
        refuse_missing_topic(options, names)
        self.options = options
        self.names = names

    def write_all(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        # Only the processes that write need the client.
        from ottla.spark.sink.task_producer import Sending

        sending = Sending(self.options, random.Random())
        settle_in_task()
        written = 0
        for batch in gathered((one.select(self.names) for one in batches), GATHER_BYTES):
            for topic, rows in _by_topic(batch, self.options.topic):
                sending.send(topic, rows)
            written += batch.num_rows
        sending.finish()
        return Written(written, Origin.here())

    def commit(self, messages: list[Any], *_: int) -> None:
        """The records are in the log since the tasks ended; what is left is to say how many."""
        if self.options.report_to is not None:
            written = sum(message.records for message in messages if message is not None)
            Path(self.options.report_to).write_text(str(written), encoding="utf-8")

    def abort(self, messages: list[Any], *_: int) -> None:
        """Nothing: a log cannot take back records. Spark runs the batch again, and its rows are written again."""


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """``df.write.format("ottla").mode("append")``."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self.write_all(iterator)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """``df.writeStream.format("ottla")``."""

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        return self.write_all(iterator)


def _by_topic(batch: "pa.RecordBatch", topic: str | None) -> "Iterator[tuple[str, pa.RecordBatch]]":
    """Each topic with its rows. Raises: ValueError for a row without a topic."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, batch
        return
    names = batch.column("topic")
    if names.null_count:
        raise ValueError("a row has no topic: its column topic is null; set the option topic, or leave such rows out")
    for name in pc.unique(names):
        yield name.as_py(), batch.filter(pc.equal(names, name))
