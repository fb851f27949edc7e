"""Brokers in this process: nodes over memory disks and a memory store, in virtual time, without sockets and threads.

A frame passes through the server's own ``read_request``, one step of the node, and the effects of that step. A response is encoded and
decoded again. A connection processes its frames as ``net.server`` does, one at a time or a few Produce requests together, and responds in
order.

Work that takes time (flushes, store responses, requests between brokers) waits in queues until ``run`` performs some of it or ``drain``
all. So the caller decides what is in progress while further frames arrive. Everything is deterministic for the same calls.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Callable, Mapping
from errno import ENOSPC
from itertools import count
from random import Random
from typing import Any, cast

from chaos.fuzz.oracle import API_VERSIONS, PRODUCE, Expected, Finding, check_answer
from ottla.base.ids import ConnectionId
from ottla.base.origin import Origin
from ottla.base.ports import NodeState, StoreResult
from ottla.broker import effects, events
from ottla.broker.apis import HANDLERS
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import root_of
from ottla.broker.metadata.configs import Settings, topic_options
from ottla.broker.metadata.image import Image
from ottla.broker.node import Node
from ottla.broker.registration.peers import PEER
from ottla.log import scrub
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.directory import LogDirectory
from ottla.log.errors import CorruptLog
from ottla.log.options import TopicOptions
from ottla.net import server_connection
from ottla.server.request_decoder import Refused, read_request
from ottla.sim.disk import SimDisk
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.wire import framing
from ottla.wire.declare import MalformedMessage, schema_of

WALL_MS = 1_767_225_600_000
CLUSTER_ID = "ZnV6emVkLWNsdXN0ZXItMQ"
PRODUCE_BYTES = b"\0\0"
PRODUCES_IN_WORK = server_connection.PRODUCES_IN_WORK
#: An endless loop is a finding, not a hang.
DRAIN_MAX = 200_000
#: Refusal of a request with more elements than the limit for clients.
TOO_MANY = "more elements than a message may have"
Answered = Callable[[Expected, Any], None]


class Connection:
    """A client's connection: waiting frames, requests in progress, and the responses that are due."""

    __slots__ = ("broker", "closed", "damaged", "expected", "host", "in_work", "number", "origin", "producing", "queued", "ticket")

    def __init__(self, number: int, broker: Broker) -> None:
        self.number = ConnectionId(number)
        self.broker = broker
        self.host = "client"
        self.origin = Origin(host=self.host, local=("reached", 9092))
        self.ticket = 0
        #: Why the broker closed it.
        self.closed: str | None = None
        self.queued: deque[tuple[bytearray, Expected]] = deque()
        #: By ticket: the expectation, and the response if it waits for earlier ones; b"" for none.
        self.in_work: dict[int, tuple[Expected, bytes | None]] = {}
        self.producing = False
        #: Whether a damaged batch of an idempotent producer has arrived.
        self.damaged = False

    def receive(self, frame: bytes, expected: Expected) -> None:
        if self.closed is None:
            self.queued.append((bytearray(frame[framing.SIZE_BYTES :]), expected))
            self.take_next()

    def take_next(self) -> None:
        """Start the requests that may be in progress now."""
        while self.queued and self.closed is None:
            frame, expected = self.queued[0]
            produces = frame[:2] == PRODUCE_BYTES
            if self.in_work and not (self.producing and produces and len(self.in_work) < PRODUCES_IN_WORK):
                return
            self.queued.popleft()
            self.producing = produces
            self.ticket += 1
            self.damaged = self.damaged or expected.damaged
            self.in_work[self.ticket] = expected, None
            self.broker.arrived(self, frame, expected)

    def answered(self, ticket: int, frame: bytes) -> None:
        """Process the response of a request in progress; b"" releases it."""
        if self.closed is not None:
            return
        expected, before = self.in_work.get(ticket, (None, None))
        if expected is None or before is not None:
            raise Finding("a request is answered twice", f"ticket {ticket} of connection {self.number}")
        self.in_work[ticket] = expected, frame
        while self.in_work:
            oldest, (expected, answer) = next(iter(self.in_work.items()))
            if answer is None:
                return
            del self.in_work[oldest]
            if answer:
                self.broker.environment.answered(expected, check_answer(expected, answer))
            elif not expected.silent:
                raise Finding(f"{expected.name}: no answer", expected.description)
            # Not at once: this is inside of a step, and a request would begin another one.
        self.broker.environment.later(self.take_next)

    def close(self, reason: str) -> None:
        """The broker closes it: allowed only where the protocol has no response, and after a damaged batch."""
        self.closed = reason
        in_work = [expected for expected, _ in self.in_work.values()]
        if TOO_MANY in reason or self.damaged or any(expected.silent or expected.request is None for expected in in_work):
            return
        if in_work:
            expected = in_work[0]
            raise Finding(f"{expected.name}: a valid request closes the connection", f"{reason}\n{expected.description}")


