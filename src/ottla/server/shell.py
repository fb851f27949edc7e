"""The shell around one broker: passes every event to ``Node.step`` and performs the effects that it returns.

::

    frame, store change, deadline, finished sync ──▶ handle(event) ──▶ Node.step(event, now) ──▶ effects ──▶ Performer
                                                                                                  ▲             │
                                                       next turns of the loop ────────────────────┴── outcomes ─┘

Steps do not nest: the outcome of an effect is an event in a later turn of the loop.

An exception that leaves a step is a bug. It ends the process with a flight record, since the state in memory is no longer trusted. An
unexpected exception in one request does not leave the step (``broker/isolation.py``): the request is answered UNKNOWN_SERVER_ERROR, and the
shell logs, counts and records it (``failures.py``). So is a request whose decoding, or whose answer's encoding, fails unexpectedly.

A process that was paused for long (a suspended machine, a debugger) may have lost its session with the store without notice. After such a
pause the broker first gets a "suspended" session event. It leads again when the store confirms the session.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Generator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.ids import ConnectionId
from ottla.base.origin import SAME_PROCESS
from ottla.base.ports import Op, StoreRequests, StoreResult
from ottla.base.units import KiB
from ottla.broker import effects, events
from ottla.broker.isolation import refusal
from ottla.broker.node import Node
from ottla.broker.registration.peers import PEER
from ottla.net.connection_context import WINDOW_BYTES
from ottla.net.server_connection import PRODUCE, ServerConnection
from ottla.server import audit, broker_log
from ottla.server.failures import RequestFailures
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.metrics.counters import Counters
from ottla.server.performer import Performer
from ottla.server.produce_parts import ProducesInParts
from ottla.server.request_decoder import Refused, failure_response, read_request, read_request_in_turns, undecoded_request
from ottla.store import layout
from ottla.wire.declare import MalformedMessage, schema_of
from ottla.wire.framing import SIZE_BYTES, encode_request, encode_response_in_turns
from ottla.wire.freeing import freed_in_turns

log = logging.getLogger("ottla.server")

#: A broker gets a tick at least this often.
TICK_MS = 1_000
#: Larger requests are decoded in turns; Produce requests, whose records are not copied, above ``WINDOW_BYTES``.
LARGE_FRAME_BYTES = 4 * KiB
#: A request that is decoded in turns.
Decoding = Generator[None, None, events.RequestArrived[Any] | list[Any]]


class Shell:
    """Also the ``Handler`` of its broker's listener."""

    def __init__(
        self,
        node: Node,
        performer: Performer,
        *,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int],
        recorder: FlightRecorder,
        counters: Counters,
        crashed: Callable[["Shell", BaseException], None],
        record: Callable[["Shell", BaseException], Path],
        session: StoreRequests | None = None,
        pause_max_ms: int = 0,
        spent_ns: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """``crashed`` gets an error that ends the process; it does not return. ``record`` writes the flight record of a failed request.

        ``spent_ns``: CPU time of the thread.

        After a pause of more than ``pause_max_ms`` the ``session`` counts as suspended. 0: never, since it lives as long as the process.
        """
        self.node = node
        self.performer = performer
        self.recorder = recorder
        self.counters = counters
        self.failures = RequestFailures(counters, partial(record, self))
        performer.performers |= self._performers()
        performer.respond_in_turns = self._respond_in_turns
        self._parts = ProducesInParts(node.context.turns, handle=self._handle_part, end=lambda effect: self._perform([effect]))
        performer.part_answered = self._parts.answered
        self._turns = node.context.turns
        #: Answers that are encoded in turns; the first has the next one.
        self._encodings: deque[tuple[effects.Respond, Generator[None, None, list[Any]]]] = deque()
        #: What is freed in turns; the first has the next one.
        self._freed: deque[Generator[None, None, None]] = deque()
        #: Requests that are decoded in turns, with the time of their arrival; the first has the next one.
        self._decodings: deque[tuple[ServerConnection, Decoding, memoryview, int]] = deque()
        self._times = performer.times
        self._quotas = node.context.quotas
        self._spent_ns = spent_ns
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._crashed = crashed
        self._loop = asyncio.get_running_loop()
        self._stepping = False
        #: The scheduled tick, and its time on the broker's clock.
        self._tick: asyncio.TimerHandle | None = None
        self._tick_ms = 0
        self._ticked_ms = 0
        #: Requests of other brokers of this process have negative connection ids.
        self._peer_ids = count(-1, -1)
        self._stopped = False
        self._session = session
        self._pause_max_ms = pause_max_ms or 1 << 62
        # Without other events, ticks must not look like a pause.
        self._tick_interval_ms = min(TICK_MS, self._pause_max_ms // 2)
        #: Time of the last event.
        self._handled_ms = now_ms()

    def _performers(self) -> dict[type[effects.Effect], Callable[[Any], None]]:
        return {
            effects.RequestFailed: self._request_failed,
            effects.Audit: self._audit,
            effects.Log: self._log,
            effects.ScheduleTurn: self._schedule_turn,
            effects.Free: lambda effect: self._free(effect.objects),
        }

    def start(self) -> None:
        """Call when the broker has read the store's state."""
        self._perform(self.node.start(self._now_ms()))
        self.tick()

    def stop(self) -> None:
        """From now on the broker gets outcomes of effects only, and no ticks."""
        self._perform(self.node.stop(self._now_ms()))
        self._stopped = True
        if self._tick is not None:
            self._tick.cancel()

    def abandon(self) -> None:
        """Drops all further events, outcomes of effects included, as if the process were killed."""
        self._stopped = True
        self.handle = self.performer.handle = _drop_event  # type: ignore[method-assign]
        if self._tick is not None:
            self._tick.cancel()

    # Events

    def handle(self, event: events.Event, frame: memoryview | None = None) -> None:
        """Takes one step and performs its effects. ``frame`` is the request that the event was decoded from."""
        assert not self._stepping, "a step begins after the effects of the previous one are performed"
        now_ms = self._now_ms()
        if now_ms - self._handled_ms > self._pause_max_ms:
            self._suspend_session(now_ms)
            # The suspension was a step, which took time.
            now_ms = self._now_ms()
        self._handled_ms = now_ms
        self._stepping = True
        self.recorder.note(now_ms, event, frame)
        try:
            requested = self.node.step(event, now_ms)
        except Exception as error:
            self._crashed(self, error)
        else:
            if requested:
                self._perform(requested)
        self._stepping = False
        due_ms = self.node.next_deadline_ms()
        if due_ms is not None and due_ms < self._tick_ms:
            self._set_tick(due_ms)

    def _suspend_session(self, now_ms: int) -> None:
        """The process was paused, so the store may have ended the session."""
        pause_ms, self._handled_ms = now_ms - self._handled_ms, now_ms
        if self._session is None or self._tick is None:
            return
        log.warning("no event was handled for %d ms; the broker leads nothing until the store confirms its session", pause_ms)

        def answered(result: StoreResult) -> None:
            # On an error the session reports its own state.
            if result.error is None:
                self.handle(events.SessionChanged(state="connected"))

        self.handle(events.SessionChanged(state="suspended"))
        self._session.submit((Op("check", layout.BROKERS),), answered)

    def tick(self) -> None:
        """Passes the time to the broker, and schedules the next tick."""
        if self._stopped:
            return
        self._tick_ms = (1 << 62) if self._tick is None else self._tick_ms
        self._ticked_ms = self._now_ms()
        self.failures.tick(self._ticked_ms)
        self._times.tick(self._ticked_ms)
        self.handle(events.Ticked(wall_ms=self._wall_ms()))
        due_ms = self.node.next_deadline_ms()
        latest_ms = self._ticked_ms + self._tick_interval_ms
        self._set_tick(latest_ms if due_ms is None else min(due_ms, latest_ms))

    def _set_tick(self, due_ms: int) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if self._stopped:
            return
        self._tick_ms = due_ms
        # Half a millisecond later, because the broker's clock is rounded down.
        self._tick = self._loop.call_later(max(due_ms - self._now_ms(), 0) / 1000 + 0.0005, self.tick)

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        """A frame arrived; see ``server_connection.Handler``."""
        if len(frame) > LARGE_FRAME_BYTES and connection.is_authenticated and (len(frame) > WINDOW_BYTES or frame[:2] != PRODUCE):
            self._large_arrived(connection, frame)
            return
        try:
            request = read_request(connection, frame)
        except (Refused, MalformedMessage) as error:
            connection.close("malformed request", str(error))
            return
        except Exception as error:
            self._undecodable(connection, frame, error)
            return
        if len(frame) > self._turns.large_bytes and self._parts.takes(connection, request):
            self._large_arrived(connection, frame)
            return
        self._decoded(connection, request, frame, time.monotonic_ns())

    def _large_arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        """Decodes a frame in turns. Most need one: Produce requests of few partitions with large batches."""
        if len(frame) <= WINDOW_BYTES:
            frame = memoryview(bytearray(frame))
        decoding = read_request_in_turns(connection, frame)
        now_ns = time.monotonic_ns()
        decoded = self._decode_turn(connection, decoding, frame, now_ns)
        if not decoded or connection in self._parts.connections:
            connection.keep_frame()
        if not decoded:
            self._decodings.append((connection, decoding, frame, now_ns))
            if len(self._decodings) == 1:
                self._loop.call_soon(self._decode)

    def _decode(self) -> None:
        """Takes one turn of one request; other events of the loop come between two turns, whatever the number of requests."""
        connection, decoding, frame, arrived_ns = self._decodings.popleft()
        if self._stopped or connection.closing:
            decoding.close()
            connection.free_frame()
        elif self._decode_turn(connection, decoding, frame, arrived_ns):
            if connection not in self._parts.connections:
                connection.free_frame()
        else:
            self._decodings.append((connection, decoding, frame, arrived_ns))
        if self._decodings:
            self._loop.call_soon(self._decode)

    def _decode_turn(self, connection: ServerConnection, decoding: Decoding, frame: memoryview, arrived_ns: int) -> bool:
        """Takes one turn; returns whether it was the last one."""
        try:
            next(decoding)
            return False
        except StopIteration as ended:
            request = ended.value
        except (Refused, MalformedMessage) as error:
            connection.close("malformed request", str(error))
            return True
        except Exception as error:
            self._undecodable(connection, frame, error)
            return True
        if self._parts.takes(connection, request):
            self._begin_parts(connection, request, arrived_ns)
        else:
            self._decoded(connection, request, frame, arrived_ns)
        return True

    def _decoded(
        self, connection: ServerConnection, request: events.RequestArrived[Any] | list[Any], frame: memoryview, arrived_ns: int
    ) -> None:
        """Handles a request, or sends an immediate answer."""
        if not connection.trusted:
            self._trust(connection)
        if isinstance(request, list):
            connection.respond(request, connection.ticket)
            return
        self._count(request, arrived_ns)
        self._times.handling = request
        if self._quotas.timed:
            self._handle_timed(request, frame)
        else:
            self.handle(request, frame)
        self._times.handling = None

    def _count(self, request: events.RequestArrived[Any], arrived_ns: int) -> None:
        requests, key = self.counters.requests, request.api_key
        requests[key] = requests.get(key, 0) + 1
        request.arrived_ns = arrived_ns

    def _trust(self, connection: ServerConnection) -> None:
        connection.trust()
        self.performer.connections[connection.number] = connection

    def _begin_parts(self, connection: ServerConnection, request: events.RequestArrived[Any], arrived_ns: int) -> None:
        """The caller keeps the frame."""
        if not connection.trusted:
            self._trust(connection)
        self._count(request, arrived_ns)
        self._parts.begin(connection, request)

    def _handle_part(self, part: events.RequestArrived[Any]) -> None:
        if self._stopped:
            return
        # For the flight recorder: the frame of the whole request is that of many parts.
        whole = b"".join(encode_request(part.body, part.api_version, part.correlation_id, part.client_id))  # type: ignore[arg-type]
        frame = memoryview(whole)[SIZE_BYTES:]
        if self._quotas.timed:
            self._handle_timed(part, frame)
        else:
            self.handle(part, frame)

    def _handle_timed(self, request: events.RequestArrived[Any], frame: memoryview) -> None:
        """Handles a request and reports its time, for quotas of request time."""
        began_ns = self._spent_ns()
        self.handle(request, frame)
        self._report_time(request, self._spent_ns() - began_ns)

    def _report_time(self, request: events.RequestArrived[Any], spent_ns: int) -> None:
        timed = events.RequestTimed(
            connection=request.connection,
            api_key=request.api_key,
            client_id=request.client_id,
            origin=request.origin,
            spent_ns=spent_ns,
        )
        self.handle(timed)

    def _schedule_turn(self, effect: effects.ScheduleTurn) -> None:
        # Not in this turn of the loop: the loop first reads what arrived.
        self._loop.call_soon(self._take_turn, effect.call)

    def _take_turn(self, request: events.RequestArrived[Any] | None) -> None:
        if self._stopped:
            return
        began_ns = self._spent_ns()
        self.handle(events.TurnDue())
        # Requests of brokers of this process have negative ids and no quota.
        if self._quotas.timed and request is not None and request.connection >= 0:
            self._report_time(request, self._spent_ns() - began_ns)

    def lost(self, connection: ServerConnection) -> None:
        """A connection is closed; see ``server_connection.Handler``."""
        self._parts.lost(connection)
        if self.performer.connections.pop(connection.number, None) is not None:
            self.handle(events.ConnectionClosed(connection=connection.number))

    def handle_peer_request(self, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """Handles a request of another broker of this process; ``answered`` gets the response, or None."""
        if self._stopped:
            answered(None)
            return
        number = ConnectionId(next(self._peer_ids))
        key = schema_of(type(message)).key
        assert key is not None, f"{type(message).__name__} is a request"
        self.performer.peer_waits[number] = answered
        request = events.RequestArrived(
            connection=number, correlation_id=0, api_key=key, api_version=version, client_id=PEER, body=message, origin=SAME_PROCESS
        )
        self.handle(request)

    # Effects

    def _perform(self, requested: list[effects.Effect]) -> None:
        performers = self.performer.performers
        for effect in requested:
            try:
                performers[type(effect)](effect)
            except Exception as error:
                if isinstance(effect, effects.Respond):
                    self._respond_failed(effect, error)
                else:
                    self._crashed(self, error)

    def _request_failed(self, effect: effects.RequestFailed) -> None:
        self.failures.note(effect.call, effect.what, effect.error, self._now_ms())

    def _log(self, effect: effects.Log) -> None:
        broker_log.write(effect, broker_id=self.node.context.broker_id)

    def _audit(self, effect: effects.Audit) -> None:
        if not effect.allowed:
            self.counters.denied += 1
        audit.write(effect, broker_id=self.node.context.broker_id, wall_ms=self._wall_ms())

    def _respond_failed(self, effect: effects.Respond, error: Exception) -> None:
        """An answer could not be encoded or sent: the client gets an error response instead, or its connection is closed."""
        call = effect.call
        self.failures.note(call, f"the answer on connection {effect.connection}", error, self._now_ms())
        message = None if call is None else refusal(call)
        try:
            if message is None or message == effect.message:
                raise ValueError("this API has no error for a whole request")
            self.performer.respond(msgspec.structs.replace(effect, message=message, in_turns=False))
        except Exception as second:
            self.performer.close_connection(effect.connection, "failed request", repr(second))

    def _respond_in_turns(self, effect: effects.Respond) -> None:
        self._encodings.append((effect, encode_response_in_turns(effect.message, effect.api_version, effect.correlation_id)))
        if len(self._encodings) == 1:
            self._loop.call_soon(self._encode)

    def _encode(self) -> None:
        """Takes one turn of one answer: other events of the loop come between two turns, whatever the number of answers."""
        effect, work = self._encodings.popleft()
        if not self._stopped and effect.connection in self.performer.connections:
            began_ns = self._spent_ns()
            try:
                next(work)
            except StopIteration as ended:
                self.performer.send(effect, ended.value)
                self._free([effect.message, None if effect.call is None else effect.call.body])
            except Exception as error:
                self._respond_failed(effect, error)
            else:
                self._encodings.append((effect, work))
            if self._quotas.timed and effect.call is not None:
                self._report_time(effect.call, self._spent_ns() - began_ns)
        if self._encodings:
            self._loop.call_soon(self._encode)

    def _free(self, objects: list[Any]) -> None:
        self._freed.append(freed_in_turns(objects))
        if len(self._freed) == 1:
            self._loop.call_soon(self._free_turn)

    def _free_turn(self) -> None:
        work = self._freed.popleft()
        if next(work, work) is not work:
            self._freed.append(work)
        if self._freed:
            self._loop.call_soon(self._free_turn)

    def _undecodable(self, connection: ServerConnection, frame: memoryview, error: Exception) -> None:
        """Decoding raised an unexpected error: the client gets an error response if its API has one, else its connection is closed."""
        call = undecoded_request(connection, frame)
        self.failures.note(call, "decoding the request", error, self._now_ms())
        try:
            if call is None:
                raise ValueError("the header of the request cannot be read")
            connection.respond(failure_response(call), connection.ticket)
        except Exception as second:
            connection.close("failed request", repr(second))


def _drop_event(event: events.Event, frame: memoryview | None = None) -> None:
    """Replaces ``handle`` of an abandoned broker."""
