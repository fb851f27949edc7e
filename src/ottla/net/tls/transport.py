"""A TLS transport for asyncio over a ``TlsSocket``, on every event loop with ``add_reader``.

::

    TCP connection ──▶ handshake ──▶ open ──▶ closing (rest of the buffer) ──▶ closed
                        │ steps in a thread pool;
                        │ between two steps only the loop waits
                        ▼
                      failed: TlsError, or the deadline

asyncio's own TLS transport decrypts into memory of its own and copies from there; this one decrypts into the protocol's buffer. A step of
the handshake takes up to a millisecond of processor time for a signature, so it runs in a thread, where OpenSSL releases the interpreter.
The socket does not block, so a slow peer holds no thread. A server takes its first step when the client's first record is complete, so a
client that sends it byte by byte costs no steps. Of many handshakes at once, ``HandshakeSteps`` hands few steps to the threads at a time.

A connection that is open belongs to the loop. The protocol gets all records that fit its buffer in one call.

Source: decision 48.
"""

import asyncio
import contextlib
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

from ottla.base.units import KiB
from ottla.net.tls.errors import TlsError, explained
from ottla.net.tls.tls_socket import RECORD_BYTES, TlsSocket

#: Header of a record: type, version, length; the type of the first one; largest length with its expansion.
HEADER_BYTES, HANDSHAKE_TYPE, LENGTH_MAX = 5, 0x16, RECORD_BYTES + 2 * KiB
#: A fatal alert: protocol_version.
PROTOCOL_VERSION_ALERT = b"\x15\x03\x03\x00\x02\x02\x46"
#: Bytes that one connection reads per turn of the loop.
TURN_BYTES = 256 * KiB
Buffer = bytes | bytearray | memoryview
Outcome = Callable[[TlsError | None], None]


class HandshakeSteps:
    """Hands the steps of handshakes to threads, in order and few at a time. Belongs to one event loop.

    To hand over a step costs the loop 40 µs. Without a limit, 200 clients that begin at once would have it for 8 ms in one turn.
    """

    def __init__(self, executor: Executor | None = None, *, at_once: int = 1) -> None:
        """``executor``: None for the default one of the loop. ``at_once``: one more than it has threads keeps them busy."""
        self.executor = executor
        self._at_once = at_once
        self._waiting: deque[Handshake] = deque()
        self._running = 0

    def add(self, handshake: "Handshake") -> None:
        """Calls its ``take_step`` when it has its turn."""
        self._waiting.append(handshake)
        self._hand_over()

    def ended(self) -> None:
        """A step has ended."""
        self._running -= 1
        self._hand_over()

    def _hand_over(self) -> None:
        while self._waiting and self._running < self._at_once:
            self._running += self._waiting.popleft().take_step()


