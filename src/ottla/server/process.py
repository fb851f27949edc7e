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
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from ottla.base.ids import BrokerId
from ottla.base.ports import Disk, NodeState, Op, SessionState, Store
from ottla.broker import events
from ottla.broker.isolation import root_of
from ottla.broker.metadata.configs import Settings, topic_options
from ottla.broker.metadata.image import NO_LEADER, Image
from ottla.broker.node import Node
from ottla.log.directory import LogDirectory
from ottla.log.errors import LogError
from ottla.log.options import TopicOptions
from ottla.net.connection_context import Commons
from ottla.net.listener import Listener
from ottla.server.addresses import Address
from ottla.server.data_directory import CannotStart, StoppedWhileStarting, UnusableDirectory
from ottla.server.environment import Ground, OperatingSystem, Watch
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.log_recovery import open_in_threads
from ottla.server.memory_trim import Trimmer, started
from ottla.server.metrics import Counters
from ottla.server.peer_requests import Peers
from ottla.server.performer import Performer
from ottla.server.process_plan import Bound, Plan, limits
from ottla.server.shell import Shell
from ottla.server.store_factory import TOLD_EVERY_S, Coordination, cluster_id, connection, read, submitted
from ottla.store import layout

#: Exit codes: stopped as asked, cannot go on, our own mistake (BSD's EX_SOFTWARE).
STOPPED, FAILED, BROKEN = 0, 1, 70
log = logging.getLogger("ottla.server")

T = TypeVar("T")
STOPPED_WHILE_STARTING = "stopped while starting"
#: How long a start waits for its brokers to lead what they should.
READY_S = 60.0
#: How long a stop waits for clients to take their last answers.
PATIENCE_S = 1.0


