"""Responses are sent in order and complete, large ones with sendfile, without waiting for the disk on the loop."""

import asyncio
import gc
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from socket_peers import Peer, Served, framed, open_descriptors, until

from ottla.base.units import KiB, MiB
from ottla.net import egress
from ottla.net.connection_context import Limits
from ottla.net.server_connection import ServerConnection

pytestmark = pytest.mark.server


class DiskFile:
    """A log file as a server sees it."""

    def __init__(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        self.fd = os.open(path, os.O_RDWR)

    def fileno(self) -> int:
        return self.fd

    def make_cold(self) -> None:
        os.fsync(self.fd)
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)


class MemoryFile:
    def __init__(self, data: bytes) -> None:
        self.data = data


class Range:
    """What the log calls a slice."""

    def __init__(self, file: DiskFile | MemoryFile, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        if isinstance(self.file, MemoryFile):
            return self.file.data[self.position : self.position + self.size]
        return os.pread(self.file.fd, self.size, self.position)


DATA = os.urandom(6 * MiB)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DiskFile]:
    made = DiskFile(tmp_path / "0.log", DATA)
    yield made
    os.close(made.fd)


def answer_of(*parts: bytes | Range) -> list[bytes | Range]:
    return [len(b"".join(b"x" * len(part) for part in parts)).to_bytes(4, "big"), *parts]


def content(*parts: bytes | Range) -> bytes:
    return b"".join(part if isinstance(part, bytes) else part.read() for part in parts)


async def answered(parts: list[bytes | Range], *, receive_buffer: int | None = None) -> bytes:
    async with Served(lambda connection, frame: connection.respond(answer_of(*parts))) as served:
        peer = await served.peer(receive_buffer=receive_buffer)
        return await peer.ask(b"fetch")


@pytest.mark.parametrize("size", [0, 1, 4096, 60 * KiB, 64 * KiB, 300 * KiB, 5 * MiB])
async def test_a_range_of_a_file_is_sent_as_it_is(file: DiskFile, size: int) -> None:
    parts: list[bytes | Range] = [b"head", Range(file, 1234, size), b"tail"]
    assert await answered(parts) == content(*parts)


async def test_many_ranges_and_bytes_between_them_keep_their_order(file: DiskFile) -> None:
    parts: list[bytes | Range] = []
    for number in range(60):
        parts += [b"partition %d" % number, Range(file, number * 1000, number * 997), b""]
    assert await answered(parts, receive_buffer=8 * KiB) == content(*parts)


