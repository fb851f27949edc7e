"""A coordination store in memory, deterministic, that can also be unkind: sessions are lost, answers and watches come late.

``MemoryStore`` is the ensemble; ``session()`` opens a session, which is the ``Store`` that a broker sees. A change takes effect at
once; what a session is told about it (watches, then its answer) waits in that session's one queue, as on a ZooKeeper client's one
connection, until someone delivers it: ``run()`` delivers everything, a simulator calls ``deliver()`` of a session when its time has come.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from ottla.base.ports import NodeState, Op, StoreResult
from ottla.store.layout import PERSISTENT_PATHS
from ottla.store.tree import Tree, below, creations


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
        self._last_session += 1
        opened = MemorySession(self, self._last_session)
        self.sessions.append(opened)
        return opened

    def run(self) -> None:
        """Delivers until nothing waits anywhere; also what the callbacks themselves caused."""
        while sum(session.deliver() for session in self.sessions):
            pass

    def tell(self, changes: Sequence[NodeState]) -> None:
        """Queues changes for every session that watches them."""
        for session in self.sessions:
            session.hear(changes)


class MemorySession:
    """One session with a MemoryStore; a ``Store``."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.store = store
        self.number = number
        #: Whether the ensemble still knows the session.
        self.alive = True
        #: What the owner has not heard yet, in order; for an answer also whom it is for.
        self.pending: deque[tuple[Callable[[StoreResult], None] | None, Callable[[], None]]] = deque()
        self._watches: list[tuple[str, Callable[[NodeState], None]]] = []
        self._fail_next: bool | None = None

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        if not self.alive:
            self._answer(done, StoreResult((), "session"))
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
        for state in self.store.tree.snapshot(prefix):
            self._queue(None, partial(changed, state))
        self._watches.append((prefix, changed))

    def close(self) -> None:
        if self.alive:
            self._end()
            self.pending.clear()

    def expire(self) -> None:
        """The ensemble forgets the session: outcomes not yet heard become unknown, watches fall silent, ephemeral nodes go."""
        if not self.alive:
            return
        self._end()
        waiting = [done for done, _ in self.pending if done is not None]
        self.pending.clear()
        for done in waiting:
            self._answer(done, StoreResult((), "unavailable"))

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

    def hear(self, changes: Sequence[NodeState]) -> None:
        """Queues those of the changes that this session watches, in their order."""
        for state in changes:
            for prefix, changed in self._watches:
                if below(state.path, prefix):
                    self._queue(None, partial(changed, state))

    def _end(self) -> None:
        self.alive = False
        self._watches.clear()
        self.store.tell(self.store.tree.end_session(self.number))

    def _answer(self, done: Callable[[StoreResult], None], result: StoreResult) -> None:
        self._queue(done, partial(done, result))

    def _queue(self, done: Callable[[StoreResult], None] | None, tell: Callable[[], None]) -> None:
        self.pending.append((done, tell))
        if self.store.wake is not None:
            self.store.wake(self)
