"""One process: its directory, its store, its brokers, from the first file to a clean stop.

::

    DIR/.lock                       held while a process uses the directory
    DIR/meta/ottla-store.sqlite     the coordination store, where it is not ZooKeeper
    DIR/broker-N/                   log directory of broker N, unless log.dirs says otherwise
    DIR/flight-*.jsonl              records of failures

A start opens the store (``coordination.py``), binds the sockets, opens the logs, lets the brokers hear what the store holds, registers
them, and accepts connections when each of them leads what it should. A stop goes the other way: brokers of
other processes take over, no new connections, waiting requests answered, everything on disk, marked as left in order.
"""

import asyncio
import gc
import logging
import os
import random
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from ottla.base.ids import BrokerId
from ottla.base.options import ConfigError
from ottla.base.ports import Disk, NodeState, Op, SessionState, Store
from ottla.broker import events
from ottla.broker.configs import ServerOptions, Settings, topic_options
from ottla.broker.image import NO_LEADER, Image
from ottla.broker.node import Node
from ottla.log.directory import LogDirectory
from ottla.log.errors import LogError
from ottla.net.commons import DUPLICATES_MAX, Commons, Limits
from ottla.net.listener import Listener, bound_socket
from ottla.server.addresses import Address, address_text, listener_text, only_listener
from ottla.server.coordination import Coordination, cluster_id, connection, read, submitted
from ottla.server.directory import CannotStart, UnusableDirectory
from ottla.server.ground import Ground, OperatingSystem, Watch
from ottla.server.observe import Counters
from ottla.server.peers import Peers
from ottla.server.perform import Performer
from ottla.server.recorder import FlightRecorder
from ottla.server.shell import Shell
from ottla.store import layout

#: Exit codes: stopped as asked, cannot go on, our own mistake (BSD's EX_SOFTWARE).
STOPPED, FAILED, BROKEN = 0, 1, 70
log = logging.getLogger("ottla.server")

#: How long a start waits for its brokers to lead what they should.
READY_S = 60.0
#: How long a stop waits for clients to take their last answers.
PATIENCE_S = 1.0
#: Descriptors kept for everything that is neither a connection nor a log file.
SPARE_DESCRIPTORS = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run. ``texts`` are settings by Kafka's names; those of one broker are made from them."""

    data_dir: Path
    texts: dict[str, str] = field(default_factory=dict)
    brokers: int = 1

    def options(self) -> ServerOptions:
        """Those that hold for the whole process. Raises: ConfigError."""
        return Settings(self.texts).options

    def listen(self) -> list[Address]:
        """Where each broker listens: on ports in a row, or each on a free one. Raises: ConfigError."""
        host, port = only_listener(self.options().listeners, name="listeners")
        if port and port + self.brokers > 65536:
            raise ConfigError("listeners", f"{self.brokers} brokers from port {port} on need ports above 65535")
        return [(host, port + number if port else 0) for number in range(self.brokers)]

    def broker_texts(self, number: int, address: Address) -> dict[str, str]:
        """Settings of the ``number``-th broker, which listens at ``address``. Raises: ConfigError."""
        options = self.options()
        texts = {**self.texts, "broker.id": str(options.broker_id + number), "listeners": listener_text(address)}
        texts["log.dirs"] = ",".join(map(str, self.log_dirs(number)))
        if options.advertised_listeners:
            host, port = only_listener(options.advertised_listeners, name="advertised.listeners")
            texts["advertised.listeners"] = listener_text((host, port + number if port else address[1]))
        return texts

    def log_dirs(self, number: int) -> list[Path]:
        options = self.options()
        name = f"broker-{options.broker_id + number}"
        if not options.log_dirs:
            return [self.data_dir / name]
        return [Path(path) / name if self.brokers > 1 else Path(path) for path in options.log_dirs]


