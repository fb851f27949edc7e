"""A session with a ZooKeeper ensemble, 3.9 or later; with zookeeper_requests.py the only module that knows ZooKeeper.

kazoo has the connection: a thread that sends, receives, pings, and finds another server when one is gone. That thread only puts what
happens into an inbox; everything else is done here, on the owner's loop, in the order of the connection, which is the store's order::

    kazoo's thread    reply, event, change of state ──▶ inbox ──▶ loop: line of things to tell, told from its head as they become ready

An event of a recursive watch says which node changed, not what it holds, so it is ready once the node has been read; those that come
together are read together. Whatever comes after it in the line waits, so a change is heard before the answer to the write that made it.
Of a node that is read in another life than the event's (its creation is newer) nothing is told: the events of that life are on their way.

Watches end with the connection. When it is there again, a watch is set anew, all nodes are read, and what is news is told (``WatchState``);
then, and only then, the owner hears ``connected``. Reads are of hundreds of nodes each, so that ten thousand partitions take a second.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import ConnectionLoss, KazooException

from ottla.base.ports import NodeState, Op, SessionState, StoreResult
from ottla.store.tree import below
from ottla.store.watch_state import WatchState
from ottla.store.zookeeper.requests import DELETED, AddWatch, Multi, ReadChildren, ReadNodes, WatchEvent, read_event

log = logging.getLogger("ottla.store")

#: Nodes in one read; a reply of this many stays far below what a connection is slowed by.
READ_NODES = 500
#: Things told in one turn of the loop, as in the embedded store.
TURN_CHANGES = 50
#: What a server takes by default (jute.maxbuffer 0xfffff); it hangs up on more.
REQUEST_BYTES_MAX = 0xFFFFF
#: A request's length, number and type.
OVERHEAD_BYTES = 64
#: ZooKeeper's own nodes, in a store without a chroot.
FOREIGN = "/zookeeper"
STATES: dict[str, SessionState] = {KazooState.CONNECTED: "connected", KazooState.SUSPENDED: "suspended", KazooState.LOST: "lost"}


#: A session outlives this many servers that do not answer.
TURNS_MIN = 3


@dataclass(frozen=True, slots=True)
class Connect:
    """Where the ensemble is: ``HOST:PORT[,HOST:PORT...][/chroot]`` as in zookeeper.connect."""

    hosts: str
    chroot: str
    session_timeout_ms: int
    #: Longest wait for a first session; None waits without limit.
    connection_timeout_ms: int | None
    request_bytes_max: int = REQUEST_BYTES_MAX

    @classmethod
    def parse(cls, text: str, *, session_timeout_ms: int, connection_timeout_ms: int | None) -> "Connect":
        """Raises: ValueError, with what is wrong."""
        hosts, slash, chroot = text.strip().partition("/")
        chroot = (slash + chroot).rstrip("/")
        for host in hosts.split(","):
            port = host.rpartition(":")[2] if ":" in host else "2181"
            if not host.strip().partition(":")[0] or not port.strip().isdigit() or not 0 < int(port) < 65536:
                raise ValueError(f"expected HOST:PORT[,HOST:PORT...][/chroot], such as 127.0.0.1:2181/ottla, not {text!r}")
        if "//" in chroot:
            raise ValueError(f"the chroot {chroot!r} is not a path")
        return cls(hosts.replace(" ", ""), chroot, session_timeout_ms, connection_timeout_ms)

    @property
    def turns(self) -> str:
        """The servers in turn, for kazoo, which waits for each one's first answer as long as a session lasts, divided by how many there
        are.

        A server that is just starting may take a connection and never answer. If it is the only one, the session would end with that wait.
        """
        return ",".join([self.hosts] * -(-TURNS_MIN // len(self.hosts.split(","))))


class _Item:
    """Something to tell, in its place in the line; ``tell`` None means that nothing is to be told after all."""

    __slots__ = ("ready", "tell")

    def __init__(self, tell: Callable[[], None] | None, *, ready: bool = True) -> None:
        self.tell = tell
        self.ready = ready


class _Watch:
    """What one call of ``watch`` asked for."""

    __slots__ = ("changed", "connection", "prefix", "shown")

    def __init__(self, prefix: str, changed: Callable[[NodeState], None]) -> None:
        self.prefix = prefix
        self.changed = changed
        self.shown = WatchState()
        #: The connection of which the present state was told: its events count from there on.
        self.connection = -1


class _Reply:
    """Where kazoo puts what came of a request; the first outcome counts."""

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


class ZooKeeperSession:
    """One session; a ``Store``. Opened by ``open_session``; used on the loop that opened it."""

    def __init__(self, connect: Connect, *, failed: Callable[[str], None] | None = None) -> None:
        """``failed`` is told when this ensemble cannot be worked with at all."""
        self.connect = connect
        self._root = connect.chroot
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._inbox: deque[Callable[[], None]] = deque()
        self._woken = False
        self._lock = threading.Lock()
        self._line: deque[_Item] = deque()
        self._telling = False
        self._unread: list[tuple[WatchEvent, _Item]] = []
        self._watches: list[_Watch] = []
        self._listeners: list[Callable[[SessionState], None]] = []
        #: As the owner has been told.
        self._state: SessionState = "connected"
        #: Counts changes of the connection; what was asked before the last one is void.
        self._connection = 0
        #: Requests without an outcome. kazoo forgets one that is made in the moment in which a session expires.
        self._asked: dict[_Reply, None] = {}
        self._closed = False
        self._ending: asyncio.Future[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.client = KazooClient(
            hosts=connect.turns,
            timeout=connect.session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 1.0},
            logger=_quiet(logging.getLogger("ottla.store.kazoo")),
        )
        # kazoo knows one-shot watches only, by path, and tells them in another thread than answers, in any order. All events come by here.
        self.client._connection._read_watch_event = self._event_came
        self.client.add_listener(self._state_came)

    # The owner's side.

    def submit(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        if self._closed or self._state != "connected":
            self._tell(partial(done, StoreResult((), "session" if self._closed else "unavailable")))
            return
        request = Multi(ops, self._root)
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

    def listen(self, told: Callable[[SessionState], None]) -> None:
        self._listeners.append(told)

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
        """Returns when a session that was closed has ended."""
        if self._ending is not None:
            await asyncio.shield(self._ending)

    def _end(self) -> None:
        try:
            self.client.stop()
            self.client.close()
        except KazooException as error:
            log.info("the session with ZooKeeper was not closed in order: %s", error)

    # What comes from kazoo's thread.

    def _put(self, act: Callable[[], None]) -> None:
        """Into the inbox, from any thread."""
        with self._lock:
            self._inbox.append(act)
            if self._woken:
                return
            self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
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
            self._asked.pop(reply, None)
            then(value)

        reply = _Reply(self._put, outcome)
        self._asked[reply] = None
        self.client._call(request, reply)

    def _counts(self, watch: _Watch, path: str) -> bool:
        return watch.connection == self._connection and below(path, watch.prefix)

    # The line.

    def _tell(self, tell: Callable[[], None]) -> None:
        self._line.append(_Item(tell))
        if not self._telling:
            self._telling = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._telling = False
        self._advance()

    def _advance(self) -> None:
        """Tells from the head of the line what is ready; of much, a part in each turn of the loop."""
        if self._telling:
            return
        told = 0
        while self._line and self._line[0].ready:
            if told == TURN_CHANGES:
                self._telling = True
                self._loop.call_soon(self._turn)
                return
            item = self._line.popleft()
            if item.tell is not None:
                item.tell()
                told += 1

    def _answered(self, done: Callable[[StoreResult], None], reply: Any) -> None:
        if isinstance(reply, BaseException):
            # Whether the server did it is not known: the connection ended after it was asked, or before.
            reply = [StoreResult((), "session" if self._closed else "unavailable")]
        self._line.append(_Item(partial(done, reply[0])))

    # Events.

    def _event(self, event: WatchEvent) -> None:
        if event.zxid <= 0:
            self._unusable("its servers do not tell the transaction of an event; ZooKeeper 3.9 or later is needed")
            return
        if below(event.path, FOREIGN) and not self._root:
            return
        if event.kind == DELETED:
            self._line.append(_Item(partial(self._gone, event)))
        else:
            item = _Item(None, ready=False)
            self._line.append(item)
            self._unread.append((event, item))

    def _gone(self, event: WatchEvent) -> None:
        for watch in list(self._watches):
            if self._counts(watch, event.path) and watch.shown.tells_end(event.path, event.zxid):
                watch.changed(NodeState(event.path, None))

    def _read_changed(self) -> None:
        """Reads the nodes of all events that came."""
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
            if self._counts(watch, state.path) and watch.shown.tells(state):
                watch.changed(state)

    # Watches: the present state at the beginning, and what changed after a silence.

    def _show(self, watch: _Watch) -> None:
        """Sets the watch at the servers and tells what is news of everything below it."""
        self._request(AddWatch(watch.prefix, self._root), lambda reply: None)
        item = _Item(None, ready=False)
        self._line.append(item)
        first = self._loop.create_future()
        self._request(ReadNodes([watch.prefix], self._root), partial(settle, first))
        task = self._loop.create_task(self._read_all(watch, item, first, self._connection))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _read_all(self, watch: _Watch, item: _Item, first: asyncio.Future[Any], connection: int) -> None:
        try:
            states = await self._subtree(watch.prefix, await first)
        except KazooException:
            # The connection is gone; when it is back, everything is read again.
            states = []
            connection = -1
        if connection == self._connection:
            self._put_into_line(watch, item, states)
        item.ready = True
        self._advance()

    def _put_into_line(self, watch: _Watch, item: _Item, states: list[NodeState]) -> None:
        """The news, one item each so that it can be told in parts, in the place before ``item``."""
        place = self._line.index(item)
        news = watch.shown.differences(states)
        self._line.rotate(-place)
        self._line.extendleft(_Item(partial(self._tell_news, watch, state, zxid)) for state, zxid in reversed(news))
        self._line.rotate(place)
        item.tell = partial(setattr, watch, "connection", self._connection)

    def _tell_news(self, watch: _Watch, state: NodeState, zxid: int) -> None:
        if watch in self._watches and watch.shown.takes(state, zxid):
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
            self._request(kind(paths[first : first + READ_NODES], self._root), partial(settle, reply))
            replies.append(reply)
        return [one for part in await asyncio.gather(*replies) for one in part]

    # The session.

    def _state_changed(self, state: SessionState) -> None:
        self._connection += 1
        if self._closed:
            return
        if state != "connected":
            # What was read or is to be read of events is void: all of it comes with the next connection.
            self._unread.clear()
            for reply in list(self._asked):
                reply.set_exception(ConnectionLoss())
            for item in self._line:
                item.ready = True
            self._line.append(_Item(partial(self._tell_state, state)))
            return
        for watch in self._watches:
            self._show(watch)
        self._line.append(_Item(partial(self._connected, self._connection)))

    def _connected(self, connection: int) -> None:
        """All that changed was told, unless the connection went again meanwhile."""
        if all(watch.connection == connection for watch in self._watches) and connection == self._connection:
            self._tell_state("connected")

    def _tell_state(self, state: SessionState) -> None:
        if state == self._state:
            return
        self._state = state
        for told in list(self._listeners):
            told(state)

    def _unusable(self, reason: str) -> None:
        if self._failed is not None and not self._closed:
            self._failed(f"ZooKeeper at {self.connect.hosts} cannot be used: {reason}")


def _quiet(kazoo: logging.Logger) -> logging.Logger:
    """kazoo warns at each attempt to connect; the owner is told once that the session is suspended, and once that it is back."""
    if not kazoo.filters:
        kazoo.addFilter(lambda record: record.levelno >= logging.ERROR or log.isEnabledFor(logging.INFO))
    return kazoo


def settle(future: asyncio.Future[Any], reply: Any) -> None:
    if future.done():
        return
    if isinstance(reply, BaseException):
        future.set_exception(reply)
    else:
        future.set_result(reply)
