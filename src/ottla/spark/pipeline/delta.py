"""Delta tables out of Spark, without its Delta connector: tasks write Parquet files, the driver commits them (ottla.lake.delta)."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.lake.delta import commit_properties_of, opened

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_GROUP = 128 * 1024


def schema_of_frame(frame: Any) -> Any:
    """Delta's schema of a DataFrame: Delta writes schemas as Spark does."""
    from deltalake import Schema
    from pyspark.sql.types import StructField, StructType

    return Schema.from_json(StructType([StructField(field.name, field.dataType) for field in frame.schema.fields]).json())


class Files(WriterCommitMessage):  # type: ignore[misc]
    """Parquet files that a task wrote and nobody knows yet: (name, bytes, rows)."""

    def __init__(self, files: list[tuple[str, int, int]]) -> None:
        self.files = files


class DeltaAppend(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_delta")``: tasks write Parquet files side by side, the driver commits them all or none.

    For results too large to gather on the driver. Options: path, application, batch, reportTo (a file for the number of rows).
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_delta"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "DeltaAppendWriter":
        options = self.options
        return DeltaAppendWriter(options["path"], options["application"], int(options["batch"]), options.get("reportTo"))


class DeltaAppendWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Files that were written by a task that failed stay unknown to the table; Delta's vacuum removes them."""

    def __init__(self, path: str, application: str, batch_id: int, report_to: str | None) -> None:
        self.path = path
        self.application = application
        self.batch_id = batch_id
        self.report_to = report_to

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Files:
        import pyarrow as pa
        import pyarrow.parquet as pq

        first = next(iterator, None)
        if first is None:
            return Files([])
        name = f"part-{self.batch_id:05d}-{uuid.uuid4()}.zstd.parquet"
        target = Path(self.path) / name
        rows, waiting = 0, [first]
        with pq.ParquetWriter(target, first.schema, compression="zstd") as writer:
            for batch in iterator:
                waiting.append(batch)
                if sum(part.num_rows for part in waiting) >= ROWS_PER_GROUP:
                    rows += _write_group(writer, waiting)
                    waiting = []
            if waiting:
                rows += _write_group(writer, waiting)
        assert isinstance(first.schema, pa.Schema), "Spark sends Arrow"
        _sync(target)
        return Files([(name, target.stat().st_size, rows)])

    def commit(self, messages: list[Files | None]) -> None:
        from deltalake.transaction import AddAction

        files = [entry for message in messages if message is not None for entry in message.files]
        now_ms = time.time_ns() // 1_000_000
        actions = [AddAction(name, size, {}, now_ms, True, json.dumps({"numRecords": rows})) for name, size, rows in files]
        table = opened(self.path)
        table.create_write_transaction(
            actions, mode="append", schema=table.schema(), commit_properties=commit_properties_of(self.application, self.batch_id)
        )

        if self.report_to is not None:
            Path(self.report_to).write_text(str(sum(rows for _, _, rows in files)), encoding="utf-8")

    def abort(self, messages: list[Files | None]) -> None:
        for message in messages:
            for name, _, _ in message.files if message is not None else ():
                (Path(self.path) / name).unlink(missing_ok=True)


def _write_group(writer: Any, batches: "list[pa.RecordBatch]") -> int:
    import pyarrow as pa

    table = pa.Table.from_batches(batches)
    writer.write_table(table, row_group_size=ROWS_PER_GROUP)
    return int(table.num_rows)


def _sync(path: Path) -> None:
    """A file the table's log speaks of must be on disk before the log does."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
