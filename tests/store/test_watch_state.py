"""States that an interrupted watch reports."""

from ottla.base.ports import NodeState
from ottla.store.watch_state import WatchState


def node(path: str, *, created: int, version: int = 0) -> NodeState:
    return NodeState(path, b"", version, created)


def test_only_newer_states_are_reported() -> None:
    watch = WatchState()
    assert watch.record(node("/a", created=5, version=2))
    assert not watch.record(node("/a", created=5, version=2))
    assert not watch.record(node("/a", created=5, version=1))
    assert not watch.record(node("/a", created=4, version=9))
    assert watch.record(node("/a", created=5, version=3))


def test_the_deletion_of_an_earlier_node_of_the_same_name_is_not_reported() -> None:
    watch = WatchState()
    watch.record(node("/a", created=5))
    assert not watch.record_deletion("/a", 4)
    assert not watch.record_deletion("/a", 5), "one multi deleted the earlier node and created this one"
    assert watch.record_deletion("/a", 6)
    assert not watch.record_deletion("/a", 7)


def test_a_deleted_node_takes_all_nodes_below_with_it() -> None:
    watch = WatchState()
    for path in ("/a", "/a/b", "/a/b/c"):
        watch.record(node(path, created=1))
    watch.record_deletion("/a", 2)
    assert watch.record(node("/a/b/c", created=1))


def test_differences_report_deepest_deletions_first_and_parents_before_children() -> None:
    watch = WatchState()
    for path in ("/a", "/a/b", "/a/b/c", "/a/same", "/a/changed"):
        watch.record(node(path, created=1))
    now = [node("/a", created=1), node("/a/b", created=9), node("/a/b/c", created=9), node("/a/same", created=1)]
    now.append(node("/a/changed", created=1, version=1))
    changes = [state for state, zxid in watch.differences(now) if watch.record_change(state, zxid)]
    assert [(state.path, state.data is not None) for state in changes] == [
        ("/a/b/c", False),
        ("/a/b", False),
        ("/a/b", True),
        ("/a/b/c", True),
        ("/a/changed", True),
    ]
    assert watch.differences(now) == []
