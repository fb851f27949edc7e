"""A broker in the process of a test: real sockets, real requests, the code of ``ottla serve``, in a thread of its own.

::

    test's thread ── start, kill, advance ──▶ broker's thread: one event loop ── Process ── Door ── clients' sockets
                                                                     └── memory, or a directory

Several may run in one process. What one life of a broker opened is given back when it ends, by ``stop`` or by ``kill``; the port, the
clock, the disks and what is in force of faults stay for the next life.
"""

import asyncio
import atexit
import os
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from ottla.client.sync.loop_thread import LoopThread
from ottla.server.environment import Environment, OperatingSystem
from ottla.server.process import Process
from ottla.server.process_plan import ProcessPlan
from ottla.sim.memory_environment import Memory, Unsynced
from ottla.testing.clock import PERIOD_MS, STEPS_MAX, Clock
from ottla.testing.environment import Staged
from ottla.testing.faults import Door, Fault, api_keys, door_of, error_of
from ottla.testing.topic import Clients, Topic
from ottla.wire.errors import KafkaError

T = TypeVar("T")
#: What suits tests better than Kafka's defaults: no group waits for more members than there are, sessions may be short, an internal topic
#: is made at once, and a check that a test waits for comes soon.
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "1",
    "group.consumer.min.session.timeout.ms": "1",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "1",
    "log.retention.check.interval.ms": "1000",
}


class BrokerFailed(AssertionError):
    """A broker in a test met a mistake of its own, or was used while it does not run."""


