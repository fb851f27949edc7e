"""Transactions of a Delta table, without a Spark session."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from ottla.demo.verification import read_table
from ottla.lake.storage import location
from ottla.lake.table.delta import TableMismatch, committed, ensure, schema_of_arrow, write
from ottla.spark.pipeline.delta_sink import DeltaAppendWriter


def rows(path: Path) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in read_table(path).to_pylist()), key=str)


@pytest.mark.slow
def test_a_process_that_read_a_table_exits_cleanly(tmp_path: Path) -> None:
    assert put(tmp_path / "t", ["a", "b"], [1, 2], batch=0) and put(tmp_path / "t", ["c"], [3], batch=1)
    read = f"read_table(Path({str(tmp_path / 't')!r})).num_rows"
    program = f"from pathlib import Path; from ottla.demo.verification import read_table; print({read}, {read})"
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, "3 3\n"), done.stderr


def put(path: Path, keys: list[str | None], counts: list[int], *, batch: int, mode: str = "append", application: str = "q") -> bool:
    data = pa.table({"k": pa.array(keys, pa.string()), "n": pa.array(counts, pa.int64())})
    return write(str(path), data, mode=mode, keys=("k",), application=application, batch_id=batch)


def test_a_batch_is_appended_once(tmp_path: Path) -> None:
    assert put(tmp_path / "t", ["a"], [1], batch=0)
    assert not put(tmp_path / "t", ["a"], [1], batch=0)
    assert put(tmp_path / "t", ["a"], [1], batch=1)
    assert rows(tmp_path / "t") == [("a", 1), ("a", 1)]


def test_another_query_has_its_own_batch_numbers(tmp_path: Path) -> None:
    put(tmp_path / "t", ["a"], [1], batch=5)
    assert put(tmp_path / "t", ["b"], [1], batch=0, application="other")


def test_merge_replaces_rows_with_the_same_keys_also_null(tmp_path: Path) -> None:
    put(tmp_path / "t", ["a", "b"], [1, 1], batch=0, mode="merge")
    put(tmp_path / "t", ["b", None], [2, 7], batch=1, mode="merge")
    put(tmp_path / "t", [None], [8], batch=2, mode="merge")
    assert rows(tmp_path / "t") == [("a", 1), ("b", 2), (None, 8)]


def test_replace_leaves_only_the_last_batch(tmp_path: Path) -> None:
    put(tmp_path / "t", ["a"], [1], batch=0, mode="replace")
    put(tmp_path / "t", ["b"], [2], batch=1, mode="replace")
    assert rows(tmp_path / "t") == [("b", 2)]


def test_a_retried_batch_replaces_rows_again_and_an_older_one_does_not(tmp_path: Path) -> None:
    for mode in ("merge", "replace"):
        path = tmp_path / mode
        assert put(path, ["a"], [1], batch=1, mode=mode)
        assert put(path, ["a"], [2], batch=1, mode=mode)
        assert not put(path, ["a"], [3], batch=0, mode=mode)
        assert rows(path) == [("a", 2)]


def test_a_table_with_other_columns_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "t", ["a"], [1], batch=0)
    with pytest.raises(TableMismatch, match="write to another path"):
        write(str(tmp_path / "t"), pa.table({"k": [1]}), mode="append", keys=(), application="q", batch_id=1)


def test_files_of_tasks_become_one_transaction(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    data = pa.record_batch({"k": ["a", "b"], "n": pa.array([1, 2], pa.int64())})
    ensure(path, schema_of_arrow(data.schema))
    writer = DeltaAppendWriter(location(path), "q", 3, str(tmp_path / "rows"))
    messages = [writer.write(iter([data, data])), writer.write(iter([])), writer.write(iter([data]))]
    assert rows(tmp_path / "t") == []
    writer.commit([*messages, None])
    assert rows(tmp_path / "t") == [("a", 1)] * 3 + [("b", 2)] * 3
    assert committed(path, "q", 3)
    assert (tmp_path / "rows").read_text() == "6"


def tasks(path: Path, *values: int, batch: int, content: int | None = None) -> tuple[DeltaAppendWriter, list[Any]]:
    """A writer of a batch, and the results of its tasks."""
    writer = DeltaAppendWriter(location(path), "q", batch, None, content=content)
    return writer, [writer.write(iter([pa.record_batch({"n": pa.array([value], pa.int64())})])) for value in values]


def test_two_processes_that_write_the_same_batch_write_it_once(tmp_path: Path) -> None:
    ensure(str(tmp_path / "t"), schema_of_arrow(pa.schema([("n", pa.int64())])))
    one, written = tasks(tmp_path / "t", 1, 2, batch=7)
    other, again = tasks(tmp_path / "t", 1, 2, batch=7)
    one.commit(written)
    other.commit(again)
    assert rows(tmp_path / "t") == [(1,), (2,)]


def test_a_retried_batch_with_other_content_is_written_again(tmp_path: Path) -> None:
    ensure(str(tmp_path / "t"), schema_of_arrow(pa.schema([("n", pa.int64())])))
    for content, batch in ((10, 0), (10, 0), (2**63 - 1, 0), (2**63 - 1, 0), (10, 1)):
        writer, written = tasks(tmp_path / "t", content, batch=batch, content=content)
        writer.commit(written)
        assert committed(str(tmp_path / "t"), "q", batch, content)
    assert rows(tmp_path / "t") == [(10,), (10,), (2**63 - 1,)]
    assert not committed(str(tmp_path / "t"), "q", 1, 11) and committed(str(tmp_path / "t"), "q", 1)


def test_a_batch_aborted_after_its_commit_stays(tmp_path: Path) -> None:
    ensure(str(tmp_path / "t"), schema_of_arrow(pa.schema([("n", pa.int64())])))
    writer, written = tasks(tmp_path / "t", 1, 2, batch=0)
    writer.commit(written)
    writer.abort([*written, None])
    assert rows(tmp_path / "t") == [(1,), (2,)]
