"""One connection of a server: receives frames and sends answers in the same order.

::

             read                   whole frame                answered, and the answer is on its way
    OPEN ──────────▶ frame begun ───────────────▶ in work ───────────────────────────────────────────▶ OPEN
                     (waits for memory first)     (muted: later bytes are held, a few, then not read)

A connection handles one request at a time, except Produce: up to ``PRODUCES_IN_WORK`` of them may wait for the disk together, so that one
flush serves all requests in flight of a producer. Requests are dispatched in order, and answers are sent in order.

A listener with SASL calls ``limit_until_authenticated``. Until ``authenticated`` is called, frames are small, their buffers grow with the
received bytes, and the connection has a deadline, whatever it sends.

Bytes are read into a buffer that all connections share. A frame that is complete there is dispatched without a copy. Another one takes
request memory and its own buffer, and the rest is received into that. Further bytes are held until the current request is answered. So a
connection has a buffer only while it receives a frame.

A frame is valid only while ``arrived`` runs; its buffer is reused afterwards. The handler may change the bytes. A handler that needs a
large frame for longer, to decode it in turns, keeps it: no further request is dispatched meanwhile.

An exception of a handler closes that connection and affects no other.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Sequence
from typing import Any, Protocol, cast

import msgspec

from ottla.base.ids import ConnectionId
from ottla.base.origin import Origin
from ottla.net.connection_context import DUPLICATES_MAX, WINDOW_BYTES, AuthenticationLimits, ConnectionContext
from ottla.net.egress import Egress

log = logging.getLogger("ottla.net")

#: Requests of one connection per turn of the loop.
TURN_REQUESTS = 5
#: Produce requests of one connection handled together: an idempotent producer has at most this many in flight.
PRODUCES_IN_WORK = 5
PRODUCE = b"\0\0"
#: A connection that holds this many bytes is not read further.
HELD_ENOUGH_BYTES = WINDOW_BYTES // 2
#: First buffer of a frame before authentication.
UNAUTHENTICATED_BYTES_MIN = 64
PREFIX = struct.Struct(">i")
#: Why no request is dispatched: answers wait to be read by the peer; the client is throttled by a quota.
DRAIN, MUTED = 1, 2
EMPTY = bytearray()


class Handler(Protocol):
    """Answers the requests of a listener's connections."""

    def arrived(self, connection: "ServerConnection", frame: memoryview) -> None:
        """A complete frame, without its size; ``connection.ticket`` identifies it.

        The handler must later call ``respond`` or ``release`` with that ticket, or ``close``.
        """
        ...

    def lost(self, connection: "ServerConnection") -> None:
        """The connection was closed by either side; nothing can be sent."""
        ...


class ServerConnection(asyncio.BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_answers", "_authentication_deadline", "_closing", "_consuming", "_context", "_egress", "_frame", "_frame_size", "_handler",
        "_have", "_held", "_held_at", "_kept", "_loop", "_mark", "_muted_until", "_paused", "_producing", "_requested", "_sending",
        "_transport", "_turn", "_unauthenticated", "_unmute", "_view", "_waits", "_write_deadline", "frame_bytes_max", "host", "number",
        "origin", "read_deadline", "ticket", "trusted",
    )  # fmt: skip

    def __init__(self, number: ConnectionId, origin: Origin, context: ConnectionContext, handler: Handler) -> None:
        """``origin``: host of the peer, and listener."""
        self.number = number
        #: Address of the peer.
        self.host = origin.host
        self.origin = origin
        #: Largest frame the peer may send now.
        self.frame_bytes_max = context.limits.first_frame_bytes_max
        #: Whether ``trust`` was called.
        self.trusted = False
        self.read_deadline = math.inf
        #: Limits until the connection is authenticated; None if it is, or need not be.
        self._unauthenticated: AuthenticationLimits | None = None
        #: Loop time by which it must be authenticated.
        self._authentication_deadline = math.inf
        self._transport: asyncio.Transport
        self._egress: Egress
        self._context = context
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        #: Number of the last dispatched request.
        self.ticket = 0
        #: Requests being handled, oldest first, by ticket. The value is an answer that waits for earlier ones; EMPTY after ``release``.
        self._answers: dict[int, Sequence[Any] | None] = {}
        #: Whether all of them are Produce requests.
        self._producing = False
        #: Whether an answer was passed to the egress and is not yet sent.
        self._sending = False
        #: Whether a loop below is dispatching frames and will take the next one itself.
        self._consuming = False
        self._closing = False
        #: Whether reading from the transport is paused.
        self._paused = False
        #: Received bytes of no begun frame, from ``_held_at`` on. Replaced, never resized: a handler may still have a view of it.
        self._held = EMPTY
        self._held_at = 0
        #: The frame being received, its received bytes and its size.
        self._frame: bytearray | None = None
        self._view = memoryview(EMPTY)
        self._have = self._frame_size = 0
        #: What ``keep_frame`` kept: the buffer (None: the frame had none of its own), its frame's size, and ``_producing`` before.
        self._kept: tuple[bytearray | None, int, bool] | None = None
        #: Size of the frame that waits for memory, or 0. Its first bytes are held.
        self._requested = 0
        #: A scheduled call of ``_take_turn``.
        self._turn: asyncio.Handle | None = None
        #: What must happen before another request is dispatched: DRAIN, MUTED, or both.
        self._waits = 0
        #: Loop time until which the connection is muted, and the timer of its end.
        self._muted_until = 0.0
        self._unmute: asyncio.TimerHandle | None = None
        #: Time by which the peer must have read something, and the bytes it had read when this was set.
        self._write_deadline = math.inf
        self._mark = 0

    # Called by the handler

    def trust(self) -> None:
        """The peer sent a valid request, so its frames may have full size, if it is authenticated."""
        self.trusted = True
        if self._unauthenticated is None:
            self.frame_bytes_max = self._context.limits.frame_bytes_max

    def limit_until_authenticated(self, limits: AuthenticationLimits) -> None:
        """The connection must be authenticated before it may use more memory and time than these limits."""
        self._unauthenticated = limits
        self.frame_bytes_max = limits.frame_bytes_max
        self._authentication_deadline = self._loop.time() + limits.timeout_ms / 1000
        self.read_deadline = self._authentication_deadline

    def authenticated(self, origin: Origin) -> None:
        """The peer is authenticated, for the first time or again; later requests have this origin."""
        self.origin = origin
        self._unauthenticated = None
        self._authentication_deadline = math.inf
        self.frame_bytes_max = self._context.limits.frame_bytes_max

    def respond(self, chunks: Sequence[Any], ticket: int | None = None) -> None:
        """Sends the answer of a request (None: the last dispatched one) after those of earlier requests."""
        if self._closing:
            return
        number, answers = self.ticket if ticket is None else ticket, self._answers
        assert answers.get(number, EMPTY) is None, "a request is answered once"
        answers[number] = chunks
        if not self._sending:
            self._send_answers()

    def release(self, ticket: int | None = None) -> None:
        """Ends a request without an answer."""
        self.respond(EMPTY, ticket)

    def keep_frame(self) -> None:
        """Called by ``arrived``: its frame stays valid until ``free_frame``. Until then no further request is dispatched.

        Only a frame of more than ``WINDOW_BYTES`` can be kept; the caller copies others. Not before authentication.
        """
        assert self._unauthenticated is None, "frames before authentication are not kept"
        # Produce requests are handled in order: none may pass by this one.
        self._kept, self._producing = (self._frame, self._frame_size, self._producing), False
        if self._frame is not None:
            self._frame, self._view = None, memoryview(EMPTY)

    def free_frame(self) -> None:
        """The frame that ``keep_frame`` kept is not used any more."""
        if self._kept is None:
            return
        (frame, size, self._producing), self._kept = self._kept, None
        if frame is not None:
            self._context.buffers.give(frame)
            self._context.memory.give(self._context.buffers.rounded(size))
        self._ready()

    def mute(self, duration_ms: int) -> None:
        """Dispatches and reads no further request for this time, counted from now. Requests in work are answered. Source: KIP-219."""
        until = self._loop.time() + duration_ms / 1000
        if self._closing or until <= self._muted_until:
            return
        self._muted_until = until
        self._waits |= MUTED
        # A frame that was begun must not be completed either.
        self._pause()
        self.read_deadline = math.inf
        if self._unmute is not None:
            self._unmute.cancel()
        self._unmute = self._loop.call_at(until, self._muted)

    def _muted(self) -> None:
        """The time of ``mute`` is over."""
        self._unmute = None
        self._waits &= ~MUTED
        self._ready()

    def _send_answers(self) -> None:
        """Sends answers up to the first request without one."""
        answers = self._answers
        while answers and not self._sending and not self._closing:
            ticket = next(iter(answers))
            chunks = answers[ticket]
            if chunks is None:
                return
            if chunks is EMPTY:
                del answers[ticket]
                self._ready()
                continue
            self._sending = True
            sent = self._egress.send(chunks)
            waiting_bytes = self._transport.get_write_buffer_size()
            if waiting_bytes or not sent:
                self._expect_progress()
            if sent:
                self._answered(ticket, waiting_bytes)

    def close(self, kind: str, detail: str = "") -> None:
        """Closes when the answers are sent, or the peer has not read for too long."""
        if self._closing:
            return
        self._context.traffic.cut[kind] += 1
        log.info("closing connection %d from %s: %s%s", self.number, self.host, kind, detail and f": {detail}")
        self._closing = True
        if self._egress.busy:
            self._transport.abort()
        else:
            self._transport.close()
            if self._transport.get_write_buffer_size():
                self._expect_progress()
        self._read_on()

    def abort(self) -> None:
        """Closes at once; drops unsent answers."""
        self._closing = True
        self._transport.abort()

    # Called by the transport

    @property
    def made(self) -> bool:
        """Whether it was ever connected; ``lost`` is called only then."""
        return hasattr(self, "_transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not subclass asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("sockname")
        self.origin = msgspec.structs.replace(self.origin, local=(str(name[0]).removeprefix("::ffff:"), int(name[1])))
        # Both marks at zero: pause_writing and resume_writing report whether any byte waits to be sent.
        transport.set_write_buffer_limits(high=0)
        self._egress = Egress(transport, self._context.executor, self._sent, self._send_failed)
        self._context.connections[self] = None
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        context = self._context
        self._egress.close()
        context.traffic.sent_bytes += self._egress.sent_bytes
        context.connections.pop(self, None)
        context.writing.pop(self, None)
        context.dismiss(self.host)
        context.held_bytes -= len(self._held)
        self._held = EMPTY
        if self._turn is not None:
            self._turn.cancel()
        if self._unmute is not None:
            self._unmute.cancel()
        if self._requested:
            context.memory.cancel(self._granted)
            self._requested = 0
        if self._frame is not None:
            self._drop_frame(grown=self._unauthenticated is not None)
        self.free_frame()
        self._handler.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._view[self._have : self._frame_size]
        return self._context.window(len(self._held) - self._held_at)

    def buffer_updated(self, nbytes: int) -> None:
        context = self._context
        context.traffic.received_bytes += nbytes
        if self._closing:
            return
        if self._frame is not None:
            self._have += nbytes
            if self._have == self._frame_size:
                self._frame_is_whole()
            elif self._have == len(self._view):
                self._grow_frame()
            return
        data = context.scratch[:nbytes]
        if self._held:
            self._hold(data)
            if not (self._full or self._requested or self._turn):
                self._take_turn()
        elif self._full:
            self._hold(data)
        else:
            used = self._consume(data, 0, nbytes)
            if used < nbytes and not self._closing:
                self._hold(data[used:])
            self._read_on()

    def pause_writing(self) -> None:
        self._expect_progress()

    def resume_writing(self) -> None:
        self._egress.drained()
        if self._waits & DRAIN:
            self._waits &= ~DRAIN
            self._ready()

    # Called by the context's timer

    def expire(self) -> None:
        if self._loop.time() >= self._authentication_deadline:
            self._context.traffic.failed_authentications += 1
            self.cut("not authenticated in time")
            return
        self.cut("slow request" if self._frame is not None or self._held else "idle")

    @property
    def closing(self) -> bool:
        """Whether it is closed, or closes: nothing more can be answered."""
        return self._closing

    @property
    def is_authenticated(self) -> bool:
        """Whether the peer is authenticated, or need not be."""
        return self._unauthenticated is None

    @property
    def listener(self) -> str:
        return self.origin.listener

    @property
    def waiting_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def cut(self, kind: str) -> None:
        self.close(kind)
        self._transport.abort()

    def check_progress(self, now: float) -> bool:
        waiting_bytes = self._transport.get_write_buffer_size()
        if not waiting_bytes and not self._egress.busy:
            self._write_deadline = math.inf
            return False
        if now >= self._write_deadline:
            taken = self._egress.sent_bytes - waiting_bytes
            if taken == self._mark:
                self.close("peer does not read")
                self._transport.abort()
                return False
            self._mark = taken
            self._write_deadline = now + self._context.write_timeout_s
        return True

    # Frames

    def _consume(self, data: memoryview, position: int, end: int) -> int:
        """Dispatches complete frames in ``data`` while requests are permitted; returns the position of the rest."""
        self._consuming = True
        turn = TURN_REQUESTS
        while position < end and self._takes(data, position, end):
            size = PREFIX.unpack_from(data, position)[0]
            if not 0 <= size <= self.frame_bytes_max:
                self.close("bad frame size", str(size))
                break
            start = position + PREFIX.size
            if end - start < size:
                if self._begin_frame(size, data[start:end]):
                    position = end
                break
            if not turn:
                self._turn = self._loop.call_soon(self._take_turn)
                break
            turn -= 1
            position = start + size
            self._dispatch(data[start:position])
        self._consuming = False
        return position

    @property
    def _full(self) -> bool:
        """Whether no request of any kind may be dispatched now."""
        if self._waits:
            return True
        return bool(self._answers) and not (self._producing and len(self._answers) < PRODUCES_IN_WORK)

    def _takes(self, data: memoryview, position: int, end: int) -> bool:
        """Whether the frame at ``position`` may be begun or dispatched."""
        if self._closing or self._waits or end - position < PREFIX.size:
            return False
        if not self._answers:
            return True
        start = position + PREFIX.size
        return self._producing and len(self._answers) < PRODUCES_IN_WORK and data[start : start + len(PRODUCE)] == PRODUCE

    def _dispatch(self, frame: memoryview) -> None:
        self._producing = len(frame) > 1 and not frame[0] and not frame[1]
        self.ticket += 1
        self._answers[self.ticket] = None
        try:
            self._handler.arrived(self, frame)
        except Exception:
            log.exception("a request from %s failed", self.host)
            self.close("failed request")

    def _begin_frame(self, size: int, beginning: memoryview) -> bool:
        """Whether there was memory for the frame. If not, the caller holds its beginning, and reading pauses until there is."""
        if self._unauthenticated is not None:
            self._frame, self._frame_size, self._have = bytearray(), size, 0
            self._grow_frame(beginning)
            return True
        if self._context.memory.take(self._context.buffers.rounded(size), self._granted):
            self._open_frame(size, beginning)
            return True
        self._requested = size
        self._pause()
        return False

    def _granted(self) -> None:
        size, self._requested = self._requested, 0
        held, at = self._take_held()
        self._open_frame(size, memoryview(held)[at + PREFIX.size :])
        self._read_on()

    def _open_frame(self, size: int, beginning: memoryview) -> None:
        self._frame = self._context.buffers.take(size)
        self._view = memoryview(self._frame)
        self._frame_size = size
        self._have = len(beginning)
        self._view[: self._have] = beginning

    def _grow_frame(self, received: memoryview | bytes = b"") -> None:
        """Enlarges the buffer of a frame before authentication: to four times the received bytes, at most to the size of the frame.

        The size that a peer announces allocates nothing.
        """
        assert self._frame is not None and self._unauthenticated is not None, "a frame grows before authentication"
        have = self._have + len(received)
        grown = bytearray(min(self._frame_size, max(4 * have, UNAUTHENTICATED_BYTES_MIN)))
        grown[: self._have] = self._frame[: self._have]
        grown[self._have : have] = received
        self._context.unauthenticated_bytes += len(grown) - len(self._frame)
        self._frame, self._view, self._have = grown, memoryview(grown), have
        if self._context.unauthenticated_bytes > self._unauthenticated.bytes_max:
            self.cut("too many bytes before authentication")

    def _frame_is_whole(self) -> None:
        self._consuming = True
        grown = self._unauthenticated is not None
        try:
            self._dispatch(self._view[: self._frame_size])
        finally:
            self._consuming = False
            if self._frame is not None:
                self._drop_frame(grown=grown)
            self._read_on()

    def _drop_frame(self, *, grown: bool) -> None:
        """``grown``: it was received before authentication, and so is not the pool's."""
        assert self._frame is not None, "only a frame that was begun is dropped"
        frame, self._frame = self._frame, None
        self._view = memoryview(EMPTY)
        if grown:
            self._context.unauthenticated_bytes -= len(frame)
            return
        self._context.buffers.give(frame)
        self._context.memory.give(self._context.buffers.rounded(self._frame_size))

    # Held bytes

    def _hold(self, data: memoryview) -> None:
        """Keeps bytes that cannot be dispatched yet; pauses reading at ``HELD_ENOUGH_BYTES``."""
        held, at = self._take_held()
        self._held = held[at:] + data if len(held) > at else bytearray(data)
        self._context.held_bytes += len(self._held)
        if len(self._held) >= HELD_ENOUGH_BYTES:
            self._pause()

    def _take_held(self) -> tuple[bytearray, int]:
        held, at = self._held, self._held_at
        self._context.held_bytes -= len(held)
        self._held, self._held_at = EMPTY, 0
        return held, at

    def _take_turn(self) -> None:
        """Dispatches held frames, then resumes reading."""
        self._turn = None
        if self._closing or self._full or self._requested:
            return
        if self._held:
            held, at = self._take_held()
            used = self._consume(memoryview(held), at, len(held))
            if used < len(held) and not self._closing:
                self._held, self._held_at = held, used
                self._context.held_bytes += len(held)
        self._read_on()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Resumes reading if permitted, and sets the read deadline."""
        answers = self._answers
        if self._closing or self._requested or ((answers or self._waits) and self._full):
            self.read_deadline = self._authentication_deadline
            return
        if self._paused and len(self._held) - self._held_at < HELD_ENOUGH_BYTES:
            self._paused = False
            self._transport.resume_reading()
        begun = self._frame is not None or self._held
        if answers and not begun:
            self.read_deadline = self._authentication_deadline
            return
        deadline = self._loop.time() + (self._context.read_timeout_s if begun else self._context.idle_s)
        latest = self._authentication_deadline
        self.read_deadline = deadline if deadline < latest else latest

    # Answers

    def _answered(self, ticket: int, waiting_bytes: int) -> None:
        """An answer is sent or in the transport's buffer. Above ``write_buffer_bytes_max`` no request is read until that drains."""
        self._sending = False
        del self._answers[ticket]
        if len(self._context.connections) > DUPLICATES_MAX:
            self._egress.close_socket()
        if waiting_bytes and waiting_bytes > self._context.limits.write_buffer_bytes_max:
            self._waits |= DRAIN
        elif not self._consuming:
            self._ready()

    def _sent(self) -> None:
        self._answered(next(iter(self._answers)), self._transport.get_write_buffer_size())
        self._send_answers()

    def _send_failed(self, reason: str) -> None:
        self.close("answer cut short", reason)
        self._transport.abort()

    def _ready(self) -> None:
        if self._consuming or self._closing:
            return
        if self._held or self._paused:
            # In a later turn: this call is inside the step that answered, and steps do not nest.
            if self._turn is None:
                self._turn = self._loop.call_soon(self._take_turn)
        else:
            self._read_on()

    def _expect_progress(self) -> None:
        """Starts the write timeout: the peer must keep reading."""
        if self._write_deadline == math.inf:
            self._mark = self._egress.sent_bytes - self._transport.get_write_buffer_size()
            self._write_deadline = self._loop.time() + self._context.write_timeout_s
            self._context.writing[self] = None
