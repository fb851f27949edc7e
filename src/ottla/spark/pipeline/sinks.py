"""Writes the batches of a view to its sinks.

A view that aggregates has few rows. They are gathered on the driver as one Arrow table for all sinks of the view, with one Spark job. Other
views may have any number of rows: each sink is a Spark job whose tasks write in parallel.

                 gathered (aggregates, merged rows)    spread (everything else)
    delta        one transaction of the table          files by tasks, one transaction
    iceberg      one commit of the catalog             files by tasks, one commit
    parquet      one file                              files by tasks, renamed when all are done
    topic        one transaction of the driver         a transaction for each task, committed together
    jdbc         Spark's JDBC writer                   Spark's JDBC writer, by tasks
    console      the first rows                        the first rows

Delta and Iceberg tables store the query's id and the batch number, Parquet files have them in their names, and the brokers have the
decisions about topics (`topic_commits`), so a retried batch is there once. If one of several sinks fails, the query ends and the next start
retries the whole batch: sinks that have it skip or replace it, the others (jdbc append, topics with delivery at_least_once) write it again.
So those others are written first, which makes a duplicate less likely.
"""

import socket
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from pyspark.storagelevel import StorageLevel

from ottla.base.options import suggestion
from ottla.lake.storage import StorageError
from ottla.lake.table import delta
from ottla.spark.pipeline.config.model import PROMISES, Pipeline, Sink
from ottla.spark.pipeline.delta_sink import DeltaAppend, DeltaAppendWriter, cast_to_table, schema_of_frame
from ottla.spark.pipeline.jdbc_sink import JdbcTable
from ottla.spark.pipeline.parquet_sink import BatchFiles, ParquetFiles, parse_report
from ottla.spark.pipeline.rejected_rows import literal
from ottla.spark.pipeline.spark_refusals import refused_expression, spark_errors
from ottla.spark.pipeline.topic_commits import TopicCommits, application_of
from ottla.spark.sink.options import SinkOptions
from ottla.spark.sink.writer import BatchWriter, Origin


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch of a query. Id and number stay the same after a restart."""

    query_id: str
    number: int
    #: A hash of the rows, if a retry may produce other rows from the same records.
    content: int | None = None
    #: The query has state, so Spark must compute the rows even if the target has them.
    stateful: bool = False
    #: The start of the query, which has another id after each restart.
    run_id: str | None = None


class Target(Protocol):
    """Writes the batches of one sink."""

    sink: Sink

    @property
    def extras(self) -> Mapping[str, str]:
        """Further columns that it needs in a gathered table, as SQL over the view's columns, by name."""

    def prepare(self, frame: Any) -> None:
        """Checks the view before the query starts. Raises: PipelineError if the sink cannot write it."""

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        """Writes a gathered table: the view's columns and those of `extras`."""

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        """Writes a frame with the view's columns in parallel tasks. Returns the number of rows."""


class Compactions:
    """When the table of a sink is compacted."""

    def __init__(self, sink: Sink) -> None:
        self._when = sink.compaction
        #: Files and batches since the last compaction by this process.
        self._files = self._batches = 0

    def due(self, files: int) -> bool:
        """Whether the table is to be compacted after a batch with so many files."""
        self._batches += 1
        self._files += files
        when = self._when
        if when is None:
            return False
        due = (when.every_batches or self._batches + 1) <= self._batches or (when.files or self._files + 1) <= self._files
        if due:
            self._files = self._batches = 0
        return due


