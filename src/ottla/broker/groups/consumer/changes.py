"""Consequences of a member's change: its record, subscriptions, the target assignment, and its next assignment.

    member changed    -> its record (5)
    subscriptions     -> subscribed topics (4), matches of regular expressions (16); the group epoch (3) increases if they changed
    epoch is ahead    -> a new target assignment for all members (6, 7), by the assignor that most members request
    the member        -> one step towards its target (8)

A target assignment takes time in proportion to the group, so it is computed at most once per ``assignment_interval_ms``: of five hundred
members that join in one second, the first gets one at once and the others get theirs together. Until then a member lives in the epoch of
the existing target, and revokes what it no longer subscribes to. No timer is needed: members send heartbeats, more often while they wait.

This module reads the group and returns records; ``ConsumerGroup.apply`` changes it. Source: KIP-848, KIP-1263 (the interval).
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

import msgspec

from ottla.broker.groups.consumer import records as writes
from ottla.broker.groups.consumer.assignors import ASSIGNORS, Subscriber
from ottla.broker.groups.consumer.group import ConsumerGroup, Resolved, TopicSize
from ottla.broker.groups.consumer.reconciliation import NOTHING, UNREVOKED_PARTITIONS, Assignment, ConsumerGroupMember, reconcile
from ottla.broker.groups.consumer.records import Record
from ottla.broker.groups.consumer.topic_patterns import matching

#: A cause of a change, for the log.
JOINED = "joined"
#: Minimum interval between evaluations of a group's regular expressions.
MATCH_INTERVAL_MS = 1_000


class Topics(Protocol):
    """The cluster's topics."""

    @property
    def version(self) -> int:
        """Increases whenever a topic is created, deleted or expanded."""

    def size(self, name: str) -> TopicSize | None:
        """The topic with this name."""

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of this topic."""

    def names(self) -> Iterable[str]:
        """All topics."""


def _any_size(group: ConsumerGroup, before: ConsumerGroupMember | None, after: ConsumerGroupMember) -> None:
    pass


class GroupSettings(msgspec.Struct, kw_only=True):
    """Settings and time for a group's decision. ``wall_ms`` is the wall clock."""

    now_ms: int
    wall_ms: int
    topics: Topics
    #: Allowed assignors; the first is the default.
    assignors: tuple[str, ...] = ("uniform", "range")
    heartbeat_interval_ms: int = 5_000
    #: Heartbeat interval while the group changes.
    unsettled_interval_ms: int = 500
    session_timeout_ms: int = 45_000
    assignment_interval_ms: int = 1_000
    members_max: int = 2**31 - 1
    #: Refuses a member that exceeds a memory limit; gets its former and new state.
    check_bytes: Callable[[ConsumerGroup, ConsumerGroupMember | None, ConsumerGroupMember], None] = _any_size


class Timer(Enum):
    """Deadlines of a member. A member that misses one is removed."""

    #: No heartbeat.
    SESSION = "session"
    #: Partitions not revoked.
    REBALANCE = "rebalance"
    #: A classic member that must rejoin and does not.
    JOIN = "join"
    #: A classic member that joined and does not sync.
    SYNC = "sync"


class StartTimer(msgspec.Struct, frozen=True):
    """Starts a deadline, or restarts it unless ``keep``. ``epoch`` applies to REBALANCE, which is void in another epoch."""

    timer: Timer
    member_id: str
    delay_ms: int
    epoch: int = 0
    keep: bool = False


@dataclass(slots=True)
class GroupDecision:
    """Records to write, then the response and deadlines."""

    records: list[Record] = field(default_factory=list)
    response: Any = None
    arm: list[StartTimer] = field(default_factory=list)
    disarm: list[tuple[Timer, str]] = field(default_factory=list)
    #: For the log: what happened to the group, and to which member.
    causes: list[tuple[str, str]] = field(default_factory=list)
    #: Epoch of a new target assignment, for the log; -1 without one.
    assigned_epoch: int = -1


