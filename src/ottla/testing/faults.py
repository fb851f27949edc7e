"""Injects faults between a broker and its clients, where frames arrive and responses leave.

::

    connection ──frame──▶ FaultInjector ──▶ shell ──▶ broker            a fault is chosen when a request arrives
        ▲                      │ ▲                     │
        └───────response───────┘ └──────response───────┘

    drop request    the broker does not see it     drop answer     the request is done, its response is lost
    delay           forwarded later                cut before/after the connection breaks before or after the request is done
    answer error    the broker does not see it     pause           nothing is forwarded or answered until resume

Kafka answers the requests of a connection in order. So after a request without a response the connection gives no more responses, until
the client times out (``request.timeout.ms``) or the fault ends, which closes such connections.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from ottla.base.ids import ConnectionId
from ottla.base.options import suggestion
from ottla.base.origin import Origin
from ottla.net.server_connection import Handler, ServerConnection
from ottla.server.request_decoder import Refused, error_response, read_request
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import BY_CODE, KafkaError
from ottla.wire.framing import decode_request_header
from ottla.wire.messages import API

Kind = Literal["drop request", "drop answer", "delay", "answer error", "cut before", "cut after"]
AFTER_RESPONSE = ("drop answer", "cut after")
#: Client id of the test helpers' own clients. Faults do not affect them.
UNAFFECTED_CLIENT_ID = "ottla-testing"
PRODUCE = 0


def api_keys(names: Iterable[str]) -> frozenset[int]:
    """Keys of APIs by Kafka's names; all keys without names. Raises: ValueError."""
    known = {api.name: key for key, api in API.items()}
    for name in names:
        if name not in known:
            raise ValueError(f"Kafka has no API {name!r}{suggestion(name, known)}")
    return frozenset(known[name] for name in names) or frozenset(API)


def error_of(error: KafkaError | type[KafkaError] | str) -> KafkaError:
    """The error for an error, its class, or Kafka's name for it. Raises: ValueError."""
    if isinstance(error, KafkaError):
        return error
    if isinstance(error, type):
        return error()
    by_name = {cls.constant: cls for cls in BY_CODE.values()}
    if error not in by_name:
        raise ValueError(f"Kafka has no error {error!r}{suggestion(error, by_name)}")
    return by_name[error]("a test injected this error")


class Fault:
    """An active fault. ``count`` is how often it has happened."""

    def __init__(
        self,
        kind: Kind,
        apis: frozenset[int],
        *,
        times: int | None,
        client_id: str | None,
        delay_s: float = 0,
        error: KafkaError | None = None,
    ) -> None:
        if times is not None and times < 1:
            raise ValueError(f"a fault happens at least once, not {times} times")
        self.kind = kind
        self.apis = apis
        self.times = times
        self.client_id = client_id
        self.delay_s = delay_s
        self.error = error
        self.count = 0
        self._happened = threading.Condition()
        #: Connections that give no more responses.
        self.stuck: set[TappedConnection] = set()

    def __repr__(self) -> str:
        return f"Fault({self.kind}, happened {self.count} times{'' if self.times is None else f' of {self.times}'})"

    def wait(self, count: int = 1, *, timeout_ms: float = 20_000) -> None:
        """Waits until the fault has happened ``count`` times. Raises: AssertionError."""
        with self._happened:
            timeout_s = timeout_ms / 1000
            assert self._happened.wait_for(lambda: self.count >= count, timeout_s), f"{self!r}, not {count} times, in {timeout_s:g} s"

    def applies_to(self, api_key: int, client_id: str | None) -> bool:
        """Whether it affects this request. If so, increments ``count``."""
        if api_key not in self.apis or (self.client_id is not None and client_id != self.client_id):
            return False
        with self._happened:
            if self.times is not None and self.count >= self.times:
                return False
            self.count += 1
            self._happened.notify_all()
        return True


@dataclass(eq=False, slots=True)
class HeldRequest:
    """A request that is not forwarded yet."""

    ticket: int
    frame: bytearray
    fault: Fault | None
    due_s: float


@dataclass(eq=False, slots=True)
class TappedConnection:
    """A connection as the shell sees it: intercepts responses."""

    connection: ServerConnection
    injector: "FaultInjector"
    #: The request that is being forwarded.
    ticket: int = 0
    held: deque[HeldRequest] = field(default_factory=deque)
    #: Faults of responses, by ticket.
    answers: dict[int, Fault] = field(default_factory=dict)
    #: Responses given while the broker is paused.
    withheld: list[tuple[int, Sequence[Any]]] = field(default_factory=list)
    unaffected: bool = False
    #: The connection is closed, but held requests are not forwarded yet.
    gone: bool = False

    # The part of a connection that a shell uses.

    @property
    def number(self) -> ConnectionId:
        return self.connection.number

    @property
    def host(self) -> str:
        return self.connection.host

    @property
    def origin(self) -> Origin:
        return self.connection.origin

    @property
    def trusted(self) -> bool:
        return self.connection.trusted

    @property
    def closing(self) -> bool:
        return self.connection.closing

    #: False: the shell decodes a large request at once and not in turns, in which it would keep the connection's frame. That of a held
    #: request is a copy.
    is_authenticated: ClassVar[bool] = False

    def trust(self) -> None:
        self.connection.trust()

    def close(self, kind: str, detail: str = "") -> None:
        self.connection.close(kind, detail)

    def release(self, ticket: int | None = None) -> None:
        self.answers.pop(self.ticket if ticket is None else ticket, None)
        self.connection.release(self.ticket if ticket is None else ticket)

    def respond(self, chunks: Sequence[Any], ticket: int | None = None) -> None:
        number = self.ticket if ticket is None else ticket
        fault = self.answers.pop(number, None)
        if fault is not None:
            if fault.kind == "cut after":
                self.connection.abort()
            else:
                fault.stuck.add(self)
        elif self.injector.paused and not self.unaffected:
            self.withheld.append(
                (number, [chunk if isinstance(chunk, bytes | bytearray | memoryview) else chunk.read() for chunk in chunks])
            )
        elif not self.gone:
            self.connection.respond(chunks, number)

    def __hash__(self) -> int:
        return id(self)


