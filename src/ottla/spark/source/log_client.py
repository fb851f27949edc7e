"""The seam to the log: offsets and ranges of records, over ottla.client (`sending` is the way out). Blocking, because Spark's workers are.

One `Log` per process and cluster, kept for as long as the process lives: Spark reuses its Python workers, so the next batch finds the
connections made. Its loop runs in a thread of its own, which receives the next bytes of a range while the caller turns the last ones into
columns. A process that was forked does not touch the `Log` it inherited.
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
from ottla.client.sync.loop_thread import Call, LoopThread
from ottla.client.transport.network import Network
from ottla.records.columns import Columns
from ottla.spark.source.data_loss import Loss, Losses, logger
from ottla.spark.source.offset_ranges import EARLIEST, LATEST, OffsetRange
from ottla.spark.source.starting_offsets import NoSuchData
from ottla.wire.errors import InvalidTopic, KafkaError, UnknownTopicOrPartition, error_for
from ottla.wire.messages import MetadataRequest, MetadataRequestTopic

T = TypeVar("T")

#: How long a query is held up by a consumer group that cannot be told of its progress.
COMMIT_TIMEOUT_MS = 5_000
#: How long a first answer may take: brokers may be starting, and an address may be wrong.
FIRST_CONTACT_MS = 15_000
RETRY_S = 0.2
#: For so long brokers must say that a topic is gone which was there.
GONE_S = 3.0
#: Answers that mean: there is no such topic.
NO_TOPIC = (UnknownTopicOrPartition.code, InvalidTopic.code)
#: How long the sizes of partitions are taken to stay as they are, and how long they are waited for.
SIZES_MAX_AGE_S, SIZES_TIMEOUT_MS = 60.0, 3_000
#: Metadata with a list of topics or null for all, and without creating any.
METADATA_VERSION_MIN = 4

_open: dict[tuple[Any, ...], "Log"] = {}


def open_log(bootstrap: str, properties: Mapping[str, str]) -> "Log":
    """This process's access to a cluster. Raises: ConfigError for a property that the client does not have."""
    key = (os.getpid(), bootstrap, *sorted(properties.items()))
    log = _open.get(key)
    if log is None:
        log = _open[key] = Log(bootstrap, properties)
    return log


