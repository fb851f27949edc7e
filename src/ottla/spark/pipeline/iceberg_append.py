"""Writes Iceberg tables without Spark's Iceberg runtime: tasks write Parquet files, the driver commits them (`iceberg_batches`).

Spark unpickles these classes in several Python processes. Only those that commit or upload import pyiceberg, which takes seconds.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from ottla.lake.table.parquet_files import DataFile
from ottla.lake.table.partitioned_files import FilePlan

if TYPE_CHECKING:
    from ottla.lake.table.iceberg_batches import IcebergBatches


@dataclass
class TaskFiles(WriterCommitMessage):  # type: ignore[misc]
    """The files of a task, not committed yet."""

    files: list[DataFile]


class IcebergAppend(DataSource):  # type: ignore[misc]
    """``df.write.format("ottla_iceberg")``: tasks write files in parallel, the driver commits them in one snapshot.

    Options: writer (`IcebergAppendWriter` as JSON), reportTo.
    """

    @classmethod
    def name(cls) -> str:
        return "ottla_iceberg"

    def schema(self) -> str:
        return ""

    def writer(self, schema: Any, overwrite: bool) -> "IcebergAppendWriter":
        return replace(msgspec.json.decode(self.options["writer"], type=IcebergAppendWriter), report_to=self.options.get("reportTo"))


@dataclass
class IcebergAppendWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """A failed task removes its files. Files of other tasks stay; they are in no snapshot, and an expiry removes them."""

    catalog: str
    #: Secrets are references.
    properties: tuple[tuple[str, str], ...]
    identifier: tuple[str, ...]
    directory: str | None
    plan: FilePlan
    application: str
    batch_id: int
    #: A file for the number of rows.
    report_to: str | None = None
    #: A hash of the rows, if a retry may produce others.
    content: int | None = None

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> TaskFiles:
        table = None if self.plan.directory is not None else self._table()
        try:
            files = self.plan.files(None if table is None else table.uploads())
            try:
                for batch in iterator:
                    files.write(pa.Table.from_batches([batch]))
                return TaskFiles(files.finish())
            except BaseException:
                files.abandon()
                raise
        finally:
            if table is not None:
                table.close()

    def commit(self, messages: list[TaskFiles | None]) -> None:
        files = [file for message in messages if message is not None for file in message.files]
        table = self._table()
        try:
            # The JVM of a killed driver may have committed the batch.
            written = table.append(files, self.application, self.batch_id, self.content)
        finally:
            table.close()
        if self.report_to is not None:
            Path(self.report_to).write_text(str(sum(file.rows for file in files) if written else 0), encoding="utf-8")

    def abort(self, messages: list[TaskFiles | None]) -> None:
        """Removes nothing: Spark also aborts if the committing process was killed or still runs, so the files may be in the table."""

    def _table(self) -> "IcebergBatches":
        from ottla.lake.table.iceberg_batches import IcebergBatches
        from ottla.lake.table.iceberg_catalog import IcebergPlace

        directory = None if self.directory is None else Path(self.directory)
        return IcebergBatches(IcebergPlace(self.catalog, self.properties, self.identifier, directory))
