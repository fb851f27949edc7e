"""Connections between clients and brokers. Frames arrive in order, late, or not at all after the connection broke.

When a connection breaks, frames in transit are lost and both ends notice. Sometimes a frame is damaged, because no checksum below Kafka's
is perfect. Sometimes only the client's end notices: the broker still executes what was sent, so a client that retries has its request
executed twice.
"""

from collections.abc import Callable
from typing import Protocol

from ottla.sim.world import World

#: Latency of a frame in ms.
LATENCY_MS = (0, 4)
SLOW_MS = (20, 400)


class Host(Protocol):
    """A listener."""

    def accept(self, connection: "Connection") -> bool:
        """Whether it accepts the connection."""
        ...

    def receive(self, connection: "Connection", frame: bytearray) -> None: ...

    def hung_up(self, connection: "Connection") -> None: ...


class Connection:
    """One client's connection to a host."""

    def __init__(
        self, network: "Network", number: int, host: Host, *, on_frame: Callable[[bytearray], None], on_close: Callable[[], None]
    ) -> None:
        self._network = network
        self.number = number
        self._host = host
        self._on_frame = on_frame
        self._on_close = on_close
        #: Whether the host's end is open: the host may not have noticed yet that the client closed it.
        self.open = True
        #: Whether the client's end is open.
        self._attended = True
        #: When the last frame of each direction arrives; the next one arrives later.
        self._last_to_host = self._last_to_user = 0

    def send(self, frame: bytes | bytearray, *, batch_at: int = -1) -> None:
        """Client to host, without the size prefix. From ``batch_at`` on, a checksum of record batches protects the bytes, so they may be
        damaged.
        """
        sent = bytearray(frame)
        rng = self._network.rng
        if batch_at >= 0 and rng.random() < self._network.damage:
            sent[rng.randrange(batch_at, len(sent))] ^= 1 << rng.randrange(8)
        self._last_to_host = self._carry(sent, self._last_to_host, lambda arrived: self._host.receive(self, arrived), to_user=False)

    def reply(self, frame: bytes | bytearray) -> None:
        """Host to client."""
        self._last_to_user = self._carry(bytearray(frame), self._last_to_user, self._on_frame, to_user=True)

    def close(self) -> None:
        """Closes the connection from either end, or because the network failed."""
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
        """Closes the host's end; nothing arrives any more."""
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
    """Creates connections. Its rates may change over time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.rng("net")
        #: Probability that a frame breaks its connection.
        self.loss = 0.0
        #: Probability that one bit of a batch to a host is flipped.
        self.damage = 0.0
        #: Probability that a frame is slow.
        self.slow = 0.0
        #: Probability that frames to a host arrive although their client closed the connection.
        self.lateness = 0.0
        self._numbers = 0

    def connect(self, host: Host, *, on_frame: Callable[[bytearray], None], on_close: Callable[[], None]) -> Connection | None:
        """A new connection; None if the host refuses it."""
        self._numbers += 1
        connection = Connection(self, self._numbers, host, on_frame=on_frame, on_close=on_close)
        if not host.accept(connection):
            return None
        return connection

    def latency_ms(self) -> int:
        bounds = SLOW_MS if self.rng.random() < self.slow else LATENCY_MS
        return self.rng.randint(*bounds)
