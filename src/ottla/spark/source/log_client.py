"""Access to a cluster for the source: offsets and ranges of records, over ottla.client. Blocking, as Spark's workers are.

One `LogClient` per process and cluster, kept until the process ends: Spark reuses its Python workers, so the next batch reuses the
connections. Its event loop runs in a thread, which receives the next bytes of a range while the caller decodes the last ones. A forked
process does not use an inherited `LogClient`.
"""

import asyncio
import os
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ottla.base.ids import NO_TOPIC_ID, TopicPartition, topic_id_text
from ottla.base.units import MINUTE_MS
from ottla.client.admin.admin import Admin
from ottla.client.admin.calls import good
from ottla.client.admin.groups import Partition
from ottla.client.consumer.consumer import Consumer
from ottla.client.errors import ConnectionFailed
from ottla.client.fetch.range_reader import FETCH_BYTES, RangeReader
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.group.commits import Committed, OffsetAndMetadata
from ottla.client.options import AdminOptions, ClientOptions, ConsumerOptions, ProducerOptions, from_keywords
from ottla.client.sync.loop_thread import LoopCall, LoopThread
from ottla.client.transport.network import Network
from ottla.records.columns import Columns
from ottla.spark.source.data_loss import DataLossPolicy, Loss, logger
from ottla.spark.source.offset_ranges import EARLIEST, LATEST, OffsetRange
from ottla.spark.source.starting_offsets import NoSuchData
from ottla.wire.errors import InvalidTopic, KafkaError, UnknownTopicOrPartition, error_for
from ottla.wire.messages import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")

#: How long a failing commit of a query's progress may delay the query.
COMMIT_TIMEOUT_MS = 5_000
#: Timeout of the first response: brokers may be starting, and the address may be wrong.
FIRST_CONTACT_MS = 15_000
RETRY_S = 0.2
#: How long brokers must report a known topic as missing before it counts as deleted.
GONE_S = 3.0
#: Errors that mean that a topic does not exist.
NO_TOPIC = (UnknownTopicOrPartition.code, InvalidTopic.code)
#: How long partition sizes are cached, and the timeout of their request.
SIZES_MAX_AGE_S, SIZES_TIMEOUT_MS = 60.0, 3_000
#: First version with null for all topics and with allow_auto_topic_creation.
METADATA_VERSION_MIN = 4

_open: dict[tuple[Any, ...], "LogClient"] = {}


def open_log_client(bootstrap: str, properties: Mapping[str, str]) -> "LogClient":
    """This process's client of a cluster. Raises: ConfigError for an unknown property."""
    key = (os.getpid(), bootstrap, *sorted(properties.items()))
    log = _open.get(key)
    if log is None:
        log = _open[key] = LogClient(bootstrap, properties)
    return log