class DeltaTarget:
    """A Delta table."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}
        self.place = sink.place
        self.compactions = Compactions(sink)

    def prepare(self, frame: Any) -> None:
        require_columns(self.pipeline, self.sink, frame)
        require_writable(self.pipeline, self.sink)

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        sink = self.sink
        assert sink.mode is not None, "delta has a mode"
        try:
            delta.write(
                self.place,
                table,
                mode=sink.mode,
                keys=sink.keys,
                application=application_id(self.pipeline, sink, batch),
                batch_id=batch.number,
                evolving=sink.schema == "evolve",
                partition_by=sink.partition_by,
            )
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{sink.key}path", str(error)) from None
        except delta.RepeatedKeys as error:
            raise self.pipeline.error(f"{sink.key}keys", str(error)) from None
        self._compact(1)

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        sink, application = self.sink, application_id(self.pipeline, self.sink, batch)
        if delta.committed(self.place, application, batch.number, batch.content):
            if batch.stateful:
                frame.write.format("noop").mode("overwrite").save()
            return 0
        schema = schema_of_frame(frame)
        try:
            if sink.schema == "evolve":
                delta.evolve(self.place, schema, partition_by=sink.partition_by)
                frame = cast_to_table(delta.opened(self.place), frame)
            else:
                delta.ensure(self.place, schema, partition_by=sink.partition_by)
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{sink.key}path", str(error)) from None
        writer = DeltaAppendWriter(self.place, application, batch.number, None, self._partitioned_by(), batch.content)
        rows = int(run_write(frame.write.format(DeltaAppend.name()).option("writer", msgspec.json.encode(writer).decode())))
        self._compact(frame.sparkSession.sparkContext.defaultParallelism)
        return rows

    def _partitioned_by(self) -> tuple[str, ...]:
        """The table's partition columns. Raises: PipelineError if the sink names others."""
        existing = tuple(delta.opened(self.place).metadata().partition_columns)
        if self.sink.partition_by and self.sink.partition_by != existing:
            problem = f"the table at {self.place} is partitioned by {', '.join(existing) or 'nothing'}; write to another path"
            raise self.pipeline.error(f"{self.sink.key}partition_by", problem)
        return existing

    def _compact(self, files: int) -> None:
        """Compacts small files when due, in a transaction after the batch's. A crash between the two only delays it."""
        if self.compactions.due(files):
            delta.compact(self.place)


def owner_of(pipeline: Pipeline) -> str:
    """Identifies the pipeline's checkpoint for a staging table. A machine that was taken over and one that took over have two of them."""
    directory = str(Path(pipeline.checkpoint).absolute())
    if not pipeline.checkpoint_is_copy:
        return directory
    return f"{pipeline.checkpoint_place}/{pipeline.name}@{socket.gethostname()}{directory}"


def require_columns(pipeline: Pipeline, sink: Sink, frame: Any) -> None:
    """Raises: PipelineError if `keys` or `partition_by` name a column that the view lacks."""
    for key, names in (("keys", sink.keys), ("partition_by", sink.partition_columns)):
        for name in names:
            if name not in frame.columns:
                known = ", ".join(frame.columns)
                raise pipeline.error(
                    f"{sink.key}{key}", f"{sink.view} has no column {name}{suggestion(name, frame.columns)}; it has {known}"
                )
    if sink.type != "iceberg" and sink.partition_by and len(set(sink.partition_by)) == len(frame.columns):
        raise pipeline.error(f"{sink.key}partition_by", "leaves no column for the files; take one out")


def require_writable(pipeline: Pipeline, sink: Sink) -> None:
    """Raises: PipelineError if an object store cannot be used, or ignores the conditions of writes."""
    try:
        sink.place.require_conditional_writes()
    except (StorageError, OSError) as error:
        raise pipeline.error(f"{sink.key}path", str(error)) from None


def application_id(pipeline: Pipeline, sink: Sink, batch: MicroBatch) -> str:
    """Identifies the writer for a target that stores batch numbers. It does not depend on the sink's position in the file.

    Sinks of one query that share a table are numbered.
    """
    alike = [other.key for other in pipeline.sinks if (other.type, other.target, other.view) == (sink.type, sink.target, sink.view)]
    number = alike.index(sink.key) if sink.key in alike else 0
    place = sink.target if sink.path is None else sink.place
    return f"ottla/{batch.query_id}/{sink.type}:{place}{f'#{number}' if number else ''}"


