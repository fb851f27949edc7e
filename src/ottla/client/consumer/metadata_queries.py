"""Queries of a consumer to brokers, independent of its assignment: topics, log ends, offsets by timestamp, raw batches. Queries never
create topics; subscriptions and assignments do if `allow_auto_create_topics` and the brokers allow it.

Each call takes at most `timeout_ms` (`default_api_timeout_ms`) and retries retriable errors.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.fetch.offsets import EARLIEST, LATEST, OffsetAndTime, list_offsets, raised
from ottla.client.fetch.ranges import Range
from ottla.client.fetch.raw_fetch import RawFetch, fetch_raw
from ottla.client.options import ConsumerOptions
from ottla.client.producer.producer import partitions_of
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.network import METADATA_VERSION_MIN, Network
from ottla.wire.errors import KafkaError
from ottla.wire.messages import MetadataRequest

Partition = TopicPartition | tuple[str, int]
#: Milliseconds by partition.
Times = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]


class MetadataQueries(ABC):
    """Queries of the asyncio consumer."""

    options: ConsumerOptions

    @property
    @abstractmethod
    def _network(self) -> Network:
        """Raises: AlreadyClosed."""

    def _limit_ms(self, timeout_ms: float | None) -> float:
        return self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms

    async def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The topic's partitions in order. Raises: MetadataTimedOut if the topic does not exist in time."""
        return await self.partitions_to_read(topic, timeout_ms, create=False)

    async def partitions_to_read(self, topic: str, timeout_ms: float | None = None, *, create: bool = True) -> list[TopicPartition]:
        """The partitions of a topic that is about to be read, and may be created for that."""
        count = await partitions_of(self._network, topic, None, self._limit_ms(timeout_ms), create=create)
        return [TopicPartition(topic, partition) for partition in range(count)]

    async def list_topics(self, timeout_ms: float | None = None) -> dict[str, list[TopicPartition]]:
        """All authorized topics with their partitions; without internal ones if `exclude_internal_topics`.

        Raises: ConnectionFailed if no broker answers in time.
        """
        network, options = self._network, self.options
        deadline_ms = network.clock_ms() + self._limit_ms(timeout_ms)
        backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, network.rng)
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        while True:
            try:
                response = await network.ask_any(request, at_least=METADATA_VERSION_MIN)
                break
            except KafkaError as error:
                left_ms = deadline_ms - network.clock_ms()
                if not error.retriable or left_ms <= 0:
                    raise
                await asyncio.sleep(min(backoff.failed(), left_ms) / 1000)
        shown = [topic for topic in response.topics if topic.name and not (topic.is_internal and options.exclude_internal_topics)]
        return {
            topic.name: [TopicPartition(topic.name, index) for index in sorted(one.partition_index for one in topic.partitions)]
            for topic in sorted(shown, key=lambda topic: topic.name)
        }

    async def beginning_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The log start offset of each partition."""
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), EARLIEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def end_offsets(self, partitions: Iterable[Partition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """The offset after the last record of each partition: the high watermark, with read_committed the last stable offset."""
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), LATEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def offsets_for_times(self, times: Times, timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record of each partition at or after the given timestamp (ms); None without one."""
        found = await self._offsets({as_partition(tp): when for tp, when in times.items()}, timeout_ms)
        return {tp: one if one.offset >= 0 else None for tp, one in found.items()}

    async def offsets_of(
        self, ranges: Mapping[TopicPartition, Range], timeout_ms: float | None = None
    ) -> dict[TopicPartition, tuple[int, int]]:
        """The offsets of each range now: first offset, and offset after the last, within the log."""
        if not ranges:
            return {}
        starts, ends = await self.beginning_offsets(ranges, timeout_ms), await self.end_offsets(ranges, timeout_ms)
        found: list[dict[TopicPartition, int]] = []
        for side in (0, 1):
            times: dict[Partition, int] = {tp: when for tp, one in ranges.items() if (when := one.times()[side]) is not None}
            answers = await self.offsets_for_times(times, timeout_ms) if times else {}
            found.append({tp: one.offset for tp, one in answers.items() if one is not None})
        return {tp: one.offsets(starts[tp], ends[tp], found[0].get(tp), found[1].get(tp)) for tp, one in ranges.items()}

    async def _offsets(self, times: dict[TopicPartition, int], timeout_ms: float | None) -> dict[TopicPartition, OffsetAndTime]:
        read_committed = self.options.isolation_level == "read_committed"
        return raised(await list_offsets(self._network, times, read_committed=read_committed, timeout_ms=self._limit_ms(timeout_ms)))

    async def fetch_raw(
        self, partition: Partition, offset: int, max_bytes: int | None = None, *, max_wait_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> RawFetch:  # fmt: skip
        """Record batches from `offset` on, undecoded; independent of assignment and positions. The view is into the response, without a
        copy.

        `max_bytes` defaults to `max_partition_fetch_bytes`; a larger first batch is returned whole. At the log end the broker waits up to
        `max_wait_ms` (`fetch_max_wait_ms`) for more; then the records are empty. If the last offsets of the log have no record,
        `empty_until` is the end of the gap, after a second.

        Raises: OffsetOutOfRange, TopicAuthorizationFailed and others; RequestTimedOut if no leader answers within `timeout_ms`.
        """
        options = self.options
        return await fetch_raw(
            self._network, options, as_partition(partition), offset,
            max_bytes=options.max_partition_fetch_bytes if max_bytes is None else max_bytes,
            max_wait_ms=options.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms,
            timeout_ms=self._limit_ms(timeout_ms),
        )  # fmt: skip
