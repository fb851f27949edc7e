"""Accepts connections, also when the process runs out of descriptors.

Without a free descriptor ``accept`` fails and the connection stays in the queue, so a retry loop would spin. The listener keeps one
descriptor in reserve. It closes the reserve, accepts the connection, closes it, and reopens the reserve.
"""

import asyncio
import contextlib
import errno
import logging
import os
import socket
from collections.abc import Iterator
from functools import partial
from itertools import count

import msgspec

from ottla.base.ids import ConnectionId
from ottla.base.origin import Origin
from ottla.net.connection_context import AuthenticationLimits, ConnectionContext, ListenerLimits, TokenBucket
from ottla.net.server_connection import Handler, ServerConnection
from ottla.net.tls.errors import TlsError, explained
from ottla.net.tls.listener_tls import ListenerTls, TlsState
from ottla.net.tls.tls_socket import TlsSocket
from ottla.net.tls.transport import Handshake, TlsTransport, prepared

log = logging.getLogger("ottla.net")

#: Connections accepted before other things have a turn: each takes 30 µs with TLS.
TURN_ACCEPTS = 8
#: Pause after an accept that failed without the reserve, too.
RETRY_S = 0.1
NO_LIMITS = ListenerLimits()
#: Connections of addresses above their quota that are open; further ones are closed at once.
THROTTLED_MAX = 256
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def bound_socket(host: str, port: int, *, backlog: int = 1024, send_bytes: int = -1, receive_bytes: int = -1) -> socket.socket:
    """A listening socket: on every IPv4 address when ``host`` is empty, on every address when it is ``::``, and on a free port when the
    port is 0. Its connections inherit the sizes of the send and receive buffers; -1: the kernel sizes them.

    Raises: OSError.
    """
    found = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, protocol, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        for name, size in ((socket.SO_SNDBUF, send_bytes), (socket.SO_RCVBUF, receive_bytes)):
            if size > 0:
                made.setsockopt(socket.SOL_SOCKET, name, size)
        made.bind(address)
        made.listen(backlog)
    except OSError:
        made.close()
        raise
    made.setblocking(False)
    return made


