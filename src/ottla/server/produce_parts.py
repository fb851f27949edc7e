"""A Produce request of very many partitions is handled as several requests in a row.

The broker appends all batches of a Produce request in one step: 20,000 take 400 ms, for which other clients wait. So the shell passes a
larger request than ``PARTITIONS_MAX`` in parts, and the loop takes what else has arrived between two of them. For the broker a part is a
request like any other, which the client could have sent::

    frame ─▶ ProduceParts ─▶ part 1, a turn of the loop, part 2 ... ─▶ Node.step ─▶ Respond with the ticket of a part
                  ▲                                                                     │
                  └────────────────── all parts are answered ◀──────────────────────────┘ ─▶ Respond with the ticket of the request

* Each partition is in one part. If the request names one again, its last batch counts, as without parts.
* The connection dispatches nothing more before the last part was handled, so no later request passes by. Its frame stays as long, since
  the records of the parts are views of it.
* A connection that closes meanwhile has the rest not appended, as if it had closed between two requests.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import count
from typing import Any

import msgspec

from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.broker.turns import TURN_ELEMENTS, Turns
from ottla.net.server_connection import ServerConnection
from ottla.wire.messages.leader_hints import NodeEndpoint
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData, TopicProduceResponse

#: A request with more partitions is handled in parts.
PARTITIONS_MAX = TURN_ELEMENTS // 2
#: What a batch weighs in a turn. To append it takes 15 to 30 µs; but a part has costs of its own, among them a flush, so that the parts of
#: usual requests are larger. With more partitions than ``LARGE`` a part has five: each lets the threads run that flush others.
USUAL_WEIGHT, LARGE_WEIGHT, LARGE = 8, 40, 2 * TURN_ELEMENTS
#: Partitions that are looked at in a turn before the first part.
SLICE = 500

#: Topic by name and by id; only one of them is in a request.
TopicKey = tuple[str, bytes]
Answer = effects.Respond | effects.Release
PRODUCE, LAST = 0, object()
Found = dict[TopicKey, dict[int, PartitionProduceData]]


def is_large(request: ProduceRequest, partitions_max: int) -> bool:
    """Whether it has more partitions."""
    topics = request.topic_data
    return len(topics) > partitions_max or sum([len(topic.partition_data) for topic in topics]) > partitions_max


class ProducesInParts:
    """The requests of one broker that are handled in parts."""

    def __init__(self, turns: Turns, *, handle: Callable[[RequestArrived[Any]], None], end: Callable[[Answer], None]) -> None:
        """``handle`` handles a part in a step of its own; ``end`` performs the effect that ends a request."""
        self._turns = turns
        self._handle = handle
        self._end = end
        self._loop = asyncio.get_running_loop()
        #: Connections whose frame stays, since a request has parts that are not handled.
        self.connections: set[ServerConnection] = set()
        #: The first has the next turn.
        self._waiting: deque[tuple[ServerConnection, ProduceParts]] = deque()
        #: By the tickets of parts without an answer. They are negative; those of requests are not.
        self._by_ticket: dict[int, ProduceParts] = {}
        self._tickets = count(-1, -1)

    def takes(self, connection: ServerConnection, request: RequestArrived[Any] | list[Any]) -> bool:
        """Whether a request is handled in parts."""
        if isinstance(request, list) or request.api_key != PRODUCE or not connection.is_authenticated:
            return False
        return is_large(request.body, max(1, self._turns.elements // 2))

    def begin(self, connection: ServerConnection, request: RequestArrived[ProduceRequest]) -> None:
        """The frame must stay until the connection is not in ``connections`` any more; it is freed here."""
        self.connections.add(connection)
        weight = LARGE_WEIGHT if is_large(request.body, LARGE) else USUAL_WEIGHT
        self._waiting.append((connection, ProduceParts(request, max(1, self._turns.elements // weight), self._tickets)))
        if len(self._waiting) == 1:
            self._loop.call_soon(self._turn)

    def answered(self, effect: Answer) -> None:
        """The answer of a part."""
        parts = self._by_ticket.pop(effect.ticket, None)
        if parts is not None:
            parts.answered(effect)
            self._end_if_done(parts)

    def lost(self, connection: ServerConnection) -> None:
        """A connection is closed: answers to its parts are dropped, and parts that are not handled are not."""
        if self._by_ticket:
            self._by_ticket = {ticket: parts for ticket, parts in self._by_ticket.items() if parts.call.connection != connection.number}

    def _turn(self) -> None:
        """Handles one part of one request: other events of the loop come between two turns, whatever the number of requests."""
        connection, parts = self._waiting.popleft()
        part = None if connection.closing else next(parts.turns, LAST)
        if connection.closing or part is LAST:
            parts.handled = not connection.closing
            self.connections.discard(connection)
            connection.free_frame()
            self._end_if_done(parts)
        else:
            self._waiting.append((connection, parts))
            if isinstance(part, RequestArrived):
                self._by_ticket[part.ticket] = parts
                self._handle(part)
        if self._waiting:
            self._loop.call_soon(self._turn)

    def _end_if_done(self, parts: "ProduceParts") -> None:
        if parts.done:
            self._end(parts.answer())


class ProduceParts:
    """One request in parts."""

    def __init__(self, call: RequestArrived[ProduceRequest], size: int, tickets: Iterator[int]) -> None:
        """``size``: partitions of a part. ``tickets`` gives one for each; requests of connections have others."""
        #: None in a turn without a part; ends after the last one.
        self.turns = self._turns(call.body, size, tickets)
        #: The request, without its batches.
        self.call = msgspec.structs.replace(call, body=msgspec.structs.replace(call.body, topic_data=[]))
        #: Parts that are handled and not answered.
        self.waiting: set[int] = set()
        #: Whether all parts were handled.
        self.handled = False
        self._left_bytes = call.size
        self._responses: dict[TopicKey, TopicProduceResponse] = {}
        self._endpoints: dict[int, NodeEndpoint] = {}
        self._throttle_ms = 0

    @property
    def done(self) -> bool:
        """Whether all parts are answered."""
        return self.handled and not self.waiting

    def answered(self, effect: Answer) -> None:
        """Takes the answer of a part."""
        self.waiting.discard(effect.ticket)
        self._throttle_ms = max(self._throttle_ms, effect.throttle_ms)
        if isinstance(effect, effects.Release):
            return
        response: ProduceResponse = effect.message
        for topic in response.responses:
            before = self._responses.setdefault((topic.name, topic.topic_id), topic)
            if before is not topic:
                before.partition_responses += topic.partition_responses
        for endpoint in response.node_endpoints:
            self._endpoints[endpoint.node_id] = endpoint

    def answer(self) -> Answer:
        """What ends the request."""
        call = self.call
        if call.body.acks == 0:
            return effects.Release(connection=call.connection, ticket=call.ticket, throttle_ms=self._throttle_ms)
        return effects.Respond(
            connection=call.connection,
            correlation_id=call.correlation_id,
            api_version=call.api_version,
            message=ProduceResponse(
                responses=list(self._responses.values()),
                throttle_time_ms=self._throttle_ms,
                node_endpoints=list(self._endpoints.values()),
            ),
            ticket=call.ticket,
            in_turns=True,
            throttle_ms=self._throttle_ms,
            call=call,
        )

    def _turns(
        self, body: ProduceRequest, size: int, tickets: Iterator[int]
    ) -> Generator[RequestArrived[ProduceRequest] | None, None, None]:
        found: Found = {}
        for topic in body.topic_data:
            partitions = found.setdefault((topic.name, topic.topic_id), {})
            for start in range(0, len(topic.partition_data), SLICE):
                partitions.update({data.index: data for data in topic.partition_data[start : start + SLICE]})
                yield None
        left = sum(map(len, found.values()))
        for part in _parts(found, size):
            left -= sum(len(topic.partition_data) for topic in part)
            ticket = next(tickets)
            self.waiting.add(ticket)
            yield msgspec.structs.replace(
                self.call,
                body=msgspec.structs.replace(self.call.body, topic_data=part),
                ticket=ticket,
                size=self._bytes_of(part, last=not left),
                # The request is measured, and not its parts.
                arrived_ns=0,
            )

    def _bytes_of(self, part: Iterable[TopicProduceData], *, last: bool) -> int:
        """The share of the frame, for quotas."""
        size = self._left_bytes if last else sum(len(data.records or b"") for topic in part for data in topic.partition_data)
        size = min(size, self._left_bytes)
        self._left_bytes -= size
        return size


def _parts(found: Found, size: int) -> Iterator[list[TopicProduceData]]:
    """Topics with their partitions, in parts of so many partitions."""
    part: list[TopicProduceData] = []
    room = size
    for (name, topic_id), partitions in found.items():
        every: list[Any] = list(partitions.values())
        start = 0
        while start < len(every):
            some = every[start : start + room]
            part.append(TopicProduceData(name=name, topic_id=topic_id, partition_data=some))
            start += len(some)
            room -= len(some)
            if not room:
                yield part
                part, room = [], size
    if part:
        yield part
