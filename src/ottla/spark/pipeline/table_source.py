"""Reads Delta tables into Spark as Arrow, without Spark's Delta connector.

Spark plans the read of a table once per stream and runs it in every batch. So the reading task looks up the newest version, and only one
task reads, so that a batch sees one version. The package deltalake rejects tables with deletion vectors or column mapping.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from ottla.lake.storage import Location
from ottla.lake.table.delta import opened


class TableSource(DataSource):  # type: ignore[misc]
    """``spark.read.format("ottla_table").option("place", location)``: `Location` as JSON."""

    @classmethod
    def name(cls) -> str:
        return "ottla_table"

    def schema(self) -> "StructType":
        found = StructType.fromJson(json.loads(_opened(self._place).schema().to_json()))
        return StructType([StructField(field.name, field.dataType) for field in found.fields])

    def reader(self, schema: "StructType") -> "TableReader":
        return TableReader(self._place, schema)

    @property
    def _place(self) -> Location:
        return msgspec.json.decode(self.options["place"], type=Location)


@dataclass
class TableReader(DataSourceReader):  # type: ignore[misc]
    """A read of the newest version."""

    place: Location
    schema: "StructType"

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(0)]

    def read(self, partition: InputPartition) -> "Iterator[pa.RecordBatch]":
        schema = to_arrow_schema(self.schema, timezone="UTC")
        for batch in _opened(self.place).to_pyarrow_dataset().to_batches(columns=schema.names):
            yield batch.cast(schema)


def _opened(place: Location) -> Any:
    table = opened(place)
    if table is None:
        raise ValueError(f"there is no Delta table at {place}")
    return table
