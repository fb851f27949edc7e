"""Links between the machines of a cluster, each direction separately: open, refused, or silent.

::

    open      frames arrive
    refused   the sender gets an error at once
    silent    nothing arrives; when the link opens again, held frames arrive late, or are lost and the sender gets an error

A link can be cut several times at once, and is open when all cuts are undone. An open link can be *flaky*: the sender gets an error while
the frame is in transit, and the frame arrives late. Data from a leader to a follower can be damaged where only a checksum shows it.
"""

from collections.abc import Callable, Iterable

from ottla.records.batch import HEADER_SIZE, parse_header
from ottla.sim.world import World

#: From one broker to another.
Way = tuple[int, int]


class Links:
    """All links of a cluster and their cuts."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng("links")
        #: Cuts of each direction, by number; True for a silent one.
        self._cuts: dict[Way, dict[int, bool]] = {}
        self._numbers = 0
        #: Frames held by silent links: the direction, delivery, and the error callback.
        self._held: list[tuple[Way, Callable[[], None], Callable[[], None]]] = []
        #: Probability that an open link breaks under a frame.
        self.flaky = 0.0
        #: The same for frames to one broker; they may also arrive later.
        self.flaky_to: dict[int, float] = {}
        #: Probability that one bit of the records in a response is flipped.
        self.damage = 0.0

    def cut(self, ways: Iterable[Way], *, silent: bool) -> int:
        """Cuts these directions; returns the number for ``mend``."""
        self._numbers += 1
        for way in ways:
            self._cuts.setdefault(way, {})[self._numbers] = silent
        return self._numbers

    def mend(self, number: int | None = None) -> None:
        """Undoes one cut, or all."""
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
        """Sometimes flips a bit of the first batch, in the part that its checksum covers."""
        if self.damage and len(records) > HEADER_SIZE and self._rng.random() < self.damage:
            size = min(len(records), parse_header(records).size)
            if size == HEADER_SIZE:
                # Compaction left an empty batch: its checksum covers no record.
                return
            records[self._rng.randrange(HEADER_SIZE, size)] ^= 1 << self._rng.randrange(8)

    def carry(self, way: Way, delay_ms: int, arrive: Callable[[], None], lost: Callable[[], None]) -> None:
        """Sends a frame in this direction."""

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
