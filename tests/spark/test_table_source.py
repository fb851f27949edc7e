"""Spark reads tables of `ottla table` from their files, and other Delta tables as pipeline sources, without a jar."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from deltalake.exceptions import DeltaProtocolError
from pyspark.sql.datasource import InputPartition

from ottla.lake.storage import location
from ottla.lake.table.delta import opened
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DELETED, DeltaTarget, TableOrigin
from ottla.spark.pipeline.table_source import TableReader, TableSource

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_spark_reads_a_table_from_its_files(spark: Any, tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path / "t")
    form = TableFormat(value="json", key="text", mode="upsert", columns=("key",), by_date=True)
    target.begin(TableOrigin("orders", ""), form, pa.schema([("n", pa.int64()), *form.metadata_schema()]))
    day = pa.array([0, 0], pa.date32())
    files = target.files()
    files.write(pa.table({"n": [1, 2], "_key": ["a", "b"], "record_date": day}))
    target.commit(files.finish(), {}, {0: 2})
    changed = pa.table(
        {"n": [20, 30], "_key": ["b", "c"], "_corrupt": pa.nulls(2, pa.binary()), "record_date": day, DELETED: [False, False]}
    )
    target.merge(changed.select([*target.schema().names, DELETED]), {0: 2}, {0: 4})

    frame = spark.read.option("basePath", target.path).parquet(*opened(target.path).file_uris())
    found = frame.where("record_date = DATE'1970-01-01'").select("_key", "n").collect()
    assert sorted(tuple(row) for row in found) == [("a", 1), ("b", 20), ("c", 30)]


def test_a_delta_table_with_an_unsupported_feature_is_refused_by_name(tmp_path: Path) -> None:
    write_deltalake(tmp_path, pa.table({"a": [1, 2, 3]}))
    features = ["deletionVectors"]
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features, "writerFeatures": features}
    actions = ({"protocol": protocol}, {"commitInfo": {"timestamp": 1}})
    (tmp_path / "_delta_log" / f"{1:020}.json").write_text("".join(json.dumps(action) + "\n" for action in actions))
    schema = TableSource({"place": msgspec.json.encode(location(tmp_path)).decode()}).schema()
    with pytest.raises(DeltaProtocolError, match="deletionVectors"):
        list(TableReader(location(tmp_path), schema).read(InputPartition(0)))
