"""The shell around one broker: every event goes in through ``hear``, every effect comes out of it.

::

    frame, store change, deadline, finished sync ──▶ hear(event) ──▶ Node.step(event, now) ──▶ effects ──▶ Performer
                                                                                                  ▲             │
                                                       next turns of the loop ────────────────────┴── outcomes ─┘

Steps do not nest: whatever performing an effect causes is heard in a later turn of the loop.

What a step raises is our mistake: it ends the process with a flight record, since nothing in memory can be trusted then. An unexpected
exception in a request does not leave the step (``broker/isolation.py``): the request is answered UNKNOWN_SERVER_ERROR, and the shell logs,
counts and records it (``failures.py``). An answer that cannot be encoded, and a request that cannot be decoded for a reason that we did not
foresee, cost the client the same and no more.

A process that stood still for long (a machine that was suspended, a debugger) may have lost its session with the store before anybody
tells it. So after such a pause the broker is first told that its session is suspended, and leads again once the store has answered.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from ottla.base.ids import ConnectionId
from ottla.base.ports import Op, Store, StoreResult
from ottla.broker import effects, events
from ottla.broker.isolation import refusal
from ottla.broker.node import PEER, Node
from ottla.net.server_connection import Connection
from ottla.server.failures import Failures
from ottla.server.flight_recorder import FlightRecorder
from ottla.server.metrics import Counters
from ottla.server.performer import Performer
from ottla.server.request_decoder import Refused, read_request, refused_unread, unread_request
from ottla.store import layout
from ottla.wire.declare import MalformedMessage, schema_of

log = logging.getLogger("ottla.server")

#: Time passes for a broker at least this often.
TICK_MS = 1_000


class Shell:
    """See the module's theory. Is the ``Handler`` of its broker's listener."""

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
        session: Store | None = None,
        pause_max_ms: int = 0,
    ) -> None:
        """``crashed`` is told of an error after which the process cannot go on, and does not return. ``record`` writes the flight record
        of a request that failed.

        After a pause of more than ``pause_max_ms`` the ``session`` is doubted; 0: never, since it lives as long as the process.
        """
        self.node = node
        self.performer = performer
        self.recorder = recorder
        self.counters = counters
        self.failures = Failures(counters, partial(record, self))
        performer.acts[effects.RequestFailed] = self._request_failed
        self._now_ms = now_ms
        self._wall_ms = wall_ms
        self._crashed = crashed
        self._loop = asyncio.get_running_loop()
        self._stepping = False
        #: The tick that is due, and when, in the broker's time.
        self._tick: asyncio.TimerHandle | None = None
        self._tick_ms = 0
        self._ticked_ms = 0
        #: Requests of other brokers of this process have connection ids of their own, below zero.
        self._peer_ids = count(-1, -1)
        self._stopped = False
        self._session = session
        self._pause_max_ms = pause_max_ms or 1 << 62
        #: When something was heard last.
        self._heard_ms = now_ms()

    def start(self) -> None:
        """To be called once the store's state has been heard."""
        self._carry_out(self.node.start(self._now_ms()))
        self.tick()

    def stop(self) -> None:
        """The broker hears nothing more but outcomes; time stops."""
        self._carry_out(self.node.stop(self._now_ms()))
        self._stopped = True
        if self._tick is not None:
            self._tick.cancel()

    def forsake(self) -> None:
        """The process is as good as dead: the broker hears nothing more, not even outcomes, and asks for nothing."""
        self._stopped = True
        self.hear = self.performer.hear = _unheard  # type: ignore[method-assign]
        if self._tick is not None:
            self._tick.cancel()

    # What is heard.

    def hear(self, event: events.Event, frame: memoryview | None = None) -> None:
        """One step, and what it asks for. ``frame`` is the request that the event was decoded from."""
        assert not self._stepping, "a step begins only after the last one is carried out"
        now_ms = self._now_ms()
        if now_ms - self._heard_ms > self._pause_max_ms:
            self._doubt_session(now_ms)
            # That was a step of its own.
            now_ms = self._now_ms()
        self._heard_ms = now_ms
        self._stepping = True
        self.recorder.note(now_ms, event, frame)
        try:
            asked = self.node.step(event, now_ms)
        except Exception as error:
            self._crashed(self, error)
        else:
            if asked:
                self._carry_out(asked)
        self._stepping = False
        due_ms = self.node.next_deadline_ms()
        if due_ms is not None and due_ms < self._tick_ms:
            self._set_tick(due_ms)

    def _doubt_session(self, now_ms: int) -> None:
        """The process stood still: the store may take this broker for dead."""
        pause_ms, self._heard_ms = now_ms - self._heard_ms, now_ms
        if self._session is None or self._tick is None:
            return
        log.warning("no event was handled for %d ms; the broker leads nothing until the store confirms its session", pause_ms)

        def answered(result: StoreResult) -> None:
            # Otherwise the session itself tells what has become of it.
            if result.error is None:
                self.hear(events.SessionChanged(state="connected"))

        self.hear(events.SessionChanged(state="suspended"))
        self._session.submit((Op("check", layout.BROKERS),), answered)

    def tick(self) -> None:
        """Tells the broker the time, and when to be told again."""
        if self._stopped:
            return
        self._tick_ms = (1 << 62) if self._tick is None else self._tick_ms
        self._ticked_ms = self._now_ms()
        self.failures.tick(self._ticked_ms)
        self.hear(events.Ticked(wall_ms=self._wall_ms()))
        due_ms = self.node.next_deadline_ms()
        latest_ms = self._ticked_ms + TICK_MS
        self._set_tick(latest_ms if due_ms is None else min(due_ms, latest_ms))

    def _set_tick(self, due_ms: int) -> None:
        if self._tick is not None:
            self._tick.cancel()
        if self._stopped:
            return
        self._tick_ms = due_ms
        # Not before the millisecond is over: the broker's time is rounded down.
        self._tick = self._loop.call_later(max(due_ms - self._now_ms(), 0) / 1000 + 0.0005, self.tick)

    def arrived(self, connection: Connection, frame: memoryview) -> None:
        """A frame came in; see ``net.server.Handler``."""
        try:
            request = read_request(connection, frame)
        except (Refused, MalformedMessage) as error:
            connection.close("malformed request", str(error))
            return
        except Exception as error:
            self._undecodable(connection, frame, error)
            return
        if not connection.trusted:
            connection.trust()
            self.performer.connections[connection.number] = connection
        if isinstance(request, list):
            connection.respond(request, connection.ticket)
            return
        self.counters.requests[request.api_key] += 1
        self.hear(request, frame)

    def lost(self, connection: Connection) -> None:
        """A connection is gone; see ``net.server.Handler``."""
        if self.performer.connections.pop(connection.number, None) is not None:
            self.hear(events.ConnectionClosed(connection=connection.number))

    def asked(self, message: Any, version: int, answered: Callable[[Any], None]) -> None:
        """A broker of this process asks; ``answered`` gets the response, or None."""
        if self._stopped:
            answered(None)
            return
        number = ConnectionId(next(self._peer_ids))
        key = schema_of(type(message)).key
        assert key is not None, f"{type(message).__name__} is a request"
        self.performer.peer_waits[number] = answered
        request = events.RequestArrived(connection=number, correlation_id=0, api_key=key, api_version=version, client_id=PEER, body=message)
        self.hear(request)

    # What comes of it.

    def _carry_out(self, asked: list[effects.Effect]) -> None:
        acts = self.performer.acts
        for effect in asked:
            try:
                acts[type(effect)](effect)
            except Exception as error:
                if isinstance(effect, effects.Respond):
                    self._unanswered(effect, error)
                else:
                    self._crashed(self, error)

    def _request_failed(self, effect: effects.RequestFailed) -> None:
        self.failures.note(effect.call, effect.what, effect.error, self._now_ms())

    def _unanswered(self, effect: effects.Respond, error: Exception) -> None:
        """An answer could not be encoded or handed on: the client gets a refusal in its place, or loses its connection."""
        call = effect.call
        self.failures.note(call, f"the answer on connection {effect.connection}", error, self._now_ms())
        message = None if call is None else refusal(call)
        try:
            if message is None or message == effect.message:
                raise ValueError("this API cannot say that the request failed")
            self.performer.respond(msgspec.structs.replace(effect, message=message))
        except Exception as hopeless:
            self.performer.hang_up(effect.connection, "failed request", repr(hopeless))

    def _undecodable(self, connection: Connection, frame: memoryview, error: Exception) -> None:
        """Decoding met an error of ours: the client is told, where its API can say so without the request, else its connection closes."""
        call = unread_request(connection, frame)
        self.failures.note(call, "decoding the request", error, self._now_ms())
        try:
            if call is None:
                raise ValueError("the header of the request cannot be read")
            connection.respond(refused_unread(call), connection.ticket)
        except Exception as hopeless:
            connection.close("failed request", repr(hopeless))


def _unheard(event: events.Event, frame: memoryview | None = None) -> None:
    """Stands where ``hear`` was."""