class Broker:
    """See the module's theory. A context manager: it runs inside of ``with``."""

    def __init__(self, *, settings: Mapping[str, Any] | None = None, data_dir: Path | str | None = None, port: int = 0) -> None:
        """``settings`` go by Kafka's names, over ``SETTINGS``. In memory, or in ``data_dir`` as a server would. Port 0: a free one."""
        self.settings = {**SETTINGS, **{name: _text(value) for name, value in (settings or {}).items()}}
        self.data_dir = Path(data_dir) if data_dir is not None else None
        self.host = "127.0.0.1"
        #: The same in all its lives, once it has begun the first.
        self.port = port
        self.clock = Clock(self._pass)
        self._faults: list[Fault] = []
        self._door: Door | None = None
        self._memory = Memory(calendar_ms=self.clock.wall_ms) if data_dir is None else None
        self._thread: LoopThread | None = None
        self._process: Process | None = None
        self._failure: str | None = None
        #: The end of a process that failed.
        self._ending: asyncio.Task[None] | None = None
        #: Keeps the port while nobody listens on it.
        self._placeholder: socket.socket | None = None
        self._clients: Clients | None = None
        self._random = Random(0)

    def __repr__(self) -> str:
        state = "runs" if self.running else "does not run"
        return f"Broker({self.bootstrap_servers}, {state})" if self.port else "Broker(not started)"

    # Its life.

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """HOST:PORT, for any client. Raises: BrokerFailed before the first start."""
        if not self.port:
            raise BrokerFailed("the broker was not started: use it in a with statement, or call start()")
        return f"{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        """Whether it serves."""
        return self._process is not None and self._failure is None

    def start(self) -> Self:
        """Serves; returns when clients may come. Nothing happens if it runs. Raises: ConfigError, CannotStart."""
        if self._process is not None:
            return self
        if self._thread is None:
            self._thread = LoopThread("ottla-testing")
        try:
            self._thread.call(self._begin())
        except BaseException:
            self._thread.stop()
            self._thread = None
            raise
        atexit.register(self._exit, os.getpid())
        return self

    def _exit(self, pid: int) -> None:
        """The interpreter ends, and nobody has stopped it; in a child process that was forked there is nothing to stop."""
        if os.getpid() == pid:
            self.stop()

    def stop(self) -> None:
        """Ends as a server that is asked to, and gives everything back. Raises: BrokerFailed when it had failed before."""
        atexit.unregister(self._exit)
        clients, self._clients = self._clients, None
        if clients is not None:
            clients.close()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.call(self._end())
            thread.stop()
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise BrokerFailed(failure)

    def kill(self, *, unsynced: Unsynced = "kept") -> None:
        """Ends without a word: connections break, nothing is answered, nothing is left in order. ``restart`` begins another life.

        What was written and not yet synced is ``kept`` (the process died), ``lost`` (the power went) or ``torn`` (lost in part); records
        acknowledged to a producer with ``acks=all`` are synced. Raises: ValueError for anything but ``kept`` of a broker with a data_dir.
        """
        if unsynced != "kept" and self._memory is None:
            raise ValueError("only of a broker in memory it is known what was not synced; kill(unsynced='kept') keeps what was written")
        self._call(self._kill(unsynced))

    def restart(self) -> None:
        """Begins another life on the same port, with what the last one left: after ``kill``, or after a stop in order if it runs."""
        if self._thread is None:
            raise BrokerFailed("the broker was stopped, not killed; start() begins anew")
        self._thread.call(self._restart())

    @contextmanager
    def killed(self, *, unsynced: Unsynced = "kept") -> Iterator[None]:
        """Dead inside of ``with``, alive again after it."""
        self.kill(unsynced=unsynced)
        try:
            yield
        finally:
            self.restart()

    # What goes wrong, on order.

    def pause(self) -> None:
        """From now on it accepts connections and requests, and does and answers nothing; its clock goes on."""
        self._call(_done(lambda: setattr(self._the_door, "paused", True)))

    def resume(self) -> None:
        """Does and answers what has come meanwhile, and goes on."""
        self._call(_done(lambda: self._the_door.go_on()))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Answers nothing inside of ``with``."""
        self.pause()
        try:
            yield
        finally:
            if self.running:
                self.resume()

    def cut_connections(self) -> int:
        """Breaks all connections there are now; how many."""
        return self._call(_done(lambda: self._the_door.cut_all()))

    def dropping_requests(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Requests of these APIs (of all, if none is named) vanish before the broker sees them: the first ``times``, or all inside of
        ``with``; of one client, if ``client_id`` names it. Their connections give no answer any more. Raises: ValueError.
        """
        return self._fault(Fault("drop request", api_keys(apis), times=times, client_id=client_id))

    def dropping_answers(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """As ``dropping_requests``, but the broker does what is asked, and only the answer vanishes."""
        return self._fault(Fault("drop answer", api_keys(apis), times=times, client_id=client_id))

    def delaying(self, *apis: str, seconds: float, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Requests reach the broker so much later, in real time; what follows them on the same connection waits behind them."""
        return self._fault(Fault("delay", api_keys(apis), times=times, client_id=client_id, delay_s=seconds))

    def answering(
        self, error: KafkaError | type[KafkaError] | str, *apis: str, times: int | None = None, client_id: str | None = None
    ) -> AbstractContextManager[Fault]:
        """Requests are answered with an error (``"NOT_LEADER_OR_FOLLOWER"``, or a class of ``ottla.errors``), and nothing is done."""
        return self._fault(Fault("answer error", api_keys(apis), times=times, client_id=client_id, error=error_of(error)))

    def cutting_before(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """The connection breaks when such a request arrives, and the broker does not do what it asks."""
        return self._fault(Fault("cut before", api_keys(apis), times=times, client_id=client_id))

    def cutting_after(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """The broker does what the request asks, and the connection breaks instead of the answer."""
        return self._fault(Fault("cut after", api_keys(apis), times=times, client_id=client_id))

    @contextmanager
    def _fault(self, fault: Fault) -> Iterator[Fault]:
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)
            if self._thread is not None:
                self._thread.call(_done(lambda: self._door.over(fault) if self._door is not None else None))

    # What is in it.

    @property
    def clients(self) -> Clients:
        """Its own clients, that no fault befalls; through them a test looks at topics and groups. Raises: BrokerFailed."""
        if not self.running:
            raise BrokerFailed(self._failure or "the broker does not run")
        if self._clients is None:
            self._clients = Clients(self.bootstrap_servers)
        return self._clients

    def topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, Any] | None = None, key: Any = None, value: Any = None
    ) -> Topic:
        """A topic, made unless it is there. ``key`` and ``value`` are serializers, as for a Producer: ``"str"``, ``"json"``, a format."""
        made = Topic(lambda: self.clients, name, key=key, value=value)
        self.clients.create(name, partitions, {name: _text(value) for name, value in (config or {}).items()})
        return made

    # On the broker's loop.

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or not self.running:
            work.close()
            raise BrokerFailed(self._failure or "the broker does not run")
        return self._thread.call(work)

    @property
    def _the_door(self) -> Door:
        assert self._door is not None, "a broker that runs has a door"
        return self._door

    async def _begin(self) -> None:
        under: Environment = self._memory or OperatingSystem()
        ground = Staged(under, self.clock, door_of(self._faults, self._opened))
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        texts = {**self.settings, "listeners": f"PLAINTEXT://{self.host}:{self.port}"}
        plan = ProcessPlan(data_dir=self.data_dir or Path(tempfile.gettempdir()), texts=texts)
        process = Process(plan, die=self._died, environment=ground)
        try:
            ((_, self.port),) = await process.start()
        except BaseException:
            await process.stop()
            raise
        self._process = process

    def _opened(self, door: Door) -> None:
        self._door = door

    async def _end(self) -> None:
        process, self._process = self._process, None
        if self._ending is not None:
            await self._ending
            self._ending = None
        if process is not None:
            process.request_stop()
            await process.stop()
        if self._door is not None:
            self._door.shut()

    async def _kill(self, unsynced: Unsynced) -> None:
        process, self._process = self._process, None
        assert process is not None, "a broker that runs has a process"
        self._the_door.shut()
        await process.abandon()
        self._placeholder = _bound(self.host, self.port)
        if self._memory is not None:
            self._memory.end(unsynced, self._random)

    async def _restart(self) -> None:
        await self._end()
        if self._failure is None:
            await self._begin()

    def _died(self, code: int) -> NoReturn:
        """The broker broke a promise of its own."""
        self._failure = "the broker failed by a mistake of its own; what it wrote to stderr says which"
        process, self._process = self._process, None
        if process is not None:
            self._ending = asyncio.get_running_loop().create_task(process.abandon())
        raise BrokerFailed(self._failure)

    def _pass(self, total_ms: int) -> None:
        self._call(self._let_pass(total_ms))

    async def _let_pass(self, total_ms: int) -> None:
        """Time goes from one thing that is due to the next, or in steps where there are many of them."""
        process = self._process
        assert process is not None, "a broker that runs has a process"
        left_ms = total_ms + PERIOD_MS
        least_ms = max(total_ms // STEPS_MAX, 1)
        while left_ms > 0:
            now_ms = self.clock.now_ms()
            dues = [due - now_ms for broker in process.brokers if (due := broker.node.next_deadline_ms()) is not None]
            step_ms = min(max(min(dues, default=left_ms), least_ms), left_ms)
            self.clock.put_forward(step_ms)
            left_ms -= step_ms
            for broker in process.brokers:
                broker.shell.tick()
            await _settled(process)


async def _settled(process: Process) -> None:
    """Returns when what the brokers have asked for is done, and what followed from that."""
    for _ in range(3):
        await asyncio.sleep(0)
        for broker in process.brokers:
            await broker.performer.idle()


async def _done(act: Callable[[], T]) -> T:
    return act()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that keeps the port and refuses whoever comes: it is bound, and nobody listens."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
