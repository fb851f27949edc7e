"""Delta tables into Spark, without its Delta connector: a table as it is when a batch begins, read by tasks as Arrow.

The driver looks up the newest version each time Spark plans a batch, so a stream that joins a table sees what others have written to it;
all tasks of a batch read that one version. Files are shared out among tasks by size. A table with a feature that the package deltalake
cannot read (deletion vectors, column mapping) is refused by name.
"""

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: Bytes of files that one task reads, if there are so many.
TASK_BYTES = 64 * 1024 * 1024


class TableSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("ottla_table").option("path", directory)``."""

    @classmethod
    def name(cls) -> str:
        return "ottla_table"

    def schema(self) -> "StructType":
        from pyspark.sql.types import StructField, StructType

        found = StructType.fromJson(json.loads(_opened(self.options["path"]).schema().to_json()))
        return StructType([StructField(field.name, field.dataType) for field in found.fields])

    def reader(self, schema: "StructType") -> "TableReader":
        return TableReader(self.options["path"], schema)


class TablePart(InputPartition):  # type: ignore[misc]
    """One task: files of one version of the table."""

    def __init__(self, version: int, files: tuple[str, ...]) -> None:
        super().__init__((version, files))


class TableReader(DataSourceReader):  # type: ignore[misc]
    """A read of the newest version."""

    def __init__(self, path: str, schema: "StructType") -> None:
        self.path = path
        self.schema = schema

    def partitions(self) -> list[TablePart]:
        import pyarrow as pa

        table = _opened(self.path)
        actions = pa.table(table.get_add_actions())
        files = zip(actions.column("path").to_pylist(), actions.column("size_bytes").to_pylist(), strict=True)
        return [TablePart(table.version(), tuple(names)) for names in shared_out(list(files))]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        # Spark makes up a partition without a value when there is nothing to read.
        if partition.value is None:
            return
        from pyspark.sql.pandas.types import to_arrow_schema

        version, files = partition.value
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        dataset = _opened(self.path, version).to_pyarrow_dataset()
        for fragment in dataset.get_fragments():
            if fragment.path in files:
                for batch in fragment.to_batches(schema=dataset.schema, columns=wanted.names):
                    yield batch.cast(wanted)


def shared_out(files: Sequence[tuple[str, int]]) -> list[list[str]]:
    """Files, as (name, bytes), in runs of about `TASK_BYTES`."""
    tasks: list[list[str]] = []
    room = 0
    for name, size in files:
        if not tasks or size > room:
            tasks.append([])
            room = TASK_BYTES
        tasks[-1].append(name)
        room -= size
    return tasks


def _opened(path: str, version: int | None = None) -> Any:
    from deltalake import DeltaTable

    if not DeltaTable.is_deltatable(path):
        raise ValueError(f"there is no Delta table at {path}")
    return DeltaTable(path, version=version)
