"""A machine that runs one broker: the server's shell, performer and connections over a simulated disk, network and store.

::

    kill       the process ends; its writes stay in the page cache
    power cut  the process ends; the disk keeps part of the unsynced writes, possibly torn
    stop       the process ends cleanly, and the next start may trust the disk
    pause      input is queued for a while and then delivered at once

A broker that halts because its disk failed is replaced with a new process later, as an operator would do.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from ottla.base.ids import BrokerId, ConnectionId
from ottla.base.log_levels import LogLevel
from ottla.base.origin import Origin
from ottla.base.ports import NodeState, Op, StoreResult
from ottla.broker import effects, events
from ottla.broker.apis import HANDLERS
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.configs import Settings, topic_options
from ottla.broker.metadata.image import Image
from ottla.broker.node import Node
from ottla.broker.registration.peers import PEER
from ottla.log.directory import LogDirectory
from ottla.log.options import TopicOptions
from ottla.net.connection_context import AuthenticationLimits, ConnectionContext, Limits
from ottla.net.server_connection import PREFIX, Handler, ServerConnection
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.flusher import Plans
from ottla.server.metrics.counters import Counters
from ottla.server.performer import Performer
from ottla.server.shell import Shell
from ottla.sim.disk import SimDisk
from ottla.sim.event_loop import ProcessLoop
from ottla.sim.memory_environment import AtOnce, CleanersOnTheLoop
from ottla.sim.network import Connection
from ottla.sim.schema_registry import SimRegistry
from ottla.sim.transport import HostTransport
from ottla.sim.world import EPOCH_MS, World
from ottla.store import layout
from ottla.store.memory import MemorySession, MemoryStore
from ottla.wire import framing
from ottla.wire.compile import decode

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZXI"
#: Disk time that a step may take: reads and writes of the page cache, and no sync, which takes 2 ms.
STEP_DISK_MAX_MS = 1
#: CPU time of a step, for quotas of request time: always the same, so that a history can be repeated.
STEP_NS = 100_000
#: Little request memory, so that requests wait for it.
LIMITS = Limits(request_memory_bytes=16_384)


#: Longest delay of a request of a broker to itself.
PEER_MS = 3


def carried_frame(chunks: Sequence[Any]) -> bytearray:
    """A frame as it arrives, without its size."""
    return bytearray(b"".join(bytes(chunk) for chunk in chunks))[framing.SIZE_BYTES :]


#: Called with a broker after each step, its event and its effects.
Inspect = Callable[[Node, events.Event, list[effects.Effect]], None]


class MeteredNode(Node):
    """Reports the disk time of each step."""

    def __init__(self, context: BrokerContext, disk: SimDisk, report: Callable[[events.Event, int], None], inspect: Inspect) -> None:
        """``report`` gets the event and milliseconds, ``inspect`` the event and the effects."""
        super().__init__(context, HANDLERS)
        self._disk = disk
        self._report = report
        self._inspect = inspect

    def step(self, event: events.Event, now_ms: int) -> list[effects.Effect]:
        before_us = self._disk.work_us
        requested = super().step(event, now_ms)
        self._report(event, (self._disk.work_us - before_us) // 1000)
        self._inspect(self, event, requested)
        return requested


class SimulatedShell(Shell):
    """Reports each event after its effects were performed."""

    def __init__(self, *arguments: Any, handled: Callable[[events.Event], None], **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._handled = handled

    def handle(self, event: events.Event, frame: memoryview | None = None) -> None:
        super().handle(event, frame)
        self._handled(event)


class Worker:
    """Flushes one batch at a time, each after a delay."""

    def __init__(self, loop: ProcessLoop, disk_ms: Callable[[], int], act: Callable[[Plans], None]) -> None:
        self._loop = loop
        self._disk_ms = disk_ms
        self._act = act

    def put(self, batch: Plans) -> None:
        self._loop.after(self._disk_ms(), self._act, batch)

    def close(self) -> None: ...


class Process:
    """One process of a machine."""

    def __init__(self, machine: "Machine", directory: LogDirectory, settings: Settings) -> None:
        self.loop = loop = ProcessLoop(machine.world, thread_ms=machine.disk_ms)
        self.directory = directory
        self.session = machine.store.session()
        #: Whether it has read the store's state. Before that, its time is part of the start.
        self.started = False
        self._machine = machine
        self._disk_ms = machine.disk_ms
        self.node = MeteredNode(
            BrokerContext(
                broker_id=machine.broker_id,
                cluster_id=CLUSTER_ID,
                settings=settings,
                directories=[directory],
                rng=machine.world.rng(f"node {machine.incarnation}"),
                address=machine.address,
                now_ms=machine.world.now_ms,
                wall_ms=machine.wall_ms(),
            ),
            machine.disk,
            self._stepped,
            machine.inspects,
        )
        #: Open connections of clients.
        self.transports: dict[int, HostTransport] = {}
        with loop:
            self.context = ConnectionContext(LIMITS, AtOnce())
            self.performer = Performer(
                disks={directory.root: machine.disk},
                session=self,
                executor=AtOnce(),
                threads=1,
                flush_worker=lambda name, act: Worker(loop, machine.disk_ms, act),
                cleaners=CleanersOnTheLoop(self._rest),
                peers=self,
                counters=Counters(),
                halted=partial(machine.halt, self),
                crashed=loop.fail,
            )
            self.shell = SimulatedShell(
                self.node,
                self.performer,
                now_ms=lambda: machine.world.now_ms,
                wall_ms=machine.wall_ms,
                recorder=FlightRecorder(0),
                counters=Counters(),
                crashed=lambda shell, error: loop.fail(error),
                record=self._record,
                session=self,
                pause_max_ms=machine.pause_max_ms,
                handled=self._handled,
                spent_ns=count(0, STEP_NS).__next__,
            )
            #: Of the requests of clients.
            self.handler = machine.handler(self)
            self.performer.handle = self.shell.handle
            self.performer.schema_lookups = None if machine.registry is None else machine.registry.on(loop)
            self.performer.performers[effects.RequestFailed] = lambda effect: loop.fail(effect.error)
            self.performer.performers[effects.Log] = self._note
            self.performer.performers[effects.SetLogLevels] = self.performer.performers[effects.ReceiveTelemetry] = lambda effect: None

    def _note(self, effect: effects.Log) -> None:
        if effect.level >= LogLevel.INFO:
            self._machine.world.note(f"broker {self.node.context.broker_id}, {effect.level.name.lower()}: {effect.message}")

    def start(self) -> None:
        """Reads the store's state and starts the broker."""
        if self._machine.world.seed % 2 and self._machine.broker_id % 2:
            # Every request with a list takes turns of one element, so that faults come between them. Periodic tasks, too.
            self.node.context.turns.elements, self.node.context.turns.large_bytes = 1, -1
            self.node.periodic_tasks.piece = 1
        with self.loop:
            self.session.watch("/", lambda state: self.shell.handle(events.StoreChanged(state=state)))
            self.session.listen(lambda state: self.shell.handle(events.SessionChanged(state=state)))
            self.session.deliver()
            self.performer.measure()
            self.shell.start()
        self.started = True

    # What the shell and the performer use

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """The store, over the machine's link to it."""
        if not self.loop.ended:
            self._machine.submit(self, ops, done)

    def send(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """The other brokers of the cluster."""
        if not self.loop.ended:
            self._machine.send_to_peer(self, broker, message, version, answered)

    def _record(self, shell: Shell, error: BaseException) -> Path:
        """A request failed where a server would only log and record it."""
        self.loop.fail(error)

    async def _rest(self) -> None:
        """Between two steps of a compaction or a scrub, so that other events interleave."""
        await asyncio.sleep(self._disk_ms() / 1000)

    def _stepped(self, event: events.Event, spent_ms: int) -> None:
        if self.started:
            # The process does nothing else meanwhile.
            assert spent_ms <= STEP_DISK_MAX_MS, f"a step waited {spent_ms} ms for the disk: {type(event).__name__}"
            if spent_ms:
                self.loop.pause(spent_ms)

    def _handled(self, event: events.Event) -> None:
        if not self.loop.ended:
            self._machine.handled(event)

    # Connections

    def accept(self, connection: Connection) -> bool:
        with self.loop:
            if not self.context.admit("sim"):
                return False
            protocol = ServerConnection(ConnectionId(connection.number), Origin(host="sim"), self.context, self.handler)
            if self._machine.authentication is not None:
                protocol.limit_until_authenticated(self._machine.authentication)
            self.transports[connection.number] = HostTransport(
                self.loop, connection, protocol, self.context, address=self._machine.address, rng=self._machine.world.rng("pieces")
            )
        return True

    def receive(self, connection: Connection, frame: bytes | bytearray) -> None:
        transport = self.transports.get(connection.number)
        if transport is not None:
            self.loop.enter(lambda: transport.deliver(PREFIX.pack(len(frame)) + frame))

    def hung_up(self, connection: Connection) -> None:
        transport = self.transports.pop(connection.number, None)
        if transport is not None:
            transport.lose()

    def cut_connections(self) -> None:
        for transport in list(self.transports.values()):
            transport.close()

    def peer_request(self, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """A request of another broker arrives."""
        if self.loop.ended:
            answered(None)
        else:
            self.loop.call_soon(self.shell.handle_peer_request, message, version, answered)

    # The end

    def stop(self, now_ms: int, wall_ms: int) -> None:
        """Stops cleanly, unless it halts meanwhile. Raises: OSError."""
        with self.loop:
            self.performer.stop()
            self.shell.stop()
        self.loop.finish(self.performer.idle())
        if not self.loop.ended:
            marks = self.node.partitions.high_watermarks(self.directory)
            epoch, clean_since = self.node.context.epoch or -1, self.node.registration.clean_since
            carry_out = self.performer.flushers[self.directory.root].carry_out
            self.directory.close(marks, wall_ms, broker_epoch=epoch, clean_since=clean_since, carry_out=carry_out)

    def end(self) -> None:
        """Ends as after ``kill -9``."""
        self.loop.end()
        self.cut_connections()
        waiting, self.performer.peer_waits = self.performer.peer_waits, {}
        for answered in waiting.values():
            answered(None)


class Machine:
    """One machine, with the processes that run on it one after the other."""

    #: A process that handled no event for longer doubts its session; 0: never.
    pause_max_ms = 0

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        disk: SimDisk,
        texts: dict[str, str],
        *,
        broker_id: int = 1,
        epoch_ms: int = EPOCH_MS,
        address: tuple[str, int] = ("sim", 9092),
    ) -> None:
        """``epoch_ms`` is the wall clock at virtual time 0."""
        self.world = world
        self.store = store
        self.disk = disk
        self.broker_id = BrokerId(broker_id)
        self.address = address
        #: Faults change it: the wall clock jumps.
        self.epoch_ms = epoch_ms
        self.process: Process | None = None
        #: Number of the process.
        self.incarnation = 0
        self.halted = 0
        #: Each file operation off the event loop takes up to a second.
        self.slow_disk = False
        #: Set before the machine starts.
        self.inspects: Inspect = lambda node, event, requested: None
        #: The handler of a process's connections, and their limits until it has authenticated them, if it does.
        self.handler: Callable[[Process], Handler] = lambda process: process.shell
        self.authentication: AuthenticationLimits | None = None
        #: The schema registry, if there is one. Set before the machine starts.
        self.registry: SimRegistry | None = None
        #: Called before a process ends.
        self.last_look: Callable[[Node], None] = lambda node: None
        self._texts = texts
        self._rng = world.rng("machine")
        store.wake = self._store_delivers

    @property
    def node(self) -> Node | None:
        """The broker of the running process."""
        return None if self.process is None else self.process.node

    # Start and end of a process.

    def start(self) -> None:
        """Starts a new process with the present contents of disk and store."""
        assert self.process is None, "a machine runs one broker"
        self.incarnation += 1
        settings = Settings(self._texts)
        self.world.note(f"start {self.incarnation}")
        try:
            directory = LogDirectory.open(
                self.disk,
                broker_id=self.broker_id,
                cluster_id=CLUSTER_ID,
                now_ms=self.wall_ms(),
                options_for=lambda topic: self._options(settings, topic),
            )
        except OSError as error:
            self.world.note(f"start failed: {error}")
            self.world.after(500, self._restart)
            return
        self.process = Process(self, directory, settings)
        self.process.start()

    def kill(self) -> None:
        """Kills the process (kill -9)."""
        self._end("kill")
        self.disk = self.disk.restart()

    def power_cut(self) -> None:
        """Cuts the power: the process ends, and unsynced writes are lost in whole or in part."""
        self._end("power cut")
        self.disk = self.disk.crash(self.world.rng("disk"))

    def stop(self) -> None:
        """Stops the process cleanly."""
        process = self.process
        if process is None:
            return
        try:
            process.stop(self.world.now_ms, self.wall_ms())
        except OSError as error:
            self.world.note(f"stop was not clean: {error}")
        if self.process is process:
            self._end("stop")
            self.disk = self.disk.restart()

    def pause(self, duration_ms: int) -> None:
        """Sends SIGSTOP, and SIGCONT after a while."""
        self.world.note(f"pause {duration_ms}")
        if self.process is not None:
            self.process.loop.pause(duration_ms)

    def halt(self, process: Process, reason: str) -> None:
        """The broker cannot continue; an operator starts it again."""
        self.world.note(f"halt: {reason}")
        self.halted += 1
        if self.process is process:
            self._end("halt")
            self.disk = self.disk.restart()
            self.world.after(300, self._restart)

    def _end(self, how: str) -> None:
        process = self.process
        if process is None:
            return
        self.world.note(how)
        self.last_look(process.node)
        self.process = None
        self._close_session(process.session)
        process.end()

    def _close_session(self, session: MemorySession) -> None:
        session.close()

    def _restart(self) -> None:
        if self.process is None:
            self.start()

    # What its process uses.

    def handled(self, event: events.Event) -> None:
        """The broker has handled an event, and its effects are performed."""

    def submit(self, process: Process, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        process.session.submit(ops, done)

    def send_to_peer(self, process: Process, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request to another broker: of a single one, to itself."""
        assert broker == self.broker_id, f"a single broker sends no request to another: {message}"
        request = carried_frame(framing.encode_request(message, version, 0, PEER))

        def back(response: Any) -> None:
            frame = carried_frame(framing.encode_response(response, version, 0)) if response is not None else None
            received = framing.decode_response(type(response), frame, version)[1] if frame is not None else None
            self.world.after(self._rng.randint(0, PEER_MS), lambda: answered(received))

        def there() -> None:
            _, position = framing.decode_request_header(request)
            if self.process is process:
                process.peer_request(decode(type(message), request, version, position), version, back)

        self.world.after(self._rng.randint(0, PEER_MS), there)

    def _store_delivers(self, session: MemorySession) -> None:
        process = self.process
        if process is not None and session is process.session:
            process.loop.after(self._rng.randint(0, 3), self._deliver, session)

    def _deliver(self, session: MemorySession) -> None:
        session.deliver(1)

    def wall_ms(self) -> int:
        return self.epoch_ms + self.world.now_ms

    def disk_ms(self) -> int:
        """How long the next operation of a thread takes."""
        return self._rng.choice((200, 700, 1500) if self.slow_disk else (0, 1, 1, 2, 5, 40))

    def _options(self, settings: Settings, topic: str) -> TopicOptions:
        """Topic settings of the store, which a server reads before it opens its logs."""
        image = Image()
        path = layout.config("topics", topic)
        node = self.store.tree.nodes.get(path)
        if node is not None:
            image.apply(NodeState(path=path, data=node.data))
        return topic_options(settings, image, topic, self.broker_id)

    # Connections.

    def accept(self, connection: Connection) -> bool:
        return self.process is not None and self.process.accept(connection)

    def hung_up(self, connection: Connection) -> None:
        if self.process is not None:
            self.process.hung_up(connection)

    def receive(self, connection: Connection, frame: bytearray) -> None:
        if self.process is not None:
            self.process.receive(connection, frame)
