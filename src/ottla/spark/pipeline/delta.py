"""Delta tables, written without Spark's Delta connector: Arrow and the package deltalake, one transaction per batch of a query.

Each transaction carries (query, batch id) as an application transaction of the Delta protocol, so a batch that is run again after a crash
is recognised and left out: `append` writes each row once. `merge` and `replace` would come to the same result twice; they are left out too.

    append   rows are added                        merge   rows with the same keys are replaced, others added
    replace  the table becomes this batch          (the last two are for results that change: aggregates)
"""

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_GROUP = 128 * 1024


class TableMismatch(ValueError):
    """The table is there, with other columns."""


def committed(path: str, application: str, batch_id: int) -> bool:
    """Whether the table at `path` holds this batch already."""
    table = opened(path)
    version = None if table is None else table.transaction_version(application)
    return version is not None and version >= batch_id


def opened(path: str) -> Any:
    """The table, or None where there is none."""
    from deltalake import DeltaTable

    return DeltaTable(path) if DeltaTable.is_deltatable(path) else None


def ensure(path: str, schema: Any) -> None:
    """Creates the table where there is none. Raises: TableMismatch when one is there with other columns."""
    from deltalake import DeltaTable

    table = opened(path)
    if table is None:
        DeltaTable.create(path, schema=schema, mode="ignore")
        return
    there, wanted = ({field.name: str(field.type) for field in one.fields} for one in (table.schema(), schema))
    if there != wanted:
        raise TableMismatch(f"the table at {path} has the columns {there} and the results have {wanted}; write to another path")


def schema_of_arrow(schema: "pa.Schema") -> Any:
    """Delta's schema of an Arrow table. Every column may be null: what a query never leaves empty today, it may tomorrow."""
    from deltalake import Schema

    return Schema.from_arrow(_nullable(schema))


def schema_of_frame(frame: Any) -> Any:
    """Delta's schema of a DataFrame: Delta writes schemas as Spark does."""
    from deltalake import Schema
    from pyspark.sql.types import StructField, StructType

    return Schema.from_json(StructType([StructField(field.name, field.dataType) for field in frame.schema.fields]).json())


def _nullable(schema: "pa.Schema") -> "pa.Schema":
    import pyarrow as pa

    return pa.schema([field.with_nullable(True) for field in schema])


def write(path: str, table: "pa.Table", *, mode: str, keys: tuple[str, ...], application: str, batch_id: int) -> bool:
    """One transaction with the rows of `table`; False when the batch is there already. Raises: TableMismatch."""
    from deltalake import write_deltalake

    if committed(path, application, batch_id):
        return False
    table = table.cast(_nullable(table.schema))
    ensure(path, schema_of_arrow(table.schema))
    properties = _properties(application, batch_id)
    if mode != "merge":
        write_deltalake(path, table, mode="overwrite" if mode == "replace" else "append", commit_properties=properties)
        return True
    same = " AND ".join(f"(t.`{key}` = s.`{key}` OR (t.`{key}` IS NULL AND s.`{key}` IS NULL))" for key in keys)
    merging = opened(path).merge(table, predicate=same, source_alias="s", target_alias="t", commit_properties=properties)
    merging.when_matched_update_all().when_not_matched_insert_all().execute()
    return True


def _properties(application: str, batch_id: int) -> Any:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(app_transactions=[Transaction(app_id=application, version=batch_id)])


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
            actions, mode="append", schema=table.schema(), commit_properties=_properties(self.application, self.batch_id)
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
