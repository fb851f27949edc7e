"""One connection of a server: frames in, in order, answers out in the same order.

::

             read                   whole frame                answered, and the answer is on its way
    OPEN ──────────▶ frame begun ───────────────▶ in work ───────────────────────────────────────────▶ OPEN
                     (waits for memory first)     (muted: later bytes are held, a few, then not read)

One request of a connection is in work at a time, but for Produce: up to ``PRODUCES_IN_WORK`` of them may wait for the disk together, so
that one flush serves all that a producer has in flight. They are handed on in order, and their answers leave in order.

Bytes are read into a buffer all connections share. A frame that lies in it whole is handed on from there, without a copy; one that does
not asks for memory and a buffer of its own, and the rest of it is received straight into that. Whatever is left over
is held until the request in work is answered. So a connection holds a buffer only while a frame is on its way.

A handler sees a frame only while ``arrived`` runs: afterwards the buffer belongs to another frame. It may change the bytes.

Whatever a handler raises closes that connection and touches no other.
"""

import asyncio
import logging
import math
import struct
from collections.abc import Sequence
from typing import Any, Protocol, cast

from ottla.base.ids import ConnectionId
from ottla.net.connection_context import DUPLICATES_MAX, WINDOW_BYTES, Commons
from ottla.net.egress import Egress

log = logging.getLogger("ottla.net")

#: Requests a connection may have answered before others have a turn.
TURN_REQUESTS = 5
#: Produce requests of one connection that may be in work together: as many as an idempotent producer has in flight.
PRODUCES_IN_WORK = 5
PRODUCE = b"\0\0"
#: Bytes held ahead at which a connection is no longer read.
HELD_ENOUGH_BYTES = WINDOW_BYTES // 2
PREFIX = struct.Struct(">i")
EMPTY = bytearray()


class Handler(Protocol):
    """Whoever answers the requests of a server."""

    def arrived(self, connection: "Connection", frame: memoryview) -> None:
        """A whole frame, without its size; ``connection.ticket`` tells it from others.

        Sooner or later ``respond`` or ``release`` with that ticket, or ``close`` of the connection, must follow.
        """
        ...

    def lost(self, connection: "Connection") -> None:
        """The connection is closed, by whichever side; nothing can be sent any more."""
        ...


class Connection(asyncio.BufferedProtocol):
    """One accepted connection."""

    __slots__ = (
        "_answers", "_closing", "_commons", "_consuming", "_egress", "_frame", "_frame_size", "_handler", "_have", "_held",
        "_held_at", "_loop", "_mark", "_paused", "_producing", "_sending", "_transport", "_turn", "_view", "_waits_for_drain", "_wanted",
        "_write_deadline", "frame_bytes_max", "host", "local", "number", "read_deadline", "ticket", "trusted",
    )  # fmt: skip

    def __init__(self, number: ConnectionId, host: str, commons: Commons, handler: Handler) -> None:
        self.number = number
        #: Address of the peer, and the address and port under which it reached us.
        self.host = host
        self.local: tuple[str, int] = ("", 0)
        #: Largest frame the peer may send now.
        self.frame_bytes_max = commons.limits.first_frame_bytes_max
        #: Whether ``trust`` was called.
        self.trusted = False
        self.read_deadline = math.inf
        self._transport: asyncio.Transport
        self._egress: Egress
        self._commons = commons
        self._handler = handler
        self._loop = asyncio.get_running_loop()
        #: Number of the request handed on last.
        self.ticket = 0
        #: Requests in work, oldest first: by ticket, the answer if there is one that waits for its turn; EMPTY for one released.
        self._answers: dict[int, Sequence[Any] | None] = {}
        #: Whether all of them are Produce requests.
        self._producing = False
        #: Whether an answer is being sent that is not yet on its way.
        self._sending = False
        #: Whether the code below is handing on frames, and will look for the next one itself.
        self._consuming = False
        self._closing = False
        #: Whether the transport does not read.
        self._paused = False
        #: Bytes received that belong to no frame begun, from ``_held_at`` on. Never resized, only replaced: a handler may still look at it.
        self._held = EMPTY
        self._held_at = 0
        #: The frame being received, how much of it has come and how much there is.
        self._frame: bytearray | None = None
        self._view = memoryview(EMPTY)
        self._have = self._frame_size = 0
        #: Size of the frame that waits for memory; 0: none does. Its first bytes are held.
        self._wanted = 0
        #: A call of ``_take_turn`` that is due.
        self._turn: asyncio.Handle | None = None
        self._waits_for_drain = False
        #: When the peer must have taken something, and how much it had taken when this was set.
        self._write_deadline = math.inf
        self._mark = 0

    # What the handler calls.

    def trust(self) -> None:
        """The peer has shown that it speaks the protocol; its frames may have full size."""
        self.trusted = True
        self.frame_bytes_max = self._commons.limits.frame_bytes_max

    def respond(self, chunks: Sequence[Any], ticket: int | None = None) -> None:
        """Sends the answer of a request in work (None: of the one handed on last), once those before it are answered."""
        if self._closing:
            return
        number = self.ticket if ticket is None else ticket
        assert number in self._answers and self._answers[number] is None, "a request in work is answered once"
        self._answers[number] = chunks
        if not self._sending:
            self._send_answers()

    def release(self, ticket: int | None = None) -> None:
        """Goes on without an answer."""
        self.respond(EMPTY, ticket)

    def _send_answers(self) -> None:
        """Sends what is answered, up to the first request that is not."""
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
                self._answered(waiting_bytes)

    def close(self, kind: str, detail: str = "") -> None:
        """Closes once the answers given are out, or have been refused for too long."""
        if self._closing:
            return
        self._commons.traffic.cut[kind] += 1
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
        """Closes at once, whatever still waits to be sent."""
        self._closing = True
        self._transport.abort()

    # What the transport calls.

    @property
    def made(self) -> bool:
        """Whether it ever came to stand; ``lost`` follows only then."""
        return hasattr(self, "_transport")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no subclass of asyncio's.
        self._transport = transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("sockname")
        self.local = (str(name[0]).removeprefix("::ffff:"), int(name[1]))
        # Both marks at zero: we hear when something waits to be sent, and when nothing does any more.
        transport.set_write_buffer_limits(high=0)
        self._egress = Egress(transport, self._commons.executor, self._sent, self._send_failed)
        self._commons.connections[self] = None
        self._read_on()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        commons = self._commons
        self._egress.close()
        commons.traffic.sent_bytes += self._egress.sent_bytes
        commons.connections.pop(self, None)
        commons.writing.pop(self, None)
        commons.dismiss(self.host)
        commons.held_bytes -= len(self._held)
        self._held = EMPTY
        if self._turn is not None:
            self._turn.cancel()
        if self._wanted:
            commons.memory.cancel(self._granted)
            self._wanted = 0
        if self._frame is not None:
            self._drop_frame()
        self._handler.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return self._view[self._have : self._frame_size]
        return self._commons.window(len(self._held) - self._held_at)

    def buffer_updated(self, nbytes: int) -> None:
        self._commons.traffic.received_bytes += nbytes
        if self._closing:
            return
        if self._frame is not None:
            self._have += nbytes
            if self._have == self._frame_size:
                self._frame_is_whole()
            return
        data = self._commons.scratch[:nbytes]
        if self._held:
            self._hold(data)
            if not (self._full or self._wanted or self._turn):
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
        if self._waits_for_drain:
            self._waits_for_drain = False
            self._ready()

    # What the clock calls.

    def expire(self) -> None:
        self.cut("slow request" if self._frame is not None or self._held else "idle")

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
            self._write_deadline = now + self._commons.write_timeout_s
        return True

    # Frames in.

    def _consume(self, data: memoryview, position: int, end: int) -> int:
        """Hands on the whole frames in ``data``, as long as they are answered at once; returns where the rest begins."""
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
        """Whether no further request may be handed on now, whatever it is."""
        if self._waits_for_drain:
            return True
        return bool(self._answers) and not (self._producing and len(self._answers) < PRODUCES_IN_WORK)

    def _takes(self, data: memoryview, position: int, end: int) -> bool:
        """Whether the frame that begins at ``position`` may be begun or handed on."""
        if self._closing or self._waits_for_drain or end - position < PREFIX.size:
            return False
        if not self._answers:
            return True
        start = position + PREFIX.size
        return self._producing and len(self._answers) < PRODUCES_IN_WORK and data[start : start + len(PRODUCE)] == PRODUCE

    def _dispatch(self, frame: memoryview) -> None:
        self._producing = len(frame) > 1 and not frame[0] and not frame[1]
        self.ticket += 1
        self._answers[self.ticket] = None
        self._commons.traffic.requests += 1
        try:
            self._handler.arrived(self, frame)
        except Exception:
            log.exception("a request from %s failed", self.host)
            self.close("failed request")

    def _begin_frame(self, size: int, beginning: memoryview) -> bool:
        """Whether there was memory for it; if not, its beginning is to be held, and reading stops until there is."""
        if self._commons.memory.take(self._commons.buffers.rounded(size), self._granted):
            self._open_frame(size, beginning)
            return True
        self._wanted = size
        self._pause()
        return False

    def _granted(self) -> None:
        size, self._wanted = self._wanted, 0
        held, at = self._let_go()
        self._open_frame(size, memoryview(held)[at + PREFIX.size :])
        self._read_on()

    def _open_frame(self, size: int, beginning: memoryview) -> None:
        self._frame = self._commons.buffers.take(size)
        self._view = memoryview(self._frame)
        self._frame_size = size
        self._have = len(beginning)
        self._view[: self._have] = beginning

    def _frame_is_whole(self) -> None:
        self._consuming = True
        try:
            self._dispatch(self._view[: self._frame_size])
        finally:
            self._consuming = False
            self._drop_frame()
            self._read_on()

    def _drop_frame(self) -> None:
        assert self._frame is not None, "only a frame that was begun is dropped"
        frame, self._frame = self._frame, None
        self._view = memoryview(EMPTY)
        self._commons.buffers.give(frame)
        self._commons.memory.give(self._commons.buffers.rounded(self._frame_size))

    # Bytes held for later.

    def _hold(self, data: memoryview) -> None:
        """Keeps bytes that cannot be handed on yet; stops reading when there are enough."""
        held, at = self._let_go()
        self._held = held[at:] + data if len(held) > at else bytearray(data)
        self._commons.held_bytes += len(self._held)
        if len(self._held) >= HELD_ENOUGH_BYTES:
            self._pause()

    def _let_go(self) -> tuple[bytearray, int]:
        held, at = self._held, self._held_at
        self._commons.held_bytes -= len(held)
        self._held, self._held_at = EMPTY, 0
        return held, at

    def _take_turn(self) -> None:
        """Hands on what is held, then reads on."""
        self._turn = None
        if self._closing or self._full or self._wanted:
            return
        if self._held:
            held, at = self._let_go()
            used = self._consume(memoryview(held), at, len(held))
            if used < len(held) and not self._closing:
                self._held, self._held_at = held, used
                self._commons.held_bytes += len(held)
        self._read_on()

    def _pause(self) -> None:
        if not self._paused:
            self._paused = True
            self._transport.pause_reading()

    def _read_on(self) -> None:
        """Reads again if nothing speaks against it, and sets the time by which something must have come."""
        if self._closing or self._full or self._wanted:
            self.read_deadline = math.inf
            return
        if self._paused and len(self._held) - self._held_at < HELD_ENOUGH_BYTES:
            self._paused = False
            self._transport.resume_reading()
        begun = self._frame is not None or self._held
        if self._answers and not begun:
            self.read_deadline = math.inf
            return
        self.read_deadline = self._loop.time() + (self._commons.read_timeout_s if begun else self._commons.idle_s)

    # Answers out.

    def _answered(self, waiting_bytes: int) -> None:
        """The answer is out, or in the transport's buffer; of that, only so much may wait before the next request is read."""
        self._sending = False
        del self._answers[next(iter(self._answers))]
        if len(self._commons.connections) > DUPLICATES_MAX:
            self._egress.close_socket()
        if waiting_bytes > self._commons.limits.write_buffer_bytes_max:
            self._waits_for_drain = True
        else:
            self._ready()

    def _sent(self) -> None:
        self._answered(self._transport.get_write_buffer_size())
        self._send_answers()

    def _send_failed(self, reason: str) -> None:
        self.close("answer cut short", reason)
        self._transport.abort()

    def _ready(self) -> None:
        if self._consuming or self._closing:
            return
        if self._held or self._paused:
            # Not at once: we are inside the step that answered, and a request would begin another one.
            if self._turn is None:
                self._turn = self._loop.call_soon(self._take_turn)
        else:
            self._read_on()

    def _expect_progress(self) -> None:
        """From now on the peer must take something now and then."""
        if self._write_deadline == math.inf:
            self._mark = self._egress.sent_bytes - self._transport.get_write_buffer_size()
            self._write_deadline = self._loop.time() + self._commons.write_timeout_s
            self._commons.writing[self] = None
