"""Faults of the memory store."""

from ottla.base.ports import NodeState, Op, StoreResult
from ottla.store.memory import MemorySession, MemoryStore


def test_an_expired_session_loses_its_ephemeral_nodes_and_its_answers() -> None:
    store = MemoryStore()
    lost, other = store.session(), store.session()
    answers: list[StoreResult] = []
    seen: list[tuple[str, bytes | None]] = []
    other.watch("/e", lambda state: seen.append((state.path, state.data)))
    lost.watch("/e", lambda state: seen.append(("told the lost one", None)))
    lost.submit([Op("create", "/e", ephemeral=True)], answers.append)
    lost.expire()
    lost.submit([Op("create", "/f")], answers.append)
    store.run()
    assert [answer.error for answer in answers] == ["unavailable", "session"]
    assert seen == [("/e", b""), ("/e", None)]
    assert "/f" not in store.tree.nodes


def test_a_broken_connection_leaves_the_outcome_unknown() -> None:
    store = MemoryStore()
    session = store.session()
    answers: list[StoreResult] = []
    for path, applied in (("/done", True), ("/lost", False)):
        session.fail_next(applied=applied)
        session.submit([Op("create", path)], answers.append)
    store.run()
    assert [answer.error for answer in answers] == ["unavailable", "unavailable"]
    assert "/done" in store.tree.nodes and "/lost" not in store.tree.nodes


def test_each_session_is_told_when_its_owner_chooses() -> None:
    woken: list[int] = []
    store = MemoryStore(wake=lambda session: woken.append(session.number))
    early, late = store.session(), store.session()
    seen: dict[MemorySession, list[NodeState]] = {early: [], late: []}
    for session in (early, late):
        session.watch("/a", seen[session].append)
    early.submit([Op("create", "/a"), Op("set", "/a", b"x")], lambda result: None)
    early.deliver()
    assert [len(seen[early]), len(seen[late])] == [2, 0]
    late.deliver(1)
    assert [state.version for state in seen[late]] == [0]
    assert woken == [1, 1, 2, 2, 1]


def test_a_suspended_session_hears_what_it_missed_before_it_counts_as_connected() -> None:
    store = MemoryStore()
    session, other = store.session(), store.session()
    told: list[object] = []
    answers: list[StoreResult] = []
    session.watch("/a", lambda state: told.append((state.path, state.data)))
    session.listen(told.append)
    session.submit([Op("create", "/a"), Op("create", "/a/eph", ephemeral=True), Op("create", "/a/gone")], answers.append)
    store.run()
    told.clear()
    session.suspend()
    session.submit([Op("create", "/never")], answers.append)
    other.submit([Op("set", "/a", b"1"), Op("delete", "/a/gone"), Op("create", "/a/gone", b"new")], answers.append)
    other.submit([Op("set", "/a", b"2")], answers.append)
    store.run()
    assert told == ["suspended"] and [answer.error for answer in answers] == [None, "unavailable", None, None]
    session.resume()
    store.run()
    assert told == ["suspended", ("/a/gone", None), ("/a", b"2"), ("/a/gone", b"new"), "connected"]


def test_a_session_that_is_renewed_has_lost_its_ephemeral_nodes_and_keeps_its_watches() -> None:
    store = MemoryStore()
    session = store.session()
    told: list[object] = []
    session.watch("/a", lambda state: told.append((state.path, state.data)))
    session.listen(told.append)
    session.submit([Op("create", "/a"), Op("create", "/a/eph", ephemeral=True)], lambda result: None)
    store.run()
    told.clear()
    session.suspend()
    session.expire_suspended()
    store.run()
    assert told == ["suspended"], "who is cut off does not know that the session is gone"
    session.resume()
    session.submit([Op("create", "/a/eph", b"again", ephemeral=True)], lambda result: None)
    store.run()
    assert told == ["suspended", "lost", ("/a/eph", None), "connected", ("/a/eph", b"again")]


def test_news_that_a_second_silence_cuts_off_come_after_it() -> None:
    store = MemoryStore()
    session, other = store.session(), store.session()
    told: list[object] = []
    session.watch("/a", lambda state: told.append(state.path))
    session.suspend()
    other.submit([Op("create", "/a")], lambda result: None)
    session.resume()
    session.suspend()
    session.resume()
    store.run()
    assert told == ["/a"]


def test_a_session_that_begins_anew_before_all_was_told_still_tells_what_has_gone() -> None:
    """As was found: a broker that slept while its session ended took its old registration for one that is there."""
    store = MemoryStore()
    session = store.session()
    told: list[object] = []
    session.watch("/", lambda state: told.append((state.path, state.data)) if state.path == "/e" else None)
    session.listen(told.append)
    session.submit([Op("create", "/e", ephemeral=True)], lambda result: None)
    session.forget()
    session.resume()
    while session.deliver(1):
        pass
    assert told == [("/e", b""), "lost", ("/e", None), "connected"]
