"""Writes Delta tables without Spark's Delta connector: tasks write Parquet files, the driver commits them (ottla.lake.table.delta)."""

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from deltalake import Schema
from deltalake.transaction import AddAction
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructField, StructType

from ottla.lake.storage import Location
from ottla.lake.table.delta import commit_properties_of, holds, opened, retried
from ottla.spark.pipeline.part_files import PartFile, write_parts


def schema_of_frame(frame: Any) -> Any:
    """Delta's schema of a DataFrame, which has Spark's JSON format."""
    return Schema.from_json(StructType([StructField(field.name, field.dataType) for field in frame.schema.fields]).json())


@dataclass
class TaskResult(WriterCommitMessage):  # type: ignore[misc]
    """The Parquet files of a task, not committed yet."""

    files: list[PartFile]


class DeltaAppend(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_delta")``: tasks write Parquet files in parallel, the driver commits them in one transaction.

    Options: writer (`DeltaAppendWriter` as JSON), reportTo.
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_delta"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "DeltaAppendWriter":
        return replace(msgspec.json.decode(self.options["writer"], type=DeltaAppendWriter), report_to=self.options.get("reportTo"))


@dataclass
class DeltaAppendWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A failed task removes its files. Files of other tasks stay; they are not in the table, and vacuum removes them."""

    place: Location
    application: str
    batch_id: int
    #: A file for the number of rows.
    report_to: str | None
    partition_by: tuple[str, ...] = ()
    #: A hash of the rows, if a retry may produce others.
    content: int | None = None

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskResult:
        stem = f"part-{self.batch_id:05d}-{uuid.uuid4()}"
        return TaskResult(write_parts(iterator, self.place, stem, partition_by=self.partition_by, suffix=".zstd.parquet", plain=True))

    def commit(self, messages: list[TaskResult | None]) -> None:
        files = [file for message in messages if message is not None for file in message.files]
        now_ms = time.time_ns() // 1_000_000
        actions = [AddAction(file.name, file.size, file.values, now_ms, True, json.dumps({"numRecords": file.rows})) for file in files]

        def attempt() -> int:
            table = opened(self.place)
            if holds(table, self.application, self.batch_id, self.content):
                # The JVM of a killed driver may have committed the batch. Delta detects only conflicts after the table was opened.
                return 0
            table.create_write_transaction(
                actions,
                mode="append",
                schema=table.schema(),
                partition_by=list(self.partition_by) or None,
                commit_properties=commit_properties_of(self.application, self.batch_id, content=self.content),
            )
            return sum(file.rows for file in files)

        self._report(retried(attempt, f"another process has written to {self.place} as {self.application}, or changes it all the time"))

    def abort(self, messages: list[TaskResult | None]) -> None:
        """Removes nothing: Spark also aborts if the committing process was killed or still runs, so the files may be in the table."""

    def _report(self, rows: int) -> None:
        if self.report_to is not None:
            Path(self.report_to).write_text(str(rows), encoding="utf-8")


def cast_to_table(table: Any, frame: Any) -> Any:
    """`frame` with the types of the table's columns: files with narrower types would contradict the table's log."""
    types = {field.name: field.dataType for field in StructType.fromJson(json.loads(table.schema().to_json())).fields}
    columns = [
        frame[field.name].cast(types[field.name]).alias(field.name) if field.dataType != types[field.name] else frame[field.name]
        for field in frame.schema.fields
    ]
    return frame.select(*columns)
