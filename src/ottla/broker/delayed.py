"""Delayed operations: requests that wait for a commit, for bytes, for the store's answer, or for their deadline.

An operation has keys, a test whether it can complete now, and the action to complete it. Code that changes something under a key pokes the
key; all operations of that key are tested again. An operation may ask for the keys that were poked, to look only at them. At its deadline
an operation completes as expired.

Deadlines are in a timing wheel with one slot per tick of 10 ms, stored as a dict, so an idle wheel costs nothing; a heap of the used ticks
has the next one. Adding and removing are O(1): most operations are removed long before their deadline. An empty slot is deleted; its tick
is removed from the heap when it comes up, or when most of the heap is such ticks. Source: Varghese and Lauck, "Hashed and hierarchical
timing wheels" (1987).
"""

from collections import deque
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

from ottla.broker.events import RequestArrived
from ottla.broker.isolation import BrokenState, indivisible, interrupted

TICK_MS = 10
#: Keys that an operation with very many leaves in a turn.
LEFT_AT_ONCE = 200
#: Ticks without a slot that the heap may hold in addition to as many as it has with one.
STALE_TICKS = 64


NEVER_DELAYED = -2


class DelayedOperation:
    """One delayed operation, or a timer: an operation without ``ready``, which only its deadline completes.

    It completes exactly once, or is cancelled.
    """

    __slots__ = ("call", "done", "finish", "keys", "name", "poked", "ready", "tick", "watched")

    def __init__(
        self,
        name: str,
        finish: Callable[[bool], None],
        *,
        keys: Sequence[Hashable] = (),
        ready: Callable[[], bool] | None = None,
        poked: list[Any] | None = None,
    ) -> None:
        #: What it waits for, for people.
        self.name = name
        #: Called once; the argument is whether the deadline came first.
        self.finish = finish
        #: Each key once: a request can name one partition several times.
        self.keys: Collection[Hashable] = keys if len(keys) < 2 else dict.fromkeys(keys)
        #: Whether the operation can complete now; changes nothing outside of the operation.
        self.ready = ready
        #: Keys poked since ``ready`` last cleared the list, for operations that look only at these.
        self.poked = poked
        #: The client's request; None for an operation of the broker itself.
        self.call: RequestArrived[Any] | None = None
        #: Set when it completed or was cancelled.
        self.done = False
        #: Whether ``watch`` registered its keys before it was delayed.
        self.watched = False
        #: Its tick in the wheel; -1 without a deadline.
        self.tick = NEVER_DELAYED

    def __repr__(self) -> str:
        return f"<delayed: {self.name}>"


def _raise(call: RequestArrived[Any], error: Exception) -> None:
    raise error


def _over(expired: bool) -> None:
    """Stands for what finished an operation that is done."""
    raise AssertionError("an operation finishes once")


