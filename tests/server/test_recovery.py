"""Recovery of one log directory's logs in several threads."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from errno import EIO
from pathlib import Path
from typing import Any

import pytest

from ottla import Admin, NewTopic
from ottla.base.ids import TopicId, TopicPartition
from ottla.base.ports import Disk
from ottla.log import filenames
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.log.recovery import ClosedLog
from ottla.records.batch import parse_header
from ottla.records.build import build_batch
from ottla.server.data_directory import StoppedWhileStarting
from ottla.server.disk import RealDisk
from ottla.server.environment import OperatingSystem
from ottla.server.log_recovery import THREADS, open_in_threads
from ottla.server.process import Process
from ottla.server.process_plan import ProcessPlan
from ottla.server.resizable_threads import Threads

NOW_MS = 1_700_000_000_000
TIMEOUT_S = 10
SMALL = TopicOptions.of({"internal.segment.bytes": "1500", "index.interval.bytes": "200"})
BASE = f"{0:020d}"


def opened(disk: Disk, threads: int = 1) -> LogDirectory:
    """The directory of broker 1, its logs opened with so many threads."""
    return LogDirectory.open(
        disk,
        broker_id=1,
        cluster_id="cluster-of-the-tests",
        now_ms=NOW_MS,
        options_for=lambda _: SMALL,
        open_logs=lambda logs: open_in_threads(logs, threads=threads),
    )


def create(directory: LogDirectory, number: int, *, batches: int = 0) -> Log:
    log = directory.create(TopicPartition("t", number), TopicId(bytes(range(16))), SMALL, NOW_MS)
    for epoch in range(batches):
        batch = memoryview(build_batch([(NOW_MS, None, b"v" * 100, ())], producer_id=7, producer_epoch=0, base_sequence=epoch))
        log.append(batch, parse_header(batch), leader_epoch=epoch // 10, now_ms=NOW_MS)
    return log


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def harmed(root: Path, *, clean: bool) -> None:
    """A log directory with logs in every state that a start can meet."""
    directory = opened(RealDisk(root))
    for number in range(24):
        create(directory, number, batches=number % 4 * 12)
    directory.remove(TopicPartition("t", 20))
    directory.set_aside(TopicPartition("t", 21))
    assert directory.close(now_ms=NOW_MS)
    if not clean:
        (root / filenames.CLEAN_SHUTDOWN).unlink()
        lines = (root / filenames.RECOVERY_POINTS).read_text().splitlines()
        # Every third log has its records behind the recovery point.
        kept = [line if index % 3 else " ".join([*line.split()[:2], "0"]) for index, line in enumerate(lines[2:])]
        (root / filenames.RECOVERY_POINTS).write_text("\n".join([*lines[:2], *kept]) + "\n")
    flip(root / f"t-1/{BASE}.log", 200)
    flip(root / f"t-2/{BASE}.log", 20)
    flip(root / f"t-3/{BASE}.index", 3)
    for number in (5, 6):
        newest = max((root / f"t-{number}").glob("*.log"))
        newest.write_bytes(newest.read_bytes()[:-30])
    with next(iter((root / "t-7").glob("*.log"))).open("ab") as file:
        file.write(b"torn")
    (root / f"t-9/{filenames.LEADER_EPOCHS}").write_text("nonsense")
    (root / "t-10" / f"{BASE}.timeindex").unlink()
    shutil.rmtree(root / "t-11")
    (root / "t-90").write_text("a file with the name of a partition's directory")
    (root / "t-13" / f"{BASE}.log.deleted").write_text("")


def state(directory: LogDirectory) -> list[Any]:
    """All that an opened directory knows, logs in their order."""
    logs = [
        (
            str(partition), log.topic_id, log.start_offset, log.end_offset, log.recovery_point, log.missing_below, log.holes_below,
            log.recovered, log.epochs.entries, log.bases, [(segment.size, segment.damages) for segment in log.segments],
            [(producer_id, producer.batches) for producer_id, producer in sorted(log.producers.by_id.items())],
        )
        for partition, log in directory.logs.items()
    ]  # fmt: skip
    return [directory.clean_start, directory.vanished, directory.high_watermarks, directory.strays, logs]


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("clean", [True, False], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize("descriptors_max", [4096, 16])
def test_several_threads_find_and_leave_what_one_does(tmp_path: Path, clean: bool, descriptors_max: int) -> None:
    root = tmp_path / "logs"
    harmed(root, clean=clean)
    shutil.copytree(root, tmp_path / "before")
    expected = opened(RealDisk(root, descriptors_max=descriptors_max))
    described, left = state(expected), tree(root)
    assert any(log.recovered for log in expected.logs.values()) and expected.vanished
    for threads in (2, 5):
        shutil.rmtree(root)
        shutil.copytree(tmp_path / "before", root)
        disk = RealDisk(root, descriptors_max=descriptors_max)
        directory = opened(disk, threads)
        assert state(directory) == described and tree(root) == left
        assert len(disk.opened) <= descriptors_max
        # The owner continues with the files that the threads opened.
        for partition, log in directory.logs.items():
            end = log.end_offset
            batch = memoryview(build_batch([(NOW_MS, None, b"next", ())]))
            log.append(batch, parse_header(batch), leader_epoch=9, now_ms=NOW_MS)
            assert bytes(log.read(end, max_bytes=1000, upto=log.end_offset)).endswith(b"next\0"), partition
        assert directory.close(now_ms=NOW_MS)


class MeetingDisk(RealDisk):
    """A log is only opened while so many others are."""

    def __init__(self, root: Path, *, together: int) -> None:
        super().__init__(root)
        self._met = threading.Barrier(together, timeout=TIMEOUT_S)
        self.threads: set[str] = set()

    def listdir(self, path: str = "") -> list[str]:
        if path:
            self.threads.add(threading.current_thread().name)
            self._met.wait()
        return super().listdir(path)


def logs_in(root: Path, count: int) -> None:
    directory = opened(RealDisk(root))
    for number in range(count):
        create(directory, number, batches=3)
    assert directory.close(now_ms=NOW_MS)


@pytest.mark.parametrize("threads", [2, 3])
def test_so_many_logs_are_opened_at_the_same_time(tmp_path: Path, threads: int) -> None:
    logs_in(tmp_path, threads * 2)
    disk = MeetingDisk(tmp_path, together=threads)
    directory = opened(disk, threads)
    assert [partition.partition for partition in directory.logs] == list(range(threads * 2))
    assert len(disk.threads) == threads and all(name.startswith(THREADS) for name in disk.threads)


def test_one_thread_is_the_one_that_opens_the_directory(tmp_path: Path) -> None:
    logs_in(tmp_path, 2)
    disk = MeetingDisk(tmp_path, together=1)
    opened(disk)
    assert disk.threads == {threading.current_thread().name}


def test_small_files_of_two_logs_are_replaced_at_the_same_time(tmp_path: Path) -> None:
    class Waiting(RealDisk):
        met = threading.Barrier(2, timeout=TIMEOUT_S)

        def sync_dir(self, path: str = "") -> None:
            self.met.wait()
            super().sync_dir(path)

    disk = Waiting(tmp_path)
    for path in ("t-0", "t-1"):
        disk.mkdir(path)
    with ThreadPoolExecutor(2) as pool:
        for replaced in [pool.submit(disk.replace_file, f"{path}/file", b"new") for path in ("t-0", "t-1")]:
            replaced.result()
    assert [disk.read_file(f"{path}/file") for path in ("t-0", "t-1")] == [b"new", b"new"]


class FailingDisk(RealDisk):
    """Logs 3 and 1 cannot be opened, and the error of 3 comes first."""

    failed = threading.Event()

    def listdir(self, path: str = "") -> list[str]:
        if path == "t-1":
            assert self.failed.wait(TIMEOUT_S), "log 3 is opened while log 1 waits"
            raise OSError(EIO, "log 1")
        if path == "t-3":
            self.failed.set()
            raise OSError(EIO, "log 3")
        return super().listdir(path)


def test_the_error_of_the_first_log_by_name_is_raised_whichever_thread_fails_first(tmp_path: Path) -> None:
    logs_in(tmp_path, 8)
    with pytest.raises(OSError, match="log 1"):
        opened(FailingDisk(tmp_path), threads=2)
    assert not any(thread.name.startswith(THREADS) for thread in threading.enumerate())


@pytest.mark.parametrize("threads", [1, 2])
def test_no_further_log_is_opened_after_a_request_to_stop(tmp_path: Path, threads: int) -> None:
    logs_in(tmp_path, 9)
    disk = MeetingDisk(tmp_path, together=1)
    allowed = iter(range(3))
    begun: list[TopicPartition] = []

    def check() -> None:
        if next(allowed, None) is None:
            raise StoppedWhileStarting("stopped")

    class Noted(ClosedLog):
        def open(self) -> Log | None:
            begun.append(self.partition)
            return super().open()

    def open_logs(logs: Sequence[ClosedLog]) -> list[Log | None]:
        noted = [Noted(**{name: getattr(log, name) for name in ClosedLog.__slots__}) for log in logs]
        return open_in_threads(noted, threads=threads, check=check)

    with pytest.raises(StoppedWhileStarting):
        LogDirectory.open(disk, broker_id=1, cluster_id="cluster-of-the-tests", now_ms=NOW_MS, open_logs=open_logs)
    assert sorted(log.partition for log in begun) == [0, 1, 2]


class Observed(OperatingSystem):
    """Notes the thread pools, and can have a log directory fail."""

    def __init__(self, failing: str = "") -> None:
        super().__init__()
        self.pools: list[tuple[int, str]] = []
        self._failing = failing

    def threads(self, count: int, name: str) -> Threads:
        self.pools.append((count, name))
        return super().threads(count, name)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        if path.name != self._failing:
            return super().disk(path, descriptors_max=descriptors_max)

        class Failing(RealDisk):
            def listdir(self, path: str = "") -> list[str]:
                if path:
                    raise OSError(EIO, "the device does not answer")
                return super().listdir(path)

        return Failing(path, descriptors_max=descriptors_max)


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "data"


async def started(data_dir: Path, ground: Observed, **texts: str) -> Process:
    chosen = {name.replace("_", "."): text for name, text in texts.items()}
    process = Process(ProcessPlan(data_dir=data_dir, texts={"listeners": "PLAINTEXT://127.0.0.1:0", **chosen}), environment=ground)
    await process.start()
    return process


async def with_topic(data_dir: Path, **texts: str) -> None:
    process = await started(data_dir, Observed(), **texts)
    host, port = process.brokers[0].address

    def create_topic() -> None:
        with Admin(bootstrap_servers=f"{host}:{port}") as admin:
            admin.create_topic(NewTopic("t", 8))

    await asyncio.to_thread(create_topic)
    await process.stop()


@pytest.mark.parametrize(("texts", "threads"), [({}, 2), ({"num_recovery_threads_per_data_dir": "3"}, 3)])
async def test_the_setting_says_how_many_threads_open_the_logs_of_a_directory(data_dir: Path, texts: dict[str, str], threads: int) -> None:
    await with_topic(data_dir)
    ground = Observed()
    process = await started(data_dir, ground, **texts)
    assert [count for count, name in ground.pools if name == THREADS] == [threads]
    assert len(process.brokers[0].node.partitions.leaders) == 8
    await process.stop()


async def test_a_directory_with_a_log_that_a_disk_refuses_is_left_out_and_the_others_serve(
    data_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = {"log_dirs": f"{tmp_path / 'one'},{tmp_path / 'two'}"}
    await with_topic(data_dir, **texts)
    process = await started(data_dir, Observed(failing="two"), **texts)
    assert [directory.root for directory in process.brokers[0].directories] == [str(tmp_path / "one")]
    assert "cannot open the log directory" in caplog.text and "the device does not answer" in caplog.text
    await process.stop()
