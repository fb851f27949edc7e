"""OffsetCommit and OffsetFetch: requests and responses. Pure.

A commit has the offset of the next record, the leader epoch of the record before it, so that a reader detects a diverged log (KIP-320),
and the user's metadata.

Topics are named until version 9, and have ids from 10 on; both are filled in, and `at_most` limits the version while an id is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.base.acls import Operation
from ottla.base.ids import NO_TOPIC_ID, TopicPartition, as_partition
from ottla.client.access_errors import refused_access
from ottla.client.errors import CommitFailed
from ottla.client.group.assignor import by_topic
from ottla.client.group.coordinator_search import group_error
from ottla.client.options import ConsumerOptions
from ottla.client.transport.cluster import Cluster
from ottla.wire import errors
from ottla.wire.errors import KafkaError, error_for
from ottla.wire.messages import OffsetCommitRequest, OffsetFetchRequest
from ottla.wire.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchRequestTopic, OffsetFetchRequestTopics

#: Last version of OffsetCommit and OffsetFetch with topic names.
NAMES_UNTIL = 9
#: OffsetFetch: first versions with several groups, and with require_stable.
GROUPS_SINCE, STABLE_SINCE = 8, 7
#: OffsetCommit: first version for the consumer protocol.
EPOCH_SINCE = 9
NO_GENERATION = -1


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read; your metadata; the leader epoch of the record before, -1 if unknown."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


#: A committed offset as an argument.
Committed = int | OffsetAndMetadata
OffsetsGiven = Mapping[TopicPartition, Committed] | Mapping[tuple[str, int], Committed]


def offsets_given(offsets: OffsetsGiven) -> dict[TopicPartition, OffsetAndMetadata]:
    """Offsets to commit. Raises: ValueError, TypeError."""
    given: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, offset in offsets.items():
        kept = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        if kept.offset < 0:
            raise ValueError(f"cannot commit {kept.offset} for {as_partition(tp)}: offsets are 0 or more")
        given[as_partition(tp)] = kept
    return given


class GroupMetadata(NamedTuple):
    """A consumer's membership. Outside of a group the generation is -1 and the member id empty."""

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None


def at_most(cluster: Cluster, topics: Iterable[str]) -> int:
    """The last version that can name these topics."""
    return NAMES_UNTIL if any(cluster.topic_id(topic) == NO_TOPIC_ID for topic in topics) else 1000


def commit_request(
    options: ConsumerOptions, cluster: Cluster, offsets: Mapping[TopicPartition, OffsetAndMetadata], member: tuple[str, int]
) -> OffsetCommitRequest:
    """The request to commit these offsets as a member of a generation or epoch."""
    member_id, generation = member
    return OffsetCommitRequest(
        group_id=options.group_id,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        # Outside of a generation the instance id is omitted: a broker would look for a member.
        group_instance_id=(options.group_instance_id or None) if generation != NO_GENERATION else None,
        topics=commit_topics(offsets, cluster.topic_id),
    )


def commit_topics(
    offsets: Mapping[TopicPartition, OffsetAndMetadata], topic_id: Callable[[str], bytes] = lambda topic: NO_TOPIC_ID
) -> list[OffsetCommitRequestTopic]:
    """The topics of a request that commits these offsets."""
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, kept in offsets.items():
        topic = topics.get(tp.topic)
        if topic is None:
            topic = topics[tp.topic] = OffsetCommitRequestTopic(name=tp.topic, topic_id=topic_id(tp.topic), partitions=[])
        topic.partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=kept.offset,
                committed_leader_epoch=kept.leader_epoch,
                committed_metadata=kept.metadata,
            )
        )
    return list(topics.values())


def commit_errors(response: Any, names: Mapping[bytes, str]) -> dict[TopicPartition, int]:
    """Error code of each partition that was not committed."""
    return {
        TopicPartition(topic.name or names.get(topic.topic_id, ""), partition.partition_index): partition.error_code
        for topic in response.topics
        for partition in topic.partitions
        if partition.error_code
    }


def not_a_member(options: ConsumerOptions) -> KafkaError:
    """Error for a consumer that uses group subscription while it is not a member."""
    return CommitFailed(
        f"group {options.group_id}: this consumer is not a member at the moment; poll until it is, and commit what it reads"
    )


def commit_error(code: int, options: ConsumerOptions, tp: TopicPartition) -> KafkaError:
    """Error of a failed commit, with a remedy."""
    if code in (errors.UnknownMemberId.code, errors.IllegalGeneration.code, errors.FencedMemberEpoch.code):
        return CommitFailed(
            f"group {options.group_id}: this member was taken out of the group, and its partitions were given to others, before it"
            f" committed {tp}. If it did not poll within max_poll_interval_ms ({options.max_poll_interval_ms}), raise that or lower"
            f" max_poll_records ({options.max_poll_records}); the records are read again"
        )
    if code == errors.RebalanceInProgress.code:
        return errors.RebalanceInProgress(f"group {options.group_id} rebalances: poll, and commit again what is still assigned then")
    if error_for(code).retriable:
        return error_for(code, f"committing {tp} for group {options.group_id}: {error_for(code)}")
    if code == errors.TopicAuthorizationFailed.code:
        return error_for(code, f"committing {tp}: {refused_access(code, options, Operation.READ, tp.topic)}")
    error = group_error(code, options)
    return error_for(code, f"committing {tp}: {error}")


def fetch_request(
    options: ConsumerOptions, cluster: Cluster, partitions: Iterable[TopicPartition], member: tuple[str, int], version: int
) -> OffsetFetchRequest:
    """The request for the offsets of these partitions. `member`: id and epoch in the consumer protocol, otherwise ("", -1)."""
    topics = by_topic(partitions)
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
    """The group's error, and each partition's offset, None without one."""
    group = response.groups[0] if response.groups else response
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    for topic in group.topics:
        # Until version 7 there is no id.
        name = topic.name or names.get(getattr(topic, "topic_id", b""), "")
        for one in topic.partitions:
            tp = TopicPartition(name, one.partition_index)
            if one.error_code == errors.UnstableOffsetCommit.code:
                found[tp] = errors.UnstableOffsetCommit(f"a transaction that commits offsets of {tp} is open")
            elif one.error_code:
                error = refused_access(one.error_code, options, Operation.DESCRIBE, name) or error_for(one.error_code)
                found[tp] = error_for(one.error_code, f"group {options.group_id}: the offset of {tp}: {error}")
            elif one.committed_offset < 0:
                found[tp] = None
            else:
                found[tp] = OffsetAndMetadata(one.committed_offset, one.metadata or "", one.committed_leader_epoch)
    return group.error_code, found
