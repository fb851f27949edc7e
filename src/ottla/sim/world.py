"""Virtual time and seeded randomness: one seed gives one history.

Events run in the order of (time, sequence number), and time jumps from one to the next. Each part draws from a named random stream of its
own, so a new draw in one part does not change the others. Nothing depends on hash order or the real clock.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any, Protocol
from weakref import WeakSet

#: Trace lines that a failure shows.
TAIL = 60
#: Events at one instant before the run counts as an endless loop.
INSTANT_MAX = 100_000
#: The wall clock of every history begins at 2026-01-01.
EPOCH_MS = 1_767_225_600_000
#: Slowdown of clients that repeat something for ever, while only a long sleep is left to wait for.
LEISURE = 10
#: Clients return to their normal pace this long before the sleeper wakes.
BUSY_AGAIN_MS = 1_000


class Livelock(AssertionError):
    """Virtual time does not advance any more."""


class Ending(Protocol):
    """A simulated process."""

    def end(self) -> None:
        """Ends it as after ``kill -9``; may be called again."""


class Dice(Random):
    """`Random` with a faster draw of small integers."""

    def randint(self, a: int, b: int) -> int:
        assert a <= b, f"nothing lies between {a} and {b}"
        return a + self.below(b - a + 1)

    def choice(self, seq: Any) -> Any:
        return seq[self.below(len(seq))]

    def below(self, count: int) -> int:
        """A number from 0 to ``count`` - 1."""
        assert count > 0, "there is something to choose from"
        bits = count.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= count:
            drawn = self.getrandbits(bits)
        return drawn


class World:
    """Clock, event queue and random streams of one history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0
        self._schedule: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._streams: dict[str, Random] = {}
        self._hash = sha256()
        self._leisure_until_ms = 0
        #: Processes that ``end`` ends.
        self.processes: WeakSet[Ending] = WeakSet()
        #: The last trace lines.
        self.tail: deque[str] = deque(maxlen=TAIL)

    def rng(self, name: str) -> Random:
        """The random stream of this name; always the same object."""
        if name not in self._streams:
            self._streams[name] = Dice(int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big"))
        return self._streams[name]

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Schedules a call ``delay_ms`` from now, after everything already scheduled for that instant."""
        self._order += 1
        heappush(self._schedule, (self.now_ms + delay_ms if delay_ms > 0 else self.now_ms, self._order, act))

    def await_sleepers(self, until_ms: int) -> None:
        """Slows down clients until the last sleeper wakes."""
        self._leisure_until_ms = until_ms - BUSY_AGAIN_MS
        self.run(max(self.now_ms, until_ms))

    def unhurried(self, delay_ms: int) -> int:
        """The delay of a client that repeats something for ever, normally every ``delay_ms``."""
        return delay_ms * LEISURE if self.now_ms < self._leisure_until_ms else delay_ms

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Advances time until ``until_ms`` or until ``done`` is true; returns whether it is.

        Raises: Livelock.
        """
        at_once = 0
        schedule = self._schedule
        while not (over := done()) and schedule and schedule[0][0] <= until_ms:
            when, _, act = heappop(schedule)
            if when != self.now_ms:
                self.now_ms, at_once = when, 0
            elif (at_once := at_once + 1) > INSTANT_MAX:
                raise Livelock(f"{INSTANT_MAX} things happened at {self.now_ms} ms")
            act()
        if not over:
            self.now_ms = max(self.now_ms, until_ms)
        return over or done()

    def end(self) -> None:
        """Ends the processes and drops the scheduled events.

        Events and effects are invisible to the garbage collector (``gc=False``), so a cycle through one of them, a scheduled callback
        and the world would keep the whole history in memory.
        """
        for process in list(self.processes):
            process.end()
        self._schedule.clear()

    def note(self, line: str) -> None:
        """Appends a line to the trace. Two runs of a seed have equal traces."""
        text = f"{self.now_ms:>7} {line}"
        self._hash.update(text.encode() + b"\n")
        self.tail.append(text)

    def trace_hash(self) -> str:
        """Equal for two runs with equal traces."""
        return self._hash.hexdigest()


class Gate:
    """All input of a process passes here. While the gate is shut, input is queued and then delivered in order."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shut_until_ms = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def shut(self, duration_ms: int) -> None:
        """Shuts the gate for ``duration_ms``, or longer if it is already shut for longer."""
        self._shut_until_ms = max(self._shut_until_ms, self._world.now_ms + duration_ms)
        self._world.after(duration_ms, self._open)

    def enter(self, act: Callable[[], None]) -> None:
        """Runs ``act`` now, or when the gate opens."""
        if self.open:
            act()
        else:
            self._waiting.append(act)

    @property
    def open(self) -> bool:
        """Whether ``enter`` runs its argument at once."""
        return not self._waiting and self._world.now_ms >= self._shut_until_ms

    def _open(self) -> None:
        while self._waiting and self._world.now_ms >= self._shut_until_ms:
            self._waiting.popleft()()
