"""A machine among others: its broker asks the others, over links that may be cut, and its session with the store outlives it for a while.

::

    process ends     the session goes SESSION_MS later, or when the next process of this broker begins
    long pause       the session goes in the middle of it; woken, the broker goes on with what it had heard until it hears of that, and gets
                     another session after a while
    cut link         what two brokers say to each other is lost, and each hears that the other cannot be reached; both still reach the
                     store, and users reach both
"""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.base.ids import BrokerId, ConnectionId
from ottla.broker import effects, events
from ottla.log.flush import Slice
from ottla.sim.disk import SimDisk
from ottla.sim.machine import Machine, Performer
from ottla.sim.world import World
from ottla.store.memory import MemorySession, MemoryStore
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.messages import API

SESSION_MS = 1_500
#: How long a broker may be without a session after it lost one, at most.
RENEWED_MS = 400
#: After which a broker that cannot be reached is given up.
UNREACHABLE_MS = 100


class Links:
    """Which machines reach which."""

    def __init__(self) -> None:
        self.machines: dict[BrokerId, ClusterMachine] = {}
        self.cut: set[frozenset[int]] = set()

    def open(self, one: int, other: int) -> bool:
        return frozenset((one, other)) not in self.cut


class ClusterMachine(Machine):
    """See the module's theory."""

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        disk: SimDisk,
        texts: dict[str, str],
        links: Links,
        performer: Performer | None,
        *,
        broker_id: int,
        stepped: Callable[["ClusterMachine"], None],
    ) -> None:
        """``stepped`` is called after each thing the broker heard."""
        super().__init__(world, store, disk, texts, performer, broker_id=broker_id)
        self.broker_id = broker_id
        self.links = links
        links.machines[BrokerId(broker_id)] = self
        self._stepped = stepped
        self._former: MemorySession | None = None
        self._requests = 0
        #: Who waits for the answer to a request of another broker, by its number.
        self._askers: dict[int, Callable[[Any], None]] = {}

    # Life and death.

    def start(self) -> None:
        if self._former is not None:
            self._former.expire()
            self._former = None
        super().start()

    def pause(self, duration_ms: int) -> None:
        super().pause(duration_ms)
        session = self._session
        if duration_ms <= SESSION_MS or session is None:
            return
        wakes_ms = self.world.now_ms + duration_ms

        def lost() -> None:
            if session is self._session and session.alive:
                session.expire()
                self.world.note(f"{self.broker_id}: session lost")
                self.world.after(max(0, wakes_ms - self.world.now_ms) + self._rng.randint(0, RENEWED_MS), renew)

        def renew() -> None:
            if session is self._session and not session.alive:
                session.renew()

        self.world.after(SESSION_MS, lost)

    def _end(self, how: str) -> None:
        session, self._session = self._session, None
        if session is not None and session.alive and self.node is not None:
            self._former = session
            self.world.after(SESSION_MS, session.expire)
        super()._end(f"{self.broker_id}: {how}")
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker(None)

    # What it hears and says.

    def hear(self, event: events.Event) -> None:
        super().hear(event)
        if self.node is not None:
            self._stepped(self)

    def _ask(self, effect: effects.Ask) -> None:
        """The frame travels there, the answer back; a broker that goes, or a link that is cut meanwhile, is an answer too."""
        peer, incarnation, ticket, version = self.links.machines.get(effect.broker), self.incarnation, effect.ticket, effect.api_version
        frame = bytearray(b"".join(bytes(chunk) for chunk in framing.encode_request(effect.message, version, ticket, "broker")))  # type: ignore[arg-type]

        def answered(message: Any) -> None:
            self.world.after(
                self._rng.randint(0, 3) if message is not None else UNREACHABLE_MS,
                lambda: self._if_alive(incarnation, lambda: self.hear(events.PeerAnswered(ticket=ticket, message=message))),
            )

        def back(message: Any) -> None:
            answered(message if self.links.open(self.broker_id, effect.broker) else None)

        def there() -> None:
            if peer is None or peer.node is None or not self.links.open(self.broker_id, effect.broker):
                answered(None)
            else:
                peer.asked(frame[framing.SIZE_BYTES :], back)

        self.world.after(self._rng.randint(0, 3), there)

    def asked(self, frame: bytearray, answer: Callable[[Any], None]) -> None:
        """Another broker's request arrives."""
        self._requests += 1
        number = -self._requests
        self._askers[number] = answer

        def take_in() -> None:
            header, position = framing.decode_request_header(frame)
            self.hear(
                events.RequestArrived(
                    connection=ConnectionId(number),
                    correlation_id=header.correlation_id,
                    api_key=header.api_key,
                    api_version=header.api_version,
                    client_id=header.client_id,
                    body=decode(API[header.api_key].request, frame, header.api_version, position),
                    host="sim",
                )
            )

        self._later(0, take_in)

    def _respond(self, effect: effects.Respond) -> None:
        if effect.connection >= 0:
            super()._respond(effect)
            return
        asker = self._askers.pop(effect.connection, None)
        if asker is None:
            return
        try:
            chunks = framing.encode_response(effect.message, effect.api_version, effect.correlation_id)
            frame = b"".join(chunk.read() if isinstance(chunk, Slice) else memoryview(chunk) for chunk in chunks)  # type: ignore[arg-type]
        except OSError:
            asker(None)
            return
        _, message = framing.decode_response(type(effect.message), bytearray(frame[framing.SIZE_BYTES :]), effect.api_version)
        asker(message)


def wake_all(store: MemoryStore, machines: Mapping[BrokerId, ClusterMachine]) -> None:
    """The store tells each session's own machine."""

    def wake(session: MemorySession) -> None:
        for machine in machines.values():
            machine._store_speaks(session)

    store.wake = wake
