"""Finds the timestamps of the records at given offsets with few requests.

ListOffsets only maps times to offsets, so the record itself must be read. One Fetch asks a broker for all partitions it leads, with a small
limit for each. A partition whose next batch is larger returns nothing and is requested again with a limit for any usual batch; those come
first, because the first partition with records is returned completely at any size. So each round makes progress:

    round 1    16 KiB per partition      all of them; most next batches are smaller
    round 2    1 MiB per partition       those that returned nothing, 32 MiB in total
    ...        1 MiB per partition       the rest; from the end of a batch on if the offset was compacted away

`TimeSearch` is the pure state of a search; `record_times` sends the requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.client.fetch.raw_fetch import NAMES_UNTIL
from ottla.client.transport.network import Network
from ottla.client.transport.routing import Share, ask_leaders
from ottla.records.batch import headers
from ottla.records.errors import RecordsError
from ottla.records.read import records
from ottla.wire.errors import CorruptMessage, KafkaError, UnknownServerError, error_for
from ottla.wire.messages import FetchRequest
from ottla.wire.messages.fetch import FetchPartition, FetchTopic

LITTLE_BYTES = 16 * 1024
MUCH_BYTES = 1024 * 1024
RESPONSE_BYTES = 32 * 1024 * 1024
#: Consecutive rounds without a result after which the search gives up.
IDLE_MAX = 5

RecordPosition = tuple[TopicPartition, int]


class Piece(NamedTuple):
    """A broker's response for one partition from an offset on."""

    records: Any
    high_watermark: int


class OffsetRead(NamedTuple):
    """The offset and the byte limit of a read."""

    offset: int
    bytes_max: int


class TimeSearch:
    """A search for the timestamps of offsets. `found`: milliseconds; None if no record follows; the error if it cannot be read."""

    def __init__(self, wanted: Iterable[RecordPosition]) -> None:
        self.found: dict[RecordPosition, int | KafkaError | None] = {}
        #: By partition: the next offset to read for each offset of the search.
        self._open: dict[TopicPartition, dict[int, int]] = {}
        #: Partitions with records that returned nothing: the limit was too small, or other partitions used it up.
        self._hungry: set[TopicPartition] = set()
        #: Consecutive rounds without a result.
        self._idle = 0
        for tp, offset in wanted:
            self._open.setdefault(tp, {})[offset] = offset

    def asks(self) -> dict[TopicPartition, OffsetRead]:
        """The next reads, one per partition, those that returned nothing first. Empty when the search is complete."""
        order = sorted(self._open, key=lambda tp: tp not in self._hungry)
        return {tp: OffsetRead(min(self._open[tp].values()), MUCH_BYTES if tp in self._hungry else LITTLE_BYTES) for tp in order}

    def learn(self, asked: Mapping[TopicPartition, OffsetRead], answers: Mapping[TopicPartition, Piece | KafkaError]) -> None:
        """Processes the responses to `asks`."""
        self._idle += 1
        for tp, ask in asked.items():
            answer = answers.get(tp) or UnknownServerError(f"the broker left {tp} out of its answer")
            try:
                if isinstance(answer, KafkaError):
                    raise answer
                read_to = self._read(tp, ask.offset, answer)
            except KafkaError as error:
                self._close(tp, error)
                continue
            if read_to >= answer.high_watermark:
                self._close(tp, None)
            elif read_to == ask.offset:
                self._hungry.add(tp)
            else:
                self._idle = 0
            if not self._open.get(tp):
                self._open.pop(tp, None)
        if self._idle > IDLE_MAX:
            for tp in list(self._open):
                self._close(tp, UnknownServerError(f"the broker gives no records of {tp}"))

    def _read(self, tp: TopicPartition, begun: int, piece: Piece) -> int:
        """Processes a response; returns the offset up to which it had data. Raises: CorruptMessage."""
        read_to, places = begun, self._open[tp]
        try:
            for position, header in headers(piece.records):
                # A compacted batch may have fewer records than offsets, or none.
                for wanted in [wanted for wanted, at in places.items() if at <= header.last_offset]:
                    left = records(piece.records, position, start_offset=wanted)
                    if left:
                        self.found[tp, wanted] = left[0][1]
                        del places[wanted]
                read_to = max(read_to, header.last_offset + 1)
        except RecordsError as error:
            raise CorruptMessage(f"{tp} from offset {begun} on: {error}") from None
        for wanted, at in places.items():
            places[wanted] = max(at, read_to)
        return read_to

    def _close(self, tp: TopicPartition, outcome: KafkaError | None) -> None:
        for wanted in self._open.pop(tp, {}):
            self.found[tp, wanted] = outcome


async def record_times(
    network: Network, wanted: Iterable[RecordPosition], *, timeout_ms: float
) -> dict[RecordPosition, int | KafkaError | None]:
    """The timestamp in milliseconds of the first record at or after each offset; -1 if it has none, None if there is no such record."""
    search = TimeSearch(wanted)
    deadline_ms = network.clock_ms() + timeout_ms

    async def ask(node: int, share: Share[OffsetRead]) -> dict[TopicPartition, Piece | KafkaError]:
        cluster = network.cluster
        by_name = any(cluster.topic_id(tp.topic) == NO_TOPIC_ID for tp in share)
        response = await network.ask(node, _request(network, share), at_most=NAMES_UNTIL if by_name else 1000)
        if response.error_code:
            return dict.fromkeys(share, error_for(response.error_code))
        return {
            TopicPartition(topic.topic or cluster.names.get(topic.topic_id, ""), one.partition_index): error_for(one.error_code)
            if one.error_code
            else Piece(b"" if one.records is None else one.records, one.high_watermark)
            for topic in response.responses
            for one in topic.partitions
        }

    while asks := search.asks():
        left_ms = max(deadline_ms - network.clock_ms(), 0)
        answers = await ask_leaders(network, asks, ask, timeout_ms=left_ms, doing="reading", patient=False)
        search.learn(asks, answers)
    return search.found


def _request(network: Network, share: Share[OffsetRead]) -> FetchRequest:
    topics: dict[str, FetchTopic] = {}
    for tp, (ask, epoch) in share.items():
        topic = topics.setdefault(tp.topic, FetchTopic(topic=tp.topic, topic_id=network.cluster.topic_id(tp.topic), partitions=[]))
        topic.partitions.append(
            FetchPartition(partition=tp.partition, current_leader_epoch=epoch, fetch_offset=ask.offset, partition_max_bytes=ask.bytes_max)
        )
    return FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=RESPONSE_BYTES, topics=list(topics.values()))
