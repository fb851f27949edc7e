"""Connections of throttled clients: muted after the answer; and those of addresses above their quota."""

import asyncio
from collections.abc import Callable

import pytest
from socket_peers import Peer, Served, echo, framed, until

from ottla.base.sampled_rate import Window
from ottla.base.units import KiB, MiB
from ottla.net.connection_context import OTHERS, Limits
from ottla.net.server_connection import ServerConnection

pytestmark = pytest.mark.server
#: Longer than any test.
LONG_MS = 60_000
PRODUCE = b"\0\0"


def muting(*which: bytes, duration_ms: int) -> Callable[[ServerConnection, bytes], None]:
    """Echoes, and mutes the connection with the answers of these requests."""

    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        if frame in which:
            connection.mute(duration_ms)
        connection.respond([framed(frame)])

    return answer


async def test_the_answer_goes_at_once_and_the_next_request_waits() -> None:
    """Line 6."""
    loop = asyncio.get_running_loop()
    async with Served(muting(b"loud", duration_ms=300)) as served:
        peer = await served.peer()
        began_s = loop.time()
        assert await peer.ask(b"loud") == b"loud"
        (connection,) = (one for one in served.context.connections if isinstance(one, ServerConnection))
        assert connection._unmute is not None or loop.time() - began_s > 0.299, "the answer came while the connection was muted"
        assert await peer.ask(b"next") == b"next"
        assert loop.time() - began_s > 0.299, "uvloop counts milliseconds"
        assert await peer.ask(b"after") == b"after"


async def test_pipelined_requests_wait_and_keep_their_order() -> None:
    async with Served(muting(b"1", b"3", duration_ms=100)) as served:
        peer = await served.peer()
        await peer.send(b"".join(framed(b"%d" % number) for number in range(6)))
        assert await peer.frame() == b"0" and await peer.frame() == b"1"
        assert served.requests == [b"0", b"1"]
        assert [await peer.frame() for _ in range(4)] == [b"2", b"3", b"4", b"5"]


async def test_a_muted_connection_is_not_read() -> None:
    async with Served(muting(b"loud", duration_ms=LONG_MS)) as served:
        peer = await served.peer()
        sending = asyncio.create_task(peer.send(framed(b"loud") + framed(b"x" * 1000) * 40_000))
        assert await peer.frame() == b"loud"
        received = served.context.traffic.received_bytes
        other = await served.peer()
        for _ in range(50):
            await other.ask(b"other")
        assert served.context.traffic.received_bytes - received <= 50 * 9 + 64 * KiB
        assert served.context.held_bytes <= 64 * KiB and not sending.done()
        sending.cancel()
        peer.close()
        other.close()