class Broker:
    """One broker and all that is its own."""

    def __init__(self, process: "Process", number: int, address: Address, session: Store) -> None:
        """Raises: ConfigError, CannotStart."""
        plan = process.plan
        try:
            self.socket = bound_socket(*address)
        except OSError as error:
            reason = error.strerror or str(error)
            raise CannotStart(f"cannot listen on {address_text(address)}: {reason}; choose another --listen HOST:PORT") from None
        try:
            #: Where it listens, and where it says it does.
            self.address: Address = (address[0] or "0.0.0.0", self.socket.getsockname()[1])
            settings = Settings(plan.broker_texts(number, self.address))
            options = settings.options
            told = options.advertised_listeners
            advertised = only_listener(told, name="advertised.listeners") if told else self.address
            self.id = BrokerId(options.broker_id)
            self.directories = process.open_all(options.log_dirs, settings)
        except BaseException:
            self.socket.close()
            raise
        self.node = Node(
            broker_id=self.id,
            cluster_id=process.cluster_id,
            settings=settings,
            directories=self.directories,
            rng=random.Random(secrets.randbits(64)),
            address=advertised,
            now_ms=process.now_ms(),
            wall_ms=process.wall_ms(),
        )
        self.session = session
        self.peers = Peers(process.shells, self._registered_address)
        self.performer = Performer(
            disks={directory.root: process.disks[directory.root] for directory in self.directories},
            session=self.session,
            executor=process.sync_threads,
            threads=process.ground.lanes(options.num_io_threads),
            cleaners=process.ground.cleaners(process.counters),
            peers=self.peers,
            counters=process.counters,
            halted=process.halt,
            crashed=lambda error: process.crash(self.shell, error),
        )
        self.shell = Shell(
            self.node,
            self.performer,
            now_ms=process.now_ms,
            wall_ms=process.wall_ms,
            recorder=FlightRecorder(options.recorder_bytes),
            counters=process.counters,
            crashed=process.crash,
            session=session,
            # The last sign of life may have been sent a third of the timeout before the pause.
            pause_max_ms=options.zookeeper_session_timeout_ms // 2 if options.zookeeper_connect else 0,
        )
        self.performer.hear = self.shell.hear
        self.listener = Listener(self.socket, process.commons, process.ground.door(self.shell))
        self._wall_ms = process.wall_ms

    def watch(self) -> None:
        """Hear the store, beginning with its present state."""
        self.session.watch("/", self._changed)
        self.session.listen(self._session_changed)

    def _changed(self, state: NodeState) -> None:
        self.shell.hear(events.StoreChanged(state=state))

    def _session_changed(self, state: SessionState) -> None:
        self.shell.hear(events.SessionChanged(state=state))

    def _registered_address(self, broker: BrokerId) -> Address | None:
        found = self.node.image.brokers.get(broker)
        return None if found is None else (found.host, found.port)

    def close_logs(self) -> None:
        """Leaves the log directories in order, but those that failed."""
        node = self.node
        for directory in self.directories:
            try:
                directory.close(
                    node.partitions.high_watermarks(directory),
                    self._wall_ms(),
                    broker_epoch=node.epoch if node.epoch is not None else -1,
                    clean_since=node.standing.clean_since,
                    carry_out=self.performer.flushers[directory.root].carry_out,
                )
            except OSError as error:
                say(f"log directory {directory.root} was not left in order: {error}")


