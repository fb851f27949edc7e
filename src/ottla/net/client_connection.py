"""A client's connection to one broker. Requests are pipelined; answers arrive in the same order.

    request --> writelines --> broker --> [size][correlation id][body] --> the oldest pending request

Bytes are read into one small buffer. A frame that does not fit gets its own buffer of the exact size. A decoded message may keep views of
its frame, as records do, so a frame's buffer is never reused.

A connection breaks once and does not recover. Causes: the peer closes it, the operating system reports an error, a frame is too large or
malformed, an answer does not match the oldest request, a request times out. Then every pending request fails with a `ConnectionBroken`
that names the address, the request and the cause. It is unknown whether the broker performed the request. The owner reconnects.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ottla.net.buffers import unwritten
from ottla.net.tls.connect import connect_tls
from ottla.net.tls.errors import TlsError
from ottla.wire.declare import MalformedMessage, schema_of
from ottla.wire.framing import decode_response, encode_request
from ottla.wire.messages import API

if TYPE_CHECKING:
    # Imported on use: programs without TLS do not need the library for certificates.
    from ottla.net.tls.context import TlsContext

#: Holds many small answers at once, and the head of a large one.
SCRATCH_BYTES = 64 * 1024
#: A broker may refuse requests of this size: socket.request.max.bytes is 100 MiB by default, and is often set lower.
LARGE_REQUEST_BYTES = 10 * 1024 * 1024
#: A response is at least its correlation id.
FRAME_BYTES_MIN = 4


class ConnectionBroken(ConnectionError):
    """A connection failed or could not be made; the message names the address and the cause."""

    def __init__(self, message: str, *, timed_out: bool = False, permanent: bool = False) -> None:
        super().__init__(message)
        #: TLS failed, and the next attempt fails in the same way.
        self.permanent = permanent
        #: The peer did not answer in time, as opposed to closing the connection.
        self.timed_out = timed_out


class _Pending:
    """A request without an answer yet."""

    __slots__ = ("answer", "correlation_id", "deadline", "decode", "name", "timeout_ms")

    def __init__(
        self,
        correlation_id: int,
        name: str,
        decode: Callable[[memoryview], Any],
        answer: asyncio.Future[Any],
        deadline: float,
        timeout_ms: float,
    ) -> None:
        self.correlation_id = correlation_id
        self.name = name
        self.decode = decode
        self.answer = answer
        self.deadline = deadline
        self.timeout_ms = timeout_ms


class ClientConnection(asyncio.BufferedProtocol):
    """Made by `open_connection`."""

    def __init__(self, address: str, *, client_id: str, frame_bytes_max: int, lost: Callable[[ConnectionBroken], None]) -> None:
        self.address = address
        #: Why the connection is broken; None while it works.
        self.broken: ConnectionBroken | None = None
        self._client_id = client_id
        self._frame_bytes_max = frame_bytes_max
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._pending: deque[_Pending] = deque()
        self._correlation_id = 0
        self._answered = 0
        #: Whether there were answers, and all were to ApiVersions.
        self._only_versions = False
        #: Size of the largest request sent.
        self._largest_bytes = 0
        #: Requests that wait while the session is renewed, with their answers, oldest first; None: none has to wait.
        self._held: list[tuple[_Pending | None, list[Any]]] | None = None
        #: The next, or present, renewal of the session; cancelled when the connection breaks.
        self.renewal: asyncio.TimerHandle | asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._scratch = bytearray(SCRATCH_BYTES)
        self._scratch_view = memoryview(self._scratch)
        #: Scratch bytes begin..end are received and not yet consumed.
        self._begin = 0
        self._end = 0
        #: A frame too large for the scratch, and its received bytes.
        self._frame: bytearray | None = None
        self._frame_filled = 0

    # -- requests

    @property
    def in_flight(self) -> int:
        """Requests without an answer yet."""
        return len(self._pending) + len(self._held or ())

    @property
    def certificate_ends_s(self) -> float | None:
        """When the broker's certificate expires, in seconds since 1970; None without TLS."""
        secured = None if self._transport is None else self._transport.get_extra_info("ssl_object")
        found = secured.getpeercert() if secured is not None else None
        return ssl.cert_time_to_seconds(found["notAfter"]) if found else None

    def request(self, message: Any, version: int, *, timeout_ms: float, held: bool = True) -> asyncio.Future[Any]:
        """Send a request; the future gives the decoded response. ``held``: not while others are held.

        Raises: ConnectionBroken, here or in the future; FieldNotInVersion when the message sets a field that the version lacks.
        """
        response = API[_key_of(type(message))].response

        def decode(frame: memoryview) -> Any:
            return decode_response(response, frame, version)[1]

        return self.exchange(message, version, decode, timeout_ms=timeout_ms, held=held)

    def exchange(
        self, message: Any, version: int, decode: Callable[[memoryview], Any], *, timeout_ms: float, held: bool = True
    ) -> asyncio.Future[Any]:
        """Send a request whose answer the caller decodes, from the frame that begins with the correlation id."""
        correlation_id, chunks = self._encoded(message, version)
        answer: asyncio.Future[Any] = self._loop.create_future()
        deadline = self._loop.time() + timeout_ms / 1000
        name = f"{type(message).__name__.removesuffix('Request')} v{version}"
        pending = _Pending(correlation_id, name, decode, answer, deadline, timeout_ms)
        if held and self._held is not None:
            self._held.append((pending, chunks))
        else:
            self._send_pending(pending, chunks)
        return answer

    def send(self, message: Any, version: int) -> int:
        """Send a request that is not answered (produce with acks=0); returns its correlation id. Raises: ConnectionBroken."""
        correlation_id, chunks = self._encoded(message, version)
        if self._held is not None:
            # The caller may reuse the memory of its records.
            self._held.append((None, [bytes(chunk) for chunk in chunks]))
        else:
            self._write(chunks)
        return correlation_id

    def hold(self) -> None:
        """Requests wait until ``resume``, except those with ``held=False``: the session is being renewed."""
        self._held = [] if self._held is None else self._held

    def resume(self) -> None:
        """Sends the requests that waited."""
        held, self._held = self._held, None
        if self.broken is None:
            for pending, chunks in held or ():
                if pending is None:
                    self._write(chunks)
                else:
                    self._send_pending(pending, chunks)

    def _encoded(self, message: Any, version: int) -> tuple[int, list[Any]]:
        """Correlation id and frame of a request. Raises: ConnectionBroken."""
        if self.broken is not None or self._transport is None:
            raise self.broken or ConnectionBroken(f"{self.address}: not connected")
        self._correlation_id = self._correlation_id + 1 & 0x7FFFFFFF
        chunks = encode_request(message, version, self._correlation_id, self._client_id)
        self._largest_bytes = max(self._largest_bytes, sum(map(len, chunks)))
        return self._correlation_id, chunks

    def _send_pending(self, pending: _Pending, chunks: list[Any]) -> None:
        self._write(chunks)
        self._pending.append(pending)
        if self._timer is None or pending.deadline < self._timer_at:
            self._arm(pending.deadline)

    def _write(self, chunks: list[Any]) -> None:
        assert self._transport is not None, "requests are sent when the connection is made"
        if len(chunks) == 1:
            self._transport.write(cast(bytes, chunks[0]))
        else:
            self._transport.writelines(cast(list[bytes], chunks))

    def close(self, reason: str = "closed") -> None:
        """Close the connection; pending requests fail."""
        self._break(ConnectionBroken(f"{self.address}: {reason}"))

    # -- deadlines

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._loop.call_at(deadline, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer = None
        if not self._pending:
            return
        first = min(self._pending, key=lambda pending: pending.deadline)
        if first.deadline > self._loop.time():
            self._arm(first.deadline)
            return
        hint = "" if self._answered else "; is it a Kafka broker, without TLS at this port?"
        why = f"{self.address} did not answer {first.name} within {first.timeout_ms:.0f} ms; connection given up{hint}"
        self._break(ConnectionBroken(why, timed_out=True))

    # -- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A stream transport of some loop; uvloop's is not a subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._frame_filled :]
        if self._begin == self._end:
            self._begin = self._end = 0
        return self._scratch_view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        try:
            if self._frame is not None:
                self._frame_filled += nbytes
                if self._frame_filled == len(self._frame):
                    frame, self._frame = self._frame, None
                    self._receive(memoryview(frame))
                return
            self._end += nbytes
            self._split()
        except MalformedMessage as error:
            self._break(ConnectionBroken(f"{self.address} sent bytes that are not a Kafka response: {error}"))

    def eof_received(self) -> None:
        self._break(self._hung_up(None))

    def connection_lost(self, exc: Exception | None) -> None:
        self._break(self._hung_up(exc))

    def _hung_up(self, exc: Exception | None) -> ConnectionBroken:
        if isinstance(exc, TlsError) and exc.permanent:
            return ConnectionBroken(f"{self.address}: {exc}", permanent=True)
        cause = f": {exc}" if exc else ""
        if self._answered == 0 and self._pending:
            hint = "; is it a PLAINTEXT listener of a Kafka broker? One with TLS hangs up like this, and so does ZooKeeper"
            return ConnectionBroken(f"{self.address} closed the connection before it answered {self._pending[0].name}{cause}{hint}")
        if self._only_versions and self._pending:
            hint = "; a listener with SASL hangs up like this on a client without it: set security_protocol and sasl_mechanism"
            return ConnectionBroken(f"{self.address} closed the connection before it answered {self._pending[0].name}{cause}{hint}")
        waiting = f" while {self._pending[0].name} was waiting for its answer" if self._pending else ""
        hint = ""
        if self._largest_bytes >= LARGE_REQUEST_BYTES:
            hint = f"; a request had {self._largest_bytes} bytes, and brokers hang up when one has more than their socket.request.max.bytes"
        return ConnectionBroken(f"{self.address} closed the connection{waiting}{cause}{hint}")

    # -- frames

    def _split(self) -> None:
        """Take complete frames out of the scratch; give a frame that does not fit its own buffer."""
        while self._end - self._begin >= 4 and self.broken is None:
            size = int.from_bytes(self._scratch_view[self._begin : self._begin + 4], "big", signed=True)
            if not FRAME_BYTES_MIN <= size <= self._frame_bytes_max:
                raise MalformedMessage(self._strange_size(size))
            start, have = self._begin + 4, self._end - self._begin - 4
            if have >= size:
                self._begin = start + size
                self._receive(memoryview(bytes(self._scratch_view[start : start + size])))
            elif size + 4 > SCRATCH_BYTES - self._begin:
                frame = unwritten(size)
                frame[:have] = self._scratch_view[start : self._end]
                self._frame, self._frame_filled = frame, have
                self._begin = self._end = 0
                return
            else:
                return
        if self._begin and SCRATCH_BYTES - self._end < 4:
            # The scratch has no room for a length field; move the bytes to its start.
            left = bytes(self._scratch_view[self._begin : self._end])
            self._begin, self._end = 0, len(left)
            self._scratch_view[: len(left)] = left

    def _strange_size(self, size: int) -> str:
        head = bytes(self._scratch_view[self._begin : min(self._end, self._begin + 20)])
        if head.startswith(b"HTTP"):
            return "an HTTP server answers at this address, not a Kafka broker; check the port"
        if head[:2] in (b"\x15\x03", b"\x16\x03"):
            return "the listener speaks TLS, and this client does not; set security_protocol=SSL or SASL_SSL, or use another port"
        if head.isascii() and (text := head.decode().split("\r")[0].split("\n")[0]).isprintable() and len(text) > 3:
            return f"it begins with {text!r}; another kind of server answers at this address, not a Kafka broker; check the port"
        return f"a frame of {size} bytes is announced; allowed are {FRAME_BYTES_MIN} to {self._frame_bytes_max} (receive_message_max_bytes)"

    def _receive(self, frame: memoryview) -> None:
        correlation_id = int.from_bytes(frame[:4], "big", signed=True)
        if not self._pending:
            raise MalformedMessage(f"an answer with correlation id {correlation_id} to no request")
        pending = self._pending.popleft()
        try:
            if correlation_id != pending.correlation_id:
                raise MalformedMessage(
                    f"the answer to {pending.name} should carry correlation id {pending.correlation_id}, not {correlation_id}"
                )
            message = pending.decode(frame)
        except MalformedMessage:
            self._pending.appendleft(pending)
            raise
        self._answered += 1
        self._only_versions = pending.name.startswith("ApiVersions ") and (self._only_versions or self._answered == 1)
        if not pending.answer.done():
            pending.answer.set_result(message)

    # -- the end

    def _break(self, why: ConnectionBroken) -> None:
        if self.broken is not None:
            return
        self.broken = why
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._transport is not None:
            self._transport.abort()
        if self.renewal is not None and self.renewal is not _current_task():
            self.renewal.cancel()
        pending, self._pending = [*self._pending, *(held for held, _ in self._held or () if held is not None)], deque()
        self._held = None
        for one in pending:
            if not one.answer.done():
                one.answer.set_exception(ConnectionBroken(str(why), timed_out=why.timed_out, permanent=why.permanent))
                # Marks the exception as read: a caller that stopped waiting must not cause the loop's warning.
                one.answer.exception()
        self._lost(why)


def _current_task() -> asyncio.Task[Any] | None:
    """The running task; None in a callback."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


_keys: dict[type[Any], int] = {}


def _key_of(message: type[Any]) -> int:
    key = _keys.get(message)
    if key is None:
        found = schema_of(message).key
        assert found is not None, f"{message.__name__} is a request"
        key = _keys[message] = found
    return key


async def open_connection(
    host: str,
    port: int,
    *,
    client_id: str,
    frame_bytes_max: int,
    timeout_ms: float,
    lost: Callable[[ConnectionBroken], None],
    send_buffer_bytes: int = -1,
    receive_buffer_bytes: int = -1,
    tls: TlsContext | None = None,
) -> ClientConnection:
    """Connect to a broker; with `tls`, over TLS. `lost` is called once, when the connection breaks.

    Raises: ConnectionBroken: unknown host, connection refused, timeout, TLS failed, or another error of the system.
    """
    loop = asyncio.get_running_loop()
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        async with asyncio.timeout(timeout_ms / 1000):

            def make() -> ClientConnection:
                return ClientConnection(address, client_id=client_id, frame_bytes_max=frame_bytes_max, lost=lost)

            if tls is not None:
                buffers = (send_buffer_bytes, receive_buffer_bytes)
                return await connect_tls(make, host, port, tls, timeout_s=timeout_ms / 1000, tune=lambda sock: _tune(sock, *buffers))
            transport, connection = await loop.create_connection(make, host, port)
    except TimeoutError:
        raise ConnectionBroken(
            f"no connection to {address} within {timeout_ms:.0f} ms: nothing answers there;"
            " check the address, the firewall, and that the host is up",
            timed_out=True,
        ) from None
    except TlsError as error:
        raise ConnectionBroken(f"{address}: {error}", timed_out=error.timed_out, permanent=error.permanent) from None
    except socket.gaierror as error:
        raise ConnectionBroken(f"cannot find the host of {address}: {error.strerror}; check the spelling and the name service") from None
    except OSError as error:
        # For a name with several addresses asyncio combines their errors in one text.
        if isinstance(error, ConnectionRefusedError) or "Errno 111" in str(error) or "Connection refused" in str(error):
            raise ConnectionBroken(f"connection refused by {address}: nothing listens on that port; is the broker running?") from None
        raise ConnectionBroken(f"no connection to {address}: {error.strerror or error}") from None
    sock = transport.get_extra_info("socket")
    if sock is not None:
        _tune(sock, send_buffer_bytes, receive_buffer_bytes)
    return connection


def _tune(sock: socket.socket, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if receive_buffer_bytes > 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
