"""Offsets by timestamp, and the special timestamps of ListOffsets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ottla.base.acls import Operation
from ottla.base.ids import TopicPartition
from ottla.client.access_errors import refused_access
from ottla.client.errors import BrokerIncompatible
from ottla.client.transport.network import Network
from ottla.client.transport.routing import Share, ask_leaders
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST = -1
EARLIEST = -2
#: The record with the largest timestamp (KIP-734).
MAX_TIMESTAMP = -3
#: The local log start (KIP-405), and the last offset in remote storage (KIP-1005).
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
#: The first offset that is not in remote storage yet (KIP-1023).
EARLIEST_PENDING_UPLOAD = -6
#: Not Kafka's: the duration of `auto.offset.reset` (KIP-1106), resolved when the request is sent.
SO_LONG_AGO = -100
#: First version of each special timestamp.
_SINCE = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
READ_COMMITTED_SINCE = 2

#: A partition as an argument.
Partition = TopicPartition | tuple[str, int]
#: Milliseconds by partition.
Times = Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]


class OffsetAndTime(NamedTuple):
    """An offset found by timestamp. `offset` and `timestamp` are -1 without one."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    network: Network, times: Mapping[TopicPartition, int], *, read_committed: bool = False, timeout_ms: float, patient: bool = True
) -> dict[TopicPartition, OffsetAndTime | KafkaError]:
    """The first offset at or after each timestamp, or of a special timestamp; an error for its partition alone."""

    async def ask(node: int, share: Share[int]) -> dict[TopicPartition, OffsetAndTime | KafkaError]:
        """A timestamp that an old broker does not support must not fail the others."""
        by_version: dict[int, Share[int]] = {}
        for tp, item in share.items():
            by_version.setdefault(max(READ_COMMITTED_SINCE if read_committed else 1, _SINCE.get(item[0], 1)), {})[tp] = item
        try:
            return await whole(node, share, max(by_version))
        except BrokerIncompatible:
            found: dict[TopicPartition, OffsetAndTime | KafkaError] = {}
            for at_least, part in by_version.items():
                try:
                    found |= await whole(node, part, at_least)
                except BrokerIncompatible as error:
                    found |= dict.fromkeys(part, error)
            return found

    async def whole(node: int, share: Share[int], at_least: int) -> dict[TopicPartition, OffsetAndTime | KafkaError]:
        topics: dict[str, ListOffsetsTopic] = {}
        for tp, (when, epoch) in share.items():
            topic = topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic, partitions=[]))
            topic.partitions.append(ListOffsetsPartition(partition_index=tp.partition, current_leader_epoch=epoch, timestamp=when))
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=int(read_committed), topics=list(topics.values()), timeout_ms=network.options.request_timeout_ms
        )
        response = await network.ask(node, request, at_least=at_least)
        found: dict[TopicPartition, OffsetAndTime | KafkaError] = {}
        for answered in response.topics:
            for partition in answered.partitions:
                tp = TopicPartition(answered.name, partition.partition_index)
                if partition.error_code:
                    refused = refused_access(partition.error_code, network.options, Operation.DESCRIBE, tp.topic)
                    found[tp] = error_for(partition.error_code, f"{tp}: {refused or error_for(partition.error_code)}")
                else:
                    found[tp] = OffsetAndTime(partition.offset, partition.timestamp, partition.leader_epoch)
        return found

    return await ask_leaders(network, times, ask, timeout_ms=timeout_ms, doing="listing offsets of", patient=patient)


def raised(found: Mapping[TopicPartition, OffsetAndTime | KafkaError]) -> dict[TopicPartition, OffsetAndTime]:
    """All results. Raises: the first error."""
    good: dict[TopicPartition, OffsetAndTime] = {}
    for tp, result in found.items():
        if isinstance(result, KafkaError):
            raise result
        good[tp] = result
    return good
