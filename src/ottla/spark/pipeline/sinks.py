"""Where the batches of a view go.

A view that aggregates gives few rows: they are gathered on the driver as one Arrow table, which every sink of the view takes, with one
Spark job in all. A view that does not may give any number of rows: each sink is a Spark job whose tasks write side by side, and nothing is
gathered.

                 gathered (aggregates)                 spread (everything else)
    delta        one transaction of the table          files by tasks, one transaction
    topic        batches sent by the driver            batches sent by tasks
    console      the first rows                        the first rows

A sink is told the query's id and the batch's number. Delta keeps both, so that a batch which is run again is written once; a topic cannot,
and may hold a batch twice after a crash: its results carry what readers need to see that (the keys and the newest value).
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ottla.lake import delta
from ottla.spark.pipeline.delta import DeltaAppend, schema_of_frame
from ottla.spark.pipeline.model import Pipeline, Sink
from ottla.spark.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch of one query, the same after a restart."""

    query_id: str
    number: int


class Target(Protocol):
    """A sink at work. `extras` are columns it needs in a gathered table, as SQL over the view's columns, by name."""

    sink: Sink
    extras: dict[str, str]

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
        self.path = sink.path

    def take(self, table: "pa.Table", batch: Batch) -> None:
        assert self.sink.mode is not None, "delta has a mode"
        try:
            delta.write(
                self.path, table, mode=self.sink.mode, keys=self.sink.keys, application=self._application(batch), batch_id=batch.number
            )
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{self.sink.key}path", str(error)) from None

    def spread(self, frame: Any, batch: Batch) -> int:
        application = self._application(batch)
        if delta.committed(self.path, application, batch.number):
            return 0
        try:
            delta.ensure(self.path, schema_of_frame(frame))
        except delta.TableMismatch as error:
            raise self.pipeline.error(f"{self.sink.key}path", str(error)) from None
        options = {"path": self.path, "application": application, "batch": str(batch.number)}
        return _saved(frame.write.format(DeltaAppend.name()).options(**options))

    def _application(self, batch: Batch) -> str:
        # Two sinks of one query may share a table; each has its own row of batch numbers.
        return f"ottla/{batch.query_id}/{self.sink.key.rstrip('.')}"


class TopicTarget:
    """A topic; the value is the row as JSON."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        names = f"__{sink.key.strip('.').replace('[', '_').replace(']', '')}"
        self.value, self.key = f"{names}_value", f"{names}_key"
        assert sink.topic is not None, "checked with the file"
        self.options = {"kafka.bootstrap.servers": pipeline.bootstrap, "topic": sink.topic, "compression": sink.compression}
        self.extras = {self.value: "to_json(struct(*), map('ignoreNullFields', 'false'))"}
        if sink.key_sql is not None:
            self.extras[self.key] = f"CAST({sink.key_sql} AS STRING)"

    def take(self, table: "pa.Table", batch: Batch) -> None:
        from ottla.spark.sink import BatchWriter

        columns = {"value": table.column(self.value)}
        if self.key in self.extras:
            columns["key"] = table.column(self.key)
        import pyarrow as pa

        chosen = pa.table(columns)
        BatchWriter(SinkOptions.of(self.options), tuple(columns)).write(iter(chosen.combine_chunks().to_batches()))

    def spread(self, frame: Any, batch: Batch) -> int:
        columns = [f"{self.extras[self.value]} AS value"]
        if self.key in self.extras:
            columns.append(f"{self.extras[self.key]} AS key")
        return _saved(frame.selectExpr(*columns).write.format("ottla").options(**self.options))


class ConsoleTarget:
    """The first rows of each batch, given to whoever prints them."""

    def __init__(self, sink: Sink, show: Callable[[Sink, Batch, "pa.Table", int | None], None]) -> None:
        self.sink = sink
        self.show = show
        self.extras: dict[str, str] = {}

    def take(self, table: "pa.Table", batch: Batch) -> None:
        self.show(self.sink, batch, table.slice(0, self.sink.rows), table.num_rows)

    def spread(self, frame: Any, batch: Batch) -> int:
        table = frame.limit(self.sink.rows).toArrow()
        self.show(self.sink, batch, table, None)
        return int(table.num_rows)


def write_batch(targets: Sequence[Target], frame: Any, batch: Batch, *, gather: bool) -> int:
    """Gives a batch to every target of its view; the number of rows. Targets that can tell a repetition come last, and so commit last."""
    ordered = sorted(targets, key=lambda target: isinstance(target, DeltaTarget))
    if gather:
        names = frame.columns
        extras = {name: sql for target in ordered for name, sql in target.extras.items()}
        table = frame.selectExpr("*", *[f"{sql} AS `{name}`" for name, sql in extras.items()]).toArrow()
        for target in ordered:
            target.take(table.select([*names, *target.extras]), batch)
        return int(table.num_rows)
    return _spread(ordered, frame, batch)


def _spread(targets: Sequence[Target], frame: Any, batch: Batch) -> int:
    shared = len(targets) > 1
    if shared:
        frame = frame.persist()
    try:
        return [target.spread(frame, batch) for target in targets][-1]
    finally:
        if shared:
            frame.unpersist()


def _saved(writer: Any) -> int:
    """Runs a write and gives the number of rows, which the writer leaves in a file: Spark hands a write's messages to nobody else."""
    with tempfile.TemporaryDirectory(prefix="ottla-rows-") as directory:
        report = Path(directory) / "rows"
        writer.option("reportTo", str(report)).mode("append").save()
        return int(report.read_text())
