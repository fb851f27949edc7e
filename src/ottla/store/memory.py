"""A deterministic coordination store in memory, which can inject faults: lost sessions, late answers and watches.

``MemoryStore`` is the ensemble; ``session()`` opens a session, the broker's ``Store``. A change takes effect at once. The session's
callbacks (watches, then the answer) wait in one queue, as on the single connection of a ZooKeeper client. ``run()`` delivers everything;
a simulator calls ``deliver()`` of a session at the time it chooses.

A session can be suspended (``suspend``), resumed (``resume``) and lost (``expire``); ``renew`` then begins another one for the same owner,
as a ZooKeeper client does. After an interruption a watch reports the changes that it missed, in their present state.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.tree import Tree, below, creations
from ottla.store.watch_state import WatchState


class MemoryStore:
    """The ensemble: nodes and sessions."""

    def __init__(self, *, wake: Callable[["MemorySession"], None] | None = None, paths: Iterable[str] = PERSISTENT_PATHS) -> None:
        """``wake`` gets the session for each queued callback."""
        self.tree = Tree()
        self.sessions: list[MemorySession] = []
        self.wake = wake
        self._last_session = 0
        self.tree.apply(creations(self.tree, paths), 0)

    def session(self) -> "MemorySession":
        opened = MemorySession(self, self.next_number())
        self.sessions.append(opened)
        return opened

    def next_number(self) -> int:
        self._last_session += 1
        return self._last_session

    def run(self) -> None:
        """Delivers until all queues are empty, including callbacks that callbacks caused."""
        while sum(session.deliver() for session in self.sessions):
            pass

    def notify(self, changes: Sequence[NodeState]) -> None:
        """Queues changes for every session that watches them."""
        for session in self.sessions:
            session.notify(changes)


class _Watch:
    """One watch of a session."""

    __slots__ = ("changed", "prefix", "state")

    def __init__(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        self.prefix = prefix
        self.changed = changed
        self.state = WatchState()

    def report(self, state: NodeState, zxid: int) -> None:
        if self.state.record_change(state, zxid):
            self.changed(state)


class MemorySession:
    """One session with a MemoryStore; a ``Store``."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.store = store
        #: Owner of its ephemeral nodes; changes with ``renew``.
        self.number = number
        #: Whether the session exists in the ensemble.
        self.alive = True
        #: Whether owner and ensemble can communicate.
        self.connected = True
        #: Undelivered callbacks, in order; for an answer also the owner's callback.
        self.pending: deque[tuple[Callable[[StoreResult], None] | None, Callable[[], None]]] = deque()
        self._watches: list[_Watch] = []
        self._listeners: list[Callable[[SessionState], None]] = []
        self._fail_next: bool | None = None

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        if not self.alive or not self.connected:
            self._answer(done, StoreResult((), "unavailable" if self.alive else "session"))
            return
        fail_next, self._fail_next = self._fail_next, None
        if fail_next is False:
            self._answer(done, StoreResult((), "unavailable"))
            return
        result, changes = self.store.tree.apply(ops, self.number)
        self.store.notify(changes)
        self._answer(done, StoreResult((), "unavailable") if fail_next else result)

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        if not self.alive:
            return
        watch = _Watch(prefix, changed)
        self._watches.append(watch)
        if self.connected:
            for state in self.store.tree.snapshot(prefix):
                self._queue(None, partial(watch.report, state, 0))

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._listeners.append(changed)

    def close(self) -> None:
        if self.alive:
            self._end()
        self.pending.clear()
        self._watches.clear()
        self._listeners.clear()

    def suspend(self) -> None:
        """Interrupts the connection: undelivered answers become ``unavailable``, watches report nothing."""
        if self.connected:
            self.connected = False
            self._drop_pending()
            self._report_state("suspended")

    def resume(self) -> None:
        """Restores the connection and first reports missed changes. Renews a session that expired meanwhile."""
        if not self.alive:
            self.renew()
        elif not self.connected:
            self._connect(late=bool(self.pending))

    def expire(self) -> None:
        """Ends the session with its ephemeral nodes, and notifies the owner."""
        if self.alive:
            self._end()
            self.connected = False
            self._drop_pending()
            self._report_state("lost")

    def expire_suspended(self) -> None:
        """Ends a suspended session; ``resume`` notifies the owner."""
        assert not self.connected, "a connected session does not expire"
        if self.alive:
            self._end()

    def forget(self) -> None:
        """Ends the session of a paused owner: queued callbacks are delivered, nothing else until ``resume``."""
        if self.alive:
            self._end()
            self.connected = False

    def renew(self) -> None:
        """Begins another session for the owner of a lost one, with the same watches."""
        assert not self.alive, "a session is renewed after it was lost"
        late = bool(self.pending)
        self._report_state("lost")
        self.number = self.store.next_number()
        self.alive = True
        self._connect(late=late)

    def fail_next(self, *, applied: bool) -> None:
        """The next submit answers ``unavailable``. ``applied``: the connection broke after it was applied, else before."""
        self._fail_next = applied

    def deliver(self, count: int | None = None) -> int:
        """Runs the first ``count`` queued callbacks (all when None), but none queued meanwhile; returns their number."""
        delivered = 0
        for _ in range(len(self.pending) if count is None else min(count, len(self.pending))):
            if not self.pending:
                break
            self.pending.popleft()[1]()
            delivered += 1
        return delivered

    def notify(self, changes: Sequence[NodeState]) -> None:
        """Queues the changes that this session watches, in order."""
        if not self.connected:
            return
        for state in changes:
            for watch in self._watches:
                if below(state.path, watch.prefix):
                    # Plus one: a node created and deleted by the same multi has its zxid.
                    self._queue(None, partial(watch.report, state, self.store.tree.zxid + 1))

    def _connect(self, *, late: bool) -> None:
        self.connected = True
        snapshots = [(watch, list(self.store.tree.snapshot(watch.prefix))) for watch in self._watches]
        if late:
            # Differences are known only when all earlier callbacks were delivered.
            self._queue(None, lambda: self._catch_up(snapshots))
        else:
            for watch, states in snapshots:
                for state, zxid in watch.state.differences(states):
                    self._queue(None, partial(watch.report, state, zxid))
        self._report_state("connected")

    def _catch_up(self, snapshots: Sequence[tuple[_Watch, Sequence[NodeState]]]) -> None:
        """Queues the differences before the callbacks that wait already."""
        waiting, self.pending = self.pending, deque()
        for watch, states in snapshots:
            for state, zxid in watch.state.differences(states):
                self._queue(None, partial(watch.report, state, zxid))
        self.pending += waiting

    def _drop_pending(self) -> None:
        waiting = [done for done, _ in self.pending if done is not None]
        self.pending.clear()
        for done in waiting:
            self._answer(done, StoreResult((), "unavailable"))

    def _end(self) -> None:
        self.alive = False
        connected, self.connected = self.connected, False
        self.store.notify(self.store.tree.end_session(self.number))
        self.connected = connected

    def _report_state(self, state: SessionState) -> None:
        for changed in self._listeners:
            self._queue(None, partial(changed, state))

    def _answer(self, done: Callable[[StoreResult], None], result: StoreResult) -> None:
        self._queue(done, partial(done, result))

    def _queue(self, done: Callable[[StoreResult], None] | None, callback: Callable[[], None]) -> None:
        self.pending.append((done, callback))
        if self.store.wake is not None:
            self.store.wake(self)
