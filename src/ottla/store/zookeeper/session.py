"""A session with a ZooKeeper ensemble, version 3.9 or later.

kazoo owns the connection: its thread sends, receives, pings, and connects to another server after a failure. That thread only appends to an
inbox. All other work is done on the owner's loop in the order of the connection, which is the store's order::

    kazoo's thread    reply, event, change of state ──▶ inbox ──▶ loop: queue of callbacks, run from its head when they are ready

An event of a recursive watch names the changed node without its data, so its callback is ready when the node was read; events that arrive
together are read together. Later callbacks wait, so a change is reported before the answer to the write that made it. If the node that is
read was created after the event, the event is dropped: the events of the new node follow.

Watches end with the connection. After a reconnect every watch is set again, all nodes are read, and new states are reported
(``WatchState``); only then the owner gets ``connected``. One read covers hundreds of nodes, so ten thousand partitions take a second.
"""

import asyncio
import logging
import socket
import ssl
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import AuthFailedError, ConnectionLoss, KazooException, SASLException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import ConnectionDropped
from kazoo.protocol.serialization import SASL

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.store.tree import below
from ottla.store.watch_state import WatchState
from ottla.store.zookeeper.requests import DELETED, AddWatch, Multi, ReadChildren, ReadNodes, WatchEvent, read_event

log = logging.getLogger("ottla.store")
#: Without kazoo's warning at each connection attempt: the owner reports once that the session is suspended, and once that it is back.
_kazoo_log = logging.getLogger("ottla.store.kazoo")
_kazoo_log.addFilter(lambda record: record.levelno >= logging.ERROR or log.isEnabledFor(logging.INFO))

#: Nodes per read; larger replies would delay the connection.
READ_NODES = 500
#: Callbacks per turn of the loop, as in the embedded store.
TURN_CHANGES = 50
#: Largest request that a server accepts by default (jute.maxbuffer 0xfffff).
REQUEST_BYTES_MAX = 0xFFFFF
#: A request's length, number and type.
OVERHEAD_BYTES = 64
#: ZooKeeper's own nodes, in a store without a chroot.
FOREIGN = "/zookeeper"
STATES: dict[str, SessionState] = {KazooState.CONNECTED: "connected", KazooState.SUSPENDED: "suspended", KazooState.LOST: "lost"}


#: A session outlives this many servers that do not answer.
TURNS_MIN = 3


class SaslExchange(Protocol):
    """The client's side of a SASL exchange."""

    def step(self, challenge: bytes) -> bytes | None:
        """The answer to a challenge, the first of which is empty; None when the exchange is complete. Waits for files and servers.

        Raises: PermissionError with the reason.
        """


