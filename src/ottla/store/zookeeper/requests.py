"""ZooKeeper requests that kazoo lacks: multi whose creates return their zxid, reads of many nodes at once, recursive watches.

kazoo's connection sends a request by its ``type`` and ``serialize()``, and calls ``deserialize(buffer, offset)`` with the reply after its
header. Numbers are big-endian; strings and buffers are preceded by their length, -1 for null; a node's stat has 68 bytes.

::

    multi, multiRead   [type][done][error] + request for each, then [-1][true][-1]; the reply likewise, with type -1 for an error
    addWatch           path, mode (1: persistent and recursive)
    event              [-1][zxid][error] + [type][state][path]; the zxid is set by servers since 3.9

Source: zookeeper.jute of ZooKeeper 3.9; ZOOKEEPER-1416 (addWatch), ZOOKEEPER-1177 (multiRead), ZOOKEEPER-4655 (zxid of events).
"""

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

from kazoo.exceptions import EXCEPTIONS

from ottla.base.ports import NodeState, Op, StoreErrorKind, StoreResult
from ottla.store.layout import DELEGATION_TOKENS

_INT = Struct(">i")
_HEADER = Struct(">ibi")
_STAT = Struct(">qqqqiiiqiiq")
_EVENT = Struct(">iqiii")
_END = _HEADER.pack(-1, True, -1)

#: Operations by number.
_DELETE, _GET_DATA, _SET_DATA, _CHILDREN, _CHECK, _MULTI, _CREATE2, _MULTI_READ, _ADD_WATCH = 2, 4, 5, 8, 13, 14, 15, 22, 106
_ERROR = -1
_PERSISTENT_RECURSIVE = 1
_EPHEMERAL = 1

#: What ZooKeeper answers to a client without a right or an identity: NoAuth, InvalidACL, AuthFailed.
_DENIED = (-102, -114, -115)
#: Error codes of an operation that was skipped because another one of its multi failed.
_NOT_TRIED = (0, -2)
ERRORS: dict[int, StoreErrorKind] = {-101: "missing", -103: "version", -108: "missing", -110: "exists", -111: "not_empty"}

CREATED, DELETED, CHANGED = 1, 2, 3


def _string(text: str) -> bytes:
    raw = text.encode()
    return _INT.pack(len(raw)) + raw


def _buffer(data: bytes) -> bytes:
    return _INT.pack(len(data)) + data


def _acl(*entries: tuple[int, str, str]) -> bytes:
    """A list of rules: (permissions, scheme, id)."""
    return _INT.pack(len(entries)) + b"".join(
        _INT.pack(permissions) + _string(scheme) + _string(name) for permissions, scheme, name in entries
    )


_ALL, _READ = 31, 1
#: All permissions for everyone, as in Kafka without zookeeper.set.acl.
OPEN_ACL = _acl((_ALL, "world", "anyone"))
#: All permissions for who creates the node; nothing, or reading, for others.
OWN_ACL = _acl((_ALL, "auth", ""))
READABLE_ACL = _acl((_ALL, "auth", ""), (_READ, "world", "anyone"))


#: Nodes that only brokers may read: credentials, secrets among the settings of brokers, tokens. Kafka's SensitiveRootPaths.
SENSITIVE_PREFIXES = ("/config/users", "/config/brokers", DELEGATION_TOKENS)


def acl_of(path: str) -> bytes:
    """The rules of a new node with zookeeper.set.acl. Source: Kafka 3.9, ZkData.defaultAcls."""
    return OWN_ACL if path.startswith(SENSITIVE_PREFIXES) else READABLE_ACL


def _read_buffer(buffer: bytes, offset: int) -> tuple[bytes, int]:
    (length,) = _INT.unpack_from(buffer, offset)
    begin = offset + 4
    return (b"", begin) if length < 0 else (buffer[begin : begin + length], begin + length)


class Stat(NamedTuple):
    """The used fields of a node's stat."""

    created_zxid: int
    version: int
    children: int
    #: Offset after the stat.
    end: int


def _read_stat(buffer: bytes, offset: int) -> Stat:
    created_zxid, _, _, _, version, _, _, _, _, children, _ = _STAT.unpack_from(buffer, offset)
    return Stat(created_zxid, version, children, offset + _STAT.size)


