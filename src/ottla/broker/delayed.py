"""Delayed operations: requests that wait for a commit, for bytes, for the store's answer, or for their deadline.

An operation has keys, a test whether it can complete now, and the action to complete it. Code that changes something under a key pokes the
key; all operations of that key are tested again. An operation may ask for the keys that were poked, to look only at them. At its deadline
an operation completes as expired.

Deadlines are in a timing wheel with one slot per tick of 10 ms, stored as a dict, so an idle wheel costs nothing; a heap of the used ticks
has the next one. Adding and removing are O(1): most operations are removed long before their deadline. An empty slot is deleted; its tick
is removed from the heap when it comes up, or when most of the heap is such ticks. Source: Varghese and Lauck, "Hashed and hierarchical
timing wheels" (1987).
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from ottla.broker.events import RequestArrived
from ottla.broker.isolation import BrokenState, indivisible, interrupted

TICK_MS = 10
#: Ticks without a slot that the heap may hold in addition to as many as it has with one.
STALE_TICKS = 64


NEVER_PARKED = -2


class Parked:
    """One delayed operation. It completes exactly once, or is cancelled."""

    __slots__ = ("call", "done", "finish", "keys", "poked", "ready", "tick")

    def __init__(
        self, keys: Sequence[Hashable], ready: Callable[[], bool], finish: Callable[[bool], None], poked: list[Any] | None = None
    ) -> None:
        #: Each key once: a request can name one partition several times.
        self.keys: Collection[Hashable] = keys if len(keys) < 2 else dict.fromkeys(keys)
        #: Whether the operation can complete now; changes nothing outside of the operation.
        self.ready = ready
        #: Keys poked since ``ready`` last cleared the list, for operations that look only at these.
        self.poked = poked
        #: Called once; the argument is whether the deadline came first.
        self.finish = finish
        #: The client's request; None for an operation of the broker itself.
        self.call: RequestArrived | None = None
        #: Set when it completed or was cancelled.
        self.done = False
        #: Its tick in the wheel; -1 without a deadline.
        self.tick = NEVER_PARKED


def _raise(call: RequestArrived, error: Exception) -> None:
    raise error


class Purgatory:
    """All delayed operations of a broker, by key and by deadline."""

    __slots__ = ("_failed", "_slots", "_ticks", "_waiting", "heard", "parked")

    def __init__(self, failed: Callable[[RequestArrived, Exception], None] = _raise) -> None:
        """``failed`` answers a client's request whose ``ready`` or ``finish`` raised; other operations continue."""
        self._failed = failed
        self._waiting: dict[Hashable, dict[Parked, None]] = {}
        #: By tick; never empty.
        self._slots: dict[int, dict[Parked, None]] = {}
        #: A heap with at least the ticks that have a slot.
        self._ticks: list[int] = []
        #: Called for each poke.
        self.heard: Callable[[Hashable], None] | None = None
        #: Number of waiting operations.
        self.parked = 0

    def park(self, parked: Parked, deadline_ms: int | None) -> None:
        """Keeps an operation until a poke finds it ready or ``deadline_ms`` passes; None waits without limit."""
        try:
            self.parked += 1
            parked.tick = -1
            for key in parked.keys:
                self._waiting.setdefault(key, {})[parked] = None
            if deadline_ms is not None:
                tick = parked.tick = -(-deadline_ms // TICK_MS)
                slot = self._slots.get(tick)
                if slot is None:
                    self._slots[tick] = {parked: None}
                    self._push(tick)
                else:
                    slot[parked] = None
        except Exception as error:
            raise interrupted("Purgatory.park", error) from error

    def poke(self, key: Hashable) -> None:
        """Completes operations that are ready after a change under ``key``."""
        try:
            if self.heard is not None:
                self.heard(key)
            waiting = self._waiting.get(key)
            if waiting:
                self._finish_ready(waiting, key)
        except BrokenState:
            raise
        except Exception as error:
            raise interrupted("Purgatory.poke", error) from error

    def _finish_ready(self, waiting: dict[Parked, None], key: Hashable) -> None:
        ready, failures = [], []
        for parked in waiting:
            if parked.poked is not None:
                parked.poked.append(key)
            try:
                if parked.ready():
                    ready.append(parked)
            except Exception as error:
                if parked.call is None or isinstance(error, BrokenState):
                    raise
                failures.append((parked, error))
        for parked in ready:
            if not parked.done:
                self._finish(parked, expired=False)
        for parked, failure in failures:
            if parked.call is not None and not parked.done:
                self._failed(parked.call, failure)

    @indivisible
    def release(self, key: Hashable) -> None:
        """Completes all operations of ``key`` as they are."""
        for parked in list(self._waiting.get(key, ())):
            if not parked.done:
                self._finish(parked, expired=False)

    @indivisible
    def expire(self, now_ms: int) -> None:
        """Completes all operations whose deadline has passed, in the order of deadlines."""
        ticks = self._ticks
        while ticks and ticks[0] * TICK_MS <= now_ms:
            for parked in self._slots.pop(heappop(ticks), ()):
                if not parked.done:
                    self._finish(parked, expired=True)

    def expire_all(self) -> None:
        """Completes all operations with a deadline, because the broker stops."""
        if self._ticks:
            self.expire(max(self._ticks) * TICK_MS)

    @indivisible
    def cancel(self, parked: Parked) -> None:
        """Removes an operation without completing it."""
        if parked.tick == NEVER_PARKED:
            parked.done = True
        elif not parked.done:
            self._leave(parked)

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

    def _finish(self, parked: Parked, *, expired: bool) -> None:
        self._leave(parked)
        try:
            parked.finish(expired)
        except Exception as error:
            if parked.call is None or isinstance(error, BrokenState):
                raise
            self._failed(parked.call, error)

    def _leave(self, parked: Parked) -> None:
        parked.done = True
        self.parked -= 1
        slot = self._slots.get(parked.tick)
        if slot is not None:
            slot.pop(parked, None)
            if not slot:
                del self._slots[parked.tick]
        for key in parked.keys:
            waiting = self._waiting[key]
            del waiting[parked]
            if not waiting:
                del self._waiting[key]