class Log:
    """One cluster, as Spark's processes see it. Methods raise KafkaError when the brokers refuse or cannot be reached."""

    def __init__(self, bootstrap: str, properties: Mapping[str, str]) -> None:
        given = {"bootstrap_servers": bootstrap, **{name.replace(".", "_"): value for name, value in properties.items()}}
        # A consumer group's id is accepted for the sake of jobs that set it; partitions are assigned by Spark, never by a group.
        given.pop("group_id", None)
        self._client = _known(ClientOptions, given)
        self._asking = _known(AdminOptions, given)
        self._consuming = {"max_partition_fetch_bytes": FETCH_BYTES, **_known(ConsumerOptions, given)}
        unknown = set(given) - set(self._consuming) - set(_known(ProducerOptions, given))
        if unknown:
            from_keywords(ConsumerOptions, {name: given[name] for name in unknown})
        self._ranges = RangeReader(
            self._fetch,
            check_crcs=str(given.get("check_crcs", "true")).lower() == "true",
            read_committed=given.get("isolation_level") == "read_committed",
        )
        self._thread = LoopThread("ottla-log")
        self._consumer: Consumer | None = None
        self._network: Network | None = None
        #: How long brokers may be away, as a reader or a writer is told.
        self._patience_ms = int(given.get("default_api_timeout_ms", given.get("max_block_ms", MINUTE_MS)))
        #: A broker has answered before, so whoever is away now will come back.
        self._reached = False
        self._admin_: Admin | None = None
        #: Of every topic that metadata was asked of and that is there; empty where the brokers have no ids.
        self._topic_ids: dict[str, str] = {}
        #: Bytes of an offset, 0 where that is not known, and when they were asked for.
        self._sizes: dict[TopicPartition, float] = {}
        self._sizes_read_s = 0.0

    # -- what there is

    def topics(self, names: Sequence[str] | None = None) -> dict[str, int]:
        """The topics that exist, of those named or of all but internal ones, with their numbers of partitions.

        One that was there is believed to be gone when brokers go on saying so: who has just started may know of none.

        Raises: the error of a topic that may be there and cannot be had.
        """
        response = self._run(self._metadata(names))
        for topic in response.topics:
            if topic.error_code:
                self._topic_ids.pop(topic.name or "", None)
            elif topic.name:
                self._topic_ids[topic.name] = "" if topic.topic_id == NO_TOPIC_ID else topic_id_text(topic.topic_id)
        return {topic.name: len(topic.partitions) for topic in response.topics if not topic.error_code and (names or not topic.is_internal)}

    def partition_count(self, topic: str) -> int:
        """Raises: NoSuchData when there is no such topic."""
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
        """The first offset whose record is at least as young as its time; None where there is none."""
        found = self._run(self._offsets_at(times_ms))
        return {tp: None if one is None else one.offset for tp, one in found.items()}

    def topic_ids(self, names: frozenset[str]) -> dict[str, str]:
        """The ids of those of the topics that exist, as they were when `topics` was last asked of them; where the brokers have ids."""
        if not names <= self._topic_ids.keys():
            self.topics(sorted(names - self._topic_ids.keys()))
        return {name: known for name in names if (known := self._topic_ids.get(name))}

    def bytes_per_offset(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, float]:
        """About how many bytes on disk an offset of each partition has, as it was some time ago; empty where the brokers do not tell."""
        now_s, wanted = time.monotonic(), set(partitions)
        if now_s - self._sizes_read_s > SIZES_MAX_AGE_S or not wanted <= self._sizes.keys():
            self._sizes = {**dict.fromkeys(wanted, 0.0), **self._measured(sorted(wanted))}
            self._sizes_read_s = now_s
        return {tp: size for tp in partitions if (size := self._sizes[tp]) > 0}

    def _measured(self, partitions: list[TopicPartition]) -> dict[TopicPartition, float]:
        try:
            dirs = self._run(self._admin().describe_log_dirs(topics=sorted({tp.topic for tp in partitions}), timeout_ms=SIZES_TIMEOUT_MS))
            first, last = self.end_offsets(partitions, EARLIEST), self.end_offsets(partitions, LATEST)
        except KafkaError as error:
            # Not every user may ask for it, and not every broker answers; what is read does not depend on it.
            logger.info("partitions are split by offsets, since nobody tells how large they are: %s", error)
            return {}
        sizes: dict[TopicPartition, int] = {}
        for found in dirs.values():
            for replica in (one for place in ([] if isinstance(found, KafkaError) else found) for one in place.replicas):
                tp = TopicPartition(replica.topic, replica.partition)
                sizes[tp] = max(sizes.get(tp, 0), replica.size_bytes)
        return {tp: sizes[tp] / (last[tp] - first[tp]) for tp in partitions if tp in sizes and last[tp] > first[tp]}

    # -- groups

    def committed(self, group: str, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int | None]:
        """The offsets that a group has committed; None where it has not."""
        found = good(self._run(self._admin().list_consumer_group_offsets({group: partitions}))[group])
        given = {tp: good(one) for tp, one in found.items()}
        return {tp: None if one is None else one.offset for tp, one in given.items()}

    def commit(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit offsets for a group without members. Raises: KafkaError of the first partition that failed."""
        given: dict[Partition, Committed] = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}
        done = self._run(self._admin().alter_consumer_group_offsets(group, given, timeout_ms=COMMIT_TIMEOUT_MS))
        for result in done.values():
            good(result)

    # -- reading

    def read(self, wanted: OffsetRange, *, with_headers: bool, losses: Losses, timeout_ms: int) -> Iterator[Columns]:
        """The records of a range in order, in portions; the next bytes are on their way while a portion is used.

        Offsets without a record (compaction, transactions) are passed over. Records that were deleted before they could be read are data
        loss.

        Raises: DataLoss; TimeoutError when the log has nothing to send for `timeout_ms` before the range is at its end.
        """
        tp = TopicPartition(wanted.topic, wanted.partition)
        if wanted.topic_id and wanted and not self._is_there(wanted, losses):
            return
        try:
            for fetched in self._ranges.read(
                tp, wanted.start, wanted.end, timeout_ms=timeout_ms, gone=lambda at: self._after_loss(wanted, at, losses)
            ):
                yield from fetched.columns(with_headers=with_headers, timestamps_us=True)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; kafkaConsumer.pollTimeoutMs says how long to wait") from None

    def _is_there(self, wanted: OffsetRange, losses: Losses) -> bool:
        """Whether the topic is still the one that the range was planned for. Raises: DataLoss."""
        there = self.topics([wanted.topic])
        now = self._topic_ids.get(wanted.topic)
        place = (wanted.topic, wanted.partition, wanted.start)
        if wanted.topic not in there:
            losses.tell(Loss("topic gone", *place, wanted.end, None, f"{wanted} cannot be read: its topic was deleted"))
            return False
        if now and now != wanted.topic_id:
            sentence = f"{wanted} cannot be read: its topic was deleted and created again (its id was {wanted.topic_id} and is {now})"
            losses.tell(Loss("recreated", *place, wanted.end, None, sentence))
            return False
        return True

    def _after_loss(self, wanted: OffsetRange, position: int, losses: Losses) -> int:
        tp = TopicPartition(wanted.topic, wanted.partition)
        earliest = self.end_offsets([tp], EARLIEST)[tp]
        if earliest > position:
            what = f"{wanted}: offset {position} is gone, the log begins at {earliest}"
            losses.tell(Loss("deleted", tp.topic, tp.partition, position, min(earliest, wanted.end), earliest, what))
            return earliest
        latest = self.end_offsets([tp], LATEST)[tp]
        what = f"{wanted}: offset {position} is gone, the log ends at {latest}"
        losses.tell(Loss("truncated", tp.topic, tp.partition, min(latest, position), wanted.end, earliest, what))
        return wanted.end

    def _fetch(self, tp: TopicPartition, position: int) -> Call[RawFetch]:
        return self._thread.submit(self._fetch_raw(tp, position))

    # -- in the loop

    async def _metadata(self, names: Sequence[str] | None) -> Any:
        if self._network is None:
            self._network = Network(from_keywords(ClientOptions, self._client), allow_auto_create=False)
        topics = None if names is None else [MetadataRequestTopic(name=name) for name in names]
        request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
        patience_ms = self._patience_ms if self._reached else min(self._patience_ms, FIRST_CONTACT_MS)
        deadline_s = self._thread.loop.time() + patience_ms / 1000
        expected, believed_s = self._topic_ids.keys() & set(self._topic_ids if names is None else names), self._thread.loop.time() + GONE_S
        while True:
            try:
                response = await self._network.ask_any(request, at_least=METADATA_VERSION_MIN)
                self._reached = True
                refused = _refused(response)
                if refused is None:
                    present = {topic.name for topic in response.topics if not topic.error_code}
                    if not (expected - present) or self._thread.loop.time() >= believed_s:
                        return response
                elif not refused.retriable:
                    raise refused
            except ConnectionFailed as error:
                refused = error
            if refused is not None and self._thread.loop.time() >= deadline_s:
                raise refused
            await asyncio.sleep(RETRY_S)

    def _admin(self) -> Admin:
        if self._admin_ is None:
            self._admin_ = Admin(**self._asking)
        return self._admin_

    async def _reader(self) -> Consumer:
        if self._consumer is None:
            self._consumer = await Consumer(**self._consuming).start()
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


def _refused(response: Any) -> KafkaError | None:
    """Why a topic that may be there cannot be had."""
    codes = (topic.error_code for topic in response.topics)
    return next((error_for(code) for code in codes if code and code not in NO_TOPIC), None)


def _known(table: type[ClientOptions], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those settings that a client has."""
    names = {spec.attribute for spec in table.SPECS.values()}
    return {name: value for name, value in given.items() if name in names}


__all__ = ["KafkaError", "Log", "open_log"]
