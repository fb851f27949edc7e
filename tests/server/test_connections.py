"""Connections: request order, muting, limits, and misbehaving clients."""

import asyncio
import os
import resource
import socket
import struct
from collections import deque

import pytest
from socket_peers import Peer, Served, echo, framed, until

from ottla.base.units import KiB, MiB
from ottla.net.connection_context import Limits
from ottla.net.listener import bound_socket
from ottla.net.server_connection import ServerConnection

pytestmark = pytest.mark.server


async def test_small_frames_in_one_segment_are_answered_in_order() -> None:
    async with Served() as served:
        peer = await served.peer()
        await peer.send(b"".join(framed(b"%d" % number) for number in range(1000)))
        assert [await peer.frame() for _ in range(1000)] == [b"%d" % number for number in range(1000)]


async def test_a_frame_may_come_byte_by_byte() -> None:
    async with Served() as served:
        peer = await served.peer()
        for byte in framed(b"slowly"):
            await peer.send(bytes([byte]))
            await asyncio.sleep(0.002)
        assert await peer.frame() == b"slowly"


@pytest.mark.parametrize("size", [0, 1, 64 * KiB - 5, 64 * KiB - 4, 64 * KiB, 1 * MiB, 9 * MiB + 1])
async def test_frames_of_all_sizes_arrive_whole(size: int) -> None:
    async with Served() as served:
        peer = await served.peer()
        await peer.ask(b"first")
        payload = os.urandom(size)
        answer = asyncio.create_task(peer.frame())
        await peer.send(framed(payload))
        assert await answer == payload
        assert await peer.ask(b"after") == b"after"


async def test_large_and_small_frames_alternate() -> None:
    async with Served() as served:
        peer = await served.peer()
        await peer.ask(b"first")
        payloads = [os.urandom(size) for size in (10, 100_000, 0, 70_000, 3, 65_536, 200_000, 1) * 3]
        answers = asyncio.create_task(collect(peer, len(payloads)))
        await peer.send(b"".join(map(framed, payloads)))
        assert await answers == payloads


async def collect(peer: Peer, count: int) -> list[bytes]:
    return [await peer.frame() for _ in range(count)]


async def test_the_next_request_is_handed_on_only_when_the_last_is_answered() -> None:
    """Line 5."""
    waiting: deque[tuple[ServerConnection, bytes]] = deque()
    async with Served(lambda connection, frame: waiting.append((connection, frame))) as served:
        peer = await served.peer()
        await peer.send(b"".join(framed(b"%d" % number) for number in range(5)))
        for number in range(5):
            await until(lambda: waiting)
            await asyncio.sleep(0.01)
            assert served.requests[-1] == b"%d" % number and len(waiting) == 1
            connection, frame = waiting.popleft()
            connection.respond([framed(frame)])
            assert await peer.frame() == b"%d" % number