class DelayedOperations:
    """All delayed operations of a broker, by key and by deadline."""

    __slots__ = ("_failed", "_slots", "_ticks", "_waiting", "count", "poked", "work_off")

    def __init__(self, failed: Callable[[RequestArrived[Any], Exception], None] = _raise) -> None:
        """``failed`` answers a client's request whose ``ready`` or ``finish`` raised; other operations continue."""
        self._failed = failed
        self._waiting: dict[Hashable, dict[DelayedOperation, None]] = {}
        #: By tick; never empty.
        self._slots: dict[int, dict[DelayedOperation, None]] = {}
        #: A heap with at least the ticks that have a slot.
        self._ticks: list[int] = []
        #: Called for each poke.
        self.poked: Callable[[Hashable], None] | None = None
        #: Number of waiting operations.
        self.count = 0
        #: Does work in turns.
        self.work_off: Callable[[Generator[int, None, None]], None] | None = None

    def watch(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        """Registers keys of an operation that is delayed later: one with thousands of keys takes several turns for it.

        Until it is delayed nothing completes it; so it has no ``ready``.
        """
        assert operation.tick == NEVER_DELAYED and operation.ready is None, "it is not delayed yet"
        if not operation.watched:
            operation.watched, operation.keys = True, {}
        for key in keys:
            operation.keys[key] = None  # type: ignore[index]
            self._waiting.setdefault(key, {})[operation] = None

    def forget(self, operation: DelayedOperation) -> None:
        """Removes the keys of an operation that will not be delayed."""
        operation.done = True
        self._leave_keys(operation)

    def timer(self, name: str, act: Callable[[], None], deadline_ms: int) -> DelayedOperation:
        """Runs ``act`` at ``deadline_ms``, unless it is cancelled."""
        operation = DelayedOperation(name, lambda expired: act())
        self.delay(operation, deadline_ms)
        return operation

    def delay(self, operation: DelayedOperation, deadline_ms: int | None) -> None:
        """Keeps an operation until a poke finds it ready or ``deadline_ms`` passes; None waits without limit."""
        try:
            self.count += 1
            operation.tick = -1
            if not operation.watched:
                for key in operation.keys:
                    self._waiting.setdefault(key, {})[operation] = None
            if deadline_ms is not None:
                tick = operation.tick = -(-deadline_ms // TICK_MS)
                slot = self._slots.get(tick)
                if slot is None:
                    self._slots[tick] = {operation: None}
                    self._push(tick)
                else:
                    slot[operation] = None
        except Exception as error:
            raise interrupted("DelayedOperations.delay", error) from error

    def poke(self, key: Hashable) -> None:
        """Completes operations that are ready after a change under ``key``."""
        try:
            if self.poked is not None:
                self.poked(key)
            waiting = self._waiting.get(key)
            if waiting:
                self._finish_ready(waiting, key)
        except BrokenState:
            raise
        except Exception as error:
            raise interrupted("DelayedOperations.poke", error) from error

    def _finish_ready(self, waiting: dict[DelayedOperation, None], key: Hashable) -> None:
        ready, failures = [], []
        for operation in waiting:
            if operation.poked is not None:
                operation.poked.append(key)
            try:
                if operation.ready is not None and operation.ready():
                    ready.append(operation)
            except Exception as error:
                if operation.call is None or isinstance(error, BrokenState):
                    raise
                failures.append((operation, error))
        for operation in ready:
            if not operation.done:
                self._finish(operation, expired=False)
        for operation, failure in failures:
            if operation.call is not None and not operation.done:
                self._failed(operation.call, failure)

    @indivisible
    def release(self, key: Hashable) -> None:
        """Completes all operations of ``key`` as they are."""
        for operation in list(self._waiting.get(key, ())):
            if not operation.done:
                self._finish(operation, expired=False)

    @indivisible
    def expire(self, now_ms: int) -> None:
        """Completes all operations whose deadline has passed, in the order of deadlines."""
        ticks = self._ticks
        while ticks and ticks[0] * TICK_MS <= now_ms:
            for operation in self._slots.pop(heappop(ticks), ()):
                if not operation.done:
                    self._finish(operation, expired=True)

    def expire_all(self) -> None:
        """Completes all operations with a deadline, because the broker stops."""
        if self._ticks:
            self.expire(max(self._ticks) * TICK_MS)

    @indivisible
    def cancel(self, operation: DelayedOperation) -> None:
        """Removes an operation without completing it."""
        if operation.tick == NEVER_DELAYED:
            operation.done = True
        elif not operation.done:
            self._leave(operation)
        operation.finish = _over

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` is next needed, at the earliest."""
        ticks = self._ticks
        while ticks:
            if ticks[0] in self._slots:
                return ticks[0] * TICK_MS
            heappop(ticks)
        return None

    def _push(self, tick: int) -> None:
        ticks = self._ticks
        heappush(ticks, tick)
        if len(ticks) > 2 * len(self._slots) + STALE_TICKS:
            ticks[:] = self._slots
            heapify(ticks)

    def _finish(self, operation: DelayedOperation, *, expired: bool) -> None:
        # What finishes an operation often holds the operation: such a cycle would wait for the garbage collector.
        finish, operation.finish = operation.finish, _over
        self._leave(operation)
        try:
            finish(expired)
        except Exception as error:
            if operation.call is None or isinstance(error, BrokenState):
                raise
            self._failed(operation.call, error)

    def _leave(self, operation: DelayedOperation) -> None:
        operation.done = True
        self.count -= 1
        slot = self._slots.get(operation.tick)
        if slot is not None:
            slot.pop(operation, None)
            if not slot:
                del self._slots[operation.tick]
        if operation.watched:
            self._leave_keys(operation)
        else:
            self._leave_some(operation, operation.keys)

    def _leave_some(self, operation: DelayedOperation, keys: Iterable[Hashable]) -> None:
        for key in keys:
            waiting = self._waiting[key]
            del waiting[operation]
            if not waiting:
                del self._waiting[key]

    def _leave_keys(self, operation: DelayedOperation) -> None:
        # Until its keys are removed, nothing happens when they are poked.
        operation.ready = operation.poked = None
        work = self._leave_in_turns(operation)
        if self.work_off is not None:
            self.work_off(work)
        else:
            deque(work, maxlen=0)

    def _leave_in_turns(self, operation: DelayedOperation) -> Generator[int, None, None]:
        keys = iter(operation.keys)
        while some := list(islice(keys, LEFT_AT_ONCE)):
            self._leave_some(operation, some)
            yield LEFT_AT_ONCE