class Process:
    """All brokers of a process, and what they share. Made and used on one loop."""

    cluster_id: str

    def __init__(self, plan: Plan, *, die: Callable[[int], NoReturn] = os._exit, ground: Ground | None = None) -> None:
        """Takes the data directory; ``start`` opens what is in it. ``die`` ends the process after a mistake of our own.

        Raises: ConfigError, CannotStart.
        """
        self.plan = plan
        #: Clocks, disks, the store and threads.
        self.ground: Ground = ground or OperatingSystem()
        #: The brokers' time, from the start of the process on, never back; and the calendar's.
        self.now_ms, self.wall_ms = self.ground.now_ms, self.ground.wall_ms
        options = plan.options()
        self._listen = plan.listen()
        if options.zookeeper_connect:
            connection(options)
        self.coordination: Coordination | None = None
        self._held = [self.ground.hold(plan.data_dir)]
        self._die = die
        self._started = False
        self._end: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.counters = Counters()
        self._watchdog: Watch | None = None
        self.brokers: list[Broker] = []
        self.shells: dict[BrokerId, Shell] = {}
        self.disks: dict[str, Disk] = {}
        #: What the store held when it was opened: the settings that logs are recovered with.
        self._image = Image()
        descriptors = self.ground.descriptors()
        self._descriptors_per_disk = max(descriptors // 2 // sum(len(plan.log_dirs(n)) for n in range(plan.brokers)), 16)
        self.sync_threads = self.ground.threads(options.num_io_threads, "ottla-sync")
        self._read_threads = self.ground.threads(options.num_io_threads, "ottla-read")
        self.commons = Commons(limits(options, descriptors), self._read_threads)

    async def start(self) -> list[Address]:
        """Opens everything and serves; returns where. To be followed by ``stop``, whatever it raises: ConfigError, CannotStart."""
        self.coordination = self.ground.coordination(self.plan.options(), self.plan.data_dir, self.halt)
        session = await self.coordination.session()
        self.cluster_id = await cluster_id(session)
        await read(session, "/", self._image.apply)
        session.close()
        for number, address in enumerate(self._listen):
            broker = Broker(self, number, address, await self.coordination.session())
            self.brokers.append(broker)
            self.shells[broker.id] = broker.shell
            broker.watch()
        for broker in self.brokers:
            await submitted(broker.session, Op("check", layout.BROKERS))
        self._started = True
        for broker in self.brokers:
            broker.performer.measure()
            broker.shell.start()
        await self._readiness()
        if not self.plan.options().zookeeper_connect:
            self._tell_absent(self.brokers[0].node.image)
        for broker in self.brokers:
            if anew := broker.node.partitions.anew:
                where = ", ".join(directory.root for directory in broker.directories)
                some = ", ".join(map(str, list(anew)[:5])) + (", ..." if len(anew) > 5 else "")
                log.warning("no log of %d partitions in %s, is a disk missing? They begin anew, empty: %s", len(anew), where, some)
        for broker in self.brokers:
            broker.listener.start()
        # Opening and closing logs may take the loop long, and nobody waits for it then.
        self._watchdog = self.ground.watch(self.counters)
        return [broker.address for broker in self.brokers]

    async def _readiness(self) -> None:
        deadline_s = time.monotonic() + READY_S
        while True:
            looked_s = time.monotonic()
            if all(broker.node.ready for broker in self.brokers):
                return
            # Where there are thousands of partitions to look at, what they wait for has the most of the time.
            pause_s = max(0.001, 5 * (time.monotonic() - looked_s))
            if self.stopping:
                raise CannotStart("stopped while starting")
            if time.monotonic() > deadline_s:
                raise CannotStart(f"the brokers do not lead their partitions after {READY_S:.0f} s")
            await asyncio.sleep(pause_s)

    def _tell_absent(self, image: Image) -> None:
        """Partitions that nobody can lead: an earlier start had brokers that this one has not."""
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

    async def ended(self) -> int:
        """Waits until ``stop_soon`` or ``halt``; the exit code."""
        return await self._end

    def stop_soon(self) -> None:
        if not self._end.done():
            self._end.set_result(STOPPED)

    def halt(self, reason: str) -> None:
        """A broker, or the store, cannot go on."""
        say(f"stopping: {reason}")
        if not self._end.done():
            self._end.set_result(FAILED)

    async def stop(self) -> None:
        """Stops in order; everything acknowledged, and all that the next start would have to find out, is on disk."""
        await self._hand_over()
        for broker in self.brokers:
            broker.listener.stop_accepting()
            broker.performer.stop()
            if self._started:
                broker.shell.stop()
        await asyncio.gather(*(broker.performer.idle() for broker in self.brokers))
        await asyncio.gather(*(broker.listener.close(patience_s=PATIENCE_S) for broker in self.brokers))
        if self._watchdog is not None:
            self._watchdog.stop()
        for broker in self.brokers:
            broker.close_logs()
        await self._let_go()

    async def abandon(self) -> None:
        """Ends as if the process were killed, but for what a process holds of the system: nothing is answered, synced or left in order."""
        for broker in self.brokers:
            broker.shell.forsake()
            broker.performer.stop()
            broker.session.close()
        await asyncio.gather(*(broker.listener.close(patience_s=0) for broker in self.brokers))
        await asyncio.gather(*(broker.performer.idle() for broker in self.brokers))
        await self._let_go()

    async def _let_go(self) -> None:
        """Gives back threads, timers, and what the process held."""
        if self._watchdog is not None:
            self._watchdog.stop()
        for broker in self.brokers:
            await broker.peers.close()
        if self.coordination is not None:
            await self.coordination.close()
        self.commons.close()
        for broker in self.brokers:
            broker.performer.close()
        self.sync_threads.shutdown()
        self._read_threads.shutdown()
        for held in self._held:
            held.release()

    async def _hand_over(self) -> None:
        """Brokers of other processes take over first; nobody is left to when all brokers of the cluster are in this one."""
        if not self._started or not self.stopping or self._end.result() != STOPPED:
            return
        if set(self.brokers[0].node.image.brokers) <= self.shells.keys():
            return
        for broker in self.brokers:
            broker.shell.hear(events.StopAsked())
        for broker in self.brokers:
            # Ends by itself: the broker's patience is limited.
            while not broker.node.leaving.over:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    def crash(self, shell: Shell, error: BaseException) -> NoReturn:
        """A promise of our own is broken: nothing more is written but the flight record."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        try:
            record = str(self._record(shell, error))
        except OSError as failure:
            record = f"none: {failure}"
        say(f"internal error at {frame.filename}:{frame.lineno}: {type(error).__name__}: {error}; flight record: {record}")
        sys.stderr.flush()
        self._die(BROKEN)

    def _record(self, shell: Shell, error: BaseException) -> Path:
        """Raises: OSError."""
        node = shell.node
        return shell.recorder.write(self.plan.data_dir, broker_id=node.broker_id, settings=node.settings.texts, error=error)

    def open_all(self, paths: Sequence[str], settings: Settings) -> list[LogDirectory]:
        """Opens a broker's log directories; those that a disk refuses are left out, but not all of them. Raises: CannotStart."""
        opened: list[LogDirectory] = []
        refused: list[UnusableDirectory] = []
        for path in paths:
            try:
                opened.append(self.open_logs(Path(path), settings))
            except UnusableDirectory as error:
                refused.append(error)
        if not opened:
            raise refused[0]
        for refusal in refused:
            log.warning("%s; the broker starts without it", refusal)
        return opened

    def open_logs(self, path: Path, settings: Settings) -> LogDirectory:
        """Opens a log directory and recovers what needs it. Raises: CannotStart."""
        broker_id = settings.options.broker_id
        if path.parent != self.plan.data_dir:
            self._held.append(self.ground.hold(path))
        try:
            disk = self.ground.disk(path, descriptors_max=self._descriptors_per_disk)
            directory = LogDirectory.open(
                disk,
                broker_id=broker_id,
                cluster_id=self.cluster_id,
                now_ms=self.wall_ms(),
                options_for=lambda topic: topic_options(settings, self._image, topic, broker_id),
                directory_id=secrets.token_bytes(16),
            )
        except OSError as error:
            raise UnusableDirectory(f"cannot open the log directory {path}: {error}") from None
        except LogError as error:
            raise CannotStart(f"cannot open the log directory {path}: {error}") from None
        self.disks[directory.root] = disk
        for partition, held in directory.logs.items():
            if held.recovered is not None and held.recovered.lost_records:
                lost, root = held.recovered.lost_records, directory.root
                log.warning("%s in %s lost %d records that were on disk: the medium has changed them", partition, root, lost)
        return directory


def limits(options: ServerOptions, descriptors: int) -> Limits:
    """What the options allow; of connections, no more than there are descriptors for, beside those of log files."""
    return Limits(
        frame_bytes_max=options.socket_request_max_bytes,
        first_frame_bytes_max=min(options.first_request_max_bytes, options.socket_request_max_bytes),
        request_memory_bytes=options.queued_max_request_bytes,
        connections_max=min(options.max_connections, max(descriptors // 2 - DUPLICATES_MAX - SPARE_DESCRIPTORS, 16)),
        connections_per_host_max=options.max_connections_per_ip,
        idle_ms=options.connections_max_idle_ms,
        read_timeout_ms=options.request_read_timeout_ms,
        write_buffer_bytes_max=options.write_buffer_max_bytes,
        write_timeout_ms=options.write_timeout_ms,
    )


def say(line: str) -> None:
    print(f"ottla: {line}", file=sys.stderr, flush=True)


async def serve(plan: Plan, ready: Callable[[list[Address]], None]) -> int:
    """Runs until SIGTERM or SIGINT, or until it cannot go on; the exit code. Raises: ConfigError, CannotStart."""
    process = Process(plan)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_asked_to_stop, process))
    loop.add_signal_handler(signal.SIGUSR1, lambda: say(f"{process.counters.snapshot()} {process.commons.traffic}"))
    try:
        addresses = await process.start()
        settle_memory()
        ready(addresses)
        return await process.ended()
    finally:
        await process.stop()


def _asked_to_stop(process: Process) -> None:
    """The second time, at once."""
    if process.stopping:
        os._exit(FAILED)
    process.stop_soon()


def settle_memory() -> None:
    """What the start made stays for good: the collector need not look at it again, nor look often at what requests make."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
