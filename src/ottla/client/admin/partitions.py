"""Admin requests about replicas and leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ottla.base.ids import TopicPartition, as_partition
from ottla.client.admin import results as r
from ottla.client.admin.calls import Outcome, failed, good
from ottla.client.admin.groups import GroupAdmin
from ottla.wire import messages as m

#: First version with allow_replication_factor_change.
KEEPS_FACTOR_SINCE = 1
#: First version of ElectLeaders with election types.
TYPES_SINCE = 1


class PartitionAdmin(GroupAdmin):
    """Replica and leader requests of `Admin`."""

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[TopicPartition | tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Start to move partitions to these brokers, the preferred leader first; None cancels a move.

        A move is complete when `list_partition_reassignments` no longer has the partition. If the replication factor must not change,
        brokers before Kafka 4.1 raise BrokerIncompatible.
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
            response = await self._controller(request, _codes, left_ms, at_least=at_least)
            whole = failed(response)
            if whole is not None:
                return dict.fromkeys(partitions, whole)
            return {
                TopicPartition(topic.name, one.partition_index): failed(one) for topic in response.responses for one in topic.partitions
            }

        return await self._each(list(wanted), ask, timeout_ms, "moving")

    async def list_partition_reassignments(
        self, partitions: Iterable[TopicPartition | tuple[str, int]] | None = None, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, r.PartitionReassignment]:
        """Partitions with replicas that are being added or removed, of all or of these."""
        topics: dict[str, m.ListPartitionReassignmentsTopics] | None = None
        if partitions is not None:
            topics = {}
            for topic, number in partitions:
                one = topics.setdefault(topic, m.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[]))
                one.partition_indexes.append(number)
        asked = None if topics is None else list(topics.values())

        async def ask(_: list[None], left_ms: float) -> dict[None, Outcome[Any]]:
            request = m.ListPartitionReassignmentsRequest(timeout_ms=int(left_ms), topics=asked)
            response = await self._controller(request, lambda answer: [answer.error_code], left_ms)
            return {None: failed(response) or response}

        response = good((await self._each([None], ask, timeout_ms, "listing reassignments"))[None])
        return {
            TopicPartition(topic.name, one.partition_index): r.PartitionReassignment(
                one.replicas, one.adding_replicas, one.removing_replicas
            )
            for topic in response.topics
            for one in topic.partitions
        }

    async def elect_leaders(
        self,
        partitions: Iterable[TopicPartition | tuple[str, int]] | None = None,
        *,
        election_type: r.ElectionType = r.ElectionType.PREFERRED,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Elect the preferred replicas as leaders, or, if no replica is in sync, any replica: records may then be lost.

        For all partitions (None) the result has only those with something to do. For named ones ElectionNotNeeded and
        PreferredLeaderNotAvailable or EligibleLeadersNotAvailable are outcomes.
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
            response = await self._controller(request, _election_codes, left_ms, at_least=at_least)
            return {None: failed(response) or response}

        # Errors of single partitions are not retried: a broker may be away for an hour.
        response = good((await self._each([None], ask, timeout_ms, "electing leaders"))[None])
        return {
            TopicPartition(topic.topic, one.partition_id): failed(one)
            for topic in response.replica_election_results
            for one in topic.partition_result
        }


def _election_codes(answer: m.ElectLeadersResponse) -> list[int]:
    return [answer.error_code, *(one.error_code for topic in answer.replica_election_results for one in topic.partition_result)]


def _codes(answer: m.AlterPartitionReassignmentsResponse) -> list[int]:
    return [answer.error_code, *(one.error_code for topic in answer.responses for one in topic.partitions)]
