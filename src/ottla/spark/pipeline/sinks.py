"""Where the batches of a view go.

A view that aggregates gives few rows: they are gathered on the driver as one Arrow table, which every sink of the view takes, with one
Spark job in all. A view that does not may give any number of rows: each sink is a Spark job whose tasks write side by side, and nothing is
gathered.

                 gathered (aggregates, merged rows)    spread (everything else)
    delta        one transaction of the table          files by tasks, one transaction
    parquet      one file                              files by tasks, renamed when all are done
    topic        batches sent by the driver            batches sent by tasks
    jdbc         Spark's JDBC writer                   Spark's JDBC writer, by tasks
    console      the first rows                        the first rows

A sink is told the query's id and the batch's number. Delta keeps both and Parquet has them in its files' names, so that a batch which is
run again is there once; a topic cannot, and may hold a batch twice after a crash: its results carry what readers need to see that (the keys
and the newest value). When one of several sinks fails, the query ends and the whole batch is run again at the next start: those that have
it already leave it out or replace it, the others write it again. So what cannot tell goes first, and commits as seldom as possible alone.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ottla.base.options import suggestion
from ottla.lake.table import delta
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.delta_sink import DeltaAppend, in_types_of, schema_of_frame
from ottla.spark.pipeline.jdbc_sink import JdbcTable
from ottla.spark.pipeline.literals import literal
from ottla.spark.pipeline.parquet_sink import BatchFiles, ParquetFiles, reported
from ottla.spark.pipeline.rejected_rows import LETTER_COLUMNS, content_of
from ottla.spark.pipeline.spark_refusals import refused_expression, spark_errors
from ottla.spark.sink.options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one query, the same after a restart."""

    query_id: str
    number: int
    #: A number made of its rows, where a restart may find others in the same records.
    content: int | None = None
    #: Spark keeps something of the rows, which it learns when they are computed: also when nobody wants them any more.
    stateful: bool = False


class Target(Protocol):
    """A sink at work."""

    sink: Sink

    @property
    def extras(self) -> Mapping[str, str]:
        """Columns it needs in a gathered table besides the view's, as SQL over these, by name."""

    def prepare(self, frame: Any) -> None:
        """Looks at the view before anything runs. Raises: PipelineError when the sink cannot take it."""

    def take(self, table: "pa.Table", batch: Batch) -> None:
        """Writes a gathered table: the view's columns and those of `extras`."""

    def spread(self, frame: Any, batch: Batch) -> int:
        """Writes a frame with the view's columns by tasks; the number of rows."""


class DeltaTarget:
    """A Delta table."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}
        assert sink.path is not None, "checked with the file"
        self.path = located(sink.path)
        #: Files and batches since the last compaction, as far as this process knows.
        self.small_files = 0
        self.batches = 0

    def prepare(self, frame: Any) -> None:
        refuse_unknown(self.pipeline, self.sink, frame)

    def take(self, table: "pa.Table", batch: Batch) -> None:
        sink = self.sink
        assert sink.mode is not None, "delta has a mode"
        try:
            delta.write(
                self.path,
                table,
                mode=sink.mode,
                keys=sink.keys,
                application=application_of(self.pipeline, sink, batch),
                batch_id=batch.number,
                evolving=sink.schema == "evolve",
                partition_by=sink.partition_by,
            )
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{sink.key}path", str(error)) from None
        except delta.RepeatedKeys as error:
            raise self.pipeline.error(f"{sink.key}keys", str(error)) from None
        self._compact(1)

    def spread(self, frame: Any, batch: Batch) -> int:
        sink, application = self.sink, application_of(self.pipeline, self.sink, batch)
        if delta.committed(self.path, application, batch.number, batch.content):
            if batch.stateful:
                frame.write.format("noop").mode("overwrite").save()
            return 0
        wanted = schema_of_frame(frame)
        try:
            if sink.schema == "evolve":
                delta.evolve(self.path, wanted, partition_by=sink.partition_by)
                frame = in_types_of(delta.opened(self.path), frame)
            else:
                delta.ensure(self.path, wanted, partition_by=sink.partition_by)
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{sink.key}path", str(error)) from None
        options = {
            "path": self.path,
            "application": application,
            "batch": str(batch.number),
            "partitionBy": json.dumps(self._partitioned_by()),
        }
        if batch.content is not None:
            options["content"] = str(batch.content)
        rows = int(saved(frame.write.format(DeltaAppend.name()).options(**options)))
        self._compact(frame.sparkSession.sparkContext.defaultParallelism)
        return rows

    def _partitioned_by(self) -> list[str]:
        """The table's own columns: files that were laid out by others would lose them. Raises: PipelineError when the sink says others."""
        there = list(delta.opened(self.path).metadata().partition_columns)
        if self.sink.partition_by and list(self.sink.partition_by) != there:
            problem = f"the table at {self.path} is partitioned by {', '.join(there) or 'nothing'}; write to another path"
            raise self.pipeline.error(f"{self.sink.key}partition_by", problem)
        return there

    def _compact(self, files: int) -> None:
        """Puts small files together when it is time: a transaction of its own, after that of the batch, so a crash between them only means
        that it is done later.
        """
        self.batches += 1
        self.small_files += files
        when = self.sink.compaction
        if when is None:
            return
        if (when.every_batches or self.batches + 1) <= self.batches or (when.files or self.small_files + 1) <= self.small_files:
            delta.compact(self.path)
            self.batches = self.small_files = 0


