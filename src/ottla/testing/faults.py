"""What goes wrong between a broker and its clients, on order: at the broker's door, where frames come in and answers go out.

::

    connection ──frame──▶ Door ──▶ shell ──▶ broker            a fault is decided on when a request arrives:
        ▲                  │ ▲                 │
        └──────answer──────┘ └─────answer──────┘

    drop a request     the broker never sees it       drop an answer    it was done, and nobody hears of it
    delay              it is handed on later          cut before/after  the connection breaks before or after it is done
    answer an error    the broker never sees it       pause             nothing is handed on nor answered until it goes on

Whatever client it is, it sees what a network or a sick broker would show it. Kafka answers the requests of a connection in the order in
which they came; so after a request that gets no answer that connection gives none at all, until its client has had enough of it
(``request.timeout.ms``), or until the fault is over, when such connections are cut.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from ottla.base.ids import ConnectionId
from ottla.base.options import suggestion
from ottla.net.server_connection import Handler, ServerConnection
from ottla.server.request_decoder import Refused, error_response, read_request
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import BY_CODE, KafkaError
from ottla.wire.framing import decode_request_header
from ottla.wire.messages import API

Kind = Literal["drop request", "drop answer", "delay", "answer error", "cut before", "cut after"]
AFTERWARDS = ("drop answer", "cut after")
#: What the broker's own clients, through which a test looks at topics, call themselves. No fault is theirs.
SPARED = "ottla-testing"
PRODUCE = 0


def api_keys(names: Iterable[str]) -> frozenset[int]:
    """Keys of APIs by Kafka's names; of all when there are none. Raises: ValueError."""
    known = {api.name: key for key, api in API.items()}
    for name in names:
        if name not in known:
            raise ValueError(f"Kafka has no API {name!r}{suggestion(name, known)}")
    return frozenset(known[name] for name in names) or frozenset(API)


def error_of(said: KafkaError | type[KafkaError] | str) -> KafkaError:
    """An error, or its class, or Kafka's name for it. Raises: ValueError."""
    if isinstance(said, KafkaError):
        return said
    if isinstance(said, type):
        return said()
    by_name = {cls.constant: cls for cls in BY_CODE.values()}
    if said not in by_name:
        raise ValueError(f"Kafka has no error {said!r}{suggestion(said, by_name)}")
    return by_name[said]("a test ordered this error")


class Fault:
    """One fault, while it is in force. ``count`` tells how often it has happened."""

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
        #: Connections on which nothing is answered any more.
        self.stuck: set[Tap] = set()

    def __repr__(self) -> str:
        return f"Fault({self.kind}, happened {self.count} times{'' if self.times is None else f' of {self.times}'})"

    def wait(self, count: int = 1, *, timeout_s: float = 20.0) -> None:
        """Returns when it has happened so often. Raises: AssertionError."""
        with self._happened:
            assert self._happened.wait_for(lambda: self.count >= count, timeout_s), f"{self!r}, not {count} times, in {timeout_s:g} s"

    def takes(self, api_key: int, client_id: str | None) -> bool:
        """Whether it befalls this request; then it has happened once more."""
        if api_key not in self.apis or (self.client_id is not None and client_id != self.client_id):
            return False
        with self._happened:
            if self.times is not None and self.count >= self.times:
                return False
            self.count += 1
            self._happened.notify_all()
        return True


@dataclass(eq=False, slots=True)
class Held:
    """A request that is not handed on yet."""

    ticket: int
    frame: bytearray
    fault: Fault | None
    due_s: float


@dataclass(eq=False, slots=True)
class Tap:
    """Stands before the shell for one connection."""

    connection: ServerConnection
    door: "Door"
    #: The request that is being handed on.
    ticket: int = 0
    held: deque[Held] = field(default_factory=deque)
    #: What befalls the answers of requests, by ticket.
    answers: dict[int, Fault] = field(default_factory=dict)
    #: Answers given while the broker is paused.
    withheld: list[tuple[int, Sequence[Any]]] = field(default_factory=list)
    spared: bool = False
    #: The connection is gone, but not all that came over it is handed on.
    gone: bool = False

    # What a shell uses of a connection.

    @property
    def number(self) -> ConnectionId:
        return self.connection.number

    @property
    def host(self) -> str:
        return self.connection.host

    @property
    def local(self) -> tuple[str, int]:
        return self.connection.local

    @property
    def trusted(self) -> bool:
        return self.connection.trusted

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
        elif self.door.paused and not self.spared:
            self.withheld.append(
                (number, [chunk if isinstance(chunk, bytes | bytearray | memoryview) else chunk.read() for chunk in chunks])
            )
        elif not self.gone:
            self.connection.respond(chunks, number)

    def __hash__(self) -> int:
        return id(self)


