"""A broker as one pure state machine: ``step(event, now_ms)`` takes an event and returns effects.

This module only routes. Requests go to the handler of their API (``apis/``), store changes to the image and then to the controller and the
partitions, deadlines to the delayed operations. What the machines share is in ``context.py``.

``now_ms`` is monotonic and used for deadlines; ``wall_ms`` is the wall clock and may jump. A step never waits: slow work is an effect whose
result returns as an event.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ottla.base.acls import Pattern, ResourceType, covers
from ottla.base.ids import ConnectionId, TopicPartition
from ottla.base.log_levels import CONTROLLER, SECURITY, STORAGE
from ottla.base.ports import Op
from ottla.base.units import INT64_MAX, MINUTE_MS, SECOND_MS, MiB
from ottla.broker import effects, event_log, events
from ottla.broker.context import BrokerContext, Space
from ottla.broker.controller.controller import Controller
from ottla.broker.groups.groups import access_changed, group_coordinator, topic_changed
from ottla.broker.handlers import NO_RESPONSE, PENDING, ApiHandler
from ottla.broker.metadata.configs import broker_options, unreadable
from ottla.broker.registration.controlled_shutdown import ControlledShutdown
from ottla.broker.registration.lifecycle import BrokerLifecycle, refusal_beside_kafka
from ottla.broker.registration.peers import PEER
from ottla.broker.registration.registration import Registration
from ottla.broker.registration.replica_health import ReplicaHealth
from ottla.broker.replica.fetch_sessions import FetchSessions
from ottla.broker.replica.fetchers import Fetchers
from ottla.broker.replica.isr_requests import IsrChanges
from ottla.broker.replica.partitions import Partitions
from ottla.broker.replica.replicas import BROKERS
from ottla.broker.replica.throttle import Throttles
from ottla.broker.schema_registry import SchemaRegistry
from ottla.broker.storage.compaction import Compaction
from ottla.broker.storage.periodic_tasks import FileRemovals, PeriodicTasks
from ottla.broker.storage.scrubs import Scrubs
from ottla.broker.telemetry import ClientTelemetry
from ottla.broker.transactions.marker_order import MarkerOrder
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.transactions import transaction_coordinator
from ottla.broker.transactions.verification import Verifications
from ottla.store import layout
from ottla.store.layout_quotas import QuotaEntity, quota_entity_of
from ottla.wire.errors import InvalidRequest, KafkaError, NotController


class Node:
    """The broker: its context, its machines, and the routes of events to them."""

    def __init__(self, context: BrokerContext, handlers: Mapping[int, ApiHandler]) -> None:
        """``handlers``: by API key, ``ottla.broker.apis.HANDLERS``."""
        self.context = context
        self._handlers = handlers
        self._delayed = context.delayed
        self.sessions = FetchSessions.of(context.options, context.is_delayed)
        self.throttles = Throttles(context)
        self.removals = removals = FileRemovals(context)
        self.registration = registration = Registration(context)
        self.partitions = Partitions(context, removals, self)
        self.fetchers = Fetchers(context, self.partitions, self.throttles, removals)
        self.replica_health = ReplicaHealth(context, registration, self.partitions, self.fetchers)
        self.controller = Controller(context, registration, self.partitions.files.when_opened)
        self.isr_changes = IsrChanges(context, self.partitions, self.controller.reachability)
        self.groups = group_coordinator(context, self.partitions, self.controller)
        self.producer_ids = ProducerIds(context)
        self.verification = Verifications(context)
        self.marker_order = MarkerOrder()
        #: Connections that are closed because a batch of an idempotent producer arrived damaged; a few of the last, oldest first.
        self.closed_after_damage: dict[ConnectionId, None] = {}
        self.transactions = transaction_coordinator(context, self.partitions, self.controller, self.producer_ids)
        self.telemetry = ClientTelemetry(context)
        self.schemas = SchemaRegistry(context)
        self.scrubs = Scrubs(context, self.partitions, self.replica_health)
        self.compaction = Compaction(context, self.partitions, self.scrubs)
        self.controlled_shutdown = ControlledShutdown(context, registration, self.partitions)
        self.lifecycle = BrokerLifecycle(context, registration, self.replica_health, self.partitions, self.fetchers, self.controller)
        self.periodic_tasks = PeriodicTasks(context, self.partitions, removals, self._ticks())
        #: Whether a FlushDue event is expected.
        self._flush_scheduled = False
        # Fetch sessions and delayed operations notify each other.
        self.sessions.poke, self.sessions.woken = context.delayed.poke, self.isr_changes.follower_woke
        context.delayed.poked, context.delayed.work_off = self.sessions.poked, context.turns.work_off
        context.isolation.handle = self.handle
        self._routes = self._table()

    def _ticks(self) -> dict[str, tuple[int, Callable[[], None]]]:
        """What machines do at intervals, in ms."""
        isr_ms = max(min(self.context.options.replica_lag_time_max_ms // 2, SECOND_MS), 1)
        return {
            "controller": (SECOND_MS, self.controller.tick),
            "lifecycle": (SECOND_MS, self.lifecycle.tick),
            "replica_health": (SECOND_MS, self.replica_health.tick),
            "isr": (isr_ms, self.isr_changes.tick),
            "compaction": (SECOND_MS, self.compaction.tick),
            "scrub": (SECOND_MS, self.scrubs.tick),
            "quotas": (MINUTE_MS, self.context.quotas.expire),
            "telemetry": (MINUTE_MS, self.telemetry.tick),
            "log": (event_log.TICK_MS, self.context.log.tick),
        }

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """The method for each event."""
        return {
            events.RequestArrived: self.context.isolation.request,
            events.RequestTimed: self.context.quotas.request_timed,
            events.ConnectionClosed: self._connection_closed,
            events.PeersResolved: self.context.peers.resolved,
            events.FlushDue: self._flush_due,
            events.TurnDue: lambda event: self.context.turns.take_turn(),
            events.Flushed: lambda event: self.partitions.flushed(event.marks),
            events.Cleaned: self.compaction.cleaned,
            events.Scrubbed: self.scrubs.scrubbed,
            events.LogsChanged: self.partitions.files.changed,
            events.DirectoryFailed: lambda event: self.partitions.directory_failed(event.directory, event.reason),
            events.SpaceMeasured: self._space_measured,
            events.LogRead: self.context.log_read,
            events.CertificatesChecked: self.context.certificates_checked,
            events.SchemasLookedUp: self.schemas.looked_up,
            events.StoreChanged: self._store_changed,
            events.StoreAnswered: self.context.store_answered,
            events.SessionChanged: self._session_changed,
            events.LogLevelsChanged: self.context.log_levels_changed,
            events.PeerAnswered: self.context.peer_answered,
            events.StopRequested: lambda event: self.controlled_shutdown.begin(),
            events.Ticked: self._ticked,
        }

    # For the shell.

    def start(self, now_ms: int) -> list[effects.Effect]:
        """Registers in the store. Called once, after the store's state arrived as StoreChanged events."""
        self.context.now_ms = now_ms
        found = self.context.effects = []
        refusal = refusal_beside_kafka(self.context.image, self.context.options.zookeeper_connect)
        if refusal:
            found.append(effects.Halt(reason=refusal))
            return found
        self.partitions.find_missing_logs()
        self.context.started = True
        self.groups.start()
        self.transactions.start()
        self.lifecycle.register()
        self.periodic_tasks.start()
        return found

    def step(self, event: events.Event, now_ms: int) -> list[effects.Effect]:
        """Takes one event; returns effects in order."""
        context = self.context
        assert now_ms >= context.now_ms, f"time goes forward: {now_ms} follows {context.now_ms}"
        context.now_ms = now_ms
        found: list[effects.Effect] = []
        context.effects = found
        self._routes[type(event)](event)
        partitions = self.partitions
        if partitions.lowered:
            partitions.record_truncations()
        if self.fetchers.stirred:
            self.fetchers.go_on()
        if partitions.dirty and not self._flush_scheduled:
            self._flush_scheduled = True
            found.append(effects.ScheduleFlush())
        return found

    def stop(self, now_ms: int) -> list[effects.Effect]:
        """Stops serving: delayed operations complete as they are, and the registration is deleted. The shell then closes the log
        directories.

        A broker of a cluster first gets StopRequested and time until ``controlled_shutdown.over``.
        """
        self.context.now_ms = now_ms
        found = self.context.effects = []
        self.context.stopping = True
        self.groups.stop()
        self.transactions.stop()
        self.context.log.tick()
        self.context.delayed.expire_all()
        self.context.submit((Op("delete", layout.broker(self.context.broker_id)),), lambda result: None)
        return found

    @property
    def ready(self) -> bool:
        """Whether the broker is registered, has a controller and leads its partitions: clients may connect."""
        registered = self.context.epoch is not None and self.context.image.controller is not None
        return registered and self.partitions.resumed and self.controller.settled()

    def next_deadline_ms(self) -> int | None:
        """When the next Ticked is needed; None before ``start``."""
        found, removal_ms, delayed_ms = self.periodic_tasks.next_ms, self.removals.next_ms, self._delayed.next_deadline_ms()
        if removal_ms < found:
            found = removal_ms
        if delayed_ms is not None and delayed_ms < found:
            return delayed_ms
        return found if found < INT64_MAX else None

    def partition_changed(self, partition: TopicPartition) -> None:
        """A partition's leadership or log directory changed: its coordinator begins or ends."""
        self.groups.partition_changed(partition)
        self.transactions.partition_changed(partition)

    # Routes.

    def handle(self, call: events.RequestArrived[Any], *, checked: bool = False) -> None:
        """Handles a request, delays it or forwards it. ``checked``: this broker can use the certificates that the request changes."""
        context, handler = self.context, self._handlers.get(call.api_key)
        if context.stopping:
            # The image is incomplete now: metadata without brokers would keep a client away for long.
            context.effects.append(effects.Close(connection=call.connection, reason="the broker is stopping"))
        elif handler is None or not handler.versions[0] <= call.api_version <= handler.versions[1]:
            self._close_unserved(call)
        elif handler.simple or self._is_run_here(handler, call, checked):
            try:
                if context.access is not None:
                    context.access.check(call)
                answer = handler.run(self, call)
            except KafkaError as error:
                answer = context.turns.refused(call, error)
            if answer is NO_RESPONSE:
                context.release(call)
            elif answer is not PENDING:
                context.respond(call, answer)

    def _close_unserved(self, call: events.RequestArrived[Any]) -> None:
        reason = f"no API {call.api_key} version {call.api_version} here"
        self.context.effects.append(effects.Close(connection=call.connection, reason=reason))

    def _is_run_here(self, handler: ApiHandler, call: events.RequestArrived[Any], checked: bool) -> bool:
        """Whether this broker runs the handler now. If not, the request is refused, forwarded, or handled after a check."""
        context = self.context
        if (handler.enabled is not None and not handler.enabled(context.options)) or call.api_version > handler.last_version(
            context.options
        ):
            self._close_unserved(call)
        elif handler.from_brokers and context.access is None and not context.peers.accept(call.origin.host, call.origin.local[0]):
            self._refuse_sender(handler, call)
        elif handler.certificates is not None and not checked and not self._was_forwarded(call):
            self._check_certificates(handler, handler.certificates, call)
        elif handler.at_controller and not self.controller.active and not (handler.own is not None and handler.own(call)):
            self._pass_on(handler, call)
        else:
            return True
        return False

    def _was_forwarded(self, call: events.RequestArrived[Any]) -> bool:
        """Whether another broker sent the request, which has checked what only it can check. A client may choose a broker's client id."""
        context, origin = self.context, call.origin
        if call.envelope is not None or call.client_id != PEER:
            return call.envelope is not None
        return context.peers.accept(origin.host, origin.local[0]) if context.access is None else context.access.acts_for_cluster(origin)

    def _check_certificates(self, handler: ApiHandler, certificates: Callable[[Any, Any], Any], call: events.RequestArrived[Any]) -> None:
        """Handles the request when this broker can use the certificates that it changes, if it changes some."""

        def checked(problem: str) -> None:
            if problem:
                self.context.respond(call, handler.refuse(call, InvalidRequest(problem)))
            else:
                self.handle(call, checked=True)

        try:
            found = certificates(self, call)
        except KafkaError as error:
            self.context.respond(call, handler.refuse(call, error))
            return
        if found:
            self.context.check_certificates(call, found, checked)
        else:
            self.handle(call, checked=True)

    def _pass_on(self, handler: ApiHandler, call: events.RequestArrived[Any]) -> None:
        """Refuses a request for the controller, or forwards it."""
        context = self.context
        if call.client_id == PEER:
            # The sender assumes that this broker is the controller: do not forward in circles.
            context.respond(call, handler.refuse(call, NotController(f"broker {context.broker_id} is not the controller")))
        elif context.quotas.active and context.quotas.limits_mutations(call):
            context.respond(call, handler.refuse(call, NotController("send the request to the controller, which counts your quota")))
        else:
            self._forward(handler, call)

    def _refuse_sender(self, handler: ApiHandler, call: events.RequestArrived[Any]) -> None:
        try:
            self.context.check_peer(call)
        except KafkaError as error:
            self.context.respond(call, handler.refuse(call, error))

    def _forward(self, handler: ApiHandler, call: events.RequestArrived[Any]) -> None:
        context, controller = self.context, self.context.image.controller
        if controller is None or controller == context.broker_id:
            context.respond(call, handler.refuse(call, NotController("this cluster has no controller at the moment; try again")))
            return
        unanswered = NotController(f"controller {controller} did not answer; try again")
        context.forward(call, controller, lambda: handler.refuse(call, unanswered))

    def _connection_closed(self, event: events.ConnectionClosed) -> None:
        self.schemas.waiting.pop(event.connection, None)
        self.context.connection_closed(event)

    def _flush_due(self, event: events.FlushDue) -> None:
        self._flush_scheduled = False
        self.partitions.begin_flushes()

    def _space_measured(self, event: events.SpaceMeasured) -> None:
        before = self.context.space.get(event.directory)
        reserve = self.context.options.disk_reserve_bytes
        space = self.context.space[event.directory] = Space(event.free_bytes, event.total_bytes, event.free_bytes < reserve)
        if before is not None:
            space.full = (before.low and space.low) or (before.full and event.free_bytes < reserve + max(reserve // 4, MiB))
        if space.low != (before is not None and before.low):
            state = f"the reserve (ottla.disk.reserve.bytes) is {reserve}; produce is {'refused' if space.low else 'accepted again'}"
            self.context.log.warn(
                STORAGE, f"{space.free_bytes} bytes are free on the disk of {event.directory}, {state}", free_bytes=space.free_bytes
            )
        self.partitions.room_measured()

    def _ticked(self, event: events.Ticked) -> None:
        self.context.set_wall_clock(event.wall_ms)
        self.context.delayed.expire(self.context.now_ms)
        self.periodic_tasks.tick()

    def _session_changed(self, event: events.SessionChanged) -> None:
        if self.context.started and not self.context.stopping:
            self.lifecycle.session_changed(event.state)
            self.controlled_shutdown.changed(("session", event.state))

    def _options_changed(self) -> None:
        """A setting of this broker, or of all, changed in the store."""
        self.context.options = broker_options(self.context.settings, self.context.image, self.context.broker_id)
        self.partitions.defaults_changed()
        self.throttles.settings_changed()
        self.fetchers.settings_changed()
        self.fetchers.stir_all()
        self.periodic_tasks.settings_changed()
        self.context.effects.append(effects.AdoptOptions())

    def _topic_options_changed(self, topic: str) -> None:
        options = self.context.topic_options(topic)
        if options.value_schema_validation or options.key_schema_validation:
            self.schemas.topics.add(topic)
        else:
            self.schemas.topics.discard(topic)
        self.partitions.options_changed(topic)

    def _quotas_changed(self, entity: QuotaEntity) -> None:
        self.context.quotas.adopt(entity)
        if entity.ip is not None:
            self.context.effects.append(effects.AdoptOptions())

    def _levels_changed(self) -> None:
        """Finalized levels changed: a broker may have registered meanwhile that does not support them."""
        for broker, found in self.context.image.brokers.items():
            if found.outdated:
                self.lifecycle.warn_of_others(broker)
                self.controller.changed(("broker", broker))

    def _acl_changed(self, pattern: Pattern) -> None:
        context = self.context
        if context.access is None:
            return
        context.access.changed(pattern)
        if pattern.resource_type is ResourceType.TOPIC:
            access_changed(self.groups)
            # Waiting fetches of clients that lost their right are answered.
            for partition in list(self.partitions.leaders):
                if covers(pattern, partition.topic):
                    context.delayed.poke(partition)
        wrong = context.image.unreadable_acls.get(pattern)
        if wrong is not None:
            context.log.warn(SECURITY, f"the access rules of {pattern} cannot be read, so that only super users may use it: {wrong}")

    def _store_changed(self, event: events.StoreChanged) -> None:
        change = self.context.image.apply(event.state)
        if change is None:
            return
        match change:
            case ("config", (str() as kind, str() as name)):
                for wrong in unreadable(self.context.image, kind, name).values():
                    self.context.log.warn(CONTROLLER, f"a setting of {kind} {name!r} in the store is ignored: {wrong}")
        match change:
            case ("topic", str() as topic):
                self.partitions.topic_changed(topic)
                topic_changed(self.groups, topic)
            case ("partition", TopicPartition() as partition):
                self.partitions.state_changed(partition)
            case ("config", ("topics", str() as topic)):
                self._topic_options_changed(topic)
                self.throttles.settings_changed()
                self.fetchers.stir_all()
            case ("config", ("brokers", _)):
                self._options_changed()
            case ("config", ("client-metrics", str() as name)):
                self.telemetry.settings_changed(name)
            case ("acl", Pattern() as pattern):
                self._acl_changed(pattern)
            case ("quotas", QuotaEntity() as entity):
                self._quotas_changed(entity)
            case ("config", ("users" | "clients" | "ips" as kind, str() as name)):
                self._quotas_changed(quota_entity_of(layout.config(kind, name)) or QuotaEntity())
            case ("broker", self.context.broker_id) if self.context.started and not self.context.stopping:
                self.lifecycle.broker_changed()
        self.controller.changed(change)
        if change[0] == "broker":
            # A broker that is gone need not report its log starts.
            self.context.delayed.poke(BROKERS)
            if self.context.started:
                self.lifecycle.warn_of_others(change[1])  # type: ignore[arg-type]
        if change[0] == "features":
            self._levels_changed()
        if change[0] == "controller":
            self.isr_changes.controller_changed()
        self.controlled_shutdown.changed(change)
