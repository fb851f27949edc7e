"""Requests from one broker to another: a direct call within the process, the network otherwise. The request is the client's, unchanged.

Another process answers as if a client sent the request. The client id ``PEER`` prevents the request from being forwarded again. When the
connection fails there is no answer, and it is unknown whether the request took effect.

A broker handles the requests of one connection one after another. A follower's fetch waits there for records, and a forwarded request may
wait for the store; a change of an ISR must not wait behind them. So each kind of request has its own connections, opened on demand. No
request waits for another while there are fewer than ``CONNECTIONS_MAX``; for fetches there are no more connections than fetchers.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Protocol

from ottla.base.ids import BrokerId
from ottla.base.options import ConfigError
from ottla.base.units import MiB
from ottla.broker.registration.peers import PEER
from ottla.net.client_connection import ClientConnection, ConnectionBroken, open_connection
from ottla.net.sasl.login import Login, LoginFailed, log_in
from ottla.net.tls.context import TlsContext
from ottla.wire.messages.fetch import FetchRequest

log = logging.getLogger("ottla.server")

CONNECT_MS = 10_000
#: Of SaslAuthenticate, that brokers use among themselves.
AUTHENTICATE_VERSIONS = (1, 2)
#: To one broker, for requests of one kind.
CONNECTIONS_MAX = 8
#: Larger than any answer of a controller.
FRAME_BYTES_MAX = 100 * MiB

Address = tuple[str, int]


class _PeerConnection:
    """An open or opening connection to a broker."""

    __slots__ = ("address", "opening", "tls", "waiting")

    def __init__(self, address: Address, tls: TlsContext | None, login: Callable[[], Login] | None) -> None:
        self.address = address
        self.tls = tls
        self.opening = asyncio.get_running_loop().create_task(_open(address, tls, login))
        #: Requests that wait for the connection or for their answer.
        self.waiting = 0

    @property
    def broken(self) -> bool:
        opened = self.opening
        return opened.done() and (opened.cancelled() or opened.exception() is not None or opened.result().broken is not None)

    def close(self) -> None:
        if not self.opening.done():
            self.opening.cancel()
        elif not self.broken:
            self.opening.result().close()


class LocalBroker(Protocol):
    """A broker of the same process."""

    def handle_peer_request(self, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Handles a request; ``answered`` gets the response."""


class Peers(Protocol):
    """Reaches the other brokers of the cluster."""

    def send(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request; ``answered`` gets the response in a later turn of the loop, or None without one."""
        ...


class PeerClient:
    """Sends the requests of one broker to the others."""

    def __init__(
        self,
        shells: Mapping[BrokerId, LocalBroker],
        address_of: Callable[[BrokerId], Address | None],
        *,
        timeout_ms: int = 30_000,
        tls: Callable[[], TlsContext | None] = lambda: None,
        login: Callable[[], Login] | None = None,
    ) -> None:
        """``shells`` are the brokers of this process; ``address_of`` gives the registered address of a broker of another process; ``tls``
        gives the present certificates of this broker.

        ``login`` gives the credentials for a new connection, or raises ConfigError; None: the listener between brokers has no SASL.
        """
        self._tls = tls
        self._login = login
        self._shells = shells
        self._timeout_ms = timeout_ms
        self._address_of = address_of
        #: By broker and kind of request.
        self._connections: dict[tuple[BrokerId, type[Any]], list[_PeerConnection]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Sends a request; ``answered`` gets the response in a later turn of the loop, or None without one."""
        loop = asyncio.get_running_loop()
        local = self._shells.get(broker)
        if local is not None:
            loop.call_soon(local.handle_peer_request, message, version, answered)
            return
        task = loop.create_task(self._send(broker, message, version, answered))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Closes all connections; pending requests get no answer."""
        for task in self._tasks:
            task.cancel()
        for connection in [connection for connections in self._connections.values() for connection in connections]:
            connection.close()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _send(self, broker: BrokerId, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        answer = None
        connection = self._connection(broker, type(message))
        if connection is not None:
            connection.waiting += 1
            try:
                # The cancellation of one request must not cancel the connection of the others.
                opened = await asyncio.shield(connection.opening)
                answer = await opened.request(message, version, timeout_ms=self._timeout_ms)
            except ConnectionBroken:
                answer = None
            finally:
                connection.waiting -= 1
        answered(answer)

    def _connection(self, broker: BrokerId, kind: type[Any]) -> _PeerConnection | None:
        """An idle connection if the limit permits, else the least busy one. None: the broker is not registered."""
        address = self._address_of(broker)
        if address is None:
            return None
        known = self._connections.setdefault((broker, kind), [])
        tls = self._tls()
        # Exchanged certificates apply to new connections: an idle old one is closed.
        for old in [old for old in known if old.broken or old.address != address or (old.tls is not tls and not old.waiting)]:
            known.remove(old)
            old.close()
        best = min(known, key=lambda connection: connection.waiting, default=None)
        if best is None or (best.waiting and (kind is FetchRequest or len(known) < CONNECTIONS_MAX)):
            best = _PeerConnection(address, tls, self._login)
            known.append(best)
        return best


async def _open(address: Address, tls: TlsContext | None, login: Callable[[], Login] | None) -> ClientConnection:
    """Raises: ConnectionBroken."""
    link = await open_connection(
        *address, client_id=PEER, frame_bytes_max=FRAME_BYTES_MAX, timeout_ms=CONNECT_MS, lost=lambda why: None, tls=tls
    )
    if login is not None:
        try:
            await log_in(link, login(), host=address[0], versions=AUTHENTICATE_VERSIONS, timeout_ms=CONNECT_MS, rng=Random())
        except (LoginFailed, ConfigError) as error:
            link.close("not authenticated")
            log.warning("this broker is not authenticated by another one: %s", error)
            raise ConnectionBroken(str(error)) from None
    return link
