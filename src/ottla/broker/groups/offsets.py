"""Committed offsets by group, topic and partition, with time, leader epoch and metadata.

An offset expires ``offsets.retention.minutes`` after the start of its retention (``Group.expiry_base``), unless its client chose a time
(OffsetCommit 2 to 4) or its group subscribes to the topic. Deleting a topic deletes its offsets. Offsets of an open transaction are pending
(``pending_offsets.py``); a partition with a pending offset does not expire.

Source: Kafka's OffsetMetadataManager and OffsetExpirationConditionImpl; KIP-211.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from ottla.base.units import INT64_MAX, MINUTE_MS
from ottla.broker.coordinator import CommitTransaction, Record
from ottla.broker.groups.group import Group, GroupTable, PartitionCheck
from ottla.broker.groups.memory_limits import GROUP_BYTES, OFFSET_BYTES, STRING_BYTES, WIDE_BYTES, offsets_bytes, refusal, text_bytes
from ottla.broker.groups.pending_offsets import PendingOffset, PendingOffsets, Place
from ottla.broker.groups.records import OffsetCommitKey, OffsetCommitValue
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.offset_commit import OffsetCommitRequest

#: An offset to store: its topic, what the request says, and the answer.
Entry: TypeAlias = "tuple[str, AskedOffset, Answered]"


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
        if value is None:
            self._remove(key.group, key.topic, key.partition)
        else:
            self._store(key.group, key.topic, key.partition, value)

    def apply_pending(self, key: OffsetCommitKey, value: OffsetCommitValue, *, producer_id: int, record_offset: int) -> None:
        """Applies a commit of an open transaction; ``record_offset`` is that of the record in the log."""
        self.pending.add(producer_id, record_offset, key, value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """Applies a marker: commits or drops the producer's pending offsets."""
        for group_id, places in self.pending.end(producer_id).items():
            if commit:
                self._commit(group_id, places)

    def _commit(self, group_id: str, places: Mapping[Place, PendingOffset]) -> None:
        others = self.pending.holds(group_id)
        for (topic, partition), (record_offset, value) in places.items():
            if value is not None:
                if others:
                    self.pending.overtaken(OffsetCommitKey(group=group_id, topic=topic, partition=partition), record_offset)
                self._store(group_id, topic, partition, value)

    def _store(self, group_id: str, topic: str, partition: int, value: OffsetCommitValue) -> None:
        topics = self.by_group.get(group_id)
        if topics is None:
            topics = self.by_group[group_id] = {}
            self._committed_bytes += GROUP_BYTES + text_bytes(group_id)
        partitions = topics.get(topic)
        if partitions is None:
            partitions = topics[topic] = {}
        before = partitions.get(partition)
        partitions[partition] = value
        if before is None:
            self._committed_bytes += _offset_bytes(value)
        elif before.metadata != value.metadata:
            self._committed_bytes += text_bytes(value.metadata) - text_bytes(before.metadata)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.by_group.get(group_id)
        partitions = topics.get(topic) if topics is not None else None
        if topics is None or partitions is None:
            return
        self._committed_bytes -= _offset_bytes(partitions.pop(partition, None))
        if not partitions:
            del topics[topic]
            if not topics:
                del self.by_group[group_id]
                self._committed_bytes -= GROUP_BYTES + text_bytes(group_id)

    def growth(self, key: OffsetCommitKey, value: OffsetCommitValue) -> int:
        """The change of ``bytes`` by ``apply`` without pending offsets."""
        change = _offset_bytes(value) - _offset_bytes(self.of(key.group, key.topic, key.partition))
        return change if key.group in self.by_group else change + GROUP_BYTES + text_bytes(key.group)

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
        committed = {topic for topics in self.by_group.values() for topic in topics}
        return committed | {topic for group_id in self.pending.groups() for topic, _ in self.pending.places(group_id)}

    def places(self, group_id: str) -> Iterator[Place]:
        """Topics and partitions with committed or pending offsets of a group; one may come twice. Offsets may be added and dropped
        meanwhile.
        """
        for topic in list(self.by_group.get(group_id, ())):
            for partition in list(self.by_group.get(group_id, {}).get(topic, ())):
                yield topic, partition
        yield from self.pending.places(group_id)

    def tombstones(self, group_id: str, places: Iterable[Place]) -> list[Record]:
        """Records that delete the committed and pending offsets of these places."""
        return [tombstone(group_id, *place) for place in dict.fromkeys(places) if self.has(group_id, *place)]

    def places_of_topic(self, topic: str) -> dict[str, list[Place]]:
        """The places of a topic with committed or pending offsets, by group; one may be there twice."""
        found = {group_id: [(topic, each) for each in topics[topic]] for group_id, topics in self.by_group.items() if topic in topics}
        for group_id in self.pending.groups():
            if pending := [place for place in self.pending.places(group_id) if place[0] == topic]:
                found.setdefault(group_id, []).extend(pending)
        return found


def _offset_bytes(value: OffsetCommitValue | None) -> int:
    return 0 if value is None else OFFSET_BYTES + text_bytes(value.metadata)


