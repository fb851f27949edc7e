"""A non-blocking socket with TLS on top: OpenSSL encrypts and decrypts in memory, and the socket moves more than a record at a time.

::

    socket ── recv, up to a step ──▶ scratch ──▶ incoming BIO ──▶ OpenSSL ──▶ the caller's buffer
    socket ◀── send ── one ``bytes`` ◀── outgoing BIO ◀── OpenSSL ◀── the caller's bytes, up to a step

``ssl.SSLSocket`` needs two system calls for each record that it reads and one for each that it writes. A record has at most 16 KiB; clients
send smaller ones, for example two for each message of librdkafka. Here a system call moves a step, which costs a copy in memory.

A BIO keeps its memory until the connection ends. So a step is ``RECORD_BYTES`` at first, and ``STEP_BYTES`` for connections that move much;
at most ``GROWN_MAX`` connections of an event loop have that at a time. An idle connection has the memory of its handshake.

Source: decision 48.
"""

import contextlib
import socket
import ssl
import threading

from ottla.base.units import KiB

#: Largest record of TLS.
RECORD_BYTES = 16 * KiB
#: Bytes that a system call moves for a connection that moves much. Larger steps save no time, and do not fit the processor's cache.
STEP_BYTES = 128 * KiB
#: Such connections of one event loop; both BIOs of one keep up to 350 KiB.
GROWN_MAX = 192
#: Bytes of a handshake that are received at a time.
HANDSHAKE_BYTES = 4 * RECORD_BYTES
EMPTY = memoryview(b"")


class _Shared(threading.local):
    """What the connections of one event loop share, which is one thread."""

    def __init__(self) -> None:
        #: Ciphertext between socket and BIO, within one call.
        self.scratch = memoryview(bytearray(STEP_BYTES))
        #: Connections with large steps; at most GROWN_MAX.
        self.grown = 0


_shared = _Shared()


class TlsSocket:
    """A connected socket and its TLS. Owned by one thread at a time: first those of the handshake, then the loop's."""

    __slots__ = ("_drained", "_ended", "_incoming", "_outgoing", "_step", "secured", "sock", "unsent")

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str | None) -> None:
        """``sock``: non-blocking. ``server_name``: of the server, for a client. Raises: OSError; ValueError for no possible name."""
        self.sock = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.secured = context.wrap_bio(self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name)
        #: Ciphertext that the socket has not taken; nothing is encrypted meanwhile.
        self.unsent = EMPTY
        self._step = RECORD_BYTES
        #: Whether the last receive took all bytes that the kernel had.
        self._drained = False
        #: Whether the peer sends no more.
        self._ended = False

    def handshake(self) -> None:
        """One step of the handshake. Raises: SSLWantReadError or SSLWantWriteError when the next one needs the socket; OSError."""
        with contextlib.suppress(BlockingIOError):
            if received := self.sock.recv(HANDSHAKE_BYTES):
                self._incoming.write(received)
            else:
                self._incoming.write_eof()
        try:
            self.secured.do_handshake()
        except ssl.SSLWantReadError:
            if not self.send():
                raise ssl.SSLWantWriteError from None
            raise
        except OSError:
            # An alert tells the peer why.
            with contextlib.suppress(OSError):
                self.send()
            raise
        if not self.send():
            raise ssl.SSLWantWriteError

    def expect(self) -> None:
        """The kernel may have bytes again."""
        self._drained = False

    def read_into(self, buffer: memoryview) -> int:
        """Decrypts received bytes into a buffer; receives if there are none. Returns their number, 0 at the end of the stream, or -1 if
        the kernel has no bytes now. Raises: OSError.
        """
        incoming, secured = self._incoming, self.secured
        size = len(buffer)
        have = 0
        while have < size:
            if incoming.pending or secured.pending():
                try:
                    # typeshed has no overload with a buffer.
                    count: int = secured.read(size - have, buffer[have:] if have else buffer)  # type: ignore[assignment]
                except ssl.SSLWantReadError:
                    pass  # A part of a record.
                except ssl.SSLEOFError:
                    self._ended = True
                else:
                    if count:
                        have += count
                        continue
                    self._ended = True
            if have or self._ended:
                break
            if not self._receive():
                return -1
        return have

    def _receive(self) -> bool:
        """Whether bytes, or the end of the stream, were received."""
        if self._drained:
            return False
        scratch = _shared.scratch
        step = self._step
        try:
            count = self.sock.recv_into(scratch, step)
        except (BlockingIOError, InterruptedError):
            self._drained = True
            return False
        if not count:
            self._ended = True
            return True
        self._incoming.write(scratch[:count])
        if count < step:
            self._drained = True
        elif step < STEP_BYTES:
            self._grow()
        return True

    def room(self, waiting_bytes: int) -> int:
        """How many of these bytes to encrypt before the next ``send``."""
        if waiting_bytes > self._step < STEP_BYTES:
            self._grow()
        return self._step

    def send(self) -> bool:
        """Sends encrypted bytes. Returns whether all of them are sent. Raises: OSError."""
        unsent, outgoing = self.unsent, self._outgoing
        while True:
            if not unsent:
                if not outgoing.pending:
                    return True
                unsent = memoryview(outgoing.read())
            try:
                sent = self.sock.send(unsent)
            except (BlockingIOError, InterruptedError):
                self.unsent = unsent
                return False
            self.unsent = unsent = unsent[sent:]

    @property
    def answers(self) -> bool:
        """Whether OpenSSL made bytes by itself that are not sent."""
        return bool(self._outgoing.pending)

    def end(self, *, complete: bool) -> None:
        """Sends what the socket takes: an alert of OpenSSL, and if the stream is complete the message that nothing was cut off.

        The answer of the peer is not awaited.
        """
        if self._step > RECORD_BYTES:
            _shared.grown -= 1
            self._step = RECORD_BYTES
        with contextlib.suppress(OSError, ValueError):
            if complete:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self.secured.unwrap()
            self.send()

    def _grow(self) -> None:
        if _shared.grown < GROWN_MAX:
            _shared.grown += 1
            self._step = STEP_BYTES

    def close_read(self) -> None:
        """Closes the socket after its received bytes are read: with unread bytes the kernel resets the connection, and the peer may lose
        the alert that tells it why.
        """
        with contextlib.suppress(OSError, ValueError):
            self.sock.recv(HANDSHAKE_BYTES)
            self.sock.shutdown(socket.SHUT_WR)
        self.sock.close()
