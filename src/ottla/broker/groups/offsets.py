"""Committed offsets by group, topic and partition, with time, leader epoch and metadata.

An offset expires ``offsets.retention.minutes`` after the start of its retention (``Group.expiry_base``), unless its client chose a time
(OffsetCommit 2 to 4) or its group subscribes to the topic. Deleting a topic deletes its offsets. Offsets of an open transaction are pending
(``pending_offsets.py``); a partition with a pending offset does not expire.

Source: Kafka's OffsetMetadataManager and OffsetExpirationConditionImpl; KIP-211.
"""

from collections.abc import Iterator
from typing import Protocol

from ottla.base.units import INT64_MAX, MINUTE_MS
from ottla.broker.coordinator import CommitTransaction, Record
from ottla.broker.groups.group import Group, GroupTable, PartitionCheck
from ottla.broker.groups.memory_limits import GROUP_BYTES, OFFSET_BYTES, offsets_bytes, refusal, text_bytes
from ottla.broker.groups.pending_offsets import PendingOffsets
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue
from ottla.broker.metadata.image import Image
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition

#: Errors of entries, by their position in ``entries_of``: a request can name a partition twice.
Refused = dict[int, int]


class Offsets:
    """All committed and pending offsets of a shard; only ``apply``, ``apply_pending`` and ``end_transaction`` change them."""

    __slots__ = ("_committed_bytes", "by_group", "pending")

    def __init__(self) -> None:
        #: Offsets of open transactions.
        self.pending = PendingOffsets()
        self._committed_bytes = 0
        #: By group, topic and partition; without empty groups or topics.
        self.by_group: dict[str, dict[str, dict[int, OffsetCommitValue]]] = {}

    @property
    def bytes(self) -> int:
        """Memory of all offsets, see ``memory_limits.py``."""
        return self._committed_bytes + self.pending.bytes

    def apply(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        """Applies a commit outside of a transaction or, without a value, a deletion, which drops pending offsets too."""
        if self.pending:
            if value is None:
                self.pending.forget(key)
            else:
                self.pending.overtaken(key)
        self._store(key, value)

    def apply_pending(self, key: OffsetCommitKey, value: OffsetCommitValue, *, producer_id: int, record_offset: int) -> None:
        """Applies a commit of an open transaction; ``record_offset`` is that of the record in the log."""
        self.pending.add(producer_id, record_offset, key, value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Applies a marker: commits or drops the producer's pending offsets."""
        for (group, topic, partition), pending in self.pending.end(producer_id).items():
            if commit and pending.value is not None:
                key = OffsetCommitKey(group=group, topic=topic, partition=partition)
                self.pending.overtaken(key, pending.record_offset)
                self._store(key, pending.value)

    def _store(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        topics = self.by_group.get(key.group)
        self._committed_bytes += self.growth(key, value)
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
                    self._committed_bytes -= GROUP_BYTES + text_bytes(key.group)

    def growth(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> int:
        """The change of ``bytes`` by ``apply`` without pending offsets; the last offset of a group removes the group's entry too."""
        before = self.of(key.group, key.topic, key.partition)
        change = _offset_bytes(value) - _offset_bytes(before)
        return change if value is None or key.group in self.by_group else change + GROUP_BYTES + text_bytes(key.group)

    def of(self, group_id: str, topic: str, partition: int) -> OffsetCommitValue | None:
        topics = self.by_group.get(group_id)
        partitions = topics.get(topic) if topics else None
        return partitions.get(partition) if partitions else None

    def all_of(self, group_id: str) -> Iterator[tuple[str, int, OffsetCommitValue]]:
        """(topic, partition, offset) of a group."""
        for topic, partitions in self.by_group.get(group_id, {}).items():
            for partition, value in partitions.items():
                yield topic, partition, value

    def holds(self, group_id: str) -> bool:
        """Whether a group has committed or pending offsets."""
        return group_id in self.by_group or self.pending.holds(group_id)

    def has(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether a partition has a committed or pending offset."""
        return self.of(group_id, topic, partition) is not None or self.pending.unstable(group_id, topic, partition)

    def topics(self) -> set[str]:
        """Topics with committed or pending offsets."""
        return {topic for topics in self.by_group.values() for topic in topics} | {topic for _, topic, _ in self.pending.places()}

    def tombstones(self, group_id: str, topic: str | None = None) -> list[Record]:
        """Records that delete all offsets of a group, or those of one topic; pending ones too."""
        places = dict.fromkeys((name, partition) for name, partition, _ in self.all_of(group_id))
        places |= dict.fromkeys((name, partition) for _, name, partition in self.pending.places(group_id))
        return [tombstone(group_id, name, partition) for name, partition in places if topic in (None, name)]

    def groups_of(self, topic: str) -> list[str]:
        """Groups with committed or pending offsets of a topic."""
        found = dict.fromkeys(group_id for group_id, topics in self.by_group.items() if topic in topics)
        return list(found | dict.fromkeys(group_id for group_id, name, _ in self.pending.places() if name == topic))


def _offset_bytes(value: OffsetCommitValue | None) -> int:
    return 0 if value is None else OFFSET_BYTES + text_bytes(value.metadata)


def tombstone(group_id: str, topic: str, partition: int) -> Record:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition), None


def entries_of(request: OffsetCommitRequest) -> Iterator[tuple[int, str, OffsetCommitRequestPartition]]:
    """The entries of a request with position and topic name, in the order of request and response."""
    return ((number, *entry) for number, entry in enumerate((topic.name, each) for topic in request.topics for each in topic.partitions))


def unknown(image: Image, request: OffsetCommitRequest) -> Refused:
    """Entries of a request whose partition does not exist. An unknown topic id is an empty topic name."""
    refused: Refused = {}
    for number, topic, asked in entries_of(request):
        known = image.topics.get(topic)
        if known is None or not 0 <= asked.partition_index < len(known.replicas):
            refused[number] = errors.UnknownTopicOrPartition.code if topic else errors.UnknownTopicId.code
    return refused


class GroupsWithOffsets(GroupTable, Protocol):
    """The groups of one shard and their offsets."""

    offsets: Offsets


def commit(groups: GroupsWithOffsets, request: OffsetCommitRequest, version: int, missing: Refused) -> Refused:
    """Stores the offsets of a request, except missing entries. Returns the refused entries.

    Raises: KafkaError if the sender may not commit, or nothing could be written.
    """
    check = _check_sender(groups, request, version)
    records, refused = _records(groups, request, missing, check)
    groups.shard.write(request.group_id, records, too_large=errors.InvalidCommitOffsetSize)
    return refused


def commit_in_transaction(
    groups: GroupsWithOffsets, request: OffsetCommitRequest, transaction: CommitTransaction, missing: Refused, *, knows_epochs: bool
) -> Refused:
    """Stores the offsets of a request, except missing entries, as part of a transaction. They are pending until its marker.

    Returns the refused entries.

    A sender that names no member is not checked, as in Kafka. ``knows_epochs``: the client knows GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH;
    others get ILLEGAL_GENERATION. Raises: KafkaError if the sender may not commit, or nothing could be written.
    """
    check = None
    if request.generation_id_or_member_epoch != -1 or request.member_id or request.group_instance_id is not None:
        try:
            check = _check_sender(groups, request, NOT_FOUND_SINCE)
        except (errors.GroupIdNotFound, errors.StaleMemberEpoch) as error:
            if knows_epochs:
                raise
            raise errors.IllegalGeneration(str(error)) from error
    records, refused = _records(groups, request, missing, check)
    if not knows_epochs:
        stale, replaced = errors.StaleMemberEpoch.code, errors.IllegalGeneration.code
        refused = {number: replaced if code == stale else code for number, code in refused.items()}
    groups.shard.write(request.group_id, records, too_large=errors.InvalidCommitOffsetSize, transaction=transaction)
    return refused


def _records(
    groups: GroupsWithOffsets, request: OffsetCommitRequest, missing: Refused, check: PartitionCheck | None
) -> tuple[list[Record], Refused]:
    """The records of a request's entries, and the refused entries with the missing ones."""
    wall_ms, text_max = groups.shard.wall_ms, groups.shard.options.offset_metadata_max_bytes
    retention_ms = request.retention_time_ms
    refused = dict(missing)
    records: list[Record] = []
    room = groups.shard.options.group_offsets_max_bytes - offsets_bytes(groups.shard)
    for number, topic, asked in entries_of(request):
        if number in missing:
            continue
        text = asked.committed_metadata or ""
        if len(text) > text_max:
            refused[number] = errors.OffsetMetadataTooLarge.code
            continue
        if check is not None and (wrong := check(topic, asked.partition_index)) is not None:
            refused[number] = wrong.code
            continue
        value = OffsetCommitValue(
            offset=asked.committed_offset,
            leader_epoch=asked.committed_leader_epoch,
            metadata=text,
            commit_timestamp=wall_ms,
            # A client may ask for any retention, also one that ends after the last time that 64 bits hold.
            expire_timestamp=-1 if retention_ms == -1 else min(max(wall_ms + retention_ms, 0), INT64_MAX),
        )
        key = OffsetCommitKey(group=request.group_id, topic=topic, partition=asked.partition_index)
        growth = groups.offsets.growth(key, value)
        if growth > 0:
            if growth > room:
                refused[number] = refusal(groups, _no_room(groups)).code
                continue
            room -= growth
        records.append((key, value))
    return records, refused


def _no_room(groups: GroupsWithOffsets) -> KafkaError:
    limit = groups.shard.options.group_offsets_max_bytes
    return errors.InvalidCommitOffsetSize(
        f"the offsets of this broker's groups take all of ottla.group.offsets.max.bytes, {limit}; delete groups that are not used, "
        "or raise the setting"
    )


def _check_sender(groups: GroupsWithOffsets, request: OffsetCommitRequest, version: int) -> PartitionCheck | None:
    """A commit without a member creates the group. None if the sender may commit every partition."""
    group = groups.by_id.get(request.group_id)
    if group is not None:
        return group.check_commit(request, version)
    if request.generation_id_or_member_epoch >= 0:
        if version >= NOT_FOUND_SINCE:
            raise errors.GroupIdNotFound(f"there is no group {request.group_id!r}")
        raise errors.IllegalGeneration(f"there is no group {request.group_id!r}")
    return None


NOT_FOUND_SINCE = 9


def expired(groups: GroupsWithOffsets, group: Group, topic: str) -> list[Record]:
    """Tombstones for a group's expired offsets of a topic."""
    if group.subscribed(topic):
        return []
    now_ms, retention_ms = groups.shard.wall_ms, groups.shard.options.offsets_retention_minutes * MINUTE_MS
    gone: list[Record] = []
    for partition, value in groups.offsets.by_group[group.group_id][topic].items():
        base_ms = group.expiry_base(value)
        over = base_ms is not None and _over(value, base_ms, now_ms, retention_ms)
        if over and not groups.offsets.pending.unstable(group.group_id, topic, partition):
            gone.append(tombstone(group.group_id, topic, partition))
    return gone


def _over(value: OffsetCommitValue, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp != -1:
        return now_ms >= value.expire_timestamp
    return now_ms - base_ms >= retention_ms