def tombstone(group_id: str, topic: str, partition: int) -> Record:
    return OffsetCommitKey(group=group_id, topic=topic, partition=partition), None


class AskedOffset(Protocol):
    """An offset to store, of an OffsetCommit or a TxnOffsetCommit."""

    partition_index: int
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None


class Answered(Protocol):
    """The answer about a partition."""

    error_code: int


class GroupsWithOffsets(GroupTable, Protocol):
    """The groups of one shard and their offsets."""

    offsets: Offsets


def commit(groups: GroupsWithOffsets, sender: OffsetCommitRequest, version: int, entries: Sequence[Entry]) -> None:
    """Stores offsets as one batch; their answers get an error where they are refused. ``sender``: the request, whose topics do not count.

    Raises: KafkaError if the sender may not commit, or nothing could be written.
    """
    check = _check_sender(groups, sender, version)
    records = _records(groups, sender, entries, check)
    groups.shard.write(sender.group_id, records, too_large=errors.InvalidCommitOffsetSize)


def commit_in_transaction(
    groups: GroupsWithOffsets, sender: OffsetCommitRequest, transaction: CommitTransaction, entries: Sequence[Entry], *, knows_epochs: bool
) -> bool:
    """Stores offsets as ``commit`` does, as part of a transaction: they are pending until its marker. Returns whether there are any.

    A sender that names no member is not checked, as in Kafka. ``knows_epochs``: the client knows GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH;
    others get ILLEGAL_GENERATION. Raises: KafkaError if the sender may not commit, or nothing could be written.
    """
    check = None
    if sender.generation_id_or_member_epoch != -1 or sender.member_id or sender.group_instance_id is not None:
        try:
            check = _check_sender(groups, sender, NOT_FOUND_SINCE)
        except (errors.GroupIdNotFound, errors.StaleMemberEpoch) as error:
            if knows_epochs:
                raise
            raise errors.IllegalGeneration(str(error)) from error
    records = _records(groups, sender, entries, check)
    if check is not None and not knows_epochs:
        for _, _, answer in entries:
            if answer.error_code == errors.StaleMemberEpoch.code:
                answer.error_code = errors.IllegalGeneration.code
    groups.shard.write(sender.group_id, records, too_large=errors.InvalidCommitOffsetSize, transaction=transaction)
    return bool(records)


def _records(
    groups: GroupsWithOffsets, sender: OffsetCommitRequest, entries: Sequence[Entry], check: PartitionCheck | None
) -> list[Record]:
    """The records of the entries that are not refused."""
    group_id, wall_ms, text_max = sender.group_id, groups.shard.wall_ms, groups.shard.options.offset_metadata_max_bytes
    retention_ms = sender.retention_time_ms
    # A client may ask for any retention, also one that ends after the last time that 64 bits hold.
    expiry_ms = -1 if retention_ms == -1 else min(max(wall_ms + retention_ms, 0), INT64_MAX)
    room = groups.shard.options.group_offsets_max_bytes - offsets_bytes(groups.shard)
    # Usually there is room for all, whatever they replace.
    scarce = room < GROUP_BYTES + text_bytes(group_id) + len(entries) * (OFFSET_BYTES + STRING_BYTES + WIDE_BYTES * text_max)
    records: list[Record] = []
    for topic, asked, answer in entries:
        text = asked.committed_metadata or ""
        if len(text) > text_max:
            answer.error_code = errors.OffsetMetadataTooLarge.code
            continue
        if check is not None and (wrong := check(topic, asked.partition_index)) is not None:
            answer.error_code = wrong.code
            continue
        key = OffsetCommitKey(group=group_id, topic=topic, partition=asked.partition_index)
        value = OffsetCommitValue(
            offset=asked.committed_offset,
            leader_epoch=asked.committed_leader_epoch,
            metadata=text,
            commit_timestamp=wall_ms,
            expire_timestamp=expiry_ms,
        )
        if scarce and (growth := groups.offsets.growth(key, value)) > 0:
            if growth > room:
                answer.error_code = refusal(groups, _no_room(groups)).code
                continue
            room -= growth
        records.append((key, value))
    return records


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


def expired(groups: GroupsWithOffsets, group: Group, topic: str, partitions: Iterable[int]) -> list[Record]:
    """Tombstones for a group's expired offsets of a topic, of these partitions."""
    known = groups.offsets.by_group.get(group.group_id, {}).get(topic, {})
    if group.subscribed(topic):
        return []
    now_ms, retention_ms = groups.shard.wall_ms, groups.shard.options.offsets_retention_minutes * MINUTE_MS
    gone: list[Record] = []
    for partition in partitions:
        value = known.get(partition)
        base_ms = group.expiry_base(value) if value is not None else None
        over = value is not None and base_ms is not None and _over(value, base_ms, now_ms, retention_ms)
        if over and not groups.offsets.pending.unstable(group.group_id, topic, partition):
            gone.append(tombstone(group.group_id, topic, partition))
    return gone


def _over(value: OffsetCommitValue, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    if value.expire_timestamp != -1:
        return now_ms >= value.expire_timestamp
    return now_ms - base_ms >= retention_ms
