"""What the machines of one broker share: clocks, settings, the cluster image, delayed operations, and the effects of the present step.

A machine gets the context and, by a Protocol in its module, the machines that it calls. Work outside of the broker is an effect with
a ticket; its outcome returns as an event, and the callback of the ticket runs in that step::

    submit      StoreSubmit  ──▶ StoreAnswered
    read_log    ReadLog      ──▶ LogRead
    ask         PeerRequest  ──▶ PeerAnswered, or the timeout
    delay       (nothing)    ──▶ answer, or the deadline, or the connection closes
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from ottla.base.acls import CLUSTER_NAME
from ottla.base.ids import BrokerId, ConnectionId
from ottla.base.listeners import Endpoint, plaintext
from ottla.base.log_levels import ROOT, SECURITY, LogLevel
from ottla.base.origin import Origin
from ottla.base.ports import Op, StoreResult
from ottla.base.ssl_options import ListenerSslOptions
from ottla.broker import effects, events
from ottla.broker.delayed import DelayedOperation, DelayedOperations
from ottla.broker.event_log import EventLog
from ottla.broker.handlers import PENDING, Deferred
from ottla.broker.isolation import Isolation, indivisible, respond
from ottla.broker.metadata.configs import Settings, topic_options
from ottla.broker.metadata.image import Image
from ottla.broker.quotas.client_quotas import ClientQuotas
from ottla.broker.registration.peers import PeerAddresses
from ottla.broker.replica.traffic import BrokerTraffic
from ottla.broker.security.access import Access, configured
from ottla.broker.security.envelope import ENVELOPE_VERSION, enveloped, response_in
from ottla.broker.security.requirements import Requirement
from ottla.broker.timeline import Timeline
from ottla.broker.turns import Turns
from ottla.log.directory import LogDirectory
from ottla.log.flush import Slice
from ottla.log.options import TopicOptions
from ottla.wire.errors import ClusterAuthorizationFailed, KafkaError
from ottla.wire.messages.envelope import EnvelopeResponse

NONE_REFUSED: Mapping[str, KafkaError] = {}


@dataclass(slots=True)
class Space:
    """Free and total bytes of a log directory's disk at the last measurement."""

    #: Reduced by later appends: at disk speed, one second can use up a reserve.
    free_bytes: int
    total_bytes: int
    #: Whether less than the reserve was free.
    low: bool = False
    #: Whether other replicas should lead: after two low measurements in a row, so that followers have the records written before; until
    #: clearly more than the reserve is free.
    full: bool = False


