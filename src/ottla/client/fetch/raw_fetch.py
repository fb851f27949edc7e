"""Raw fetches: record batches as a broker sent them, without assignment, positions and sessions.

A log may end with offsets that never had or no longer have a record: compaction removed the last ones. A broker has nothing to send from
there, although its log end is higher, and a reader of a range would wait for ever. Such a gap is distinguished from a late record as
follows:

    the log was committed beyond the offset before the last request       excludes records that were in flight
    several requests                                                      exclude brokers with little memory
    the broker has the offset locally                                     excludes slow remote storage (KIP-405)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

from ottla.base.acls import Operation
from ottla.base.ids import NO_TOPIC_ID, TopicPartition
from ottla.client.access_errors import refused_access
from ottla.client.errors import BrokerIncompatible
from ottla.client.fetch.offsets import EARLIEST_LOCAL, list_offsets
from ottla.client.fetch.session import PartitionFetch
from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import Network
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire.errors import KafkaError, UnknownServerError, error_for
from ottla.wire.messages import FetchRequest
from ottla.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

#: Last version with topic names.
NAMES_UNTIL = 12
#: A fetch without a session.
NO_SESSION = (0, -1)
#: Number and interval of requests to a broker that sends nothing although its log end is higher.
GAP_LOOKS, GAP_PAUSE_S = 2, 0.5


class RawFetch(NamedTuple):
    """Record batches as a broker sent them, and the ends of the log at that time. The last batch may be incomplete."""

    #: Zero or more batches, format v2; the first may begin before the requested offset.
    records: memoryview
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    #: (producer id, first offset) of aborted transactions; empty unless read_committed.
    aborted: tuple[tuple[int, int], ...] = ()
    #: End of a gap at the requested offset: no offset up to here has a record. 0 without a gap.
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
    """Whether the broker has this offset in its local log."""
    begins = (await list_offsets(network, {tp: EARLIEST_LOCAL}, timeout_ms=timeout_ms))[tp]
    if isinstance(begins, KafkaError):
        # A broker that does not support the request has no remote storage.
        return isinstance(begins, BrokerIncompatible)
    return begins.offset <= offset


async def _fetched(
    network: Network, options: ConsumerOptions, tp: TopicPartition, offset: int, *, max_bytes: int, max_wait_ms: int, timeout_ms: float
) -> RawFetch:
    async def ask(node: int, share: Share[int]) -> dict[TopicPartition, RawFetch | KafkaError]:
        asks = {one: PartitionFetch(network.cluster.topic_id(one.topic), at, epoch, -1, max_bytes) for one, (at, epoch) in share.items()}
        at_most = NAMES_UNTIL if network.cluster.topic_id(tp.topic) == NO_TOPIC_ID else 1000
        request = fetch_request(options, asks, [], session=NO_SESSION, max_wait_ms=max_wait_ms)
        while True:
            response = await network.ask(node, request, timeout_ms=options.request_timeout_ms + max_wait_ms, at_most=at_most)
            if response.error_code or response.responses or not response.throttle_time_ms:
                break
            # A throttled response has no partitions (KIP-219); the next request waits for the end of the throttle time.
        if response.error_code:
            return {tp: error_for(response.error_code)}
        for topic in response.responses:
            for data in topic.partitions:
                refused = refused_access(data.error_code, options, Operation.READ, tp.topic) if data.error_code else None
                return {
                    tp: error_for(data.error_code, f"{tp} at offset {offset}: {refused or error_for(data.error_code)}")
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
    asks: Mapping[TopicPartition, PartitionFetch],
    forget: list[tuple[TopicPartition, bytes]],
    *,
    session: tuple[int, int],
    max_wait_ms: int,
) -> FetchRequest:
    """A consumer's fetch request. Topic names and ids are both filled in; the version determines which are sent."""
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
