"""An Iceberg table whose rows of a time range are replaced (`backfill`)."""

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from ottla.lake.table.delta import Overtaken
from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import CatalogUnavailable
from ottla.lake.table.newest_rows import Changes, NewestRows
from ottla.lake.table.record_ranges import RecordRanges
from ottla.spark.pipeline.config.model import Pipeline, Sink
from ottla.spark.pipeline.iceberg_place import iceberg_place
from ottla.spark.pipeline.iceberg_sink import key_of, table_errors


class IcebergToFill:
    """An Iceberg table. Commits of others are kept: an attempt after one reads the files again."""

    def __init__(self, pipeline: Pipeline, sink: Sink) -> None:
        self.key = key_of(sink)
        self._pipeline, self._sink = pipeline, sink
        self._place = iceberg_place(sink)

    def __str__(self) -> str:
        return str(self._place)

    def columns(self) -> pa.Schema | None:
        with self._table() as table:
            return table.columns() if table.is_there() else None

    def count(self, records: RecordRanges) -> int:
        with self._table() as table:
            return table.count_records(records)

    def replace(self, rows: pa.Table, records: RecordRanges) -> None:
        with self._table() as table:
            table.replace_records(rows, records)

    def merge(self, newest: NewestRows) -> Changes:
        with self._table() as table:
            return table.merge_newest(newest)

    @contextmanager
    def _table(self) -> Iterator[IcebergBatches]:
        table = IcebergBatches(self._place)
        try:
            with table_errors(self._pipeline, self._sink):
                yield table
        except (Overtaken, CatalogUnavailable) as error:
            raise self._pipeline.error(f"{self._sink.key}{self.key}", f"nothing was written: {error}") from None
        finally:
            table.close()
