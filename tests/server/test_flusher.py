"""Group commit: which flushes are combined, in which order, and the effect of a failed sync."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import pytest

from ottla.base.ids import Offset, TopicPartition
from ottla.log.flush import FlushPlan
from ottla.server.disk import RealDisk, RealFile
from ottla.server.flusher import FILES_AT_ONCE, MARKS_AT_ONCE, Flusher, FlushThread, Marks
from ottla.server.metrics.counters import Counters
from ottla.server.resizable_threads import ResizableThreads

pytestmark = pytest.mark.server


class RecordingFlusher:
    """A flusher that records its marks and errors."""

    def __init__(self, disk: RealDisk) -> None:
        self.counters = Counters()
        self.marks: list[Marks] = []
        self.marked = asyncio.Event()
        self.errors: list[Exception] = []
        self.flusher = Flusher(
            disk, executor=ThreadPoolExecutor(2), lanes=2, counters=self.counters, done=self._done, failed=self.errors.append
        )

    def _done(self, marks: Marks) -> None:
        self.marks.append(marks)
        self.marked.set()

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


def synced_paths(monkeypatch: pytest.MonkeyPatch, before: Callable[[RealFile], None] = lambda file: None) -> list[str]:
    """Records the paths of synced files, in order."""
    synced: list[str] = []
    sync = RealFile.sync

    def recorded(file: RealFile) -> None:
        before(file)
        sync(file)
        synced.append(file.path)

    monkeypatch.setattr(RealFile, "sync", recorded)
    return synced


async def test_flushes_requested_during_a_flush_batch_form_the_next_batch(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    started, proceed = threading.Event(), threading.Event()

    def before(file: RealFile) -> None:
        started.set()
        assert proceed.wait(10)

    synced_paths(monkeypatch, before)
    recording, file = RecordingFlusher(disk), disk.open("a", create=True)
    recording.flusher.flush([plan(0, 1, file)])
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 10)
    recording.flusher.flush([plan(1, 2, file)])
    recording.flusher.flush([plan(2, 3, file)])
    assert recording.marks == []
    proceed.set()
    await recording.ended()
    assert recording.marks == [(mark(0, 1),), (mark(1, 2), mark(2, 3))]
    assert (recording.counters.commits, recording.counters.flushes) == (2, 3)


async def test_a_batch_has_few_partitions_but_all_waiting_plans_of_each(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    started, proceed = threading.Event(), threading.Event()

    def before(file: RealFile) -> None:
        started.set()
        assert proceed.wait(10)

    synced = synced_paths(monkeypatch, before)
    recording = RecordingFlusher(disk)
    files = [disk.open(f"{number}", create=True) for number in range(FILES_AT_ONCE + 1)]
    recording.flusher.flush([plan(0, 1, files[0])])
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 10)
    for upto in (2, 3):
        recording.flusher.flush([plan(number, upto, file) for number, file in enumerate(files)])
    proceed.set()
    await recording.ended()
    # Two threads sync if the first file takes long.
    assert sorted(synced) == sorted(["0", *(file.path for file in files)]), "each file is synced once for both of its plans"
    assert (recording.counters.commits, recording.counters.flushes) == (3, 1 + 2 * len(files))
    in_order = [mark(number, upto) for number in range(len(files)) for upto in (2, 3)]
    assert sum(recording.marks, ()) == (mark(0, 1), *in_order)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="the system has no SCHED_BATCH")
def test_a_thread_that_flushes_does_not_preempt_the_event_loop() -> None:
    policies: Queue[int] = Queue()
    thread = FlushThread("test", lambda plans: policies.put(os.sched_getscheduler(0)))
    thread.put([])
    thread.close()
    assert policies.get(timeout=10) == os.SCHED_BATCH
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    with ResizableThreads(1, "test") as threads:
        assert threads.submit(os.sched_getscheduler, 0).result() == os.SCHED_BATCH


def test_a_thread_flushes_though_its_scheduling_policy_may_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", forbidden, raising=False)
    done: Queue[object] = Queue()
    thread = FlushThread("test", done.put)
    thread.put([])
    assert done.get(timeout=10) == []
    thread.close()


async def test_file_of_several_plans_is_synced_once_and_before_dependent_files(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = synced_paths(monkeypatch)
    monkeypatch.setattr(RealDisk, "replace_file", lambda disk, path, data: synced.append(f"replace {path}"))
    monkeypatch.setattr(RealDisk, "sync_dir", lambda disk, path: synced.append(f"names in {path}"))
    recording, a, b = RecordingFlusher(disk), disk.open("a", create=True), disk.open("b", create=True)
    small = FlushPlan(Offset(5), (b, a), ("d",), (("d/small", b"text"),))
    first = FlushPlan(Offset(4), (a, b), ("e",))
    recording.flusher.flush([(TopicPartition("t", 0), first), (TopicPartition("t", 1), small)])
    await recording.ended()
    # Replacing a small file syncs its directory, too.
    assert synced == ["a", "b", "replace d/small", "names in e"]
    assert recording.marks == [(mark(0, 4), mark(1, 5))]


async def test_many_flushed_partitions_are_reported_in_turns_and_before_the_flusher_is_idle(disk: RealDisk) -> None:
    recording, file = RecordingFlusher(disk), disk.open("a", create=True)
    count = 2 * MARKS_AT_ONCE + 3
    between: list[int] = []

    def other_work() -> None:
        between.append(sum(map(len, recording.marks)))
        if between[-1] < count:
            asyncio.get_running_loop().call_soon(other_work)

    recording.flusher.flush([plan(number, number, file) for number in range(count)])
    await recording.marked.wait()
    other_work()
    await recording.ended()
    assert [len(marks) for marks in recording.marks] == [MARKS_AT_ONCE, MARKS_AT_ONCE, 3]
    assert sum(recording.marks, ()) == tuple(mark(number, number) for number in range(count))
    assert {MARKS_AT_ONCE, 2 * MARKS_AT_ONCE} <= set(between), "the loop did other work in between"


async def test_deleted_file_needs_no_sync(disk: RealDisk, tmp_path: Path) -> None:
    recording, file = RecordingFlusher(disk), disk.open("a", create=True)
    file.close()
    (tmp_path / "a").unlink()
    recording.flusher.flush([plan(0, 1, file)])
    await recording.ended()
    assert recording.marks == [(mark(0, 1),)]


@pytest.mark.parametrize("slow_ns", [0, 10**18])
async def test_no_flush_follows_a_failed_sync(disk: RealDisk, monkeypatch: pytest.MonkeyPatch, slow_ns: int) -> None:
    """Holds for fast and slow devices. The speed decides which thread syncs the later files."""
    monkeypatch.setattr("ottla.server.flusher.SLOW_NS", slow_ns)

    def before(file: RealFile) -> None:
        if file.path == "c":
            raise OSError(5, "Input/output error")

    synced = synced_paths(monkeypatch, before)
    recording = RecordingFlusher(disk)
    files = [disk.open(name, create=True) for name in "abcde"]
    recording.flusher.flush([plan(0, 1, *files)])
    recording.flusher.flush([plan(1, 1, files[0])])
    await recording.flusher.idle()
    recording.flusher.flush([plan(2, 1, files[0])])
    await recording.ended()
    assert recording.marks == [] and [error.args for error in recording.errors] == [(5, "Input/output error")]
    assert "c" not in synced and synced.count("a") == 1


async def test_new_logs_do_not_delay_flushes_of_existing_logs(disk: RealDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    started, proceed = threading.Event(), threading.Event()

    def sync_dir(disk: RealDisk, path: str) -> None:
        started.set()
        assert proceed.wait(10)

    monkeypatch.setattr(RealDisk, "sync_dir", sync_dir)
    recording, file = RecordingFlusher(disk), disk.open("a", create=True)
    recording.flusher.flush([(TopicPartition("new", number), FlushPlan(Offset(0), (), (f"d{number}",))) for number in range(100)])
    await asyncio.get_running_loop().run_in_executor(None, started.wait, 10)
    recording.flusher.flush([plan(0, 4, file)])
    async with asyncio.timeout(10):
        await recording.marked.wait()
    assert recording.marks == [(mark(0, 4),)]
    proceed.set()
    await recording.ended()
    # The new logs are flushed in batches of at most 32.
    assert (recording.counters.commits, sum(map(len, recording.marks))) == (5, 101)
