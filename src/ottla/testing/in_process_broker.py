"""A broker in the process of a test: real sockets, real requests, the code of ``ottla serve``, in its own thread.

::

    test's thread ── start, kill, advance ──▶ broker's thread: one event loop ── Process ── FaultInjector ── clients' sockets
                                                                     └── memory, or a directory

Several brokers may run in one process. ``stop`` and ``kill`` release the resources of a run. The port, the clock, the disks and the active
faults are kept for the next run.
"""

import asyncio
import atexit
import os
import resource
import socket
import tempfile
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, NoReturn, Self, TypeVar

from ottla.base.ports import Disk
from ottla.client.admin.acl_results import Acl
from ottla.client.sync.loop_thread import LoopThread
from ottla.net.server_connection import Handler
from ottla.server.environment import DirectoryLock, Environment, LogMaintenance, LoopWatch, OperatingSystem
from ottla.server.flusher import Plans, Worker
from ottla.server.metrics.counters import Counters
from ottla.server.process import Process
from ottla.server.process_plan import ProcessPlan
from ottla.server.resizable_threads import Threads
from ottla.server.store_factory import StoreFactory
from ottla.sim.memory_environment import Memory, Unsynced
from ottla.testing.clock import PERIOD_MS, STEPS_MAX, Clock
from ottla.testing.faults import Fault, FaultInjector, api_keys, error_of, fault_injection
from ottla.testing.security import Security
from ottla.testing.topic import Clients, Topic
from ottla.wire.errors import KafkaError


class BrokerEnvironment:
    """Replaces the clock and wraps the shell of another environment. An ``Environment``."""

    def __init__(self, base: Environment, clock: Clock, wrap: Callable[[Handler], Handler]) -> None:
        self._base = base
        self._clock = clock
        self._wrap = wrap

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def wall_ms(self) -> int:
        return self._clock.wall_ms()

    def request_handler(self, shell: Handler) -> Handler:
        return self._wrap(self._base.request_handler(shell))

    def watch_loop(self, counters: Counters) -> LoopWatch | None:
        """No watchdog: in a test's process the test itself may block the loop."""
        return None

    def descriptors(self) -> int:
        """The current limit: the limits of a test's process are not changed."""
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]

    def lock_directory(self, path: Path) -> DirectoryLock:
        return self._base.lock_directory(path)

    def disk(self, path: Path, *, descriptors_max: int) -> Disk:
        return self._base.disk(path, descriptors_max=descriptors_max)

    def take_over(self, disk: Disk) -> None:
        self._base.take_over(disk)

    def store_factory(self, options: Any, data_dir: Path, failed: Callable[[str], None]) -> StoreFactory:
        return self._base.store_factory(options, data_dir, failed)

    def threads(self, count: int, name: str) -> Threads:
        return self._base.threads(count, name)

    def flush_worker(self, name: str, act: Callable[[Plans], None]) -> Worker:
        return self._base.flush_worker(name, act)

    def cleaners(self, counters: Counters) -> LogMaintenance:
        return self._base.cleaners(counters)


T = TypeVar("T")
#: For fast tests: no initial rebalance delay, short sessions, one partition of the internal topic, frequent retention checks.
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
    """A broker in a test crashed, or was used while it does not run."""


