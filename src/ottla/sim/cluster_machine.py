"""A machine of a cluster. Its broker sends requests to others over links that can be cut, and its store session outlives the process.

::

    process ends     the session expires SESSION_MS later, whether or not the next process of this broker has started
    long pause       the session expires during the pause; after it, the broker gets "suspended" at once, as from a server's shell, then
                     the queued input, then the expiry, and a new session after a while
    cut from store   nothing passes in either direction; soon, or after two thirds of the session timeout, the broker's end detects it and
                     the session is suspended; after SESSION_MS the store expires it
    slow store       requests to the store, or its events, or both, arrive late, in order
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.base.ids import BrokerId, ConnectionId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker import effects, events
from ottla.broker.node import PEER
from ottla.log.flush import Slice
from ottla.sim.disk import SimDisk
from ottla.sim.links import Links
from ottla.sim.machine import Machine, Performer
from ottla.sim.network import Connection
from ottla.sim.world import EPOCH_MS, World
from ottla.store import layout
from ottla.store.memory import MemorySession, MemoryStore
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.messages import API, FetchResponse

SESSION_MS = 1_500
#: Longest time without a session after one expired.
RENEWED_MS = 400
#: Time until an unreachable broker is reported.
UNREACHABLE_MS = 100
LINK_MS = STORE_MS = 3


class ClusterMachine(Machine):
    """One machine of a cluster."""

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        texts: dict[str, str],
        peers: "dict[BrokerId, ClusterMachine]",
        links: Links,
        performer: Performer | None,
        *,
        broker_id: int,
    ) -> None:
        """``peers`` has all machines of the cluster; this one adds itself."""
        disk = SimDisk(now_ms=lambda: world.now_ms)
        texts = {"zookeeper.connect": "sim:2181", **texts, "broker.id": str(broker_id)}
        super().__init__(world, store, disk, texts, performer, broker_id=broker_id, epoch_ms=EPOCH_MS, address=(f"sim{broker_id}", 9092))
        self.broker_id = BrokerId(broker_id)
        self._peers = peers
        self._links = links
        peers[self.broker_id] = self
        #: Called after each event of the broker.
        self.stepped: Callable[[ClusterMachine, events.Event], None] = lambda machine, event: None
        #: Executes what the broker submits to the store.
        self.submits: Callable[[ClusterMachine, Sequence[Op], Callable[[], None]], None] = lambda machine, ops, carry_out: carry_out()
        #: Called for each request to another broker.
        self.asks: Callable[[ClusterMachine, effects.Ask], None] = lambda machine, effect: None
        self._requests = 0
        #: Callbacks for responses of other brokers, by number.
        self._askers: dict[int, Callable[[Any], None]] = {}
        #: Longest delay to the store, and back.
        self.say_ms = self.hear_ms = STORE_MS
        #: When the last submission arrives at the store.
        self._said_ms = 0
        #: Nothing passes between broker and store; submissions queued meanwhile.
        self._mute = False
        self._unsaid: list[Callable[[], None]] = []
        #: Whether clients can reach it.
        self.open_to_users = True
        self.paused_until_ms = 0
        #: Partitions with rotten bits on this disk; their logs are not compared before the end.
        self.rotten: set[TopicPartition] = set()
        #: When the broker received its last event.
        self._heard_ms = 0
        #: Whether its session is connected, as far as the broker knows.
        self.heard = True

    # Start and end of a process.

    def start(self) -> None:
        self._heard_ms = self.world.now_ms
        self.heard = True
        super().start()

    def pause(self, duration_ms: int) -> None:
        super().pause(duration_ms)
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + duration_ms)
        session = self._session
        if duration_ms > SESSION_MS and session is not None and session.connected and not self._mute:
            self.world.after(SESSION_MS, lambda: self._forgotten_asleep(session))

    def _forgotten_asleep(self, session: MemorySession) -> None:
        """Expires the session of a paused broker. It gets the event some time after it resumes, unless another process has started."""
        if session is not self._session or not session.connected or self._mute:
            return
        self.world.note(f"{self.broker_id}: session lost")
        # Input in transit arrives; nothing later does.
        session.forget()
        noticed_ms = self.paused_until_ms - self.world.now_ms + self._rng.randint(0, RENEWED_MS)
        self.world.after(noticed_ms, lambda: self._reconnect(session))

    def lose_session(self) -> None:
        """The store expires the session without a reason known to the broker, which notices at once or with its next session."""
        session = self._session
        if session is None or not session.connected:
            return
        self.world.note(f"{self.broker_id}: session lost")
        if self._rng.random() < 0.5:
            session.expire()
        else:
            session.suspend()
            session.expire_suspended()
        self.world.after(self._rng.randint(0, RENEWED_MS), lambda: self._reconnect(session))

    def _reconnect(self, session: MemorySession) -> None:
        if session is self._session and not session.connected:
            session.resume()

    def cut_from_store(self, duration_ms: int) -> None:
        """Cuts the machine from the store."""
        session = self._session
        if session is None or self._mute or not session.connected:
            return
        self.world.note(f"{self.broker_id}: cut from the store for {duration_ms}")
        self._mute = True

        def noticed() -> None:
            if session is self._session and self._mute:
                if session.connected and duration_ms > notice_ms:
                    session.suspend()
                self._speak_up()

        def forgotten() -> None:
            if session is self._session and session.alive and not session.connected:
                session.expire_suspended()

        notice_ms = min(duration_ms, self._rng.choice((0, SESSION_MS * 2 // 3)))
        self.world.after(notice_ms, noticed)
        if duration_ms > SESSION_MS:
            self.world.after(SESSION_MS, forgotten)
        self.world.after(duration_ms, lambda: self._reconnect(session))

    def _speak_up(self) -> None:
        self._mute = False
        unsaid, self._unsaid = self._unsaid, []
        for say in unsaid:
            say()
        if self._session is not None:
            for _ in self._session.pending:
                self._store_speaks(self._session)

    def leave(self) -> None:
        """Stops cleanly after a controlled shutdown, as a server does."""
        if self.node is None:
            return
        incarnation = self.incarnation
        self.handle(events.StopAsked())

        def look() -> None:
            if self.node is None or self.incarnation != incarnation:
                return
            if self.node.controlled_shutdown.over:
                self.stop()
            else:
                self._later(10, look)

        self._later(10, look)

    def lose_disk(self) -> None:
        """Replaces the machine with one that has an empty disk."""
        self._end("disk lost")
        self.disk = SimDisk(now_ms=lambda: self.world.now_ms)

    def stop(self) -> None:
        session = self._session
        super().stop()
        if self.node is None and session is not None and session.alive and session.connected:
            session.close()

    def _end(self, how: str) -> None:
        session, self._session = self._session, None
        if session is not None and session.alive and self.node is not None:
            self.world.after(SESSION_MS, session.expire)
        self._mute, self._unsaid = False, []
        super()._end(f"{self.broker_id}: {how}")
        askers, self._askers = self._askers, {}
        for asker in askers.values():
            asker(None)

    # The store.

    def _store_speaks(self, session: MemorySession) -> None:
        if session is self._session and not self._mute:
            self._later(self._rng.randint(0, self.hear_ms), lambda: self._deliver(session))

    def _deliver(self, session: MemorySession) -> None:
        if not self._mute:
            super()._deliver(session)

    def _submit(self, effect: effects.StoreSubmit) -> None:
        """A submission arrives even if the process has ended by then."""
        session, incarnation, ticket = self._session, self.incarnation, effect.ticket
        assert session is not None, "a broker has a session"

        def answered(result: StoreResult) -> None:
            self._if_alive(incarnation, lambda: self.handle(events.StoreAnswered(ticket=ticket, result=result)))

        self._say(effect.ops, session, answered)

    def _say(self, ops: Sequence[Op], session: MemorySession, answered: Callable[[StoreResult], None]) -> None:
        def arrive() -> None:
            if self._mute and session is self._session:
                self._unsaid.append(arrive)
            else:
                self.submits(self, ops, lambda: session.submit(ops, answered))

        self._said_ms = max(self._said_ms, self.world.now_ms + self._rng.randint(0, self.say_ms))
        self.world.after(self._said_ms - self.world.now_ms, arrive)

    # Requests.

    def accept(self, connection: Connection) -> bool:
        return self.open_to_users and super().accept(connection)

    def cut_from_users(self) -> None:
        """Makes the broker unreachable for clients until ``open_to_users`` is set."""
        self.open_to_users = False
        for connection in list(self._connections.values()):
            connection.break_off()

    def handle(self, event: events.Event) -> None:
        paused_ms, self._heard_ms = self.world.now_ms - self._heard_ms, self.world.now_ms
        if self.node is not None and paused_ms > SESSION_MS // 2:
            self.performer.doubt_session(self._doubt_session)
        super().handle(event)
        if self.node is not None:
            self.stepped(self, event)

    def _doubt_session(self) -> None:
        """Suspends the session until the store has answered, as a server's shell does after a stall."""
        assert self._session is not None, "a broker has a session"
        session, incarnation = self._session, self.incarnation

        def answered(result: StoreResult) -> None:
            # Otherwise the session reports its own state.
            if result.error is None:
                self._if_alive(incarnation, lambda: self.handle(events.SessionChanged(state="connected")))

        self.handle(events.SessionChanged(state="suspended"))
        self._say((Op("check", layout.BROKERS),), session, answered)

    def _ask(self, effect: effects.Ask) -> None:
        """Sends a request to another broker. A broker that ends, or a link that is cut meanwhile, gives an empty response."""
        self.asks(self, effect)
        me, other, incarnation, ticket = self.broker_id, effect.broker, self.incarnation, effect.ticket
        peer = self._peers.get(other)
        chunks = framing.encode_request(effect.message, effect.api_version, ticket, PEER)
        frame = bytearray(b"".join(bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]

        def answered(message: Any) -> None:
            self._if_alive(incarnation, lambda: self.handle(events.PeerAnswered(ticket=ticket, message=message)))

        def unanswered() -> None:
            self.world.after(UNREACHABLE_MS, lambda: answered(None))

        def back(message: Any) -> None:
            if message is None:
                unanswered()
            else:
                self._links.carry((other, me), self._rng.randint(0, LINK_MS), lambda: answered(message), unanswered)

        def there() -> None:
            if peer is None or peer.node is None:
                unanswered()
            else:
                peer.asked(frame[framing.SIZE_BYTES :], back)

        self._links.carry((me, other), self._rng.randint(0, LINK_MS), there, unanswered)

    def asked(self, frame: bytearray, answer: Callable[[Any], None]) -> None:
        """A request of another broker arrives."""
        self._requests += 1
        number = -self._requests
        self._askers[number] = answer

        def take_in() -> None:
            header, position = framing.decode_request_header(frame)
            self.handle(
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

    def _close(self, effect: effects.Close) -> None:
        asker = self._askers.pop(effect.connection, None)
        if asker is not None:
            asker(None)
        else:
            super()._close(effect)

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
        if self._links.damage and isinstance(message, FetchResponse):
            for topic in message.responses:
                for data in topic.partitions:
                    self._links.damages(data.records or memoryview(b""))  # type: ignore[arg-type]
        asker(message)


def wake_all(store: MemoryStore, machines: Mapping[BrokerId, ClusterMachine]) -> None:
    """Delivers the store's events to each session's machine."""

    def wake(session: MemorySession) -> None:
        for machine in machines.values():
            if machine._session is session:
                machine._store_speaks(session)
                return

    store.wake = wake
