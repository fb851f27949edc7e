"""Record batches as a broker sent them: a fetch of one partition, apart from assignment, positions and sessions; and how a fetch request is
made.

A log may end with offsets that have no record and never will: compaction has removed the last ones, and nothing was written since. A broker
has nothing to send from there on, though it says that its log goes further, and whoever wants to read to the end would wait for ever. What
tells such a gap from a record that is only late, each against a broker that sends nothing for another reason:

    the log was committed beyond the offset before it was asked again     records that were on their way
    it is asked several times                                             brokers short of memory
    the broker itself holds the offset                                    remote storage that takes its time (KIP-405)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.client.errors import BrokerIncompatible
from ottla.client.fetch.offsets import EARLIEST_LOCAL, list_offsets
from ottla.client.fetch.session import Ask
from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import Network
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire.errors import KafkaError, UnknownServerError, error_for
from ottla.wire.messages import FetchRequest
from ottla.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

#: The last version that names topics instead of giving their ids.
NAMES_UNTIL = 12
#: A fetch outside of a session.
NO_SESSION = (0, -1)
#: How often, and how far apart, a broker is asked again that sends nothing where there should be something.
GAP_LOOKS, GAP_PAUSE_S = 2, 0.5


class RawFetch(NamedTuple):
    """Record batches as a broker sent them, and the ends of the log at that time. The last batch may be cut short."""

    #: Zero or more batches, format v2; the first may begin before the offset asked for.
    records: memoryview
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    #: (producer id, first offset) of aborted transactions; empty unless read_committed.
    aborted: tuple[tuple[int, int], ...] = ()
    #: Where the log goes on after a gap at its end: no offset from the one asked for up to here has a record, nor ever will. 0 without one.
    empty_until: int = 0


async def fetch_raw(
    network: Network, options: ConsumerOptions, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int, timeout_ms: float
) -> RawFetch:
    """See `Consumer.fetch_raw`."""

    async def once() -> RawFetch:
        return await _fetched(network, options, tp, offset, max_bytes=max_bytes, max_wait_ms=max_wait_ms, timeout_ms=timeout_ms)

    found = await once()
    end = found.last_stable_offset if options.isolation_level == "read_committed" else found.high_watermark
    if len(found.records) or end <= offset:
        return found
    for _ in range(GAP_LOOKS):
        await asyncio.sleep(GAP_PAUSE_S)
        found = await once()
        if len(found.records):
            return found
    return found._replace(empty_until=end) if await _holds(network, tp, offset, timeout_ms) else found


async def _holds(network: Network, tp: TopicPartition, offset: int, timeout_ms: float) -> bool:
    """Whether a record at this offset would be with the broker itself."""
    begins = (await list_offsets(network, {tp: EARLIEST_LOCAL}, timeout_ms=timeout_ms))[tp]
    if isinstance(begins, KafkaError):
        # Who does not know the question has no remote storage.
        return isinstance(begins, BrokerIncompatible)
    return begins.offset <= offset


async def _fetched(
    network: Network, options: ConsumerOptions, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int, timeout_ms: float
) -> RawFetch:
    async def ask(node: int, share: Share[int]) -> dict[TopicPartition, RawFetch | KafkaError]:
        asks = {one: Ask(network.cluster.topic_id(one.topic), at, epoch, -1, max_bytes) for one, (at, epoch) in share.items()}
        at_most = NAMES_UNTIL if network.cluster.topic_id(tp.topic) == NO_TOPIC_ID else 1000
        request = fetch_request(options, asks, [], session=NO_SESSION, max_wait_ms=max_wait_ms)
        while True:
            response = await network.ask(node, request, timeout_ms=options.request_timeout_ms + max_wait_ms, at_most=at_most)
            if response.error_code or response.responses or not response.throttle_time_ms:
                break
            # A broker that throttles tells of no partition (KIP-219).
            await asyncio.sleep(response.throttle_time_ms / 1000)
        if response.error_code:
            return {tp: error_for(response.error_code)}
        for topic in response.responses:
            for data in topic.partitions:
                return {
                    tp: error_for(data.error_code, f"{tp} at offset {offset}: {error_for(data.error_code)}")
                    if data.error_code
                    else _raw(data)
                }
        return {tp: UnknownServerError(f"the broker left {tp} out of its answer")}

    result = (await ask_leaders(network, {tp: offset}, ask, timeout_ms=timeout_ms, doing="fetching"))[tp]
    if isinstance(result, KafkaError):
        raise result
    return result


def fetch_request(
    options: ConsumerOptions,
    asks: Mapping[TopicPartition, Ask],
    forget: list[tuple[TopicPartition, bytes]],
    *,
    session: tuple[int, int],
    max_wait_ms: int,
) -> FetchRequest:
    """A consumer's fetch request. Topic names and ids are both filled in; the version decides which is sent."""
    topics: dict[str, FetchTopic] = {}
    for tp, ask in asks.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = FetchTopic(topic=tp.topic, topic_id=ask.topic_id, partitions=[])
        topic.partitions.append(
            FetchPartition(
                partition=tp.partition,
                current_leader_epoch=ask.leader_epoch,
                fetch_offset=ask.offset,
                last_fetched_epoch=ask.last_fetched_epoch,
                partition_max_bytes=ask.bytes_max,
            )
        )
    forgotten: dict[tuple[str, bytes], ForgottenTopic] = {}
    for tp, topic_id in forget:
        gone = forgotten.setdefault((tp.topic, topic_id), ForgottenTopic(topic=tp.topic, topic_id=topic_id, partitions=[]))
        gone.partitions.append(tp.partition)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=options.fetch_min_bytes,
        max_bytes=options.fetch_max_bytes,
        isolation_level=int(options.isolation_level == "read_committed"),
        session_id=session[0],
        session_epoch=session[1],
        topics=list(topics.values()),
        forgotten_topics_data=list(forgotten.values()),
    )


def _raw(data: Any) -> RawFetch:
    aborted = tuple((one.producer_id, one.first_offset) for one in data.aborted_transactions or ())
    return RawFetch(memoryview(data.records or b""), data.high_watermark, data.log_start_offset, data.last_stable_offset, aborted)
