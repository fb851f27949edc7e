"""How far groups have read: offsets by group, topic and partition, each with its time, leader epoch and the client's own text.

An offset expires ``offsets.retention.minutes`` after its retention began (its group says when: ``Group.expiry_base``), unless its client
chose a time of its own (OffsetCommit 2 to 4), or its group reads the topic. A deleted topic takes its offsets with it.

Source: Kafka's OffsetMetadataManager and OffsetExpirationConditionImpl; KIP-211.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.base.units import MINUTE_MS
from ottla.broker.coordinator import Record
from ottla.broker.groups.group import Group
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue
from ottla.wire import errors
from ottla.wire.messages.offset_commit import OffsetCommitRequest

if TYPE_CHECKING:
    from ottla.broker.groups.groups import Groups
    from ottla.broker.image import Image

#: Errors of single partitions, by (topic, partition).
Refused = dict[tuple[str, int], int]


class Offsets:
    """All committed offsets of a shard; only ``apply`` changes them."""

    __slots__ = ("by_group",)

    def __init__(self) -> None:
        #: By group, topic and partition; without empty groups or topics.
        self.by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Take in a commit, or, without a value, that there is none any more."""
        topics = self.by_group.get(key.group)
        if value is not None:
            if topics is None:
                topics = self.by_group[key.group] = {}
            partitions = topics.get(key.topic)
            if partitions is None:
                partitions = topics[key.topic] = {}
            partitions[key.partition] = value
        elif topics is not None and key.topic in topics:
            topics[key.topic].pop(key.partition, None)
            if not topics[key.topic]:
                del topics[key.topic]
                if not topics:
                    del self.by_group[key.group]

    def of(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        topics = self.by_group.get(group_id)
        partitions = topics.get(topic) if topics else None
        return partitions.get(partition) if partitions else None

    def all_of(self, group_id: str) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        """(topic, partition, offset) of a group."""
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def tombstones(self, group_id: str) -> list[Record]:
        """Records that forget all offsets of a group."""
        return [tombstone(group_id, topic, partition) for topic, partition, _ in self.all_of(group_id)]


def tombstone(group_id: str, topic: str, partition: int) -> Record:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition), None


def unknown(image: "Image", request: OffsetCommitRequest) -> Refused:
    """The partitions of a request whose topics are named that do not exist; a topic without a name has none that do."""
    refused: Refused = {}
    for topic in request.topics:
        known = image.topics.get(topic.name)
        count = len(known.replicas) if known is not None else 0
        code = errors.UnknownTopicOrPartition.code if topic.name else errors.UnknownTopicId.code
        for asked in topic.partitions:
            if not 0 <= asked.partition_index < count:
                refused[topic.name, asked.partition_index] = code
    return refused


def commit(groups: "Groups", request: OffsetCommitRequest, version: int, missing: Refused) -> Refused:
    """Keep the offsets of a request whose topics are named, but for the partitions that are missing; those refused, with their errors.

    Raises: KafkaError when the sender may not commit, or nothing could be written.
    """
    _check_sender(groups, request, version)
    wall_ms, text_max = groups.shard.wall_ms, groups.shard.options.offset_metadata_max_bytes
    retention_ms = request.retention_time_ms
    refused = dict(missing)
    records: list[Record] = []
    for topic in request.topics:
        for asked in topic.partitions:
            if (topic.name, asked.partition_index) in missing:
                continue
            text = asked.committed_metadata or ""
            if len(text) > text_max:
                refused[topic.name, asked.partition_index] = errors.OffsetMetadataTooLarge.code
                continue
            value = OffsetCommitValue(
                offset=asked.committed_offset,
                leader_epoch=asked.committed_leader_epoch,
                metadata=text,
                commit_timestamp=wall_ms,
                expire_timestamp=-1 if retention_ms == -1 else wall_ms + retention_ms,
            )
            records.append((OffsetCommitKey(group=request.group_id, topic=topic.name, partition=asked.partition_index), value))
    groups.shard.write(request.group_id, records, too_large=errors.InvalidCommitOffsetSize)
    return refused


def _check_sender(groups: "Groups", request: OffsetCommitRequest, version: int) -> None:
    """A group that nobody joins comes into being with the first offset that is kept for it."""
    group = groups.by_id.get(request.group_id)
    if group is not None:
        group.check_commit(request, version)
    elif request.generation_id_or_member_epoch >= 0:
        if version >= NOT_FOUND_SINCE:
            raise errors.GroupIdNotFound(f"there is no group {request.group_id!r}")
        raise errors.IllegalGeneration(f"there is no group {request.group_id!r}")


NOT_FOUND_SINCE = 9


def expired(groups: "Groups", group: Group, topic: str) -> list[Record]:
    """Tombstones for a group's offsets of a topic whose time is over."""
    if group.subscribed(topic):
        return []
    now_ms, retention_ms = groups.shard.wall_ms, groups.shard.options.offsets_retention_minutes * MINUTE_MS
    gone: list[Record] = []
    for partition, value in groups.offsets.by_group[group.group_id][topic].items():
        base_ms = group.expiry_base(value)
        if base_ms is not None and _over(value, base_ms, now_ms, retention_ms):
            gone.append(tombstone(group.group_id, topic, partition))
    return gone


def _over(value: OffsetCommitValue, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp != -1:
        return now_ms >= value.expire_timestamp
    return now_ms - base_ms >= retention_ms