class BrokerContext:
    """Shared state and services. Machines read the attributes; the one that changes each is named with it."""

    #: Set after the store's initial state was received.
    started = False
    #: Set when the broker stops: it leads nothing and answers no new requests.
    stopping = False
    #: Broker epoch of the registration, None without one: decisions for an earlier epoch do not apply. Changed by the lifecycle.
    epoch: int | None = None
    #: Whether the store session is connected. Changed by the lifecycle.
    connected = True
    #: A session was lost: partition states written under it do not make this broker a leader. Changed by the lifecycle.
    session_lost = False

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        settings: Settings,
        directories: Sequence[LogDirectory],
        rng: Random,
        address: tuple[str, int] = ("", 0),
        endpoints: Sequence[Endpoint] = (),
        now_ms: int,
        wall_ms: int,
        log_levels: Mapping[str, LogLevel] | None = None,
    ) -> None:
        self.broker_id = BrokerId(broker_id)
        self.cluster_id = cluster_id
        self.settings = settings
        #: Settings in effect, with overrides from the store. Changed by ``Node``.
        self.options = settings.options
        self.directories = list(directories)
        self.rng = rng
        #: Advertised listeners; with ``address`` alone, a plaintext one there.
        self.endpoints = tuple(endpoints) or (plaintext(*address),)
        #: Monotonic time of the present step.
        self.now_ms = now_ms
        #: Wall clock minus ``now_ms`` at the last tick.
        self._wall_ahead_ms = wall_ms - now_ms
        #: Changed by ``Node``, before the machines get the change.
        self.image = Image()
        #: Effects of the present step, in order.
        self.effects: list[effects.Effect] = []
        self.log = EventLog(self)
        self.timeline = Timeline(self, settings.options.timeline_entries)
        #: Levels of loggers of the process that are set, by name. Changed by ``set_log_levels``.
        self.log_levels: dict[str, LogLevel] = dict(log_levels or {ROOT: LogLevel.INFO})
        #: By log directory. Changed by ``Node``.
        self.space: dict[str, Space] = {}
        self.peers = PeerAddresses(settings.options.peers_hosts)
        authorizer = configured(settings.options)
        #: The checks of access rules; None: every client may do everything.
        self.access = None if authorizer is None else Access(self, authorizer)
        self.quotas = ClientQuotas(self)
        #: Name and version of clients by connection, with ottla.client.metrics.enable.
        self.client_software: dict[ConnectionId, tuple[str, str]] = {}
        #: Counters for metrics.
        self.traffic = BrokerTraffic()
        #: Topics that are being created automatically.
        self.creating: set[str] = set()
        self.isolation = Isolation(self)
        self.delayed = DelayedOperations(self.isolation.failed)
        self.turns = Turns(self)
        #: Delayed requests of clients, by connection and ticket.
        self._delayed_of: dict[ConnectionId, dict[int, DelayedOperation]] = {}
        self._tickets = 0
        self._store_waits: dict[int, Callable[[StoreResult], None]] = {}
        #: Checks of certificates, by ticket.
        self._certificate_waits: dict[int, tuple[DelayedOperation, Callable[[str], None]]] = {}
        self._log_waits: dict[int, Callable[[bytes | None], None]] = {}
        #: Requests to brokers, by ticket.
        self._peer_waits: dict[int, tuple[DelayedOperation, Callable[[Any], None]]] = {}

    # Time and settings.

    @property
    def wall_ms(self) -> int:
        """The wall clock in this step. It may jump."""
        return self.now_ms + self._wall_ahead_ms

    def set_wall_clock(self, wall_ms: int) -> None:
        self._wall_ahead_ms = wall_ms - self.now_ms

    @property
    def may_lead(self) -> bool:
        """Whether a partition state that names this broker makes it the leader."""
        return self.connected and (self.epoch is not None or not self.session_lost)

    def topic_options(self, topic: str) -> TopicOptions:
        """Settings of a topic: its overrides over the broker's defaults."""
        return topic_options(self.settings, self.image, topic, self.broker_id)

    def set_log_levels(self, levels: Mapping[str, LogLevel | None]) -> None:
        """Changes the levels of loggers of the process; None: the level of the logger above."""
        for name, level in levels.items():
            if level is None:
                self.log_levels.pop(name, None)
            else:
                self.log_levels[name] = level
        self.effects.append(effects.SetLogLevels(levels=dict(levels)))

    def log_levels_changed(self, event: events.LogLevelsChanged) -> None:
        self.log_levels = dict(event.levels)

    # The store, logs, and other brokers.

    @indivisible
    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Submits a ``multi`` to the store; ``done`` runs in the step of its answer."""
        self._tickets += 1
        self._store_waits[self._tickets] = done
        self.effects.append(effects.StoreSubmit(ticket=self._tickets, ops=tuple(ops)))

    @indivisible
    def read_log(self, root: str, found: Slice, done: Callable[[bytes | None], None]) -> None:
        """Reads part of a log off the event loop; ``done`` gets the bytes, or None if the file is gone."""
        self._tickets += 1
        self._log_waits[self._tickets] = done
        self.effects.append(effects.ReadLog(directory=root, ticket=self._tickets, slice=found))

    def tell_controller(self, message: Any, *, version: int, done: Callable[[], None], of: Origin | None = None) -> None:
        """Sends a request of this broker to the controller, if that is another broker; ``done`` runs after the response or timeout. If this
        broker may have just been elected, ``done`` runs at once. ``of``: the client for which it is sent, with access rules.
        """
        if of is not None and self.access is not None:
            message, version = enveloped(message, version, of, None), ENVELOPE_VERSION
        controller = self.image.controller
        if controller is None or controller == self.broker_id:
            done()
        else:
            self.ask(controller, message, version=version, timeout_ms=self.options.request_timeout_ms, done=lambda response: done())

    @indivisible
    def ask(self, broker: BrokerId, message: Any, *, version: int, timeout_ms: int, done: Callable[[Any], None]) -> None:
        """Sends a request of this broker to another broker or itself; ``done`` gets the response, or None after the timeout."""
        self._tickets += 1
        ticket = self._tickets

        def unanswered(expired: bool) -> None:
            self._peer_waits.pop(ticket, None)
            done(None)

        operation = DelayedOperation(f"response of broker {broker}", unanswered)
        self._peer_waits[ticket] = (operation, done)
        self.delayed.delay(operation, self.now_ms + timeout_ms)
        self.effects.append(effects.PeerRequest(broker=broker, ticket=ticket, api_version=version, message=message))

    def forward(self, call: events.RequestArrived[Any], broker: BrokerId, refuse: Callable[[], Any]) -> None:
        """Sends a client's request on to another broker, and answers with its response, or after a timeout with ``refuse()``.

        With access rules the request travels in an Envelope, with the principal and the address of the client.
        """
        self._tickets += 1
        ticket = self._tickets

        def unanswered(expired: bool) -> None:
            self._peer_waits.pop(ticket, None)
            self.answer(call, refuse())

        message, version = call.body, call.api_version
        if self.access is not None:
            message, version = enveloped(call.body, call.api_version, call.origin, call.client_id), ENVELOPE_VERSION

        def answered(message: Any) -> None:
            if isinstance(message, EnvelopeResponse):
                message = response_in(call, message)
            if message is None:
                self.isolation.run(call, unanswered, True)
            else:
                self.isolation.run(call, self.answer, call, message)

        operation = DelayedOperation(f"forwarded to broker {broker}", unanswered)
        self._peer_waits[ticket] = (operation, answered)
        self.delay(call, operation, self.now_ms + self.options.request_timeout_ms)
        self.effects.append(effects.PeerRequest(broker=broker, ticket=ticket, api_version=version, message=message))

    def store_answered(self, event: events.StoreAnswered) -> None:
        self._store_waits.pop(event.ticket)(event.result)

    def log_read(self, event: events.LogRead) -> None:
        self._log_waits.pop(event.ticket)(event.data)

    def peer_answered(self, event: events.PeerAnswered) -> None:
        operation, done = self._peer_waits.pop(event.ticket, (None, None))
        # Done: the client's connection is closed.
        if operation is not None and done is not None and not operation.done:
            self.delayed.cancel(operation)
            done(event.message)

    def check_certificates(
        self, call: events.RequestArrived[Any], listeners: dict[str, ListenerSslOptions], done: Callable[[str], None]
    ) -> None:
        """Checks in a thread whether this broker could use these certificates; ``done`` gets the problem, or an empty text."""
        self._tickets += 1
        ticket = self._tickets

        def unanswered(expired: bool) -> None:
            self._certificate_waits.pop(ticket, None)
            done("the certificates could not be read in time")

        operation = DelayedOperation("check of certificates", unanswered)
        self._certificate_waits[ticket] = (operation, done)
        self.delay(call, operation, self.now_ms + self.options.request_timeout_ms)
        self.effects.append(effects.CheckCertificates(ticket=ticket, listeners=listeners))

    def certificates_checked(self, event: events.CertificatesChecked) -> None:
        operation, done = self._certificate_waits.pop(event.ticket, (None, None))
        # Done: the client's connection is closed.
        if operation is not None and done is not None and not operation.done:
            call = operation.call
            assert call is not None, "the operation is that of a request"
            self.cancel_delayed(call)
            self.isolation.run(call, done, event.problem)

    # Requests of clients.

    def is_delayed(self, connection: ConnectionId) -> bool:
        """Whether a request of this connection is delayed."""
        return connection in self._delayed_of

    def answer(self, call: events.RequestArrived[Any], message: Any) -> None:
        """Answers a request whose handler returned PENDING."""
        self._forget(call)
        self.respond(call, message)

    @indivisible
    def cancel_delayed(self, call: events.RequestArrived[Any]) -> None:
        """Cancels a request's delayed operation, if it has one."""
        operation = self._forget(call)
        if operation is not None:
            self.delayed.cancel(operation)

    def _forget(self, call: events.RequestArrived[Any]) -> DelayedOperation | None:
        waiting = self._delayed_of.get(call.connection)
        if waiting is None:
            return None
        operation = waiting.pop(call.ticket, None)
        if not waiting:
            del self._delayed_of[call.connection]
        return operation

    def delay(self, call: events.RequestArrived[Any], operation: DelayedOperation, deadline_ms: int | None) -> Deferred:
        """Delays a request until its operation completes or its connection closes. Returns PENDING, for the handler to return."""
        operation.call = call
        self.delayed.delay(operation, deadline_ms)
        self._delayed_of.setdefault(call.connection, {})[call.ticket] = operation
        return PENDING

    def refusals(self, call: events.RequestArrived[Any], required: Requirement, names: Iterable[str]) -> Mapping[str, KafkaError]:
        """The errors of resources that the client may not use, by name; without access rules there are none."""
        return NONE_REFUSED if self.access is None else self.access.refusals(call, required, names)

    def demand(self, call: events.RequestArrived[Any], required: Requirement, name: str = CLUSTER_NAME) -> None:
        """Raises: the error of the resource if the client may not use it."""
        if self.access is not None:
            self.access.demand(call, required, name)

    def check_peer(self, call: events.RequestArrived[Any]) -> None:
        """For a request that only brokers send. Raises: ClusterAuthorizationFailed."""
        host, local = call.origin.host, call.origin.local
        if not self.peers.accept(host, local[0]):
            reason = "only a registered broker may send this request, from its registered address or one of ottla.peers.hosts"
            if self.peers.is_new(host):
                self.log.warn(
                    SECURITY,
                    f"a request that only brokers send was refused from {host}; if a broker is there, add it to ottla.peers.hosts",
                    host=host,
                )
            raise ClusterAuthorizationFailed(f"{host} is no broker of this cluster: {reason}")

    def respond(self, call: events.RequestArrived[Any], message: Any) -> None:
        self.effects.append(self.quotas.respond(call, message) if self.quotas.active else respond(call, message))

    def release(self, call: events.RequestArrived[Any]) -> None:
        """Ends a request without a response (acks=0)."""
        quotas = self.quotas
        self.effects.append(quotas.release(call) if quotas.active else effects.Release(connection=call.connection, ticket=call.ticket))

    def delayed_requests(self) -> list[dict[int, DelayedOperation]]:
        """Delayed requests of clients by ticket, for metrics: one dict per connection."""
        return list(self._delayed_of.values())

    def connection_closed(self, event: events.ConnectionClosed) -> None:
        """Drops the delayed requests of a connection."""
        self.client_software.pop(event.connection, None)
        for operation in self._delayed_of.pop(event.connection, {}).values():
            self.delayed.cancel(operation)
