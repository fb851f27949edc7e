"""Faults of the memory store."""

from ottla.base.ports import NodeState, Op, StoreResult
from ottla.store.memory import MemorySession, MemoryStore


def test_expired_session_loses_its_ephemeral_nodes_and_its_responses() -> None:
    store = MemoryStore()
    lost, other = store.session(), store.session()
    results: list[StoreResult] = []
    seen: list[tuple[str, bytes | None]] = []
    other.watch("/e", lambda state: seen.append((state.path, state.data)))
    lost.watch("/e", lambda state: seen.append(("watch of the expired session", None)))
    lost.submit([Op("create", "/e", ephemeral=True)], results.append)
    lost.expire()
    lost.submit([Op("create", "/f")], results.append)
    store.run()
    assert [result.error for result in results] == ["unavailable", "session"]
    assert seen == [("/e", b""), ("/e", None)]
    assert "/f" not in store.tree.nodes


def test_a_broken_connection_leaves_the_outcome_unknown() -> None:
    store = MemoryStore()
    session = store.session()
    results: list[StoreResult] = []
    for path, applied in (("/done", True), ("/lost", False)):
        session.fail_next(applied=applied)
        session.submit([Op("create", path)], results.append)
    store.run()
    assert [result.error for result in results] == ["unavailable", "unavailable"]
    assert "/done" in store.tree.nodes and "/lost" not in store.tree.nodes


def test_events_of_a_session_are_delivered_when_its_owner_calls_deliver() -> None:
    wake_calls: list[int] = []
    store = MemoryStore(wake=lambda session: wake_calls.append(session.number))
    early, late = store.session(), store.session()
    seen: dict[MemorySession, list[NodeState]] = {early: [], late: []}
    for session in (early, late):
        session.watch("/a", seen[session].append)
    early.submit([Op("create", "/a"), Op("set", "/a", b"x")], lambda result: None)
    early.deliver()
    assert [len(seen[early]), len(seen[late])] == [2, 0]
    late.deliver(1)
    assert [state.version for state in seen[late]] == [0]
    assert wake_calls == [1, 1, 2, 2, 1]


def test_suspended_session_receives_missed_changes_before_it_is_connected() -> None:
    store = MemoryStore()
    session, other = store.session(), store.session()
    events: list[object] = []
    results: list[StoreResult] = []
    session.watch("/a", lambda state: events.append((state.path, state.data)))
    session.listen(events.append)
    session.submit([Op("create", "/a"), Op("create", "/a/eph", ephemeral=True), Op("create", "/a/gone")], results.append)
    store.run()
    events.clear()
    session.suspend()
    session.submit([Op("create", "/never")], results.append)
    other.submit([Op("set", "/a", b"1"), Op("delete", "/a/gone"), Op("create", "/a/gone", b"new")], results.append)
    other.submit([Op("set", "/a", b"2")], results.append)
    store.run()
    assert events == ["suspended"] and [result.error for result in results] == [None, "unavailable", None, None]
    session.resume()
    store.run()
    assert events == ["suspended", ("/a/gone", None), ("/a", b"2"), ("/a/gone", b"new"), "connected"]


def test_renewed_session_loses_its_ephemeral_nodes_and_keeps_its_watches() -> None:
    store = MemoryStore()
    session = store.session()
    events: list[object] = []
    session.watch("/a", lambda state: events.append((state.path, state.data)))
    session.listen(events.append)
    session.submit([Op("create", "/a"), Op("create", "/a/eph", ephemeral=True)], lambda result: None)
    store.run()
    events.clear()
    session.suspend()
    session.expire_suspended()
    store.run()
    assert events == ["suspended"], "a suspended client does not know that its session expired"
    session.resume()
    session.submit([Op("create", "/a/eph", b"again", ephemeral=True)], lambda result: None)
    store.run()
    assert events == ["suspended", "lost", ("/a/eph", None), "connected", ("/a/eph", b"again")]


def test_changes_interrupted_by_a_second_suspension_are_delivered_after_it() -> None:
    store = MemoryStore()
    session, other = store.session(), store.session()
    events: list[object] = []
    session.watch("/a", lambda state: events.append(state.path))
    session.suspend()
    other.submit([Op("create", "/a")], lambda result: None)
    session.resume()
    session.suspend()
    session.resume()
    store.run()
    assert events == ["/a"]


def test_session_renewed_before_all_events_were_delivered_still_reports_deleted_nodes() -> None:
    """Regression: a broker that was paused while its session expired believed that its old registration still existed."""
    store = MemoryStore()
    session = store.session()
    events: list[object] = []
    session.watch("/", lambda state: events.append((state.path, state.data)) if state.path == "/e" else None)
    session.listen(events.append)
    session.submit([Op("create", "/e", ephemeral=True)], lambda result: None)
    session.forget()
    session.resume()
    while session.deliver(1):
        pass
    assert events == [("/e", b""), "lost", ("/e", None), "connected"]
