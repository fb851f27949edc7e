"""The coordination store of one machine: the promises of ZooKeeper, kept by one process in one SQLite file.

All nodes are in memory (a ``Tree``); the file is what they are loaded from. A multi is applied to the tree at once, in the order
of submission, and its changes join a queue. One thread writes the whole queue as one SQLite transaction (WAL, synchronous=FULL:
an answer means that the change is on disk), then the loop tells watches and answers in the order of the changes, and the next transaction
begins. A watch first shows the tree as it stands at ``watch()``, told in the same order, so that nothing is shown twice or left out.

Sessions end with ``close()`` or with the process: what is ephemeral is never written to the file. When a transaction fails nothing
more is believed: sessions are suspended, and the store answers ``unavailable``, until the process is started again. So that a full disk
is no reason for that, some room is kept beside the file (``Ballast``), and the write-ahead log is folded into the file before it outgrows
that room.

The file::

    node(path, data, version, created_zxid)     one row per node that is not ephemeral
    number(name, value)                         zxid: the last transaction; format: 1
"""

import asyncio
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.base.units import MiB
from ottla.store.ballast import Ballast
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.tree import Tree, below, creations

FORMAT = 1
#: Marks the file as ours in its header ("Ottl").
APPLICATION_ID = 0x4F74746C

#: Room kept for a full disk.
BALLAST_BYTES = 2 * MiB
#: Pages of 4 KiB in the write-ahead log at which it is folded into the file; less than the ballast has.
CHECKPOINT_PAGES = 200
#: Changes told in one turn of the loop: for a broker each may be a new log, and a topic can have thousands.
TURN_CHANGES = 50

SCHEMA = """
CREATE TABLE IF NOT EXISTS node(path TEXT PRIMARY KEY, data BLOB NOT NULL, version INTEGER NOT NULL, created_zxid INTEGER NOT NULL)
WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS number(name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
"""

T = TypeVar("T")
#: A changed node as it is written: path, and what it holds, or None when it is gone.
Row = tuple[str, tuple[bytes, int, int] | None]


class StoreFileError(Exception):
    """The file cannot be used: it is another program's, another format's, damaged, or open in another process."""


