"""A group of the new protocol, as its records tell it: ``apply`` alone changes it, while it serves and while it is loaded.

Three epochs follow each other: the group's rises with every change of who takes part and what they subscribe to; the assignment's is the
group's for which the target was made; a member's is the assignment's it has come to. From them, and the members' states, follows the
group's:

    Empty        no members
    Assigning    the group's epoch is ahead of the assignment's
    Reconciling  some member is not STABLE in the assignment's epoch
    Stable       all are

What apply keeps beside the records are counts, so that nothing has to be recounted on a heartbeat. Source: KIP-848.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from ottla.broker.groups.consumer import record_schemas as records
from ottla.broker.groups.consumer.reconciliation import NOTHING, STABLE, Assignment, Member
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

EMPTY, ASSIGNING, RECONCILING, SETTLED, DEAD = "Empty", "Assigning", "Reconciling", "Stable", "Dead"
#: What ListGroups calls this type of group.
GROUP_TYPE = "Consumer"
#: Member epochs of those who leave: for good, and for a while as a static member.
LEAVE_EPOCH, STATIC_LEAVE_EPOCH = -1, -2


class TopicSize(NamedTuple):
    """A topic as a group saw it last."""

    topic_id: bytes
    partitions: int


class Resolved(msgspec.Struct, frozen=True):
    """What a regular expression stood for, at a version of the topics and a time."""

    topics: frozenset[str]
    version: int
    timestamp_ms: int


class ConsumerGroup:
    """See the module's theory. Everything but what is marked as soft is what the records say, or counted from it."""

    def __init__(self, group_id: str, footprint: Footprint | None = None) -> None:
        self.group_id = group_id
        #: Memory for the group and its members; counted by a group that is served.
        self.footprint = footprint or Footprint()
        self.footprint.add(GROUP_BYTES + text_bytes(group_id))
        self.epoch = 0
        #: -1 once its tombstone came.
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        #: Member ids by instance id.
        self.static: dict[str, str] = {}
        #: By member id. A member without an entry has nothing to read.
        self.targets: dict[str, Assignment] = {}
        #: Topics subscribed to that existed when the group looked last.
        self.topics: dict[str, TopicSize] = {}
        #: Who holds which partition, assigned or pending revocation.
        self.owners: dict[bytes, dict[int, str]] = {}
        self.resolved: dict[str, Resolved] = {}
        #: How many members subscribe to a topic by name, to a pattern, ask for an assignor, name a classic protocol. No zeros.
        self.subscriptions: Counter[str] = Counter()
        self.patterns: Counter[str] = Counter()
        self.assignors: Counter[str] = Counter()
        self.classic_protocols: Counter[str] = Counter()
        #: Members that came by JoinGroup.
        self.classic_members = 0
        #: Set by the group's tombstone: forget it.
        self.gone = False
        #: Members that are STABLE in the assignment's epoch.
        self._settled: set[str] = set()
        #: Soft: version of the cluster's topics that ``topics`` is known to agree with.
        self.topics_version = -1
        #: Soft: when patterns were matched last, when the target was made, when the group's epoch rose.
        self.matched_ms = self.assigned_ms = self.changed_ms = -(1 << 60)
        #: Soft: by pattern, the names that it was matched with last, and those that matched.
        self.matched: dict[str, tuple[frozenset[str], frozenset[str]]] = {}

    @property
    def state(self) -> str:
        """One of the states above."""
        if self.gone:
            return DEAD
        if not self.members:
            return EMPTY
        if self.epoch > self.assignment_epoch:
            return ASSIGNING
        return SETTLED if len(self._settled) == len(self.members) else RECONCILING

    def owner(self, topic_id: bytes, partition: int) -> str | None:
        """The member that holds a partition."""
        held = self.owners.get(topic_id)
        return held.get(partition) if held else None

    def static_member(self, instance_id: str | None) -> Member | None:
        """The member that goes by an instance id."""
        member_id = self.static.get(instance_id) if instance_id is not None else None
        return self.members.get(member_id) if member_id is not None else None

    def topics_of(self, member: Member) -> frozenset[str]:
        """Names of the topics a member subscribes to, whether they exist or not, its pattern's as matched last."""
        resolved = self.resolved.get(member.pattern) if member.pattern else None
        return member.topics | resolved.topics if resolved else member.topics

    def subscribes_to(self, topic: str) -> bool:
        """Whether any member subscribes to a topic, by name or by pattern."""
        return topic in self.subscriptions or any(topic in self.resolved[each].topics for each in self.patterns if each in self.resolved)

    def apply(self, key: msgspec.Struct, value: msgspec.Struct | None) -> None:
        """Take in one record of types 3 to 8 or 16; a null value is a tombstone. Tombstones of what is not there change nothing."""
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
            before or Member(member_id=key.member_id),
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
                gone = {"epoch": LEAVE_EPOCH, "previous_epoch": LEAVE_EPOCH, "assigned": NOTHING, "revoking": NOTHING}
                self._replace(before, msgspec.structs.replace(before, **gone))
            return
        after = msgspec.structs.replace(
            before or Member(member_id=key.member_id),
            epoch=value.member_epoch,
            previous_epoch=value.previous_member_epoch,
            state=value.state,
            assigned=assignment_of(value.assigned_partitions),
            revoking=assignment_of(value.partitions_pending_revocation),
        )
        self._replace(before, after)

    def _apply_pattern(self, key: Any, value: records.ConsumerGroupRegularExpressionValue | None) -> None:
        before = self.resolved.pop(key.regular_expression, None)
        self.footprint.add(-MATCH_BYTES * len(before.topics) if before is not None else 0)
        if value is not None:
            self.resolved[key.regular_expression] = Resolved(frozenset(value.topics), value.version, value.timestamp)
            self.footprint.add(MATCH_BYTES * len(value.topics))

    def _replace(self, before: Member | None, after: Member | None) -> None:
        """The one place where members change, and all that is counted from them with them."""
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
            if after.instance_id is not None:
                self.static[after.instance_id] = after.member_id
            if self._is_settled(after):
                self._settled.add(after.member_id)
            else:
                self._settled.discard(after.member_id)

    def _is_settled(self, member: Member) -> bool:
        return member.state == STABLE and member.epoch == self.assignment_epoch

    def _count(self, member: Member, change: int) -> None:
        self.footprint.add(change * member_bytes(member))
        _add(self.subscriptions, member.topics, change)
        if member.pattern is not None:
            _add(self.patterns, (member.pattern,), change)
        if member.assignor is not None:
            _add(self.assignors, (member.assignor,), change)
        if member.classic is not None:
            self.classic_members += change
            # A member can name a protocol twice, and still knows it once.
            _add(self.classic_protocols, {each.name for each in member.classic.supported_protocols}, change)

    def _hold(self, member: Member) -> None:
        for assignment in (member.assigned, member.revoking):
            for topic, partitions in assignment.items():
                held = self.owners.setdefault(topic, {})
                for partition in partitions:
                    held[partition] = member.member_id

    def _release(self, member: Member) -> None:
        # In a compacted log, what a member gave up may be told after another got it: only what is still its own goes.
        for assignment in (member.assigned, member.revoking):
            for topic, partitions in assignment.items():
                held = self.owners.get(topic, {})
                for partition in partitions:
                    if held.get(partition) == member.member_id:
                        del held[partition]
                if not held:
                    self.owners.pop(topic, None)