class Listener:
    """One listening socket and the connections accepted from it."""

    def __init__(
        self,
        listening: socket.socket,
        context: ConnectionContext,
        handler: Handler,
        *,
        name: str = "PLAINTEXT",
        limits: ListenerLimits = NO_LIMITS,
        numbers: Iterator[int] | None = None,
        authentication: AuthenticationLimits | None = None,
        tls: ListenerTls | None = None,
        protected: bool = False,
    ) -> None:
        """Owns the socket; accepts nothing before ``start``. ``numbers``: of connections, shared by the listeners of a handler.

        ``authentication``: limits of connections until the handler has authenticated them; None: they need not be. ``tls``: for a listener
        with TLS. ``protected``: its connections take the place of others if the process has too many.
        """
        #: As in ``listeners``.
        self.name = name
        self._tls = tls
        self._protected = protected
        #: Handshakes that are not complete.
        self._handshakes: dict[ServerConnection, Handshake] = {}
        self._limits = limits
        self._authentication = authentication
        self._accepts = TokenBucket(limits.connection_rate)
        self._numbers = count(1) if numbers is None else numbers
        self._socket = listening
        self._context = context
        self._handler = handler
        #: Connections pass requests to the handler itself.
        self.arrived = handler.arrived
        self._loop = asyncio.get_running_loop()
        self._connections: dict[ServerConnection, None] = {}
        self._starting: set[asyncio.Task[object]] = set()
        #: Reserved descriptor, closed to turn a connection away; -1 while it cannot be reopened.
        self._reserve = _reserved()
        self._retry: asyncio.TimerHandle | None = None
        #: Connections of addresses above their quota, with the timers that close them.
        self._throttled: dict[socket.socket, asyncio.TimerHandle] = {}
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the socket."""
        name = self._socket.getsockname()
        return str(name[0]), int(name[1])

    @property
    def connection_count(self) -> int:
        """Open connections."""
        return len(self._connections)

    def set_limits(self, limits: ListenerLimits) -> None:
        """Adopts limits; connections that are open stay open."""
        self._limits = limits
        self._accepts.set_rate(limits.connection_rate)

    def start(self) -> None:
        self._loop.add_reader(self._socket.fileno(), self._accept)

    def lost(self, connection: ServerConnection) -> None:
        self._forget(connection)
        self._handler.lost(connection)

    def stop_accepting(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            if self._reserve >= 0:
                os.close(self._reserve)
        for accepted in list(self._throttled):
            self._close_throttled(accepted)

    async def close(self, *, patience_s: float) -> None:
        """Stops accepting and closes every connection; aborts those whose peers do not read their last answers within ``patience_s``."""
        self.stop_accepting()
        if self._starting:
            await asyncio.wait(self._starting)
        for handshake in list(self._handshakes.values()):
            handshake.cancel()
        for connection in list(self._connections):
            connection.close("shutting down")
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._empty.wait(), patience_s)
        for connection in list(self._connections):
            connection.abort()
        await self._empty.wait()

    def _accept(self) -> None:
        for _ in range(TURN_ACCEPTS):
            if delay_s := self._token_delay_s():
                self._pause(delay_s)
                return
            try:
                accepted, address = self._socket.accept()
            except (BlockingIOError, InterruptedError):
                self._accepts.give_back()
                self._context.accepts.give_back()
                return
            except ConnectionError:
                continue
            except OSError as error:
                if error.errno not in EXHAUSTED:
                    raise
                if self._turn_away():
                    continue
                return
            host = str(address[0]).removeprefix("::ffff:")
            if len(self._connections) >= self._limits.connections_max:
                self._context.traffic.refused += 1
                accepted.close()
            elif self._context.address_rates and (throttle_ms := self._context.address_throttle_ms(host)):
                self._accepts.give_back()
                self._context.accepts.give_back()
                self._close_later(accepted, throttle_ms)
            elif self._context.admit(host, protected=self.name if self._protected else ""):
                self._begin(accepted, host)
            else:
                accepted.close()

    def _token_delay_s(self) -> float:
        """0 if a connection may be accepted now, which counts; else the time until one may."""
        now_s = self._loop.time()
        if delay_s := self._accepts.delay_s(now_s):
            return delay_s
        delay_s = self._context.accepts.delay_s(now_s)
        if delay_s:
            self._accepts.give_back()
        return delay_s

    def _close_later(self, accepted: socket.socket, throttle_ms: int) -> None:
        """Closes a connection of an address above its quota after the throttle time. Source: KIP-612."""
        if len(self._throttled) >= THROTTLED_MAX:
            accepted.close()
            return
        self._throttled[accepted] = self._loop.call_later(throttle_ms / 1000, self._close_throttled, accepted)

    def _close_throttled(self, accepted: socket.socket) -> None:
        self._throttled.pop(accepted).cancel()
        accepted.close()

    def _begin(self, accepted: socket.socket, host: str) -> None:
        accepted.setblocking(False)
        connection = ServerConnection(ConnectionId(next(self._numbers)), Origin(host=host, listener=self.name), self._context, self)
        if self._authentication is not None:
            connection.limit_until_authenticated(self._authentication)
        self._connections[connection] = None
        self._empty.clear()
        if self._tls is not None:
            self._shake_hands(connection, accepted, self._tls)
            return
        task: asyncio.Task[object] = self._loop.create_task(self._loop.connect_accepted_socket(lambda: connection, accepted))
        self._starting.add(task)
        task.add_done_callback(partial(self._begun, connection, accepted))

    def _begun(self, connection: ServerConnection, accepted: socket.socket, task: asyncio.Task[object]) -> None:
        self._starting.discard(task)
        if (task.cancelled() or task.exception() is not None) and not connection.made:
            accepted.close()
            self._context.dismiss(connection.host)
            self._forget(connection)

    def _shake_hands(self, connection: ServerConnection, accepted: socket.socket, tls: ListenerTls) -> None:
        used = tls.present
        try:
            secured = prepared(accepted, used.context.context)
        except OSError as error:
            accepted.close()
            self._turned_down(connection, explained(error))
            return
        self._context.handshaking += 1
        done = partial(self._shaken, connection, secured, used)
        timeout_s = self._context.limits.handshake_timeout_ms / 1000
        self._handshakes[connection] = Handshake(secured, tls.steps, timeout_s=timeout_s, done=done)

    def _shaken(self, connection: ServerConnection, secured: TlsSocket, used: TlsState, error: TlsError | None) -> None:
        self._context.handshaking -= 1
        self._handshakes.pop(connection, None)
        if error is not None:
            self._turned_down(connection, error)
            return
        try:
            principal = used.principal(secured.secured)
        except ValueError as refused:
            secured.sock.close()
            self._turned_down(connection, TlsError(str(refused)))
            return
        connection.origin = msgspec.structs.replace(connection.origin, principal=principal)
        TlsTransport(secured, connection, used.context.context)

    def _turned_down(self, connection: ServerConnection, error: TlsError) -> None:
        """The handshake failed."""
        self._context.traffic.cut["TLS handshake"] += 1
        log.info("closing connection %d from %s on listener %s: %s", connection.number, connection.host, self.name, error)
        self._context.dismiss(connection.host)
        self._forget(connection)

    def _forget(self, connection: ServerConnection) -> None:
        self._connections.pop(connection, None)
        if not self._connections:
            self._empty.set()

    def _turn_away(self) -> bool:
        """Accepts one connection on the reserved descriptor and closes it. False: none waits, or the accept failed."""
        if self._reserve >= 0:
            os.close(self._reserve)
        try:
            self._socket.accept()[0].close()
        except BlockingIOError:
            return False
        except OSError:
            self._pause()
            return False
        finally:
            self._reserve = _reserved()
        self._context.traffic.refused += 1
        return True

    def _pause(self, pause_s: float = RETRY_S) -> None:
        self._loop.remove_reader(self._socket.fileno())
        self._retry = self._loop.call_later(pause_s, self.start)


def _reserved() -> int:
    """A descriptor to close when one is needed; -1 when none is left."""
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
