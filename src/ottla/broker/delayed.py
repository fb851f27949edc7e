"""Requests that wait: for an offset to be committed, for bytes to arrive, for the store to answer, or for their deadline.

One mechanism for all of them. A ``Parked`` request names the keys it waits on, a test that says whether it can be finished now, and what to
do then. Whoever changes something under a key pokes that key; every request waiting on it is tested again, and may look at what changed
alone. A deadline finishes it as expired.

Deadlines stand in a timing wheel with one slot per tick of 10 ms, kept in a dict so that an idle wheel costs nothing; a heap of the
occupied ticks tells the next one. Adding is O(1); so is leaving, which most do long before their deadline: a slot forgets a request at
once and goes with the last one, and its tick leaves the heap when it comes up, or when most of the heap is such ticks. Source: Varghese
and Lauck, "Hashed and hierarchical timing wheels" (1987).
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from ottla.broker.events import RequestArrived
from ottla.broker.isolation import BrokenState, indivisible, interrupted

TICK_MS = 10
#: Ticks without a slot that the heap may hold beside as many as it has with one.
STALE_TICKS = 64


NEVER_PARKED = -2


class Parked:
    """One waiting request. It is finished exactly once, or cancelled."""

    __slots__ = ("call", "done", "finish", "keys", "poked", "ready", "tick")

    def __init__(
        self, keys: Sequence[Hashable], ready: Callable[[], bool], finish: Callable[[bool], None], poked: list[Any] | None = None
    ) -> None:
        #: Each key once, whatever the caller gives: a request can name one partition several times.
        self.keys: Collection[Hashable] = keys if len(keys) < 2 else dict.fromkeys(keys)
        #: True when the request can be finished now; changes nothing outside the request.
        self.ready = ready
        #: Keys that were poked since ``ready`` took them out, for one that looks at these alone.
        self.poked = poked
        #: Called once; its argument tells whether the deadline came first.
        self.finish = finish
        #: The client's request that waits; None: something of the broker's own.
        self.call: RequestArrived | None = None
        #: Never goes back to False.
        self.done = False
        #: Its slot of the wheel; -1 without a deadline.
        self.tick = NEVER_PARKED


def _raise(call: RequestArrived, error: Exception) -> None:
    raise error


class Purgatory:
    """All waiting requests of a broker, by key and by deadline."""

    __slots__ = ("_failed", "_slots", "_ticks", "_waiting", "heard", "parked")

    def __init__(self, failed: Callable[[RequestArrived, Exception], None] = _raise) -> None:
        """``failed`` answers a client's request whose ``ready`` or ``finish`` raised; the others go on."""
        self._failed = failed
        self._waiting: dict[Hashable, dict[Parked, None]] = {}
        #: By tick; never empty.
        self._slots: dict[int, dict[Parked, None]] = {}
        #: A heap of at least the ticks that have a slot.
        self._ticks: list[int] = []
        #: Told of each poke.
        self.heard: Callable[[Hashable], None] | None = None
        #: How many wait now.
        self.parked = 0

    def park(self, parked: Parked, deadline_ms: int | None) -> None:
        """Keep the request until a poke finds it ready or ``deadline_ms`` passes; None waits without limit."""
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
        """Something under ``key`` changed: finish what is ready."""
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
        """Finish everything under ``key`` as it stands."""
        for parked in list(self._waiting.get(key, ())):
            if not parked.done:
                self._finish(parked, expired=False)

    @indivisible
    def expire(self, now_ms: int) -> None:
        """Finish everything whose deadline has passed, in the order of deadlines."""
        ticks = self._ticks
        while ticks and ticks[0] * TICK_MS <= now_ms:
            for parked in self._slots.pop(heappop(ticks), ()):
                if not parked.done:
                    self._finish(parked, expired=True)

    def expire_all(self) -> None:
        """The broker stops: finish everything that has a deadline, whenever that is."""
        if self._ticks:
            self.expire(max(self._ticks) * TICK_MS)

    @indivisible
    def cancel(self, parked: Parked) -> None:
        """Forget a request whose client went away."""
        if parked.tick == NEVER_PARKED:
            parked.done = True
        elif not parked.done:
            self._leave(parked)

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` has something to do, at the earliest."""
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
