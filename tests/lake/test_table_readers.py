"""Readers of the tables: polars, DuckDB and pandas see the same rows (Spark: tests/spark/test_table_source.py)."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa

from ottla.lake.table.delta import opened
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DELETED, DeltaTarget, TableOrigin


@pytest.fixture
def a_table(tmp_path: Path) -> str:
    """Rows of two commits, the second merged. Files of the old version lie beside those of the new one."""
    target = DeltaTarget(tmp_path / "t")
    form = TableFormat(value="json", key="text", mode="upsert", columns=("key", "timestamp"), by_date=True)
    target.begin(TableOrigin("orders", "id"), form, pa.schema([("n", pa.int64()), *form.metadata_schema()]))
    day = pa.scalar(0, pa.timestamp("us", "UTC"))

    def rows(keys: list[str], numbers: list[int]) -> pa.Table:
        times = pa.repeat(day, len(keys))
        columns: dict[str, Any] = {"n": numbers, "_key": keys, "_timestamp": times, "record_date": times.cast(pa.date32())}
        return pa.table(columns)

    files = target.files()
    files.write(rows(["a", "b"], [1, 2]))
    target.commit(files.finish(), {}, {0: 2})
    changed = (
        rows(["b", "c"], [20, 30]).append_column("_corrupt", pa.nulls(2, pa.binary())).append_column(DELETED, pa.array([False, False]))
    )
    target.merge(changed.select([*target.schema().names, DELETED]), {0: 2}, {0: 4})
    return target.path


EXPECTED = [("a", 1), ("b", 20), ("c", 30)]


def test_polars_reads_a_table(a_table: str) -> None:
    polars = pytest.importorskip("polars")
    found = polars.scan_delta(a_table).filter(polars.col("record_date") == polars.date(1970, 1, 1)).collect()
    assert sorted(found.select("_key", "n").iter_rows()) == EXPECTED


def test_duckdb_reads_a_table_by_arrow_and_by_its_files(a_table: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    orders = opened(a_table).to_pyarrow_dataset()
    assert duckdb.sql("SELECT _key, n FROM orders ORDER BY 1").fetchall() == EXPECTED
    files = opened(a_table).file_uris()
    assert duckdb.read_parquet(files, hive_partitioning=True).select("_key, n").order("_key").fetchall() == EXPECTED
    assert orders.schema.field("record_date").type == pa.date32()


def test_pandas_reads_a_table(a_table: str) -> None:
    pytest.importorskip("pandas")
    found = opened(a_table).to_pandas(columns=["_key", "n"])
    assert sorted(found.itertuples(index=False, name=None)) == EXPECTED
