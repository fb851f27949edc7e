"""A full disk under a table: the error names the file and the remedy, no partial file stays, and a restart continues."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("deltalake")

import pyarrow.dataset as ds

from conftest import Ottla  # type: ignore[attr-defined]
from ottla.lake.table import parquet_files
from ottla.lake.table.delta import opened

pytestmark = pytest.mark.server


@pytest.mark.parametrize(
    ("words", "form"), [(["table", "sync"], "delta"), (["table", "sync"], "iceberg"), (["pipeline", "export"], "parquet")]
)
def test_a_full_disk_is_reported_with_a_remedy_and_the_next_run_continues(
    words: list[str],
    form: str,
    a_topic: Callable[..., str],
    send: Callable[..., None],
    ottla: Ottla,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if form == "iceberg":
        pytest.importorskip("pyiceberg")
    topic, directory = a_topic(1), tmp_path / "t"
    send(topic, [{"id": number} for number in range(10)])
    command = [
        *words,
        topic,
        "--to",
        str(directory),
        "--format",
        form,
        *(["--once"] if words == ["table", "sync"] else []),
    ]
    known = uuid.uuid4()
    path = directory / ("data" if form == "iceberg" else "") / f"part-{known}.zstd.parquet{'.unfinished' if form == 'parquet' else ''}"

    def named() -> uuid.UUID:
        # Files of Iceberg's metadata have such names too.
        if not path.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to("/dev/full")
        return known

    with monkeypatch.context() as patch:
        patch.setattr(parquet_files.uuid, "uuid4", named)  # type: ignore[attr-defined]
        (error,) = ottla(*command, code=1)
    assert f"No space left on device: '{path}'; free some space and start it again: it continues where it stopped" in error["refused"]
    assert not path.is_symlink()
    send(topic, [{"id": 10}])
    ottla(*command)
    files = [str(one) for one in directory.rglob("*.parquet")]
    found = opened(str(directory)).to_pyarrow_table() if form == "delta" else ds.dataset(files).to_table()
    assert sorted(found.column("id").to_pylist()) == list(range(11))
