"""Task files of a batch, and a batch of a Parquet directory, without a Spark session."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ottla.lake.storage import location
from ottla.lake.table.delta import Overtaken
from ottla.spark.pipeline import part_files
from ottla.spark.pipeline.parquet_sink import BatchFiles, ParquetFiles, ParquetWriter, parse_report
from ottla.spark.pipeline.part_files import by_partition, directory_of, value_text, write_parts

ROWS = pa.record_batch({"day": ["a/ä", None, "a/ä"], "n": [1, 2, 3]})


def test_rows_go_to_the_files_of_their_partitions(tmp_path: Path) -> None:
    files = write_parts(iter([ROWS, ROWS]), location(tmp_path), "part", partition_by=("day",))
    assert sorted((file.values["day"] or "", file.rows) for file in files) == [("", 2), ("a/ä", 4)]
    assert {file.name.partition("/")[0] for file in files} == {"day=a%2F%C3%A4", "day=__HIVE_DEFAULT_PARTITION__"}
    found = pq.read_table(tmp_path).to_pylist()
    assert sorted(row["n"] for row in found) == [1, 1, 2, 2, 3, 3]
    assert {row["n"]: row["day"] for row in found} == {1: "a/ä", 2: None, 3: "a/ä"}


def test_a_task_keeps_few_files_open_and_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_files, "OPEN_MAX", 2)
    batches = [pa.record_batch({"k": [0, 1, 2], "n": [10 * turn, 10 * turn + 1, 10 * turn + 2]}) for turn in range(4)]
    files = write_parts(iter(batches), location(tmp_path), "part", partition_by=("k",))
    assert sum(file.rows for file in files) == 12
    assert len({file.name for file in files}) == len(files)
    assert len(pq.read_table(tmp_path)) == 12


def test_a_full_disk_is_reported_with_the_file_and_leaves_no_files(tmp_path: Path) -> None:
    batches = [pa.record_batch({"k": [number], "n": [number]}) for number in range(3)]
    (tmp_path / "k=1").mkdir()
    (tmp_path / "k=1" / "part-0001.parquet").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left on device: '.*/k=1/part-0001.parquet'"):
        write_parts(iter(batches), location(tmp_path), "part", partition_by=("k",))
    assert [path for path in tmp_path.rglob("*") if path.is_file() or path.is_symlink()] == []


def test_a_task_whose_rows_end_with_an_error_leaves_no_file(tmp_path: Path) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        yield ROWS
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_parts(rows(), location(tmp_path), "part", partition_by=("day",))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_batch_without_rows_has_no_file(tmp_path: Path) -> None:
    assert write_parts(iter([]), location(tmp_path), "part") == []
    assert [values for values, _ in by_partition(ROWS, ())] == [{}]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        (True, "true"),
        (7, "7"),
        (datetime(2026, 5, 17, 10, tzinfo=UTC), "2026-05-17 10:00:00.000000"),
        (datetime(2026, 5, 17).date(), "2026-05-17"),
    ],
)
def test_a_partition_value_is_written_as_delta_does(value: object, text: str | None) -> None:
    assert value_text(value) == text
    assert directory_of({"v": text}).startswith("v=")


def batch(path: Path, number: int, *numbers: int, tasks: int = 1) -> BatchFiles:
    files = BatchFiles(location(path), "query/sink", number)
    wrote = [files.write(iter([pa.record_batch({"n": numbers[task::tasks]})])) for task in range(tasks)]
    files.commit(wrote)
    return files


def numbers_in(path: Path) -> list[int]:
    return sorted(pq.read_table(path).column("n").to_pylist())


def test_a_retried_batch_with_fewer_tasks_replaces_all_files(tmp_path: Path) -> None:
    batch(tmp_path, 0, 1, 2, 3, 4, tasks=4)
    batch(tmp_path, 1, 5)
    batch(tmp_path, 0, 1, 2, 3, 4, tasks=2)
    assert numbers_in(tmp_path) == [1, 2, 3, 4, 5]
    assert len(list(tmp_path.glob("*.parquet"))) == 3


def test_incomplete_files_are_invisible_and_those_of_a_killed_batch_are_removed(tmp_path: Path) -> None:
    batch(tmp_path, 0, 1)
    BatchFiles(location(tmp_path), "query/sink", 1).write(iter([pa.record_batch({"n": [99]})]))
    assert numbers_in(tmp_path) == [1]
    assert len(list(tmp_path.rglob("*.parquet"))) == 1
    batch(tmp_path, 1, 2)
    assert numbers_in(tmp_path) == [1, 2]
    assert not list(tmp_path.rglob("*.unfinished"))


def test_a_driver_that_stood_still_while_another_wrote_its_batch_removes_no_row(tmp_path: Path) -> None:
    # On a file system of several machines, by a checkpoint that both can reach.
    files = BatchFiles(location(tmp_path), "query/sink", 7).begin()
    written = files.write(rows_of(1, 2))
    other = BatchFiles(location(tmp_path), "query/sink", 7).begin()
    other.commit([other.write(rows_of(1)), other.write(rows_of(2))])
    with pytest.raises(Overtaken, match="another process writes batch 7 of this pipeline"):
        files.commit([written])
    assert numbers_in(tmp_path) == [1, 2]


def attempt(path: Path, name: str) -> ParquetWriter:
    """A writer of an attempt at batch 7."""
    files = BatchFiles(location(path / "files"), "query/sink", 7, attempt=name)
    return ParquetFiles({"files": msgspec.json.encode(files).decode(), "reportTo": f"{path / name}"}).writer(None, False)


def rows_of(*numbers: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"n": numbers})])


@pytest.mark.parametrize("ends", ["commits", "aborts"])
def test_leftovers_of_a_killed_driver_do_not_affect_the_batch(tmp_path: Path, ends: str) -> None:
    left = attempt(tmp_path, "left")
    wrote = [left.write(rows_of(1)), left.write(rows_of(2, 3))]
    now = attempt(tmp_path, "now")
    now.files.clear()
    written = [now.write(rows_of(1, 2, 3))]
    wrote.append(left.write(rows_of(4)))
    left.commit(wrote) if ends == "commits" else left.abort([*wrote, None])  # type: ignore[arg-type]
    assert not list(tmp_path.rglob("*.parquet"))
    now.commit([*written, None])
    assert now.files.commit(parse_report((tmp_path / "now").read_text())) == 3
    assert numbers_in(tmp_path / "files") == [1, 2, 3]
    left.commit([left.write(rows_of(5))]) if ends == "commits" else left.abort([left.write(rows_of(5))])
    assert numbers_in(tmp_path / "files") == [1, 2, 3]
    attempt(tmp_path, "next").files.clear()
    assert not list(tmp_path.rglob("*.unfinished"))


def test_two_sinks_share_a_directory_with_files_of_their_own(tmp_path: Path) -> None:
    batch(tmp_path, 0, 1)
    other = BatchFiles(location(tmp_path), "query/other", 0)
    other.commit([other.write(iter([pa.record_batch({"n": [2]})]))])
    assert numbers_in(tmp_path) == [1, 2]
