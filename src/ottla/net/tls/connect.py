"""Opens TLS connections to servers."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ottla.net.tls.errors import TlsError, explained
from ottla.net.tls.transport import Handshake, HandshakeSteps, TlsTransport, prepared

if TYPE_CHECKING:
    # Imported on use: programs without TLS do not need the library for certificates.
    from ottla.net.tls.context import TlsContext

P = TypeVar("P")


async def connect_tls(
    make: Callable[[], P],
    host: str,
    port: int,
    tls: TlsContext,
    *,
    timeout_s: float,
    tune: Callable[[socket.socket], None] = lambda sock: None,
) -> P:
    """Connects, and passes the connection to a new protocol. ``timeout_s``: of the handshake. ``tune`` sets options of the socket.

    Raises: TlsError, OSError.
    """
    sock = await _connected(host, port)
    try:
        tune(sock)
        secured = prepared(sock, tls.context, server_name=host)
    except ValueError:
        sock.close()
        raise TlsError(f"{host!r} is no name that a certificate can have", permanent=True) from None
    except OSError as error:
        sock.close()
        raise explained(error) from None
    finished: asyncio.Future[TlsError | None] = asyncio.get_running_loop().create_future()

    def done(error: TlsError | None) -> None:
        if finished.done():
            # The caller was cancelled.
            if error is None:
                secured.sock.close()
        else:
            finished.set_result(error)

    handshake = Handshake(secured, HandshakeSteps(), timeout_s=timeout_s, done=done)
    try:
        problem = await finished
    except asyncio.CancelledError:
        handshake.cancel()
        raise
    if problem is not None:
        raise problem
    protocol = make()
    TlsTransport(secured, protocol, tls.context)
    return protocol


async def _connected(host: str, port: int) -> socket.socket:
    """A connected socket, from the addresses of the host in order. Raises: OSError of the last one."""
    loop = asyncio.get_running_loop()
    last: OSError = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    found: list[Any] = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            await loop.sock_connect(sock, address)
        except OSError as error:
            last = error
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            return sock
    raise last