@pytest.mark.parametrize("size", [10, 500, 9 * KiB])
async def test_thousands_of_ranges_are_sent_in_turns(file: DiskFile, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    turns: list[int] = []
    gather = egress.Egress._gather

    def noted(self: egress.Egress) -> int:
        before = len(self._parts)
        weight = gather(self)
        turns.append(before - len(self._parts))
        return weight

    monkeypatch.setattr(egress.Egress, "_gather", noted)
    parts: list[bytes | Range] = []
    for number in range(1_000):
        parts += [b"partition %d" % number, Range(file, number * 1000, size)]
    assert await answered(parts) == content(*parts)
    assert max(turns) < egress.GATHERED_AT_ONCE and len(turns) > 2_000 // egress.GATHERED_AT_ONCE


async def test_a_range_that_was_truncated_among_thousands_closes_the_connection(file: DiskFile) -> None:
    parts: list[bytes | Range] = [Range(file, number, 10) for number in range(1_000)]
    parts[700] = Range(file, len(DATA) - 5, 10)
    with pytest.raises(EOFError, match="closed after 7005 of 10000 bytes"):
        await answered(parts)


@pytest.mark.parametrize("size", [3000, 5 * MiB])
async def test_a_cold_range_is_read_in_a_thread_and_sent(file: DiskFile, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    file.make_cold()
    if egress.warm(file.fd, MiB, 100):
        pytest.skip("this file system does not give up its pages")
    in_thread: list[int] = []

    def noted(inner: Callable[..., object], *args: object) -> object:
        in_thread.append(1)
        return inner(*args)

    for name in ("read_ahead", "_read_all"):
        monkeypatch.setattr(egress, name, partial(noted, getattr(egress, name)))
    parts: list[bytes | Range] = [b"head", Range(file, 1000, size)]
    assert await answered(parts) == content(*parts)
    assert in_thread


@pytest.mark.parametrize("size", [1000, 500 * KiB])
async def test_a_file_without_a_descriptor_is_read(size: int) -> None:
    parts: list[bytes | Range] = [Range(MemoryFile(DATA), 77, size), b"tail"]
    assert await answered(parts) == content(*parts)


async def test_large_and_small_answers_keep_the_order_of_their_requests(file: DiskFile) -> None:
    answers: dict[bytes, list[bytes | Range]] = {
        b"big": answer_of(Range(file, 0, 2 * MiB)),
        b"small": answer_of(Range(file, 5, 100)),
        b"bytes": answer_of(b"p" * 400_000),
    }
    asked = [b"bytes", b"big", b"small", b"small", b"big", b"bytes", b"big"] * 3
    async with Served(lambda connection, frame: connection.respond(answers[frame])) as served:
        peer = await served.peer(receive_buffer=32 * KiB)
        await peer.send(b"".join(map(framed, asked)))
        for name in asked:
            assert await peer.frame() == content(*answers[name][1:])


async def test_a_file_closed_during_the_send_is_sent_to_its_end(tmp_path: Path) -> None:
    file = DiskFile(tmp_path / "0.log", DATA)
    async with Served(lambda connection, frame: connection.respond(answer_of(Range(file, 0, len(DATA))))) as served:
        peer = await served.peer(receive_buffer=8 * KiB)
        await peer.send(framed(b"fetch"))
        await peer.read(1000)
        os.close(file.fd)
        assert len(await peer.read(len(DATA) + 4 - 1000)) == len(DATA) + 4 - 1000


async def test_a_file_truncated_during_the_send_closes_the_connection(file: DiskFile) -> None:
    async with Served(lambda connection, frame: connection.respond(answer_of(Range(file, 0, len(DATA))))) as served:
        peer = await served.peer(receive_buffer=8 * KiB)
        await peer.send(framed(b"fetch"))
        await peer.read(1000)
        os.ftruncate(file.fd, 100 * KiB)
        with pytest.raises((EOFError, ConnectionError)):
            await peer.read(len(DATA))
        await until(lambda: served.gone)
        assert served.context.traffic.cut["answer cut short"] == 1


@pytest.mark.parametrize("size", [100, MiB])
async def test_a_range_past_the_end_closes_the_connection(file: DiskFile, size: int) -> None:
    async with Served(lambda connection, frame: connection.respond(answer_of(Range(file, len(DATA) - 10, size)))) as served:
        peer = await served.peer()
        await peer.send(framed(b"fetch"))
        await until(lambda: served.gone)
        assert served.context.traffic.cut["answer cut short"] == 1


async def test_a_peer_that_takes_nothing_of_a_file_is_cut_off_and_its_descriptors_come_back(file: DiskFile) -> None:
    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.respond(answer_of(Range(file, 0, len(DATA))))

    async with Served(answer, Limits(write_timeout_ms=200)) as served:
        peer = await served.peer(receive_buffer=4096)
        before = open_descriptors()
        await peer.send(framed(b"fetch"))
        await until(lambda: served.gone)
        assert served.context.traffic.cut["peer does not read"] == 1
        await asyncio.sleep(0.01)
        assert open_descriptors() < before


async def test_a_peer_that_leaves_during_a_send_leaves_nothing_behind(file: DiskFile) -> None:
    async with Served(lambda connection, frame: connection.respond(answer_of(Range(file, 0, len(DATA))))) as served:
        open_files: list[int] = []
        # Sockets that other tests left do not count.
        gc.collect()
        for round in range(5):
            peer = await Peer.connected(served.address, receive_buffer=4096)
            await peer.send(framed(b"fetch"))
            await peer.read(100)
            peer.close()
            await until(lambda round=round: len(served.gone) == round + 1)  # type: ignore[misc]
            await asyncio.sleep(0.01)
            open_files.append(open_descriptors())
        assert open_files[-1] <= open_files[0]


async def test_one_slow_reader_does_not_hold_up_others(file: DiskFile) -> None:
    async with Served(lambda connection, frame: connection.respond(answer_of(Range(file, 0, len(DATA))))) as served:
        slow, quick = await served.peer(receive_buffer=4096), await served.peer()
        await slow.send(framed(b"fetch"))
        assert await quick.ask(b"fetch") == DATA
        assert await slow.frame() == DATA
