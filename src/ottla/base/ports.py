"""What a shell, or the simulator, must offer to the pure parts: Disk and Store. Time is an argument.

The log reaches files through a ``Disk`` (one per log directory); every call is synchronous and runs at page-cache speed, except
``sync`` and ``sync_dir``, which wait for the device and are therefore only called during recovery, at a clean stop, or by a shell
that performs a ``Flush`` effect off the loop.

The broker reaches the coordination store through effects and events; a shell carries them to a ``Store``, whose promises are
ZooKeeper's: sessions, ephemeral nodes, versions (compare and set), ordered watches, atomic ``multi``.

Any ``OSError`` that a Disk or File raises, but for ENOSPC from ``append``, means that this log directory can no longer be trusted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An open file that grows at its end. Positions and sizes are bytes. One owner; not safe from several threads but for ``sync``."""

    @property
    def path(self) -> str:
        """Relative to the disk's root; follows a rename done through the same Disk."""
        ...

    @property
    def size(self) -> int: ...

    def append(self, *chunks: Buffer) -> int:
        """Write the chunks at the end, without joining or copying them; returns the position of the first byte.

        All or nothing: after a short write (ENOSPC) the file has its former size again and OSError is raised.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Wait until data and size are on the device. After an OSError nothing about unsynced bytes is known: never call again."""
        ...

    def drop_cache(self) -> None:
        """Have the next reads come from the medium, but for bytes written and not yet synced.

        After a failed sync the page cache shows bytes that the medium never got, and calls them clean; so a later process must not
        believe it.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One log directory. Paths are relative to its root and use ``/``.

    It has one owner, a thread. While the owner opens the logs it can wait for other threads that do so, each with files of its own.
    """

    @property
    def root(self) -> str:
        """Names the directory in messages, metrics and effects."""
        ...

    def open(self, path: str, *, create: bool = False) -> File:
        """Raises FileNotFoundError unless ``create``."""
        ...

    def exists(self, path: str) -> bool: ...

    def listdir(self, path: str = "") -> list[str]:
        """Names in the directory, sorted."""
        ...

    def size(self, path: str) -> int: ...

    def mtime_ms(self, path: str) -> int: ...

    def mkdir(self, path: str) -> None:
        """No error when it exists. The name is durable only after ``sync_dir`` of the parent."""
        ...

    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Create a directory, unless it exists, and files in it with these names and contents. Safe in a thread.

        Existing files are overwritten. Contents are durable only after ``sync_file``, names only after ``sync_dir``.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Sync a file that nobody has open. Safe in a thread. Raises FileNotFoundError."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces an existing file. Durable only after ``sync_dir``. Safe in a thread, for what the owner has stopped using."""
        ...

    def unlink(self, path: str) -> None:
        """Removes a file; no error when it is already gone."""
        ...

    def remove_tree(self, path: str) -> None: ...

    def read_file(self, path: str) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def replace_file(self, path: str, data: bytes) -> None:
        """Atomic and durable: write ``path.tmp``, sync, rename, sync the directory."""
        ...

    def sync_dir(self, path: str = "") -> None: ...

    def free_bytes(self) -> int: ...

    def total_bytes(self) -> int:
        """Of the file system that holds the directory."""
        ...


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of an atomic ``multi``. ``version`` -1 means any.

    ========  =============================================================
    create    the node must not exist, its parent must (parents of our layout are made at start)
    set       the node must exist with this version; its version grows by 1
    delete    the node must exist with this version and have no children
    check     the node must exist with this version
    ========  =============================================================
    """

    kind: Literal["create", "set", "delete", "check"]
    path: str
    data: bytes = b""
    version: int = -1
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class NodeState:
    """A store node as a watch or a read shows it; ``data`` None means that it does not exist."""

    path: str
    data: bytes | None
    version: int = -1
    #: Transaction that created the node; grows over the life of the store. A broker's registration gives its broker epoch.
    created_zxid: int = -1


StoreErrorKind = Literal["exists", "missing", "version", "not_empty", "session", "unavailable", "too_large"]

#: What becomes of a session. ``suspended``: nothing is heard of the store, the session may be gone; ``lost``: it is gone, and so are its
#: ephemeral nodes; ``connected``: the session goes on, or after ``lost`` another one has begun.
SessionState = Literal["connected", "suspended", "lost"]


@dataclass(frozen=True, slots=True)
class StoreResult:
    """The outcome of a multi: all operations were done, or none and ``error`` tells why (``failed_op`` is the index)."""

    states: tuple[NodeState, ...] = ()
    error: StoreErrorKind | None = None
    failed_op: int = -1


class Store(Protocol):
    """A session with the coordination store. Callbacks run on the owner's loop, in the order in which the store did the changes."""

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Carry out all operations atomically, or none.

        A session that was closed or lost answers ``session``; unknown outcomes, and everything while suspended, ``unavailable``; a multi of
        more bytes than the store takes, ``too_large``. The state that a ``check`` gives tells nothing but the path.
        """
        ...

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        """Every node below ``prefix`` (inclusive), first as it stands now, parents before children, then each change in order.

        A node that changes again before its change could be told may be told once, as it then stands; never is anything older told after
        what is newer, nor a node before its parent. While suspended or lost nothing is told; what changed meanwhile is told
        before ``connected`` is.
        """
        ...

    def listen(self, told: Callable[[SessionState], None]) -> None:
        """What becomes of the session from now on, in order with everything else that is told. It is connected at first."""
        ...

    def close(self) -> None:
        """End the session: its ephemeral nodes go at once."""
        ...
