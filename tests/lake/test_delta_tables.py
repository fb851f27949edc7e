"""Delta tables on disk: schema changes, transactions, compaction of small files and vacuum."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
from click.testing import CliRunner

from ottla.cli.table.status import compact_command
from ottla.lake.table.delta import Overtaken, TableMismatch, append, commit_properties_of, compact, evolve, opened, transact, vacuum, write


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(pa.table(opened(str(path)).scan().read_all()).to_pylist(), key=str)


def put(path: Path, data: dict[str, Any], *, batch: int, **others: Any) -> bool:
    options: dict[str, Any] = {"mode": "append", "keys": (), "application": "q", **others}
    return write(str(path), pa.table(data), batch_id=batch, **options)


def test_new_columns_are_added_and_null_in_older_rows(tmp_path: Path) -> None:
    put(tmp_path, {"a": [1]}, batch=0)
    assert put(tmp_path, {"a": [2], "b": ["x"]}, batch=1, evolving=True)
    assert rows(tmp_path) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_rows_can_lack_columns_of_the_table(tmp_path: Path) -> None:
    put(tmp_path, {"a": [1], "b": ["x"]}, batch=0)
    put(tmp_path, {"a": pa.array([2], pa.int16())}, batch=1, evolving=True)
    assert rows(tmp_path) == [{"a": 1, "b": "x"}, {"a": 2, "b": None}]


def test_a_complete_result_can_lack_columns_of_the_table(tmp_path: Path) -> None:
    put(tmp_path, {"p": ["x"], "a": [1], "s": [{"x": 1, "y": "q"}]}, batch=0, mode="replace", partition_by=["p"])
    narrow = {"s": [{"x": 2}], "p": ["y"], "b": [True]}
    assert put(tmp_path, narrow, batch=1, mode="replace", evolving=True)
    put(tmp_path, {"a": pa.array([3], pa.int16()), "p": ["z"]}, batch=2, mode="replace", evolving=True)
    assert rows(tmp_path) == [{"p": "z", "a": 3, "s": None, "b": None}]
    put(tmp_path, narrow, batch=3, mode="replace", evolving=True)
    assert rows(tmp_path) == [{"p": "y", "a": None, "s": {"x": 2, "y": None}, "b": True}]
    with pytest.raises(TableMismatch):
        put(tmp_path, {"a": [1], "p": ["x"]}, batch=4, mode="replace")


def test_merged_rows_add_columns_and_keep_missing_ones(tmp_path: Path) -> None:
    merged: dict[str, Any] = {"mode": "merge", "keys": ("k",), "evolving": True}
    put(tmp_path, {"k": ["a", "b"], "n": [1, 2]}, batch=0, **merged)
    put(tmp_path, {"more": [0.5, 1.5], "k": ["a", "c"]}, batch=1, **merged)
    put(tmp_path, {"k": ["b"], "n": pa.array([7], pa.int16())}, batch=2, **merged)
    assert rows(tmp_path) == [
        {"k": "a", "n": 1, "more": 0.5},
        {"k": "b", "n": 7, "more": None},
        {"k": "c", "n": None, "more": 1.5},
    ]


def test_struct_fields_are_added(tmp_path: Path) -> None:
    put(tmp_path, {"s": [{"x": 1}]}, batch=0)
    put(tmp_path, {"s": [{"y": "q"}]}, batch=1, evolving=True)
    assert rows(tmp_path) == [{"s": {"x": 1, "y": None}}, {"s": {"x": None, "y": "q"}}]


def test_a_type_is_widened_by_rewriting_the_table_if_allowed(tmp_path: Path) -> None:
    put(tmp_path, {"p": ["a", "b"], "n": [1, 2]}, batch=0, partition_by=["p"])
    wider = pa.schema([("n", pa.float64()), ("p", pa.string())])
    with pytest.raises(TableMismatch, match="n long, not double: cast the column"):
        evolve(str(tmp_path), wider)
    assert [str(one) for one in evolve(str(tmp_path), wider, rewrite=True)] == ["n long, not double"]
    put(tmp_path, {"p": ["a"], "n": [0.5]}, batch=1)
    assert [row["n"] for row in rows(tmp_path)] == [0.5, 1.0, 2.0]
    table = opened(str(tmp_path))
    assert table.metadata().partition_columns == ["p"] and table.transaction_version("q") == 1


def test_a_number_that_does_not_fit_the_wider_type_stops_the_change(tmp_path: Path) -> None:
    put(tmp_path, {"n": [2**60 + 1]}, batch=0)
    with pytest.raises(TableMismatch, match="do not fit n long, not double"):
        evolve(str(tmp_path), pa.schema([("n", pa.float64())]), rewrite=True)
    assert rows(tmp_path) == [{"n": 2**60 + 1}]


def test_an_incompatible_type_is_refused_with_advice(tmp_path: Path) -> None:
    put(tmp_path, {"n": [1]}, batch=0)
    with pytest.raises(TableMismatch, match="has n long, not string: cast the column to the type that the table has, give it another name"):
        put(tmp_path, {"n": ["x"]}, batch=1, evolving=True)


def test_a_transaction_older_than_the_applications_last_writes_nothing(tmp_path: Path) -> None:
    put(tmp_path, {"a": [1]}, batch=0)

    def once(table: Any) -> None:
        put(tmp_path, {"a": [2]}, batch=1)
        append(table, pa.table({"a": [3]}), commit_properties_of("q", 1))

    with pytest.raises(Overtaken, match="another process has written"):
        transact(str(tmp_path), "q", 1, once)
    assert rows(tmp_path) == [{"a": 1}, {"a": 2}]


def test_a_transaction_concurrent_with_another_application_commits(tmp_path: Path) -> None:
    put(tmp_path, {"a": [1]}, batch=0)

    def once(table: Any) -> None:
        put(tmp_path, {"a": [2]}, batch=7, application="other")
        append(table, pa.table({"a": [3]}), commit_properties_of("q", 1))

    assert transact(str(tmp_path), "q", 1, once)
    assert [row["a"] for row in rows(tmp_path)] == [1, 2, 3]


def test_small_files_are_compacted_and_the_old_ones_removed(tmp_path: Path) -> None:
    for batch in range(5):
        put(tmp_path, {"a": [batch]}, batch=batch)
    assert compact(str(tmp_path)) == (5, 1)
    assert vacuum(str(tmp_path)) == [], "a week has not passed"
    assert len(vacuum(str(tmp_path), retention_hours=0)) == 5
    assert len(list(tmp_path.glob("*.parquet"))) == 1 and [row["a"] for row in rows(tmp_path)] == [0, 1, 2, 3, 4]
    assert not put(tmp_path, {"a": [4]}, batch=4), "the list of batches is kept"


def test_the_command_compacts_small_files_and_removes_unreferenced_ones(tmp_path: Path) -> None:
    for batch in range(4):
        put(tmp_path, {"a": [batch]}, batch=batch)
    done = CliRunner().invoke(compact_command, [str(tmp_path)])
    assert (done.exit_code, done.output) == (0, "4 files were merged into 1\n")
    assert len(list(tmp_path.glob("*.parquet"))) == 5, "readers of older versions still have their files"
    done = CliRunner().invoke(compact_command, [str(tmp_path), "--vacuum-hours", "0"])
    assert (done.exit_code, done.output) == (0, "0 files were merged into 0\n4 old files removed\n")
    assert len(list(tmp_path.glob("*.parquet"))) == 1 and [row["a"] for row in rows(tmp_path)] == [0, 1, 2, 3]
    (tmp_path / "none").mkdir()
    done = CliRunner().invoke(compact_command, [str(tmp_path / "none")])
    assert done.exit_code == 1 and f"{tmp_path / 'none'} is not a Delta table" in done.output


def test_rows_are_merged_by_several_keys_with_nulls(tmp_path: Path) -> None:
    first, second = (
        {"hour": [1, 1, None], "kind": ["a", None, "a"], "n": [1, 2, 3]},
        {"hour": [1, None], "kind": [None, "a"], "n": [20, 30]},
    )
    put(tmp_path, first, batch=0, mode="merge", keys=("hour", "kind"))
    put(tmp_path, second, batch=1, mode="merge", keys=("hour", "kind"))
    assert [(row["hour"], row["kind"], row["n"]) for row in rows(tmp_path)] == [(1, "a", 1), (1, None, 20), (None, "a", 30)]