class Handshake:
    """The handshake of one connection; owns the socket until ``done`` is called, once."""

    __slots__ = ("_deadline", "_done", "_first_bytes", "_hello_complete", "_loop", "_step", "_steps", "_watching", "tls")

    def __init__(self, tls: TlsSocket, steps: HandshakeSteps, *, timeout_s: float, done: Outcome) -> None:
        """Starts at once."""
        self.tls = tls
        self._steps = steps
        self._done: Outcome | None = done
        self._loop = asyncio.get_running_loop()
        #: What the loop waits for: the socket can be read, or written.
        self._watching = ""
        #: The step in a thread.
        self._step: asyncio.Future[None] | None = None
        #: Bytes of the client's first record that the kernel waits for before it reports any.
        self._first_bytes = 0
        #: Whether a step can be taken: a server has the ClientHello, the first record of a client.
        self._hello_complete = not tls.secured.server_side
        self._deadline = self._loop.call_later(timeout_s, self._expired, timeout_s)
        steps.add(self)

    def cancel(self) -> None:
        """Ends the handshake; ``done`` gets an error."""
        self._finish(TlsError("the connection was closed during the handshake"))

    def _has_first_record(self) -> bool:
        """Whether the record is complete, or will never be; else waits for the rest of it."""
        try:
            header = self._peek(HEADER_BYTES)
            if header[:1] not in (b"", bytes([HANDSHAKE_TYPE])):
                needed = 0
            elif len(header) < HEADER_BYTES:
                needed = HEADER_BYTES
            else:
                size = HEADER_BYTES + int.from_bytes(header[3:], "big")
                needed = size if size <= HEADER_BYTES + LENGTH_MAX and len(self._peek(size)) < size else 0
            # Reported with fewer bytes than it waits for: the client has closed its side.
            if needed > self._first_bytes:
                self._first_bytes = needed
                self.tls.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)
                self._watch("read")
                return False
            if self._first_bytes:
                self.tls.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError:
            # The step has the same error, and reports it.
            pass
        return True

    def _peek(self, size: int) -> bytes:
        """Received bytes, which stay in the kernel. Raises: OSError."""
        try:
            return self.tls.sock.recv(size, socket.MSG_PEEK)
        except BlockingIOError:
            return b""

    def _ready(self) -> None:
        self._watch("")
        self._steps.add(self)

    def take_step(self) -> bool:
        """Takes the next step in a thread. False: it takes none, because it is over or waits for the client's first record."""
        if self._done is None or not (self._hello_complete or self._has_first_record()):
            return False
        self._hello_complete = True
        self._step = self._loop.run_in_executor(self._steps.executor, self.tls.handshake)
        self._step.add_done_callback(self._stepped)
        return True

    def _stepped(self, step: asyncio.Future[None]) -> None:
        self._step = None
        self._steps.ended()
        error = None if step.cancelled() else step.exception()
        if self._done is None:
            # It was cancelled, or its time was over, while a thread used the socket.
            self.tls.sock.close()
        elif error is None:
            self._finish(None)
        elif isinstance(error, ssl.SSLWantReadError):
            self._watch("read")
        elif isinstance(error, ssl.SSLWantWriteError):
            self._watch("write")
        elif isinstance(error, OSError):
            if isinstance(error, ssl.SSLError) and error.reason == "WRONG_VERSION_NUMBER":
                with contextlib.suppress(OSError):
                    # OpenSSL sends no alert to a peer that does not speak TLS; clients of Kafka recognize one.
                    self.tls.sock.send(PROTOCOL_VERSION_ALERT)
            self._finish(explained(error))
        else:
            self._finish(TlsError(str(error)))

    def _expired(self, timeout_s: float) -> None:
        self._finish(TlsError(f"the TLS handshake was not complete within {timeout_s:g} s", timed_out=True))

    def _finish(self, error: TlsError | None) -> None:
        done, self._done = self._done, None
        if done is None:
            return
        self._deadline.cancel()
        self._watch("")
        if error is not None and self._step is None:
            self.tls.close_read()
        done(error)

    def _watch(self, what: str) -> None:
        before, self._watching = self._watching, what
        fd = self.tls.sock.fileno()
        if before == what or fd < 0:
            return
        if before:
            (self._loop.remove_writer if before == "write" else self._loop.remove_reader)(fd)
        if what:
            (self._loop.add_reader if what == "read" else self._loop.add_writer)(fd, self._ready)


class TlsTransport:
    """An open connection. Has what protocols use of ``asyncio.Transport``; the protocol must be a BufferedProtocol."""

    __slots__ = (
        "_backlog",
        "_backlog_bytes",
        "_closing",
        "_extra",
        "_fd",
        "_high",
        "_loop",
        "_lost",
        "_low",
        "_paused",
        "_protocol",
        "_protocol_paused",
        "_reading",
        "_tls",
        "_turn",
        "_write_wants_read",
        "_writing",
    )  # fmt: skip

    def __init__(self, tls: TlsSocket, protocol: Any, context: ssl.SSLContext) -> None:
        """Owns the socket, whose handshake is complete. Calls ``connection_made``, then reads."""
        self._loop = asyncio.get_running_loop()
        self._tls = tls
        self._fd = tls.sock.fileno()
        self._protocol = protocol
        self._extra = {
            "sockname": tls.sock.getsockname(), "peername": _peer(tls.sock), "ssl_object": tls.secured, "sslcontext": context,
        }  # fmt: skip
        #: Bytes that are not encrypted yet.
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._high, self._low = 64 * KiB, 16 * KiB
        self._protocol_paused = False
        #: Whether the protocol paused reading.
        self._paused = False
        self._closing = False
        self._lost = False
        #: Whether the loop watches the socket.
        self._reading = self._writing = False
        #: OpenSSL must read before it writes on.
        self._write_wants_read = False
        #: A scheduled read of bytes that OpenSSL already has.
        self._turn: asyncio.Handle | None = None
        protocol.connection_made(self)
        self._watch_reads()
        # The last message of the handshake may have come together with the first bytes.
        if not self._lost and not self._paused:
            self._turn = self._loop.call_soon(self._read)

    # What protocols use

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """``socket`` is not among them: bytes sent past TLS would break the connection."""
        return self._extra.get(name, default)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + len(self._tls.unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = 64 * KiB if low is None else 4 * low
        self._high, self._low = high, high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._paused = True
        self._watch_reads()

    def resume_reading(self) -> None:
        self._paused = False
        self._watch_reads()
        if not self._closing and self._turn is None:
            # OpenSSL may hold bytes that the kernel does not report.
            self._turn = self._loop.call_soon(self._read)

    def write(self, data: Buffer) -> None:
        """Sends what the socket takes now, and the rest later. The caller must not change the bytes afterwards."""
        if self._closing or not len(data):
            return
        idle = not self._backlog and not self._tls.unsent
        self._backlog.append(memoryview(data).cast("B"))
        self._backlog_bytes += len(data)
        if idle:
            self._flush()
        self._tell_water_marks()

    def writelines(self, buffers: Sequence[Buffer]) -> None:
        """As ``write``; small buffers share a record."""
        if sum(map(len, buffers)) <= RECORD_BYTES:
            self.write(b"".join(buffers))
            return
        if self._closing:
            return
        idle = not self._backlog and not self._tls.unsent
        for buffer in buffers:
            if len(buffer):
                self._backlog.append(memoryview(buffer).cast("B"))
                self._backlog_bytes += len(buffer)
        if idle:
            self._flush()
        self._tell_water_marks()

    def close(self) -> None:
        """Closes when all bytes are sent."""
        if self._closing:
            return
        self._closing = True
        self._watch_reads()
        if not self.get_write_buffer_size():
            self._end(None)

    def abort(self) -> None:
        """Closes at once; drops unsent bytes."""
        self._closing = True
        self._end(None)

    # Called by the loop

    def _readable(self) -> None:
        # One turn in each iteration of the loop.
        if self._turn is None:
            self._read()

    def _read(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        if self._write_wants_read:
            self._write_wants_read = False
            self._flush()
            self._tell_water_marks()
            self._watch_reads()
        tls, protocol = self._tls, self._protocol
        tls.expect()
        budget = TURN_BYTES
        while budget > 0:
            if self._paused or self._closing:
                return
            try:
                buffer = protocol.get_buffer(-1)
                count = tls.read_into(buffer if len(buffer) <= budget else buffer[:budget])
            except OSError as error:
                self._end(explained(error))
                return
            if count <= 0:
                break
            budget -= count
            protocol.buffer_updated(count)
        else:
            count = 1
        if tls.answers and not self._closing:
            # The peer renewed its keys and asked for ours.
            self._flush()
        if not count:
            self._end_of_stream()
        elif count > 0 and self._turn is None and not (self._paused or self._closing):
            # Other connections have a turn first. The kernel does not report bytes that OpenSSL holds.
            self._turn = self._loop.call_soon(self._read)

    def _end_of_stream(self) -> None:
        if not self._protocol.eof_received():
            self.close()

    def _can_write(self) -> None:
        self._flush()
        self._tell_water_marks()
        if not self._paused and not self._closing:
            self._read()

    def _flush(self) -> None:
        """Encrypts and sends the backlog, as far as the socket takes it."""
        backlog, tls = self._backlog, self._tls
        try:
            while (sent := tls.send()) and backlog:
                room = tls.room(self._backlog_bytes)
                while backlog and room > 0:
                    first = backlog[0]
                    count = tls.secured.write(first[:room])
                    room -= count
                    self._backlog_bytes -= count
                    if count == len(first):
                        backlog.popleft()
                    else:
                        backlog[0] = first[count:]
        except ssl.SSLWantReadError:
            self._write_wants_read = True
            self._watch_writes(False)
            return
        except OSError as error:
            self._end(explained(error))
            return
        self._watch_writes(not sent)
        if self._closing and sent:
            self._end(None)

    def _tell_water_marks(self) -> None:
        if self._lost:
            return
        waiting_bytes = self.get_write_buffer_size()
        if waiting_bytes > self._high and not self._protocol_paused:
            self._protocol_paused = True
            self._protocol.pause_writing()
        elif self._protocol_paused and waiting_bytes <= self._low:
            self._protocol_paused = False
            self._protocol.resume_writing()

    def _watch_reads(self) -> None:
        # A write that waits for the peer's bytes needs them although the protocol reads none.
        wanted = not self._lost and (self._write_wants_read or not (self._paused or self._closing))
        if wanted is not self._reading:
            self._reading = wanted
            if wanted:
                self._loop.add_reader(self._fd, self._readable)
            else:
                self._loop.remove_reader(self._fd)

    def _watch_writes(self, wanted: bool) -> None:
        if self._write_wants_read:
            self._watch_reads()
        if wanted is not self._writing and not self._lost:
            self._writing = wanted
            if wanted:
                self._loop.add_writer(self._fd, self._can_write)
            else:
                self._loop.remove_writer(self._fd)

    def _end(self, error: Exception | None) -> None:
        """Closes the socket, and tells the protocol in a later turn of the loop."""
        if self._lost:
            return
        complete = error is None and not self.get_write_buffer_size()
        self._closing = True
        self._watch_writes(False)
        self._lost = True
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)
        if self._turn is not None:
            self._turn.cancel()
        self._backlog.clear()
        self._backlog_bytes = 0
        self._tls.end(complete=complete)
        self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            # Without the cycle, OpenSSL's memory is freed when the protocol is, not by the garbage collector.
            self._protocol = None
            self._tls.sock.close()


def _peer(sock: socket.socket) -> Any:
    try:
        return sock.getpeername()
    except OSError:
        return None


def prepared(sock: socket.socket, context: ssl.SSLContext, *, server_name: str | None = None) -> TlsSocket:
    """The socket with TLS on top, before the handshake. ``server_name``: of the server, for a client. Raises: OSError, ValueError."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return TlsSocket(sock, context, server_name)
