"""A coordination store in memory, deterministic, that can also be unkind: sessions are lost, answers and watches come late.

``MemoryStore`` is the ensemble; ``session()`` opens a session, which is the ``Store`` that a broker sees. A change takes effect at
once; what a session is told about it (watches, then its answer) waits in that session's one queue, as on a ZooKeeper client's one
connection, until someone delivers it: ``run()`` delivers everything, a simulator calls ``deliver()`` of a session when its time has come.

A session can be cut off (``suspend``), be heard of again (``resume``), and be lost (``expire``), after which ``renew`` begins another one
under the same owner, as a ZooKeeper client does by itself. What a watch missed is told when it can be, and as it stands by then.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.tree import Tree, below, creations
from ottla.store.watch_state import WatchState


class MemoryStore:
    """The ensemble: nodes, and the sessions open on them."""

    def __init__(self, *, wake: Callable[["MemorySession"], None] | None = None, paths: Iterable[str] = PERSISTENT_PATHS) -> None:
        """``wake`` is told of each session to which something is to be delivered, once per thing."""
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
        """Delivers until nothing waits anywhere; also what the callbacks themselves caused."""
        while sum(session.deliver() for session in self.sessions):
            pass

    def tell(self, changes: Sequence[NodeState]) -> None:
        """Queues changes for every session that watches them."""
        for session in self.sessions:
            session.receive(changes)


class _Watch:
    """What one call of ``watch`` asked for, and what it was told."""

    __slots__ = ("changed", "prefix", "shown")

    def __init__(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        self.prefix = prefix
        self.changed = changed
        self.shown = WatchState()

    def tell(self, state: NodeState, zxid: int) -> None:
        if self.shown.takes(state, zxid):
            self.changed(state)


class MemorySession:
    """One session with a MemoryStore; a ``Store``."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.store = store
        #: The owner of its ephemeral nodes; another one after a ``renew``.
        self.number = number
        #: Whether the ensemble still knows the session.
        self.alive = True
        #: Whether it hears and is heard.
        self.connected = True
        #: What the owner has not heard yet, in order; for an answer also whom it is for.
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
        self.store.tell(changes)
        self._answer(done, StoreResult((), "unavailable") if fail_next else result)

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        if not self.alive:
            return
        watch = _Watch(prefix, changed)
        self._watches.append(watch)
        if self.connected:
            for state in self.store.tree.snapshot(prefix):
                self._queue(None, partial(watch.tell, state, 0))

    def listen(self, told: Callable[[SessionState], None]) -> None:
        self._listeners.append(told)

    def close(self) -> None:
        if self.alive:
            self._end()
        self.pending.clear()
        self._watches.clear()
        self._listeners.clear()

    def suspend(self) -> None:
        """The owner and the ensemble do not hear each other: outcomes not yet heard become unknown, watches fall silent."""
        if self.connected:
            self.connected = False
            self._fall_silent()
            self._tell_state("suspended")

    def resume(self) -> None:
        """The session goes on; first the owner hears what it missed. A session that expired meanwhile is renewed."""
        if not self.alive:
            self.renew()
        elif not self.connected:
            self._connect(late=bool(self.pending))

    def expire(self) -> None:
        """The ensemble forgets the session, and the owner learns it: as in ``suspend``, and ephemeral nodes go."""
        if self.alive:
            self._end()
            self.connected = False
            self._fall_silent()
            self._tell_state("lost")

    def expire_unheard(self) -> None:
        """The ensemble forgets a session that is suspended; the owner learns it with ``resume``."""
        assert not self.connected, "a session that is heard does not expire"
        if self.alive:
            self._end()

    def forget(self) -> None:
        """The ensemble forgets a session whose owner says nothing: what it was told already arrives, nothing else does until ``resume``."""
        if self.alive:
            self._end()
            self.connected = False

    def renew(self) -> None:
        """Another session begins for the owner of one that was lost, with the same watches."""
        assert not self.alive, "a session is renewed after it was lost"
        late = bool(self.pending)
        self._tell_state("lost")
        self.number = self.store.next_number()
        self.alive = True
        self._connect(late=late)

    def fail_next(self, *, applied: bool) -> None:
        """The next submit answers ``unavailable``, having been carried out or not: the connection broke after or before it."""
        self._fail_next = applied

    def deliver(self, count: int | None = None) -> int:
        """Tells the owner the first ``count`` things that wait (all when None), and none that come up meanwhile; returns how many."""
        delivered = 0
        for _ in range(len(self.pending) if count is None else min(count, len(self.pending))):
            if not self.pending:
                break
            self.pending.popleft()[1]()
            delivered += 1
        return delivered

    def receive(self, changes: Sequence[NodeState]) -> None:
        """Queues those of the changes that this session watches, in their order."""
        if not self.connected:
            return
        for state in changes:
            for watch in self._watches:
                if below(state.path, watch.prefix):
                    # One more: what is created and deleted by one multi has its zxid.
                    self._queue(None, partial(watch.tell, state, self.store.tree.zxid + 1))

    def _connect(self, *, late: bool) -> None:
        self.connected = True
        shown = [(watch, list(self.store.tree.snapshot(watch.prefix))) for watch in self._watches]
        if late:
            # What is different shows only when all that was told before has arrived.
            self._queue(None, lambda: self._catch_up(shown))
        else:
            for watch, states in shown:
                for state, zxid in watch.shown.differences(states):
                    self._queue(None, partial(watch.tell, state, zxid))
        self._tell_state("connected")

    def _catch_up(self, shown: Sequence[tuple[_Watch, Sequence[NodeState]]]) -> None:
        """Tells the differences next, one by one, before what waits already."""
        waiting, self.pending = self.pending, deque()
        for watch, states in shown:
            for state, zxid in watch.shown.differences(states):
                self._queue(None, partial(watch.tell, state, zxid))
        self.pending += waiting

    def _fall_silent(self) -> None:
        waiting = [done for done, _ in self.pending if done is not None]
        self.pending.clear()
        for done in waiting:
            self._answer(done, StoreResult((), "unavailable"))

    def _end(self) -> None:
        self.alive = False
        connected, self.connected = self.connected, False
        self.store.tell(self.store.tree.end_session(self.number))
        self.connected = connected

    def _tell_state(self, state: SessionState) -> None:
        for told in self._listeners:
            self._queue(None, partial(told, state))

    def _answer(self, done: Callable[[StoreResult], None], result: StoreResult) -> None:
        self._queue(done, partial(done, result))

    def _queue(self, done: Callable[[StoreResult], None] | None, tell: Callable[[], None]) -> None:
        self.pending.append((done, tell))
        if self.store.wake is not None:
            self.store.wake(self)
