"""Links between the machines of a cluster, each way by itself: open, refused, or silent.

::

    open      frames arrive
    refused   the sender hears that the other cannot be reached
    silent    nobody hears anything; when the link opens again, what was sent meanwhile arrives late, or is lost and the sender hears of it

A link may be cut for several reasons at a time, and is open when none is left. An open one may be *flaky*: the sender hears that it broke
while the frame is still on its way, and arrives late; and what a leader sends to a follower may be damaged where only a checksum tells.
"""

from collections.abc import Callable, Iterable

from ottla.records.batch import HEADER_SIZE, parse_header
from ottla.sim.world import World

#: From one broker to another.
Way = tuple[int, int]


class Links:
    """See the module's theory."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("links")
        #: The cuts of each way, by number, each with whether it is silent.
        self._cuts: dict[Way, dict[int, bool]] = {}
        self._numbers = 0
        #: What waits for a silent link: the way, what arrives, and who hears of a loss.
        self._held: list[tuple[Way, Callable[[], None], Callable[[], None]]] = []
        #: Chance that an open link breaks under a frame.
        self.flaky = 0.0
        #: The same, for what goes to one broker; and it may arrive later.
        self.flaky_to: dict[int, float] = {}
        #: Chance that one bit of the records in an answer is turned.
        self.damage = 0.0

    def cut(self, ways: Iterable[Way], *, silent: bool) -> int:
        """Cut these ways; returns what ``mend`` is to be told."""
        self._numbers += 1
        for way in ways:
            self._cuts.setdefault(way, {})[self._numbers] = silent
        return self._numbers

    def mend(self, number: int | None = None) -> None:
        """Undo one cut, or all."""
        for way in list(self._cuts):
            if number is None:
                self._cuts[way].clear()
            self._cuts[way].pop(number or 0, None)
            if not self._cuts[way]:
                del self._cuts[way]
        held, self._held = self._held, []
        for way, arrive, lost in held:
            if way in self._cuts:
                self._held.append((way, arrive, lost))
            else:
                self._world.after(self._rng.randint(0, 20), arrive if self._rng.random() < 0.7 else lost)

    def damages(self, records: memoryview) -> None:
        """Perhaps turn a bit of the first batch, behind its checksum."""
        if self.damage and len(records) > HEADER_SIZE and self._rng.random() < self.damage:
            size = min(len(records), parse_header(records).size)
            if size == HEADER_SIZE:
                # Compaction has left nothing of it, so there is nothing behind the checksum.
                return
            records[self._rng.randrange(HEADER_SIZE, size)] ^= 1 << self._rng.randrange(8)

    def carry(self, way: Way, delay_ms: int, arrive: Callable[[], None], lost: Callable[[], None]) -> None:
        """A frame goes this way."""

        def there() -> None:
            cuts = self._cuts.get(way)
            if not cuts:
                to = self.flaky_to.get(way[1], 0.0)
                if to and way[0] != way[1] and self._rng.random() < to:
                    self._world.after(self._rng.choice((200, 1_000, 2_000, 3_000, 4_000)), arrive)
                    lost()
                elif self.flaky and self._rng.random() < self.flaky:
                    self._world.after(self._rng.choice((0, 200, 2_000)), arrive)
                    lost()
                else:
                    arrive()
            elif all(cuts.values()):
                self._held.append((way, arrive, lost))
            else:
                lost()

        self._world.after(delay_ms, there)