class Door:
    """Before the shell of one life of a broker. Is the ``Handler`` of its listener. Belongs to the loop."""

    def __init__(self, shell: Handler, faults: list[Fault]) -> None:
        """``faults`` are those in force; the first that fits a request befalls it."""
        self._shell = shell
        self._faults = faults
        self._loop = asyncio.get_running_loop()
        self._taps: dict[ServerConnection, Tap] = {}
        self.paused = False

    # Handler

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None:
        tap = self._taps.get(connection)
        if tap is None:
            tap = self._taps[connection] = Tap(connection, self)
        fault = None
        try:
            header, _ = decode_request_header(frame)
        except MalformedMessage:
            # The shell has an opinion on it.
            tap.spared = True
        else:
            tap.spared = header.client_id == SPARED
            if not tap.spared:
                fault = next((one for one in self._faults if one.takes(header.api_key, header.client_id)), None)
        delay_s = fault.delay_s if fault is not None else 0.0
        if tap.held or delay_s or (self.paused and not tap.spared):
            tap.held.append(Held(connection.ticket, bytearray(frame), fault, self._loop.time() + delay_s))
            self._look_again(tap, delay_s)
        else:
            self._take(tap, connection.ticket, frame, fault)

    def lost(self, connection: ServerConnection) -> None:
        tap = self._taps.get(connection)
        if tap is not None:
            tap.gone = True
            tap.withheld.clear()
            self._look(tap)

    # What tests order, on the loop.

    def go_on(self) -> None:
        """Ends a pause: what waited is handed on, what was answered is sent."""
        self.paused = False
        for tap in list(self._taps.values()):
            waiting, tap.withheld = tap.withheld, []
            for ticket, chunks in waiting:
                tap.respond(chunks, ticket)
            self._look(tap)

    def cut_all(self) -> int:
        """Breaks every connection but the broker's own clients'; how many."""
        cut = [tap.connection for tap in self._taps.values() if not tap.gone and not tap.spared]
        for connection in cut:
            connection.abort()
        return len(cut)

    def over(self, fault: Fault) -> None:
        """Whoever still waits for an answer that will not come is told so."""
        for tap in fault.stuck:
            if not tap.gone:
                tap.connection.abort()

    def shut(self) -> None:
        """The broker is dead: nothing comes in any more, and what waited is gone."""
        self._taps.clear()
        self._shell = _Nobody()

    # How a request goes on.

    def _take(self, tap: Tap, ticket: int, frame: memoryview, fault: Fault | None) -> None:
        kind = None if fault is None else fault.kind
        if fault is not None and kind == "drop request":
            fault.stuck.add(tap)
        elif kind == "cut before":
            tap.connection.abort()
        else:
            tap.ticket = ticket
            if fault is not None and kind in AFTERWARDS:
                tap.answers[ticket] = fault
            if fault is not None and fault.error is not None:
                self._refuse(tap, frame, fault.error)
            else:
                # Of a connection the shell uses no more than a tap has.
                self._shell.arrived(cast(ServerConnection, tap), frame)

    def _refuse(self, tap: Tap, frame: memoryview, error: KafkaError) -> None:
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

    def _look_again(self, tap: Tap, delay_s: float) -> None:
        if delay_s:
            self._loop.call_later(delay_s, self._look, tap)

    def _look(self, tap: Tap) -> None:
        """Hands on what waited, in order, as far as nothing speaks against it any more."""
        while tap.held and (not self.paused or tap.spared):
            first = tap.held[0]
            # A timer may come a moment too early.
            if first.due_s > self._loop.time() + 0.002:
                break
            tap.held.popleft()
            self._take(tap, first.ticket, memoryview(first.frame), first.fault)
        if tap.gone and not tap.held and self._taps.pop(tap.connection, None) is not None:
            self._shell.lost(cast(ServerConnection, tap))


class _Nobody:
    """Hears and does nothing."""

    def arrived(self, connection: ServerConnection, frame: memoryview) -> None: ...

    def lost(self, connection: ServerConnection) -> None: ...


def door_of(faults: list[Fault], opened: Callable[[Door], None]) -> Callable[[Handler], Handler]:
    """Makes doors for the lives of a broker; ``opened`` is told of each."""

    def door(shell: Handler) -> Handler:
        made = Door(shell, faults)
        opened(made)
        return made

    return door