class EmbeddedStore:
    """The nodes, their file, and the sessions open on them. Everything but the writing happens on the loop that opened it."""

    def __init__(self, path: str | Path, *, failed: Callable[[str], None] | None = None) -> None:
        """Opens or creates the file; before this returns its layout is complete and durable. Raises StoreFileError.

        ``failed`` is told when the file can no longer be written.
        """
        self.tree = Tree()
        self._sessions: list[EmbeddedSession] = []
        self._last_session = 0
        self._rows: list[Row] = []
        self._told: list[Callable[[], None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._written_zxid = 0
        self._failed = failed
        #: Why the file is no longer written; None while all is well.
        self.failure: str | None = None
        self._ballast = Ballast(Path(f"{path}-ballast"), size_bytes=BALLAST_BYTES)
        try:
            self._connection = self._with_room(lambda: _open(Path(path)))
            self.tree.load(*_stored(self._connection))
            self._written_zxid = self.tree.zxid
            _, changes = self.tree.apply(creations(self.tree, PERSISTENT_PATHS), 0)
            if changes:
                self._write([_row(state) for state in changes], self.tree.zxid)
            self._ballast.lay_in_plenty()
        except sqlite3.Error as error:
            raise StoreFileError(f"cannot use the coordination store {path}: {error}") from error
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-store")

    def session(self) -> "EmbeddedSession":
        self._last_session += 1
        opened = EmbeddedSession(self, self._last_session)
        self._sessions.append(opened)
        return opened

    def change(self, ops: Sequence[Op], session: int) -> StoreResult:
        """Applies a multi and queues what follows from it."""
        result, changes = self.tree.apply(ops, session)
        self._queue(changes)
        return result

    def end(self, session: "EmbeddedSession") -> None:
        """Forgets a session and its ephemeral nodes."""
        self._sessions.remove(session)
        self._queue(self.tree.end_session(session.number))

    def tell(self, told: Callable[[], None]) -> None:
        """Calls back once everything changed so far is on disk, in the order of these calls."""
        self._told.append(told)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def settled(self) -> None:
        """Returns when nothing waits to be written or told."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Ends all sessions, writes what waits and closes the file."""
        for session in list(self._sessions):
            session.close()
        await self.settled()
        self._thread.shutdown()
        self._connection.close()
        # The write-ahead log is gone now; what it took is kept for the next life rather than left to others.
        self._ballast.lay()

    def _queue(self, changes: Sequence[NodeState]) -> None:
        for state in changes:
            node = self.tree.nodes.get(state.path)
            if node is None or not node.owner:
                self._rows.append(_row(state))
            for session in self._sessions:
                session.hear(state)
        if changes:
            self.tell(_nothing)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        while self._told:
            rows, told, zxid = self._rows, self._told, self.tree.zxid
            self._rows, self._told = [], []
            if zxid != self._written_zxid and self.failure is None:
                try:
                    await loop.run_in_executor(self._thread, self._write, rows, zxid)
                except sqlite3.Error as error:
                    self.failure = str(error)
                    for session in self._sessions:
                        told += session.suspended()
                    if self._failed is not None:
                        self._failed(self.failure)
            for first in range(0, len(told), TURN_CHANGES):
                for tell in told[first : first + TURN_CHANGES]:
                    loop.call_soon(tell)
                # Those callbacks run before this task goes on, and may have changed something.
                await asyncio.sleep(0)
        self._writing = None

    def _write(self, rows: Sequence[Row], zxid: int) -> None:
        """Also for a change of ephemeral nodes alone, which has no rows: no zxid is given twice, or two lives of a broker had one epoch."""
        self._with_room(lambda: self._transact(rows, zxid))
        self._written_zxid = zxid
        self._ballast.lay_in_plenty()

    def _transact(self, rows: Sequence[Row], zxid: int) -> None:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            for path, content in rows:
                if content is None:
                    self._connection.execute("DELETE FROM node WHERE path = ?", (path,))
                else:
                    self._connection.execute("INSERT OR REPLACE INTO node VALUES (?, ?, ?, ?)", (path, *content))
            self._connection.execute("INSERT OR REPLACE INTO number VALUES ('zxid', ?)", (zxid,))

    def _with_room(self, act: Callable[[], T]) -> T:
        """What ``act`` gives; on a full disk it is tried again once the ballast is dropped. Raises sqlite3.Error."""
        try:
            return act()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_FULL or not self._ballast.drop():
                raise
        return act()


class EmbeddedSession:
    """One session with an EmbeddedStore; a ``Store``."""

    def __init__(self, store: EmbeddedStore, number: int) -> None:
        self.store = store
        self.number = number
        self._open = True
        self._watches: list[tuple[str, Callable[[NodeState], None]]] = []
        self._listeners: list[Callable[[SessionState], None]] = []

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        if not self._open or self.store.failure is not None:
            result = StoreResult((), "unavailable" if self._open else "session")
        else:
            result = self.store.change(ops, self.number)
        self.store.tell(partial(self._answer, done, result))

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        for state in self.store.tree.snapshot(prefix):
            self.store.tell(partial(self._show, changed, state))
        self._watches.append((prefix, changed))

    def listen(self, told: Callable[[SessionState], None]) -> None:
        self._listeners.append(told)

    def close(self) -> None:
        if self._open:
            self._open = False
            self.store.end(self)

    def suspended(self) -> list[Callable[[], None]]:
        """What is to be told when the file can no longer be written."""
        return [partial(told, "suspended") for told in self._listeners]

    def hear(self, state: NodeState) -> None:
        """Queues a change for those of the session's watches that it concerns."""
        for prefix, changed in self._watches:
            if below(state.path, prefix):
                self.store.tell(partial(self._show, changed, state))

    def _answer(self, done: Callable[[StoreResult], None], result: StoreResult) -> None:
        done(result if self.store.failure is None else StoreResult((), "unavailable"))

    def _show(self, changed: Callable[[NodeState], None], state: NodeState) -> None:
        if self._open and self.store.failure is None:
            changed(state)


def _nothing() -> None:
    """Told when a change has nobody who waits for it."""


def _row(state: NodeState) -> Row:
    return state.path, None if state.data is None else (state.data, state.version, state.created_zxid)


def _open(path: Path) -> sqlite3.Connection:
    """The file, locked for this process alone, with its tables in place. Raises StoreFileError and sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
    owner = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if owner not in (0, APPLICATION_ID) or (owner == 0 and tables):
        raise StoreFileError(f"{path} is an SQLite file of another program")
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.executescript(SCHEMA)
    connection.execute("INSERT OR IGNORE INTO number VALUES ('format', ?)", (FORMAT,))
    found = connection.execute("SELECT value FROM number WHERE name = 'format'").fetchone()[0]
    if found != FORMAT:
        raise StoreFileError(f"{path} has format {found}; this version reads format {FORMAT}")


def _stored(connection: sqlite3.Connection) -> tuple[Iterator[tuple[str, bytes, int, int]], int]:
    """All nodes, parents before children (a path sorts after its prefix), and the last zxid."""
    zxid = connection.execute("SELECT value FROM number WHERE name = 'zxid'").fetchone()
    rows: Iterable[tuple[str, bytes, int, int]] = connection.execute("SELECT path, data, version, created_zxid FROM node ORDER BY path")
    return iter(rows), zxid[0] if zxid else 0
