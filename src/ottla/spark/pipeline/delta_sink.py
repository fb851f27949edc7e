"""Delta tables out of Spark, without its Delta connector: tasks write Parquet files, the driver commits them (ottla.lake.table.delta)."""

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.lake.table.delta import commit_properties_of, holds, opened
from ottla.spark.pipeline.part_files import PartFile, write_parts

if TYPE_CHECKING:
    import pyarrow as pa


def schema_of_frame(frame: Any) -> Any:
    """Delta's schema of a DataFrame: Delta writes schemas as Spark does."""
    from deltalake import Schema
    from pyspark.sql.types import StructField, StructType

    return Schema.from_json(StructType([StructField(field.name, field.dataType) for field in frame.schema.fields]).json())


class Files(WriterCommitMessage):  # type: ignore[misc]
    """Parquet files that a task wrote and nobody knows yet."""

    def __init__(self, files: list[PartFile]) -> None:
        self.files = files


class DeltaAppend(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_delta")``: tasks write Parquet files side by side, the driver commits them all or none.

    For results too large to gather on the driver. Options: path, application, batch, content (a number made of the rows, where another run
    of the batch may have others), partitionBy (names as a JSON list), reportTo (a file for the number of rows).
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_delta"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "DeltaAppendWriter":
        given = self.options
        return DeltaAppendWriter(
            given["path"],
            given["application"],
            int(given["batch"]),
            given.get("reportTo"),
            partition_by=tuple(json.loads(given.get("partitionBy", "[]"))),
            content=int(given["content"]) if "content" in given else None,
        )


class DeltaAppendWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A task that fails removes its files. Those of others stay when the write fails: the table does not know them, vacuum removes them."""

    def __init__(
        self,
        path: str,
        application: str,
        batch_id: int,
        report_to: str | None,
        *,
        partition_by: tuple[str, ...] = (),
        content: int | None = None,
    ) -> None:
        self.path = path
        self.application = application
        self.batch_id = batch_id
        self.report_to = report_to
        self.partition_by = partition_by
        self.content = content

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Files:
        stem = f"part-{self.batch_id:05d}-{uuid.uuid4()}"
        return Files(write_parts(iterator, Path(self.path), stem, partition_by=self.partition_by, suffix=".zstd.parquet", plain=True))

    def commit(self, messages: list[Files | None]) -> None:
        from deltalake.transaction import AddAction

        files = [file for message in messages if message is not None for file in message.files]
        now_ms = time.time_ns() // 1_000_000
        actions = [AddAction(file.name, file.size, file.values, now_ms, True, json.dumps({"numRecords": file.rows})) for file in files]
        table = opened(self.path)
        if holds(table, self.application, self.batch_id, self.content):
            # A driver that was killed may have left a JVM that was still at it; Delta refuses only what comes after the look at the table.
            self._report(0)
            return
        table.create_write_transaction(
            actions,
            mode="append",
            schema=table.schema(),
            partition_by=list(self.partition_by) or None,
            commit_properties=commit_properties_of(self.application, self.batch_id, content=self.content),
        )
        self._report(sum(file.rows for file in files))

    def abort(self, messages: list[Files | None]) -> None:
        """Removes nothing. Spark also aborts when the process that commits was killed, or may still be at it, and then the files are the
        table's, or will be.
        """

    def _report(self, rows: int) -> None:
        if self.report_to is not None:
            Path(self.report_to).write_text(str(rows), encoding="utf-8")


def in_types_of(table: Any, frame: Any) -> Any:
    """`frame` with the types that the table has for its columns: a file with narrower ones would not be what the table's log says."""
    from pyspark.sql.types import StructType

    there = {field.name: field.dataType for field in StructType.fromJson(json.loads(table.schema().to_json())).fields}
    columns = [
        frame[field.name].cast(there[field.name]).alias(field.name) if field.dataType != there[field.name] else frame[field.name]
        for field in frame.schema.fields
    ]
    return frame.select(*columns)
