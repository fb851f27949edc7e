"""A Parquet export that ends at any moment: the files of the manifest exist, and no others."""

from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import pyarrow as pa
import pyarrow.dataset as ds

from ottla.lake.storage import location
from ottla.lake.table.manifest_files import InUse
from ottla.lake.table.parquet_target import ParquetTarget, read_manifest
from ottla.lake.table.schema import TableFormat
from ottla.lake.table.target import DeltaTarget, TableConflict, TableOrigin

ORIGIN = TableOrigin("orders", "an-id")
FORM = TableFormat(value="text", columns=("offset",))


def a_target(path: Path) -> ParquetTarget:
    target = ParquetTarget(path)
    target.begin(ORIGIN, FORM, FORM.metadata_schema())
    return target


def put(target: ParquetTarget, first: int, count: int) -> None:
    files = target.files()
    files.write(pa.table({"value": ["x"] * count, "offset": range(first, first + count)}))
    target.commit(files.finish(), {0: first}, {0: first + count})


def offsets(path: Path) -> list[int]:
    found: list[int] = ds.dataset([str(one) for one in path.glob("*.parquet")]).to_table().column("offset").to_pylist()
    return sorted(found)


def test_files_outside_of_the_manifest_are_removed(tmp_path: Path) -> None:
    target = a_target(tmp_path)
    put(target, 0, 2)
    files = target.files()
    files.write(pa.table({"value": ["x"], "offset": [2]}))
    assert files.finish() and offsets(tmp_path) == [0, 1]
    target.close()
    target = a_target(tmp_path)
    assert not list(tmp_path.glob("*.unfinished")) and target.positions([0]) == {0: 2}
    put(target, 2, 1)
    assert offsets(tmp_path) == [0, 1, 2]


def test_files_in_the_manifest_get_their_final_names(tmp_path: Path) -> None:
    target = a_target(tmp_path)
    put(target, 0, 2)
    (whole,) = tmp_path.glob("*.parquet")
    whole.rename(f"{whole}.unfinished")
    target.close()
    assert a_target(tmp_path).positions([0, 1]) == {0: 2}
    manifest = read_manifest(location(tmp_path))
    assert offsets(tmp_path) == [0, 1] and manifest is not None and manifest.files[0].rows == 2


def test_only_one_process_can_write(tmp_path: Path) -> None:
    target = a_target(tmp_path)
    with pytest.raises(InUse, match="another process writes"):
        a_target(tmp_path)
    target.close()
    a_target(tmp_path)


def test_a_directory_belongs_to_one_topic_and_one_format(tmp_path: Path) -> None:
    a_target(tmp_path)
    with pytest.raises(TableConflict, match="holds topic orders, not other"):
        ParquetTarget(tmp_path).form(TableOrigin("other", ""))
    with pytest.raises(TableConflict, match="recreated"):
        ParquetTarget(tmp_path).form(TableOrigin("orders", "another-id"))
    with pytest.raises(TableConflict, match="export to Parquet"):
        DeltaTarget(tmp_path).form(ORIGIN)
    assert ParquetTarget(tmp_path).form(TableOrigin("orders", "")) == FORM