class Broker:
    """One broker and all that is its own."""

    def __init__(self, process: "Process", bound: Bound, directories: list[LogDirectory], session: Store) -> None:
        settings = bound.settings
        options = settings.options
        self.address = bound.address
        self.id = BrokerId(options.broker_id)
        self.directories = directories
        self.node = Node(
            broker_id=self.id,
            cluster_id=process.cluster_id,
            settings=settings,
            directories=self.directories,
            rng=random.Random(secrets.randbits(64)),
            address=bound.advertised,
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
            record=process.record_request,
            session=session,
            # The last sign of life may have been sent a third of the timeout before the pause.
            pause_max_ms=options.zookeeper_session_timeout_ms // 2 if options.zookeeper_connect else 0,
        )
        self.performer.hear = self.shell.hear
        self.listener = Listener(bound.socket, process.commons, process.ground.door(self.shell))
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
                    broker_epoch=self._epoch_at_stop(directory),
                    clean_since=node.standing.clean_since,
                    carry_out=self.performer.flushers[directory.root].carry_out,
                )
            except OSError as error:
                say(f"log directory {directory.root} was not left in order: {error}")

    def _epoch_at_stop(self, directory: LogDirectory) -> int:
        """The registration under which nothing was lost. One that stops while it starts adds nothing to what the last stop left."""
        if self.node.epoch is not None:
            return self.node.epoch
        return directory.last_broker_epoch if directory.clean_start and not self.node.started else -1


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
        session = await self._unless_stopped(self.coordination.session())
        self.cluster_id = await self._unless_stopped(cluster_id(session))
        await self._unless_stopped(read(session, "/", self._image.apply))
        session.close()
        for number, address in enumerate(self._listen):
            await self._open_broker(self.coordination, Bound(self.plan, number, address))
        for broker in self.brokers:
            await self._unless_stopped(submitted(broker.session, Op("check", layout.BROKERS)))
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

    async def _unless_stopped(self, work: Coroutine[Any, Any, T]) -> T:
        """What this gives, unless the process is asked to stop first. Raises: StoppedWhileStarting, and what ``work`` raises."""
        task = asyncio.get_running_loop().create_task(work)
        await asyncio.wait((task, self._end), return_when=asyncio.FIRST_COMPLETED)
        if self.stopping:
            task.cancel()
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None:
                log.info("a step of the start was done when the process was asked to stop")
            raise StoppedWhileStarting(STOPPED_WHILE_STARTING)
        return task.result()

    async def _open_broker(self, coordination: Coordination, bound: Bound) -> None:
        """Opens the logs, off the loop, and makes a broker that hears the store. Raises: CannotStart."""
        try:
            session = await self._unless_stopped(coordination.session())
            # Last: logs that were all opened belong to a broker, which leaves them in order.
            directories = await self._open_all(bound.settings)
        except BaseException:
            bound.socket.close()
            raise
        broker = Broker(self, bound, directories, session)
        self.brokers.append(broker)
        self.shells[broker.id] = broker.shell
        broker.watch()

    async def _readiness(self) -> None:
        deadline_s = time.monotonic() + READY_S
        told_s = time.monotonic()
        while True:
            looked_s = time.monotonic()
            if all(broker.node.ready for broker in self.brokers):
                return
            # Where there are thousands of partitions to look at, what they wait for has the most of the time.
            pause_s = max(0.001, 5 * (time.monotonic() - looked_s))
            if self.stopping:
                raise StoppedWhileStarting(STOPPED_WHILE_STARTING)
            if not all(broker.node.standing.connected for broker in self.brokers):
                deadline_s = time.monotonic() + READY_S
                told_s = self._tell_waiting(told_s)
            if time.monotonic() > deadline_s:
                raise CannotStart(f"the brokers do not lead their partitions after {READY_S:.0f} s")
            await asyncio.sleep(pause_s)

    @staticmethod
    def _tell_waiting(told_s: float) -> float:
        """Says every few seconds that the store is away; when that was said last."""
        now_s = time.monotonic()
        if now_s - told_s < TOLD_EVERY_S:
            return told_s
        log.warning("waiting for the coordination store, which the brokers cannot reach at the moment")
        return now_s

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
        error = root_of(error)
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

    def record_request(self, shell: Shell, error: BaseException) -> Path:
        """Writes the flight record of a request that failed. Raises: OSError."""
        node = shell.node
        return shell.recorder.write_request(self.plan.data_dir, broker_id=node.broker_id, settings=node.settings.texts, error=error)

    async def _open_all(self, settings: Settings) -> list[LogDirectory]:
        """Opens a broker's log directories, each in a thread; those that a disk refuses are left out, but not all of them.

        Raises: CannotStart.
        """
        loop = asyncio.get_running_loop()
        opening = [loop.run_in_executor(self.sync_threads, self._open_logs, Path(path), settings) for path in settings.options.log_dirs]
        # A thread cannot be cancelled: it ends by itself at the next log, and until then nobody else may use the directory.
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
            self.ground.take_over(self.disks[directory.root])
        for refusal in refused:
            log.warning("%s; the broker starts without it", refusal)
        return opened

    def _check_not_stopped(self) -> None:
        """Raises: StoppedWhileStarting."""
        if self.stopping:
            raise StoppedWhileStarting(STOPPED_WHILE_STARTING)

    def _open_logs(self, path: Path, settings: Settings) -> LogDirectory:
        """Opens a log directory and recovers what needs it. Runs in a thread. Raises: CannotStart."""
        broker_id = settings.options.broker_id

        def options_for(topic: str) -> TopicOptions:
            return topic_options(settings, self._image, topic, broker_id)

        open_logs = partial(
            open_in_threads, threads=settings.options.num_recovery_threads, check=self._check_not_stopped, pool=self.ground.threads
        )

        if path.parent != self.plan.data_dir:
            self._held.append(self.ground.hold(path))
        try:
            disk = self.ground.disk(path, descriptors_max=self._descriptors_per_disk)
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
        for partition, held in directory.logs.items():
            if held.recovered is not None and held.recovered.lost_records:
                lost, root = held.recovered.lost_records, directory.root
                log.warning("%s in %s lost %d records that were on disk: the medium has changed them", partition, root, lost)
        return directory


def say(line: str) -> None:
    print(f"ottla: {line}", file=sys.stderr, flush=True)


async def serve(plan: Plan, ready: Callable[[list[Address]], None]) -> int:
    """Runs until SIGTERM or SIGINT, or until it cannot go on; the exit code. Raises: ConfigError, CannotStart."""
    process = Process(plan)
    trimmer: Trimmer | None = None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, partial(_asked_to_stop, process))
    loop.add_signal_handler(signal.SIGUSR1, lambda: say(f"{process.counters.snapshot()} {process.commons.traffic}"))
    try:
        try:
            addresses = await process.start()
        except StoppedWhileStarting:
            return await process.ended()
        settle_memory()
        trimmer = started(plan.options().memory_trim_interval_ms)
        ready(addresses)
        return await process.ended()
    finally:
        if trimmer is not None:
            trimmer.stop()
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
