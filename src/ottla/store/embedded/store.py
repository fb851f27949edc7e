"""The embedded coordination store: ZooKeeper's guarantees in one process, with one SQLite file.

All nodes are in memory (a ``Tree``), loaded from the file. A multi is applied to the tree at once, in the order of submission, and its
changes join a queue. One thread writes the whole queue as one SQLite transaction (WAL, synchronous=FULL, so that a completed multi is on
disk). Then the loop runs the callbacks of watches and multis in the order of the changes, and the next transaction begins. A new watch
first reports the tree at the time of ``watch()``, in the same order, so that no change is reported twice or missed.

A session ends with ``close()`` or with the process; ephemeral nodes are never written to the file. After a failed transaction all sessions
are suspended, and the store answers ``unavailable`` until the process is restarted. To avoid this on a full disk, some space is reserved
beside the file (``Ballast``), and the write-ahead log is written back before it exceeds that space.

The file is checked completely before it is used (``file.py``); a damaged one is refused and not changed. Copies are made from the nodes in
memory (``copies.py``): soon after a start, at most every two minutes while nodes change, and when the file is found damaged while in use,
so that nothing is lost.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.base.units import MiB
from ottla.store.embedded.ballast import Ballast
from ottla.store.embedded.copies import LOST_UNKNOWN, copy_paths, doubt, doubted, read_store, write_copy
from ottla.store.embedded.file import (
    Contents,
    Row,
    StoreDamaged,
    StoreFile,
    StoreFileError,
    cannot_use,
    read_contents,
)
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.tree import Tree, below, creations

log = logging.getLogger("ottla.store")

#: Disk space reserved for the store.
BALLAST_BYTES = 2 * MiB
#: Changes reported in one iteration of the event loop. For a broker each may be a new log, and a topic can have thousands.
TURN_CHANGES = 50
#: Delay of the first copy after the first write of a process, and minimum interval between copies.
FIRST_COPY_S, NEXT_COPY_S = 1.0, 120.0

T = TypeVar("T")


class EmbeddedStore:
    """The nodes, their file, and open sessions. Everything but writing runs on the event loop that opened it."""

    def __init__(self, path: str | Path, *, failed: Callable[[str], None] | None = None) -> None:
        """Checks and opens the file, or creates it; the basic nodes are durable when this returns.

        Raises: StoreFileError, and StoreDamaged if the contents differ from what was written.

        ``failed`` is called when the file can no longer be written.
        """
        self.path = Path(path)
        self.tree = Tree()
        self._sessions: list[EmbeddedSession] = []
        self._last_session = 0
        self._rows: list[Row] = []
        self._told: list[Callable[[], None]] = []
        self._writing: asyncio.Task[None] | None = None
        self._written_zxid = 0
        self._failed = failed
        #: Why the file is no longer written; None if it is.
        self.failure: str | None = None
        self._ballast = Ballast(Path(f"{path}-ballast"), size_bytes=BALLAST_BYTES)
        found = self._read()
        ahead = self._doubted(found) if found is not None else None
        try:
            self._file = self._with_room(lambda: StoreFile(self.path, is_new=found is None, found=found or Contents(), advanced=ahead))
            self.tree.load(self._file.contents.nodes(), self._file.contents.zxid)
            self._written_zxid = self.tree.zxid
            _, changes = self.tree.apply(creations(self.tree, PERSISTENT_PATHS), 0)
            if changes:
                self._write([_row(state) for state in changes], self.tree.zxid)
            self._ballast.lay_in_plenty()
        except sqlite3.Error as error:
            raise cannot_use(self.path, error) from error
        if ahead is not None:
            self._try_copy(self._file.contents)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-store")
        #: Checksum of the rows in the newest copy; None before this process made one.
        self._copied: int | None = None
        self._copy_timer: asyncio.TimerHandle | None = None
        self._copying: asyncio.Task[None] | None = None
        self._copy_thread = ThreadPoolExecutor(1, thread_name_prefix="ottla-store-copy")

    def session(self) -> "EmbeddedSession":
        self._last_session += 1
        opened = EmbeddedSession(self, self._last_session)
        self._sessions.append(opened)
        return opened

    def change(self, ops: Sequence[Op], session: int) -> StoreResult:
        """Applies a multi and queues its changes."""
        result, changes = self.tree.apply(ops, session)
        self._queue(changes)
        return result

    def end(self, session: "EmbeddedSession") -> None:
        """Removes a session and its ephemeral nodes."""
        self._sessions.remove(session)
        self._queue(self.tree.end_session(session.number))

    def tell(self, told: Callable[[], None]) -> None:
        """Calls back when all changes so far are on disk, in the order of these calls."""
        self._told.append(told)
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def settled(self) -> None:
        """Returns when nothing waits to be written or reported."""
        while self._writing is not None:
            await asyncio.shield(self._writing)

    async def close(self) -> None:
        """Ends all sessions, writes pending changes and closes the file."""
        for session in list(self._sessions):
            session.close()
        await self.settled()
        if self._copy_timer is not None:
            self._copy_timer.cancel()
        if self._copying is not None:
            await self._copying
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._thread, self._close_file)
        if found is not None and self.failure is None:
            log.error("%s", await loop.run_in_executor(self._thread, self._rescue, found))
        self._copy_thread.shutdown()
        self._thread.shutdown()
        # The write-ahead log is gone; its space is reserved for the next start.
        self._ballast.lay()

    def _close_file(self) -> StoreFileError | None:
        """Closes the file and checks it; returns why it cannot be used, or None."""
        try:
            self._file.close()
            _checked(self.path, self._file.contents)
        except sqlite3.Error as error:
            return cannot_use(self.path, error)
        except StoreFileError as error:
            return error
        return None

    # Copies.

    def _plan_copy(self) -> None:
        """Schedules a copy, unless the newest one is up to date."""
        if self._copied == self._file.contents.rows_checksum or self._copy_timer is not None or self._copying is not None:
            return
        delay_s = FIRST_COPY_S if self._copied is None else NEXT_COPY_S
        self._copy_timer = asyncio.get_running_loop().call_later(delay_s, self._begin_copy)

    def _begin_copy(self) -> None:
        self._copy_timer = None
        self._copying = asyncio.get_running_loop().create_task(self._copy())

    async def _copy(self) -> None:
        loop = asyncio.get_running_loop()
        contents = await loop.run_in_executor(self._thread, self._file.contents.copy)
        self._copied = contents.rows_checksum
        await loop.run_in_executor(self._copy_thread, self._try_copy, contents)
        self._copying = None
        if self.failure is None and self._sessions:
            # Nodes may have changed meanwhile.
            self._plan_copy()

    def _try_copy(self, contents: Contents) -> None:
        try:
            self._copy_in_plenty(contents)
        except (sqlite3.Error, OSError, StoreFileError) as error:
            log.warning("no copy of the coordination store %s could be made: %s; the last one stays", self.path, error)

    def _copy_in_plenty(self, contents: Contents) -> None:
        """Copies only if there is much space: the store itself needs it on a full disk. Raises: sqlite3.Error, OSError, StoreFileError."""
        newest = next(iter(copy_paths(self.path)), None)
        if newest is not None and _has(newest, contents):
            return
        room = os.statvfs(self.path.parent)
        if room.f_bavail * room.f_frsize >= 4 * BALLAST_BYTES + 2 * self.path.stat().st_size:
            write_copy(self.path, contents)

    def _rescue(self, error: StoreFileError) -> str:
        """Makes a copy of everything written, after the file was found unusable; returns a message."""
        try:
            copy = write_copy(self.path, self._file.contents)
        except (sqlite3.Error, OSError, StoreFileError) as failure:
            return f"{error}; no copy of its nodes could be made: {failure}"
        return f"{error}; all of its nodes were written to {copy}"

    def _queue(self, changes: Sequence[NodeState]) -> None:
        for state in changes:
            node = self.tree.nodes.get(state.path)
            if node is None or not node.owner:
                self._rows.append(_row(state))
            for session in self._sessions:
                session.receive(state)
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
                    self.failure = await loop.run_in_executor(self._thread, self._rescue, cannot_use(self.path, error))
                    for session in self._sessions:
                        told += session.suspended()
                    if self._failed is not None:
                        self._failed(self.failure)
            for first in range(0, len(told), TURN_CHANGES):
                for tell in told[first : first + TURN_CHANGES]:
                    loop.call_soon(tell)
                # Those callbacks run before this task continues, and may have made changes.
                await asyncio.sleep(0)
        self._writing = None
        if self.failure is None and self._sessions:
            self._plan_copy()

    def _write(self, rows: Sequence[Row], zxid: int) -> None:
        """Also called for changes of ephemeral nodes alone, without rows, so that no zxid, hence no broker epoch, is assigned twice."""
        self._with_room(lambda: self._file.write(rows, zxid))
        self._written_zxid = zxid
        self._ballast.lay_in_plenty()

    def _read(self) -> Contents | None:
        """The contents of the file. To read a write-ahead log SQLite creates a file beside it, which needs space.

        Raises: StoreFileError, StoreDamaged.
        """
        try:
            return read_store(self.path)
        except StoreFileError as error:
            code = getattr(error.__cause__, "sqlite_errorcode", sqlite3.SQLITE_OK)
            if code not in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE) or not self._ballast.drop():
                raise
        return read_store(self.path)

    def _doubted(self, found: Contents) -> Contents | None:
        """The advanced contents if the file may lack its last transactions, otherwise None."""
        reason = doubt(self.path)
        if reason is None:
            return None
        log.warning(
            "%s, so the coordination store may lack changes after transaction %d; its epochs and ids are put ahead by %d. "
            "Check that the topics and settings are as they should be",
            reason,
            found.zxid,
            LOST_UNKNOWN,
        )
        return doubted(self.path, found)

    def _with_room(self, act: Callable[[], T]) -> T:
        """The result of ``act``; on a full disk it is repeated after the ballast is dropped. Raises: sqlite3.Error."""
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
        """The callbacks to run when the file can no longer be written."""
        return [partial(told, "suspended") for told in self._listeners]

    def receive(self, state: NodeState) -> None:
        """Queues a change for the session's watches on it."""
        for prefix, changed in self._watches:
            if below(state.path, prefix):
                self.store.tell(partial(self._show, changed, state))

    def _answer(self, done: Callable[[StoreResult], None], result: StoreResult) -> None:
        done(result if self.store.failure is None else StoreResult((), "unavailable"))

    def _show(self, changed: Callable[[NodeState], None], state: NodeState) -> None:
        if self._open and self.store.failure is None:
            changed(state)


def _nothing() -> None:
    """Callback of a change without a waiting caller."""


def _row(state: NodeState) -> Row:
    return state.path, None if state.data is None else (state.data, state.version, state.created_zxid)


def _checked(path: Path, written: Contents) -> None:
    """Checks that a closed file holds what was written. Raises: StoreFileError."""
    contents = read_contents(path)
    if contents is None or contents.last != written.last:
        raise StoreDamaged(path, "it does not hold what was written to it")


def _has(copy: Path, contents: Contents) -> bool:
    """Whether a copy is valid and has all nodes."""
    with contextlib.suppress(StoreFileError):
        there = read_contents(copy)
        return there is not None and there.rows_checksum == contents.rows_checksum
    return False
