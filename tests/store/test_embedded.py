"""The embedded store survives its process."""

import shutil
import sqlite3
from pathlib import Path

import pytest

from ottla.base.ports import NodeState, Op, StoreResult
from ottla.store.embedded.file import StoreFileError
from ottla.store.embedded.store import EmbeddedStore


async def submitted(store: EmbeddedStore, *ops: Op) -> StoreResult:
    answers: list[StoreResult] = []
    session = store.session()
    session.submit(ops, answers.append)
    await store.settled()
    return answers[0]


async def nodes(store: EmbeddedStore, prefix: str) -> list[NodeState]:
    seen: list[NodeState] = []
    store.session().watch(prefix, seen.append)
    await store.settled()
    return seen


async def test_nodes_versions_and_zxids_survive_a_restart(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    await submitted(store, Op("create", "/a", b"x"), Op("create", "/a/b"), Op("create", "/a-b"), Op("create", "/gone"))
    await submitted(store, Op("set", "/a", b"y"), Op("delete", "/gone"))
    before = await nodes(store, "/a")
    await store.close()
    again = EmbeddedStore(tmp_path / "s")
    assert sorted(await nodes(again, "/a"), key=str) == sorted(before, key=str)
    assert await nodes(again, "/gone") == []
    await again.close()


async def test_an_answered_multi_is_in_the_file_without_a_close(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    await submitted(store, Op("create", "/a", b"x"))
    for name in ("s", "s-wal"):
        (tmp_path / name.replace("s", "copy", 1)).write_bytes((tmp_path / name).read_bytes())
    await store.close()
    copy = EmbeddedStore(tmp_path / "copy")
    assert [state.data for state in await nodes(copy, "/a")] == [b"x"]
    await copy.close()


async def test_ephemeral_nodes_do_not_survive_and_no_zxid_is_given_twice(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    first = await submitted(store, Op("create", "/brokers/ids/1", ephemeral=True))
    await store.close()
    again = EmbeddedStore(tmp_path / "s")
    assert [state.path for state in await nodes(again, "/brokers/ids")] == ["/brokers/ids"]
    second = await submitted(again, Op("create", "/brokers/ids/1", ephemeral=True))
    assert second.states[0].created_zxid > first.states[0].created_zxid
    await again.close()


async def test_a_file_in_use_is_refused(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    with pytest.raises(StoreFileError, match="locked"):
        EmbeddedStore(tmp_path / "s")
    await store.close()


def test_another_programs_file_is_refused_untouched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "s") as connection:
        connection.execute("CREATE TABLE node(x)")
    connection.close()
    with pytest.raises(StoreFileError, match="another program"):
        EmbeddedStore(tmp_path / "s")


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"not a database at all, but long enough to look" * 100)
    with pytest.raises(StoreFileError):
        EmbeddedStore(tmp_path / "s")


def test_a_file_of_a_later_format_is_refused(tmp_path: Path) -> None:
    EmbeddedStore(tmp_path / "s")._file.connection.close()
    with sqlite3.connect(tmp_path / "s") as connection:
        connection.execute("UPDATE number SET value = 3 WHERE name = 'format'")
    connection.close()
    with pytest.raises(StoreFileError, match="format 3"):
        EmbeddedStore(tmp_path / "s")


async def test_after_a_failed_write_nothing_is_answered_as_done(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s")
    seen: list[NodeState] = []
    store.session().watch("/a", seen.append)
    store._file.connection.execute("DROP TABLE node")
    assert (await submitted(store, Op("create", "/a"))).error == "unavailable"
    assert (await submitted(store, Op("create", "/b"))).error == "unavailable"
    assert seen == []
    await store.close()


async def test_a_directory_that_vanishes_under_a_store_does_not_keep_it_from_closing(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    store = EmbeddedStore(tmp_path / "meta" / "s")
    shutil.rmtree(tmp_path / "meta")
    result = await submitted(store, Op("create", "/a"))
    await store.close()
    assert result.error is None