class LogClient:
    """A blocking client of one cluster. Methods raise KafkaError if the brokers refuse a request or cannot be reached."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        # The sink writes transactions, so aborted ones are skipped by default, unlike in Kafka.
        settings = {
            "bootstrap_servers": bootstrap,
            "isolation_level": "read_committed",
            **{name.replace(".", "_"): value for name, value in properties.items()},
        }
        # Jobs may set a group id. It is ignored: Spark assigns partitions, never a group.
        settings.pop("group_id", None)
        self._client_settings = _supported(ClientOptions, settings)
        self._admin_settings = _supported(AdminOptions, settings)
        self._consumer_settings = {"max_partition_fetch_bytes": FETCH_BYTES, **_supported(ConsumerOptions, settings)}
        unknown = set(settings) - set(self._consumer_settings) - set(_supported(ProducerOptions, settings))
        if unknown:
            from_keywords(ConsumerOptions, {name: settings[name] for name in unknown})
        self._ranges = RangeReader(
            self._fetch,
            check_crcs=str(settings.get("check_crcs", "true")).lower() == "true",
            read_committed=settings["isolation_level"] == "read_committed",
        )
        self._thread = LoopThread("ottla-log")
        self._consumer: Consumer | None = None
        self._network: Network | None = None
        #: How long brokers may be unreachable: the setting of a reader or a writer.
        self._metadata_timeout_ms = int(settings.get("default_api_timeout_ms", settings.get("max_block_ms", MINUTE_MS)))
        #: A broker has answered before, so the address is right.
        self._reached = False
        self._admin_client: Admin | None = None
        #: Ids of the existing topics in metadata responses; "" if the brokers have no ids.
        self._topic_ids: dict[str, str] = {}
        #: Bytes per offset, 0 if unknown, and the time of the request.
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_read_s = 0.0

    def close(self) -> None:
        """Closes the connections and ends the thread. Other methods then raise AlreadyClosed."""
        self._run(self._close())
        self._thread.stop()

    # -- metadata

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """The partition counts of the existing topics: of `names`, or of all but internal ones.

        A known topic counts as deleted after brokers report it as missing for `GONE_S`: a broker that just started may know no topic.

        Raises: the error of a topic that may exist but cannot be described.
        """
        response = self._run(self._metadata(names))
        for topic in response.topics:
            if topic.error_code:
                self._topic_ids.pop(topic.name or "", None)
            elif topic.name:
                self._topic_ids[topic.name] = "" if topic.topic_id == NO_TOPIC_ID else topic_id_text(topic.topic_id)
        return {topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code and (names or not topic.is_internal)}

    def partition_count(self, topic: str) -> int:
        """Raises: NoSuchData if the topic does not exist."""
        counts = self.topics([topic])
        if topic not in counts:
            raise NoSuchData(f"topic {topic} does not exist; create it with: ottla topic create {topic}")
        return counts[topic]

    def end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        """EARLIEST or LATEST offset of each partition."""
        if not partitions:
            return {}
        return self._run(self._end_offsets(partitions, at))

    def offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        """The first offset whose timestamp is at or after the time; None if there is none."""
        found = self._run(self._offsets_at(times_ms))
        return {tp: None if one is None else one.offset for tp, one in found.items()}

    def topic_ids(self, names: frozenset[str]) -> dict[str, str]:
        """The ids of existing topics at the last call of `topics` for them. Topics without an id are left out."""
        if not names <= self._topic_ids.keys():
            self.topics(sorted(names - self._topic_ids.keys()))
        return {name: known for name in names if (known := self._topic_ids.get(name))}

    def bytes_per_offset(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, float]:
        """Average bytes on disk per offset of each partition, up to `SIZES_MAX_AGE_S` old. Partitions of unknown size are left out."""
        now_s, requested = time.monotonic(), set(partitions)
        if now_s - self._sizes_read_s > SIZES_MAX_AGE_S or not requested <= self._sizes.keys():
            self._sizes = {**dict.fromkeys(requested, 0.0), **self._fetch_sizes(sorted(requested))}
            self._sizes_read_s = now_s
        return {tp: size for tp in partitions if (size := self._sizes[tp]) > 0}

    def _fetch_sizes(self, partitions: list[TopicPartition]) -> dict[TopicPartition, float]:
        try:
            dirs = self._run(self._admin().describe_log_dirs(topics=sorted({tp.topic for tp in partitions}), timeout_ms=SIZES_TIMEOUT_MS))
            first, last = self.end_offsets(partitions, EARLIEST), self.end_offsets(partitions, LATEST)
        except KafkaError as error:
            # Not every user is authorized and not every broker answers. Sizes only balance tasks.
            logger.info("splitting partitions by offsets because their sizes cannot be read: %s", error)
            return {}
        sizes: dict[TopicPartition, int] = {}
        for found in dirs.values():
            for replica in (one for log_dir in ([] if isinstance(found, KafkaError) else found) for one in log_dir.replicas):
                tp = TopicPartition(replica.topic, replica.partition)
                sizes[tp] = max(sizes.get(tp, 0), replica.size_bytes)
        return {tp: sizes[tp] / (last[tp] - first[tp]) for tp in partitions if tp in sizes and last[tp] > first[tp]}

    # -- groups

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The committed offsets of a group; None for partitions without one."""
        found = good(self._run(self._admin().list_consumer_group_offsets({group: partitions}))[group])
        offsets = {tp: good(one) for tp, one in found.items()}
        return {tp: None if one is None else one.offset for tp, one in offsets.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises: KafkaError of the first partition that failed."""
        commits: dict[Partition, Committed] = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        results = self._run(self._admin().alter_consumer_group_offsets(group, commits, timeout_ms=COMMIT_TIMEOUT_MS))
        for result in results.values():
            good(result)

    # -- reading

    def read(self, range_: OffsetRange, *, with_headers: bool, loss_policy: DataLossPolicy, timeout_ms: int) -> Iterator[Columns]:
        """The records of a range in order, in chunks. The next bytes are fetched while the caller uses a chunk.

        Offsets without a record (compaction, transactions) are skipped. Records that were deleted before they could be read are data loss.

        Raises: DataLoss; TimeoutError if no data arrives for `timeout_ms` before the end of the range.
        """
        tp = TopicPartition(range_.topic, range_.partition)
        if range_.topic_id and range_ and not self._topic_unchanged(range_, loss_policy):
            return
        try:
            for fetched in self._ranges.read(
                tp, range_.start, range_.end, timeout_ms=timeout_ms, gone=lambda at: self._after_loss(range_, at, loss_policy)
            ):
                yield from fetched.columns(with_headers=with_headers, timestamps_us=True)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; kafkaConsumer.pollTimeoutMs sets this timeout") from None

    def _topic_unchanged(self, range_: OffsetRange, loss_policy: DataLossPolicy) -> bool:
        """Whether the topic has the id for which the range was planned. Raises: DataLoss."""
        existing = self.topics([range_.topic])
        now = self._topic_ids.get(range_.topic)
        position = (range_.topic, range_.partition, range_.start)
        if range_.topic not in existing:
            loss_policy.handle(Loss("topic gone", *position, range_.end, None, f"{range_} cannot be read: its topic was deleted"))
            return False
        if now and now != range_.topic_id:
            sentence = f"{range_} cannot be read: its topic was deleted and created again (its id was {range_.topic_id} and is {now})"
            loss_policy.handle(Loss("recreated", *position, range_.end, None, sentence))
            return False
        return True

    def _after_loss(self, range_: OffsetRange, position: int, loss_policy: DataLossPolicy) -> int:
        tp = TopicPartition(range_.topic, range_.partition)
        earliest = self.end_offsets([tp], EARLIEST)[tp]
        if earliest > position:
            what = f"{range_}: offset {position} is gone, the log begins at {earliest}"
            loss_policy.handle(Loss("deleted", tp.topic, tp.partition, position, min(earliest, range_.end), earliest, what))
            return earliest
        latest = self.end_offsets([tp], LATEST)[tp]
        what = f"{range_}: offset {position} is gone, the log ends at {latest}"
        loss_policy.handle(Loss("truncated", tp.topic, tp.partition, min(latest, position), range_.end, earliest, what))
        return range_.end

    def _fetch(self, tp: TopicPartition, position: int) -> LoopCall[RawFetch]:
        return self._thread.submit(self._fetch_raw(tp, position))

    # -- on the event loop

    async def _close(self) -> None:
        for client in (self._consumer, self._admin_client, self._network):
            if client is not None:
                await client.close()

    async def _metadata(self, names: Sequence[str] | None) -> Any:
        if self._network is None:
            self._network = Network(from_keywords(ClientOptions, self._client_settings), allow_auto_create=False)
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        timeout_ms = self._metadata_timeout_ms if self._reached else min(self._metadata_timeout_ms, FIRST_CONTACT_MS)
        deadline_s, gone_s = (self._thread.loop.time() + after_s for after_s in (timeout_ms / 1000, GONE_S))
        expected = self._topic_ids.keys() & set(self._topic_ids if names is None else names)
        while True:
            try:
                response = await self._network.ask_any(request, at_least=METADATA_VERSION_MIN)
                self._reached = True
                refused = _fatal_error(response)
                if refused is None:
                    present = {topic.name for topic in response.topics if not topic.error_code}
                    if not (expected - present) or self._thread.loop.time() >= gone_s:
                        return response
                elif not refused.retriable:
                    raise refused
            except ConnectionFailed as error:
                refused = error
            if refused is not None and self._thread.loop.time() >= deadline_s:
                raise refused
            await asyncio.sleep(RETRY_S)

    def _admin(self) -> Admin:
        if self._admin_client is None:
            self._admin_client = Admin(**self._admin_settings)
        return self._admin_client

    async def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await Consumer(**self._consumer_settings).start()
        return self._consumer

    async def _fetch_raw(self, tp: TopicPartition, position: int) -> RawFetch:
        return await (await self._reader()).fetch_raw(tp, position)

    async def _end_offsets(self, partitions: Sequence[TopicPartition], at: int) -> dict[TopicPartition, int]:
        reader = await self._reader()
        return await (reader.beginning_offsets(partitions) if at == EARLIEST else reader.end_offsets(partitions))

    async def _offsets_at(self, times_ms: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, Any]:
        return await (await self._reader()).offsets_for_times({(tp.topic, tp.partition): time_ms for tp, time_ms in times_ms.items()})

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._thread.call(work)


def _fatal_error(response: Any) -> KafkaError | None:
    """The error of a topic that may exist but cannot be described."""
    codes = (topic.error_code for topic in response.topics)
    return next((error_for(code) for code in codes if code and code not in NO_TOPIC), None)


def _supported(table: type[ClientOptions], settings: Mapping[str, Any]) -> dict[str, Any]:
    names = {spec.attribute for spec in table.SPECS.values()}
    return {name: value for name, value in settings.items() if name in names}


__all__ = ["KafkaError", "LogClient", "open_log_client"]