async def test_a_frame_that_was_begun_is_completed_after_the_mute() -> None:
    """Several Produce requests may be in work, so a frame can be half there when an earlier one is throttled."""
    waiting: list[ServerConnection] = []

    def park(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        waiting.append(connection)

    payload = PRODUCE + bytes(MiB)
    async with Served(park) as served:
        peer = await served.peer()
        await peer.send(framed(PRODUCE + b"first") + framed(payload)[: 200 * KiB])
        await until(lambda: served.context.traffic.received_bytes == 200 * KiB + 11)
        waiting[0].mute(150)
        muted_s = asyncio.get_running_loop().time()
        waiting[0].respond([framed(b"answer")], 1)
        assert await peer.frame() == b"answer"
        await peer.send(framed(payload)[200 * KiB :])
        await until(lambda: len(waiting) == 2)
        assert asyncio.get_running_loop().time() - muted_s >= 0.15
        waiting[1].respond([framed(b"second")], 2)
        assert await peer.frame() == b"second"


async def test_requests_in_work_are_answered_while_muted() -> None:
    waiting: list[ServerConnection] = []

    def park(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        waiting.append(connection)

    async with Served(park) as served:
        peer = await served.peer()
        await peer.send(b"".join(framed(PRODUCE + b"%d" % number) for number in range(6)))
        await until(lambda: len(waiting) == 5)
        waiting[0].mute(LONG_MS)
        for ticket in (1, 2, 3, 4, 5):
            waiting[0].respond([framed(b"%d" % ticket)], ticket)
        assert [await peer.frame() for _ in range(5)] == [b"1", b"2", b"3", b"4", b"5"]
        assert len(waiting) == 5
        peer.close()


async def test_the_longest_of_several_mutes_counts() -> None:
    loop = asyncio.get_running_loop()

    def answer(connection: ServerConnection, frame: bytes) -> None:
        connection.trust()
        if frame == b"loud":
            connection.mute(200)
            connection.mute(10)
        connection.respond([framed(frame)])

    async with Served(answer) as served:
        peer = await served.peer()
        began_s = loop.time()
        await peer.ask(b"loud")
        await peer.ask(b"next")
        # uvloop's clock has milliseconds, and the difference of two floats is not exact.
        assert round(loop.time() - began_s, 3) >= 0.2


async def test_a_muted_connection_is_not_idle() -> None:
    async with Served(muting(b"loud", duration_ms=400), Limits(idle_ms=100)) as served:
        peer = await served.peer()
        assert await peer.ask(b"loud") == b"loud"
        assert await peer.ask(b"next") == b"next"
        assert not served.gone


async def test_a_muted_connection_closes_with_the_server() -> None:
    async with Served(muting(b"loud", duration_ms=LONG_MS)) as served:
        peer = await served.peer()
        await peer.ask(b"loud")
    assert len(served.gone) == 1
    assert await peer.closed()


async def test_a_handler_can_close_a_muted_connection() -> None:
    async with Served(muting(b"loud", duration_ms=LONG_MS)) as served:
        peer = await served.peer()
        await peer.ask(b"loud")
        [connection] = served.context.connections
        assert isinstance(connection, ServerConnection)
        connection.close("test")
        assert await peer.closed()
        await until(lambda: served.gone)


async def test_a_released_request_can_mute_too() -> None:
    loop = asyncio.get_running_loop()

    def answer(connection: ServerConnection, frame: bytes) -> None:
        if frame == b"quiet":
            connection.mute(200)
            connection.release()
        else:
            echo(connection, frame)

    async with Served(answer) as served:
        peer = await served.peer()
        began_s = loop.time()
        await peer.send(framed(b"quiet") + framed(b"loud"))
        assert await peer.frame() == b"loud"
        assert loop.time() - began_s > 0.199


# Rates of connections.

FAST = Window(samples=2, sample_ms=200)


async def test_connections_above_the_quota_of_their_address_are_closed_later() -> None:
    loop = asyncio.get_running_loop()
    async with Served() as served:
        # One in 200 ms.
        served.context.set_address_rates({"127.0.0.1": 5}, FAST)
        first, second = await served.peer(), await served.peer()
        began_s = loop.time()
        assert await first.ask(b"served") == b"served"
        assert await second.closed()
        assert 0.05 <= loop.time() - began_s <= 5
        assert served.context.traffic.throttled == 1 and served.context.traffic.accepted == 1
        await asyncio.sleep(0.4)
        third = await served.peer()
        assert await third.ask(b"served") == b"served"


async def test_the_default_quota_applies_to_each_other_address() -> None:
    async with Served() as served:
        served.context.set_address_rates({OTHERS: 5}, FAST)
        assert served.context.address_throttle_ms("10.0.0.1") == 0
        assert served.context.address_throttle_ms("10.0.0.1") > 0
        assert served.context.address_throttle_ms("10.0.0.2") == 0
        served.context.set_address_rates({OTHERS: 5, "10.0.0.1": 1000}, FAST)
        assert served.context.address_throttle_ms("10.0.0.1") == 0


async def test_a_throttled_connection_is_closed_with_the_server() -> None:
    async with Served() as served:
        served.context.set_address_rates({OTHERS: 0.001}, Window(samples=2, sample_ms=LONG_MS))
        await served.peer()
        peer = await served.peer()
        await until(lambda: served.context.traffic.throttled)
    assert await peer.closed()


async def test_a_connection_without_a_quota_is_not_measured() -> None:
    async with Served() as served:
        served.context.set_address_rates({"10.0.0.1": 1}, FAST)
        peers: list[Peer] = [await served.peer() for _ in range(20)]
        assert [await peer.ask(b"x") for peer in peers] == [b"x"] * 20
