"""A machine that runs one broker: the simulator's shell. It performs effects after delays.

::

    kill       the process ends; its writes stay in the page cache
    power cut  the process ends; the disk keeps part of the unsynced writes, possibly torn
    stop       the process ends cleanly, and the next start may trust the disk
    pause      input is queued for a while and then delivered at once

A broker that halts because its disk failed is replaced with a new process later, as an operator would do.
"""

from collections import deque
from collections.abc import Callable, Iterator
from errno import ENOSPC
from functools import partial
from typing import Any

from ottla.base.ids import ConnectionId, TopicPartition
from ottla.base.ports import NodeState, StoreResult
from ottla.broker import effects, events
from ottla.broker.apis import HANDLERS
from ottla.broker.context import BrokerContext
from ottla.broker.metadata.configs import Settings, topic_options
from ottla.broker.metadata.image import Image
from ottla.broker.node import Node
from ottla.log import scrub
from ottla.log.compactor import CompactionResult, carry_out
from ottla.log.directory import LogDirectory
from ottla.log.errors import CorruptLog
from ottla.log.flush import FlushPlan, Slice
from ottla.log.options import TopicOptions
from ottla.log.scrub import ScrubResult
from ottla.sim.disk import SimDisk
from ottla.sim.network import Connection
from ottla.sim.world import EPOCH_MS, Gate, World
from ottla.store import layout
from ottla.store.memory import MemorySession, MemoryStore
from ottla.wire import framing
from ottla.wire.compile import decode
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import UnsupportedVersion
from ottla.wire.messages import API

CLUSTER_ID = "c2ltdWxhdGVkLWNsdXN0ZXI"
TICK_MS = 100
#: Interval at which free disk space is reported if it did not change.
MEASURED_MS = 1_000
#: Disk time that a step may take: reads and writes of the page cache, and no sync, which takes 2 ms.
STEP_DISK_MAX_MS = 1
PRODUCE = b"\0\0"
PRODUCES_IN_WORK = 5


class Performer:
    """The shell's promises to the broker, one method each, so that a test can break one and expect the checkers to notice."""

    def flush(self, disk: SimDisk, plan: FlushPlan) -> None:
        """Syncs everything in the plan. Raises OSError."""
        plan.carry_out(disk)

    def clean(self, disk: SimDisk, effect: effects.Clean) -> Iterator[int | CompactionResult]:
        """Writes the compacted segments and syncs them before it reports success."""
        return carry_out(disk, effect.plan)

    def scrub(self, disk: SimDisk, effect: effects.Scrub) -> Iterator[int | ScrubResult]:
        """Compares a segment with its checksums."""
        return scrub.carry_out(disk, effect.plan)

    def doubt_session(self, doubt: Callable[[], None]) -> None:
        """After a long stall, the session is checked before other input is delivered."""
        doubt()

    def flush_failed(self, machine: "Machine", partition: TopicPartition, plan: FlushPlan, error: OSError) -> None:
        """A failed flush is not retried."""
        machine.handle(events.DirectoryFailed(directory=machine.disk.root, reason=str(error)))


