"""One process of brokers: data directory, store and brokers, from start to clean stop.

::

    DIR/.lock                       held while a process uses the directory
    DIR/meta/ottla-store.sqlite     the coordination store, unless it is ZooKeeper
    DIR/broker-N/                   log directory of broker N, unless log.dirs says otherwise
    DIR/flight-*.jsonl              flight records

A start opens the store (``store_factory.py``), binds the sockets, opens the logs, passes the store's contents to the brokers and registers
them. It accepts connections when each broker leads its partitions. A stop reverses this: brokers of other processes take over leadership,
new connections are refused, pending requests are answered, logs are flushed and marked as cleanly closed.
"""

import asyncio
import gc
import logging
import os
import platform
import secrets
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, TypeVar

from ottla.base.ids import BrokerId
from ottla.base.log_levels import LogLevel
from ottla.base.ports import Disk, NodeState, Op, SessionState, Store
from ottla.base.sampled_rate import Window
from ottla.base.units import SECOND_MS
from ottla.broker import events
from ottla.broker.apis import HANDLERS
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import root_of
from ottla.broker.metadata.configs import BrokerOptions, Settings, broker_options, listener_options, topic_options
from ottla.broker.metadata.features import why_not_supported
from ottla.broker.metadata.image import NO_LEADER, Image
from ottla.broker.node import Node
from ottla.broker.registration.lifecycle import refusal_beside_kafka
from ottla.log.directory import LogDirectory
from ottla.log.errors import LogError
from ottla.log.options import TopicOptions
from ottla.net.authenticator import Authenticator
from ottla.net.connection_context import ConnectionContext
from ottla.net.listener import Listener
from ottla.net.server_connection import Handler
from ottla.net.tls.context import TlsContext
from ottla.net.tls.listener_tls import ListenerTls
from ottla.net.tls.transport import HandshakeSteps
from ottla.server import broker_log, process_plan
from ottla.server.addresses import Address, address_text
from ottla.server.audit import close_audit_log, open_audit_log
from ottla.server.certificate_renewal import CertificateRenewal
from ottla.server.data_directory import CannotStart, StoppedWhileStarting, UnusableDirectory
from ottla.server.environment import Environment, LoopWatch, OperatingSystem
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.initial_users import store_users
from ottla.server.log_recovery import open_in_threads
from ottla.server.memory_trim import Trimmer, start_trimmer
from ottla.server.metrics.client_telemetry import ClientMetrics
from ottla.server.metrics.counters import Counters
from ottla.server.metrics.outputs import StartedMetrics, start_metrics
from ottla.server.metrics.request_times import RequestTimes
from ottla.server.peer_requests import PeerClient
from ottla.server.peer_resolver import PeerResolver
from ottla.server.performer import Performer
from ottla.server.process_plan import BoundBroker, ProcessPlan
from ottla.server.redaction import without_secrets
from ottla.server.sasl import ListenerMechanisms, peer_login
from ottla.server.schema_lookups import SchemaLookups
from ottla.server.service_notify import ServiceNotify
from ottla.server.shell import Shell
from ottla.server.sidecars import Sidecar, SidecarPlan, check_sidecar, start_sidecar
from ottla.server.store_factory import WARN_EVERY_S, StoreFactory, cluster_id, read_and_watch, submit_and_wait, zookeeper_connection
from ottla.store import layout

#: Exit codes: stopped on request, cannot continue, internal error (BSD's EX_SOFTWARE).
STOPPED, FAILED, BROKEN = 0, 1, 70
log = logging.getLogger("ottla.server")

T = TypeVar("T")
STOPPED_WHILE_STARTING = "stopped while starting"
#: How long a start waits for its brokers to lead their partitions.
READY_S = 60.0
#: Threads for steps of TLS handshakes: on a small machine they must leave the loop its core.
HANDSHAKE_THREADS = max(1, min(4, (os.cpu_count() or 1) - 1))
#: How long a stop waits for clients to read their last answers.
PATIENCE_S = 1.0
#: Threads for the slow steps of authentication, which may wait for an identity provider.
AUTHENTICATION_THREADS = 4


