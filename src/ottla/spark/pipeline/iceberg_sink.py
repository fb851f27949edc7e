"""An Iceberg table as a sink of a pipeline."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema

from ottla.lake.table.delta import RepeatedKeys, TableMismatch
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import CatalogError, CatalogOptionError, CatalogUnavailable
from ottla.lake.table.target import TableConflict
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.iceberg_append import IcebergAppend, IcebergAppendWriter
from ottla.spark.pipeline.iceberg_place import iceberg_place
from ottla.spark.pipeline.sinks import Compactions, MicroBatch, application_id, require_columns, run_write


class IcebergSink:
    """An Iceberg table as the target of a view."""

    def __init__(self, sink: Sink, pipeline: Pipeline) -> None:
        self.sink = sink
        self.pipeline = pipeline
        self.extras: dict[str, str] = {}
        self.place = iceberg_place(sink)
        self.table = IcebergBatches(self.place)
        self.compactions = Compactions(sink)

    def prepare(self, frame: Any, *, create: bool = False) -> None:
        """`create`: create the table, or compare its columns, before the first batch."""
        require_columns(self.pipeline, self.sink, frame)
        with table_errors(self.pipeline, self.sink):
            try:
                # The catalog answers, and knows the table or not.
                self.table.has("", 0)
                if create:
                    self.table.ensure(to_arrow_schema(frame.schema, timezone="UTC"))
            except CatalogUnavailable as error:
                raise CatalogError(str(error)) from None

    def write_table(self, table: "pa.Table", batch: MicroBatch) -> None:
        sink = self.sink
        assert sink.mode is not None, "iceberg has a mode"
        with table_errors(self.pipeline, self.sink):
            self.table.write(
                table,
                mode=sink.mode,
                keys=sink.keys,
                application=application_id(self.pipeline, sink, batch),
                batch=batch.number,
                partition_by=sink.partition_by,
                evolving=sink.schema == "evolve",
            )
            self._maintain(1)

    def write_frame(self, frame: Any, batch: MicroBatch) -> int:
        application = application_id(self.pipeline, self.sink, batch)
        with table_errors(self.pipeline, self.sink):
            if self.table.has(application, batch.number, batch.content):
                if batch.stateful:
                    frame.write.format("noop").mode("overwrite").save()
                return 0
            writer = self.append_writer(to_arrow_schema(frame.schema, timezone="UTC"), batch)
        rows = int(run_write(frame.write.format(IcebergAppend.name()).option("writer", msgspec.json.encode(writer).decode())))
        with table_errors(self.pipeline, self.sink):
            self._maintain(frame.sparkSession.sparkContext.defaultParallelism)
        return rows

    def append_writer(self, schema: pa.Schema, batch: MicroBatch) -> IcebergAppendWriter:
        """What tasks write files by, and the driver commits, into the table, which is there afterwards."""
        sink, place = self.sink, self.place
        self.table.ensure(schema, partition_by=sink.partition_by, evolving=sink.schema == "evolve")
        directory = None if place.directory is None else str(place.directory)
        application = application_id(self.pipeline, sink, batch)
        return IcebergAppendWriter(
            place.catalog,
            place.properties,
            place.identifier,
            directory,
            self.table.plan(),
            application,
            batch.number,
            content=batch.content,
        )

    def _maintain(self, files: int) -> None:
        """Compacts small files when due, in a commit after the batch's, and then removes old snapshots."""
        if self.compactions.due(files):
            self.table.compact()
            if self.sink.expire_hours is not None:
                self.table.vacuum(self.sink.expire_hours)


@contextmanager
def table_errors(pipeline: Pipeline, sink: Sink) -> Iterator[None]:
    """Names the key of the file in errors. Raises: PipelineError; CatalogUnavailable, after which the query starts again."""
    try:
        yield
    except CatalogUnavailable:
        raise
    except (TableMismatch, TableConflict, CatalogError, CatalogOptionError) as error:
        raise pipeline.error(f"{sink.key}{key_of(sink)}", str(error)) from None
    except RepeatedKeys as error:
        raise pipeline.error(f"{sink.key}keys", str(error)) from None


def key_of(sink: Sink) -> str:
    """The key that says where the table is."""
    return "path" if sink.catalog is None else "catalog"
