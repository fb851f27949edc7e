"""What a watch that was silent has to say."""

from ottla.base.ports import NodeState
from ottla.store.watch_state import WatchState


def node(path: str, *, created: int, version: int = 0) -> NodeState:
    return NodeState(path, b"", version, created)


def test_only_what_is_newer_is_told() -> None:
    shown = WatchState()
    assert shown.tells(node("/a", created=5, version=2))
    assert not shown.tells(node("/a", created=5, version=2))
    assert not shown.tells(node("/a", created=5, version=1))
    assert not shown.tells(node("/a", created=4, version=9))
    assert shown.tells(node("/a", created=5, version=3))


def test_the_end_of_an_earlier_node_of_the_name_is_no_news() -> None:
    shown = WatchState()
    shown.tells(node("/a", created=5))
    assert not shown.tells_end("/a", 4)
    assert not shown.tells_end("/a", 5), "one multi deleted the earlier node and created this one"
    assert shown.tells_end("/a", 6)
    assert not shown.tells_end("/a", 7)


def test_with_a_node_all_below_it_is_forgotten_and_told_again() -> None:
    shown = WatchState()
    for path in ("/a", "/a/b", "/a/b/c"):
        shown.tells(node(path, created=1))
    shown.tells_end("/a", 2)
    assert shown.tells(node("/a/b/c", created=1))


def test_differences_are_told_with_the_deepest_end_first_and_parents_before_children() -> None:
    shown = WatchState()
    for path in ("/a", "/a/b", "/a/b/c", "/a/same", "/a/changed"):
        shown.tells(node(path, created=1))
    now = [node("/a", created=1), node("/a/b", created=9), node("/a/b/c", created=9), node("/a/same", created=1)]
    now.append(node("/a/changed", created=1, version=1))
    news = [state for state, zxid in shown.differences(now) if shown.takes(state, zxid)]
    assert [(state.path, state.data is not None) for state in news] == [
        ("/a/b/c", False),
        ("/a/b", False),
        ("/a/b", True),
        ("/a/b/c", True),
        ("/a/changed", True),
    ]
    assert shown.differences(now) == []