class FaultInjector:
    """The ``Handler`` of a broker's listener, in front of its shell, for one run of the broker. Used on the loop only."""

    def __init__(self, shell: Handler, faults: list[Fault]) -> None:
        """``faults``: the active ones. The first that applies to a request is used."""
        self._shell = shell
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._taps: dict[ServerConnection, TappedConnection] = {}
        self.paused = False

    # Handler

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        tap = self._taps.get(connection)
        if tap is None:
            tap = self._taps[connection] = TappedConnection(connection, self)
        fault = None
        try:
            header, _ = decode_request_header(frame)
        except MalformedMessage:
            # The shell handles malformed requests.
            tap.unaffected = True
        else:
            tap.unaffected = header.client_id == UNAFFECTED_CLIENT_ID
            if not tap.unaffected:
                fault = next((one for one in self._faults if one.applies_to(header.api_key, header.client_id)), None)
        delay_s = fault.delay_s if fault is not None else 0.0
        if tap.held or delay_s or (self.paused and not tap.unaffected):
            tap.held.append(HeldRequest(connection.ticket, bytearray(frame), fault, self._loop.time() + delay_s))
            self._forward_later(tap, delay_s)
        else:
            self._forward(tap, connection.ticket, frame, fault)

    def lost(self, connection: ServerConnection) -> None:
        tap = self._taps.get(connection)
        if tap is not None:
            tap.gone = True
            tap.withheld.clear()
            self._forward_held(tap)

    # Called by tests, on the loop.

    def resume(self) -> None:
        """Ends a pause: forwards held requests and sends withheld responses."""
        self.paused = False
        for tap in list(self._taps.values()):
            waiting, tap.withheld = tap.withheld, []
            for ticket, chunks in waiting:
                tap.respond(chunks, ticket)
            self._forward_held(tap)

    def cut_all(self) -> int:
        """Breaks all connections except those of the test helpers. Returns their number."""
        cut = [tap.connection for tap in self._taps.values() if not tap.gone and not tap.unaffected]
        for connection in cut:
            connection.abort()
        return len(cut)

    def end(self, fault: Fault) -> None:
        """Ends a fault: closes connections that wait for a lost response."""
        for tap in fault.stuck:
            if not tap.gone:
                tap.connection.abort()

    def shut_down(self) -> None:
        """Stops forwarding and drops held requests: the broker is dead."""
        self._taps.clear()
        self._shell = _NoHandler()

    # Forwarding of requests.

    def _forward(self, tap: TappedConnection, ticket: int, frame: memoryview, fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "drop request":
            fault.stuck.add(tap)
        elif kind == "cut before":
            tap.connection.abort()
        else:
            tap.ticket = ticket
            if fault is not None and kind in AFTER_RESPONSE:
                tap.answers[ticket] = fault
            if fault is not None and fault.error is not None:
                self._refuse(tap, frame, fault.error)
            else:
                # A tapped connection has all that the shell uses.
                self._shell.arrived(cast(ServerConnection, tap), frame)

    def _refuse(self, tap: TappedConnection, frame: memoryview, error: KafkaError) -> None:
        try:
            request = read_request(cast(ServerConnection, tap), frame)
        except (Refused, MalformedMessage) as problem:
            tap.connection.close("malformed request", str(problem))
            return
        if not tap.trusted:
            tap.trust()
        if isinstance(request, list):
            tap.respond(request)
        elif request.api_key == PRODUCE and request.body.acks == 0:
            tap.release()
        else:
            tap.respond(error_response(request, error))

    def _forward_later(self, tap: TappedConnection, delay_s: float) -> None:
        if delay_s:
            self._loop.call_later(delay_s, self._forward_held, tap)

    def _forward_held(self, tap: TappedConnection) -> None:
        """Forwards held requests in order, up to the first that must still wait."""
        while tap.held and (not self.paused or tap.unaffected):
            first = tap.held[0]
            # Timers may fire slightly early.
            if first.due_s > self._loop.time() + 0.002:
                break
            tap.held.popleft()
            self._forward(tap, first.ticket, memoryview(first.frame), first.fault)
        if tap.gone and not tap.held and self._taps.pop(tap.connection, None) is not None:
            self._shell.lost(cast(ServerConnection, tap))


class _NoHandler:
    """Ignores everything."""

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None: ...

    def lost(self, connection: ServerConnection) -> None: ...


def fault_injection(faults: list[Fault], opened: Callable[[FaultInjector], None]) -> Callable[[Handler], Handler]:
    """A function that wraps the shell of each run of a broker and passes the injector to ``opened``."""

    def wrap(shell: Handler) -> Handler:
        injector = FaultInjector(shell, faults)
        opened(injector)
        return injector

    return wrap
