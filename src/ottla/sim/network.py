"""Connections between users and brokers: frames arrive in order, late, or never again once the connection broke.

A connection carries whole frames both ways, each way first in, first out. When it breaks, frames on their way are lost and both ends hear
of it; what a request had done by then is for the user to find out. Sometimes a frame is damaged on the way, as no checksum below ours is
perfect. Sometimes only the user's end knows that the connection broke: what it sent is still on its way, the host carries it out when it
comes, and a user that sends it again has it carried out twice.
"""

from collections.abc import Callable
from typing import Protocol

from ottla.sim.world import World

#: Latency of one frame, ms.
LATENCY_MS = (0, 4)
SLOW_MS = (20, 400)


class Host(Protocol):
    """What listens."""

    def accept(self, connection: "Connection") -> bool:
        """Whether it takes the connection."""
        ...

    def receive(self, connection: "Connection", frame: bytearray) -> None: ...

    def hung_up(self, connection: "Connection") -> None: ...


class Connection:
    """One user's connection to a host."""

    def __init__(
        self, network: "Network", number: int, host: Host, *, on_frame: Callable[[bytearray], None], on_close: Callable[[], None]
    ) -> None:
        self._network = network
        self.number = number
        self._host = host
        self._on_frame = on_frame
        self._on_close = on_close
        #: Whether the host's end is: it may not know yet that the user hung up.
        self.open = True
        #: Whether anybody is at the user's end.
        self._attended = True
        #: When the last frame of each direction arrives: the next one cannot overtake it.
        self._last_to_host = self._last_to_user = 0

    def send(self, frame: bytes | bytearray, *, batch_at: int = -1) -> None:
        """User to host, without the size prefix. From ``batch_at`` on a checksum of ours guards the bytes, and the network may damage
        them."""
        sent = bytearray(frame)
        rng = self._network.rng
        if batch_at >= 0 and rng.random() < self._network.damage:
            sent[rng.randrange(batch_at, len(sent))] ^= 1 << rng.randrange(8)
        self._last_to_host = self._carry(sent, self._last_to_host, lambda arrived: self._host.receive(self, arrived), to_user=False)

    def reply(self, frame: bytes | bytearray) -> None:
        """Host to user."""
        self._last_to_user = self._carry(bytearray(frame), self._last_to_user, self._on_frame, to_user=True)

    def close(self) -> None:
        """Either end hangs up, or the network breaks the connection."""
        if self._attended:
            self._attended = False
            world = self._network.world
            world.after(1, self._on_close)
            on_the_way_ms = self._last_to_host - world.now_ms
            if on_the_way_ms > 0 and self._network.rng.random() < self._network.lateness:
                world.after(on_the_way_ms + 1, self.break_off)
            else:
                self.break_off()

    def break_off(self) -> None:
        """The host's end is closed; nothing comes through any more."""
        if self.open:
            self.open = False
            self._host.hung_up(self)
            self.close()

    def _carry(self, frame: bytearray, last: int, arrive: Callable[[bytearray], None], *, to_user: bool) -> int:
        world, rng = self._network.world, self._network.rng
        when = max(last, world.now_ms + self._network.latency_ms())
        if rng.random() < self._network.loss:
            world.after(rng.randint(0, 50), self.close)

        def arrived() -> None:
            if self.open and (self._attended or not to_user):
                arrive(frame)

        world.after(when - world.now_ms, arrived)
        return when


class Network:
    """Makes connections; its rates may change while time passes."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("net")
        #: Chance that a frame's connection breaks soon after.
        self.loss = 0.0
        #: Chance that one bit of a batch on its way to a host is turned.
        self.damage = 0.0
        #: Chance that a frame is slow.
        self.slow = 0.0
        #: Chance that what is on its way to a host when its user hangs up arrives all the same.
        self.lateness = 0.0
        self._numbers = 0

    def connect(self, host: Host, *, on_frame: Callable[[bytearray], None], on_close: Callable[[], None]) -> Connection | None:
        """A new connection; None when the host takes none."""
        self._numbers += 1
        connection = Connection(self, self._numbers, host, on_frame=on_frame, on_close=on_close)
        if not host.accept(connection):
            return None
        return connection

    def latency_ms(self) -> int:
        bounds = SLOW_MS if self.rng.random() < self.slow else LATENCY_MS
        return self.rng.randint(*bounds)
