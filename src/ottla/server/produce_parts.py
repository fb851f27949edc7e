"""A Produce request of very many partitions is handled as several requests in a row.

The broker appends all batches of a Produce request in one step: 20,000 take 140 ms, for which other clients wait. So the shell passes a
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

from collections.abc import Generator, Iterable, Iterator
from typing import Any

import msgspec

from ottla.broker import effects
from ottla.broker.events import RequestArrived
from ottla.wire.messages.leader_hints import NodeEndpoint
from ottla.wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData, TopicProduceResponse

#: A request with more partitions is handled in parts of a quarter: about 0.3 ms.
PARTITIONS_MAX = 200
#: Partitions that are looked at in a turn before the first part.
SLICE = 500

#: Topic by name and by id; only one of them is in a request.
TopicKey = tuple[str, bytes]
Found = dict[TopicKey, dict[int, PartitionProduceData]]


def is_large(request: ProduceRequest, partitions_max: int) -> bool:
    """Whether it has more partitions."""
    topics = request.topic_data
    return len(topics) > partitions_max or sum([len(topic.partition_data) for topic in topics]) > partitions_max


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

    def answered(self, effect: effects.Respond | effects.Release) -> None:
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

    def answer(self) -> effects.Respond | effects.Release:
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
