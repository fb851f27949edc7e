"""A simulated client's connection to a broker. It reconnects when it breaks. Requests are sent in order; responses match by correlation id.

Each request ends once, with ``answered(response)`` or ``lost()``. A lost request may have been executed, or may be executed later.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ottla.sim.network import Connection, Host, Network
from ottla.sim.world import World
from ottla.wire import framing
from ottla.wire.declare import MalformedMessage
from ottla.wire.messages import API

RETRY_MS = 50
REQUEST_TIMEOUT_MS = 5_000
#: API key by request class.
KEYS: dict[type[Any], int] = {schema.request: key for key, schema in API.items()}
#: Version of each request that simulated clients send, declared by API key.
VERSIONS: dict[type[Any], int] = {
    API[key].request: version
    for key, version in {
        0: 12,
        1: 12,
        2: 7,
        8: 9,
        9: 9,
        10: 6,
        11: 9,
        12: 4,
        13: 5,
        14: 5,
        19: 5,
        20: 5,
        21: 2,
        22: 4,
        24: 3,
        25: 3,
        26: 5,
        28: 5,
        30: 3,
        31: 3,
        37: 3,
        42: 2,
        43: 2,
        45: 1,
        47: 0,
        49: 1,
        57: 2,
        68: 1,
    }.items()
}


@dataclass(slots=True, eq=False)
class PendingRequest:
    """A request in flight."""

    number: int
    request: type[Any]
    version: int
    answered: Callable[[Any], None]
    lost: Callable[[], None]


class Caller:
    """One client's connection, reopened as needed."""

    def __init__(self, world: World, network: Network, host: Host, name: str, on_break: Callable[[], None] = lambda: None) -> None:
        """``on_break`` is called when a connection broke, after its requests were reported as lost."""
        self.world = world
        self._network = network
        self._host = host
        self._name = name
        self._on_break = on_break
        self._connection: Connection | None = None
        self._numbers = 0
        self._waiting: deque[PendingRequest] = deque()

    def call(
        self,
        message: Any,
        answered: Callable[[Any], None],
        *,
        lost: Callable[[], None] = lambda: None,
        batch: bytes | bytearray = b"",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
        version: int | None = None,
    ) -> bool:
        """Sends a request; False if the broker refuses the connection. A request without a response in time breaks the connection.

        ``version``: None for that of ``VERSIONS``.
        """
        if self._connection is None:
            self._connection = self._network.connect(self._host, on_frame=self._frame, on_close=self._closed)
            if self._connection is None:
                return False
        self._numbers += 1
        number, connection, kind = self._numbers, self._connection, type(message)
        sent_version = VERSIONS[kind] if version is None else version
        self._waiting.append(PendingRequest(number, kind, sent_version, answered, lost))
        chunks = framing.encode_request(message, sent_version, number, self._name)
        frame = b"".join(bytes(chunk) for chunk in chunks)[framing.SIZE_BYTES :]  # type: ignore[arg-type]
        connection.send(frame, batch_at=frame.find(batch) if batch else -1)

        def overdue() -> None:
            if self._connection is connection and self._waiting and self._waiting[0].number <= number:
                connection.close()

        self.world.after(timeout_ms, overdue)
        return True

    def hang_up(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def _frame(self, frame: bytearray) -> None:
        waiting = self._waiting[0]
        try:
            correlation, message = framing.decode_response(API[KEYS[waiting.request]].response, frame, waiting.version)
            if correlation != waiting.number:
                raise MalformedMessage(f"answer {correlation} to request {waiting.number}")
        except MalformedMessage:
            # Damaged in transit.
            self.hang_up()
            return
        self._waiting.popleft()
        waiting.answered(message)

    def _closed(self) -> None:
        self._connection = None
        lost, self._waiting = self._waiting, deque()
        for waiting in lost:
            waiting.lost()
        self._on_break()


def send_once(world: World, network: Network, host: Host, request: Any) -> None:
    """Sends a request as an operator who ignores the result."""
    caller = Caller(world, network, host, "operator")
    caller.call(request, lambda response: caller.hang_up())