@dataclass(frozen=True, slots=True)
class Connect:
    """Connection settings; the ensemble is ``HOST:PORT[,HOST:PORT...][/chroot]`` as in zookeeper.connect."""

    hosts: str
    chroot: str
    session_timeout_ms: int
    #: Longest wait for a first session; None waits without limit.
    connection_timeout_ms: int | None
    request_bytes_max: int = REQUEST_BYTES_MAX
    #: For connections with TLS.
    tls: ssl.SSLContext | None = None
    #: Whether new nodes get rules (zookeeper.set.acl).
    secure: bool = False
    #: Identity of scheme digest, as USER:PASSWORD; empty: none.
    digest: str = field(default="", repr=False)
    #: User and password of SASL DIGEST-MD5, as USER:PASSWORD; empty: no SASL, or another mechanism.
    sasl: str = field(default="", repr=False)
    #: SASL with another mechanism: its name, and a new exchange with a server of this host name.
    mechanism: str = ""
    exchange: Callable[[str], "SaslExchange"] | None = field(default=None, repr=False)

    @classmethod
    def parse(
        cls, text: str, *, session_timeout_ms: int, connection_timeout_ms: int | None, tls: ssl.SSLContext | None = None
    ) -> "Connect":
        """Raises: ValueError with the reason."""
        hosts, slash, chroot = text.strip().partition("/")
        chroot = (slash + chroot).rstrip("/")
        for host in hosts.split(","):
            port = host.rpartition(":")[2] if ":" in host else "2181"
            if not host.strip().partition(":")[0] or not port.strip().isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"expected HOST:PORT[,HOST:PORT...][/chroot], such as 127.0.0.1:2181/ottla, not {text!r}")
        if "//" in chroot:
            raise ValueError(f"the chroot {chroot!r} is not a path")
        return cls(hosts.replace(" ", ""), chroot, session_timeout_ms, connection_timeout_ms, tls=tls)

    @property
    def sasl_options(self) -> dict[str, str] | None:
        """kazoo's options of SASL."""
        user, _, password = self.sasl.partition(":")
        if self.exchange is not None:
            return {"mechanism": self.mechanism}
        return {"mechanism": "DIGEST-MD5", "username": user, "password": password} if user else None

    @property
    def turns(self) -> str:
        """The servers for kazoo, repeated to at least ``TURNS_MIN``. kazoo waits for each server's first answer for the session timeout
        divided by their number, and a starting server may accept a connection and never answer: a single wait could end the session.
        """
        return ",".join([self.hosts] * -(-TURNS_MIN // len(self.hosts.split(","))))


class _Item:
    """A queued callback; ``tell`` None means that there is nothing to report."""

    __slots__ = ("ready", "tell")

    def __init__(self, tell: Callable[[], None] | None, *, ready: bool = True) -> None:
        self.tell = tell
        self.ready = ready


class _Watch:
    """One watch of the session."""

    __slots__ = ("changed", "connection", "prefix", "state")

    def __init__(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        self.prefix = prefix
        self.changed = changed
        self.state = WatchState()
        #: The connection in which the present state was reported; only its events are valid.
        self.connection = -1


class _Reply:
    """Receives the outcome of a request from kazoo; only the first outcome counts."""

    __slots__ = ("_put", "_then", "_told")

    def __init__(self, put: Callable[[Callable[[], None]], None], then: Callable[["_Reply", Any], None]) -> None:
        self._put = put
        self._then = then
        self._told = False

    def set(self, value: Any) -> None:
        if not self._told:
            self._told = True
            self._put(partial(self._then, self, value))

    def set_exception(self, error: BaseException) -> None:
        self.set(error)


class TlsHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """Makes kazoo's connections with a TLS context. kazoo's own makes a context without a choice of versions and stores."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__()
        self._context = context
        #: Why the last handshake failed; empty after one that did not.
        self.problem = ""

    def create_connection(self, *, address: tuple[str, int], hostname: str, timeout: float, **options: Any) -> socket.socket:
        """Connects to an address of the host, in kazoo's thread. Raises: OSError."""
        plain = socket.create_connection(address, timeout)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            secured = self._context.wrap_socket(plain, server_hostname=hostname)
        except OSError as error:
            plain.close()
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.strerror or str(error)
            self.problem = f"; TLS to {hostname}:{address[1]} failed: {reason}"
            raise
        self.problem = ""
        return secured


class ZooKeeperSession:
    """One session; a ``Store``. Opened by ``open_session``; used on the loop that opened it."""

    def __init__(self, connect: Connect, *, failed: Callable[[str], None] | None = None) -> None:
        """``failed`` gets the reason when this ensemble cannot be used at all."""
        self.connect = connect
        self._root = connect.chroot
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = False
        self._lock = threading.Lock()
        self._callbacks: deque[_Item] = deque()
        self._telling = False
        self._unread: list[tuple[WatchEvent, _Item]] = []
        self._watches: list[_Watch] = []
        self._listeners: list[Callable[[SessionState], None]] = []
        #: The last state reported to the owner.
        self._state: SessionState = "connected"
        #: Counts changes of the connection; replies to requests from before the last one are void.
        self._connection = 0
        #: Requests without an outcome. kazoo drops a request made while a session expires.
        self._unanswered: dict[_Reply, None] = {}
        self._closed = False
        self._ending: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._handler = None if connect.tls is None else TlsHandler(connect.tls)
        self.client = KazooClient(
            hosts=connect.turns,
            timeout=connect.session_timeout_ms / 1000,
            handler=self._handler,
            auth_data=[("digest", connect.digest)] if connect.digest else None,
            sasl_options=connect.sasl_options,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            logger=_kazoo_log,
        )
        #: Why SASL failed last; empty if it did not.
        self._sasl_problem = ""
        self._sasl = self.client._connection._authenticate_with_sasl
        self.client._connection._authenticate_with_sasl = self._authenticate
        # kazoo supports only one-shot watches by path, and reports them in another thread than answers, in any order. This gets all events.
        self.client._connection._read_watch_event = self._event_came
        self.client.add_listener(self._state_came)

    # Called by the owner

    @property
    def problem(self) -> str:
        """Why TLS or SASL to ZooKeeper failed last, for the end of a message; empty if it did not."""
        return self._sasl_problem or ("" if self._handler is None else self._handler.problem)

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        if self._closed or self._state != "connected":
            self._tell(partial(done, StoreResult((), "session" if self._closed else "unavailable")))
            return
        request = Multi(ops, self._root, secure=self.connect.secure)
        if len(request.body) + OVERHEAD_BYTES > self.connect.request_bytes_max:
            self._tell(partial(done, StoreResult((), "too_large")))
            return
        self._request(request, partial(self._answered, done))

    def watch(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        if self._closed:
            return
        watch = _Watch(prefix, changed)
        self._watches.append(watch)
        self._show(watch)

    def listen(self, changed: Callable[[SessionState], None]) -> None:
        self._listeners.append(changed)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._watches.clear()
            self._listeners.clear()
            self._ending = self._loop.run_in_executor(None, self._end)

    @property
    def ended(self) -> bool:
        """Whether it was closed."""
        return self._closed

    async def closed(self) -> None:
        """Returns when a closed session has ended."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _end(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except KazooException as error:
            log.info("the session with ZooKeeper was not closed cleanly: %s", error)

    # Called by kazoo's thread

    def _authenticate(self, host: str, timeout: float) -> None:
        """Authenticates a new connection. kazoo ends after AuthFailedError, which a server that stops meanwhile also causes, so it gets
        a lost connection. Raises: ConnectionDropped.
        """
        exchange = self.connect.exchange
        try:
            if exchange is None:
                self._sasl(host, timeout)
            else:
                self._exchange(exchange(host), timeout)
        except (AuthFailedError, SASLException, PermissionError) as error:
            self._sasl_problem = f"; {self._why_refused(host, error)} See ottla.zookeeper.sasl"
            raise ConnectionDropped("SASL failed") from None
        self._sasl_problem = ""

    def _why_refused(self, host: str, error: Exception) -> str:
        if isinstance(error, PermissionError):
            return f"{error}."
        if self.connect.exchange is not None:
            return f"{host} ended SASL {self.connect.mechanism}: is that the host of the service in ZooKeeper's JAAS file?"
        return f"{host} ended SASL as user {self.connect.sasl.partition(':')[0]}: is it in the JAAS file of ZooKeeper?"

    def _exchange(self, exchange: SaslExchange, timeout: float) -> None:
        """SASL with a mechanism of ours, on a new connection. Raises: AuthFailedError, PermissionError."""
        connection, xid = self.client._connection, 0
        answer = exchange.step(b"")
        while answer is not None:
            xid += 1
            connection._submit(SASL(answer), timeout, xid)
            try:
                header, buffer, offset = connection._read_header(timeout)
            except ConnectionDropped:
                # A server drops the connection instead of an answer.
                raise AuthFailedError from None
            if header.err or header.xid != xid:
                raise AuthFailedError
            challenge, _ = SASL.deserialize(buffer, offset)
            answer = exchange.step(challenge or b"")

    def _put(self, act: Callable[[], None]) -> None:
        """Appends to the inbox, from any thread."""
        with self._lock:
            self._inbox.append(act)
            if self._woken:
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop is closed.
            return

    def _event_came(self, frame: bytes, offset: int) -> None:
        self._put(partial(self._event, read_event(frame, self._root)))

    def _state_came(self, state: str) -> None:
        self._put(partial(self._state_changed, STATES[state]))

    def _drain(self) -> None:
        with self._lock:
            acts, self._inbox = self._inbox, deque()
            self._woken = False
        for act in acts:
            act()
        self._read_changed()
        self._advance()

    def _request(self, request: Any, then: Callable[[Any], None]) -> None:
        def outcome(reply: _Reply, value: Any) -> None:
            self._unanswered.pop(reply, None)
            then(value)

        reply = _Reply(self._put, outcome)
        self._unanswered[reply] = None
        self.client._call(request, reply)

    def _counts(self, watch: _Watch, path: str) -> bool:
        return watch.connection == self._connection and below(path, watch.prefix)

    # The queue of callbacks

    def _tell(self, tell: Callable[[], None]) -> None:
        self._callbacks.append(_Item(tell))
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._telling = False
        self._advance()

    def _advance(self) -> None:
        """Runs ready callbacks from the head of the queue, at most ``TURN_CHANGES`` per turn of the loop."""
        if self._telling:
            return
        told = 0
        while self._callbacks and self._callbacks[0].ready:
            if told == TURN_CHANGES:
                self._telling = True
                self._loop.call_soon(self._turn)
                return
            item = self._callbacks.popleft()
            if item.tell is not None:
                item.tell()
                told += 1

    def _answered(self, done: Callable[[StoreResult], None], reply: Any) -> None:
        if isinstance(reply, BaseException):
            # Unknown whether the server did it: the connection ended before or after the request arrived.
            reply = [StoreResult((), "session" if self._closed else "unavailable")]
        self._callbacks.append(_Item(partial(done, reply[0])))

    # Events

    def _event(self, event: WatchEvent) -> None:
        if event.zxid <= 0:
            self._unusable("its servers do not send the zxid of an event; ZooKeeper 3.9 or later is needed")
            return
        if below(event.path, FOREIGN) and not self._root:
            return
        if event.kind == DELETED:
            self._callbacks.append(_Item(partial(self._gone, event)))
        else:
            item = _Item(None, ready=False)
            self._callbacks.append(item)
            self._unread.append((event, item))

    def _gone(self, event: WatchEvent) -> None:
        for watch in list(self._watches):
            if self._counts(watch, event.path) and watch.state.record_deletion(event.path, event.zxid):
                watch.changed(NodeState(event.path, None))

    def _read_changed(self) -> None:
        """Reads the nodes of all received events."""
        unread, self._unread = self._unread, []
        for first in range(0, len(unread), READ_NODES):
            part = unread[first : first + READ_NODES]
            self._request(ReadNodes([event.path for event, _ in part], self._root), partial(self._changed_read, part))

    def _changed_read(self, part: list[tuple[WatchEvent, _Item]], reply: Any) -> None:
        for (event, item), found in zip(part, [None] * len(part) if isinstance(reply, BaseException) else reply, strict=True):
            item.ready = True
            if found is not None and found[0].created_zxid <= event.zxid:
                item.tell = partial(self._changed, found[0])

    def _changed(self, state: NodeState) -> None:
        for watch in list(self._watches):
            if self._counts(watch, state.path) and watch.state.record(state):
                watch.changed(state)

    # Watches: the initial state, and the changes after an interruption

    def _show(self, watch: _Watch) -> None:
        """Sets the watch at the servers, and reports new states of all nodes below it."""
        self._request(AddWatch(watch.prefix, self._root), lambda reply: None)
        item = _Item(None, ready=False)
        self._callbacks.append(item)
        first = self._loop.create_future()
        self._request(ReadNodes([watch.prefix], self._root), partial(set_outcome, first))
        task = self._loop.create_task(self._read_all(watch, item, first, self._connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_all(self, watch: _Watch, item: _Item, first: asyncio.Future[Any], connection: int) -> None:
        try:
            states = await self._subtree(watch.prefix, await first)
        except KazooException:
            # The connection failed; after a reconnect everything is read again.
            states = []
            connection = -1
        if connection == self._connection:
            self._queue_changes(watch, item, states)
        item.ready = True
        self._advance()

    def _queue_changes(self, watch: _Watch, item: _Item, states: list[NodeState]) -> None:
        """Queues the new states before ``item``, one callback each."""
        place = self._callbacks.index(item)
        changes = watch.state.differences(states)
        self._callbacks.rotate(-place)
        self._callbacks.extendleft(_Item(partial(self._report_change, watch, state, zxid)) for state, zxid in reversed(changes))
        self._callbacks.rotate(place)
        item.tell = partial(setattr, watch, "connection", self._connection)

    def _report_change(self, watch: _Watch, state: NodeState, zxid: int) -> None:
        if watch in self._watches and watch.state.record_change(state, zxid):
            watch.changed(state)

    async def _subtree(self, prefix: str, found: Sequence[tuple[NodeState, int] | None]) -> list[NodeState]:
        """All nodes from ``prefix`` on, level by level. Raises: KazooException."""
        states: list[NodeState] = []
        while True:
            level = [one for one in found if one is not None]
            states += [state for state, _ in level if state.path != "/"]
            parents = [state.path for state, children in level if children]
            names = await self._read_parts(ReadChildren, parents)
            paths = [f"{parent.rstrip('/')}/{name}" for parent, below_it in zip(parents, names, strict=True) for name in sorted(below_it)]
            if not self._root:
                paths = [path for path in paths if path != FOREIGN]
            if not paths:
                return states
            found = await self._read_parts(ReadNodes, paths)

    async def _read_parts(self, kind: type[ReadNodes] | type[ReadChildren], paths: Sequence[str]) -> list[Any]:
        replies = []
        for first in range(0, len(paths), READ_NODES):
            reply = self._loop.create_future()
            self._request(kind(paths[first : first + READ_NODES], self._root), partial(set_outcome, reply))
            replies.append(reply)
        return [one for part in await asyncio.gather(*replies) for one in part]

    # The session

    def _state_changed(self, state: SessionState) -> None:
        self._connection += 1
        if self._closed:
            return
        if state != "connected":
            # Pending events are void: everything is read again in the next connection.
            self._unread.clear()
            for reply in list(self._unanswered):
                reply.set_exception(ConnectionLoss())
            for item in self._callbacks:
                item.ready = True
            self._callbacks.append(_Item(partial(self._report_state, state)))
            return
        for watch in self._watches:
            self._show(watch)
        self._callbacks.append(_Item(partial(self._connected, self._connection)))

    def _connected(self, connection: int) -> None:
        """All changes were reported, unless the connection failed again meanwhile."""
        if all(watch.connection == connection for watch in self._watches) and connection == self._connection:
            self._report_state("connected")

    def _report_state(self, state: SessionState) -> None:
        if state == self._state:
            return
        self._state = state
        for changed in list(self._listeners):
            changed(state)

    def _unusable(self, reason: str) -> None:
        if self._failed is not None and not self._closed:
            self._failed(f"ZooKeeper at {self.connect.hosts} cannot be used: {reason}")


def set_outcome(future: asyncio.Future[Any], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, BaseException):
        future.set_exception(reply)
    else:
        future.set_result(reply)
