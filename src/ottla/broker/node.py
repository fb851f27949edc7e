"""A broker as one pure state machine: ``step(event, now_ms)`` takes an event and returns effects.

This module only routes. Requests go to the handler of their API (``apis/``), store changes to the image and then to the controller and the
partitions, deadlines to the delayed operations. A step collects its effects in ``effects``, in order.

``now_ms`` is monotonic and used for deadlines; ``wall_ms`` is the wall clock and may jump. A step never waits: slow work is an effect whose
result returns as an event.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import ottla.broker.apis  # noqa: F401  (registers the handlers)
from ottla.base.ids import BrokerId, ConnectionId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.base.units import MiB
from ottla.broker import effects, events
from ottla.broker.apis.k01_fetch import follower_woke
from ottla.broker.controller.controller import Controller
from ottla.broker.delayed import DelayedOperation, DelayedOperations
from ottla.broker.groups.groups import group_coordinator, topic_changed
from ottla.broker.handlers import HANDLERS, NO_RESPONSE, PENDING, ApiHandler
from ottla.broker.isolation import Isolation, indivisible
from ottla.broker.metadata.configs import Settings, broker_options, topic_options, unreadable
from ottla.broker.metadata.image import Image
from ottla.broker.registration.controlled_shutdown import ControlledShutdown
from ottla.broker.registration.lifecycle import BrokerLifecycle
from ottla.broker.registration.replica_health import ReplicaHealth
from ottla.broker.replica.fetch_sessions import FetchSessions
from ottla.broker.replica.fetchers import Fetchers
from ottla.broker.replica.isr_requests import IsrChanges
from ottla.broker.replica.partitions import Partitions
from ottla.broker.replica.throttle import Throttles
from ottla.broker.storage.compaction import Compaction
from ottla.broker.storage.periodic_tasks import PeriodicTasks
from ottla.broker.storage.scrubs import Scrubs
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.log.directory import LogDirectory
from ottla.log.flush import Slice
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.wire.errors import KafkaError, NotController

#: Timeout of a request that is forwarded to the controller; then the client must look up the controller again.
FORWARD_MS = 30_000
#: Client id of requests between brokers.
PEER = "ottla-broker"


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


class Node:
    """The broker. Handlers read its attributes; each attribute is changed only by its own machine."""

    def __init__(
        self,
        *,
        broker_id: int,
        cluster_id: str,
        settings: Settings,
        directories: Sequence[LogDirectory],
        rng: Random,
        address: tuple[str, int],
        now_ms: int,
        wall_ms: int,
    ) -> None:
        self.broker_id = BrokerId(broker_id)
        self.cluster_id = cluster_id
        self.settings = settings
        #: Settings in effect, with overrides from the store.
        self.options = settings.options
        self.directories = list(directories)
        self.rng = rng
        self.address = address
        self.now_ms = now_ms
        #: Wall clock minus ``now_ms`` at the last tick.
        self._wall_ahead_ms = wall_ms - now_ms
        self.image = Image()
        self.isolation = Isolation(self)
        self.delayed = DelayedOperations(self.isolation.failed)
        self.sessions = FetchSessions.of(self.options, lambda number: number in self._delayed_of)
        self.replica_health = ReplicaHealth(self)
        self.scrubs = Scrubs(self)
        self.lifecycle = BrokerLifecycle(self)
        self.controlled_shutdown = ControlledShutdown(self)
        self.throttles = Throttles(self)
        self.fetchers = Fetchers(self)
        self.isr_changes = IsrChanges(self)
        self.partitions = Partitions(self)
        self.controller = Controller(self)
        self.producer_ids = ProducerIds(self)
        self.groups = group_coordinator(self)
        self.compaction = Compaction(self)
        self.periodic_tasks = PeriodicTasks(self)
        self.space: dict[str, Space] = {}
        #: Topics that are being created automatically.
        self.creating: set[str] = set()
        #: Set after the store's initial state was received.
        self.started = False
        #: Set when the broker stops: it leads nothing and answers no new requests.
        self.stopping = False
        #: Effects of the present step.
        self.effects: list[effects.Effect] = []
        #: By connection and ticket.
        self._delayed_of: dict[ConnectionId, dict[int, DelayedOperation]] = {}
        self._tickets = 0
        self._store_waits: dict[int, Callable[[StoreResult], None]] = {}
        self._log_waits: dict[int, Callable[[bytes | None], None]] = {}
        #: Forwarded requests of clients, and the broker's own requests, by ticket.
        self._asked: dict[int, tuple[events.RequestArrived, DelayedOperation]] = {}
        self._asks: dict[int, tuple[DelayedOperation, Callable[[Any], None]]] = {}
        #: Whether a FlushDue event is expected.
        self._flush_scheduled = False
        self._routes = self._table()

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """The method for each event; also connects fetch sessions with delayed operations."""
        self.sessions.poke, self.sessions.woken = self.delayed.poke, partial(follower_woke, self)
        self.delayed.heard = self.sessions.heard
        return {
            events.RequestArrived: self.isolation.request,
            events.ConnectionClosed: self._connection_closed,
            events.FlushDue: self._flush_due,
            events.Flushed: self._flushed,
            events.Cleaned: self.compaction.cleaned,
            events.Scrubbed: self.scrubs.scrubbed,
            events.LogsChanged: self.partitions.files.changed,
            events.DirectoryFailed: self._directory_failed,
            events.SpaceMeasured: self._space_measured,
            events.LogRead: self._log_read,
            events.StoreChanged: self._store_changed,
            events.StoreAnswered: self._store_answered,
            events.SessionChanged: self._session_changed,
            events.PeerAnswered: self._peer_answered,
            events.StopAsked: self._stop_asked,
            events.Ticked: self._ticked,
        }

    # For the shell.

    def start(self, now_ms: int) -> list[effects.Effect]:
        """Registers in the store. Called once, after the store's state arrived as StoreChanged events."""
        self.now_ms, self.effects = now_ms, []
        self.partitions.find_missing_logs()
        self.started = True
        self.groups.start()
        self.lifecycle.register()
        self.periodic_tasks.start()
        return self.effects

    def step(self, event: events.Event, now_ms: int) -> list[effects.Effect]:
        """Takes one event; returns effects in order."""
        assert now_ms >= self.now_ms, f"time goes forward: {now_ms} follows {self.now_ms}"
        self.now_ms, self.effects = now_ms, []
        self._routes[type(event)](event)
        self.fetchers.go_on()
        if self.partitions.dirty and not self._flush_scheduled:
            self._flush_scheduled = True
            self.effects.append(effects.ScheduleFlush())
        return self.effects

    def stop(self, now_ms: int) -> list[effects.Effect]:
        """Stops serving: delayed operations complete as they are, and the registration is deleted. The shell then closes the log
        directories.

        A broker of a cluster first gets StopAsked and time until ``controlled_shutdown.over``.
        """
        self.now_ms, self.effects = now_ms, []
        self.stopping = True
        self.groups.stop()
        self.delayed.expire_all()
        self.submit((Op("delete", layout.broker(self.broker_id)),), lambda result: None)
        return self.effects

    @property
    def epoch(self) -> int | None:
        """Broker epoch of the present registration, None without one. Decisions for an earlier epoch do not apply."""
        return self.lifecycle.epoch

    @property
    def ready(self) -> bool:
        """Whether the broker is registered, has a controller and leads its partitions: clients may connect."""
        registered = self.lifecycle.epoch is not None and self.image.controller is not None
        return registered and self.partitions.resumed and self.controller.settled()

    def next_deadline_ms(self) -> int | None:
        """When the next Ticked is needed."""
        due, other = self.delayed.next_deadline_ms(), self.periodic_tasks.next_ms
        return other if due is None or (other is not None and other < due) else due

    @property
    def wall_ms(self) -> int:
        """The wall clock in this step."""
        return self.now_ms + self._wall_ahead_ms

    # For machines and handlers.

    def topic_options(self, topic: str) -> TopicOptions:
        """Settings of a topic: its overrides over the broker's defaults."""
        return topic_options(self.settings, self.image, topic, self.broker_id)

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

    def tell_controller(self, message: Any, *, version: int, done: Callable[[], None]) -> None:
        """Sends a request of this broker to the controller, if that is another broker; ``done`` runs after the response or timeout. If this
        broker may have just been elected, ``done`` runs at once.
        """
        controller = self.image.controller
        if controller is None or controller == self.broker_id:
            done()
        else:
            self.ask(controller, message, version=version, timeout_ms=FORWARD_MS, done=lambda response: done())

    @indivisible
    def ask(self, broker: BrokerId, message: Any, *, version: int, timeout_ms: int, done: Callable[[Any], None]) -> None:
        """Sends a request of this broker to another broker or itself; ``done`` gets the response, or None after the timeout."""
        self._tickets += 1
        ticket = self._tickets

        def unanswered(expired: bool) -> None:
            self._asks.pop(ticket, None)
            done(None)

        operation = DelayedOperation((), lambda: False, unanswered)
        self._asks[ticket] = (operation, done)
        self.delayed.delay(operation, self.now_ms + timeout_ms)
        self.effects.append(effects.Ask(broker=broker, ticket=ticket, api_version=version, message=message))

    def answer(self, call: events.RequestArrived, message: Any) -> None:
        """Answers a request whose handler returned PENDING."""
        self._forget(call)
        self._respond(call, message)

    @indivisible
    def cancel_delayed(self, call: events.RequestArrived) -> None:
        """Cancels a request's delayed operation, if it has one."""
        operation = self._forget(call)
        if operation is not None:
            self.delayed.cancel(operation)

    def _forget(self, call: events.RequestArrived) -> DelayedOperation | None:
        waiting = self._delayed_of.get(call.connection)
        if waiting is None:
            return None
        operation = waiting.pop(call.ticket, None)
        if not waiting:
            del self._delayed_of[call.connection]
        return operation

    def delay(self, call: events.RequestArrived, operation: DelayedOperation, deadline_ms: int | None) -> Any:
        """Delays a request until its operation completes or its connection closes. Returns PENDING, for the handler to return."""
        operation.call = call
        self.delayed.delay(operation, deadline_ms)
        self._delayed_of.setdefault(call.connection, {})[call.ticket] = operation
        return PENDING

    # Routes.

    def handle(self, call: events.RequestArrived) -> None:
        """Handles a request, delays it or forwards it. Called by ``isolation`` only."""
        handler = HANDLERS.get(call.api_key)
        if self.stopping:
            # The image is incomplete now: metadata without brokers would keep a client away for long.
            self.effects.append(effects.Close(connection=call.connection, reason="the broker is stopping"))
        elif handler is None or not handler.versions[0] <= call.api_version <= handler.versions[1]:
            reason = f"no API {call.api_key} version {call.api_version} here"
            self.effects.append(effects.Close(connection=call.connection, reason=reason))
        elif handler.at_controller and not self.controller.active:
            if call.client_id == PEER:
                # The sender assumes that this broker is the controller: do not forward in circles.
                self._respond(call, handler.refuse(call, NotController(f"broker {self.broker_id} is not the controller")))
            else:
                self._forward(handler, call)
        else:
            try:
                answer = handler.run(self, call)
            except KafkaError as error:
                answer = handler.refuse(call, error)
            if answer is NO_RESPONSE:
                self.effects.append(effects.Release(connection=call.connection, ticket=call.ticket))
            elif answer is not PENDING:
                self._respond(call, answer)

    def _respond(self, call: events.RequestArrived, message: Any) -> None:
        self.effects.append(
            effects.Respond(
                connection=call.connection,
                correlation_id=call.correlation_id,
                ticket=call.ticket,
                api_version=call.api_version,
                message=message,
                call=call,
            )
        )

    def _forward(self, handler: ApiHandler, call: events.RequestArrived) -> None:
        controller = self.image.controller
        if controller is None or controller == self.broker_id:
            self._respond(call, handler.refuse(call, NotController("this cluster has no controller at the moment; try again")))
            return
        self._tickets += 1
        ticket = self._tickets

        def unanswered(expired: bool) -> None:
            self._asked.pop(ticket, None)
            self.answer(call, handler.refuse(call, NotController(f"controller {controller} did not answer; try again")))

        operation = DelayedOperation((), lambda: False, unanswered)
        self._asked[ticket] = (call, operation)
        self.delay(call, operation, self.now_ms + FORWARD_MS)
        self.effects.append(effects.Ask(broker=controller, ticket=ticket, api_version=call.api_version, message=call.body))

    def _peer_answered(self, event: events.PeerAnswered) -> None:
        own, done = self._asks.pop(event.ticket, (None, None))
        if own is not None and done is not None:
            self.delayed.cancel(own)
            done(event.message)
            return
        call, operation = self._asked.pop(event.ticket, (None, None))
        if operation is None or call is None or operation.done:
            return
        self.delayed.cancel(operation)
        if event.message is None:
            self.isolation.run(call, operation.finish, True)
        else:
            self.isolation.run(call, self.answer, call, event.message)

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        for operation in self._delayed_of.pop(event.connection, {}).values():
            self.delayed.cancel(operation)

    def _flush_due(self, event: events.FlushDue) -> None:
        self._flush_scheduled = False
        self.partitions.begin_flushes()

    def _flushed(self, event: events.Flushed) -> None:
        self.partitions.flushed(event.marks)

    def _directory_failed(self, event: events.DirectoryFailed) -> None:
        self.partitions.directory_failed(event.directory, event.reason)

    def _space_measured(self, event: events.SpaceMeasured) -> None:
        before = self.space.get(event.directory)
        reserve = self.options.disk_reserve_bytes
        space = self.space[event.directory] = Space(event.free_bytes, event.total_bytes, event.free_bytes < reserve)
        if before is not None:
            space.full = (before.low and space.low) or (before.full and event.free_bytes < reserve + max(reserve // 4, MiB))
        if space.low != (before is not None and before.low):
            state = f"the reserve (ottla.disk.reserve.bytes) is {reserve}; produce is {'refused' if space.low else 'taken again'}"
            self.effects.append(effects.Warn(message=f"{space.free_bytes} bytes are free on the disk of {event.directory}, {state}"))
        self.partitions.room_measured()

    def _store_answered(self, event: events.StoreAnswered) -> None:
        self._store_waits.pop(event.ticket)(event.result)

    def _log_read(self, event: events.LogRead) -> None:
        self._log_waits.pop(event.ticket)(event.data)

    def _ticked(self, event: events.Ticked) -> None:
        self._wall_ahead_ms = event.wall_ms - self.now_ms
        self.delayed.expire(self.now_ms)
        self.periodic_tasks.tick()

    def _stop_asked(self, event: events.StopAsked) -> None:
        self.controlled_shutdown.begin()

    def _session_changed(self, event: events.SessionChanged) -> None:
        if self.started and not self.stopping:
            self.lifecycle.session_changed(event.state)
            self.controlled_shutdown.changed(("session", event.state))

    def _store_changed(self, event: events.StoreChanged) -> None:
        change = self.image.apply(event.state)
        if change is None:
            return
        match change:
            case ("config", (str() as kind, str() as name)):
                for wrong in unreadable(self.image, kind, name).values():
                    self.effects.append(effects.Warn(message=f"what the store says of {kind} {name!r} is left out of account: {wrong}"))
        match change:
            case ("topic", str() as topic):
                self.partitions.topic_changed(topic)
                topic_changed(self.groups, topic)
            case ("partition", TopicPartition() as partition):
                self.partitions.state_changed(partition)
            case ("config", ("topics", str() as topic)):
                self.partitions.options_changed(topic)
                self.throttles.settings_changed()
            case ("config", ("brokers", _)):
                self.options = broker_options(self.settings, self.image, self.broker_id)
                self.partitions.defaults_changed()
                self.throttles.settings_changed()
                self.periodic_tasks.settings_changed()
            case ("broker", self.broker_id) if self.started and not self.stopping:
                self.lifecycle.broker_changed()
        self.controller.changed(change)
        self.controlled_shutdown.changed(change)