def refuse_unknown(pipeline: Pipeline, sink: Sink, frame: Any) -> None:
    """Raises: PipelineError when `keys` or `partition_by` name a column that the view does not have."""
    for key, names in (("keys", sink.keys), ("partition_by", sink.partition_by)):
        for name in names:
            if name not in frame.columns:
                had = ", ".join(frame.columns)
                raise pipeline.error(f"{sink.key}{key}", f"{sink.view} has no column {name}{suggestion(name, frame.columns)}; it has {had}")
    if sink.partition_by and len(set(sink.partition_by)) == len(frame.columns):
        raise pipeline.error(f"{sink.key}partition_by", "leaves no column for the files; take one out")


def located(path: str) -> str:
    """A path that means the same to Spark's processes, which may be somewhere else."""
    return path if "://" in path else str(Path(path).absolute())


def application_of(pipeline: Pipeline, sink: Sink, batch: Batch) -> str:
    """Whose batches these are, for a target that keeps their numbers: the same when sinks before it come or go in the file. Two sinks of
    one query may share a table.
    """
    alike = [other.key for other in pipeline.sinks if (other.type, other.path, other.view) == (sink.type, sink.path, sink.view)]
    number = alike.index(sink.key) if sink.key in alike else 0
    return f"ottla/{batch.query_id}/{sink.type}:{located(sink.path or '')}{f'#{number}' if number else ''}"


class TopicTarget:
    """A topic; the value is the row as JSON, or what the sink says."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        assert sink.topic is not None, "checked with the file"
        self.options = {"kafka.bootstrap.servers": pipeline.bootstrap, "topic": sink.topic, "compression": sink.compression}
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
        """Finds the types: of key, value and headers text and bytes go as they are, a struct, map or array as JSON, the rest as text."""
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
        """SQL for text or bytes that stand for what `sql` gives. Raises: PipelineError."""
        kind = self._type(frame, column, sql)
        if kind in ("string", "binary"):
            return sql
        nested = kind.startswith(("struct", "map", "array"))
        return f"to_json({sql}, map('ignoreNullFields', 'false'))" if nested else f"CAST({sql} AS STRING)"

    def _type(self, frame: Any, column: str, sql: str) -> str:
        try:
            return str(frame.selectExpr(sql).dtypes[0][1])
        except spark_errors() as error:
            told = refused_expression(self.pipeline, error, self.sink.view, frame.columns)
            raise self.pipeline.error(f"{self.sink.key}{column}", told) from None

    def take(self, table: "pa.Table", batch: Batch) -> None:
        import pyarrow as pa

        from ottla.spark.sink.writer import BatchWriter

        chosen = pa.table({column: table.column(extra) for column, extra in zip(self.columns, self.extras, strict=True)})
        BatchWriter(SinkOptions.of(self.options), tuple(self.columns)).write(iter(chosen.combine_chunks().to_batches()))

    def spread(self, frame: Any, batch: Batch) -> int:
        chosen = frame.selectExpr(*[f"{sql} AS `{column}`" for column, sql in self.columns.items()])
        return int(saved(chosen.write.format("ottla").options(**self.options)))


class ParquetTarget:
    """A directory of Parquet files."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}

    def prepare(self, frame: Any) -> None:
        refuse_unknown(self.pipeline, self.sink, frame)

    def take(self, table: "pa.Table", batch: Batch) -> None:
        files = self._files(batch)
        files.clear()
        files.commit([files.write(iter(table.combine_chunks().to_batches()))])

    def spread(self, frame: Any, batch: Batch) -> int:
        files = self._files(batch)
        files.clear()
        options = {
            "path": files.path,
            "application": files.application,
            "batch": str(batch.number),
            "partitionBy": json.dumps(files.partition_by),
            "compression": files.compression,
            "attempt": files.attempt,
        }
        return files.commit(reported(saved(frame.write.format(ParquetFiles.name()).options(**options))))

    def _files(self, batch: Batch) -> BatchFiles:
        sink = self.sink
        assert sink.path is not None, "checked with the file"
        return BatchFiles(located(sink.path), application_of(self.pipeline, sink, batch), batch.number, sink.partition_by, sink.compression)


class JdbcTarget:
    """A table of a database."""

    def __init__(self, sink: Sink, pipeline: Pipeline, session: Any) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}
        self.session = session
        self.table = JdbcTable(sink, session, str(Path(pipeline.checkpoint).absolute()))

    def prepare(self, frame: Any) -> None:
        refuse_unknown(self.pipeline, self.sink, frame)
        if not self.table.has_driver():
            said = f'there is no class {self.sink.driver}; name its jar in [spark] jars = "...", or correct the name'
            raise self.pipeline.error(f"{self.sink.key}driver", said)

    def take(self, table: "pa.Table", batch: Batch) -> None:
        if table.num_rows:
            self.spread(self.session.createDataFrame(table), batch)

    def spread(self, frame: Any, batch: Batch) -> int:
        try:
            return self.table.write(frame)
        except delta.RepeatedKeys as error:
            raise self.pipeline.error(f"{self.sink.key}keys", str(error)) from None