class Broker:
    """A broker for tests. As a context manager it runs inside the ``with`` block."""

    def __init__(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        data_dir: Path | str | None = None,
        port: int = 0,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        acls: Iterable[Acl] | None = None,
    ) -> None:
        """``settings``: by Kafka's names, over ``SETTINGS``. ``data_dir`` None: in memory. ``port`` 0: a free one.

        ``users``: passwords by name; clients must authenticate with SASL PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512. None: clients need not.
        ``tls``: with a certificate of an authority of its own; without users, clients may show certificates of it. ``acls``: access rules,
        which exist when it is started; what none allows is denied, also with an empty list. None: everyone may do everything.

        Raises: ValueError.
        """
        self._acls = None if acls is None else list(acls)
        self.host = "127.0.0.1"
        self._security = Security(host=self.host, users=users, tls=tls, rules=acls is not None)
        self.settings = {**SETTINGS, **{name: _text(value) for name, value in (settings or {}).items()}}
        self.data_dir = Path(data_dir) if data_dir is not None else None
        #: Fixed after the first start.
        self.port = port
        self.clock = Clock(self._advance)
        self._faults: list[Fault] = []
        self._injector: FaultInjector | None = None
        self._memory = Memory(epoch_ms=self.clock.wall_ms) if data_dir is None else None
        self._thread: LoopThread | None = None
        self._process: Process | None = None
        self._failure: str | None = None
        #: The shutdown of a failed process.
        self._ending: asyncio.Task[None] | None = None
        #: Reserves the port while the broker does not listen.
        self._placeholder: socket.socket | None = None
        self._clients: Clients | None = None
        self._random = Random(0)

    def __repr__(self) -> str:
        state = "runs" if self.running else "does not run"
        return f"Broker({self.bootstrap_servers}, {state})" if self.port else "Broker(not started)"

    # Start and stop.

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

    def client_settings(self, user: str | None = None, mechanism: str = "PLAIN") -> dict[str, Any]:
        """Settings with which a client of Ottla connects as this user, or None: as one that may do everything.

        With ``tls`` and without ``users`` the name is that of a certificate, which is made for it. Raises: KeyError for an unknown user.
        """
        return {"bootstrap_servers": self.bootstrap_servers, **self._security.client_settings(user, mechanism)}

    def java_settings(self, user: str | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
        """The same in Kafka's names, for clients and tools in Java. Raises: KeyError."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._security.java_settings(user, mechanism)}

    def librdkafka_settings(self, user: str | None = None, mechanism: str = "PLAIN") -> dict[str, str]:
        """The same for confluent-kafka and other clients of librdkafka. Raises: KeyError."""
        return {"bootstrap.servers": self.bootstrap_servers, **self._security.librdkafka_settings(user, mechanism)}

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority, as PEM, for clients that take a file. Raises: BrokerFailed without ``tls``."""
        if self._security.certificates is None:
            raise BrokerFailed("the broker has no certificates: start it with tls=True")
        return self._security.certificates.authority

    @property
    def running(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._failure is None

    def start(self) -> Self:
        """Starts the broker and returns when it accepts clients. Does nothing if it runs. Raises: ConfigError, CannotStart."""
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
        if self._acls:
            self.clients.admin.create_acls(self._acls)
        return self

    def _exit(self, pid: int) -> None:
        """Stops the broker at the interpreter's exit; not in a forked child process."""
        if os.getpid() == pid:
            self.stop()

    def stop(self) -> None:
        """Stops the broker cleanly and releases its resources. Raises: BrokerFailed if it had crashed."""
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
        """Kills the broker: connections break, without responses or a clean shutdown. ``restart`` starts it again.

        Unsynced writes are ``kept`` (a process crash), ``lost`` (a power failure) or ``torn`` (partly lost). Records acknowledged with
        ``acks=all`` are synced. Raises: ValueError for other values than ``kept`` with a data_dir.
        """
        if unsynced != "kept" and self._memory is None:
            raise ValueError("unsynced writes can only be lost by a broker in memory; use kill(unsynced='kept') with a data_dir")
        self._call(self._kill(unsynced))

    def restart(self) -> None:
        """Starts the broker again on the same port with its data, after ``kill``. A running broker is stopped cleanly first."""
        if self._thread is None:
            raise BrokerFailed("the broker was stopped, not killed; use start()")
        self._thread.call(self._restart())

    @contextmanager
    def killed(self, *, unsynced: Unsynced = "kept") -> Iterator[None]:
        """Kills the broker for the ``with`` block and restarts it afterwards."""
        self.kill(unsynced=unsynced)
        try:
            yield
        finally:
            self.restart()

    # Faults.

    def pause(self) -> None:
        """Pauses the broker: it accepts connections and requests but does not process or answer them. Its clock continues."""
        self._call(_done(lambda: setattr(self._running_injector, "paused", True)))

    def resume(self) -> None:
        """Ends a pause: processes and answers the requests that arrived meanwhile."""
        self._call(_done(lambda: self._running_injector.resume()))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses the broker for the ``with`` block."""
        self.pause()
        try:
            yield
        finally:
            if self.running:
                self.resume()

    def cut_connections(self) -> int:
        """Breaks all current connections. Returns their number."""
        return self._call(_done(lambda: self._running_injector.cut_all()))

    def dropping_requests(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Drops requests before the broker sees them. Their connections give no more responses.

        ``apis``: names of APIs, none: all. ``times``: only the first ones, None: all inside the ``with`` block. ``client_id``: only those
        of one client. Raises: ValueError.
        """
        return self._fault(Fault("drop request", api_keys(apis), times=times, client_id=client_id))

    def dropping_answers(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Like ``dropping_requests``, but the broker processes the request and its response is dropped."""
        return self._fault(Fault("drop answer", api_keys(apis), times=times, client_id=client_id))

    def delaying(self, *apis: str, seconds: float, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Delays requests, in real time. Later requests of the same connection wait behind them."""
        return self._fault(Fault("delay", api_keys(apis), times=times, client_id=client_id, delay_s=seconds))

    def answering(
        self, error: KafkaError | type[KafkaError] | str, *apis: str, times: int | None = None, client_id: str | None = None
    ) -> AbstractContextManager[Fault]:
        """Answers requests with an error (``"NOT_LEADER_OR_FOLLOWER"``, or a class of ``ottla.errors``) instead of processing them."""
        return self._fault(Fault("answer error", api_keys(apis), times=times, client_id=client_id, error=error_of(error)))

    def cutting_before(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Breaks the connection when a request arrives. The broker does not process it."""
        return self._fault(Fault("cut before", api_keys(apis), times=times, client_id=client_id))

    def cutting_after(self, *apis: str, times: int | None = None, client_id: str | None = None) -> AbstractContextManager[Fault]:
        """Breaks the connection instead of a response. The broker has processed the request."""
        return self._fault(Fault("cut after", api_keys(apis), times=times, client_id=client_id))

    @contextmanager
    def _fault(self, fault: Fault) -> Iterator[Fault]:
        self._faults.append(fault)
        try:
            yield fault
        finally:
            self._faults.remove(fault)
            if self._thread is not None:
                self._thread.call(_done(lambda: self._injector.end(fault) if self._injector is not None else None))

    # Content.

    @property
    def clients(self) -> Clients:
        """Clients for tests to inspect topics and groups. Faults do not affect them. Raises: BrokerFailed."""
        if not self.running:
            raise BrokerFailed(self._failure or "the broker does not run")
        if self._clients is None:
            self._clients = Clients(self.client_settings())
        return self._clients

    def topic(
        self, name: str, *, partitions: int = 1, config: Mapping[str, Any] | None = None, key: Any = None, value: Any = None
    ) -> Topic:
        """A topic, created if it does not exist. ``key`` and ``value``: serializers as for a Producer, ``"str"``, ``"json"``, a format."""
        topic = Topic(lambda: self.clients, name, key=key, value=value)
        self.clients.create(name, partitions, {name: _text(value) for name, value in (config or {}).items()})
        return topic

    # On the broker's loop.

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None or not self.running:
            work.close()
            raise BrokerFailed(self._failure or "the broker does not run")
        return self._thread.call(work)

    @property
    def _running_injector(self) -> FaultInjector:
        assert self._injector is not None, "a running broker has an injector"
        return self._injector

    async def _begin(self) -> None:
        base: Environment = self._memory or OperatingSystem()
        environment = BrokerEnvironment(base, self.clock, fault_injection(self._faults, self._opened))
        if self._placeholder is not None:
            self._placeholder.close()
            self._placeholder = None
        secured = self._security.settings(self.port, self.settings)
        texts = {"listeners": f"PLAINTEXT://{self.host}:{self.port}", **self.settings, **secured}
        plan = ProcessPlan(data_dir=self.data_dir or Path(tempfile.gettempdir()), texts=texts)
        process = Process(plan, die=self._died, environment=environment)
        try:
            ((_, self.port),) = await process.start()
            await self._security.store_credentials(process.brokers[0].session)
        except BaseException:
            await process.stop()
            raise
        self._process = process

    def _opened(self, injector: FaultInjector) -> None:
        self._injector = injector

    async def _end(self) -> None:
        process, self._process = self._process, None
        if self._ending is not None:
            await self._ending
            self._ending = None
        if process is not None:
            process.request_stop()
            await process.stop()
        if self._injector is not None:
            self._injector.shut_down()

    async def _kill(self, unsynced: Unsynced) -> None:
        process, self._process = self._process, None
        assert process is not None, "a running broker has a process"
        self._running_injector.shut_down()
        await process.abandon()
        self._placeholder = _bound(self.host, self.port)
        if self._memory is not None:
            self._memory.end(unsynced, self._random)

    async def _restart(self) -> None:
        await self._end()
        if self._failure is None:
            await self._begin()

    def _died(self, code: int) -> NoReturn:
        """Called when the broker crashes by an internal error."""
        self._failure = "the broker crashed by an internal error; see its output on stderr"
        process, self._process = self._process, None
        if process is not None:
            self._ending = asyncio.get_running_loop().create_task(process.abandon())
        raise BrokerFailed(self._failure)

    def _advance(self, total_ms: int) -> None:
        self._call(self._advance_steps(total_ms))

    async def _advance_steps(self, total_ms: int) -> None:
        """Advances to the next deadline, or by `total_ms / STEPS_MAX` if that is later."""
        process = self._process
        assert process is not None, "a running broker has a process"
        left_ms = total_ms + PERIOD_MS
        least_ms = max(total_ms // STEPS_MAX, 1)
        while left_ms > 0:
            now_ms = self.clock.now_ms()
            dues = [due - now_ms for broker in process.brokers if (due := broker.node.next_deadline_ms()) is not None]
            step_ms = min(max(min(dues, default=left_ms), least_ms), left_ms)
            self.clock.add(step_ms)
            left_ms -= step_ms
            for broker in process.brokers:
                broker.shell.tick()
            await _idle(process)


async def _idle(process: Process) -> None:
    """Waits until the brokers' effects, and the effects of those, are done."""
    for _ in range(3):
        await asyncio.sleep(0)
        for broker in process.brokers:
            await broker.performer.idle()


async def _done(act: Callable[[], T]) -> T:
    return act()


def _bound(host: str, port: int) -> socket.socket:
    """A socket that reserves the port and refuses connections: it is bound and does not listen."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((host, port))
    return made


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
