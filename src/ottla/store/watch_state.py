"""The state that a watch has reported, and changes to it; pure. For stores whose watches can be interrupted.

A node is identified by its creation zxid and its version: a larger version is a change, a larger zxid another node of the same name. A
watch never reports an older state after a newer one, and reports the end of a node before another node of its name.
"""

from collections.abc import Iterable

from ottla.base.ports import NodeState
from ottla.store.tree import parent_of


class WatchState:
    """The nodes that one watch has reported."""

    __slots__ = ("_below", "_known")

    def __init__(self) -> None:
        #: Creation zxid and version by path.
        self._known: dict[str, tuple[int, int]] = {}
        #: Reported paths directly below each path.
        self._below: dict[str, set[str]] = {}

    def record(self, state: NodeState) -> bool:
        """Whether the state of an existing node is new; records it as reported."""
        known = self._known.get(state.path)
        if known is not None and (state.created_zxid, state.version) <= known:
            return False
        if known is None:
            self._below.setdefault(parent_of(state.path), set()).add(state.path)
        self._known[state.path] = (state.created_zxid, state.version)
        return True

    def record_deletion(self, path: str, zxid: int) -> bool:
        """Whether the deletion of a node in transaction ``zxid`` is new; records it, and that of all nodes below, as reported."""
        known = self._known.get(path)
        if known is None or known[0] >= zxid:
            return False
        self._forget(path)
        return True

    def record_change(self, state: NodeState, zxid: int) -> bool:
        """Whether a change from ``differences`` or from an exact history is new; records it as reported."""
        return self.record_deletion(state.path, zxid) if state.data is None else self.record(state)

    def differences(self, states: Iterable[NodeState]) -> list[tuple[NodeState, int]]:
        """The changes to report, in order, when an interrupted watch reads all nodes again, parents before children. Not recorded yet."""
        present = {state.path: state for state in states}
        ends = [
            (path, created_zxid + 1)
            for path, (created_zxid, _) in self._known.items()
            if path not in present or present[path].created_zxid != created_zxid
        ]
        # Children before parents.
        ends.sort(key=lambda end: (-end[0].count("/"), end[0]))
        changes = [(NodeState(path, None), zxid) for path, zxid in ends]
        for state in present.values():
            known = self._known.get(state.path)
            if known is None or known[0] != state.created_zxid or known[1] < state.version:
                changes.append((state, 0))
        return changes

    def _forget(self, path: str) -> None:
        self._known.pop(path, None)
        siblings = self._below.get(parent_of(path))
        if siblings is not None:
            siblings.discard(path)
        for child in list(self._below.pop(path, ())):
            self._forget(child)