class TopicTarget:
    """A topic; the value is the row as JSON, or what the sink says."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        assert sink.topic is not None, "checked with the file"
        self.options = {**pipeline.broker_options(), "topic": sink.topic, "compression": sink.compression}
        if sink.delivery is not None:
            self.options["delivery"] = sink.delivery
        schemas = {"keyFormat": sink.key_format, "valueFormat": sink.value_format, "schema.registry.url": sink.registry}
        self.options |= {name: value for name, value in schemas.items() if value is not None}
        self.commits = TopicCommits(self.options)
        self.columns = {"value": sink.value_sql or "to_json(struct(*), map('ignoreNullFields', 'false'))"}
        if sink.key_sql is not None:
            self.columns["key"] = sink.key_sql
        if sink.partition_sql is not None:
            self.columns["partition"] = f"CAST({sink.partition_sql} AS INT)"
        if sink.headers_sql:
            self.options["includeHeaders"] = "true"
            # Looked at by `prepare`, which knows their types.
            self.columns["headers"] = f"array({', '.join(sink.headers_sql.values())})"

    @property
    def extras(self) -> dict[str, str]:
        names = f"__{self.sink.key.strip('.').replace('[', '_').replace(']', '')}"
        return {f"{names}_{column}": sql for column, sql in self.columns.items()}

    def prepare(self, frame: Any) -> None:
        """Sets the conversions of key, value and headers: text and bytes unchanged, a struct, map or array as JSON, others as text."""
        for column, sql in self.columns.items():
            if column == "headers":
                texts = {name: f"CAST({self._written(frame, column, one)} AS BINARY)" for name, one in self.sink.headers_sql.items()}
                made = [f"named_struct('key', {literal(name)}, 'value', {text})" for name, text in texts.items()]
                self.columns[column] = f"array({', '.join(made)})"
            elif column == "partition":
                self._type(frame, column, sql)
            else:
                self.columns[column] = self._written(frame, column, sql)

    def _written(self, frame: Any, column: str, sql: str) -> str:
        """SQL that converts `sql` to text or bytes. Raises: PipelineError."""
        kind = self._type(frame, column, sql)
        if kind in ("string", "binary"):
            return sql
        nested = kind.startswith(("struct", "map", "array"))
        return f"to_json({sql}, map('ignoreNullFields', 'false'))" if nested else f"CAST({sql} AS STRING)"

    def _type(self, frame: Any, column: str, sql: str) -> str:
        try:
            return str(frame.selectExpr(sql).dtypes[0][1])
        except spark_errors() as error:
            message = refused_expression(self.pipeline, error, self.sink.view, frame.columns)
            raise self.pipeline.error(f"{self.sink.key}{column}", message) from None

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        application = self._application(batch)
        if self.commits.has(application, batch):
            return
        chosen = pa.table({column: table.column(extra) for column, extra in zip(self.columns, self.extras, strict=True)})
        options = SinkOptions.of({**self.options, **self.commits.options(application, batch)})
        origin = Origin(batch.query_id, batch.number, 0, 0, batch.run_id)
        written = BatchWriter(options, tuple(self.columns)).write_all(iter(chosen.combine_chunks().to_batches()), origin)
        self.commits.commit_task(application, batch, written.run, written.participant)

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        application = self._application(batch)
        chosen = frame.selectExpr(*[f"{sql} AS `{column}`" for column, sql in self.columns.items()])
        if self.commits.has(application, batch):
            if batch.stateful:
                chosen.write.format("noop").mode("overwrite").save()
            return 0
        options = {**self.options, **self.commits.options(application, batch)}
        return self.commits.commit(application, batch, run_write(chosen.write.format("ottla").options(**options)))

    def _application(self, batch: MicroBatch) -> str:
        sink = self.sink
        assert sink.topic is not None, "checked with the file"
        alike = [other.key for other in self.pipeline.sinks if (other.topic, other.view) == (sink.topic, sink.view)]
        return application_of(batch.query_id, sink.topic, alike, sink.key)


class ParquetTarget:
    """A directory of Parquet files."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}

    def prepare(self, frame: Any) -> None:
        require_columns(self.pipeline, self.sink, frame)
        require_writable(self.pipeline, self.sink)

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        files = self._files(batch).begin()
        files.commit([files.write(iter(table.combine_chunks().to_batches()))])

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        files = self._files(batch).begin()
        writer = frame.write.format(ParquetFiles.name()).option("files", msgspec.json.encode(files.of_tasks()).decode())
        return files.commit(parse_report(run_write(writer)))

    def _files(self, batch: MicroBatch) -> BatchFiles:
        sink = self.sink
        return BatchFiles(sink.place, application_id(self.pipeline, sink, batch), batch.number, sink.partition_by, sink.compression)


