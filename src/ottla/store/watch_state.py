"""What the owner of a watch has been told so far, and what is news to it; pure, for the stores whose watches can fall silent for a while.

A node is known by its creation (zxid) and its version: a larger version is a change, a larger zxid another node of the same name. Told is
never what is older than what was told before, and a node goes before another one of its name comes.
"""

from collections.abc import Iterable

from ottla.base.ports import NodeState
from ottla.store.tree import parent_of


class WatchState:
    """The nodes that one watch has shown."""

    __slots__ = ("_below", "_known")

    def __init__(self) -> None:
        #: Creation zxid and version by path.
        self._known: dict[str, tuple[int, int]] = {}
        #: Paths shown directly below each path.
        self._below: dict[str, set[str]] = {}

    def tells(self, state: NodeState) -> bool:
        """Whether a node that exists is news as it is now; it counts as told then."""
        known = self._known.get(state.path)
        if known is not None and (state.created_zxid, state.version) <= known:
            return False
        if known is None:
            self._below.setdefault(parent_of(state.path), set()).add(state.path)
        self._known[state.path] = (state.created_zxid, state.version)
        return True

    def tells_end(self, path: str, zxid: int) -> bool:
        """Whether it is news that the node of this path went in transaction ``zxid``; it counts as told then, with all below it."""
        known = self._known.get(path)
        if known is None or known[0] >= zxid:
            return False
        self._forget(path)
        return True

    def takes(self, state: NodeState, zxid: int) -> bool:
        """Whether what ``differences`` or an exact history says is news; it counts as told then."""
        return self.tells_end(state.path, zxid) if state.data is None else self.tells(state)

    def differences(self, states: Iterable[NodeState]) -> list[tuple[NodeState, int]]:
        """What is to be told, in order, once a watch that was silent sees all nodes again, parents before children; each for ``takes``."""
        found = {state.path: state for state in states}
        ends = [
            (path, created_zxid + 1)
            for path, (created_zxid, _) in self._known.items()
            if path not in found or found[path].created_zxid != created_zxid
        ]
        # A node has longer paths below it, and they go first.
        ends.sort(key=lambda end: (-end[0].count("/"), end[0]))
        news = [(NodeState(path, None), zxid) for path, zxid in ends]
        for state in found.values():
            known = self._known.get(state.path)
            if known is None or known[0] != state.created_zxid or known[1] < state.version:
                news.append((state, 0))
        return news

    def _forget(self, path: str) -> None:
        self._known.pop(path, None)
        siblings = self._below.get(parent_of(path))
        if siblings is not None:
            siblings.discard(path)
        for child in list(self._below.pop(path, ())):
            self._forget(child)