def advance(
    group: ConsumerGroup,
    terms: GroupSettings,
    decision: GroupDecision,
    *,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember,
    owned: Assignment | None,
    replaces: str | None = None,
    describes: Callable[[str], bool] | None,
) -> ConsumerGroupMember:
    """The member after the change to ``after``. ``replaces`` is the former id of a static member. ``describes``: which topics regular
    expressions may match; None: all. As in Kafka, those of all members are evaluated with the rights of the one whose request does it.

    Adds records to the decision. Raises: InvalidRegularExpression, InvalidRequest, GroupMaxSizeReached.
    """
    records = decision.records
    if after is not before:
        terms.check_bytes(group, before, after)
        records.append(writes.member_record(group.group_id, after))
    changed = before is None or after.topics != before.topics or after.pattern != before.pattern
    if changed:
        decision.causes.append((JOINED if before is None else "changed its subscription in", after.member_id))
    elif replaces is not None:
        decision.causes.append(("replaced a static member of", after.member_id))
    epoch = group.epoch
    resolved = group.resolved
    topics = group.topics
    if changed or _is_due(group, terms):
        resolved = _resolve(group, terms, before, after, records, describes)
        changed = changed or resolved is not group.resolved
        topics = _topics(terms, _subscribed(group, resolved, before, after))
        if topics != group.topics:
            changed = True
            records.append(writes.topics_record(group.group_id, topics))
        if changed:
            epoch += 1
            group.changed_ms = terms.now_ms
            records.append(writes.epoch_record(group.group_id, epoch))
        else:
            group.topics_version = terms.topics.version
    target_epoch = group.assignment_epoch
    target = group.targets.get(after.member_id if replaces is None else replaces, NOTHING)
    lost = False
    if epoch > target_epoch:
        if may_assign(group, terms):
            target_epoch = decision.assigned_epoch = epoch
            target = _retarget(group, terms, records, epoch=epoch, resolved=resolved, topics=topics, after=after, replaces=replaces)
        else:
            wanted = {size.topic_id for name, size in topics.items() if name in _names(after, resolved)}
            kept = {topic: partitions for topic, partitions in target.items() if topic in wanted}
            lost, target = len(kept) < len(target), kept
    moved = reconcile(after, target_epoch=target_epoch, target=target, owner=group.owner, owned=owned, force=lost)
    if moved is not after:
        records.append(writes.current_record(group.group_id, moved))
        if moved.classic is None and moved.state == UNREVOKED_PARTITIONS:
            decision.arm.append(StartTimer(Timer.REBALANCE, moved.member_id, moved.rebalance_timeout_ms, moved.epoch))
        elif moved.classic is None:
            decision.disarm.append((Timer.REBALANCE, moved.member_id))
    return moved


def _is_due(group: ConsumerGroup, terms: GroupSettings) -> bool:
    """Whether topics changed since the group last evaluated them, and it may do so again."""
    if group.topics_version == terms.topics.version:
        return False
    return not group.patterns or terms.now_ms >= group.matched_ms + MATCH_INTERVAL_MS


def may_assign(group: ConsumerGroup, terms: GroupSettings) -> bool:
    """Whether a due target assignment may be computed now."""
    return group.assignment_epoch <= 0 or not group.members or terms.now_ms >= group.assigned_ms + terms.assignment_interval_ms


def remove(
    group: ConsumerGroup, terms: GroupSettings, decision: GroupDecision, members: Iterable[ConsumerGroupMember], *, cause: str = "left"
) -> None:
    """Removes members: their records, subscriptions, deadlines; a higher epoch. ``cause``: for the log."""
    leaving = list(members)
    decision.causes += [(cause, member.member_id) for member in leaving]
    for member in leaving:
        decision.records += writes.member_tombstones(group.group_id, member.member_id)
        decision.disarm += [(timer, member.member_id) for timer in Timer]
    resolved = dict(group.resolved)
    gone = Counter(member.pattern for member in leaving if member.pattern is not None)
    for pattern, count in gone.items():
        if group.patterns[pattern] <= count and pattern in resolved:
            del resolved[pattern]
            decision.records.append(writes.pattern_record(group.group_id, pattern, None))
    names = Counter(group.subscriptions)
    for member in leaving:
        names.subtract(member.topics)
    patterns = group.patterns - gone
    topics = _topics(
        terms, {name for name, count in names.items() if count > 0}.union(*(resolved[each].topics for each in patterns if each in resolved))
    )
    if topics != group.topics:
        decision.records.append(writes.topics_record(group.group_id, topics))
    decision.records.append(writes.epoch_record(group.group_id, group.epoch + 1))
    group.changed_ms = terms.now_ms


