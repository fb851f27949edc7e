"""Spark reads the tables that `ottla table` keeps, by their files; no jar."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.lake.delta import opened
from ottla.lake.form import Form
from ottla.lake.target import DELETED, DeltaTarget, Origin

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]


def test_spark_reads_a_table_by_its_files(spark: Any, tmp_path: Path) -> None:
    target = DeltaTarget(tmp_path / "t")
    form = Form(value="json", key="text", mode="upsert", columns=("key",), by_date=True)
    target.begin(Origin("orders", ""), form, pa.schema([("n", pa.int64()), *form.schema_beside()]))
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
