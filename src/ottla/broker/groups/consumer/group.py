"""A consumer group as a fold over its records: only ``apply`` changes it, while serving and while loading.

The group epoch increases with each change of members, subscriptions and topics; the assignment epoch is the group epoch of the target
assignment; the member epoch is the assignment epoch that a member has reached. The state follows from them and from the members' states:

    Empty        no members
    Assigning    the group epoch is ahead of the assignment epoch
    Reconciling  some member is not STABLE in the assignment epoch
    Stable       all members are

``apply`` also keeps counts, so that a heartbeat needs no loop over members. Source: KIP-848.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from ottla.broker.groups.consumer import record_schemas as records
from ottla.broker.groups.consumer.reconciliation import NOTHING, STABLE, Assignment, ConsumerGroupMember
from ottla.broker.groups.memory_limits import (
    GROUP_BYTES,
    MATCH_BYTES,
    MEMBER_BYTES,
    PARTITION_BYTES,
    TOPIC_BYTES,
    Footprint,
    protocols_bytes,
    text_bytes,
)
from ottla.wire import errors
from ottla.wire.errors import KafkaError

EMPTY, ASSIGNING, RECONCILING, SETTLED, DEAD = "Empty", "Assigning", "Reconciling", "Stable", "Dead"
#: Member epochs of members that leave: permanently, and temporarily as a static member.
LEAVE_EPOCH, STATIC_LEAVE_EPOCH = -1, -2

#: The first OffsetCommit version for members of the consumer protocol: it has STALE_MEMBER_EPOCH.
COMMIT_SINCE = 9


class TopicSize(NamedTuple):
    """A topic as last seen by a group."""

    topic_id: bytes
    partitions: int


class Resolved(msgspec.Struct, frozen=True):
    """Matches of a regular expression, with the topics' version and the time."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """A consumer group. All attributes that are not marked as soft come from records or are counted from them."""

    def __init__(self, group_id: str, footprint: Footprint | None = None) -> None:
        self.group_id = group_id
        #: Memory of the group and its members; counted by a served group.
        self.footprint = footprint or Footprint()
        self.footprint.add(GROUP_BYTES + text_bytes(group_id))
        self.epoch = 0
        #: -1 after its tombstone.
        self.assignment_epoch = 0
        self.members: dict[str, ConsumerGroupMember] = {}
        #: Member ids by instance id.
        self.static: dict[str, str] = {}
        #: By member id. A member without an entry has no partitions.
        self.targets: dict[str, Assignment] = {}
        #: Subscribed topics that existed at the last evaluation.
        self.topics: dict[str, TopicSize] = {}
        #: Owner of each partition, assigned or to be revoked.
        self.owners: dict[bytes, dict[int, str]] = {}
        self.resolved: dict[str, Resolved] = {}
        #: Number of members per subscribed name, regular expression, assignor, and classic protocol, without zeros.
        self.subscriptions: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        #: Number of classic members.
        self.classic_members = 0
        #: Set by the group's tombstone: delete the object.
        self.gone = False
        #: Members that are STABLE in the assignment epoch.
        self._settled: set[str] = set()
        #: Soft: the version of the topics that ``topics`` agrees with.
        self.topics_version = -1
        #: Soft: time of the last evaluation of regular expressions, of the target assignment, and of the last group epoch.
        self.matched_ms = self.assigned_ms = self.changed_ms = -(1 << 60)
        #: Soft: by regular expression, the names last evaluated, and the matches.
        self.matched: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    @property
    def state(self) -> str:
        """The state; see the module's table."""
        if self.gone:
            return DEAD
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        return SETTLED if len(self._settled) == len(self.members) else RECONCILING

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member that owns a partition."""
        held = self.owners.get(topic_id)
        return held.get(partition) if held else None

    def static_member(self, instance_id: str | None) -> ConsumerGroupMember | None:
        """The member with this instance id."""
        member_id = self.static.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def topics_of(self, member: ConsumerGroupMember) -> frozenset[str]:
        """Topic names that a member subscribes to, existing or not, with the last matches of its regular expression."""
        resolved = self.resolved.get(member.pattern) if member.pattern else None
        return member.topics | resolved.topics if resolved else member.topics

    def find(self, member_id: str, instance_id: str | None = None) -> ConsumerGroupMember:
        """The existing member of a request. Raises: UnknownMemberId, FencedInstanceId."""
        if instance_id is None:
            found = self.members.get(member_id)
            if found is None:
                raise errors.UnknownMemberId(f"group {self.group_id!r} has no member {member_id!r}")
            return found
        member = self.static_member(instance_id)
        if member is None:
            raise errors.UnknownMemberId(f"group {self.group_id!r} has no member with instance id {instance_id!r}")
        if member.member_id != member_id:
            raise errors.FencedInstanceId(f"instance id {instance_id!r} is that of member {member.member_id!r} now")
        return member

    # Permission to commit and fetch offsets: members in their epoch; every client while the group is empty. A member whose epoch has
    # increased, and that does not know it yet, may still commit what it had before. Source: Kafka's ConsumerGroup.validateOffsetCommit and
    # validateOffsetFetch, KIP-848, KIP-1251.

    def check_commit(self, member_id: str, epoch: int, version: int) -> "LateCommit | None":
        """None if the sender may commit every partition.

        Raises: UnknownMemberId, StaleMemberEpoch, IllegalGeneration (of a classic member), UnsupportedVersion.
        """
        if epoch < 0 and not self.members:
            return None
        member = self.find(member_id)
        if member.classic is None and version < COMMIT_SINCE:
            raise errors.UnsupportedVersion(f"members of the new protocol commit with version {COMMIT_SINCE} or later")
        if epoch < member.epoch:
            return LateCommit(member, epoch)
        _check_epoch(member, epoch)
        return None

    def check_fetch(self, member_id: str | None, epoch: int) -> None:
        """A client without a member id may fetch. Raises: UnknownMemberId, StaleMemberEpoch, IllegalGeneration (of a classic member)."""
        if member_id or epoch >= 0:
            _check_epoch(self.find(member_id or ""), epoch)

    def subscribes_to(self, topic: str) -> bool:
        """Whether a member subscribes to a topic, by name or regular expression."""
        return topic in self.subscriptions or any(topic in self.resolved[each].topics for each in self.patterns if each in self.resolved)

    def apply(self, key: msgspec.Struct, value: msgspec.Struct | None) -> None:
        """Applies a record of types 3 to 8 or 16; a null value is a tombstone. Tombstones of unknown keys change nothing."""
        _APPLY[type(key)](self, key, value)

    def _apply_epoch(self, key: Any, value: records.ConsumerGroupMetadataValue | None) -> None:
        if value is None:
            self.gone = True
        else:
            self.epoch = value.epoch

    def _apply_topics(self, key: Any, value: records.ConsumerGroupPartitionMetadataValue | None) -> None:
        self.topics = {each.topic_name: TopicSize(each.topic_id, each.num_partitions) for each in value.topics} if value else {}

    def _apply_member(self, key: Any, value: records.ConsumerGroupMemberMetadataValue | None) -> None:
        before = self.members.get(key.member_id)
        if value is None:
            if before is not None:
                self._replace(before, None)
            return
        after = msgspec.structs.replace(
            before or ConsumerGroupMember(member_id=key.member_id),
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            topics=frozenset(value.subscribed_topic_names),
            pattern=value.subscribed_topic_regex or None,
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )
        self._replace(before, after)

    def _apply_assignment_epoch(self, key: Any, value: records.ConsumerGroupTargetAssignmentMetadataValue | None) -> None:
        self.assignment_epoch = -1 if value is None else value.assignment_epoch
        self._settled = {member.member_id for member in self.members.values() if self._is_settled(member)}

    def _apply_target(self, key: Any, value: records.ConsumerGroupTargetAssignmentMemberValue | None) -> None:
        self.footprint.add(-assignment_bytes(self.targets.pop(key.member_id, NOTHING)))
        if value is not None:
            target = self.targets[key.member_id] = assignment_of(value.topic_partitions)
            self.footprint.add(assignment_bytes(target))

    def _apply_current(self, key: Any, value: records.ConsumerGroupCurrentMemberAssignmentValue | None) -> None:
        before = self.members.get(key.member_id)
        if value is None:
            if before is not None:
                gone = {"assigned": NOTHING, "revoking": NOTHING, "assignment_epochs": {}}
                self._replace(before, msgspec.structs.replace(before, epoch=LEAVE_EPOCH, previous_epoch=LEAVE_EPOCH, **gone))
            return
        after = msgspec.structs.replace(
            before or ConsumerGroupMember(member_id=key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=assignment_of(value.assigned_partitions),
            revoking=assignment_of(value.partitions_pending_revocation),
            assignment_epochs=_epochs_of((*value.assigned_partitions, *value.partitions_pending_revocation), value.member_epoch),
        )
        self._replace(before, after)

    def _apply_pattern(self, key: Any, value: records.ConsumerGroupRegularExpressionValue | None) -> None:
        before = self.resolved.pop(key.regular_expression, None)
        self.footprint.add(-MATCH_BYTES * len(before.topics) if before is not None else 0)
        if value is not None:
            self.resolved[key.regular_expression] = Resolved(frozenset(value.topics), value.version, value.timestamp)
            self.footprint.add(MATCH_BYTES * len(value.topics))

    def _replace(self, before: ConsumerGroupMember | None, after: ConsumerGroupMember | None) -> None:
        """Replaces a member; the only place that changes members and their counts."""
        if before is not None:
            self._count(before, -1)
            self._release(before)
            if after is None:
                del self.members[before.member_id]
                self._settled.discard(before.member_id)
                if before.instance_id is not None and self.static.get(before.instance_id) == before.member_id:
                    del self.static[before.instance_id]
        if after is not None:
            self.members[after.member_id] = after
            self._count(after, 1)
            self._hold(after)
            if after.instance_id is not None and (before is None or before.instance_id != after.instance_id):
                # Otherwise it is its own, or a successor has it, and this member is about to be removed.
                self.static[after.instance_id] = after.member_id
            if self._is_settled(after):
                self._settled.add(after.member_id)
            else:
                self._settled.discard(after.member_id)

    def _is_settled(self, member: ConsumerGroupMember) -> bool:
        return member.state == STABLE and member.epoch == self.assignment_epoch

    def _count(self, member: ConsumerGroupMember, change: int) -> None:
        self.footprint.add(change * member_bytes(member))
        _add(self.subscriptions, member.topics, change)
        if member.pattern is not None:
            _add(self.patterns, (member.pattern,), change)
        if member.assignor is not None:
            _add(self.assignors, (member.assignor,), change)
        if member.classic is not None:
            self.classic_members += change
            # A member can name a protocol twice.
            _add(self.classic_protocols, {each.name for each in member.classic.supported_protocols}, change)

    def _hold(self, member: ConsumerGroupMember) -> None:
        for assignment in (member.assigned, member.revoking):
            for topic, partitions in assignment.items():
                held = self.owners.setdefault(topic, {})
                for partition in partitions:
                    held[partition] = member.member_id

    def _release(self, member: ConsumerGroupMember) -> None:
        # In a compacted log, a revocation may come after the partition's next owner: only its own partitions are removed.
        for assignment in (member.assigned, member.revoking):
            for topic, partitions in assignment.items():
                held = self.owners.get(topic, {})
                for partition in partitions:
                    if held.get(partition) == member.member_id:
                        del held[partition]
                if not held:
                    self.owners.pop(topic, None)


class LateCommit(NamedTuple):
    """A commit in an earlier epoch of the member, from before it heard of its present one."""

    member: ConsumerGroupMember
    epoch: int

    def refusal(self, topic_id: bytes, partition: int) -> KafkaError | None:
        """Why the partition's offset is not stored; None if the member has had the partition since the commit's epoch, or longer."""
        since = self.member.assignment_epochs.get(topic_id, {}).get(partition)
        if since is not None and since <= self.epoch:
            return None
        return _wrong_epoch(self.member, self.epoch)


def _check_epoch(member: ConsumerGroupMember, epoch: int) -> None:
    if epoch != member.epoch:
        raise _wrong_epoch(member, epoch)


def _wrong_epoch(member: ConsumerGroupMember, epoch: int) -> KafkaError:
    wrong = errors.StaleMemberEpoch if member.classic is None else errors.IllegalGeneration
    return wrong(f"member {member.member_id!r} is in epoch {member.epoch}, not {epoch}")


def _add(counts: Counter[str], names: Iterable[str], change: int) -> None:
    for name in names:
        counts[name] += change
        if not counts[name]:
            del counts[name]


def said_bytes(member: ConsumerGroupMember) -> int:
    """Memory of a member's metadata."""
    names = (member.member_id, member.instance_id, member.rack_id, member.client_id, member.client_host, member.pattern, member.assignor)
    size = MEMBER_BYTES + sum(map(text_bytes, names)) + sum(TOPIC_BYTES + text_bytes(topic) for topic in member.topics)
    if member.classic is not None:
        size += protocols_bytes((each.name, each.metadata) for each in member.classic.supported_protocols)
    return size