def _resolve(
    group: ConsumerGroup,
    terms: GroupSettings,
    before: ConsumerGroupMember | None,
    after: ConsumerGroupMember,
    records: list[Record],
    describes: Callable[[str], bool] | None,
) -> dict[str, Resolved]:
    """Present matches of regular expressions: the group's own dict if nothing changed."""
    found = dict(group.resolved)
    stale = group.topics_version != terms.topics.version and terms.now_ms >= group.matched_ms + MATCH_INTERVAL_MS
    if before is not None and before.pattern is not None and before.pattern != after.pattern and group.patterns[before.pattern] <= 1:
        found.pop(before.pattern, None)
    patterns = set(found) if stale else set()
    if after.pattern is not None and after.pattern not in found:
        patterns.add(after.pattern)
    if patterns:
        names = frozenset(terms.topics.names())
        for pattern in sorted(patterns):
            topics = _matched(group, pattern, names)
            if describes is not None:
                topics = frozenset(filter(describes, topics))
            if pattern not in found or topics != found[pattern].topics:
                found[pattern] = Resolved(topics, terms.topics.version, terms.wall_ms)
    if stale:
        group.matched_ms = terms.now_ms
    differ = [each for each in sorted(group.resolved.keys() | found.keys()) if group.resolved.get(each) is not found.get(each)]
    records += [writes.pattern_record(group.group_id, pattern, found.get(pattern)) for pattern in differ]
    return found if differ else group.resolved


def _matched(group: ConsumerGroup, pattern: str, names: frozenset[str]) -> frozenset[str]:
    """Topics that match a regular expression; only names that are new since the last evaluation are matched."""
    looked_at, found = group.matched.get(pattern, (frozenset(), frozenset()))
    if names is not looked_at:
        found = (found & names) | matching(pattern, names - looked_at)
        group.matched = {each: group.matched[each] for each in group.matched if each in group.resolved} | {pattern: (names, found)}
    return found


def _subscribed(
    group: ConsumerGroup, resolved: dict[str, Resolved], before: ConsumerGroupMember | None, after: ConsumerGroupMember
) -> set[str]:
    """Names of all subscribed topics after this change."""
    names = set(group.subscriptions)
    if before is not None and before.topics is not after.topics:
        names -= {name for name in before.topics - after.topics if group.subscriptions[name] <= 1}
    return names.union(after.topics, *(each.topics for each in resolved.values()))


def _topics(terms: GroupSettings, names: Iterable[str]) -> dict[str, TopicSize]:
    sizes = ((name, terms.topics.size(name)) for name in names)
    return {name: size for name, size in sizes if size is not None}


def _names(member: ConsumerGroupMember, resolved: dict[str, Resolved]) -> frozenset[str]:
    found = resolved.get(member.pattern) if member.pattern is not None else None
    return member.topics | found.topics if found else member.topics


def _retarget(
    group: ConsumerGroup,
    terms: GroupSettings,
    records: list[Record],
    *,
    epoch: int,
    resolved: dict[str, Resolved],
    topics: dict[str, TopicSize],
    after: ConsumerGroupMember,
    replaces: str | None,
) -> Assignment:
    """Computes the target assignment; returns that of ``after``."""
    members = dict(group.members)
    targets = dict(group.targets)
    if replaces is not None:
        members.pop(replaces, None)
        targets[after.member_id] = targets.pop(replaces, NOTHING)
    members[after.member_id] = after
    ids: dict[tuple[frozenset[str], str | None], frozenset[bytes]] = {}
    subscribers = []
    for member in members.values():
        asked = (member.topics, member.pattern)
        if asked not in ids:
            ids[asked] = frozenset(topics[name].topic_id for name in _names(member, resolved) if name in topics)
        subscribers.append(
            Subscriber(
                member_id=member.member_id,
                instance_id=member.instance_id,
                topics=ids[asked],
                target=targets.get(member.member_id, NOTHING),
            )
        )
    sizes = {size.topic_id: size.partitions for size in topics.values()}
    found = ASSIGNORS[preferred_assignor(terms, members.values())](subscribers, sizes)
    differ = [member_id for member_id in sorted(members) if found[member_id] != targets.get(member_id)]
    records += [writes.target_record(group.group_id, member_id, found[member_id]) for member_id in differ]
    records.append(writes.assignment_epoch_record(group.group_id, epoch))
    group.assigned_ms = terms.now_ms
    return found[after.member_id]


def preferred_assignor(terms: GroupSettings, members: Iterable[ConsumerGroupMember]) -> str:
    """The assignor that most members request; of several, the first in the broker's list; its first without requests."""
    votes = Counter(member.assignor for member in members if member.assignor in terms.assignors)
    return max(terms.assignors, key=lambda name: votes[name])