class JdbcTarget:
    """A table of a database."""

    def __init__(self, sink: Sink, pipeline: Pipeline, session: Any) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}
        self.session = session
        self.table = JdbcTable(sink, session, owner_of(pipeline))

    def prepare(self, frame: Any) -> None:
        require_columns(self.pipeline, self.sink, frame)
        if not self.table.has_driver():
            problem = f'there is no class {self.sink.driver}; name its jar in [spark] jars = "...", or correct the name'
            raise self.pipeline.error(f"{self.sink.key}driver", problem)

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        if table.num_rows:
            self.write_frame(self.session.createDataFrame(table), batch)

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        try:
            return self.table.write(frame)
        except delta.RepeatedKeys as error:
            raise self.pipeline.error(f"{self.sink.key}keys", str(error)) from None


class ConsoleTarget:
    """Passes the first rows of each batch to `show`."""

    def __init__(self, sink: Sink, show: Callable[[Sink, MicroBatch, "pa.Table", int], None]) -> None:
        self.sink = sink
        self.show = show
        self.extras: dict[str, str] = {}

    def prepare(self, frame: Any) -> None:
        """Accepts every view."""

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        self.show(self.sink, batch, table.slice(0, self.sink.rows), table.num_rows)

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        # All rows are computed, not only the printed ones, so that joins and deduplication update their state in every partition.
        with persisted(frame, True) as kept:
            total = int(kept.count())
            self.show(self.sink, batch, kept.limit(self.sink.rows).toArrow(), total)
        return total


def write_batch(targets: Sequence[Target], frame: Any, batch: MicroBatch, *, gather: bool) -> int:
    """Writes a batch to every target of its view. Returns the number of rows. Targets that detect a retried batch come last."""
    ordered = sorted(targets, key=lambda target: PROMISES.index(target.sink.promise))
    if gather:
        names = frame.columns
        extras = {name: sql for target in ordered for name, sql in target.extras.items()}
        table = frame.selectExpr("*", *[f"{sql} AS `{name}`" for name, sql in extras.items()]).toArrow()
        for target in ordered:
            target.write_table(table.select([*names, *target.extras]), batch)
        return int(table.num_rows)
    return _spread(ordered, frame, batch)


def _spread(targets: Sequence[Target], frame: Any, batch: MicroBatch) -> int:
    with persisted(frame, len(targets) > 1) as frame:
        # A target that has the batch already returns 0.
        return max(target.write_frame(frame, batch) for target in targets)


@contextmanager
def persisted(frame: Any, enabled: bool) -> Iterator[Any]:
    """`frame`, persisted on disk for the block if `enabled`, so that it is computed once."""
    if not enabled:
        yield frame
        return
    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


def run_write(writer: Any) -> str:
    """Runs a write and returns its commit's report, from a file: Spark does not return the commit's result."""
    with tempfile.TemporaryDirectory(prefix="ottla-rows-") as directory:
        report = Path(directory) / "rows"
        writer.option("reportTo", str(report)).mode("append").save()
        return report.read_text(encoding="utf-8")
