"""A group's offsets: the requests that keep and ask for them, and what the answers mean. Pure.

What is committed is the offset of the next record to read, the leader epoch of the record before it, so that a reader notices when the log
has another history by then (KIP-320), and a text of the user's.

Topics go by name until version 9, and by id from 10 on; both are filled in, and `at_most` keeps to names while an id is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ottla.base.ids import NO_TOPIC_ID, TopicPartition, as_partition
from ottla.client.errors import CommitFailed
from ottla.client.group.coordinator_search import group_error
from ottla.client.options import ConsumerOptions
from ottla.client.transport.cluster import Cluster
from ottla.wire.errors import (
    FencedMemberEpoch,
    IllegalGeneration,
    KafkaError,
    RebalanceInProgress,
    UnknownMemberId,
    UnstableOffsetCommit,
    error_for,
)
from ottla.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics

#: The last version of OffsetCommit and OffsetFetch that names topics.
NAMES_UNTIL = 9
#: OffsetFetch: many groups, and only offsets that no open transaction can change, from these versions on.
GROUPS_SINCE, STABLE_SINCE = 8, 7
#: OffsetCommit: static members, and those of the next protocol.
INSTANCE_SINCE, EPOCH_SINCE = 7, 9
NO_GENERATION = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read; a text of yours; the leader epoch of the record before, -1 when not known."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


#: A committed offset as a user gives it.
Committed = int | OffsetAndMetadata
OffsetsGiven = Mapping[TopicPartition, Committed] | Mapping[tuple[str, int], Committed]


def offsets_given(offsets: OffsetsGiven) -> dict[TopicPartition, OffsetAndMetadata]:
    """What a user wants to commit. Raises: ValueError, TypeError."""
    given: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, offset in offsets.items():
        kept = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        if kept.offset < 0:
            raise ValueError(f"cannot commit {kept.offset} for {as_partition(tp)}: offsets are 0 or more")
        given[as_partition(tp)] = kept
    return given


class GroupMetadata(NamedTuple):
    """Who a consumer is in its group. The generation is -1, and the member id empty, outside of one."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


def at_most(cluster: Cluster, topics: Iterable[str]) -> int:
    """The last version that can say these topics."""
    return NAMES_UNTIL if any(cluster.topic_id(topic) == NO_TOPIC_ID for topic in topics) else 1000


def commit_request(
    options: ConsumerOptions, cluster: Cluster, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: tuple[str, int]
) -> OffsetCommitRequest:
    """Keep these offsets, as member of a generation or epoch."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, kept in offsets.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic_id = cluster.topic_id(tp.topic)
            topic = topics[tp.topic] = OffsetCommitRequestTopic(name=tp.topic, topic_id=topic_id, partitions=[])
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=kept.offset,
                committed_leader_epoch=kept.leader_epoch,
                committed_metadata=kept.metadata,
            )
        )
    member_id, generation = member
    return OffsetCommitRequest(
        group_id=options.group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        # Outside of a generation nobody asks for an instance, and a broker would look for a member.
        group_instance_id=(options.group_instance_id or None) if generation != NO_GENERATION else None,
        topics=list(topics.values()),
    )


def commit_errors(response: Any, names: Mapping[bytes, str]) -> dict[TopicPartition, int]:
    """The code of each partition that was not committed."""
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }


def not_a_member(options: ConsumerOptions) -> KafkaError:
    """Why a consumer that shares its topics with a group cannot commit while it is out of the group."""
    return CommitFailed(
        f"group {options.group_id}: this consumer is not a member at the moment; poll until it is, and commit what it reads"
    )


def commit_error(code: int, options: ConsumerOptions, tp: TopicPartition) -> KafkaError:
    """Why a commit failed, with what to do about it."""
    if code in (UnknownMemberId.code, IllegalGeneration.code, FencedMemberEpoch.code):
        return CommitFailed(
            f"group {options.group_id}: this member was taken out of the group, and its partitions were given to others, before it"
            f" committed {tp}. If it did not poll within max_poll_interval_ms ({options.max_poll_interval_ms}), raise that or lower"
            f" max_poll_records ({options.max_poll_records}); the records are read again"
        )
    if code == RebalanceInProgress.code:
        return RebalanceInProgress(f"group {options.group_id} rebalances: poll, and commit again what is still assigned then")
    if error_for(code).retriable:
        return error_for(code, f"committing {tp} for group {options.group_id}: {error_for(code)}")
    error = group_error(code, options)
    return error_for(code, f"committing {tp}: {error}")


def fetch_request(
    options: ConsumerOptions, cluster: Cluster, partitions: Iterable[TopicPartition], member: tuple[str, int], version: int
) -> OffsetFetchRequest:
    """Ask for the offsets of these partitions. `member`: id and epoch under the next protocol, ("", -1) otherwise."""
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    stable = version >= STABLE_SINCE
    if version < GROUPS_SINCE:
        named = [OffsetFetchRequestTopic(name=topic, partition_indexes=some) for topic, some in topics.items()]
        return OffsetFetchRequest(group_id=options.group_id, topics=named, require_stable=stable)
    member_id, epoch = member
    group = OffsetFetchRequestGroup(
        group_id=options.group_id,
        member_id=member_id or None,
        member_epoch=epoch,
        topics=[
            OffsetFetchRequestTopics(name=topic, topic_id=cluster.topic_id(topic), partition_indexes=some) for topic, some in topics.items()
        ],
    )
    return OffsetFetchRequest(groups=[group], require_stable=stable)


def fetched(
    response: Any, options: ConsumerOptions, names: Mapping[bytes, str]
) -> tuple[int, dict[TopicPartition, OffsetAndMetadata | KafkaError | None]]:
    """The group's error, and each partition's offset, None where it has none."""
    group = response.groups[0] if response.groups else response
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    for topic in group.topics:
        # Until version 7 there is no id.
        name = topic.name or names.get(getattr(topic, "topic_id", b""), "")
        for one in topic.partitions:
            tp = TopicPartition(name, one.partition_index)
            if one.error_code == UnstableOffsetCommit.code:
                found[tp] = UnstableOffsetCommit(f"a transaction that commits offsets of {tp} is open")
            elif one.error_code:
                error = error_for(one.error_code)
                found[tp] = error_for(one.error_code, f"group {options.group_id}: the offset of {tp}: {error}")
            elif one.committed_offset < 0:
                found[tp] = None
            else:
                found[tp] = OffsetAndMetadata(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
    return group.error_code, found
