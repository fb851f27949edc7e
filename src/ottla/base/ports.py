"""The interfaces that a shell or the simulator provides to pure code: Disk and Store. Time is an argument.

The log accesses files through a ``Disk``, one per log directory. All calls are synchronous and run at page-cache speed, except ``sync`` and
``sync_dir``, which wait for the device. So these are called only during recovery, at a clean stop, or off the loop for a ``Flush`` effect.

The broker accesses the coordination store through effects and events; a shell passes them to a ``Store``, which guarantees what ZooKeeper
guarantees: sessions, ephemeral nodes, versions (compare and set), ordered watches, atomic ``multi``.

After any ``OSError`` of a Disk or File, except ENOSPC from ``append``, the log directory is no longer used.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Buffer = bytes | bytearray | memoryview


class File(Protocol):
    """An append-only open file. Positions and sizes are bytes. One owner; only ``sync`` is thread-safe."""

    @property
    def path(self) -> str:
        """Relative to the disk's root; follows a rename done through the same Disk."""
        ...

    @property
    def size(self) -> int: ...

    def append(self, *chunks: Buffer) -> int:
        """Writes the chunks at the end, without copying them; returns the position of the first byte.

        All or nothing: after a short write (ENOSPC) the file has its former size, and OSError is raised.
        """
        ...

    def read(self, position: int, size: int) -> bytes:
        """Up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Waits until data and size are on the device. After an OSError the state of unsynced bytes is unknown: do not call it again."""
        ...

    def drop_cache(self) -> None:
        """Makes the next reads come from the device, except for unsynced bytes.

        After a failed sync the page cache has bytes marked clean that the device never received, so a later process must not read them.
        """
        ...

    def close(self) -> None: ...


class Disk(Protocol):
    """One log directory. Paths are relative to its root and use ``/``.

    It has one owner, a thread. To open the logs the owner can wait for other threads, each with its own files.
    """

    @property
    def root(self) -> str:
        """Identifies the directory in messages, metrics and effects."""
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
        """No error if it exists. The name is durable after ``sync_dir`` of the parent."""
        ...

    def create_files(self, directory: str, files: Sequence[tuple[str, bytes]]) -> None:
        """Creates a directory if missing, and files in it with these names and contents. Safe in a thread.

        Overwrites existing files. Contents are durable after ``sync_file``, names after ``sync_dir``.
        """
        ...

    def sync_file(self, path: str) -> None:
        """Syncs a closed file. Safe in a thread. Raises: FileNotFoundError."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces an existing file. Durable after ``sync_dir``. Safe in a thread for files that the owner no longer uses."""
        ...

    def unlink(self, path: str) -> None:
        """Removes a file; no error if missing."""
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
    create    the node must not exist, its parent must exist (the start creates the parents of our layout)
    set       the node must exist with this version; its version increases by 1
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
    """State of a store node in a watch or a read; ``data`` None means that it does not exist."""

    path: str
    data: bytes | None
    version: int = -1
    #: Transaction that created the node; increases over the life of the store. That of a registration is the broker epoch.
    created_zxid: int = -1


StoreErrorKind = Literal["exists", "missing", "version", "not_empty", "session", "unavailable", "too_large"]

#: ``suspended``: no connection to the store, the session may have ended. ``lost``: it ended with its ephemeral nodes. ``connected``: the
#: session continues, or, after ``lost``, a new one began.
SessionState = Literal["connected", "suspended", "lost"]


@dataclass(frozen=True, slots=True)
class StoreResult:
    """The outcome of a multi: all operations were applied, or none, with the reason and the index of the failed operation."""

    states: tuple[NodeState, ...] = ()
    error: StoreErrorKind | None = None
    failed_op: int = -1


class StoreRequests(Protocol):
    """Where a broker sends its requests to the coordination store."""

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Applies all operations atomically, or none.

        Errors: ``session`` from a closed or lost session; ``unavailable`` for unknown outcomes, and always while suspended; ``too_large``
        for a multi above the store's size limit. Of a ``check``'s state only the path is valid.
        """
        ...


class Store(StoreRequests, Protocol):
    """A session with the coordination store. Callbacks run on the owner's loop, in the order of the changes in the store."""

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        """Reports every node at or below ``prefix``: first the present state, parents before children, then each change in order.

        Several changes of a node may be reported as one, with the last state. An older state is never reported after a newer one, nor a
        node before its parent. Nothing is reported while suspended or lost; changes of that time are reported before ``connected``.
        """
        ...

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        """Reports changes of the session's state, in order with all other callbacks. It is connected at first."""
        ...

    def close(self) -> None:
        """Ends the session with its ephemeral nodes."""
        ...