class Multi:
    """An atomic write; ``root`` is prepended to the paths. ``secure``: new nodes get rules."""

    type = _MULTI

    def __init__(self, ops: Sequence[Op], root: str, *, secure: bool = False) -> None:
        #: A copy of the data.
        self._ops = [(op.kind, op.path, op.version, bytes(op.data)) for op in ops]
        self.body = b"".join(self._one(op, root, secure) for op in ops) + _END

    @staticmethod
    def _one(op: Op, root: str, secure: bool) -> bytes:
        path = _string(root + op.path if op.path != "/" else root or "/")
        match op.kind:
            case "create":
                flags = _INT.pack(_EPHEMERAL if op.ephemeral else 0)
                acl = acl_of(op.path) if secure else OPEN_ACL
                return _HEADER.pack(_CREATE2, False, -1) + path + _buffer(bytes(op.data)) + acl + flags
            case "set":
                return _HEADER.pack(_SET_DATA, False, -1) + path + _buffer(bytes(op.data)) + _INT.pack(op.version)
            case "delete":
                return _HEADER.pack(_DELETE, False, -1) + path + _INT.pack(op.version)
            case "check":
                return _HEADER.pack(_CHECK, False, -1) + path + _INT.pack(op.version)

    def serialize(self) -> bytes:
        return self.body

    def deserialize(self, buffer: bytes, offset: int) -> list[StoreResult]:
        """One result in a list, because kazoo iterates over the result of a multi. Raises: KazooException if ZooKeeper denies access."""
        states = []
        for index, (kind, path, version, data) in enumerate(self._ops):
            found, _, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if found == _ERROR:
                (code,) = _INT.unpack_from(buffer, offset)
                offset += 4
                if code in _DENIED:
                    raise EXCEPTIONS[code](path)
                if code not in _NOT_TRIED:
                    return [StoreResult((), ERRORS.get(code, "unavailable"), index)]
            elif kind in ("create", "set"):
                if kind == "create":
                    _, offset = _read_buffer(buffer, offset)
                stat = _read_stat(buffer, offset)
                offset = stat.end
                states.append(NodeState(path, data, stat.version, stat.created_zxid))
            elif kind == "delete":
                states.append(NodeState(path, None))
            else:
                states.append(NodeState(path, b"", version))
        return [StoreResult(tuple(states))]


class ReadNodes:
    """Reads many nodes: the state and number of children of each, or None for a missing node."""

    type = _MULTI_READ

    def __init__(self, paths: Sequence[str], root: str) -> None:
        self._paths = paths
        self._root = root

    def serialize(self) -> bytes:
        return b"".join(_read_one(_GET_DATA, path, self._root) for path in self._paths) + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[tuple[NodeState, int] | None]:
        found: list[tuple[NodeState, int] | None] = []
        for path in self._paths:
            kind, _, _ = _HEADER.unpack_from(buffer, offset)
            offset += _HEADER.size
            if kind == _ERROR:
                (code,) = _INT.unpack_from(buffer, offset)
                if code in _DENIED:
                    # Not the same as a node that is missing.
                    raise EXCEPTIONS[code](path)
                offset += 4
                found.append(None)
                continue
            data, offset = _read_buffer(buffer, offset)
            stat = _read_stat(buffer, offset)
            offset = stat.end
            found.append((NodeState(path, data, stat.version, stat.created_zxid), stat.children))
        return found


class ReadChildren:
    """Reads the names of the children of many nodes; empty for a missing node."""

    type = _MULTI_READ

    def __init__(self, paths: Sequence[str], root: str) -> None:
        self._paths = paths
        self._root = root

    def serialize(self) -> bytes:
        return b"".join(_read_one(_CHILDREN, path, self._root) for path in self._paths) + _END

    def deserialize(self, buffer: bytes, offset: int) -> list[list[str]]:
        found: list[list[str]] = []
        for _ in self._paths:
            kind, _, _ = _HEADER.unpack_from(buffer, offset)
            (count,) = _INT.unpack_from(buffer, offset + _HEADER.size)
            offset += _HEADER.size + 4
            names: list[str] = []
            for _ in range(0 if kind == _ERROR else max(count, 0)):
                name, offset = _read_buffer(buffer, offset)
                names.append(name.decode())
            found.append(names)
        return found


def _read_one(kind: int, path: str, root: str) -> bytes:
    full = root + path if path != "/" else root or "/"
    return _HEADER.pack(kind, False, -1) + _string(full) + b"\0"


class AddWatch:
    """Watches a node and all nodes below it until the connection ends."""

    type = _ADD_WATCH

    def __init__(self, path: str, root: str) -> None:
        self._body = _string(root + path if path != "/" else root or "/") + _INT.pack(_PERSISTENT_RECURSIVE)

    def serialize(self) -> bytes:
        return self._body

    def deserialize(self, buffer: bytes, offset: int) -> bool:
        return True


class WatchEvent(NamedTuple):
    """A node was created, deleted or changed (``kind``) in transaction ``zxid`` (-1 from a server before 3.9)."""

    kind: int
    path: str
    zxid: int


def read_event(frame: bytes, root: str) -> WatchEvent:
    """Decodes the frame of an event; ``root`` is removed from the path."""
    _, zxid, _, kind, _ = _EVENT.unpack_from(frame, 0)
    path, _ = _read_buffer(frame, _EVENT.size)
    return WatchEvent(kind, path.decode()[len(root) :] or "/", zxid)
