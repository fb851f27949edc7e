"""Admin requests about partitions: records, offsets, producers, replicas and leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.base.acls import Operation
from ottla.base.ids import TopicPartition, as_partition
from ottla.client.access_errors import refused_access
from ottla.client.admin import results as r
from ottla.client.admin.calls import HasCalls, Outcome, failed, good
from ottla.client.fetch import offsets as fetch_offsets
from ottla.client.fetch.offsets import OffsetAndTime
from ottla.client.options import ClientOptions
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError, OffsetOutOfRange, error_for
from ottla.wire.messages.describe_producers import TopicRequest

#: First version with allow_replication_factor_change.
KEEPS_FACTOR_SINCE = 1
#: First version of ElectLeaders with election types.
TYPES_SINCE = 1


async def alter_partition_reassignments(
    self: HasCalls,
    reassignments: Mapping[TopicPartition | tuple[str, int], Sequence[int] | None],
    *,
    allow_replication_factor_change: bool = True,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, Outcome[None]]:
    """Start to move partitions to these brokers, the preferred leader first; None cancels a move.

    A move is complete when `list_partition_reassignments` no longer has the partition. If the replication factor must not change,
    brokers before Kafka 4.1 raise BrokerIncompatible.

    Example: `admin.alter_partition_reassignments({("orders", 0): [1, 2, 3]})`.
    """
    wanted = {as_partition(tp): replicas for tp, replicas in reassignments.items()}

    async def ask(partitions: list[TopicPartition], left_ms: float) -> dict[TopicPartition, Outcome[None]]:
        request = m.AlterPartitionReassignmentsRequest(
            timeout_ms=int(left_ms), allow_replication_factor_change=allow_replication_factor_change, topics=[]
        )
        topics: dict[str, m.ReassignableTopic] = {}
        for tp in partitions:
            replicas = wanted[tp]
            topic = topics.setdefault(tp.topic, m.ReassignableTopic(name=tp.topic, partitions=[]))
            topic.partitions.append(
                m.ReassignablePartition(partition_index=tp.partition, replicas=None if replicas is None else list(replicas))
            )
        request.topics = list(topics.values())
        at_least = 0 if allow_replication_factor_change else KEEPS_FACTOR_SINCE
        response = await self._calls.controller(request, _codes, left_ms, at_least=at_least)
        whole = failed(response)
        if whole is not None:
            return dict.fromkeys(partitions, whole)
        return {TopicPartition(topic.name, one.partition_index): failed(one) for topic in response.responses for one in topic.partitions}

    return await self._calls.each(list(wanted), ask, timeout_ms, "moving")


async def list_partition_reassignments(
    self: HasCalls, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None, *, timeout_ms: float | None = None
) -> dict[TopicPartition, r.PartitionReassignment]:
    """Partitions with replicas that are being added or removed, of all or of these. Example: `admin.list_partition_reassignments()`."""
    topics: dict[str, m.ListPartitionReassignmentsTopics] | None = None
    if partitions is not None:
        topics = {}
        for topic, number in partitions:
            one = topics.setdefault(topic, m.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[]))
            one.partition_indexes.append(number)
    asked = None if topics is None else list(topics.values())

    async def ask(_: list[None], left_ms: float) -> dict[None, Outcome[Any]]:
        request = m.ListPartitionReassignmentsRequest(timeout_ms=int(left_ms), topics=asked)
        response = await self._calls.controller(request, lambda answer: [answer.error_code], left_ms)
        return {None: failed(response) or response}

    response = good((await self._calls.each([None], ask, timeout_ms, "listing reassignments"))[None])
    return {
        TopicPartition(topic.name, one.partition_index): r.PartitionReassignment(one.replicas, one.adding_replicas, one.removing_replicas)
        for topic in response.topics
        for one in topic.partitions
    }


async def elect_leaders(
    self: HasCalls,
    partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
    *,
    election_type: r.ElectionType = r.ElectionType.PREFERRED,
    timeout_ms: float | None = None,
) -> dict[TopicPartition, Outcome[None]]:
    """Elect the preferred replicas as leaders, or, if no replica is in sync, any replica: records may then be lost.

    For all partitions (None) the result has only those with something to do. For named ones ElectionNotNeeded and
    PreferredLeaderNotAvailable or EligibleLeadersNotAvailable are outcomes.

    Example: `admin.elect_leaders([("orders", 0)], election_type=ElectionType.UNCLEAN)`.
    """
    topics: dict[str, m.ElectLeadersRequestTopicPartitions] | None = None
    if partitions is not None:
        topics = {}
        for topic, number in partitions:
            one = topics.setdefault(topic, m.ElectLeadersRequestTopicPartitions(topic=topic, partitions=[]))
            one.partitions.append(number)
    asked = None if topics is None else list(topics.values())
    at_least = 0 if election_type is r.ElectionType.PREFERRED else TYPES_SINCE

    async def ask(_: list[None], left_ms: float) -> dict[None, Outcome[Any]]:
        request = m.ElectLeadersRequest(election_type=int(election_type), topic_partitions=asked, timeout_ms=int(left_ms))
        response = await self._calls.controller(request, _election_codes, left_ms, at_least=at_least)
        return {None: failed(response) or response}

    # Errors of single partitions are not retried: a broker may be away for an hour.
    response = good((await self._calls.each([None], ask, timeout_ms, "electing leaders"))[None])
    return {
        TopicPartition(topic.topic, one.partition_id): failed(one)
        for topic in response.replica_election_results
        for one in topic.partition_result
    }


async def delete_records(
    self: HasCalls, before: Mapping[TopicPartition | tuple[str, int], int], *, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[int]]:
    """Delete the records before an offset (-1: all below the high watermark); returns the new start of each log.

    Example: `admin.delete_records({("orders", 0): 1000})`.
    """
    limit_ms = self._calls.limit_ms(timeout_ms)

    async def ask(node: int, share: Share[int]) -> dict[TopicPartition, Outcome[int]]:
        topics: dict[str, m.DeleteRecordsTopic] = {}
        for tp, (offset, _) in share.items():
            topic = topics.setdefault(tp.topic, m.DeleteRecordsTopic(name=tp.topic, partitions=[]))
            topic.partitions.append(m.DeleteRecordsPartition(partition_index=tp.partition, offset=offset))
        response = await self._calls.network.ask(node, m.DeleteRecordsRequest(topics=list(topics.values()), timeout_ms=int(limit_ms)))
        return {
            TopicPartition(answer.name, one.partition_index): _without(answer.name, one, self._calls.options)
            if one.error_code
            else one.low_watermark
            for answer in response.topics
            for one in answer.partitions
        }

    wanted = {as_partition(tp): offset for tp, offset in before.items()}
    return await ask_leaders(self._calls.network, wanted, ask, timeout_ms=limit_ms, doing="deleting records of", patient=False)


async def list_offsets(
    self: HasCalls, times: Mapping[TopicPartition | tuple[str, int], int], *, read_committed: bool = False, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[OffsetAndTime]]:
    """Offsets by time in milliseconds, or by `offsets.LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`.

    Example: `admin.list_offsets({("orders", 0): 1_767_225_600_000}, read_committed=True)`.
    """
    wanted = {as_partition(tp): when for tp, when in times.items()}
    return await fetch_offsets.list_offsets(
        self._calls.network, wanted, read_committed=read_committed, timeout_ms=self._calls.limit_ms(timeout_ms), patient=False
    )


async def describe_producers(
    self: HasCalls, partitions: Iterable[TopicPartition | tuple[str, int]], *, broker: int | None = None, timeout_ms: float | None = None
) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
    """The producer state of each partition, from its leader or from `broker`, which must have a replica.

    Example: `admin.describe_producers([("orders", 0)])`.
    """

    async def ask(node: int, share: Iterable[TopicPartition]) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
        topics: dict[str, TopicRequest] = {}
        for topic, number in share:
            one = topics.setdefault(topic, TopicRequest(name=topic, partition_indexes=[]))
            one.partition_indexes.append(number)
        response = await self._calls.node(node, m.DescribeProducersRequest(topics=list(topics.values())), limit_ms)
        return {
            TopicPartition(topic.name, one.partition_index): failed(one) or [_producer(state) for state in one.active_producers]
            for topic in response.topics
            for one in topic.partitions
        }

    limit_ms = self._calls.limit_ms(timeout_ms)
    wanted = dict.fromkeys((as_partition(tp) for tp in partitions), None)
    doing = "describing producers of"
    if broker is not None:
        return await self._calls.each(list(wanted), lambda some, _: ask(broker, some), timeout_ms, doing)
    return await ask_leaders(self._calls.network, wanted, ask, timeout_ms=limit_ms, doing=doing, patient=False)


def _election_codes(answer: m.ElectLeadersResponse) -> list[int]:
    return [answer.error_code, *(one.error_code for topic in answer.replica_election_results for one in topic.partition_result)]


def _codes(answer: m.AlterPartitionReassignmentsResponse) -> list[int]:
    return [answer.error_code, *(one.error_code for topic in answer.responses for one in topic.partitions)]


def _without(topic: str, answer: m.DeleteRecordsPartitionResult, options: ClientOptions) -> KafkaError:
    """The error of a partition; brokers send no message with it."""
    place = TopicPartition(topic, answer.partition_index)
    if answer.error_code == OffsetOutOfRange.code:
        return OffsetOutOfRange(f"{place}: the offset to delete up to is above the high watermark, or before the start of the log")
    refused = refused_access(answer.error_code, options, Operation.DELETE, topic)
    return error_for(answer.error_code, f"{place}: {refused or error_for(answer.error_code)}")


def _producer(state: m.ProducerState) -> r.ActiveProducer:
    return r.ActiveProducer(
        state.producer_id,
        state.producer_epoch,
        state.last_sequence,
        state.last_timestamp,
        state.coordinator_epoch,
        state.current_txn_start_offset,
    )