class Broker:
    """One broker and its shell."""

    def __init__(self, environment: Environment, broker_id: int, disk: SimDisk) -> None:
        self.environment = environment
        self.broker_id = broker_id
        self.disk = disk
        self.halted: str | None = None
        self.session = environment.store.session()
        self.connections: dict[int, Connection] = {}
        self._asks: dict[int, Callable[[Any], None]] = {}
        self._numbers = count(-1, -1)
        self.answers = 0
        #: Whether logs are being created or removed.
        self._changing = False
        settings = Settings({**environment.texts, "broker.id": str(broker_id)})
        self.directory = LogDirectory.open(
            disk,
            broker_id=broker_id,
            cluster_id=CLUSTER_ID,
            now_ms=environment.wall_ms,
            options_for=lambda topic: self._options(settings, topic),
        )
        self.node = Node(
            BrokerContext(
                broker_id=broker_id,
                cluster_id=CLUSTER_ID,
                settings=settings,
                directories=[self.directory],
                rng=Random(broker_id * 1000 + environment.starts),
                address=(f"host{broker_id}", 9092),
                now_ms=environment.now_ms,
                wall_ms=environment.wall_ms,
            ),
            HANDLERS,
        )
        self._acts = self._table()
        self.session.watch("/", lambda state: self.handle(events.StoreChanged(state=state)))
        self.session.listen(lambda state: self.handle(events.SessionChanged(state=state)))
        self.session.deliver()
        self._perform(self.node.start(environment.now_ms))

    def _options(self, settings: Settings, topic: str) -> TopicOptions:
        """Topic options from the store, which a server reads before it opens its logs."""
        image, path = Image(), layout.config("topics", topic)
        node = self.environment.store.tree.nodes.get(path)
        if node is not None:
            image.apply(NodeState(path=path, data=node.data))
        return topic_options(settings, image, topic, self.broker_id)

    # Input.

    def handle(self, event: events.Event, about: Expected | None = None) -> None:
        """Run one step, and perform its effects. Raises: Finding."""
        if self.halted is not None:
            return
        try:
            self._perform(self.node.step(event, self.environment.now_ms))
        except Finding:
            raise
        except Exception as error:
            what = about.name if about is not None else type(event).__name__
            raise raised(f"{what}: the broker raised", root_of(error), about) from error

    def arrived(self, connection: Connection, frame: bytearray, expected: Expected) -> None:
        """A frame arrives, as in ``server.shell``."""
        try:
            request = read_request(cast(server_connection.ServerConnection, connection), memoryview(frame))
        except (Refused, MalformedMessage) as error:
            connection.close(str(error))
            self.client_closed(connection)
            return
        except Exception as error:
            raise raised(f"{expected.name}: decoding raised", error, expected) from error
        if isinstance(request, list):
            connection.answered(connection.ticket, b"".join(request)[framing.SIZE_BYTES :])
            return
        self.handle(request, expected)
        # The server uses the buffer again for the next frame.
        del request
        frame[:] = bytes(len(frame))

    def client_closed(self, connection: Connection) -> None:
        """The client closes the connection."""
        if self.connections.pop(connection.number, None) is not None:
            connection.closed = connection.closed or "by the client"
            self.handle(events.ConnectionClosed(connection=connection.number))

    def asked(self, message: Any, version: int, done: Callable[[Any], None]) -> None:
        """A request of another broker."""
        key = schema_of(type(message)).key
        assert key is not None, "a broker asks requests"
        number = ConnectionId(next(self._numbers))
        self._asks[number] = done
        data = _joined(framing.encode_request(message, version, 0, PEER))[framing.SIZE_BYTES :]
        peer = Connection(number, self)
        request = read_request(cast(server_connection.ServerConnection, peer), memoryview(bytearray(data)))
        assert not isinstance(request, list), "brokers do not ask for versions"
        self.handle(request, Expected(key, version, 0, message))

    # Output.

    def _table(self) -> dict[type, Callable[[Any], None]]:
        later = self.environment.later
        return {
            effects.Respond: self._respond,
            effects.Release: lambda effect: self._answer(effect.connection, effect.ticket, b""),
            effects.Close: self._close,
            effects.ScheduleFlush: lambda effect: later(lambda: self.handle(events.FlushDue())),
            effects.ScheduleTurn: lambda effect: later(lambda: self.handle(events.TurnDue())),
            effects.Free: lambda effect: None,
            effects.Flush: lambda effect: self.environment.slow.append(lambda: self._flush(effect)),
            effects.StartWriteback: lambda effect: None,
            effects.ReadLog: lambda effect: later(lambda: self.handle(events.LogRead(ticket=effect.ticket, data=effect.slice.read()))),
            effects.Remove: self._remove,
            effects.ReplaceFiles: self._replace,
            effects.ChangeLogs: self._change_logs,
            effects.Scrub: lambda effect: later(lambda: self._scrub(effect)),
            effects.Clean: lambda effect: later(lambda: self._clean(effect)),
            effects.StoreSubmit: self._submit,
            effects.PeerRequest: lambda effect: later(lambda: self._ask(effect)),
            effects.Log: lambda effect: None,
            effects.SetLogLevels: lambda effect: None,
            effects.ReceiveTelemetry: lambda effect: None,
            effects.AdoptOptions: lambda effect: None,
            effects.RequestFailed: self._request_failed,
            effects.Halt: self._halt,
        }

    def _perform(self, asked: list[effects.Effect]) -> None:
        acts = self._acts
        for effect in asked:
            acts[type(effect)](effect)

    def _respond(self, effect: effects.Respond) -> None:
        number = effect.connection
        if number >= 0 and number not in self.connections:
            return
        try:
            data = _joined(framing.encode_response(effect.message, effect.api_version, effect.correlation_id))
        except Exception as error:
            raise raised(f"{type(effect.message).__name__}: encoding raised", error, None) from error
        if number >= 0:
            self.answers += 1
            self.connections[number].answered(effect.ticket, data[framing.SIZE_BYTES :])
            return
        message = framing.decode_response(type(effect.message), bytearray(data[framing.SIZE_BYTES :]), effect.api_version)[1]
        self._asks.pop(number)(message)

    def _answer(self, number: int, ticket: int, frame: bytes) -> None:
        if number in self.connections:
            self.connections[number].answered(ticket, frame)
        elif number < 0:
            self._asks.pop(number)(None)

    def _close(self, effect: effects.Close) -> None:
        connection = self.connections.get(effect.connection)
        if connection is not None:
            connection.close(effect.reason)
            self.environment.later(lambda: self.client_closed(connection))
        elif effect.connection < 0:
            self._asks.pop(effect.connection)(None)

    def _flush(self, effect: effects.Flush) -> None:
        for partition, plan in effect.plans:
            plan.carry_out(self.disk)
            self.handle(events.Flushed(marks=((partition, plan.upto),)))

    def _remove(self, effect: effects.Remove) -> None:
        for path in effect.paths:
            self.disk.remove_tree(path)

    def _change_logs(self, effect: effects.ChangeLogs) -> None:
        if self._changing:
            raise Finding("two changes of a directory's logs are under way", str(effect)[:1000])
        self._changing = True
        self.environment.slow.append(lambda: self._carry_out_changes(effect))

    def _carry_out_changes(self, effect: effects.ChangeLogs) -> None:
        refused = effect.changes.carry_out(self.disk)
        self._changing = False
        self.handle(events.LogsChanged(directory=effect.directory, refused=refused))

    def _scrub(self, effect: effects.Scrub) -> None:
        result: scrub.ScrubResult | None = None
        try:
            for step in scrub.carry_out(self.disk, effect.plan):
                result = step if isinstance(step, scrub.ScrubResult) else None
        except FileNotFoundError:
            result = None
        self.handle(events.Scrubbed(partition=effect.partition, result=result))

    def _replace(self, effect: effects.ReplaceFiles) -> None:
        if self._changing:
            # In the order of the effects.
            self.environment.slow.append(lambda: self._replace(effect))
            return
        for path, data in effect.files:
            self.disk.replace_file(path, data)

    def _clean(self, effect: effects.Clean) -> None:
        result: CompactionResult | None = None
        damage = ""
        try:
            for step in carry_out(self.disk, effect.plan):
                result = step if isinstance(step, CompactionResult) else None
        except CorruptLog as error:
            damage = str(error)
        except FileNotFoundError:
            result = None
        except OSError as error:
            assert error.errno == ENOSPC, "the disk has no other faults"
        self.handle(events.Cleaned(partition=effect.partition, result=result, damage=damage))

    def _submit(self, effect: effects.StoreSubmit) -> None:
        def done(result: StoreResult) -> None:
            self.handle(events.StoreAnswered(ticket=effect.ticket, result=result))

        self.session.submit(effect.ops, done)

    def _ask(self, effect: effects.PeerRequest) -> None:
        def answered(message: Any) -> None:
            self.environment.later(lambda: self.handle(events.PeerAnswered(ticket=effect.ticket, message=message)))

        peer = self.environment.brokers.get(effect.broker)
        if peer is None:
            answered(None)
        else:
            peer.asked(effect.message, effect.api_version, answered)

    def _request_failed(self, effect: effects.RequestFailed) -> None:
        """The broker survives this, but it is a finding."""
        call = effect.call
        about = Expected(call.api_key, call.api_version, 0, call.body) if call is not None else None
        raise raised(f"{about.name if about is not None else effect.what}: the broker raised", root_of(effect.error), about)

    def _halt(self, effect: effects.Halt) -> None:
        self.halted = effect.reason
        raise Finding("the broker halts", effect.reason)


