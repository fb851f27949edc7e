"""DataFrames into topics: Arrow record batches become record batches of the log in each task, acknowledged by all in-sync replicas.

Columns, as with Spark's Kafka sink: `value` (string or binary, required), `key`, `headers` (with includeHeaders), `topic` (unless the
option `topic` is set, which wins) and `partition`. A row goes to its `partition`; without one, where Java's default partitioner sends its
key; without a key to a partition that changes from one Arrow batch to the next.

At least once: a task answers only when every batch is acknowledged, so what Spark counts as written is written; a task that Spark runs
again writes its rows again. Where that matters, write a key or an id that readers can go by.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from random import randrange
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from ottla.base.options import suggestion
from ottla.records.build import build_columns, partitions_of_keys
from ottla.records.compression import Codec
from ottla.spark import columns
from ottla.spark.options import SinkOptions

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
#: Most bytes of one batch: under the brokers' default of message.max.bytes (1,048,588).
BATCH_BYTES_MAX = 1_000_000
#: About this much is put together before it is shared out over the partitions.
GATHER_BYTES = 4 * 1024 * 1024


class Written(WriterCommitMessage):  # type: ignore[misc]
    """What a task wrote."""

    def __init__(self, records: int) -> None:
        self.records = records


def sink_columns(schema: "StructType") -> tuple[str, ...]:
    """The names of the columns to write. Raises: ValueError when one is unknown or of a type that cannot be written."""
    for field in schema.fields:
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
    return tuple(schema.fieldNames())


def refuse_missing_topic(options: SinkOptions, names: tuple[str, ...]) -> None:
    if options.topic is None and "topic" not in names:
        raise ValueError("no topic to write to; set the option topic, or select a column topic")
    if "headers" in names and not options.include_headers:
        raise ValueError("there is a column headers; set the option includeHeaders to true to write it, or do not select it")


class _Writer:
    def __init__(self, options: SinkOptions, names: tuple[str, ...]) -> None:
        refuse_missing_topic(options, names)
        self.options = options
        self.names = names

    def write_all(self, batches: "Iterator[pa.RecordBatch]") -> Written:
        # Only the processes that write need the client.
        from ottla.spark import log_access

        log = log_access.open_log(self.options.bootstrap, self.options.client)
        codec = Codec[self.options.compression.upper()]
        written, rotating = 0, randrange(1_000)
        for batch in gathered(batches):
            for topic, rows in _by_topic(batch, self.options.topic):
                count = log.partition_count(topic)
                rotating = (rotating + 1) % count
                for partition, chosen in _by_partition(batch, rows, count, rotating):
                    for encoded in _encode(batch, chosen, codec):
                        log.send(topic, partition, encoded)
            written += batch.num_rows
        log.flush()
        return Written(written)

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


def _by_topic(batch: "pa.RecordBatch", topic: str | None) -> "Iterator[tuple[str, pa.Int64Array | None]]":
    """Each topic with the numbers of its rows; None for all rows. Raises: ValueError for a row without a topic."""
    import pyarrow.compute as pc

    if topic is not None:
        yield topic, None
        return
    names = batch.column("topic")
    if names.null_count:
        raise ValueError("a row has no topic: its column topic is null; set the option topic, or leave such rows out")
    for name in pc.unique(names):
        yield name.as_py(), pc.indices_nonzero(pc.equal(names, name)).cast("int64")


def _by_partition(batch: "pa.RecordBatch", rows: Any, count: int, rotating: int) -> Iterator[tuple[int, Any]]:
    """Each partition of one topic with the numbers of its rows; None for all rows of the batch. Rows that do not say go to `rotating`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    wanted = _wanted_partitions(batch, count)
    if wanted is None:
        yield rotating, rows
        return
    wanted = pc.fill_null(wanted, rotating)
    if rows is not None:
        wanted = wanted.take(rows)
    for number in pc.unique(wanted).to_pylist():
        if not 0 <= number < count:
            raise ValueError(f"a row names partition {number}, but its topic has partitions 0 to {count - 1}")
        chosen = pc.indices_nonzero(pc.equal(wanted, pa.scalar(number, pa.int32()))).cast(pa.int64())
        yield number, chosen if rows is None else rows.take(chosen)


def _wanted_partitions(batch: "pa.RecordBatch", count: int) -> Any:
    """Per row the partition, null where the row does not say; None when no row does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = batch.schema.names
    explicit = batch.column("partition").cast(pa.int32()) if "partition" in names else None
    if "key" not in names or (batch.column("key").null_count == batch.num_rows):
        return explicit
    keys = batch.column("key")
    raw = partitions_of_keys(columns.binary_column(keys), count, first=0, last=len(keys))
    hashed = pa.Array.from_buffers(pa.int32(), len(keys), [None, pa.py_buffer(raw)])
    hashed = pc.if_else(pc.equal(hashed, -1), pa.scalar(None, pa.int32()), hashed)
    return hashed if explicit is None else pc.coalesce(explicit, hashed)


def _encode(batch: "pa.RecordBatch", rows: Any, codec: Codec) -> Iterator[bytearray]:
    """Batches of the log with the rows numbered `rows`, or all."""
    names = batch.schema.names
    yield from build_columns(
        columns.binary_column(batch.column("value")),
        first=0 if rows is None else rows.offset,
        last=batch.num_rows if rows is None else rows.offset + len(rows),
        timestamps=time.time_ns() // 1_000_000,
        key=columns.binary_column(batch.column("key")) if "key" in names else None,
        headers=columns.headers_column(batch.column("headers")) if "headers" in names else None,
        rows=None if rows is None else rows.buffers()[1],
        size_max=BATCH_BYTES_MAX,
        codec=codec,
    )


def gathered(batches: "Iterator[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    """`batches` joined to some `GATHER_BYTES` each: Spark sends 10,000 rows at a time, and split over many partitions that is little.

    Each array of the result begins at the beginning of its buffers.
    """
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        waiting.append(batch)
        size += batch.nbytes
        if size >= GATHER_BYTES:
            yield _joined(waiting)
            waiting, size = [], 0
    if size:
        yield _joined(waiting)


def _joined(batches: "list[pa.RecordBatch]") -> "pa.RecordBatch":
    import pyarrow as pa

    if len(batches) == 1 and not any(array.offset for array in batches[0].columns):
        return batches[0]
    whole = pa.Table.from_batches(batches).combine_chunks()
    joined = whole.to_batches()[0]
    if any(array.offset for array in joined.columns):
        joined = joined.take(pa.array(range(joined.num_rows), pa.int64()))
    return joined
