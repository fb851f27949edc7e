"""A damaged file of the embedded store is refused with what was found, or starts with exactly what was written to it.

A store is damaged in one place at a time: after a clean close, and as a kill leaves it, with a write-ahead log. Refused files are
not changed. Then a good state is restored from the copies that the server keeps.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from ottla.base.ids import LeaderEpoch, ProducerId
from ottla.base.ports import Op
from ottla.store import layout
from ottla.store.embedded import store as embedded_store
from ottla.store.embedded.copies import LOST_UNKNOWN, candidates, copy_paths, described, remedy, restore, write_copy
from ottla.store.embedded.file import (
    APPLICATION_ID,
    StoreDamaged,
    StoreFileError,
    StoreForeign,
    last_path,
    read_contents,
    read_last,
    wal_path,
)
from ottla.store.embedded.store import EmbeddedStore

PAGE = 4096
#: Nodes enough for pages of every kind: interior, leaf, overflow, and free ones after some were deleted.
OPS = [
    *(Op("create", f"/config/topics/t{number}", bytes([number % 251]) * 40) for number in range(300)),
    *(Op("create", f"/config/clients/c{number}", b"%d" % number * 3000) for number in range(5)),
]
GONE = [*(Op("delete", f"/config/topics/t{number}") for number in range(100, 250)), Op("delete", "/config/clients/c3")]
#: Of the write-ahead log: one transaction each.
LATE = [[Op("set", f"/config/topics/t{number}", b"late %d" % number)] for number in range(12)]
State = dict[str, tuple[bytes, int, int]]


async def submit(store: EmbeddedStore, ops: list[Op]) -> None:
    session = store.session()
    session.submit(ops, lambda result: None)
    await store.settled()
    session.close()
    await store.settled()


def held(store: EmbeddedStore) -> State:
    nodes = store.tree.nodes
    return {path: (node.data, node.version, node.created_zxid) for path, node in nodes.items() if path != "/" and not node.owner}


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, State]]:
    """A directory for each end of a server, and what its store held."""
    root = tmp_path_factory.mktemp("stores")
    found: dict[str, tuple[Path, State]] = {}

    async def make() -> None:
        (root / "live").mkdir()
        store = EmbeddedStore(root / "live" / "s")
        await submit(store, OPS)
        await submit(store, GONE)
        await store.close()
        shutil.copytree(root / "live", root / "stopped")
        found["stopped"] = (root / "stopped", held(store))
        store = EmbeddedStore(root / "live" / "s")
        for ops in LATE:
            await submit(store, ops)
        shutil.copytree(root / "live", root / "killed")
        found["killed"] = (root / "killed", held(store))
        await store.close()

    asyncio.run(make())
    for end in found:
        (root / end / "s-ballast").unlink()
    return found


def outcome(directory: Path, expected: State) -> str:
    """Opens the store of a directory; "unchanged", or why it is refused. Anything else fails the test."""
    files = {path: path.read_bytes() for path in directory.iterdir()}

    async def live() -> None:
        store = EmbeddedStore(directory / "s")
        assert held(store) == expected
        await submit(store, [Op("create", "/config/users/u", b"written")])
        await store.close()
        assert store.failure is None
        again = EmbeddedStore(directory / "s")
        assert held(again) == {**expected, "/config/users/u": held(again)["/config/users/u"]}
        await again.close()

    try:
        asyncio.run(live())
    except StoreFileError as error:
        left = {path: path.read_bytes() for path in directory.iterdir() if path.name != "s-ballast"}
        assert left == files, "a refused store is not changed"
        assert str(directory / "s") in str(error) and "\n" not in str(error)
        return str(error)
    return "unchanged"


def damage(file: Path, kind: str, place: int, rng: Random) -> None:
    data = bytearray(file.read_bytes())
    match kind:
        case "flip":
            data[place] ^= 1 << rng.randrange(8)
        case "run":
            length = min(512, len(data) - place)
            data[place : place + length] = rng.randbytes(length)
        case "zeros":
            start = place // PAGE * PAGE
            data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
        case "cut":
            del data[place:]
        case "old page":
            # A write that the disk lost: the page of another place.
            start, other = place // PAGE * PAGE, rng.randrange(len(data) // PAGE) * PAGE
            data[start : start + PAGE] = data[other : other + PAGE]
    file.write_bytes(data)


@pytest.mark.parametrize("kind", ["flip", "run", "zeros", "cut", "old page"])
@pytest.mark.parametrize(("end", "name"), [("stopped", "s"), ("killed", "s"), ("killed", "s-wal")])
def test_a_damaged_store_is_refused_or_holds_what_was_written(
    stores: dict[str, tuple[Path, State]], tmp_path: Path, end: str, name: str, kind: str
) -> None:
    directory, expected = stores[end]
    rng = Random(f"{end} {name} {kind}")
    size = (directory / name).stat().st_size
    # The headers of the file, of a page and of a frame, byte by byte; then anywhere.
    places = [*range(0, 120, 3), PAGE, PAGE + 1, PAGE + 5, *(rng.randrange(size) for _ in range(25))] if kind == "flip" else []
    places = places or [rng.randrange(size) for _ in range(12)]
    seen = []
    for number, place in enumerate(places):
        shutil.copytree(directory, tmp_path / str(number))
        damage(tmp_path / str(number) / name, kind, place, rng)
        seen.append(outcome(tmp_path / str(number), expected))
        shutil.rmtree(tmp_path / str(number))
    # After a kill, the write-ahead log has a newer copy of most pages.
    assert (end, name) == ("killed", "s") or any("damaged" in said for said in seen), seen


def swapped(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        file.unlink()
        make(file)

    return change


def set_number(name: str, value: int) -> Callable[[Path], None]:
    def change(file: Path) -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("UPDATE number SET value = ? WHERE name = ?", (value, name))
        connection.close()

    return change


def forget(path: str) -> Callable[[Path], None]:
    """A missing row, as if only its cell were lost."""

    def change(file: Path) -> None:
        with sqlite3.connect(file) as connection:
            connection.execute("DELETE FROM node WHERE path = ?", (path,))
        connection.close()

    return change


KINDS: dict[str, tuple[Callable[[Path], object], type[StoreFileError], str]] = {
    "missing": (Path.unlink, StoreDamaged, "the file is missing"),
    "empty": (lambda file: file.write_bytes(b""), StoreDamaged, "it is empty"),
    "directory": (swapped(Path.mkdir), StoreFileError, "it is not a regular file"),
    "text": (lambda file: file.write_text("this is not a database\n" * 200), StoreDamaged, "its header names versions"),
    "short": (lambda file: file.write_bytes(file.read_bytes()[:50]), StoreDamaged, "disk image is malformed"),
    "newer": (set_number("format", 3), StoreForeign, "has format 3; this version of Ottla reads formats 1 and 2"),
    "format": (set_number("format", 0), StoreDamaged, "its format is 0"),
    "older": (set_number("format", 1), StoreDamaged, "has format 1, and has the columns"),
    "zxid": (set_number("zxid", 1), StoreDamaged, "the checksum of all nodes"),
    "row": (forget("/config/topics/t7"), StoreDamaged, "the checksum of all nodes"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_file_is_described(stores: dict[str, tuple[Path, State]], tmp_path: Path, kind: str) -> None:
    change, raised, said = KINDS[kind]
    shutil.copytree(stores["stopped"][0], tmp_path / "d")
    change(tmp_path / "d" / "s")
    with pytest.raises(StoreFileError, match=said) as caught:
        EmbeddedStore(tmp_path / "d" / "s")
    assert type(caught.value) is raised


def test_unreadable_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s").write_bytes(b"x")

    def refused(path: Path, mode: str) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refused)
    with pytest.raises(StoreFileError, match="Permission denied; give the user of this process read and write access"):
        EmbeddedStore(tmp_path / "s")


def test_a_damaged_index_of_the_log_changes_nothing(stores: dict[str, tuple[Path, State]], tmp_path: Path) -> None:
    directory, expected = stores["killed"]
    shutil.copytree(directory, tmp_path / "d")
    (tmp_path / "d" / "s-shm").write_bytes(b"0" * 100)
    assert outcome(tmp_path / "d", expected) == "unchanged"


def write_format_1(path: Path) -> None:
    """A store of Ottla 0.1.0."""
    with sqlite3.connect(path) as connection:
        connection.executescript(f"""
            PRAGMA application_id = {APPLICATION_ID};
            CREATE TABLE node(path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, created_zxid INTEGER NOT NULL)
                WITHOUT ROWID;
            CREATE TABLE number(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
            INSERT INTO number VALUES ('format', 1), ('zxid', 41);
            INSERT INTO node VALUES ('/a', x'78', 3, 40), ('/a/b', x'', 0, 41);
        """)
    connection.close()


async def raise_level(store: EmbeddedStore) -> None:
    feature = layout.encode_feature(layout.Features(levels={layout.OTTLA_VERSION: 2}))
    assert store.change((Op("create", layout.FEATURE, feature),), 0).error is None
    store.tell(lambda: None)
    await store.settled()


async def test_a_store_of_format_1_keeps_it_until_the_feature_level_is_raised(tmp_path: Path) -> None:
    write_format_1(tmp_path / "s")
    store = EmbeddedStore(tmp_path / "s")
    assert held(store)["/a"] == (b"x", 3, 40) and store.tree.zxid == 42
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s")) as connection:
        # As 0.1.0 reads and writes it.
        assert connection.execute("SELECT value FROM number WHERE name = 'format'").fetchone() == (1,)
        with connection:
            connection.execute("INSERT OR REPLACE INTO node VALUES ('/a', x'7a', 4, 40)")
            connection.execute("INSERT OR REPLACE INTO number VALUES ('zxid', 43)")
    store = EmbeddedStore(tmp_path / "s")
    assert held(store)["/a"] == (b"z", 4, 40)
    await raise_level(store)
    await store.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "s")) as connection, connection:
        assert connection.execute("SELECT value FROM number WHERE name = 'format'").fetchone() == (2,)
        connection.execute("UPDATE node SET data = x'79' WHERE path = '/a'")
    with pytest.raises(StoreDamaged, match="the checksum of node /a is"):
        EmbeddedStore(tmp_path / "s")


async def test_a_store_whose_level_was_raised_is_opened_again(tmp_path: Path) -> None:
    write_format_1(tmp_path / "s")
    store = EmbeddedStore(tmp_path / "s")
    await raise_level(store)
    expected = held(store)
    await store.close()
    store = EmbeddedStore(tmp_path / "s")
    assert held(store) == expected
    await store.close()


# Copies.


async def copied(store: EmbeddedStore) -> None:
    """Returns when the copy that is planned is made."""
    while store._copy_timer is not None or store._copying is not None:  # noqa: ASYNC110
        await asyncio.sleep(0.002)


async def test_copies_are_made_when_nodes_changed_and_the_newest_two_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "FIRST_COPY_S", 0)
    monkeypatch.setattr(embedded_store, "NEXT_COPY_S", 0)
    store = EmbeddedStore(tmp_path / "s")
    session = store.session()
    for number in range(4):
        session.submit([Op("create", f"/a{number}", b"x")], lambda result: None)
        await store.settled()
        await copied(store)
    session.submit([Op("create", "/gone", ephemeral=True)], lambda result: None)
    await store.settled()
    assert store._copy_timer is None, "an ephemeral node is in no copy"
    found = [read_contents(path) for path in copy_paths(tmp_path / "s")]
    assert [sorted(path for path in one.rows if path.startswith("/a") and path[2:].isdigit()) for one in found if one] == [
        ["/a0", "/a1", "/a2", "/a3"],
        ["/a0", "/a1", "/a2"],
    ]
    await store.close()


async def test_a_failed_write_leaves_a_copy_of_everything_acknowledged(tmp_path: Path) -> None:
    reported: list[str] = []
    store = EmbeddedStore(tmp_path / "s", failed=reported.append)
    await submit(store, [Op("create", "/kept", b"x")])
    store._file.connection.execute("DROP TABLE node")
    await submit(store, [Op("create", "/refused", b"y")])
    await store.close()
    assert "is damaged: SQLite says: no such table" in reported[0] and "all of its nodes were written to" in reported[0]
    contents = read_contents(copy_paths(tmp_path / "s")[0])
    assert contents is not None and "/kept" in contents.rows and "/refused" not in contents.rows


async def test_a_file_that_was_damaged_while_it_was_used_leaves_a_copy_when_it_is_closed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = EmbeddedStore(tmp_path / "s")
    await submit(store, OPS)
    store._file.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    data = (tmp_path / "s").read_bytes()
    place = data.index(bytes([77]) * 40)
    with (tmp_path / "s").open("r+b") as file:
        file.seek(place)
        file.write(b"!")
    await store.close()
    assert "all of its nodes were written to" in caplog.text
    with pytest.raises(StoreDamaged, match="the checksum of node /config/topics/t77"):
        EmbeddedStore(tmp_path / "s")
    best = candidates(tmp_path / "s")[0]
    assert best.lost == 0
    kept = restore(tmp_path / "s", best, now_s=0)
    assert [path.name for path in kept] == ["s-damaged-19700101T000000Z", "s-last-damaged-19700101T000000Z"]
    again = EmbeddedStore(tmp_path / "s")
    assert held(again) == held(store)
    await again.close()


def test_the_newest_good_copy_is_offered_and_the_lost_changes_are_listed(stores: dict[str, tuple[Path, State]], tmp_path: Path) -> None:
    path = tmp_path / "d" / "s"
    shutil.copytree(stores["killed"][0], tmp_path / "d")
    wal_path(path).write_bytes(b"!" + wal_path(path).read_bytes()[1:])
    assert [one.lost for one in candidates(path)] == [len(LATE)]
    assert "Restore its state after transaction" in remedy(path, tmp_path, now_s=0)
    path.unlink()
    assert candidates(path) == [] and "There is no good copy of it: restore a backup" in remedy(path, tmp_path, now_s=0)


async def test_a_restored_older_state_gives_nothing_out_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_store, "FIRST_COPY_S", 0)
    monkeypatch.setattr(embedded_store, "NEXT_COPY_S", 0)
    store, path = EmbeddedStore(tmp_path / "s"), tmp_path / "s"
    state = layout.PartitionState(leader=1, leader_epoch=LeaderEpoch(5), isr=(1,), controller_epoch=1)
    await submit(
        store,
        [
            *(Op("create", path) for path in (layout.topic("t"), layout.partitions("t"), layout.partition("t", 0))),
            Op("create", layout.partition_state("t", 0), layout.encode_partition_state(state)),
            Op("create", layout.CONTROLLER_EPOCH, b"3"),
            Op(
                "create",
                layout.PRODUCER_ID_BLOCK,
                layout.encode_producer_id_block(layout.ProducerIdBlock(1, ProducerId(0), ProducerId(999))),
            ),
        ],
    )
    opened = store.session()
    opened.submit([Op("create", "/x")], lambda result: None)
    await store.settled()
    await copied(store)
    monkeypatch.setattr(embedded_store, "NEXT_COPY_S", 1000)
    for number in range(7):
        await submit(store, [Op("set", layout.CONTROLLER_EPOCH, b"%d" % (4 + number))])
    last = store._file.contents.zxid
    await store.close()
    path.write_bytes(b"")
    best = candidates(path)[0]
    assert best.lost == 7 and "up to 7 changes" in described(best, now_s=0)
    restore(path, best, now_s=0)
    again = EmbeddedStore(path)
    nodes = again.tree.nodes
    assert again.tree.zxid == last
    assert layout.decode_partition_state(nodes[layout.partition_state("t", 0)].data).leader_epoch == 12
    assert layout.decode_controller_epoch(nodes[layout.CONTROLLER_EPOCH].data) == 10
    assert layout.decode_producer_id_block(nodes[layout.PRODUCER_ID_BLOCK].data).start == 7000
    await again.close()


# Without a note that can be read.

BLOCK = layout.ProducerIdBlock(1, ProducerId(0), ProducerId(999))


def note_lost(path: Path, how: str) -> None:
    if how == "missing":
        last_path(path).unlink()
    else:
        last_path(path).write_bytes(b"" if how == "empty" else bytes(53) if how == "zeros" else b"0" * 100)


async def given_out(path: Path) -> int:
    """Opens a store, hands out the next block of producer ids as a controller does, and is killed; returns where the block began."""
    store = EmbeddedStore(path)
    node = store.tree.nodes[layout.PRODUCER_ID_BLOCK]
    start = layout.decode_producer_id_block(node.data).end + 1
    block = layout.ProducerIdBlock(1, ProducerId(start), ProducerId(start + 999))
    await submit(store, [Op("set", layout.PRODUCER_ID_BLOCK, layout.encode_producer_id_block(block))])
    left = {one: one.read_bytes() for one in path.parent.iterdir() if "ballast" not in one.name}
    await store.close()
    for one in path.parent.iterdir():
        one.unlink()
    for one, data in left.items():
        one.write_bytes(data)
    return start


async def with_a_block(path: Path) -> None:
    """A store with a copy, in which a block of producer ids was handed out."""
    store = EmbeddedStore(path)
    await submit(store, [Op("create", layout.PRODUCER_ID_BLOCK, layout.encode_producer_id_block(BLOCK))])
    write_copy(path, store._file.contents)
    await store.close()


@pytest.mark.parametrize("how", ["missing", "empty", "zeros", "text"])
async def test_store_without_its_note_file_skips_ahead_and_warns(tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "s"
    await with_a_block(path)
    before = read_contents(path)
    note_lost(path, how)
    first = await given_out(path)
    assert before is not None and first == 1000 + LOST_UNKNOWN * 1000
    assert caplog.text.count("so the coordination store may lack changes after transaction") == 1
    last = read_last(path)
    assert last is not None and last.zxid > before.zxid + LOST_UNKNOWN
    caplog.clear()
    assert await given_out(path) == first + 1000 and not caplog.text, "once is enough"


async def test_a_store_without_its_note_that_is_older_than_a_copy_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await with_a_block(path)
    old = path.read_bytes()
    await given_out(path)
    await with_newer_copy(path)
    path.write_bytes(old)
    wal_path(path).unlink(missing_ok=True)
    note_lost(path, "text")
    with pytest.raises(StoreDamaged, match=r"it ends with transaction \d+, and s-copy-\d+ has transaction \d+"):
        EmbeddedStore(path)
    best = candidates(path)[0]
    assert best.path == copy_paths(path)[0] and best.lost is None
    assert "Restore the copy of" in remedy(path, tmp_path, now_s=0)


async def with_newer_copy(path: Path) -> None:
    contents = read_contents(path)
    assert contents is not None
    write_copy(path, contents)


async def test_a_log_and_a_note_that_are_lost_again_and_again_give_no_producer_id_out_twice(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await with_a_block(path)
    seen = []
    for _ in range(3):
        seen.append(await given_out(path))
        wal_path(path).unlink()
        note_lost(path, "text")
        for copy in copy_paths(path):
            copy.unlink()
    assert len(set(seen)) == 3 and seen == sorted(seen)


async def test_a_damaged_copy_proves_by_its_name_that_there_was_more(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await with_a_block(path)
    path.with_name(f"s-copy-{900:020}").write_bytes(b"damaged")
    note_lost(path, "missing")
    with pytest.raises(StoreDamaged, match=r"and s-copy-0+900 has transaction 900"):
        EmbeddedStore(path)
    best = candidates(path)[0]
    assert best.path == path
    restore(path, best, now_s=0)
    store = EmbeddedStore(path)
    assert store.tree.zxid >= 900 + LOST_UNKNOWN
    await store.close()


async def test_a_state_that_is_restored_again_and_again_gives_no_producer_id_out_twice(tmp_path: Path) -> None:
    path = tmp_path / "s"
    await with_a_block(path)
    oldest = copy_paths(path)[0]
    kept = oldest.read_bytes()
    seen = []
    for number in range(3):
        path.write_bytes(b"damaged")
        wal_path(path).unlink(missing_ok=True)
        note_lost(path, "text")
        for copy in copy_paths(path):
            copy.write_bytes(b"")
        oldest.write_bytes(kept)
        best = candidates(path)[0]
        assert best.path == oldest
        restore(path, best, now_s=number)
        seen.append(await given_out(path))
    assert len(set(seen)) == 3 and seen == sorted(seen)
