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

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker import events
from ottla.broker.registration.peers import PEER
from ottla.sim.disk import SimDisk
from ottla.sim.links import Links
from ottla.sim.machine import Machine, Process, carried_frame
from ottla.sim.network import Connection
from ottla.sim.world import EPOCH_MS, World
from ottla.store.memory import MemorySession, MemoryStore
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.messages import FetchResponse

SESSION_MS = 1_500
#: Longest time without a session after one expired.
RENEWED_MS = 400
#: Time until an unreachable broker is reported.
UNREACHABLE_MS = 100
LINK_MS = STORE_MS = 3


class ClusterMachine(Machine):
    """One machine of a cluster."""

    pause_max_ms = SESSION_MS // 2

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        texts: dict[str, str],
        peers: "dict[BrokerId, ClusterMachine]",
        links: Links,
        *,
        broker_id: int,
    ) -> None:
        """``peers`` has all machines of the cluster; this one adds itself."""
        disk = SimDisk(now_ms=lambda: world.now_ms)
        texts = {"zookeeper.connect": "sim:2181", **texts, "broker.id": str(broker_id)}
        super().__init__(world, store, disk, texts, broker_id=broker_id, epoch_ms=EPOCH_MS, address=(f"sim{broker_id}", 9092))
        self._peers = peers
        self._links = links
        peers[self.broker_id] = self
        #: Called after each event of the broker.
        self.stepped: Callable[[ClusterMachine, events.Event], None] = lambda machine, event: None
        #: Called before a process ends.
        self.ends: Callable[[ClusterMachine], None] = lambda machine: None
        #: Executes what the broker submits to the store.
        self.submits: Callable[[ClusterMachine, Sequence[Op], Callable[[], None]], None] = lambda machine, ops, carry_out: carry_out()
        #: Called for each request to another broker.
        self.asks: Callable[[ClusterMachine, Any], None] = lambda machine, message: None
        #: Longest delay to the store, and back.
        self.to_store_ms = self.from_store_ms = STORE_MS
        #: When the last submission arrives at the store.
        self._arrives_ms = 0
        #: Nothing passes between broker and store; submissions queued meanwhile.
        self._cut_off = False
        self._unsent: list[Callable[[], None]] = []
        #: Whether clients can reach it.
        self.open_to_users = True
        self.paused_until_ms = 0
        #: Partitions with rotten bits on this disk; their logs are not compared before the end.
        self.rotten: set[TopicPartition] = set()
        #: Whether its session is connected, as far as the broker knows.
        self.session_connected = True

    # Start and end of a process.

    @property
    def _session(self) -> MemorySession | None:
        return None if self.process is None else self.process.session

    def start(self) -> None:
        self.session_connected = True
        super().start()

    def pause(self, duration_ms: int) -> None:
        super().pause(duration_ms)
        self.paused_until_ms = max(self.paused_until_ms, self.world.now_ms + duration_ms)
        session = self._session
        if duration_ms > SESSION_MS and session is not None and session.connected and not self._cut_off:
            self.world.after(SESSION_MS, lambda: self._expire_while_paused(session))

    def _expire_while_paused(self, session: MemorySession) -> None:
        """Expires the session of a paused broker. It gets the event some time after it resumes, unless another process has started."""
        if session is not self._session or not session.connected or self._cut_off:
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
        if session is None or self._cut_off or not session.connected:
            return
        self.world.note(f"{self.broker_id}: cut from the store for {duration_ms}")
        self._cut_off = True

        def noticed() -> None:
            if session is self._session and self._cut_off:
                if session.connected and duration_ms > notice_ms:
                    session.suspend()
                self._reconnect_store()

        def forgotten() -> None:
            if session is self._session and session.alive and not session.connected:
                session.expire_suspended()

        notice_ms = min(duration_ms, self._rng.choice((0, SESSION_MS * 2 // 3)))
        self.world.after(notice_ms, noticed)
        if duration_ms > SESSION_MS:
            self.world.after(SESSION_MS, forgotten)
        self.world.after(duration_ms, lambda: self._reconnect(session))

    def _reconnect_store(self) -> None:
        self._cut_off = False
        unsent, self._unsent = self._unsent, []
        for send in unsent:
            send()
        if self._session is not None:
            for _ in self._session.pending:
                self._store_delivers(self._session)

    def leave(self) -> None:
        """Stops cleanly after a controlled shutdown, as a server does."""
        process = self.process
        if process is None:
            return

        def look() -> None:
            if process.node.controlled_shutdown.over:
                self.stop()
            else:
                process.loop.after(10, look)

        process.loop.call_soon(process.shell.handle, events.StopRequested())
        process.loop.after(10, look)

    def lose_disk(self) -> None:
        """Replaces the machine with one that has an empty disk."""
        self._end("disk lost")
        self.disk = SimDisk(now_ms=lambda: self.world.now_ms)

    def stop(self) -> None:
        session = self._session
        super().stop()
        if self.process is None and session is not None and session.alive and session.connected:
            session.close()

    def _end(self, how: str) -> None:
        self._cut_off, self._unsent = False, []
        if self.process is not None:
            self.ends(self)
        super()._end(f"{self.broker_id}: {how}")

    def _close_session(self, session: MemorySession) -> None:
        if session.alive:
            self.world.after(SESSION_MS, session.expire)

    # The store.

    def _store_delivers(self, session: MemorySession) -> None:
        process = self.process
        if process is not None and session is process.session and not self._cut_off:
            process.loop.after(self._rng.randint(0, self.from_store_ms), self._deliver, session)

    def _deliver(self, session: MemorySession) -> None:
        if not self._cut_off:
            super()._deliver(session)

    def submit(self, process: Process, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """A submission arrives even if the process has ended by then."""
        self._send_to_store(ops, process.session, lambda result: process.loop.enter(lambda: done(result)))

    def _send_to_store(self, ops: Sequence[Op], session: MemorySession, answered: Callable[[StoreResult], None]) -> None:
        def arrive() -> None:
            if self._cut_off and session is self._session:
                self._unsent.append(arrive)
            else:
                self.submits(self, ops, lambda: session.submit(ops, answered))

        self._arrives_ms = max(self._arrives_ms, self.world.now_ms + self._rng.randint(0, self.to_store_ms))
        self.world.after(self._arrives_ms - self.world.now_ms, arrive)

    # Requests.

    def accept(self, connection: Connection) -> bool:
        return self.open_to_users and super().accept(connection)

    def cut_from_users(self) -> None:
        """Makes the broker unreachable for clients until ``open_to_users`` is set."""
        self.open_to_users = False
        if self.process is not None:
            self.process.cut_connections()

    def handled(self, event: events.Event) -> None:
        self.stepped(self, event)

    def send_to_peer(self, process: Process, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request to another broker. A broker that ends, or a link that is cut meanwhile, gives an empty response."""
        self.asks(self, message)
        me, peer = self.broker_id, self._peers.get(broker)
        kind = type(message)
        request = carried_frame(framing.encode_request(message, version, 0, PEER))

        def unanswered() -> None:
            self.world.after(UNREACHABLE_MS, lambda: answered(None))

        def back(response: Any) -> None:
            if response is None:
                unanswered()
                return
            frame = carried_frame(framing.encode_response(response, version, 0))
            received = self._damaged(framing.decode_response(type(response), frame, version)[1])
            self._links.carry((broker, me), self._rng.randint(0, LINK_MS), lambda: answered(received), unanswered)

        def there() -> None:
            if peer is None or peer.process is None:
                unanswered()
                return
            _, position = framing.decode_request_header(request)
            peer.process.peer_request(decode(kind, request, version, position), version, back)

        self._links.carry((me, broker), self._rng.randint(0, LINK_MS), there, unanswered)

    def _damaged(self, message: Any) -> Any:
        if self._links.damage and isinstance(message, FetchResponse):
            for topic in message.responses:
                for data in topic.partitions:
                    self._links.damages(data.records or memoryview(b""))  # type: ignore[arg-type]
        return message


def wake_all(store: MemoryStore, machines: Mapping[BrokerId, ClusterMachine]) -> None:
    """Delivers the store's events to each session's machine."""

    def wake(session: MemorySession) -> None:
        for machine in machines.values():
            if machine._session is session:
                machine._store_delivers(session)
                return

    store.wake = wake