class RunningBroker:
    """One broker with its session, logs, shell and listener."""

    def __init__(self, process: "Process", bound: BoundBroker, directories: list[LogDirectory], session: Store) -> None:
        settings = bound.settings
        options = settings.options
        #: Addresses of the sockets by listener, the first one for clients without a name.
        self.addresses: dict[str, Address] = {endpoint.listener: endpoint.address for endpoint in bound.listeners.endpoints}
        self._protocols = {endpoint.listener: endpoint.protocol.name for endpoint in bound.listeners.endpoints}
        self.id = BrokerId(options.broker_id)
        self.directories = directories
        self.node = self._make_node(process, bound)
        self.session = session
        #: Of the listeners with TLS.
        self.tls = {name: ListenerTls(state, process.handshake_steps) for name, state in bound.tls.items()}
        self._inter_broker = bound.listeners.inter_broker
        self.peers = self._make_peers(process, bound)
        self.performer = self._make_performer(process, options)
        self.shell = Shell(
            self.node,
            self.performer,
            now_ms=process.now_ms,
            wall_ms=process.wall_ms,
            recorder=FlightRecorder(options.recorder_bytes),
            counters=process.counters,
            crashed=process.crash,
            record=process.record_request,
            session=session,
            # The last heartbeat may be a third of the timeout older than the pause.
            pause_max_ms=options.zookeeper_session_timeout_ms // 2 if options.zookeeper_connect else 0,
        )
        self.performer.handle = self.shell.handle
        self.listeners = self._make_listeners(process, bound)
        self.renewal = CertificateRenewal(
            self.tls, self.listener_options, inter_broker=self._inter_broker, executor=process.handshake_threads, counters=process.counters
        )
        self._wall_ms = process.wall_ms
        self.resolver = PeerResolver(options.peers_hosts, self._hosts, self.shell.handle)

    def _make_node(self, process: "Process", bound: BoundBroker) -> Node:
        return Node(
            BrokerContext(
                broker_id=self.id,
                cluster_id=process.cluster_id,
                settings=bound.settings,
                directories=self.directories,
                # Clients see its numbers in member ids and topic ids, and must not be able to tell the next ones.
                rng=secrets.SystemRandom(),
                endpoints=bound.listeners.advertised,
                now_ms=process.now_ms(),
                wall_ms=process.wall_ms(),
                log_levels=broker_log.levels(),
            ),
            HANDLERS,
        )

    def _make_performer(self, process: "Process", options: BrokerOptions) -> Performer:
        made = Performer(
            disks={directory.root: process.disks[directory.root] for directory in self.directories},
            session=self.session,
            executor=process.sync_threads,
            threads=options.num_io_threads,
            adopt=lambda: process.adopt(self),
            certificates_problem=lambda listeners: self.renewal.problem(listeners),
            flush_worker=process.environment.flush_worker,
            cleaners=process.environment.cleaners(process.counters),
            peers=self.peers,
            counters=process.counters,
            halted=process.halt,
            crashed=lambda error: process.crash(self.shell, error),
        )
        made.log_levels = lambda changed: process.set_log_levels(self, changed)
        made.client_metrics = process.client_metrics
        made.times = RequestTimes(self.id, options.request_slow_ms)
        if options.schema_registry_url:
            made.schema_lookups = SchemaLookups(options)
        return made

    def _make_peers(self, process: "Process", bound: BoundBroker) -> PeerClient:
        """Connections to other brokers, with the protocol of the listener between brokers."""
        sasl = any(one.protocol.sasl for one in bound.listeners.endpoints if one.listener == self._inter_broker)
        return PeerClient(
            process.shells,
            self._registered_address,
            timeout_ms=bound.settings.options.request_timeout_ms,
            tls=self._tls_to_peers,
            login=partial(peer_login, self._inter_broker, partial(self.listener_options, self._inter_broker)) if sasl else None,
        )

    def _make_listeners(self, process: "Process", bound: BoundBroker) -> dict[str, Listener]:
        """By name."""
        handler, numbers = process.environment.request_handler(self.shell), count(1)
        protocols = {endpoint.listener: endpoint.protocol for endpoint in bound.listeners.endpoints}
        return {
            name: Listener(
                listening,
                process.connection_context,
                self._authenticator(process, name, handler) if protocols[name].sasl else handler,
                name=name,
                limits=process_plan.listener_limits(self.listener_options(name)),
                numbers=numbers,
                authentication=process_plan.authentication_limits(self.listener_options(name)) if protocols[name].sasl else None,
                tls=self.tls.get(name),
                protected=name == self._inter_broker and len(bound.sockets) > 1,
            )
            for name, listening in bound.sockets.items()
        }

    def _authenticator(self, process: "Process", listener: str, handler: Handler) -> Handler:
        """The handler of a listener with SASL."""
        context = self.node.context
        return Authenticator(
            handler,
            ListenerMechanisms(listener, partial(self.listener_options, listener), context.image, process.wall_ms),
            executor=process.authentication_threads,
            traffic=process.connection_context.traffic,
            failure_delay_ms=lambda: context.options.failed_authentication_delay_ms,
            wall_ms=process.wall_ms,
        )

    def log_listeners(self) -> None:
        """Logs where this broker listens and what it advertises."""
        advertised = {one.listener: one.text for one in self.node.context.endpoints}
        for name, protocol in self._protocols.items():
            where = address_text(self.addresses[name])
            fields = {"broker": self.id, "listener": name, "protocol": protocol, "advertised": advertised.get(name, "")}
            log.info("listening on %s", where, extra={"fields": fields})

    def watch(self) -> None:
        """Passes the store's state and its changes to the broker."""
        self.session.watch("/", self._changed)
        self.session.listen(self._session_changed)

    @property
    def times(self) -> RequestTimes:
        return self.performer.times

    @property
    def address(self) -> Address:
        """Address of the first listener."""
        return next(iter(self.addresses.values()))

    @property
    def plaintext_address(self) -> Address:
        """Address of the first listener without TLS and SASL, else of the first one."""
        return next((self.addresses[name] for name, protocol in self._protocols.items() if protocol == "PLAINTEXT"), self.address)

    def _tls_to_peers(self) -> TlsContext | None:
        """For connections to other brokers; None without TLS."""
        found = self.tls.get(self._inter_broker)
        return None if found is None else found.present.client

    def listener_options(self, name: str, mechanism: str = "") -> BrokerOptions:
        """Settings in effect for a listener, or for a SASL mechanism of it."""
        context = self.node.context
        return listener_options(context.settings, context.image, self.id, name, mechanism)

    def _changed(self, state: NodeState) -> None:
        self.shell.handle(events.StoreChanged(state=state))
        if layout.broker_of(state.path) is not None:
            self.resolver.look()

    def _hosts(self) -> list[str]:
        found = (registered.endpoint(self._inter_broker) for registered in self.node.context.image.brokers.values())
        return [address[0] for address in found if address is not None and address[0]]

    def _session_changed(self, state: SessionState) -> None:
        self.shell.handle(events.SessionChanged(state=state))

    def _registered_address(self, broker: BrokerId) -> Address | None:
        registration = self.node.context.image.brokers.get(broker)
        return None if registration is None else registration.endpoint(self._inter_broker)

    def close_logs(self) -> None:
        """Closes the log directories that have not failed, and marks them as cleanly closed."""
        node = self.node
        for directory in self.directories:
            try:
                directory.close(
                    node.partitions.high_watermarks(directory),
                    self._wall_ms(),
                    broker_epoch=self._epoch_at_stop(directory),
                    clean_since=node.registration.clean_since,
                    carry_out=self.performer.flushers[directory.root].carry_out,
                )
            except OSError as error:
                log.error("log directory %s was not closed cleanly, the next start recovers it: %s", directory.root, error)

    def _epoch_at_stop(self, directory: LogDirectory) -> int:
        """The registration without lost records. A broker that stops during its start keeps the epoch of the last stop."""
        if self.node.context.epoch is not None:
            return self.node.context.epoch
        return directory.last_broker_epoch if directory.clean_start and not self.node.context.started else -1


