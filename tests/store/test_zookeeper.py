"""Sessions with a real ZooKeeper: lost servers, lost connections, expiry."""

import asyncio
from collections.abc import AsyncIterator, Callable
from itertools import count
from pathlib import Path

import pytest

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.server.zookeeper_ensemble import Ensemble
from ottla.spark.java import java_home
from ottla.store.zookeeper.opening import ZooKeeperUnavailable, open_session
from ottla.store.zookeeper.session import Connect, ZooKeeperSession

pytestmark = pytest.mark.server
CHROOTS = count(1)


class WatchedSession:
    """A session and its events, in order."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self.events: list[NodeState | SessionState] = []
        session.watch("/a", self.events.append)
        session.listen(self.events.append)

    @property
    def states(self) -> list[str]:
        return [event for event in self.events if isinstance(event, str)]

    @property
    def nodes(self) -> dict[str, bytes]:
        """The nodes that result from the events."""
        found: dict[str, bytes] = {}
        for event in self.events:
            if isinstance(event, NodeState) and event.data is None:
                del found[event.path]
            elif isinstance(event, NodeState) and event.data is not None:
                found[event.path] = event.data
        return found

    async def submit(self, *ops: Op) -> StoreResult:
        result: asyncio.Future[StoreResult] = asyncio.get_running_loop().create_future()
        self.session.submit(ops, result.set_result)
        return await result


async def until(true: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not true():  # noqa: ASYNC110  (the condition depends on another process)
            await asyncio.sleep(0.01)


class Sessions:
    def __init__(self) -> None:
        self.chroot = f"/sessions-{next(CHROOTS)}"
        self.opened: list[ZooKeeperSession] = []

    async def open(self, hosts: str, *, session_timeout_ms: int = 4_000) -> WatchedSession:
        connect = Connect.parse(hosts + self.chroot, session_timeout_ms=session_timeout_ms, connection_timeout_ms=20_000)
        self.opened.append(await open_session(connect))
        return WatchedSession(self.opened[-1])


@pytest.fixture
async def sessions() -> AsyncIterator[Sessions]:
    made = Sessions()
    yield made
    for session in made.opened:
        session.close()
        await session.closed()


async def expire(one: WatchedSession) -> None:
    """Closes the session from another client with the same id. Repeats, because the owner may reconnect first."""
    from kazoo.client import KazooClient
    from kazoo.handlers.threading import KazooTimeoutError

    session_id = one.session.client.client_id

    def close_session() -> None:
        other_client = KazooClient(hosts=one.session.connect.hosts, client_id=session_id)
        try:
            other_client.start(timeout=3)
        except KazooTimeoutError:
            return
        other_client.stop()
        other_client.close()

    async with asyncio.timeout(60):
        while "lost" not in one.states:
            if one.session.client.client_id == session_id:
                await asyncio.get_running_loop().run_in_executor(None, close_session)
            await asyncio.sleep(0.05)


async def test_session_survives_a_server_that_accepts_a_connection_and_never_responds(zookeeper: Ensemble, sessions: Sessions) -> None:
    host, port = zookeeper.servers[0].address
    taken: list[asyncio.StreamWriter] = []
    copies: list[asyncio.Task[None]] = []

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        taken.append(writer)
        # The second connection gets no response.
        if len(taken) != 2:
            there, back = await asyncio.open_connection(host, port)
            copies.extend(asyncio.create_task(copy(*pair)) for pair in ((reader, back), (there, writer)))

    front = await asyncio.start_server(serve, "127.0.0.1", 0)
    one = await sessions.open(f"127.0.0.1:{front.sockets[0].getsockname()[1]}", session_timeout_ms=6_000)
    taken[0].close()
    await until(lambda: one.states[-1:] == ["connected"])
    assert (one.states, len(taken)) == (["suspended", "connected"], 3)
    front.close()


async def test_session_survives_its_server_and_receives_missed_changes(zookeepers: Ensemble, sessions: Sessions) -> None:
    servers = zookeepers.servers
    one = await sessions.open(f"127.0.0.1:{servers[0].address[1]},127.0.0.1:{servers[1].address[1]}")
    other = await sessions.open(f"127.0.0.1:{servers[2].address[1]}")
    await one.submit(Op("create", "/a"), Op("create", "/a/eph", ephemeral=True), Op("create", "/a/gone"), Op("create", "/a/old", b"old"))
    # The server that this session is connected to.
    port = one.session.client._connection._socket.getpeername()[1]
    server = next(server for server in servers if server.address[1] == port)
    zookeepers.kill(server)
    try:
        await until(lambda: one.states[:1] == ["suspended"])
        assert (await one.submit(Op("check", "/a"))).error in ("unavailable", None)
        replace = (Op("delete", "/a/gone"), Op("delete", "/a/old"), Op("create", "/a/old", b"new"))
        while (await other.submit(*replace)).error == "unavailable":  # noqa: ASYNC110
            # An ensemble without a leader closes all connections until it has elected another.
            await asyncio.sleep(0.05)
        await until(lambda: one.states[-1:] == ["connected"])
        await one.submit(Op("check", "/a"))
        assert one.states == ["suspended", "connected"]
        assert one.nodes == {"/a": b"", "/a/eph": b"", "/a/old": b"new"} == other.nodes
    finally:
        zookeepers.spawn(server)
        zookeepers.await_ready(server)


async def test_expired_session_is_reported_and_renewed_without_its_ephemeral_nodes(zookeeper: Ensemble, sessions: Sessions) -> None:
    one, other = await sessions.open(zookeeper.connect), await sessions.open(zookeeper.connect)
    await one.submit(Op("create", "/a"), Op("create", "/a/eph", ephemeral=True))
    assert one.nodes == {"/a": b"", "/a/eph": b""}
    await expire(one)
    await until(lambda: one.states[-1:] == ["connected"])
    assert "lost" in one.states
    assert one.nodes == {"/a": b""}, "changes are delivered before the session is connected"
    assert (await one.submit(Op("create", "/a/eph", b"2", ephemeral=True))).error is None
    await until(lambda: other.nodes == {"/a": b"", "/a/eph": b"2"})
    assert one.nodes == other.nodes


class Writer:
    """Increments a number in its node by compare-and-set and creates a node per number."""

    def __init__(self, name: str, watched: WatchedSession) -> None:
        self.path = f"/a/{name}"
        self.watched = watched
        self.number = 0
        self.unknown_outcomes = 0
        self.stopped = False

    async def run(self) -> None:
        await self.watched.submit(Op("create", self.path, b"0"))
        while not self.stopped:
            number = self.number + 1
            result = await self.watched.submit(
                Op("set", self.path, b"%d" % number, self.number), Op("create", f"{self.path}/{number}", bytes(50))
            )
            if result.error == "unavailable":
                self.unknown_outcomes += 1
                await asyncio.sleep(0.01)
                continue
            # The write may have succeeded without a response. Its repetition then fails with a version error.
            assert result.error is None or (result.error == "version" and self.unknown_outcomes), result
            self.number = number

    async def progress(self, count: int = 15) -> None:
        target = self.number + count
        await until(lambda: self.number >= target, timeout_s=60)


@pytest.mark.parametrize("nodes", [1, 3])
async def test_writes_are_applied_once_and_seen_by_all_sessions_while_servers_are_killed(
    nodes: int, tmp_path: Path, zookeeper: Ensemble, sessions: Sessions
) -> None:
    loop = asyncio.get_running_loop()
    zookeepers = Ensemble(tmp_path / "zk", java_home(needed_by="ZooKeeper"), nodes=nodes)
    try:
        await loop.run_in_executor(None, zookeepers.start)
        watched = [await sessions.open(zookeepers.connect, session_timeout_ms=20_000) for _ in range(3)]
        await watched[0].submit(Op("create", "/a"))
        writers = [Writer(f"w{number}", one) for number, one in enumerate(watched[:2])]
        running = [asyncio.create_task(writer.run()) for writer in writers]
        for server in zookeepers.servers * (2 if nodes == 1 else 1):
            await asyncio.gather(*(writer.progress() for writer in writers))
            zookeepers.kill(server)
            if nodes > 1:
                await asyncio.gather(*(writer.progress() for writer in writers))
            zookeepers.spawn(server)
            await loop.run_in_executor(None, zookeepers.await_ready, server)
        await asyncio.gather(*(writer.progress() for writer in writers))
        for writer in writers:
            writer.stopped = True
        await asyncio.gather(*running)
        held = {"/a": b""}
        for writer in writers:
            held |= {writer.path: b"%d" % writer.number, **{f"{writer.path}/{n}": bytes(50) for n in range(1, writer.number + 1)}}
        for one in watched:
            await until(lambda one=one: one.nodes == held)  # type: ignore[misc]
            assert "lost" not in one.states and ("suspended" in one.states or nodes == 3)
    finally:
        zookeepers.stop()


async def test_oversized_multi_is_refused_and_keeps_the_connection(zookeeper: Ensemble, sessions: Sessions) -> None:
    one = await sessions.open(zookeeper.connect)
    assert (await one.submit(Op("create", "/a", bytes(1 << 20)))).error == "too_large"
    assert (await one.submit(Op("create", "/a", bytes((1 << 20) - 1000)))).error is None
    assert one.states == []


async def test_ten_thousand_partitions_are_read_in_seconds(zookeeper: Ensemble, sessions: Sessions) -> None:
    writer = await sessions.open(zookeeper.connect)
    await writer.submit(Op("create", "/a"))
    for topic in range(100):
        parts = [Op("create", f"/a/{topic}")]
        for number in range(100):
            parts += [Op("create", f"/a/{topic}/{number}"), Op("create", f"/a/{topic}/{number}/state", bytes(80))]
        writer.session.submit(parts, lambda result: None)
    await writer.submit(Op("check", "/a"))
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    reader = await sessions.open(zookeeper.connect)
    await reader.submit(Op("check", "/a"))
    assert len(reader.nodes) == 1 + 100 + 2 * 10_000
    assert loop.time() - begun_s < 10.0
    # The writer learns of its own writes from its watch.
    await until(lambda: len(writer.events) >= len(reader.events))
    assert reader.nodes == writer.nodes


async def test_unreachable_ensemble_is_reported_with_its_address() -> None:
    connect = Connect.parse("127.0.0.1:1/x", session_timeout_ms=1_000, connection_timeout_ms=300)
    with pytest.raises(ZooKeeperUnavailable, match=r"no ZooKeeper answers at 127\.0\.0\.1:1 within 300 ms"):
        await open_session(connect)


@pytest.mark.parametrize("text", ["", ":2181", "host:0", "host:x", "a:1,,b:2", "h:1//x"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        Connect.parse(text, session_timeout_ms=1, connection_timeout_ms=1)