class Environment:
    """Brokers 1 to ``brokers`` over one store, ready after construction."""

    def __init__(self, brokers: int, texts: Mapping[str, str], *, answered: Answered) -> None:
        self.store = MemoryStore()
        self.texts = {"auto.leader.rebalance.enable": "false", "ottla.client.metrics.enable": "true", **texts}
        self.now_ms = 0
        self.starts = 0
        self.answered = answered
        self.brokers: dict[int, Broker] = {}
        #: Outcomes that are due, in order; disk work has its own queue, and takes longer.
        self._later: deque[Callable[[], None]] = deque()
        self.slow: deque[Callable[[], None]] = deque()
        self._numbers = count(1)
        for broker_id in range(1, brokers + 1):
            self.start(broker_id, SimDisk(f"disk{broker_id}", now_ms=lambda: self.wall_ms))
        assert all(broker.node.ready for broker in self.brokers.values()), "new brokers are ready"

    @property
    def wall_ms(self) -> int:
        return WALL_MS + self.now_ms

    def start(self, broker_id: int, disk: SimDisk) -> None:
        self.brokers[broker_id] = Broker(self, broker_id, disk)
        self.starts += 1
        self.drain()

    def restart(self, *, cleanly: bool) -> None:
        """Stop or kill all brokers, and start them again on their disks; recovery must find the logs intact."""
        for broker_id, broker in list(self.brokers.items()):
            if cleanly:
                marks = broker.node.partitions.high_watermarks(broker.directory)
                broker._perform(broker.node.stop(self.now_ms))
                self.drain()
                broker.directory.close(marks, self.wall_ms)
            broker.halted = "stopped"
            broker.session.close()
            del self.brokers[broker_id]
            # Effects of a dead process.
            self._later.clear()
            self.slow.clear()
            self.start(broker_id, broker.disk.restart())

    def connect(self, broker_id: int) -> Connection:
        connection = Connection(next(self._numbers), self.brokers[broker_id])
        self.brokers[broker_id].connections[connection.number] = connection
        return connection

    def later(self, act: Callable[[], None]) -> None:
        self._later.append(act)

    def _perform_one(self) -> bool:
        """Perform the next outcome; flushes come last. Returns False when nothing is in progress."""
        if self._later:
            self._later.popleft()()
        elif not sum(session.deliver(1) for session in self.store.sessions):
            if not self.slow:
                return False
            self.slow.popleft()()
        return True

    def run(self, steps: int) -> None:
        """Performs some of what is under way; flushes come last."""
        for _ in range(steps):
            if not self._perform_one():
                return

    def drain(self) -> None:
        """Perform everything that can happen without time passing. Raises: Finding."""
        for _ in range(DRAIN_MAX):
            if not self._perform_one():
                return
        raise Finding("brokers do not come to rest", f"{DRAIN_MAX} outcomes at {self.now_ms} ms")

    def pass_ms(self, duration_ms: int) -> None:
        """Advance the time; brokers run at each of their deadlines, and at the end."""
        end = self.now_ms + duration_ms
        while self.now_ms < end:
            wanted = [due for broker in self.brokers.values() if (due := broker.node.next_deadline_ms()) is not None]
            self.now_ms = min(end, max(self.now_ms + 1, min(wanted, default=end)))
            for broker in list(self.brokers.values()):
                broker.handle(events.Ticked(wall_ms=self.wall_ms))
            self.drain()


def expected_of(frame: bytes) -> Expected:
    """The expectation for mutated bytes: a response to the request of their header, or none."""
    payload = frame[framing.SIZE_BYTES :]
    key, version = int.from_bytes(payload[:2], "big", signed=True), int.from_bytes(payload[2:4], "big", signed=True)
    served = HANDLERS.get(key)
    if key == API_VERSIONS and served is not None and version > served.versions[1]:
        version = 0
    return Expected(key, version, int.from_bytes(payload[4:8], "big", signed=True), None)


def raised(what: str, error: BaseException, about: Expected | None) -> Finding:
    """A finding for an exception; its signature names the innermost line of Ottla."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/ottla/" in frame.filename]
    where = f"{frames[-1].filename.rpartition('/ottla/')[2]}:{frames[-1].lineno}" if frames else "?"
    description = "".join(traceback.format_exception(error)) + (about.description if about is not None else "")
    return Finding(f"{what} {type(error).__name__} in {where}", description)


def _joined(chunks: list[Any]) -> bytes:
    return b"".join(chunk.read() if hasattr(chunk, "read") else chunk for chunk in chunks)


assert PRODUCE == 0, "PRODUCE_BYTES are this key"
