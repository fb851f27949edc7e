"""Group commit: which flushes are combined, in which order, and the effect of a failed sync."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ottla.base.ids import Offset, TopicPartition
from ottla.log.flush import FlushPlan
from ottla.server.disk import RealDisk, RealFile
from ottla.server.flusher import Flusher, Marks
from ottla.server.metrics import Counters

pytestmark = pytest.mark.server


class Heard:
    """A flusher and what it tells."""

    def __init__(self, disk: RealDisk) -> None:
        self.counters = Counters()
        self.marks: list[Marks] = []
        self.errors: list[Exception] = []
        self.flusher = Flusher(
            disk, executor=ThreadPoolExecutor(2), lanes=2, counters=self.counters, done=self.marks.append, failed=self.errors.append
        )

    async def ended(self) -> None:
        await self.flusher.idle()
        self.flusher.close()


def mark(number: int, upto: int) -> tuple[TopicPartition, Offset]:
    return TopicPartition("t", number), Offset(upto)


def plan(number: int, upto: int, *files: RealFile) -> tuple[TopicPartition, FlushPlan]:
    return TopicPartition("t", number), FlushPlan(Offset(upto), files)


@pytest.fixture
def disk(tmp_path: Path) -> RealDisk:
    return RealDisk(tmp_path)


def told(monkeypatch: pytest.MonkeyPatch, before: Callable[[RealFile], None] = lambda file: None) -> list[str]:
    """The paths of files that were synced, in order."""
    synced: list[str] = []
    sync = RealFile.sync

    def noted(file: RealFile) -> None:
        before(file)
        sync(file)
        synced.append(file.path)

    monkeypatch.setattr(RealFile, "sync", noted)
    return synced


async def test_what_comes_while_a_group_is_under_way_is_the_next_group(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def before(file: RealFile) -> None:
        begun.set()
        assert go_on.wait(10)

    told(monkeypatch, before)
    heard, file = Heard(disk), disk.open("a", create=True)
    heard.flusher.flush([plan(0, 1, file)])
    await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
    heard.flusher.flush([plan(1, 2, file)])
    heard.flusher.flush([plan(2, 3, file)])
    assert heard.marks == []
    go_on.set()
    await heard.ended()
    assert heard.marks == [(mark(0, 1),), (mark(1, 2), mark(2, 3))]
    assert (heard.counters.commits, heard.counters.flushes) == (2, 3)


async def test_a_file_that_several_plans_name_is_synced_once_and_before_what_depends_on_it(
    disk: RealDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = told(monkeypatch)
    monkeypatch.setattr(RealDisk, "replace_file", lambda disk, path, data: synced.append(f"replace {path}"))
    monkeypatch.setattr(RealDisk, "sync_dir", lambda disk, path: synced.append(f"names in {path}"))
    heard, a, b = Heard(disk), disk.open("a", create=True), disk.open("b", create=True)
    small = FlushPlan(Offset(5), (b, a), ("d",), (("d/small", b"text"),))
    first = FlushPlan(Offset(4), (a, b), ("e",))
    heard.flusher.flush([(TopicPartition("t", 0), first), (TopicPartition("t", 1), small)])
    await heard.ended()
    # Replacing a small file syncs its directory, too.
    assert synced == ["a", "b", "replace d/small", "names in e"]
    assert heard.marks == [(mark(0, 4), mark(1, 5))]


async def test_a_file_that_is_gone_needs_no_sync(disk: RealDisk, tmp_path: Path) -> None:
    heard, file = Heard(disk), disk.open("a", create=True)
    file.close()
    (tmp_path / "a").unlink()
    heard.flusher.flush([plan(0, 1, file)])
    await heard.ended()
    assert heard.marks == [(mark(0, 1),)]


@pytest.mark.parametrize("slow_ns", [0, 10**18])
async def test_after_a_failed_sync_nothing_more_is_flushed(disk: RealDisk, monkeypatch: pytest.MonkeyPatch, slow_ns: int) -> None:
    """Whether the device is fast or slow, which decides who syncs the later files."""
    monkeypatch.setattr("ottla.server.flusher.SLOW_NS", slow_ns)

    def before(file: RealFile) -> None:
        if file.path == "c":
            raise OSError(5, "Input/output error")

    synced = told(monkeypatch, before)
    heard = Heard(disk)
    files = [disk.open(name, create=True) for name in "abcde"]
    heard.flusher.flush([plan(0, 1, *files)])
    heard.flusher.flush([plan(1, 1, files[0])])
    await heard.flusher.idle()
    heard.flusher.flush([plan(2, 1, files[0])])
    await heard.ended()
    assert heard.marks == [] and [error.args for error in heard.errors] == [(5, "Input/output error")]
    assert "c" not in synced and synced.count("a") == 1


async def test_new_logs_do_not_hold_up_the_records_of_old_ones(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def sync_dir(disk: RealDisk, path: str) -> None:
        begun.set()
        assert go_on.wait(10)

    monkeypatch.setattr(RealDisk, "sync_dir", sync_dir)
    heard, file = Heard(disk), disk.open("a", create=True)
    heard.flusher.flush([(TopicPartition("new", number), FlushPlan(Offset(0), (), (f"d{number}",))) for number in range(100)])
    await asyncio.get_running_loop().run_in_executor(None, begun.wait, 10)
    heard.flusher.flush([plan(0, 4, file)])
    while not heard.marks:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert heard.marks == [(mark(0, 4),)]
    go_on.set()
    await heard.ended()
    # In groups of limited size.
    assert [len(marks) for marks in heard.marks] == [1, 32, 32, 32, 4]
