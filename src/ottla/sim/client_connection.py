"""A simulated user's connection to the broker: one at a time, made again when it breaks; requests in order, answers matched by number.

A request is either answered or lost, and the user hears of either, once: ``answered(response)`` or ``lost()``. Lost says nothing about what
the broker did: the request may have been carried out, or be carried out later.
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
#: The version of each API that simulated users speak.
VERSIONS = {
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
    22: 4,
    37: 3,
    42: 2,
    43: 2,
    45: 1,
    47: 0,
    68: 1,
}
#: The key of each API, by the class of its requests.
KEYS: dict[type[Any], int] = {schema.request: key for key, schema in API.items()}


def nothing() -> None:
    """What to do about a loss that the user hears of by other means."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A request that was sent."""

    number: int
    key: int
    answered: Callable[[Any], None]
    lost: Callable[[], None]


class Caller:
    """See the module's theory."""

    def __init__(self, world: World, network: Network, host: Host, name: str, on_break: Callable[[], None] = nothing) -> None:
        """``on_break`` is called when a connection broke, after what waited on it was lost."""
        self.world = world
        self._network = network
        self._host = host
        self._name = name
        self._on_break = on_break
        self._connection: Connection | None = None
        self._numbers = 0
        self._waiting: deque[Waiting] = deque()

    def call(
        self,
        message: Any,
        key: int,
        answered: Callable[[Any], None],
        *,
        lost: Callable[[], None] = nothing,
        batch: bytes | bytearray = b"",
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> bool:
        """Send a request; False when nobody takes the connection. Without an answer in time the connection breaks."""
        if self._connection is None:
            self._connection = self._network.connect(self._host, on_frame=self._frame, on_close=self._closed)
            if self._connection is None:
                return False
        self._numbers += 1
        number, connection = self._numbers, self._connection
        self._waiting.append(Waiting(number, key, answered, lost))
        chunks = framing.encode_request(message, VERSIONS[key], number, self._name)
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
            correlation, message = framing.decode_response(API[waiting.key].response, frame, VERSIONS[waiting.key])
            if correlation != waiting.number:
                raise MalformedMessage(f"answer {correlation} to request {waiting.number}")
        except MalformedMessage:
            # Damaged on the way.
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
