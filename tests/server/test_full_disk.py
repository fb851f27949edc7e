"""A full disk: a small tmpfs, which only root may mount; skipped otherwise."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from plain_kafka import api_versions, batch_of, create_topics, fetch_all, offset_at, produce
from serving import Serving

pytestmark = pytest.mark.server

MIB = 1 << 20
DISK, RESERVE = 24 * MIB, 6 * MIB
KAFKA_STORAGE_ERROR = 56
NOW_MS = time.time_ns() // 1_000_000


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of DISK bytes."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(place)], capture_output=True, text=True)
    if mounted.returncode != 0:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def server(disk: Path) -> Iterator[Serving]:
    served = Serving(disk / "data", settings={"ottla.disk.reserve.bytes": str(RESERVE)})
    # What the processes write is no part of the story.
    served.output = disk.parent / "output"
    with served:
        yield served


def free_bytes(place: Path) -> int:
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize


def batch(number: int) -> bytes:
    return batch_of([(NOW_MS, b"%d" % number, bytes([number % 251]) * 200_000)])


def fill(server: Serving, topic: str) -> tuple[int, int]:
    """Produces until it is refused: how many batches were written, and the error."""
    for number in range(DISK // 100_000):
        error, offset = produce(server.address, topic, 0, batch(number))
        if error:
            return number, error
        assert offset == number
    raise AssertionError("a disk of that size cannot hold so much")


def take_the_rest(disk: Path) -> Path:
    """Fills the file system to the last byte."""
    rest = disk / "rest"
    with rest.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(65_536)):
            pass
    with rest.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    assert free_bytes(disk) == 0
    return rest


def intact(server: Serving, topic: str, count: int) -> None:
    found = [record for batch in fetch_all(server.address, topic, check_crc=False) for record in batch.records]
    assert [(r.offset, r.key) for r in found] == [(i, b"%d" % i) for i in range(count)]
    assert all(r.value == bytes([r.offset % 251]) * 200_000 for r in found)
    assert offset_at(server.address, topic, 0, -1) == (0, count)


def eventually(server: Serving, topic: str, number: int) -> None:
    """A write goes through again: the broker looks at the free space from time to time."""
    deadline = time.monotonic() + 15
    while (outcome := produce(server.address, topic, 0, batch(number)))[0]:
        assert time.monotonic() < deadline, f"still refused with {outcome[0]}"
        time.sleep(0.1)


def test_produce_is_refused_before_the_disk_is_full_and_all_else_goes_on(server: Serving, disk: Path) -> None:
    create_topics(server.address, {"full": 1, "other": 1})
    written, error = fill(server, "full")
    assert error == KAFKA_STORAGE_ERROR and written > 20
    assert RESERVE * 0.8 < free_bytes(disk) <= RESERVE + 2 * MIB, "the reserve is still there"
    assert produce(server.address, "other", 0, batch(0))[0] == KAFKA_STORAGE_ERROR, "every partition of that disk"
    intact(server, "full", written)
    assert api_versions(server.address)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    assert set(admin.list_topics(timeout=10).topics) == {"full", "other"}
    admin.delete_topics(["full"])["full"].result(10)
    eventually(server, "other", 0)
    create_topics(server.address, {"again": 1})
    eventually(server, "again", 0)


@pytest.mark.parametrize("ended", ["killed", "stopped"])
def test_it_starts_and_serves_without_a_free_byte(server: Serving, disk: Path, ended: str) -> None:
    create_topics(server.address, {"full": 1, "other": 1})
    assert produce(server.address, "other", 0, batch(0)) == (0, 0)
    written, _ = fill(server, "full")
    rest = take_the_rest(disk)
    assert produce(server.address, "full", 0, batch(0))[0] == KAFKA_STORAGE_ERROR
    intact(server, "full", written)
    if ended == "killed":
        server.kill()
    else:
        server.stop()
    if free_bytes(disk):
        rest.unlink()
        rest = take_the_rest(disk)
    server.start()
    intact(server, "full", written)
    intact(server, "other", 1)
    assert produce(server.address, "other", 0, batch(1))[0] == KAFKA_STORAGE_ERROR
    rest.unlink()
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics(["full"])["full"].result(10)
    eventually(server, "other", 1)
    intact(server, "other", 2)


def test_records_are_deleted_and_topics_too_without_a_free_byte(server: Serving, disk: Path) -> None:
    create_topics(server.address, {"full": 1, "other": 1})
    written, _ = fill(server, "full")
    take_the_rest(disk)
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    admin.delete_topics(["full"])["full"].result(10)
    eventually(server, "other", 0)
    assert free_bytes(disk) > written * 200_000 * 0.9