class Process:
    """All brokers of a process, and what they share. Belongs to one event loop."""

    cluster_id: str
    store_factory: StoreFactory | None = None
    _started = False
    _serving = False
    #: The file of the audit log, if there is one.
    _audit_log: logging.Handler | None = None
    _watchdog: LoopWatch | None = None
    #: Tasks that resolve the hosts of limits and of quotas.
    _resolving: asyncio.Task[None] | None = None
    _resolving_quotas: asyncio.Task[None] | None = None

    def __init__(self, plan: ProcessPlan, *, die: Callable[[int], NoReturn] = os._exit, environment: Environment | None = None) -> None:
        """Locks the data directory; ``start`` opens it. ``die`` ends the process after an internal error.

        Raises: ConfigError, CannotStart.
        """
        self.plan = plan
        self.environment: Environment = environment or OperatingSystem()
        self._log_start()
        #: The brokers' clock, which is monotonic, and the wall clock.
        self.now_ms, self.wall_ms = self.environment.now_ms, self.environment.wall_ms
        options = plan.options()
        plan.listeners()
        if options.schema_registry_url:
            SchemaLookups(options).close()
        if options.zookeeper_connect:
            zookeeper_connection(options)
        self._locks = [self.environment.lock_directory(plan.data_dir)]
        self._die = die
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.counters = Counters()
        self.client_metrics = ClientMetrics(self.environment.threads(1, "ottla-telemetry"))
        self.brokers: list[RunningBroker] = []
        self.shells: dict[BrokerId, Shell] = {}
        self.disks: dict[str, Disk] = {}
        #: The cluster image at the start: its topic settings are those of log recovery.
        self._image = Image()
        self._descriptors = descriptors = self.environment.descriptors()
        directories = sum(len(plan.log_dirs(number)) for number in range(plan.brokers))
        self._descriptors_per_disk = max(process_plan.log_descriptors(descriptors) // directories, 16)
        self.sync_threads = self.environment.threads(options.num_io_threads, "ottla-sync")
        self._read_threads = self.environment.threads(options.num_io_threads, "ottla-read")
        self.authentication_threads = self.environment.threads(AUTHENTICATION_THREADS, "ottla-authentication")
        self.handshake_threads = self.environment.threads(HANDSHAKE_THREADS, "ottla-tls")
        self.handshake_steps = HandshakeSteps(self.handshake_threads, at_once=HANDSHAKE_THREADS + 1)
        self.connection_context = ConnectionContext(process_plan.limits(options, descriptors), self._read_threads)
        #: Quotas of connections in effect, by host.
        self._connection_quotas: dict[str, float] = {}
        #: CPU clock of the loop's thread; None where the system has none.
        self.loop_clock = time.pthread_getcpuclockid(threading.get_ident()) if hasattr(time, "pthread_getcpuclockid") else None
        self._resolve_hosts()

    def _log_start(self) -> None:
        """The version, and the settings that differ from their defaults, without secrets."""
        plan = self.plan
        fields = {
            "version": version("ottla"),
            "python": platform.python_version(),
            "pid": os.getpid(),
            "brokers": plan.brokers,
            "data_dir": str(plan.data_dir),
            "settings": without_secrets(process_plan.changed_settings(plan.texts)),
        }
        log.info("starting Ottla %s, data directory %s", fields["version"], plan.data_dir, extra={"fields": fields})

    async def start(self) -> list[Address]:
        """Starts serving; returns the address of each broker's first listener. ``stop`` must follow, also after an error.

        Raises: ConfigError, CannotStart.
        """
        began_s = time.monotonic()
        if path := self.plan.options().audit_log:
            try:
                self._audit_log = open_audit_log(path)
            except OSError as error:
                raise CannotStart(f"ottla.audit.log: cannot write to {path}: {error.strerror}; choose another file") from None
        self.store_factory = self.environment.store_factory(self.plan.options(), self.plan.data_dir, self.halt)
        session = await self._unless_stopped(self.store_factory.session())
        await self._unless_stopped(read_and_watch(session, "/", self._image.apply))
        # Before the cluster id is written into log directories, which then could not be used elsewhere.
        if refusal := refusal_beside_kafka(self._image, self.plan.options().zookeeper_connect) or why_not_supported(self._image.levels):
            session.close()
            raise CannotStart(refusal)
        self.cluster_id = await self._unless_stopped(cluster_id(session))
        if self.plan.users:
            await self._unless_stopped(store_users(session, self.plan.users, replace=False))
        session.close()
        for number in range(self.plan.brokers):
            await self._open_broker(self.store_factory, BoundBroker(self.plan, number, self._image))
        for broker in self.brokers:
            await self._unless_stopped(submit_and_wait(broker.session, Op("check", layout.BROKERS)))
        self._started = True
        for broker in self.brokers:
            broker.performer.measure()
            broker.shell.start()
        await self._readiness()
        if not self.plan.options().zookeeper_connect:
            self._warn_leaderless(self.brokers[0].node.context.image)
        for broker in self.brokers:
            if missing := broker.node.partitions.anew:
                roots = ", ".join(directory.root for directory in broker.directories)
                some = ", ".join(map(str, list(missing)[:5])) + (", ..." if len(missing) > 5 else "")
                log.warning("no log of %d partitions in %s, is a disk missing? They start empty: %s", len(missing), roots, some)
        for broker in self.brokers:
            broker.renewal.start()
            broker.log_listeners()
            for listener in broker.listeners.values():
                listener.start()
        # Only while serving: opening and closing logs may block the loop for long.
        self._watchdog = self.environment.watch_loop(self.counters)
        self._serving = True
        seconds = round(time.monotonic() - began_s, 3)
        log.info("ready: clients can connect", extra={"fields": {"seconds": seconds, "brokers": len(self.brokers)}})
        return [broker.address for broker in self.brokers]

    def figures(self) -> str:
        """Counters, and what clients use of their quotas, by broker."""
        quotas = {broker.id: [usage._asdict() for usage in broker.node.context.quotas.metrics()] for broker in self.brokers}
        used = {number: usages for number, usages in quotas.items() if usages}
        return f"{self.counters.snapshot()} {self.connection_context.traffic}" + (f" quotas: {used}" if used else "")

    def adopt(self, broker: RunningBroker) -> None:
        """Applies a broker's changed settings. Connections and threads are the process's: with several brokers, the last change applies."""
        options = broker.node.context.options
        self.sync_threads.resize(options.num_io_threads)
        self._read_threads.resize(options.num_io_threads)
        broker.performer.set_threads(options.num_io_threads)
        broker.performer.times.set_slow(options.request_slow_ms)
        for name, listener in broker.listeners.items():
            listener.set_limits(process_plan.listener_limits(broker.listener_options(name)))
        broker.renewal.look()
        found = process_plan.limits(options, self._descriptors)
        if found != self.connection_context.limits:
            self.connection_context.set_limits(found)
            self._resolve_hosts()

        quotas = broker.node.context.quotas.limits.connection_rates
        if quotas != self._connection_quotas:
            self._connection_quotas = dict(quotas)
            window = Window(options.quota_window_num, options.quota_window_size_seconds * SECOND_MS)
            self.connection_context.set_address_rates(quotas, window)
            if self._resolving_quotas is not None:
                self._resolving_quotas.cancel()
            self._resolving_quotas = asyncio.get_running_loop().create_task(self._resolve_quotas(self._connection_quotas, window))

    def set_log_levels(self, broker: RunningBroker, changed: Mapping[str, LogLevel | None]) -> None:
        """Sets levels of loggers of the process, which all its brokers share."""
        broker_log.set_levels(changed)
        for other in self.brokers:
            if other is not broker:
                asyncio.get_running_loop().call_soon(other.shell.handle, events.LogLevelsChanged(levels=broker_log.levels()))

    async def _resolve_quotas(self, quotas: Mapping[str, float], window: Window) -> None:
        """Resolves the hosts of quotas of connections; an address of its own has precedence."""
        rates: dict[str, float] = {}
        for host, rate in quotas.items():
            try:
                found = await asyncio.get_running_loop().getaddrinfo(host, None) if host else []
            except (OSError, UnicodeError) as error:
                log.warning("the quota of connections of %s has no effect: the host cannot be resolved: %s", host, error)
                continue
            rates |= {str(address[0]): rate for _, _, _, _, address in found}
        self.connection_context.set_address_rates(rates | dict(quotas), window)

    def _resolve_hosts(self) -> None:
        """Resolves the hosts of max.connections.per.ip.overrides, in the background."""
        overrides = self.connection_context.limits.connections_of_hosts
        if self._resolving is not None:
            self._resolving.cancel()
        self._resolving = asyncio.get_running_loop().create_task(self._resolved(overrides)) if overrides else None
        self.connection_context.host_limits = dict(overrides)

    async def _resolved(self, overrides: tuple[tuple[str, int], ...]) -> None:
        loop = asyncio.get_running_loop()
        for host, number in overrides:
            try:
                found = await loop.getaddrinfo(host, None)
            except OSError as error:
                log.warning("max.connections.per.ip.overrides: %s cannot be resolved: %s", host, error.strerror or error)
                continue
            for _, _, _, _, address in found:
                self.connection_context.host_limits[str(address[0])] = number

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``. Raises: StoppedWhileStarting when a stop is requested first, and what ``work`` raises."""
        task = asyncio.get_running_loop().create_task(work)
        await asyncio.wait((task, self._end), return_when=asyncio.FIRST_COMPLETED)
        if self.stopping:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                log.info("the result of a start step is dropped because a stop was requested")
            raise StoppedWhileStarting(STOPPED_WHILE_STARTING)
        return task.result()

    async def _open_broker(self, store_factory: StoreFactory, bound: BoundBroker) -> None:
        """Opens the logs in threads, and makes a broker that watches the store. Raises: CannotStart."""
        try:
            session = await self._unless_stopped(store_factory.session())
            # Last, so that opened logs always belong to a broker, which closes them.
            directories = await self._open_all(bound.settings)
        except BaseException:
            bound.close()
            raise
        broker = RunningBroker(self, bound, directories, session)
        self.brokers.append(broker)
        self.shells[broker.id] = broker.shell
        broker.watch()

    async def _readiness(self) -> None:
        deadline_s = time.monotonic() + READY_S
        warned_s = time.monotonic()
        while True:
            checked_s = time.monotonic()
            if all(broker.node.ready for broker in self.brokers):
                return
            # With thousands of partitions the check is slow; most of the time belongs to the elections themselves.
            pause_s = max(0.001, 5 * (time.monotonic() - checked_s))
            if self.stopping:
                raise StoppedWhileStarting(STOPPED_WHILE_STARTING)
            if not all(broker.node.context.connected for broker in self.brokers):
                deadline_s = time.monotonic() + READY_S
                warned_s = self._warn_waiting(warned_s)
            if time.monotonic() > deadline_s:
                raise CannotStart(f"the brokers do not lead their partitions after {READY_S:.0f} s")
            await asyncio.sleep(pause_s)

    @staticmethod
    def _warn_waiting(warned_s: float) -> float:
        """Warns every few seconds that the store is unreachable; returns the time of the last warning."""
        now_s = time.monotonic()
        if now_s - warned_s < WARN_EVERY_S:
            return warned_s
        log.warning("waiting for the coordination store, which the brokers cannot reach at the moment")
        return now_s

    def _warn_leaderless(self, image: Image) -> None:
        """Warns of partitions without a leader: an earlier start had brokers that this one does not have."""
        absent = Counter(
            broker
            for topic in image.topics.values()
            for number, replicas in topic.replicas.items()
            if topic.leader(number) == NO_LEADER
            for broker in replicas
        )
        if absent:
            brokers = ", ".join(f"broker {broker} ({count})" for broker, count in sorted(absent.items()))
            log.warning("partitions without a leader, since they are on brokers that do not run: %s; see --brokers, --broker-id", brokers)

    @property
    def stopping(self) -> bool:
        return self._end.done()

    @property
    def serving(self) -> bool:
        """Whether clients can connect."""
        return self._serving

    async def ended(self) -> int:
        """Waits for ``request_stop`` or ``halt``; returns the exit code."""
        return await self._end

    def request_stop(self) -> None:
        if not self._end.done():
            self._end.set_result(STOPPED)

    def halt(self, reason: str) -> None:
        """A broker, or the store, cannot continue."""
        log.critical("stopping: %s", reason)
        if not self._end.done():
            self._end.set_result(FAILED)

    async def stop(self) -> None:
        """Stops cleanly: all records, and the state that spares the next start a recovery, are on disk afterwards."""
        began_s = time.monotonic()
        await self._controlled_shutdown()
        for broker in self.brokers:
            for listener in broker.listeners.values():
                listener.stop_accepting()
            broker.performer.stop()
            broker.resolver.stop()
            broker.renewal.stop()
            if self._started:
                broker.shell.stop()
        await asyncio.gather(*(broker.performer.idle() for broker in self.brokers))
        await self._close_listeners(PATIENCE_S)
        if self._watchdog is not None:
            self._watchdog.stop()
        for broker in self.brokers:
            broker.close_logs()
        await self._release_all()
        log.info("stopped", extra={"fields": {"seconds": round(time.monotonic() - began_s, 3)}})

    async def abandon(self) -> None:
        """Ends as if the process were killed, except that system resources are released: nothing is answered, synced or marked clean."""
        for broker in self.brokers:
            broker.resolver.stop()
            broker.renewal.stop()
            broker.shell.abandon()
            broker.performer.stop()
            broker.session.close()
        await self._close_listeners(0)
        await asyncio.gather(*(broker.performer.idle() for broker in self.brokers))
        await self._release_all()

    async def _close_listeners(self, patience_s: float) -> None:
        every = [listener for broker in self.brokers for listener in broker.listeners.values()]
        await asyncio.gather(*(listener.close(patience_s=patience_s) for listener in every))

    async def _release_all(self) -> None:
        """Releases threads, timers and directory locks."""
        if self._watchdog is not None:
            self._watchdog.stop()
        for broker in self.brokers:
            await broker.peers.close()
        if self.store_factory is not None:
            await self.store_factory.close()
        for task in (self._resolving, self._resolving_quotas):
            if task is not None:
                task.cancel()
        self.connection_context.close()
        for broker in self.brokers:
            broker.performer.close()
        for threads in (self.sync_threads, self._read_threads, self.authentication_threads, self.handshake_threads):
            threads.shutdown()
        self.client_metrics.close()
        if self._audit_log is not None:
            close_audit_log(self._audit_log)
        for lock in self._locks:
            lock.release()

    async def _controlled_shutdown(self) -> None:
        """Lets brokers of other processes take over leadership first. Nothing to do when this process has all brokers of the cluster."""
        if not self._started or not self.stopping or self._end.result() != STOPPED:
            return
        if set(self.brokers[0].node.context.image.brokers) <= self.shells.keys():
            return
        for broker in self.brokers:
            broker.shell.handle(events.StopRequested())
        for broker in self.brokers:
            # The broker limits the time of its controlled shutdown.
            while not broker.node.controlled_shutdown.over:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def crash(self, shell: Shell, error: BaseException) -> NoReturn:
        """An internal error: writes the flight record and nothing else, and ends the process."""
        error = root_of(error)
        frame = traceback.extract_tb(error.__traceback__)[-1]
        try:
            record = str(self._record(shell, error))
        except OSError as failure:
            record = f"none: {failure}"
        where, what = f"{frame.filename}:{frame.lineno}", f"{type(error).__name__}: {error}"
        log.critical("internal error at %s: %s; flight record: %s", where, what, record)
        sys.stderr.flush()
        self._die(BROKEN)

    def _record(self, shell: Shell, error: BaseException) -> Path:
        """Raises: OSError."""
        node = shell.node
        return shell.recorder.write(self.plan.data_dir, broker_id=node.context.broker_id, settings=node.context.settings.texts, error=error)

    def record_request(self, shell: Shell, error: BaseException) -> Path:
        """Writes the flight record of a request that failed. Raises: OSError."""
        node = shell.node
        return shell.recorder.write_request(
            self.plan.data_dir, broker_id=node.context.broker_id, settings=node.context.settings.texts, error=error
        )

    async def _open_all(self, settings: Settings) -> list[LogDirectory]:
        """Opens a broker's log directories, each in a thread. Skips unusable directories if at least one is usable.

        Raises: CannotStart.
        """
        loop = asyncio.get_running_loop()
        opening = [loop.run_in_executor(self.sync_threads, self._open_logs, Path(path), settings) for path in settings.options.log_dirs]
        # A thread cannot be cancelled. It ends at the next log, and nothing else may use the directory until then.
        outcomes = await asyncio.gather(*opening, return_exceptions=True)
        opened: list[LogDirectory] = []
        refused: list[UnusableDirectory] = []
        for outcome in outcomes:
            if isinstance(outcome, UnusableDirectory):
                refused.append(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                opened.append(outcome)
        if not opened:
            raise refused[0]
        for directory in opened:
            self.environment.take_over(self.disks[directory.root])
        for refusal in refused:
            log.warning("%s; the broker starts without it", refusal)
        return opened

    def _check_not_stopped(self) -> None:
        """Raises: StoppedWhileStarting."""
        if self.stopping:
            raise StoppedWhileStarting(STOPPED_WHILE_STARTING)

    def _open_logs(self, path: Path, settings: Settings) -> LogDirectory:
        """Opens a log directory and recovers logs that were not closed cleanly. Runs in a thread. Raises: CannotStart."""
        broker_id = settings.options.broker_id

        def options_for(topic: str) -> TopicOptions:
            return topic_options(settings, self._image, topic, broker_id)

        open_logs = partial(
            open_in_threads,
            threads=broker_options(settings, self._image, broker_id).num_recovery_threads,
            check=self._check_not_stopped,
            pool=self.environment.threads,
        )

        if path.parent != self.plan.data_dir:
            self._locks.append(self.environment.lock_directory(path))
        try:
            disk = self.environment.disk(path, descriptors_max=self._descriptors_per_disk)
            directory = LogDirectory.open(
                disk,
                broker_id=broker_id,
                cluster_id=self.cluster_id,
                now_ms=self.wall_ms(),
                options_for=options_for,
                directory_id=secrets.token_bytes(16),
                open_logs=open_logs,
            )
        except OSError as error:
            raise UnusableDirectory(f"cannot open the log directory {path}: {error}") from None
        except LogError as error:
            raise CannotStart(f"cannot open the log directory {error}") from None
        self.disks[directory.root] = disk
        for partition, opened in directory.logs.items():
            if opened.recovered is not None and opened.recovered.lost_records:
                lost, root = opened.recovered.lost_records, directory.root
                log.warning("%s in %s lost %d records that were on disk: the medium has changed them", partition, root, lost)
        return directory


class Beside(NamedTuple):
    """What runs beside the brokers: the HTTP listener at an address, pushes to an OpenTelemetry collector, the console and the registry."""

    http: Address | None = None
    otlp: str | None = None
    sidecars: tuple[SidecarPlan, ...] = ()


async def serve(plan: ProcessPlan, ready: Callable[[list[Address]], None], beside: Beside = Beside()) -> int:
    """Runs until SIGTERM, SIGINT or a fatal failure; returns the exit code. Raises: ConfigError, CannotStart."""
    for one in beside.sidecars:
        check_sidecar(one, plan.listeners().endpoints)
    process = Process(plan)
    service = ServiceNotify.of_environment(os.environ)
    trimmer: Trimmer | None = None
    metrics: StartedMetrics | None = None
    sidecars: list[Sidecar] = []
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_on_stop_signal, process))
    loop.add_signal_handler(signal.SIGUSR1, lambda: broker_log.write_always(process.figures()))
    try:
        service.starting()
        # Before the start, which may take long: probes are answered meanwhile.
        metrics = start_metrics(process, http=beside.http, otlp=beside.otlp)
        try:
            addresses = await process.start()
        except StoppedWhileStarting:
            return await process.ended()
        freeze_memory()
        trimmer = start_trimmer(plan.options().memory_trim_interval_ms)
        ready(addresses)
        for one in beside.sidecars:
            started = await start_sidecar(one, bootstrap=process.brokers[0].plaintext_address, http=metrics.http)
            sidecars += [started] if started is not None else []
        service.ready(f"ready on {', '.join(map(address_text, addresses))}")
        return await process.ended()
    finally:
        service.stopping()
        for sidecar in sidecars:
            await sidecar.stop()
        if trimmer is not None:
            trimmer.stop()
        await process.stop()
        if metrics is not None:
            await asyncio.to_thread(metrics.stop)
        service.close()


def _on_stop_signal(process: Process) -> None:
    """The first signal stops cleanly, the second one at once."""
    if process.stopping:
        log.warning("stopping at once: a second signal arrived")
        os._exit(FAILED)
    log.info("stopping: a signal arrived")
    process.request_stop()


def freeze_memory() -> None:
    """Excludes the objects of the start from garbage collection, and collects the short-lived objects of requests less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