class ConsoleTarget:
    """The first rows of each batch, given to whoever prints them."""

    def __init__(self, sink: Sink, show: Callable[[Sink, Batch, "pa.Table", int], None]) -> None:
        self.sink = sink
        self.show = show
        self.extras: dict[str, str] = {}

    def prepare(self, frame: Any) -> None:
        """Anything can be shown."""

    def take(self, table: "pa.Table", batch: Batch) -> None:
        self.show(self.sink, batch, table.slice(0, self.sink.rows), table.num_rows)

    def spread(self, frame: Any, batch: Batch) -> int:
        # All rows are computed, not only those that are shown: a join or deduplication keeps what it has seen in every partition.
        with kept_between(frame, True) as kept:
            total = int(kept.count())
            self.show(self.sink, batch, kept.limit(self.sink.rows).toArrow(), total)
        return total


def write_batch(targets: Sequence[Target], frame: Any, batch: Batch, *, gather: bool) -> int:
    """Gives a batch to every target of its view; the number of rows. Targets that can tell a repetition come last, and so commit last."""
    ordered = sorted(targets, key=lambda target: isinstance(target, DeltaTarget | ParquetTarget))
    if gather:
        names = frame.columns
        extras = {name: sql for target in ordered for name, sql in target.extras.items()}
        table = frame.selectExpr("*", *[f"{sql} AS `{name}`" for name, sql in extras.items()]).toArrow()
        for target in ordered:
            target.take(table.select([*names, *target.extras]), batch)
        return int(table.num_rows)
    return _spread(ordered, frame, batch)


def _spread(targets: Sequence[Target], frame: Any, batch: Batch) -> int:
    with kept_between(frame, len(targets) > 1) as frame:
        # One that has the batch already counts no rows.
        return max(target.spread(frame, batch) for target in targets)


@contextmanager
def kept_between(frame: Any, wanted: bool) -> Iterator[Any]:
    """`frame`, computed once for all that is done with it in the block, where that is `wanted`."""
    if not wanted:
        yield frame
        return
    from pyspark.storagelevel import StorageLevel

    frame = frame.persist(StorageLevel.DISK_ONLY)
    try:
        yield frame
    finally:
        frame.unpersist()


class LettersTarget:
    """Where dead letters go."""

    def __init__(self, pipeline: Pipeline) -> None:
        letters = pipeline.dead_letters
        assert letters is not None, "checked with the file"
        #: Keys that point at `[dead_letters]`; the view is not one that errors speak of.
        key = "dead_letters."
        self.target: Target
        if letters.path is not None:
            self.target = DeltaTarget(Sink("delta", "dead_letters", "append", key, path=letters.path), pipeline)
        else:
            headers = {f"ottla.{name}": _header(name) for name in LETTER_COLUMNS if name not in ("key", "value")}
            value = "coalesce(`value`, CAST(`row` AS BINARY))"
            sink = Sink("topic", "dead_letters", "append", key, topic=letters.topic, key_sql="`key`", value_sql=value, headers_sql=headers)
            self.target = TopicTarget(sink, pipeline)

    def prepare(self, letters: Any) -> None:
        """Looks at the columns; makes the table before several queries do so at once.

        Raises: PipelineError when there is one with other columns.
        """
        if isinstance(self.target, DeltaTarget):
            try:
                delta.ensure(self.target.path, schema_of_frame(letters))
            except delta.TableMismatch as error:
                raise self.target.pipeline.error("dead_letters.path", str(error)) from None
        else:
            self.target.prepare(letters)

    def write(self, letters: Any, batch: Batch) -> int:
        """Writes the dead letters of a batch; their number, also when they are there already."""
        count, content = content_of(letters)
        if count:
            self.target.spread(letters, replace(batch, content=content))
        return count


def _header(column: str) -> str:
    """A column of dead letters as the text of a header; a time with its zone, whichever the session has."""
    text = f"CAST(`{column}` AS STRING)"
    if column not in ("timestamp", "at"):
        return text
    # A step may have called something else `_timestamp`.
    return f"coalesce(date_format(TRY_CAST(`{column}` AS TIMESTAMP), \"yyyy-MM-dd'T'HH:mm:ss.SSSXXX\"), {text})"


def saved(writer: Any) -> str:
    """Runs a write and gives what its commit reports, which it leaves in a file: Spark hands a write's messages to nobody else."""
    with tempfile.TemporaryDirectory(prefix="ottla-rows-") as directory:
        report = Path(directory) / "rows"
        writer.option("reportTo", str(report)).mode("append").save()
        return report.read_text(encoding="utf-8")