async def test_up_to_five_produce_requests_are_in_work_together_and_answered_in_order() -> None:
    """Line 5: order is kept all the same."""
    waiting: dict[int, tuple[ServerConnection, bytes]] = {}

    def park(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        waiting[connection.ticket] = (connection, frame)

    produce = [b"\0\0 produce %d" % number for number in range(7)]
    async with Served(park) as served:
        peer = await served.peer()
        await peer.send(b"".join(map(framed, produce)) + framed(b"\0\1 fetch"))
        await until(lambda: len(waiting) == 5)
        await asyncio.sleep(0.02)
        assert served.requests == produce[:5], "five are in work, not more"
        for ticket in (3, 2, 1):  # Answered from behind: nothing leaves before the first is answered.
            waiting[ticket][0].respond([framed(waiting[ticket][1])], ticket)
        assert [await peer.frame() for _ in range(3)] == produce[:3]
        await until(lambda: len(waiting) == 7)
        await asyncio.sleep(0.02)
        assert served.requests[-1] == produce[6], "a fetch waits until no produce is in work"
        waiting[4][0].release(4)
        for ticket in (5, 6, 7):
            waiting[ticket][0].respond([framed(waiting[ticket][1])], ticket)
        assert [await peer.frame() for _ in range(3)] == produce[4:]
        await until(lambda: len(waiting) == 8)
        waiting[8][0].respond([framed(b"done")], 8)
        assert await peer.frame() == b"done"


async def test_a_released_request_has_no_answer_and_the_next_follows() -> None:
    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.release() if frame == b"quiet" else echo(connection, frame)

    async with Served(answer) as served:
        peer = await served.peer()
        await peer.send(framed(b"quiet") * 20 + framed(b"loud"))
        assert await peer.frame() == b"loud"
        assert len(served.requests) == 21


async def test_a_muted_connection_is_read_ahead_only_a_little() -> None:
    async with Served(lambda connection, frame: None) as served:
        peer = await served.peer()
        sending = asyncio.create_task(peer.send(framed(b"x" * 1000) * 20_000))
        await until(lambda: served.context.held_bytes > 16 * KiB)
        await asyncio.sleep(0.1)
        assert served.context.held_bytes <= 128 * KiB
        assert not sending.done() and len(served.requests) == 1
        sending.cancel()
        peer.close()


@pytest.mark.parametrize("size", [-1, -(2**31), 2**31 - 1, 2 * MiB + 1])
async def test_a_frame_of_impossible_size_closes_the_connection_and_no_other(size: int) -> None:
    """Line 7."""
    async with Served() as served:
        bad, good = await served.peer(), await served.peer()
        await bad.send(struct.pack(">i", size) + b"whatever")
        assert await bad.closed()
        assert await good.ask(b"still here") == b"still here"
        assert served.context.traffic.cut["bad frame size"] == 1


async def test_the_first_request_must_be_small_later_ones_need_not() -> None:
    async with Served(limits=Limits(first_frame_bytes_max=100, frame_bytes_max=1000)) as served:
        peer = await served.peer()
        assert await peer.ask(b"x" * 100)
        assert await peer.ask(b"x" * 1000)
        await peer.send(framed(b"x" * 1001))
        assert await peer.closed()
        early = await served.peer()
        await early.send(framed(b"x" * 101))
        assert await early.closed()


async def test_a_handler_that_raises_loses_its_connection_alone() -> None:
    def answer(connection: ServerConnection, frame: bytes) -> None:
        if frame == b"bad":
            raise RuntimeError("a bug")
        echo(connection, frame)

    async with Served(answer) as served:
        bad, good = await served.peer(), await served.peer()
        await bad.send(framed(b"bad") + framed(b"never read"))
        assert await bad.closed()
        assert await good.ask(b"good") == b"good"
        assert served.requests == [b"bad", b"good"]


async def test_a_frame_waits_for_memory_and_is_read_when_there_is_some() -> None:
    async with Served(limits=Limits(request_memory_bytes=1 * MiB, first_frame_bytes_max=4 * MiB)) as served:
        first, second, third = [await served.peer() for _ in range(3)]
        half = b"a" * (512 * KiB + 1)
        await first.send(framed(half)[: 300 * KiB])
        await until(lambda: served.context.memory.used_bytes)
        for peer in (second, third):
            sending = asyncio.create_task(peer.send(framed(half)))
            await until(lambda: served.context.memory.waiting)
        await asyncio.sleep(0.05)
        assert served.requests == [] and served.context.memory.waiting == 2
        answers = [asyncio.create_task(peer.frame()) for peer in (first, second, third)]
        await first.send(framed(half)[300 * KiB :])
        assert [len(await answer) for answer in answers] == [len(half)] * 3
        await sending


async def test_a_frame_larger_than_all_memory_is_read_alone() -> None:
    async with Served(limits=Limits(request_memory_bytes=100 * KiB, first_frame_bytes_max=4 * MiB)) as served:
        peer = await served.peer()
        answer = asyncio.create_task(peer.frame())
        await peer.send(framed(b"b" * MiB))
        assert len(await answer) == MiB


async def test_a_peer_that_leaves_while_it_waits_for_memory_is_forgotten() -> None:
    async with Served(limits=Limits(request_memory_bytes=1 * MiB)) as served:
        holder, waiter, last = [await served.peer() for _ in range(3)]
        await holder.send(framed(b"x" * MiB)[:1000])
        await until(lambda: served.context.memory.used_bytes)
        for peer in (waiter, last):
            await peer.send(framed(b"y" * MiB)[:1000])
        await until(lambda: served.context.memory.waiting == 2)
        holder.close()
        await until(lambda: served.context.memory.waiting == 1)
        waiter.close()
        await until(lambda: served.context.memory.waiting == 0)
        answer = asyncio.create_task(last.frame())
        await last.send(framed(b"y" * MiB)[1000:])
        assert len(await answer) == MiB


class Keeping(Served):
    """Keeps each large frame until it is answered by the test."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: deque[tuple[ServerConnection, memoryview]] = deque()

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        if len(frame) > 64 * KiB:
            connection.trust()
            connection.keep_frame()
            self.kept.append((connection, frame))
        else:
            super().arrived(connection, frame)

    def answer_kept(self) -> None:
        connection, frame = self.kept.popleft()
        connection.respond([framed(bytes(frame))])
        connection.free_frame()


async def test_a_kept_frame_is_unchanged_until_it_is_freed() -> None:
    async with Keeping() as served:
        keeper, other = await served.peer(), await served.peer()
        payload, after = os.urandom(200_000), os.urandom(70_000)
        await keeper.send(framed(payload) + framed(b"next") + framed(after))
        await until(lambda: served.kept)
        for _ in range(3):
            assert await other.ask(b"small") == b"small"
            answer = asyncio.create_task(other.frame())
            await other.send(framed(bytes(150_000)))
            await until(lambda: len(served.kept) == 2)
            served.kept.rotate(-1)
            served.answer_kept()
            assert await answer == bytes(150_000)
        assert b"next" not in served.requests, "the next request waits"
        served.answer_kept()
        assert await keeper.frame() == payload
        assert await keeper.frame() == b"next"
        await until(lambda: served.kept)
        served.answer_kept()
        assert await keeper.frame() == after


async def test_a_produce_request_that_is_kept_is_followed_by_others_only_when_it_is_freed() -> None:
    async with Keeping() as served:
        peer = await served.peer()
        served.answer = lambda connection, frame: connection.trust()
        first, kept, last = b"\0\0 first", b"\0\0" + bytes(100_000), b"\0\0 last"
        await peer.send(b"".join(map(framed, (first, kept, last))))
        await until(lambda: served.kept)
        assert served.requests == [first]
        connection, _ = served.kept.popleft()
        connection.free_frame()
        await until(lambda: served.requests == [first, last])
        for ticket in (1, 2, 3):
            connection.respond([framed(b"%d" % ticket)], ticket)
        assert [await peer.frame() for _ in range(3)] == [b"1", b"2", b"3"]


async def test_the_memory_of_a_kept_frame_comes_back_when_its_peer_leaves() -> None:
    async with Keeping() as served:
        peer = await served.peer()
        await peer.send(framed(bytes(200_000)))
        await until(lambda: served.kept)
        assert served.context.memory.used_bytes
        peer.close()
        await until(lambda: served.gone)
        assert not served.context.memory.used_bytes
        served.kept.popleft()[0].free_frame()
        assert not served.context.memory.used_bytes


async def test_a_request_dribbled_too_slowly_is_cut_off() -> None:
    async with Served(limits=Limits(read_timeout_ms=200)) as served:
        prefix, body, brisk = [await served.peer() for _ in range(3)]
        await prefix.send(b"\0")
        await body.send(framed(b"z" * 100_000)[:50_000])
        for _ in range(3):
            assert await brisk.ask(b"brisk") == b"brisk"
            await asyncio.sleep(0.1)
        assert await prefix.closed() and await body.closed()
        assert served.context.traffic.cut["slow request"] == 2
        assert await brisk.ask(b"brisk") == b"brisk"


async def test_an_idle_connection_is_closed_but_not_one_whose_request_is_in_work() -> None:
    """Line 8."""
    parked: list[ServerConnection] = []

    def answer(connection: ServerConnection, frame: bytes) -> None:
        parked.append(connection) if frame == b"wait" else echo(connection, frame)

    async with Served(answer, Limits(idle_ms=150)) as served:
        idle, waiting = await served.peer(), await served.peer()
        await waiting.send(framed(b"wait"))
        assert await idle.closed()
        await asyncio.sleep(0.3)
        parked[0].respond([framed(b"done")])
        assert await waiting.frame() == b"done"
        assert served.context.traffic.cut["idle"] == 1


async def test_a_peer_that_never_reads_is_cut_off_and_its_requests_are_no_longer_read() -> None:
    big = b"r" * (256 * KiB)
    limits = Limits(write_buffer_bytes_max=MiB, write_timeout_ms=400)
    async with Served(lambda connection, frame: connection.respond([framed(big)]), limits) as served:
        peer, good = await served.peer(receive_buffer=4096), await served.peer()
        sending = asyncio.create_task(peer.send(framed(b"more") * 100_000))
        await until(lambda: served.gone)
        assert served.context.traffic.cut["peer does not read"] == 1
        assert len(served.requests) < 60
        sending.cancel()
        assert await good.ask(b"") == big


async def test_answers_that_wait_in_all_connections_are_bounded_and_those_with_the_most_are_cut() -> None:
    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.respond([framed(bytes(int(frame)))])

    limits = Limits(answer_bytes_max=60 * MiB, write_timeout_ms=60_000, read_timeout_ms=200)
    async with Served(answer, limits) as served:
        large = [await served.peer(receive_buffer=4096) for _ in range(4)]
        small = await served.peer(receive_buffer=4096)
        for peer in large:
            await peer.send(framed(b"%d" % (40 * MiB)))
        await small.send(framed(b"%d" % (4 * MiB)))
        await until(lambda: served.context.traffic.cut["too many answers wait"] >= 3)
        assert len(await small.frame()) == 4 * MiB, "one with less is served"
        await asyncio.sleep(0.2)
        assert served.context.traffic.cut["too many answers wait"] == 3
        for peer in (*large, small):
            peer.close()


async def test_a_slow_reader_that_keeps_taking_bytes_is_not_cut_off() -> None:
    big = b"r" * (3 * MiB)
    async with Served(lambda connection, frame: connection.respond([framed(big)]), Limits(write_timeout_ms=300)) as served:
        peer = await served.peer(receive_buffer=64 * KiB)
        await peer.send(framed(b"go"))
        got = 0
        while got < len(big) + 4:
            part = await peer.loop.sock_recv(peer.socket, 256 * KiB)
            assert part, "the connection is open until all was read"
            got += len(part)
            await asyncio.sleep(0.05)


async def test_connections_of_one_address_are_limited() -> None:
    async with Served(limits=Limits(connections_per_host_max=3)) as served:
        kept = [await served.peer() for _ in range(3)]
        for peer in kept:
            assert await peer.ask(b"in") == b"in"
        over = await served.peer()
        assert await over.closed()
        kept[0].close()
        await until(lambda: served.gone)
        again = await served.peer()
        assert await again.ask(b"in") == b"in"
        assert served.context.traffic.refused == 1


async def test_connections_are_limited_in_all() -> None:
    async with Served(limits=Limits(connections_max=2)) as served:
        one, two = await served.peer(), await served.peer()
        assert await one.ask(b"1") and await two.ask(b"2")
        assert await (await served.peer()).closed()


async def test_one_address_may_have_a_limit_of_its_own() -> None:
    async with Served(limits=Limits(connections_per_host_max=0, connections_of_hosts=(("127.0.0.1", 2),))) as served:
        one, two = await served.peer(), await served.peer()
        assert await one.ask(b"1") and await two.ask(b"2")
        assert await (await served.peer()).closed()


async def test_changed_limits_apply_to_new_connections_and_keep_the_open_ones() -> None:
    async with Served() as served:
        one, two = await served.peer(), await served.peer()
        assert await one.ask(b"1") and await two.ask(b"2")
        served.context.set_limits(Limits(connections_max=1))
        assert await (await served.peer()).closed()
        assert await one.ask(b"1") and await two.ask(b"2")
        served.context.set_limits(Limits(connections_max=3))
        assert await (await served.peer()).ask(b"3") == b"3"


async def test_connections_above_the_rate_wait_and_are_served() -> None:
    async with Served(limits=Limits(connection_rate=5)) as served:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        peers = [await served.peer() for _ in range(9)]
        assert await asyncio.gather(*(peer.ask(b"in") for peer in peers)) == [b"in"] * 9
        # The bucket holds one second of tokens, so five connections do not wait, and four wait 0.2 s each.
        assert loop.time() - began_s > 0.749
        assert served.context.traffic.refused == 0


def test_connections_inherit_the_sizes_of_the_buffers_from_the_listener() -> None:
    with bound_socket("127.0.0.1", 0, send_bytes=20_000, receive_bytes=30_000) as listener, socket.socket() as client:
        client.connect(listener.getsockname())
        with listener.accept()[0] as accepted:
            # Linux doubles the requested size for its own use.
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 40_000
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 60_000


@pytest.mark.skipif(not socket.has_ipv6, reason="this Python has no IPv6")
def test_the_unspecified_ipv6_address_listens_on_both_families() -> None:
    with bound_socket("::", 0) as listener:
        port = listener.getsockname()[1]
        for host in ("127.0.0.1", "::1"):
            with socket.create_connection((host, port), timeout=5):
                listener.accept()[0].close()


async def test_many_clients_that_connect_and_leave_at_once_leave_nothing_behind() -> None:
    async with Served() as served:
        for _ in range(5):
            peers = [await served.peer() for _ in range(40)]
            for peer in peers[::2]:
                await peer.send(framed(b"x" * 5000)[:4000])
            for peer in peers:
                peer.close()
        await until(lambda: len(served.gone) == 200)
        assert not served.context.connections and served.context.held_bytes == 0


async def test_without_descriptors_left_accept_turns_away_and_does_not_spin() -> None:
    async with Served() as served:
        old = resource.getrlimit(resource.RLIMIT_NOFILE)
        first = await served.peer()
        assert await first.ask(b"in") == b"in"
        waiting = [Peer() for _ in range(6)]
        probe = os.open(os.devnull, os.O_RDONLY)
        os.close(probe)
        resource.setrlimit(resource.RLIMIT_NOFILE, (probe, old[1]))
        try:
            for peer in waiting:
                await peer.loop.sock_connect(peer.socket, served.address)
            assert all([await peer.closed() for peer in waiting])
            assert await first.ask(b"still") == b"still"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, old)
        assert served.context.traffic.refused == 6
        assert await (await served.peer()).ask(b"again") == b"again"


async def test_closing_lets_the_last_answer_out() -> None:
    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.respond([framed(b"bye" * 100_000)])
        connection.close("enough")

    async with Served(answer) as served:
        peer = await served.peer()
        assert await peer.ask(b"last") == b"bye" * 100_000
        assert await peer.closed()


async def test_a_connection_knows_both_its_ends() -> None:
    seen: list[ServerConnection] = []

    def answer(connection: ServerConnection, frame: bytes) -> None:
        seen.append(connection)
        echo(connection, frame)

    async with Served(answer) as served:
        peer = await served.peer()
        await peer.ask(b"x")
        assert (seen[0].host, seen[0].origin.local) == ("127.0.0.1", served.address)
