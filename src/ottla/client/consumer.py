"""The consumer for asyncio: assigned partitions, read from where you say.

    async with Consumer(bootstrap_servers="127.0.0.1:9092", auto_offset_reset="earliest") as consumer:
        consumer.assign(await consumer.partitions_for("orders"))
        async for record in consumer:
            ...

Fetches go on between polls until two chunks of each partition are buffered. `fetch_raw` bypasses all of that: record batches as the
broker sent them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from random import Random
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.errors import AlreadyClosed, MetadataTimedOut
from ottla.client.fetch_session import Ask
from ottla.client.fetcher import ConsumerRecord, Fetcher, FetchPlan
from ottla.client.network import Network, failure
from ottla.client.offsets import EARLIEST, LATEST, OffsetAndTime, list_offsets, raised
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.client.producer import partitions_of
from ottla.client.routing import Share, ask_leaders
from ottla.net.link import LinkBroken
from ottla.wire.errors import KafkaError, UnknownServerError, error_for
from ottla.wire.messages import FetchRequest
from ottla.wire.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

Deserializer = Callable[[bytes | None], Any]
NO_TOPIC_ID = bytes(16)
#: The last version that names topics instead of giving their ids.
NAMES_UNTIL = 12
#: A fetch outside of a session.
NO_SESSION = (0, -1)


class RawFetch(NamedTuple):
    """Record batches as a broker sent them, and the ends of the log at that time. The last batch may be cut short."""

    #: Zero or more batches, format v2; the first may begin before the offset asked for.
    records: memoryview
    high_watermark: int
    log_start_offset: int
    last_stable_offset: int
    #: (producer id, first offset) of aborted transactions; empty unless read_committed.
    aborted: tuple[tuple[int, int], ...] = ()


class Consumer:
    """Reads records. Settings are those of `ConsumerOptions`, as keyword arguments; belongs to the loop in which it is first used.

    Raises: ConfigError for a setting that is unknown or makes no sense.
    """

    def __init__(
        self,
        *,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        rng: Random | None = None,
        **settings: Any,
    ) -> None:
        self.options = from_keywords(ConsumerOptions, settings)
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._rng = rng or Random()
        self._fetcher = Fetcher(self.options, self._rng)
        self._network_: Network | None = None
        self._news: asyncio.Event | None = None
        self._looking_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    # -- life

    async def start(self) -> Self:
        """Bind to the running loop. No broker is contacted yet."""
        _ = self._network
        return self

    @property
    def _network(self) -> Network:
        if self._closed:
            raise AlreadyClosed("the consumer is closed")
        if self._network_ is None:
            self._network_ = Network(self.options, rng=self._rng, allow_auto_create=self.options.allow_auto_create_topics)
            self._network_.changed = self._changed
            self._news = asyncio.Event()
        return self._network_

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Closing twice is no error."""
        if not self._closed:
            self._closed = True
            if self._timer is not None:
                self._timer.cancel()
            if self._news is not None:
                self._news.set()
            if self._network_ is not None:
                await self._network_.close()

    # -- assignment and positions

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> None:
        """Consume exactly these partitions, which replaces what was assigned; those that stay keep their position."""
        self._fetcher.assign(as_partition(tp) for tp in partitions)
        self._pump()

    def assignment(self) -> list[TopicPartition]:
        """The partitions assigned."""
        return self._fetcher.assignment

    def seek(self, partition: TopicPartition | tuple[str, int], offset: int) -> None:
        """Continue at this offset. Raises: ValueError when the partition is not assigned."""
        self._fetcher.seek(as_partition(partition), offset)
        self._pump()

    def seek_to_beginning(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the start of the log, in these partitions or all assigned."""
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Continue at the end of the log as it is now, in these partitions or all assigned."""
        self._seek_to(partitions, LATEST)

    def _seek_to(self, partitions: tuple[TopicPartition | tuple[str, int], ...], when: int) -> None:
        for tp in partitions or self._fetcher.assignment:
            self._fetcher.seek_to(as_partition(tp), when)
        self._pump()

    async def position(self, partition: TopicPartition | tuple[str, int], timeout_ms: float | None = None) -> int:
        """The offset of the next record that poll() gives; looks it up when it is not known. Raises: MetadataTimedOut, the partition's
        error.
        """
        tp = as_partition(partition)
        limit_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while (offset := self._fetcher.position(tp)) is None:
                    await self._wait()
        except TimeoutError:
            raise MetadataTimedOut(
                f"the position of {tp} is not known after {limit_ms:.0f} ms: {self._network.cluster.why_not(*tp)}"
            ) from None
        return offset

    def pause(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """Give no records of these partitions until they are resumed; what is buffered is kept."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp))

    def resume(self, *partitions: TopicPartition | tuple[str, int]) -> None:
        """End a pause."""
        for tp in partitions:
            self._fetcher.pause(as_partition(tp), False)
        self._pump()

    def paused(self) -> list[TopicPartition]:
        """The partitions that are paused."""
        return self._fetcher.paused

    def high_watermark(self, partition: TopicPartition | tuple[str, int]) -> int:
        """The end of the log, exclusive, as the last answer told; -1 before the first."""
        return self._fetcher.ends(as_partition(partition))[1]

    # -- records

    async def poll(self, timeout_ms: float | None = None, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, each partition's in order; waits for the first at most `timeout_ms` (None: as long as it takes), then may be
        empty.

        Raises: OffsetOutOfRange and the like of a partition; NoOffsetToStart, LogTruncated; CorruptMessage; what a deserializer raises.
        """
        limit = self.options.max_poll_records if max_records is None else max_records
        deadline_ms = float("inf") if timeout_ms is None else self._network.clock_ms() + timeout_ms
        while True:
            self._pump()
            found = self._fetcher.take(limit)
            if found:
                self._pump()
                # Who polls in a loop would otherwise keep the next answers from being received.
                await asyncio.sleep(0)
                return self._deserialized(found)
            left_ms = deadline_ms - self._network.clock_ms()
            if left_ms <= 0:
                return []
            try:
                async with asyncio.timeout(None if left_ms == float("inf") else left_ms / 1000):
                    await self._wait()
            except TimeoutError:
                deadline_ms = float("-inf")

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """All records, without end."""
        while True:
            for record in await self.poll():
                yield record

    def _deserialized(self, found: list[ConsumerRecord]) -> list[ConsumerRecord]:
        key, value = self._key_deserializer, self._value_deserializer
        if key is None and value is None:
            return found
        return [
            msgspec.structs.replace(
                record, key=key(record.key) if key else record.key, value=value(record.value) if value else record.value
            )
            for record in found
        ]

    async def _wait(self) -> None:
        """Until something may have changed."""
        _ = self._network
        assert self._news is not None, "a network comes with its news"
        self._news.clear()
        self._pump()
        await self._news.wait()
        _ = self._network

    # -- fetching

    def _changed(self) -> None:
        """Something happened: tell whoever waits, and go on."""
        if self._news is not None:
            self._news.set()
        self._pump()

    def _pump(self) -> None:
        """Begin every fetch, look-up and refresh that can begin now."""
        if self._closed or self._network_ is None or self._news is None:
            return
        network, now_ms = self._network_, self._network_.clock_ms()
        if not self._looking_up:
            lookups = self._fetcher.lookups()
            if lookups:
                self._looking_up = True
                network.spawn(self._look_up(lookups))
        plans, leaderless, next_ms = self._fetcher.plans(
            now_ms, network.cluster.leader, network.cluster.topic_id, lambda node_id: network.ready(node_id) is not None
        )
        for plan in plans:
            self._send(plan)
        for tp in self._fetcher.assignment:
            network.cluster.want(tp.topic, now_ms)
        if leaderless:
            network.cluster.invalidate()
        times = [at_ms for node_id in network.cluster.brokers if (at_ms := network.retry_at_ms(node_id)) > now_ms]
        self._wake_at(min([next_ms, network.refresh_soon(), *times]), now_ms)

    def _wake_at(self, at_ms: float, now_ms: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if at_ms < float("inf"):
            self._timer = asyncio.get_running_loop().call_later(max(at_ms - now_ms, 1) / 1000, self._pump)

    def _send(self, plan: FetchPlan) -> None:
        network = self._network
        peer = network.ready(plan.node_id)
        try:
            assert peer is not None, "a plan is made for a connected broker"
            at_most = NAMES_UNTIL if any(ask.topic_id == NO_TOPIC_ID for ask in plan.wanted.values()) else 1000
            version = peer.version(FetchRequest, at_most=at_most)
            session = self._fetcher.session(plan.node_id).request(plan.wanted, by_id=version > NAMES_UNTIL)
            request = fetch_request(
                self.options, session.send, session.forget, session=(session.session_id, session.epoch), max_wait_ms=plan.max_wait_ms
            )
            answer = peer.link.request(request, version, timeout_ms=self.options.request_timeout_ms + plan.max_wait_ms)
        except (LinkBroken, KafkaError):
            self._fetcher.failed(plan, network.clock_ms())
            return
        answer.add_done_callback(lambda done: self._answered(plan, done))

    def _answered(self, plan: FetchPlan, answer: asyncio.Future[Any]) -> None:
        if self._closed:
            return
        network = self._network
        if answer.exception() is not None:
            self._fetcher.failed(plan, network.clock_ms())
        else:
            response = answer.result()
            self._hints(response)
            if self._fetcher.answered(plan, response, network.cluster.names, network.clock_ms()):
                network.cluster.invalidate()
        self._changed()

    def _hints(self, response: Any) -> None:
        cluster = self._network.cluster
        endpoints = [(node.node_id, node.host, node.port, node.rack) for node in response.node_endpoints]
        for topic in response.responses:
            for data in topic.partitions:
                if data.error_code and data.current_leader.leader_id >= 0:
                    name, hint = topic.topic or cluster.names.get(topic.topic_id, ""), data.current_leader
                    cluster.hint(name, data.partition_index, leader=hint.leader_id, leader_epoch=hint.leader_epoch, endpoints=endpoints)

    async def _look_up(self, lookups: dict[TopicPartition, tuple[int, int]]) -> None:
        try:
            found = await list_offsets(
                self._network,
                {tp: when for tp, (when, _) in lookups.items()},
                read_committed=self.options.isolation_level == "read_committed",
                timeout_ms=self.options.request_timeout_ms,
            )
            for tp, (when, generation) in lookups.items():
                result = found.get(tp) or UnknownServerError(f"no answer about the offsets of {tp}")
                if isinstance(result, KafkaError):
                    self._fetcher.lookup_failed(tp, generation, when, result)
                else:
                    self._fetcher.looked_up(tp, generation, result.offset)
        finally:
            self._looking_up = False
            self._changed()

    # -- questions

    async def partitions_for(self, topic: str, timeout_ms: float | None = None) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises: MetadataTimedOut when there is no such topic in time."""
        limit_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        count = await partitions_of(self._network, topic, None, limit_ms)
        return [TopicPartition(topic, partition) for partition in range(count)]

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each log."""
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), EARLIEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def end_offsets(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The offset after the last record of each log: the high watermark, with read_committed the last stable offset."""
        found = await self._offsets(dict.fromkeys((as_partition(tp) for tp in partitions), LATEST), timeout_ms)
        return {tp: one.offset for tp, one in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition | tuple[str, int], int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndTime | None]:
        """The first record of each partition whose timestamp, in milliseconds, is not before the given one; None where there is none."""
        found = await self._offsets({as_partition(tp): when for tp, when in times.items()}, timeout_ms)
        return {tp: one if one.offset >= 0 else None for tp, one in found.items()}

    async def _offsets(self, times: dict[TopicPartition, int], timeout_ms: float | None) -> dict[TopicPartition, OffsetAndTime]:
        limit_ms = self.options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        read_committed = self.options.isolation_level == "read_committed"
        return raised(await list_offsets(self._network, times, read_committed=read_committed, timeout_ms=limit_ms))

    async def fetch_raw(
        self, partition: TopicPartition | tuple[str, int], offset: int, max_bytes: int | None = None, *, max_wait_ms: int | None = None,
        timeout_ms: float | None = None,
    ) -> RawFetch:  # fmt: skip
        """Record batches from `offset` on, undecoded; independent of assignment and positions. The view is into the response: nothing is
        copied.

        `max_bytes` defaults to `max_partition_fetch_bytes`; a first batch that is larger comes whole. At the end of the log the broker
        waits up to `max_wait_ms` (`fetch_max_wait_ms`) for more, then the records are empty.

        Raises: OffsetOutOfRange, TopicAuthorizationFailed and the like; RequestTimedOut when no leader answers within `timeout_ms`.
        """
        tp, options = as_partition(partition), self.options
        wait_ms = options.fetch_max_wait_ms if max_wait_ms is None else max_wait_ms
        network = self._network

        async def ask(node: int, share: Share[int]) -> dict[TopicPartition, RawFetch | KafkaError]:
            asks = {
                one: Ask(
                    network.cluster.topic_id(one.topic),
                    at,
                    epoch,
                    -1,
                    options.max_partition_fetch_bytes if max_bytes is None else max_bytes,
                )
                for one, (at, epoch) in share.items()
            }
            at_most = NAMES_UNTIL if network.cluster.topic_id(tp.topic) == NO_TOPIC_ID else 1000
            request = fetch_request(options, asks, [], session=NO_SESSION, max_wait_ms=wait_ms)
            response = await network.ask(node, request, timeout_ms=options.request_timeout_ms + wait_ms, at_most=at_most)
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

        limit_ms = options.default_api_timeout_ms if timeout_ms is None else timeout_ms
        result = (await ask_leaders(network, {tp: offset}, ask, timeout_ms=limit_ms, doing="fetching"))[tp]
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


__all__ = ["Consumer", "ConsumerRecord", "RawFetch", "failure"]