def member_bytes(member: ConsumerGroupMember) -> int:
    """Memory of a member with its partitions."""
    return said_bytes(member) + assignment_bytes(member.assigned) + assignment_bytes(member.revoking)


def assignment_bytes(assignment: Assignment) -> int:
    """Memory of an assignment and of the entries in ``owners``."""
    return sum(TOPIC_BYTES + PARTITION_BYTES * len(partitions) for partitions in assignment.values())


def assignment_of(topics: Iterable[Any]) -> Assignment:
    """An assignment from a message's or record's list of objects with ``topic_id`` and ``partitions``."""
    return {each.topic_id: frozenset(each.partitions) for each in topics if each.partitions}


def _epochs_of(topics: Iterable[records.AssignedPartitions], member_epoch: int) -> dict[bytes, dict[int, int]]:
    """Assignment epochs of a record; the member epoch where it has none."""
    found: dict[bytes, dict[int, int]] = {}
    for each in topics:
        epochs = each.assignment_epochs or [member_epoch] * len(each.partitions)
        found.setdefault(each.topic_id, {}).update(zip(each.partitions, epochs, strict=False))
    return found


_APPLY: dict[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    records.ConsumerGroupMetadataKey: ConsumerGroup._apply_epoch,
    records.ConsumerGroupPartitionMetadataKey: ConsumerGroup._apply_topics,
    records.ConsumerGroupMemberMetadataKey: ConsumerGroup._apply_member,
    records.ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._apply_assignment_epoch,
    records.ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._apply_target,
    records.ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._apply_current,
    records.ConsumerGroupRegularExpressionKey: ConsumerGroup._apply_pattern,
}
