"""DuckDB's extension iceberg reads Iceberg tables of topics and of queries, row by row as pyiceberg does.

It has to be had beside the installed DuckDB, whose version may have no extension on PyPI:

    pip install --target DIR duckdb==1.5.5 duckdb-extension-avro==1.5.5 duckdb-extension-iceberg==1.5.5
    OTTLA_TEST_ICEBERG_DUCKDB=DIR python -m pytest tests/lake/test_iceberg_duckdb.py
"""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")

import pyarrow as pa

from ottla.lake.table.iceberg_batches import IcebergBatches
from ottla.lake.table.iceberg_catalog import IcebergPlace, embedded, opened_table
from ottla.lake.table.iceberg_target import IcebergTarget
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DELETED, TableOrigin

pytestmark = pytest.mark.slow

ORIGIN = TableOrigin("orders", "id")
DIRECTORY = os.environ.get("OTTLA_TEST_ICEBERG_DUCKDB")
Rows = list[dict[str, Any]]
ByDuckDB = Callable[..., Rows]


@pytest.fixture
def place(tmp_path: Path) -> IcebergPlace:
    return embedded(tmp_path / "t")


@pytest.fixture
def by_duckdb(place: IcebergPlace, tmp_path: Path) -> ByDuckDB:
    """The rows that the extension finds under a condition, by the directory."""
    if DIRECTORY is None:
        pytest.skip("OTTLA_TEST_ICEBERG_DUCKDB names no directory with DuckDB and its extensions of PyPI (see the top of this file)")

    def read(condition: str = "true", columns: str = "*") -> Rows:
        file = tmp_path / "rows"
        program = Path(__file__).parent / "foreign" / "duckdb_rows.py"
        query = f"SELECT {columns} FROM iceberg_scan('{place.directory}') WHERE {condition}"
        environment = {**os.environ, "PYTHONPATH": DIRECTORY}
        done = subprocess.run([sys.executable, program, query, file], capture_output=True, text=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr[-4000:]
        with pa.ipc.open_file(file) as found:
            rows: Rows = found.read_all().to_pylist()
        return rows

    return read


def by_pyiceberg(place: IcebergPlace) -> Rows:
    with opened_table(place) as table:
        rows: Rows = table.scan().to_arrow().to_pylist()
    return rows


def in_order(rows: Rows) -> list[str]:
    def plain(value: Any) -> Any:
        # The two name UTC differently.
        return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo else value

    return sorted(repr(sorted((name, plain(value)) for name, value in row.items())) for row in rows)


def target_of(place: IcebergPlace, form: TableFormat, columns: pa.Schema) -> IcebergTarget:
    target = IcebergTarget(place, pause=lambda _: None)
    target.form(ORIGIN)
    target.begin(ORIGIN, form, pa.schema([*columns, *form.metadata_schema()]))
    return target


def put(target: IcebergTarget, before: int, rows: Rows) -> None:
    files = target.files()
    files.write(pa.Table.from_pylist(rows, pa.schema([(name, target.schema().field(name).type) for name in rows[0]])))
    target.commit(files.finish(), {0: before} if before else {}, {0: before + len(rows)})


def test_rows_that_were_merged_deleted_rewritten_and_compacted(place: IcebergPlace, by_duckdb: ByDuckDB) -> None:
    target = target_of(place, TableFormat(value="json", key="text", columns=("key",), mode="upsert"), pa.schema([("n", pa.int64())]))
    put(target, 0, [{"n": n, "_key": f"k{n}"} for n in range(100)])
    changed = {"n": [None, 1000, 2000], "_key": ["k1", "k2", "new"], "_corrupt": pa.nulls(3, pa.binary()), DELETED: [True, False, False]}
    target.merge(pa.table(changed), {0: 100}, {0: 103})
    assert in_order(by_duckdb()) == in_order(by_pyiceberg(place)) and len(by_duckdb()) == 100
    target.evolve(pa.schema([("n", pa.float64()), ("more", pa.string())]), rewrite=True)
    put(target, 103, [{"n": 0.5, "_key": "half", "more": "m"}])
    assert target.compact().removed > 1 and target.vacuum(0) > 0
    assert in_order(by_duckdb()) == in_order(by_pyiceberg(place)) and len(by_duckdb()) == 101
    found = by_duckdb("_key = 'k2' OR more = 'm'", "n, _key, more")
    assert sorted((row["_key"], row["n"], row["more"]) for row in found) == [("half", 0.5, "m"), ("k2", 1000.0, None)]


def test_days_nested_values_and_wider_types(place: IcebergPlace, by_duckdb: ByDuckDB) -> None:
    form = TableFormat(value="json", key="text", columns=("key", "headers"), by_date=True)
    point = pa.struct([("x", pa.int32()), ("label", pa.string())])
    target = target_of(place, form, pa.schema([("n", pa.int32()), ("tags", pa.list_(pa.string())), ("at", point)]))

    def row(n: int, day: int) -> dict[str, Any]:
        headers = [{"key": "h", "value": b"\x00v"}] if n % 2 else []
        return {"n": n, "tags": ["x", None, "\U0001f600"][: n % 4], "at": {"x": n, "label": None}, "_key": f"k{n}", "_headers": headers,
                "record_date": date(1970, 1, day)}  # fmt: skip

    put(target, 0, [row(n, 1) for n in range(4)])
    put(target, 4, [row(n, 2) for n in range(4, 8)])
    added = pa.struct([*point, ("more", pa.string())])
    assert target.evolve(pa.schema([("n", pa.int64()), ("at", added)]), rewrite=False)
    put(target, 8, [{**row(8, 2), "n": 2**40, "at": {"x": 8, "label": "l", "more": "m"}}])
    assert in_order(by_duckdb()) == in_order(by_pyiceberg(place)) and len(by_duckdb()) == 9
    assert sorted(found["n"] for found in by_duckdb("record_date = DATE '1970-01-02'")) == [4, 5, 6, 7, 2**40]


TYPES = pa.schema(
    [
        ("user", pa.string()),
        ("n", pa.int64()),
        ("price", pa.decimal128(12, 2)),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("is_new", pa.bool_()),
        ("data", pa.binary()),
        ("ratio", pa.float32()),
    ]
)


def person(letter: str, n: int) -> dict[str, Any]:
    return {
        "user": f"{letter}\U0001f600",
        "n": n,
        "price": Decimal("99.99") if n == 3 else Decimal(n).scaleb(-2),
        "at": datetime(1970, 1, 5, tzinfo=UTC) + timedelta(days=n),
        "local": datetime(2026, 5, 17, 1, 2, 3, n + 12),
        "day": date(2026, 5 + n % 3, 1),
        "is_new": None if n == 0 else n > 0,
        "data": bytes([n + 12]),
        "ratio": n / 8,
    }


@pytest.mark.parametrize(
    ("partition_by", "condition", "holds"),
    [
        (
            ("bucket(4, user)", "truncate(10, n)"),
            "\"user\" = 'a\U0001f600' AND n < -9",
            lambda row: row["user"] == "a\U0001f600" and row["n"] < -9,
        ),
        (
            ("day(at)", "truncate(1, user)"),
            "\"at\" < TIMESTAMPTZ '1970-01-01 00:00:00+00' AND \"user\" LIKE 'b%'",
            lambda row: row["at"] < datetime(1970, 1, 1, tzinfo=UTC) and row["user"].startswith("b"),
        ),
        (
            ("month(day)", "is_new"),
            "day >= DATE '2026-06-01' AND is_new",
            lambda row: row["day"] >= date(2026, 6, 1) and row["is_new"],
        ),
    ],
)
def test_partitions_of_a_query_and_types(
    partition_by: tuple[str, ...], condition: str, holds: Callable[[dict[str, Any]], bool], place: IcebergPlace, by_duckdb: ByDuckDB
) -> None:
    expected = [person(letter, n) for n in range(-12, 12) for letter in "ab"]
    first = [{**row, "price": Decimal("0.00")} if row["n"] == 3 else row for row in expected]
    table = IcebergBatches(place)
    changed = [row for row in expected if row["n"] == 3]
    for batch, (mode, given) in enumerate((("append", first[:30]), ("append", first[30:]), ("merge", changed))):
        data, keys = pa.Table.from_pylist(given, TYPES), ("user", "n") if mode == "merge" else ()
        assert table.write(data, mode=mode, keys=keys, application="q", batch=batch, partition_by=partition_by, evolving=False)
    table.close()
    assert in_order(by_duckdb()) == in_order(by_pyiceberg(place)) == in_order(expected)
    found = by_duckdb(condition)
    assert in_order(found) == in_order([row for row in expected if holds(row)]) and found
