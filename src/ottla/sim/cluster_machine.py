"""A machine among others: its broker asks the others, over links that may be cut, and its session with the store outlives it for a while.

::

    process ends     the session goes SESSION_MS later, whether the next process of this broker has begun or not
    long pause       the session goes in the middle of it; woken, the broker is told at once that its session is in doubt, as a server's
                     shell does, hears what it had missed, then of the loss, and gets another session after a while
    cut from store   nothing passes either way; soon, or after two thirds of a session's time, the broker's own end of the connection takes
                     it for broken and the session is suspended; after SESSION_MS the store has forgotten it
    slow store       what is said to the store, or what it says, or both, comes late, in order
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
#: How long a broker may be without a session after it lost one, at most.
RENEWED_MS = 400
#: After which a broker that cannot be reached is given up.
UNREACHABLE_MS = 100
LINK_MS = STORE_MS = 3


class ClusterMachine(Machine):
    """See the module's theory."""

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
        """``peers`` are all machines of the cluster, which this one adds itself to."""
        disk = SimDisk(now_ms=lambda: world.now_ms)
        texts = {"zookeeper.connect": "sim:2181", **texts, "broker.id": str(broker_id)}
        super().__init__(world, store, disk, texts, performer, broker_id=broker_id, epoch_ms=EPOCH_MS, address=(f"sim{broker_id}", 9092))
        self.broker_id = BrokerId(broker_id)
        self._peers = peers
        self._links = links
        peers[self.broker_id] = self
        #: Called after each thing the broker heard.
        self.stepped: Callable[[ClusterMachine, events.Event], None] = lambda machine, event: None
        #: Lets the store carry out what the broker asks of it.
        self.submits: Callable[[ClusterMachine, Sequence[Op], Callable[[], None]], None] = lambda machine, ops, carry_out: carry_out()
        #: Told of each request that it sends to another broker.
        self.asks: Callable[[ClusterMachine, effects.Ask], None] = lambda machine, effect: None
        self._requests = 0
        #: Who waits for the answer to a request of another broker, by its number.
        self._askers: dict[int, Callable[[Any], None]] = {}
        #: Longest time that something takes to the store, and back.
        self.say_ms = self.hear_ms = STORE_MS
        #: When the last thing said arrives at the store.
        self._said_ms = 0
        #: Nothing passes between broker and store; what the broker said meanwhile.
        self._mute = False
        self._unsaid: list[Callable[[], None]] = []
        #: Whether users reach it.
        self.open_to_users = True
        self.paused_until_ms = 0
        #: Partitions of which bits have rotted on its disk; what its logs of them say is not held against it before the end.
        self.rotten: set[TopicPartition] = set()
        #: When the broker heard something last.
        self._heard_ms = 0
        #: Whether its session is heard, as far as the broker was told.
        self.heard = True

    # Life and death.

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
        """The store forgets who sleeps; that is heard some time after waking, unless another process has begun by then."""
        if session is not self._session or not session.connected or self._mute:
            return
        self.world.note(f"{self.broker_id}: session lost")
        # What is on its way to the broker arrives; nothing that comes later does.
        session.forget()
        noticed_ms = self.paused_until_ms - self.world.now_ms + self._rng.randint(0, RENEWED_MS)
        self.world.after(noticed_ms, lambda: self._reconnect(session))

    def lose_session(self) -> None:
        """The store forgets the session, for no reason that the broker knows; which hears of it at once, or with its next session."""
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
        """Nothing passes for so long."""
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
        """A clean stop after others took over what they could, as a server does it."""
        if self.node is None:
            return
        incarnation = self.incarnation
        self.hear(events.StopAsked())

        def look() -> None:
            if self.node is None or self.incarnation != incarnation:
                return
            if self.node.leaving.over:
                self.stop()
            else:
                self._later(10, look)

        self._later(10, look)

    def lose_disk(self) -> None:
        """The machine is replaced by one with an empty disk."""
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

    # The store's side.

    def _store_speaks(self, session: MemorySession) -> None:
        if session is self._session and not self._mute:
            self._later(self._rng.randint(0, self.hear_ms), lambda: self._deliver(session))

    def _deliver(self, session: MemorySession) -> None:
        if not self._mute:
            super()._deliver(session)

    def _submit(self, effect: effects.StoreSubmit) -> None:
        """What was said arrives, even if the process has ended by then."""
        session, incarnation, ticket = self._session, self.incarnation, effect.ticket
        assert session is not None, "a broker has a session"

        def answered(result: StoreResult) -> None:
            self._if_alive(incarnation, lambda: self.hear(events.StoreAnswered(ticket=ticket, result=result)))

        self._say(effect.ops, session, answered)

    def _say(self, ops: Sequence[Op], session: MemorySession, answered: Callable[[StoreResult], None]) -> None:
        def arrive() -> None:
            if self._mute and session is self._session:
                self._unsaid.append(arrive)
            else:
                self.submits(self, ops, lambda: session.submit(ops, answered))

        self._said_ms = max(self._said_ms, self.world.now_ms + self._rng.randint(0, self.say_ms))
        self.world.after(self._said_ms - self.world.now_ms, arrive)

    # What it hears and says.

    def accept(self, connection: Connection) -> bool:
        return self.open_to_users and super().accept(connection)

    def cut_from_users(self) -> None:
        """No user reaches it, until ``open_to_users`` is set again."""
        self.open_to_users = False
        for connection in list(self._connections.values()):
            connection.break_off()

    def hear(self, event: events.Event) -> None:
        paused_ms, self._heard_ms = self.world.now_ms - self._heard_ms, self.world.now_ms
        if self.node is not None and paused_ms > SESSION_MS // 2:
            self.performer.doubt_session(self._doubt_session)
        super().hear(event)
        if self.node is not None:
            self.stepped(self, event)

    def _doubt_session(self) -> None:
        """As a server's shell does after standing still: the session counts as suspended until the store has answered."""
        assert self._session is not None, "a broker has a session"
        session, incarnation = self._session, self.incarnation

        def answered(result: StoreResult) -> None:
            # Otherwise the session itself tells what has become of it.
            if result.error is None:
                self._if_alive(incarnation, lambda: self.hear(events.SessionChanged(state="connected")))

        self.hear(events.SessionChanged(state="suspended"))
        self._say((Op("check", layout.BROKERS),), session, answered)

    def _ask(self, effect: effects.Ask) -> None:
        """The frame travels there, the answer back; a broker that goes, or a link that is cut meanwhile, is an answer too."""
        self.asks(self, effect)
        me, other, incarnation, ticket = self.broker_id, effect.broker, self.incarnation, effect.ticket
        peer = self._peers.get(other)
        chunks = framing.encode_request(effect.message, effect.api_version, ticket, PEER)
        frame = bytearray(b"".join(bytes(chunk) for chunk in chunks))  # type: ignore[arg-type]

        def answered(message: Any) -> None:
            self._if_alive(incarnation, lambda: self.hear(events.PeerAnswered(ticket=ticket, message=message)))

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
    """The store tells each session's own machine."""

    def wake(session: MemorySession) -> None:
        for machine in machines.values():
            if machine._session is session:
                machine._store_speaks(session)
                return

    store.wake = wake
