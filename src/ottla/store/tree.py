"""The nodes of a coordination store, and the only code that changes them; pure, shared by the embedded and the memory store.

A multi is applied operation by operation, each on the result of the ones before; the first failure undoes all. A successful multi takes one
transaction number (zxid), which all nodes it creates share. Paths are absolute, without a trailing slash; the root always exists, has no
data and cannot be changed. A node whose owner is not 0 is ephemeral: it ends with its session and has no children.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ottla.base.ports import NodeState, Op, StoreErrorKind, StoreResult


@dataclass(slots=True)
class StoreNode:
    data: bytes
    version: int
    created_zxid: int
    #: Session of an ephemeral node; 0 for a persistent one.
    owner: int = 0
    #: Names of the nodes directly below, in the order of their creation.
    children: dict[str, None] = field(default_factory=dict)

    def state(self, path: str) -> NodeState:
        return NodeState(path, self.data, self.version, self.created_zxid)


def parent_of(path: str) -> str:
    return path.rpartition("/")[0] or "/"


def below(path: str, prefix: str) -> bool:
    """Whether a path is the prefix or below it: ``/a`` and ``/a/b`` are below ``/a``, ``/ab`` is not."""
    return prefix == "/" or path == prefix or path.startswith(prefix + "/")


class Tree:
    """All nodes of a store, by path."""

    __slots__ = ("nodes", "zxid")

    def __init__(self) -> None:
        #: Contains the parent of every node, which lists it among its children.
        self.nodes: dict[str, StoreNode] = {"/": StoreNode(b"", 0, 0)}
        #: Number of the last successful multi; never decreases.
        self.zxid = 0

    def apply(self, ops: Sequence[Op], session: int) -> tuple[StoreResult, list[NodeState]]:
        """Applies all operations or none; also returns the changes, in order."""
        zxid = self.zxid + 1
        states: list[NodeState] = []
        changes: list[NodeState] = []
        undo: list[tuple[str, StoreNode | None]] = []
        for index, op in enumerate(ops):
            assert op.path.startswith("/") and (not op.path.endswith("/") or op.path == "/"), f"{op.path!r} is not a path of the store"
            error = self._refusal(op)
            if error is not None:
                for path, former in reversed(undo):
                    self._put_back(path, former)
                return StoreResult((), error, index), []
            states.append(self._apply_one(op, zxid, session, undo))
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

    def _apply_one(self, op: Op, zxid: int, session: int, undo: list[tuple[str, StoreNode | None]]) -> NodeState:
        node = self.nodes.get(op.path)
        if op.kind == "create":
            undo.append((op.path, None))
            made = StoreNode(bytes(op.data), 0, zxid, session if op.ephemeral else 0)
            self._add(op.path, made)
            return made.state(op.path)
        assert node is not None, "a refused operation is not applied"
        if op.kind == "set":
            undo.append((op.path, StoreNode(node.data, node.version, node.created_zxid, node.owner, node.children)))
            node.data = bytes(op.data)
            node.version += 1
        elif op.kind == "delete":
            undo.append((op.path, node))
            self._drop(op.path)
            return NodeState(op.path, None)
        return node.state(op.path)

    def _add(self, path: str, node: StoreNode) -> None:
        self.nodes[path] = node
        self.nodes[parent_of(path)].children[path.rpartition("/")[2]] = None

    def _drop(self, path: str) -> None:
        del self.nodes[path]
        del self.nodes[parent_of(path)].children[path.rpartition("/")[2]]

    def _put_back(self, path: str, former: StoreNode | None) -> None:
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
        """The present nodes of a prefix, parents before children, without the root."""
        node = self.nodes.get(prefix)
        if node is None:
            return
        if prefix != "/":
            yield node.state(prefix)
        for name in node.children:
            yield from self.snapshot(f"{prefix.rstrip('/')}/{name}")

    def load(self, rows: Iterable[tuple[str, bytes, int, int]], zxid: int) -> None:
        """Fills an empty tree with (path, data, version, created zxid), parents before children."""
        for path, data, version, created_zxid in rows:
            self._add(path, StoreNode(data, version, created_zxid))
        self.zxid = zxid


def creations(tree: Tree, paths: Iterable[str]) -> list[Op]:
    """Operations that create the missing nodes of these paths, empty."""
    return [Op("create", path) for path in paths if path not in tree.nodes]