def _add(counts: Counter[str], names: Iterable[str], change: int) -> None:
    for name in names:
        counts[name] += change
        if not counts[name]:
            del counts[name]


def said_bytes(member: Member) -> int:
    """Memory for what a member said."""
    names = (member.member_id, member.instance_id, member.rack_id, member.client_id, member.client_host, member.pattern, member.assignor)
    size = MEMBER_BYTES + sum(map(text_bytes, names)) + sum(TOPIC_BYTES + text_bytes(topic) for topic in member.topics)
    if member.classic is not None:
        size += protocols_bytes((each.name, each.metadata) for each in member.classic.supported_protocols)
    return size


def member_bytes(member: Member) -> int:
    """Memory for a member with the partitions that it owns."""
    return said_bytes(member) + assignment_bytes(member.assigned) + assignment_bytes(member.revoking)


def assignment_bytes(assignment: Assignment) -> int:
    """Memory for an assignment, and for the group's knowledge of who owns its partitions."""
    return sum(TOPIC_BYTES + PARTITION_BYTES * len(partitions) for partitions in assignment.values())


def assignment_of(topics: Iterable[Any]) -> Assignment:
    """An assignment from the lists of a message or a record: anything with ``topic_id`` and ``partitions``."""
    return {each.topic_id: frozenset(each.partitions) for each in topics if each.partitions}


_APPLY: dict[type, Callable[[ConsumerGroup, Any, Any], None]] = {
    records.ConsumerGroupMetadataKey: ConsumerGroup._apply_epoch,
    records.ConsumerGroupPartitionMetadataKey: ConsumerGroup._apply_topics,
    records.ConsumerGroupMemberMetadataKey: ConsumerGroup._apply_member,
    records.ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroup._apply_assignment_epoch,
    records.ConsumerGroupTargetAssignmentMemberKey: ConsumerGroup._apply_target,
    records.ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroup._apply_current,
    records.ConsumerGroupRegularExpressionKey: ConsumerGroup._apply_pattern,
}
