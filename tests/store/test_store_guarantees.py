"""Guarantees of every coordination store, tested against each; ZooKeeper is a real one where Java is available."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count
from pathlib import Path

import pytest

from ottla.base.ports import NodeState, Op, Store, StoreResult
from ottla.store.embedded.store import EmbeddedStore
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.memory import MemoryStore
from ottla.store.zookeeper.opening import open_session
from ottla.store.zookeeper.session import Connect, ZooKeeperSession

CHROOTS = count(1)
KINDS = ["memory", "embedded", pytest.param("zookeeper", marks=pytest.mark.server)]


class Ensemble:
    """A store under test: opens sessions, and lets what was submitted take its course."""

    def __init__(self, session: Callable[[], Awaitable[Store]], settle: Callable[[], Awaitable[None]]) -> None:
        self.session = session
        self.settle = settle

    async def submit(self, session: Store, *ops: Op) -> StoreResult:
        answers: list[StoreResult] = []
        session.submit(ops, answers.append)
        assert not answers, "an answer never comes during submit"
        await self.settle()
        assert len(answers) == 1
        return answers[0]

    async def read(self, session: Store, path: str) -> NodeState | None:
        seen: list[NodeState] = []
        session.watch(path, seen.append)
        await self.settle()
        return next((state for state in seen if state.path == path), None)


class Sessions:
    """Sessions with a real ZooKeeper, in a chroot of their own."""

    def __init__(self, hosts: str) -> None:
        self.connect = Connect.parse(f"{hosts}/promises-{next(CHROOTS)}", session_timeout_ms=10_000, connection_timeout_ms=10_000)
        self.opened: list[ZooKeeperSession] = []

    async def session(self) -> ZooKeeperSession:
        opened = await open_session(self.connect)
        self.opened.append(opened)
        return opened

    async def settle(self) -> None:
        """A check comes to every session behind all that was done before; what callbacks ask for takes another round."""
        for _ in range(3):
            for session in self.opened:
                if session.ended:
                    await session.closed()
                else:
                    done = asyncio.Event()
                    session.submit([Op("check", "/brokers")], lambda result, done=done: done.set())  # type: ignore[misc]
                    await done.wait()

    async def close(self) -> None:
        for session in self.opened:
            session.close()
            await session.closed()


@pytest.fixture(params=KINDS)
async def ensemble(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Ensemble]:
    if request.param == "memory":
        memory = MemoryStore()

        async def remembered() -> Store:
            return memory.session()

        async def run() -> None:
            memory.run()

        yield Ensemble(remembered, run)
    elif request.param == "embedded":
        embedded = EmbeddedStore(tmp_path / "store.sqlite")

        async def kept() -> Store:
            return embedded.session()

        yield Ensemble(kept, embedded.settled)
        await embedded.close()
    else:
        sessions = Sessions(request.getfixturevalue("zookeeper").connect)
        yield Ensemble(sessions.session, sessions.settle)
        await sessions.close()


def create(path: str, data: bytes = b"", *, ephemeral: bool = False) -> Op:
    return Op("create", path, data, ephemeral=ephemeral)


async def test_the_layouts_parents_exist_from_the_start(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    for path in PERSISTENT_PATHS:
        assert (await ensemble.submit(session, Op("check", path))).error is None


async def test_a_created_node_has_version_0_and_each_set_adds_1(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    created = (await ensemble.submit(session, create("/a", b"one"))).states[0]
    assert (created.path, created.data, created.version) == ("/a", b"one", 0)
    changed = (await ensemble.submit(session, Op("set", "/a", b"two", 0))).states[0]
    assert (changed.data, changed.version, changed.created_zxid) == (b"two", 1, created.created_zxid)


async def test_a_node_created_later_has_a_higher_zxid(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    first = await ensemble.submit(session, create("/a"), create("/b"))
    second = await ensemble.submit(session, create("/c"))
    assert first.states[0].created_zxid == first.states[1].created_zxid < second.states[0].created_zxid


@pytest.mark.parametrize(
    ("op", "error"),
    [
        (create("/a"), "exists"),
        (create("/no/child"), "missing"),
        (create("/eph/child"), "missing"),
        (Op("set", "/no"), "missing"),
        (Op("set", "/a", b"", 7), "version"),
        (Op("delete", "/no"), "missing"),
        (Op("delete", "/a", version=7), "version"),
        (Op("delete", "/p"), "not_empty"),
        (Op("check", "/no"), "missing"),
        (Op("check", "/a", version=7), "version"),
    ],
)
async def test_an_operation_that_does_not_fit_is_refused(ensemble: Ensemble, op: Op, error: str) -> None:
    session = await ensemble.session()
    await ensemble.submit(session, create("/a"), create("/p"), create("/p/c"), create("/eph", ephemeral=True))
    result = await ensemble.submit(session, op)
    assert (result.error, result.failed_op, result.states) == (error, 0, ())


async def test_a_refused_multi_leaves_nothing_behind(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    before = (await ensemble.submit(session, create("/a", b"old"), create("/gone"))).states[0]
    result = await ensemble.submit(
        session, Op("set", "/a", b"new"), create("/b"), create("/b/c"), Op("delete", "/gone"), Op("check", "/a", version=5)
    )
    assert (result.error, result.failed_op) == ("version", 4)
    assert await ensemble.read(session, "/a") == before
    assert await ensemble.read(session, "/b") is None
    assert await ensemble.read(session, "/gone") is not None
    assert (await ensemble.submit(session, create("/b"))).error is None


async def test_operations_of_a_multi_see_the_ones_before_them(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    result = await ensemble.submit(
        session, create("/a"), create("/a/b"), Op("set", "/a", b"x", 0), Op("check", "/a", version=1), Op("delete", "/a/b")
    )
    assert result.error is None
    assert [state.version for state in result.states] == [0, 0, 1, 1, -1]


async def test_of_two_sets_with_one_version_the_first_wins(ensemble: Ensemble) -> None:
    one, two = await ensemble.session(), await ensemble.session()
    await ensemble.submit(one, create("/a"))
    answers: list[tuple[str, StoreResult]] = []
    one.submit([Op("set", "/a", b"one", 0)], lambda result: answers.append(("one", result)))
    two.submit([Op("set", "/a", b"two", 0)], lambda result: answers.append(("two", result)))
    await ensemble.settle()
    # Which of two sessions is the first, a store with a network between does not promise.
    assert sorted(str(result.error) for _, result in answers) == ["None", "version"]


async def test_a_watch_first_shows_what_is_there_parents_before_children(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    await ensemble.submit(session, create("/a"), create("/a/z"), create("/a/z/b"), create("/a/c"), create("/ab"))
    seen: list[NodeState] = []
    session.watch("/a", seen.append)
    await ensemble.settle()
    paths = [state.path for state in seen]
    assert sorted(paths) == ["/a", "/a/c", "/a/z", "/a/z/b"]
    assert paths.index("/a") == 0 and paths.index("/a/z") < paths.index("/a/z/b")


async def test_a_watch_shows_every_change_once_and_in_order_to_every_session(ensemble: Ensemble) -> None:
    writer, watcher = await ensemble.session(), await ensemble.session()
    seen: list[tuple[str, bytes | None, int]] = []
    own: list[str] = []
    watcher.watch("/a", lambda state: seen.append((state.path, state.data, state.version)))
    writer.watch("/", lambda state: own.append(state.path))
    await ensemble.settle()
    await ensemble.submit(writer, create("/a", b"1"), create("/a/b", b"2"))
    await ensemble.submit(writer, Op("set", "/a", b"3"), Op("check", "/a"))
    await ensemble.submit(writer, Op("delete", "/a/b"), create("/other"))
    assert seen == [("/a", b"1", 0), ("/a/b", b"2", 0), ("/a", b"3", 1), ("/a/b", None, -1)]
    assert own[len(PERSISTENT_PATHS) :] == ["/a", "/a/b", "/a", "/a/b", "/other"]


async def test_of_changes_in_a_row_the_last_is_shown_and_nothing_older_after_it(ensemble: Ensemble) -> None:
    writer, watcher = await ensemble.session(), await ensemble.session()
    seen: list[NodeState] = []
    watcher.watch("/a", seen.append)
    await ensemble.settle()
    for round_number in range(5):
        writer.submit([create("/a", b"new"), create("/a/b", b"0")], lambda result: None)
        for number in range(1, 20):
            writer.submit([Op("set", "/a/b", f"{round_number}:{number}".encode())], lambda result: None)
        writer.submit([Op("delete", "/a/b"), Op("delete", "/a")], lambda result: None)
    writer.submit([create("/a"), create("/a/b", b"end")], lambda result: None)
    await ensemble.settle()
    assert [state.data for state in seen[-2:]] == [b"", b"end"]
    there: set[str] = set()
    last: dict[str, tuple[int, int]] = {}
    for state in seen:
        if state.data is None:
            assert state.path in there
            there.discard(state.path)
        else:
            assert state.path == "/a" or "/a" in there
            assert (state.created_zxid, state.version) > last.get(state.path, (-1, -1))
            last[state.path] = (state.created_zxid, state.version)
            there.add(state.path)


async def test_node_replaced_in_one_multi_is_reported_deleted_then_created(ensemble: Ensemble) -> None:
    writer, watcher = await ensemble.session(), await ensemble.session()
    seen: list[tuple[bytes | None, int]] = []
    watcher.watch("/a", lambda state: seen.append((state.data, state.version)))
    await ensemble.submit(writer, create("/a", b"old"))
    result = await ensemble.submit(writer, Op("delete", "/a"), create("/a", b"new"))
    assert result.error is None
    assert seen == [(b"old", 0), (None, -1), (b"new", 0)]


async def test_a_watch_that_begins_between_changes_misses_none_and_repeats_none(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    seen: list[bytes | None] = []
    session.submit([create("/a", b"1")], lambda result: None)
    session.submit([Op("set", "/a", b"2")], lambda result: None)
    session.watch("/a", lambda state: seen.append(state.data))
    session.submit([Op("set", "/a", b"3")], lambda result: None)
    await ensemble.settle()
    assert seen == [b"2", b"3"]


async def test_session_receives_a_change_before_the_result_of_its_write(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    received: list[str] = []
    session.watch("/a", lambda state: received.append("change"))
    session.submit([create("/a")], lambda result: received.append("answer"))
    await ensemble.settle()
    assert received == ["change", "answer"]


async def test_what_a_callback_submits_is_carried_out_too(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    answers: list[StoreResult] = []
    session.submit([create("/a")], lambda result: session.submit([create("/a/b")], answers.append))
    await ensemble.settle()
    assert [answer.error for answer in answers] == [None]


async def test_ephemeral_nodes_go_with_their_session_and_watches_of_others_see_it(ensemble: Ensemble) -> None:
    one, two = await ensemble.session(), await ensemble.session()
    await ensemble.submit(one, create("/one", ephemeral=True), create("/stays"))
    await ensemble.submit(two, create("/two", ephemeral=True))
    seen: list[tuple[str, bytes | None]] = []
    two.watch("/", lambda state: seen.append((state.path, state.data)))
    await ensemble.settle()
    seen.clear()
    one.close()
    await ensemble.settle()
    assert seen == [("/one", None)]
    assert (await ensemble.submit(two, Op("check", "/stays"), Op("check", "/two"))).error is None


async def test_closed_session_is_refused_and_receives_no_events(ensemble: Ensemble) -> None:
    session, other = await ensemble.session(), await ensemble.session()
    seen: list[NodeState] = []
    session.watch("/a", seen.append)
    session.close()
    await ensemble.submit(other, create("/a"))
    assert seen == []
    assert (await ensemble.submit(session, create("/b"))).error == "session"


async def test_data_is_copied_at_submit(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    data = bytearray(b"first")
    session.submit([Op("create", "/a", data)], lambda result: None)  # type: ignore[arg-type]
    data[:] = b"later"
    await ensemble.settle()
    state = await ensemble.read(session, "/a")
    assert state is not None and state.data == b"first"


async def test_many_submissions_at_once_are_answered_in_order(ensemble: Ensemble) -> None:
    session = await ensemble.session()
    answered: list[int] = []
    await ensemble.submit(session, create("/n"))
    for number in range(200):
        session.submit([create(f"/n/{number}")], lambda result, number=number: answered.append(number))  # type: ignore[misc]
        if number % 50 == 0:
            await asyncio.sleep(0)
    await ensemble.settle()
    assert answered == list(range(200))
