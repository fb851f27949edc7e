"""`ottla store` and `ottla doctor --data-dir` on a data directory with a damaged store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from doctor_facts import typed

from ottla.base.ports import Op
from ottla.cli.doctor import local
from ottla.cli.main import main
from ottla.server.data_directory import STORE, LockedDirectory
from ottla.store.embedded import store as embedded_store
from ottla.store.embedded.store import EmbeddedStore


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store, a copy of it, and a change after the copy."""
    monkeypatch.setattr(embedded_store, "FIRST_COPY_S", 0)
    (tmp_path / "meta").mkdir()

    async def make() -> None:
        store = EmbeddedStore(tmp_path / STORE)
        session = store.session()
        session.submit([Op("create", "/config/topics/before", b"{}")], lambda result: None)
        await store.settled()
        while store._copied is None or store._copying is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        session.submit([Op("create", "/config/topics/after", b"{}")], lambda result: None)
        await store.close()

    asyncio.run(make())
    return tmp_path


def nodes(data_dir: Path) -> set[str]:
    async def read() -> set[str]:
        store = EmbeddedStore(data_dir / STORE)
        found = set(store.tree.nodes)
        await store.close()
        return found

    return asyncio.run(read())


def damage(data_dir: Path) -> bytes:
    data = bytearray((data_dir / STORE).read_bytes())
    data[data.index(b"/config/topics/before") + 18] ^= 1
    (data_dir / STORE).write_bytes(data)
    return bytes(data)


def test_an_intact_store_is_reported_as_intact_and_not_restored(data_dir: Path) -> None:
    checked = run("store", "check", "--data-dir", str(data_dir))
    assert checked.exit_code == 0 and "is good" in checked.output and "-copy-" in checked.output
    refused = run("store", "restore", "--data-dir", str(data_dir), "--yes")
    assert refused.exit_code == 1 and "is not damaged; nothing was restored" in refused.output


def test_a_damaged_store_is_restored_from_its_copy_and_kept(data_dir: Path) -> None:
    bad = damage(data_dir)
    checked = run("store", "check", "--data-dir", str(data_dir))
    assert checked.exit_code == 1 and "is damaged: the checksum of node" in checked.output
    assert "up to 1 changes" in checked.output
    unsaid = run("store", "restore", "--data-dir", str(data_dir))
    assert unsaid.exit_code == 2 and "Confirm with --yes" in unsaid.output
    dry = run("store", "restore", "--data-dir", str(data_dir), "--dry-run")
    assert dry.exit_code == 0 and (data_dir / STORE).read_bytes() == bad
    done = run("store", "restore", "--data-dir", str(data_dir), "--yes")
    assert done.exit_code == 0 and "is restored from" in done.output, done.output
    assert {"/config/topics/before"} == {path for path in nodes(data_dir) if path.startswith("/config/topics/")}
    assert [path.read_bytes() for path in (data_dir / "meta").glob("*.sqlite-damaged-*")] == [bad]


def test_without_an_intact_copy_a_backup_can_be_named(data_dir: Path, tmp_path: Path) -> None:
    backup = tmp_path / "backup"
    backup.write_bytes((data_dir / STORE).read_bytes())
    damage(data_dir)
    for copy in (data_dir / "meta").glob("*-copy-*"):
        copy.write_bytes(b"")
    refused = run("store", "restore", "--data-dir", str(data_dir), "--yes")
    assert refused.exit_code == 1 and "restore a backup with --from FILE" in refused.output
    done = run("store", "restore", "--data-dir", str(data_dir), "--yes", "--from", str(backup))
    assert done.exit_code == 0, done.output
    assert "/config/topics/after" in nodes(data_dir)


def test_an_unreadable_note_is_a_warning(data_dir: Path) -> None:
    (data_dir / f"{STORE}-last").write_bytes(b"")
    checked = run("store", "check", "--data-dir", str(data_dir))
    assert (
        checked.exit_code == 0
        and "is good" in checked.output
        and "-last cannot be read, so the last changes may be missing" in checked.output
    )
    seen = local.data_dir(data_dir)
    assert seen.store_problem is None and seen.store_doubt is not None and "cannot be read" in seen.store_doubt
    found = run("doctor", "--check", "data-dir", "--data-dir", str(data_dir), "-o", "json")
    assert "The embedded store may lack its last changes" in found.output


def test_a_store_in_use_is_refused(data_dir: Path) -> None:
    held = LockedDirectory(data_dir)
    try:
        refused = run("store", "restore", "--data-dir", str(data_dir), "--yes")
    finally:
        held.release()
    assert refused.exit_code == 1 and "is in use by process" in refused.output


def test_the_doctor_finds_a_damaged_store_and_damaged_checkpoints(data_dir: Path) -> None:
    logs = data_dir / "broker-1"
    (logs / "orders-0").mkdir(parents=True)
    (logs / "meta.properties").write_text("version=9\n")
    (logs / "recovery-point-offset-checkpoint").write_text("0\n2\norders 0 5\n")
    (logs / "orders-0" / "leader-epoch-checkpoint").write_text("0\n1\nx 0\n")
    damage(data_dir)
    seen = local.data_dir(data_dir)
    assert seen.store_problem is not None and "is damaged" in seen.store_problem
    assert [Path(path).name for path, _ in seen.metadata_problems] == [
        "meta.properties",
        "recovery-point-offset-checkpoint",
        "leader-epoch-checkpoint",
    ]
    result = run("doctor", "--check", "data-dir", "--data-dir", str(data_dir), "-o", "json")
    assert result.exit_code == 1 and "ottla store check --data-dir" in result.output
    typed(f"ottla store check --data-dir {data_dir}")
