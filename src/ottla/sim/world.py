"""Virtual time and seeded chance. One seed, one history.

Things happen in the order of (time, sequence number); time jumps from one to the next. Each part draws from its own stream of random
numbers, named, so that a draw added in one part does not reshuffle the others. Nothing here depends on hash order or on the real clock.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from heapq import heappop, heappush
from random import Random
from typing import Any

#: The last lines of a history that a failure shows.
TAIL = 60
#: Things that may happen at one instant before it counts as a loop that never ends.
INSTANT_MAX = 100_000
#: An arbitrary calendar for every history: 2026-01-01.
EPOCH_MS = 1_767_225_600_000
#: Everything is healed and only somebody's long sleep is waited for: users do in so many times the time what they do for ever.
LEISURE = 10
#: So long before the sleeper wakes they are busy again.
BUSY_AGAIN_MS = 1_000


class Livelock(AssertionError):
    """Time does not advance any more."""


class Dice(Random):
    """The stream of ``Random``, drawn by shorter ways: what is drawn most is small whole numbers."""

    def randint(self, a: int, b: int) -> int:
        assert a <= b, f"nothing lies between {a} and {b}"
        return a + self.below(b - a + 1)

    def choice(self, seq: Any) -> Any:
        return seq[self.below(len(seq))]

    def below(self, count: int) -> int:
        """One of 0 to ``count`` - 1."""
        assert count > 0, "there is something to choose from"
        bits = count.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= count:
            drawn = self.getrandbits(bits)
        return drawn


class World:
    """The clock, the agenda and the dice of one simulated history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.now_ms = 0
        self._agenda: list[tuple[int, int, Callable[[], None]]] = []
        self._order = 0
        self._streams: dict[str, Random] = {}
        self._hash = sha256()
        self._leisure_until_ms = 0
        #: The last things noted.
        self.tail: deque[str] = deque(maxlen=TAIL)

    def rng(self, name: str) -> Random:
        """The stream of this name; the same object each time."""
        if name not in self._streams:
            self._streams[name] = Dice(int.from_bytes(sha256(f"{self.seed}/{name}".encode()).digest()[:8], "big"))
        return self._streams[name]

    def after(self, delay_ms: int, act: Callable[[], None]) -> None:
        """Do something ``delay_ms`` from now, after everything already planned for that instant."""
        self._order += 1
        heappush(self._agenda, (self.now_ms + delay_ms if delay_ms > 0 else self.now_ms, self._order, act))

    def await_sleepers(self, until_ms: int) -> None:
        """Let time pass until the last one wakes, of which nothing is to be seen but that."""
        self._leisure_until_ms = until_ms - BUSY_AGAIN_MS
        self.run(max(self.now_ms, until_ms))

    def unhurried(self, delay_ms: int) -> int:
        """How long somebody waits who asks for ever, and mostly ``delay_ms`` after an answer."""
        return delay_ms * LEISURE if self.now_ms < self._leisure_until_ms else delay_ms

    def run(self, until_ms: int, done: Callable[[], bool] = lambda: False) -> bool:
        """Let time pass until then, or until ``done``; returns whether it is done.

        Raises: Livelock.
        """
        at_once = 0
        agenda = self._agenda
        while not (over := done()) and agenda and agenda[0][0] <= until_ms:
            when, _, act = heappop(agenda)
            if when != self.now_ms:
                self.now_ms, at_once = when, 0
            elif (at_once := at_once + 1) > INSTANT_MAX:
                raise Livelock(f"{INSTANT_MAX} things happened at {self.now_ms} ms")
            act()
        if not over:
            self.now_ms = max(self.now_ms, until_ms)
        return over or done()

    def note(self, line: str) -> None:
        """Add a line to the trace, by which two runs of a seed are compared."""
        text = f"{self.now_ms:>7} {line}"
        self._hash.update(text.encode() + b"\n")
        self.tail.append(text)

    def trace_hash(self) -> str:
        """Equal for two runs that went the same way."""
        return self._hash.hexdigest()


class Gate:
    """Through which everything passes that a process hears. While it is shut things wait, and then pass in the order in which they came."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._shut_until_ms = 0
        self._waiting: deque[Callable[[], None]] = deque()

    def shut(self, duration_ms: int) -> None:
        """For so long from now, or longer, if it is shut for longer already."""
        self._shut_until_ms = max(self._shut_until_ms, self._world.now_ms + duration_ms)
        self._world.after(duration_ms, self._open)

    def enter(self, act: Callable[[], None]) -> None:
        """Do it now, or when the gate opens."""
        if self.open:
            act()
        else:
            self._waiting.append(act)

    @property
    def open(self) -> bool:
        """Whether it would be done now."""
        return not self._waiting and self._world.now_ms >= self._shut_until_ms

    def _open(self) -> None:
        while self._waiting and self._world.now_ms >= self._shut_until_ms:
            self._waiting.popleft()()
