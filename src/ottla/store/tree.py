"""The nodes of a coordination store and the one place that changes them; pure, shared by the stores that keep their nodes themselves.

A multi is applied operation by operation, each seeing the ones before it; at the first that fails everything is put back. Every multi that
succeeds takes one transaction number (zxid), so all nodes it creates share it. Paths are absolute, without a trailing slash; the root
exists always, has no data and cannot be changed. A node whose owner is not 0 is ephemeral: it goes with its session and has no children.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ottla.base.ports import NodeState, Op, StoreErrorKind, StoreResult


@dataclass(slots=True)
class Node:
    """One node as it stands."""

    data: bytes
    version: int
    created_zxid: int
    #: Session that an ephemeral node lives with; 0 for one that stays.
    owner: int = 0
    #: Names of the nodes directly below, in the order of their creation.
    children: dict[str, None] = field(default_factory=dict)

    def state(self, path: str) -> NodeState:
        return NodeState(path, self.data, self.version, self.created_zxid)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def below(path: str, prefix: str) -> bool:
    """Whether a node is the one named by the prefix or lies under it: ``/a`` holds ``/a`` and ``/a/b``, not ``/ab``."""
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


class Tree:
    """All nodes of a store, by path."""

    __slots__ = ("nodes", "zxid")

    def __init__(self) -> None:
        #: The parent of every node is here too, and lists it among its children.
        self.nodes: dict[str, Node] = {"/": Node(b"", 0, 0)}
        #: Number of the last multi that succeeded; never falls.
        self.zxid = 0

    def apply(self, ops: Sequence[Op], session: int) -> tuple[StoreResult, list[NodeState]]:
        """Carries out all operations or none; also returns what a watch of everything would see, in order."""
        zxid = self.zxid + 1
        states: list[NodeState] = []
        changes: list[NodeState] = []
        undo: list[tuple[str, Node | None]] = []
        for index, op in enumerate(ops):
            assert op.path.startswith("/") and (not op.path.endswith("/") or op.path == "/"), f"{op.path!r} is not a path of the store"
            error = self._refusal(op)
            if error is not None:
                for path, former in reversed(undo):
                    self._put_back(path, former)
                return StoreResult((), error, index), []
            states.append(self._carry_out(op, zxid, session, undo))
            if op.kind != "check":
                changes.append(states[-1])
        self.zxid = zxid if changes else self.zxid
        return StoreResult(tuple(states)), changes

    def _refusal(self, op: Op) -> StoreErrorKind | None:
        node = self.nodes.get(op.path)
        if op.kind == "create":
            if node is not None:
                return "exists"
            parent = self.nodes.get(parent_of(op.path))
            return "missing" if parent is None or parent.owner else None
        if node is None or (op.path == "/" and op.kind != "check"):
            return "missing"
        if op.version not in (-1, node.version):
            return "version"
        return "not_empty" if op.kind == "delete" and node.children else None

    def _carry_out(self, op: Op, zxid: int, session: int, undo: list[tuple[str, Node | None]]) -> NodeState:
        node = self.nodes.get(op.path)
        if op.kind == "create":
            undo.append((op.path, None))
            made = Node(bytes(op.data), 0, zxid, session if op.ephemeral else 0)
            self._add(op.path, made)
            return made.state(op.path)
        assert node is not None, "a refused operation is never carried out"
        if op.kind == "set":
            undo.append((op.path, Node(node.data, node.version, node.created_zxid, node.owner, node.children)))
            node.data = bytes(op.data)
            node.version += 1
        elif op.kind == "delete":
            undo.append((op.path, node))
            self._drop(op.path)
            return NodeState(op.path, None)
        return node.state(op.path)

    def _add(self, path: str, node: Node) -> None:
        self.nodes[path] = node
        self.nodes[parent_of(path)].children[path.rpartition("/")[2]] = None

    def _drop(self, path: str) -> None:
        del self.nodes[path]
        del self.nodes[parent_of(path)].children[path.rpartition("/")[2]]

    def _put_back(self, path: str, former: Node | None) -> None:
        if former is None:
            self._drop(path)
        elif path in self.nodes:
            self.nodes[path] = former
        else:
            self._add(path, former)

    def end_session(self, session: int) -> list[NodeState]:
        """Removes the session's ephemeral nodes, in one transaction; returns the changes."""
        gone = [path for path, node in self.nodes.items() if node.owner == session]
        return self.apply([Op("delete", path) for path in gone], session)[1]

    def snapshot(self, prefix: str) -> Iterator[NodeState]:
        """The nodes of a prefix as they stand, parents before children; the root itself is never told."""
        node = self.nodes.get(prefix)
        if node is None:
            return
        if prefix != "/":
            yield node.state(prefix)
        for name in node.children:
            yield from self.snapshot(f"{prefix.rstrip('/')}/{name}")

    def load(self, rows: Iterable[tuple[str, bytes, int, int]], zxid: int) -> None:
        """Takes over (path, data, version, created zxid) of an empty tree's nodes, parents before children."""
        for path, data, version, created_zxid in rows:
            self._add(path, Node(data, version, created_zxid))
        self.zxid = zxid


def creations(tree: Tree, paths: Iterable[str]) -> list[Op]:
    """Operations that make the missing ones of these nodes, empty."""
    return [Op("create", path) for path in paths if path not in tree.nodes]
