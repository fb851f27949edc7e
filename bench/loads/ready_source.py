"""A Spark data source that does nothing: it returns one prepared record batch repeatedly, with the columns of a topic.

Its rate is the upper limit for sources written in Python, on this machine at this time; a real source
is measured next to it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition

COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"
#: As large as one fetch of a topic.
BATCH_ROWS = 65_536


class ReadySource(DataSource):  # type: ignore[misc]
    """Options: `rows`, `tasks`, `valueSize`."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> str:
        return COLUMNS

    def reader(self, schema: Any) -> Ready:
        return Ready(dict(self.options))

    def streamReader(self, schema: Any) -> ReadyStream:
        return ReadyStream(dict(self.options))


class Ready(DataSourceReader):  # type: ignore[misc]
    def __init__(self, options: dict[str, str]) -> None:
        self.rows, self.tasks = int(options["rows"]), int(options["tasks"])
        self.value_size = int(options["valuesize"] if "valuesize" in options else options["valueSize"])

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(self.rows // self.tasks + (task < self.rows % self.tasks)) for task in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        left = partition.value
        whole = ready_batch(min(left, BATCH_ROWS), self.value_size)
        while left:
            yield whole.slice(0, left)
            left -= min(left, whole.num_rows)


class ReadyStream(DataSourceStreamReader):  # type: ignore[misc]
    """Everything in its first batch."""

    def __init__(self, options: dict[str, str]) -> None:
        self.inner = Ready(options)

    def initialOffset(self) -> dict[str, int]:
        return {"batches": 0}

    def latestOffset(self) -> dict[str, int]:
        return {"batches": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return self.inner.partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self.inner.read(partition)


def ready_batch(rows: int, value_size: int) -> pa.RecordBatch:
    columns = {
        "key": pa.nulls(rows, pa.binary()),
        "value": pa.array([b"x" * value_size] * rows, pa.binary()),
        "topic": pa.array(["bench-topic"] * rows, pa.string()),
        "partition": pa.array([0] * rows, pa.int32()),
        "offset": pa.array(range(rows), pa.int64()),
        "timestamp": pa.array([1_700_000_000_000_000] * rows, pa.timestamp("us", "UTC")),
        "timestampType": pa.array([0] * rows, pa.int32()),
    }
    return pa.RecordBatch.from_pydict(columns)
