"""The admin client for asyncio: topics, partitions, records, settings, brokers, groups.

    async with Admin(bootstrap_servers="127.0.0.1:9092") as admin:
        await admin.create_topic(NewTopic("orders", partitions=6))

Methods with a plural name return an `Outcome` for each item: its result, or its `KafkaError`, which is not raised. Methods with a singular
name, such as `create_topic`, raise it. Requests go to the controller, a partition's leader or the broker concerned. They are retried
while the error is retriable, until `timeout_ms` or `default_api_timeout_ms` is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.admin import results as r
from ottla.client.admin.calls import Outcome, failed
from ottla.client.admin.cluster import ClusterAdmin
from ottla.client.argument_validation import checked
from ottla.client.fetch.offsets import OffsetAndTime, list_offsets
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, OffsetOutOfRange, error_for
from ottla.wire.messages import describe_producers


@checked()
class Admin(ClusterAdmin):
    """Administers a cluster. Settings are those of `AdminOptions`, as keyword arguments; belongs to the loop in which it is first used.

    Raises: ConfigError for a setting that is unknown or invalid.
    """

    # -- records

    async def delete_records(
        self, before: Mapping[TopicPartition | tuple[str, int], int], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[int]]:
        """Delete the records before an offset (-1: all below the high watermark); returns the new start of each log."""
        limit_ms = self._limit_ms(timeout_ms)

        async def ask(node: int, share: Share[int]) -> dict[TopicPartition, Outcome[int]]:
            topics: dict[str, m.DeleteRecordsTopic] = {}
            for tp, (offset, _) in share.items():
                topic = topics.setdefault(tp.topic, m.DeleteRecordsTopic(name=tp.topic, partitions=[]))
                topic.partitions.append(m.DeleteRecordsPartition(partition_index=tp.partition, offset=offset))
            response = await self._network.ask(node, m.DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=int(limit_ms)))
            return {
                TopicPartition(answer.name, one.partition_index): _without(answer.name, one) if one.error_code else one.low_watermark
                for answer in response.topics
                for one in answer.partitions
            }

        wanted = {as_partition(tp): offset for tp, offset in before.items()}
        return await ask_leaders(self._network, wanted, ask, timeout_ms=limit_ms, doing="deleting records of", patient=False)

    async def list_offsets(
        self, times: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[OffsetAndTime]]:
        """Offsets by time in milliseconds, or by `offsets.LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`."""
        wanted = {as_partition(tp): when for tp, when in times.items()}
        return await list_offsets(
            self._network, wanted, read_committed=read_committed, timeout_ms=self._limit_ms(timeout_ms), patient=False
        )

    async def describe_producers(
        self, partitions: Iterable[TopicPartition | tuple[str, int]], *, broker: int | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
        """The producer state of each partition, from its leader or from `broker`, which must have a replica."""

        async def ask(node: int, share: Iterable[TopicPartition]) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
            topics: dict[str, describe_producers.TopicRequest] = {}
            for topic, number in share:
                one = topics.setdefault(topic, describe_producers.TopicRequest(name=topic, partition_indexes=[]))
                one.partition_indexes.append(number)
            response = await self._node(node, m.DescribeProducersRequest(topics=list(topics.values())), limit_ms)
            return {
                TopicPartition(topic.name, one.partition_index): failed(one) or [_producer(state) for state in one.active_producers]
                for topic in response.topics
                for one in topic.partitions
            }

        limit_ms = self._limit_ms(timeout_ms)
        wanted = dict.fromkeys((as_partition(tp) for tp in partitions), None)
        doing = "describing producers of"
        if broker is not None:
            return await self._each(list(wanted), lambda some, _: ask(broker, some), timeout_ms, doing)
        return await ask_leaders(self._network, wanted, ask, timeout_ms=limit_ms, doing=doing, patient=False)


def _without(topic: str, answer: m.DeleteRecordsPartitionResult) -> KafkaError:
    """The error of a partition; brokers send no message with it."""
    place = TopicPartition(topic, answer.partition_index)
    if answer.error_code == OffsetOutOfRange.code:
        return OffsetOutOfRange(f"{place}: the offset to delete up to is above the high watermark, or before the start of the log")
    return error_for(answer.error_code, f"{place}: {error_for(answer.error_code)}")


def _producer(state: m.ProducerState) -> r.ActiveProducer:
    return r.ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )
