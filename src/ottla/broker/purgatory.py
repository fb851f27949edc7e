"""Requests that wait: for an offset to be committed, for bytes to arrive, for the store to answer, or for their deadline.

One mechanism for all of them. A ``Parked`` request names the keys it waits on, a test that says whether it can be finished now, and what to
do then. Whoever changes something under a key pokes that key; every request waiting on it is tested again. A deadline finishes it as
expired.

Deadlines stand in a timing wheel with one slot per tick of 10 ms, kept in a dict so that an idle wheel costs nothing; a heap of the
occupied ticks tells the next one. Adding is O(1), cancelling only marks. Source: Varghese and Lauck, "Hashed and hierarchical timing
wheels" (1987).
"""

from collections.abc import Callable, Hashable, Sequence
from heapq import heappop, heappush

TICK_MS = 10


class Parked:
    """One waiting request. It is finished exactly once, or cancelled."""

    __slots__ = ("done", "finish", "keys", "ready")

    def __init__(self, keys: Sequence[Hashable], ready: Callable[[], bool], finish: Callable[[bool], None]) -> None:
        self.keys = keys
        #: True when the request can be finished now; must not change anything.
        self.ready = ready
        #: Called once; its argument tells whether the deadline came first.
        self.finish = finish
        #: Never goes back to False.
        self.done = False


class Purgatory:
    """All waiting requests of a broker, by key and by deadline."""

    __slots__ = ("_slots", "_ticks", "_waiting", "parked")

    def __init__(self) -> None:
        self._waiting: dict[Hashable, dict[Parked, None]] = {}
        self._slots: dict[int, list[Parked]] = {}
        self._ticks: list[int] = []
        #: How many wait now.
        self.parked = 0

    def park(self, parked: Parked, deadline_ms: int | None) -> None:
        """Keep the request until a poke finds it ready or ``deadline_ms`` passes; None waits without limit."""
        self.parked += 1
        for key in parked.keys:
            self._waiting.setdefault(key, {})[parked] = None
        if deadline_ms is not None:
            tick = -(-deadline_ms // TICK_MS)
            slot = self._slots.get(tick)
            if slot is None:
                slot = self._slots[tick] = []
                heappush(self._ticks, tick)
            slot.append(parked)

    def poke(self, key: Hashable) -> None:
        """Something under ``key`` changed: finish what is ready."""
        waiting = self._waiting.get(key)
        if waiting:
            for parked in [parked for parked in waiting if parked.ready()]:
                if not parked.done:
                    self._finish(parked, expired=False)

    def expire(self, now_ms: int) -> None:
        """Finish everything whose deadline has passed, in the order of deadlines."""
        ticks = self._ticks
        while ticks and ticks[0] * TICK_MS <= now_ms:
            for parked in self._slots.pop(heappop(ticks)):
                if not parked.done:
                    self._finish(parked, expired=True)

    def expire_all(self) -> None:
        """The broker stops: finish everything that has a deadline, whenever that is."""
        if self._ticks:
            self.expire(max(self._ticks) * TICK_MS)

    def cancel(self, parked: Parked) -> None:
        """Forget a request whose client went away."""
        if not parked.done:
            self._leave(parked)

    def next_deadline_ms(self) -> int | None:
        """When ``expire`` has something to do, at the earliest."""
        while self._ticks:
            tick = self._ticks[0]
            if any(not parked.done for parked in self._slots[tick]):
                return tick * TICK_MS
            del self._slots[heappop(self._ticks)]
        return None

    def _finish(self, parked: Parked, *, expired: bool) -> None:
        self._leave(parked)
        parked.finish(expired)

    def _leave(self, parked: Parked) -> None:
        parked.done = True
        self.parked -= 1
        for key in parked.keys:
            waiting = self._waiting[key]
            del waiting[parked]
            if not waiting:
                del self._waiting[key]