class Machine:
    """One machine, with the processes that run on it one after the other."""

    def __init__(
        self,
        world: World,
        store: MemoryStore,
        disk: SimDisk,
        texts: dict[str, str],
        performer: Performer | None = None,
        *,
        broker_id: int = 1,
        epoch_ms: int = EPOCH_MS,
        address: tuple[str, int] = ("sim", 9092),
    ) -> None:
        """``epoch_ms`` is the wall clock at virtual time 0."""
        self.world = world
        self.store = store
        self.disk = disk
        self.performer = performer or Performer()
        self._texts = texts
        self._broker_id = broker_id
        self._address = address
        #: Faults change it: the wall clock jumps.
        self.epoch_ms = epoch_ms
        self._rng = world.rng("machine")
        self.node: Node | None = None
        self._directory: LogDirectory | None = None
        self._session: MemorySession | None = None
        #: Number of the process. Actions scheduled by an earlier process do not run.
        self.incarnation = 0
        #: The last process that has read the store's state. Before that, its time is part of the start.
        self._started = 0
        self._connections: dict[int, Connection] = {}
        #: Received frames of a connection that wait for requests in progress.
        self._queued: dict[int, deque[bytearray]] = {}
        #: Requests in progress, by connection and ticket, with the response if it waits for its turn; b"" for no response.
        self._in_work: dict[int, dict[int, bytes | None]] = {}
        self._tickets = 0
        #: Whether the requests in progress of a connection are Produce requests.
        self._producing: dict[int, bool] = {}
        self._gate = Gate(world)
        #: Free and total bytes last reported to the broker, and when.
        self._space = (-1, -1)
        self._measured_ms = 0
        self._hands = self._table()
        self.halted = 0
        #: Log directory changes that wait for earlier ones.
        self._changes: deque[Callable[[], None]] = deque()
        #: When the last of them is carried out.
        self._turn_ms = 0
        #: Delays of these changes, from a stream of their own so that other histories do not change.
        self._changes_rng = world.rng("log files")
        #: Each file operation off the event loop takes up to a second.
        self.slow_disk = False
        #: Called before a process ends.
        self.last_look: Callable[[Node], None] = lambda node: None
        store.wake = self._store_speaks

    # Start and end of a process.

    def start(self) -> None:
        """Starts a new process with the present contents of disk and store."""
        assert self.node is None, "a machine runs one broker"
        self.incarnation += 1
        settings = Settings(self._texts)
        self.world.note(f"start {self.incarnation}")
        try:
            directory = LogDirectory.open(
                self.disk,
                broker_id=self._broker_id,
                cluster_id=CLUSTER_ID,
                now_ms=self._wall_ms(),
                options_for=lambda topic: self._options(settings, topic),
            )
        except OSError as error:
            self.world.note(f"start failed: {error}")
            self.world.after(500, self._restart)
            return
        self._directory = directory
        self._space = (-1, -1)
        self.node = Node(
            BrokerContext(
                broker_id=self._broker_id,
                cluster_id=CLUSTER_ID,
                settings=settings,
                directories=[directory],
                rng=self.world.rng(f"node {self.incarnation}"),
                address=self._address,
                now_ms=self.world.now_ms,
                wall_ms=self._wall_ms(),
            ),
            HANDLERS,
        )
        self._session = self.store.session()
        incarnation = self.incarnation
        self._session.watch("/", lambda state: self._if_alive(incarnation, lambda: self.handle(events.StoreChanged(state=state))))
        self._session.listen(lambda state: self._if_alive(incarnation, lambda: self.handle(events.SessionChanged(state=state))))
        self._session.deliver()
        self._perform(self.node.start(self.world.now_ms))
        self._started = incarnation
        self._tick(incarnation)

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
        if self.node is None or self._directory is None:
            return
        directory, node = self._directory, self.node
        marks = node.partitions.high_watermarks(directory)
        self._perform(node.stop(self.world.now_ms))
        while self._changes and self.node is node:
            # A process that stops waits for the work of its threads.
            self._changes.popleft()()
        if self.node is node:
            try:
                directory.close(marks, self._wall_ms(), broker_epoch=node.context.epoch or -1, clean_since=node.registration.clean_since)
            except OSError as error:
                self.world.note(f"stop was not clean: {error}")
            self._end("stop")
            self.disk = self.disk.restart()

    def pause(self, duration_ms: int) -> None:
        """Sends SIGSTOP, and SIGCONT after a while."""
        self.world.note(f"pause {duration_ms}")
        self._gate.shut(duration_ms)

    def _end(self, how: str) -> None:
        if self.node is None:
            return
        self.world.note(how)
        self.last_look(self.node)
        self.node = None
        self._directory = None
        self._changes.clear()
        self._turn_ms = 0
        if self._session is not None:
            self._session.close()
        for connection in list(self._connections.values()):
            connection.break_off()

    def _restart(self) -> None:
        if self.node is None:
            self.start()

    # Events.

    def handle(self, event: events.Event) -> None:
        """Delivers an event to the broker and performs the effects."""
        if self.node is None:
            return
        assert self._directory is not None, "a broker has a directory"
        before_us = self.disk.work_us
        asked = self.node.step(event, self.world.now_ms)
        if self._started == self.incarnation:
            # The process does nothing else meanwhile.
            spent_ms = (self.disk.work_us - before_us) // 1000
            assert spent_ms <= STEP_DISK_MAX_MS, f"a step waited {spent_ms} ms for the disk: {type(event).__name__}"
            if spent_ms:
                self._gate.shut(spent_ms)
        self._perform(asked)

    def _if_alive(self, incarnation: int, act: Callable[[], None]) -> None:
        if self._gate.open:
            self._do_if_alive(incarnation, act)
        else:
            self._gate.enter(partial(self._do_if_alive, incarnation, act))

    def _do_if_alive(self, incarnation: int, act: Callable[[], None]) -> None:
        if self.node is not None and incarnation == self.incarnation:
            act()

    def _later(self, delay_ms: int, act: Callable[[], None]) -> None:
        self.world.after(delay_ms, partial(self._if_alive, self.incarnation, act))

    def _tick(self, incarnation: int) -> None:
        space = self.disk.free_bytes(), self.disk.total_bytes()
        if space != self._space or self.world.now_ms >= self._measured_ms + MEASURED_MS:
            self._space, self._measured_ms = space, self.world.now_ms
            self.handle(events.SpaceMeasured(directory=self.disk.root, free_bytes=space[0], total_bytes=space[1]))
        self.handle(events.Ticked(wall_ms=self._wall_ms()))
        self._later(TICK_MS, lambda: self._tick(incarnation))

    def _store_speaks(self, session: MemorySession) -> None:
        if session is self._session:
            self._later(self._rng.randint(0, 3), lambda: self._deliver(session))

    def _deliver(self, session: MemorySession) -> None:
        if session is self._session:
            session.deliver(1)

    def _wall_ms(self) -> int:
        return self.epoch_ms + self.world.now_ms

    def _options(self, settings: Settings, topic: str) -> TopicOptions:
        """Topic settings of the store, which a server reads before it opens its logs."""
        image = Image()
        path = layout.config("topics", topic)
        node = self.store.tree.nodes.get(path)
        if node is not None:
            image.apply(NodeState(path=path, data=node.data))
        return topic_options(settings, image, topic, self._broker_id)

    # Connections.

    def accept(self, connection: Connection) -> bool:
        if self.node is None:
            return False
        self._connections[connection.number] = connection
        return True

    def hung_up(self, connection: Connection) -> None:
        self._connections.pop(connection.number, None)
        self._queued.pop(connection.number, None)
        self._in_work.pop(connection.number, None)
        self._producing.pop(connection.number, None)
        number = connection.number
        self._later(0, lambda: self.handle(events.ConnectionClosed(connection=ConnectionId(number))))

    def receive(self, connection: Connection, frame: bytearray) -> None:
        self._queued.setdefault(connection.number, deque()).append(frame)
        self._take_next(connection.number)

    def _request(self, connection: Connection, frame: bytearray, ticket: int) -> None:
        if not connection.open:
            return
        try:
            header, position = framing.decode_request_header(frame)
            body = decode(API[header.api_key].request, frame, header.api_version, position)
        except (MalformedMessage, UnsupportedVersion, KeyError) as error:
            self.world.note(f"malformed: {error}")
            connection.break_off()
            return
        self.handle(
            events.RequestArrived(
                connection=ConnectionId(connection.number),
                correlation_id=header.correlation_id,
                ticket=ticket,
                api_key=header.api_key,
                api_version=header.api_version,
                client_id=header.client_id,
                body=body,
                host="sim",
                local=self._address,
            )
        )
        # A real shell reuses the buffer for the next request.
        frame[:] = bytes(len(frame))

    def _take_next(self, number: int) -> None:
        """Delivers the connection's next frame: alone, or a Produce beside up to four others, as in ``net.server_connection``."""
        queued, in_work = self._queued.get(number), self._in_work.setdefault(number, {})
        connection = self._connections.get(number)
        if not queued or connection is None or (in_work and (queued[0][:2] != PRODUCE or not self._producing.get(number))):
            return
        if len(in_work) == PRODUCES_IN_WORK:
            return
        frame = queued.popleft()
        self._producing[number] = frame[:2] == PRODUCE
        self._tickets += 1
        ticket = self._tickets
        in_work[ticket] = None
        self._later(0, lambda: self._request(connection, frame, ticket))
        self._take_next(number)

    def _answered(self, number: int, ticket: int, frame: bytes) -> None:
        in_work, connection = self._in_work.get(number), self._connections.get(number)
        if in_work is None or connection is None:
            return
        in_work[ticket] = frame
        while in_work:
            oldest = next(iter(in_work))
            answer = in_work[oldest]
            if answer is None:
                return
            del in_work[oldest]
            if answer:
                connection.reply(answer)
            self._take_next(number)

    # Effects.

    def _perform(self, asked: list[effects.Effect]) -> None:
        for effect in asked:
            if type(effect) is effects.Halt:
                self.world.note(f"halt: {effect.reason}")
                self.halted += 1
                self._end("halt")
                self.disk = self.disk.restart()
                self.world.after(300, self._restart)
                return
            self._hands[type(effect)](effect)

    def _table(self) -> dict[type, Callable[[Any], None]]:
        """The method for each kind of effect, except Halt."""

        def on_disk(act: Callable[[Any], None]) -> Callable[[Any], None]:
            return lambda effect: self._later(self._disk_ms(), partial(act, effect))

        return {
            effects.Respond: self._respond,
            effects.Release: lambda effect: self._answered(effect.connection, effect.ticket, b""),
            effects.Close: self._close,
            effects.ScheduleFlush: lambda effect: self._later(self._rng.choice((0, 0, 1)), self._settled),
            effects.Flush: self._flushes,
            effects.ReplaceFiles: lambda effect: self._in_turn(self._disk_ms(), partial(self._replace, effect)),
            effects.ReadLog: on_disk(self._read_log),
            effects.ChangeLogs: lambda effect: self._in_turn(self._log_files_ms(), partial(self._change_logs, effect)),
            effects.Remove: on_disk(self._remove),
            effects.Clean: on_disk(self._begin_clean),
            effects.Scrub: on_disk(self._begin_scrub),
            effects.StoreSubmit: self._submit,
            effects.StartWriteback: lambda effect: None,
            effects.Warn: lambda effect: self.world.note(f"warning: {effect.message}"),
            effects.Ask: self._ask,
            effects.RequestFailed: _fail,
        }

    def _settled(self) -> None:
        self.handle(events.FlushDue())

    def _flushes(self, effect: effects.Flush) -> None:
        for partition, plan in effect.plans:
            self._later(self._disk_ms(), partial(self._flush, partition, plan))

    def _close(self, effect: effects.Close) -> None:
        if effect.connection in self._connections:
            self._connections[effect.connection].break_off()

    def _ask(self, effect: effects.Ask) -> None:
        raise AssertionError(f"a single broker sends no request to another: {effect.message}")

    def _respond(self, effect: effects.Respond) -> None:
        connection = self._connections.get(effect.connection)
        if connection is not None:
            try:
                chunks = framing.encode_response(effect.message, effect.api_version, effect.correlation_id)
                frame = b"".join(chunk.read() if isinstance(chunk, Slice) else memoryview(chunk) for chunk in chunks)  # type: ignore[arg-type]
            except OSError as error:
                self.handle(events.DirectoryFailed(directory=self.disk.root, reason=str(error)))
                connection.break_off()
                return
            self._answered(effect.connection, effect.ticket, frame[framing.SIZE_BYTES :])

    def _disk_ms(self) -> int:
        return self._rng.choice((200, 700, 1500) if self.slow_disk else (0, 1, 1, 2, 5, 40))

    def _log_files_ms(self) -> int:
        return self._changes_rng.choice((200, 700, 1500) if self.slow_disk else (0, 0, 0, 0, 1, 5, 40))

    def _flush(self, partition: TopicPartition, plan: FlushPlan) -> None:
        try:
            self.performer.flush(self.disk, plan)
        except OSError as error:
            self.performer.flush_failed(self, partition, plan, error)
        else:
            self.handle(events.Flushed(marks=((partition, plan.upto),)))

    def _replace(self, effect: effects.ReplaceFiles) -> None:
        try:
            for path, data in effect.files:
                self.disk.replace_file(path, data)
        except OSError as error:
            self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))

    def _read_log(self, effect: effects.ReadLog) -> None:
        try:
            data: bytes | None = effect.slice.read()
        except FileNotFoundError:
            data = None
        except OSError as error:
            self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))
            return
        self.handle(events.LogRead(ticket=effect.ticket, data=data))

    def _begin_clean(self, effect: effects.Clean) -> None:
        """Runs a compaction in steps with time between them, so that other events interleave."""
        self._clean_on(effect, self.performer.clean(self.disk, effect))

    def _clean_on(self, effect: effects.Clean, work: Iterator[int | CompactionResult]) -> None:
        try:
            step = next(work, None)
        except (OSError, CorruptLog) as error:
            self._cleaned(effect, error)
            return
        if isinstance(step, int):
            self._later(self._disk_ms(), lambda: self._clean_on(effect, work))
        else:
            self.handle(events.Cleaned(partition=effect.partition, result=step))

    def _cleaned(self, effect: effects.Clean, error: OSError | CorruptLog) -> None:
        if isinstance(error, CorruptLog):
            self.handle(events.Cleaned(partition=effect.partition, damage=str(error)))
            return
        if not isinstance(error, FileNotFoundError) and error.errno != ENOSPC:
            self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))
        self.handle(events.Cleaned(partition=effect.partition))

    def _begin_scrub(self, effect: effects.Scrub) -> None:
        """Runs a scrub in steps, like a compaction."""
        self._scrub_on(effect, self.performer.scrub(self.disk, effect))

    def _scrub_on(self, effect: effects.Scrub, work: Iterator[int | ScrubResult]) -> None:
        try:
            step = next(work, None)
        except FileNotFoundError:
            step = None
        except OSError as error:
            self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))
            step = None
        if isinstance(step, int):
            self._later(self._disk_ms(), lambda: self._scrub_on(effect, work))
        else:
            self.handle(events.Scrubbed(partition=effect.partition, result=step))

    def _in_turn(self, delay_ms: int, change: Callable[[], None]) -> None:
        """Runs the changes of a log directory one after the other, each after a delay."""
        self._changes.append(change)
        self._turn_ms = max(self._turn_ms, self.world.now_ms + delay_ms)
        self._later(self._turn_ms - self.world.now_ms, self._next_change)

    def _next_change(self) -> None:
        self._changes.popleft()()

    def _change_logs(self, effect: effects.ChangeLogs) -> None:
        try:
            refused = effect.changes.carry_out(self.disk)
        except OSError as error:
            self.handle(events.DirectoryFailed(directory=effect.directory, reason=str(error)))
        else:
            self.handle(events.LogsChanged(directory=effect.directory, refused=refused))

    def _remove(self, effect: effects.Remove) -> None:
        for path in effect.paths:
            self.disk.remove_tree(path)

    def _submit(self, effect: effects.StoreSubmit) -> None:
        assert self._session is not None, "a broker has a session"
        incarnation, ticket = self.incarnation, effect.ticket

        def answered(result: StoreResult) -> None:
            self._if_alive(incarnation, lambda: self.handle(events.StoreAnswered(ticket=ticket, result=result)))

        self._session.submit(effect.ops, answered)


def _fail(effect: effects.RequestFailed) -> None:
    """On a real server an unexpected exception costs one request. Here it fails the history."""
    raise effect.error
