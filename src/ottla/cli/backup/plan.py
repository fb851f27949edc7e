"""What a restore changes: the difference between a backup and the present state of a cluster. Nothing is deleted.

Both states have the same form, so a restore that succeeded leaves no difference, and repeating it changes nothing.

==============  ==================================================================================================================
access rules    missing ones are added; rules that deny come first, so that none is allowed more than in the backup meanwhile
quotas          those that differ are set
topics          missing ones are created, partitions added; a topic with more partitions keeps them
settings        those that differ are set; settings that only the cluster has stay
groups          missing offsets are committed where the log has them; other offsets stay, unless they are to be reset
users           only listed: a password cannot be saved
==============  ==================================================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from ottla.base.acls import Permission
from ottla.base.ids import TopicPartition
from ottla.cli.backup.content import Backup, SavedGroup, SavedOffset, SavedTopic
from ottla.client.admin import results as r
from ottla.client.admin.acl_results import Acl
from ottla.client.admin.quotas import QuotaEntity

MIN_ISR = "min.insync.replicas"


class AddAcl(NamedTuple):
    """Adds an access rule."""

    acl: Acl


class SetQuota(NamedTuple):
    """Sets a quota of an entity; `before` None: it has none."""

    entity: QuotaEntity
    key: str
    before: float | None
    after: float


class CreateTopic(NamedTuple):
    """Creates a topic; `replicas` empty: the cluster places them."""

    name: str
    partitions: int
    replication_factor: int
    replicas: Sequence[Sequence[int]]
    settings: Mapping[str, str]


class AddPartitions(NamedTuple):
    """Adds partitions to a topic."""

    name: str
    before: int
    after: int


class SetSetting(NamedTuple):
    """Sets a setting; `before` None: its default."""

    resource: r.Resource
    key: str
    before: str | None
    after: str


class CommitOffset(NamedTuple):
    """Commits an offset of a group; `before` None: there is none."""

    group: str
    partition: TopicPartition
    before: int | None
    offset: SavedOffset


Change: TypeAlias = AddAcl | SetQuota | CreateTopic | AddPartitions | SetSetting | CommitOffset
#: Log start and end offset of each partition that exists.
Ranges: TypeAlias = Mapping[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """How to restore. `replicas`: of topics that are created; None: as many as before."""

    replicas: int | None = None
    same_brokers: bool = False
    reset_offsets: bool = False


@dataclass(slots=True)
class Plan:
    """Changes by kind, in the order in which they are made, and remarks about omissions."""

    acls: list[AddAcl] = field(default_factory=list)
    quotas: list[SetQuota] = field(default_factory=list)
    topics: list[CreateTopic] = field(default_factory=list)
    partitions: list[AddPartitions] = field(default_factory=list)
    settings: list[SetSetting] = field(default_factory=list)
    offsets: list[CommitOffset] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def changes(self) -> list[Change]:
        return [*self.acls, *self.quotas, *self.topics, *self.partitions, *self.settings, *self.offsets]


def plan(saved: Backup, present: Backup, ranges: Ranges, choices: Choices) -> Plan:
    """Parts that one of the two does not have are left out. Raises: ValueError for a rule of an unknown kind."""
    made = Plan(remarks=list(saved.left_out))
    _acls(saved, present, made)
    _quotas(saved, present, made)
    _topics(saved, present, choices, made)
    _settings(saved, present, made)
    _users(saved, present, made)
    _groups(saved, present, ranges, choices, made)
    for name, level in saved.features.items():
        if present.features.get(name) not in (None, level):
            levels = f"level {level} in the backup and {present.features[name]} here"
            made.remarks.append(f"feature {name}: {levels}; change it with ottla cluster features-update")
    return made


def wanted_partitions(saved: Backup) -> list[TopicPartition]:
    """Partitions whose log ranges decide about offsets."""
    return [TopicPartition(topic, number) for group in saved.groups or () for topic, offsets in group.offsets.items() for number in offsets]


def _missing(saved: object, present: object, what: str, made: Plan) -> bool:
    """Whether there is nothing to compare; a remark if the cluster lacks a part that the backup has."""
    if saved and present is None:
        made.remarks.append(f"{what}: not restored, the cluster has none of them; see the remarks of ottla backup against it")
    return saved is None or present is None


def _acls(saved: Backup, present: Backup, made: Plan) -> None:
    if _missing(saved.acls, present.acls, "access rules", made):
        return
    there = {one.acl() for one in present.acls or ()}
    missing = [acl for one in saved.acls or () if (acl := one.acl()) not in there]
    made.acls += map(AddAcl, sorted(missing, key=lambda acl: acl.permission is not Permission.DENY))


def _quotas(saved: Backup, present: Backup, made: Plan) -> None:
    if _missing(saved.quotas, present.quotas, "quotas", made):
        return
    there = {one.entity: one.quotas for one in present.quotas or ()}
    for one in saved.quotas or ():
        for key, value in one.quotas.items():
            before = there.get(one.entity, {}).get(key)
            if before != value:
                made.quotas.append(SetQuota(one.entity, key, before, value))


def _topics(saved: Backup, present: Backup, choices: Choices, made: Plan) -> None:
    if _missing(saved.topics, present.topics, "topics", made):
        return
    there = {topic.name: topic for topic in present.topics or ()}
    brokers = {broker.id for broker in present.brokers}
    for topic in saved.topics or ():
        now = there.get(topic.name)
        if now is None:
            made.topics.append(_creation(topic, brokers, choices, made))
            continue
        if now.partitions < topic.partitions:
            made.partitions.append(AddPartitions(topic.name, now.partitions, topic.partitions))
        elif now.partitions > topic.partitions:
            made.remarks.append(f"topic {topic.name} keeps its {now.partitions} partitions; the backup has {topic.partitions}")
        if now.replication_factor != topic.replication_factor:
            factors = f"{now.replication_factor} replicas; the backup has {topic.replication_factor}"
            made.remarks.append(f"topic {topic.name} keeps its {factors}: change them with ottla cluster reassign")
        made.settings += _differing(r.Resource.topic(topic.name), topic.settings, now.settings)


def _creation(topic: SavedTopic, brokers: set[int], choices: Choices, made: Plan) -> CreateTopic:
    factor = choices.replicas or topic.replication_factor
    needed = {broker for replicas in topic.replicas for broker in replicas}
    if choices.same_brokers and needed <= brokers:
        return CreateTopic(topic.name, topic.partitions, topic.replication_factor, topic.replicas, topic.settings)
    if choices.same_brokers:
        absent = ", ".join(map(str, sorted(needed - brokers)))
        made.remarks.append(f"topic {topic.name}: the cluster chooses its brokers, because broker {absent} is not there")
    in_sync = topic.settings.get(MIN_ISR, "1")
    if in_sync.isdecimal() and int(in_sync) > factor:
        reason = f"{MIN_ISR}={in_sync} is more than its {factor} replicas"
        made.remarks.append(f"topic {topic.name} will refuse acks=all, because {reason}: lower the setting")
    return CreateTopic(topic.name, topic.partitions, factor, (), topic.settings)


def _differing(resource: r.Resource, saved: Mapping[str, str], present: Mapping[str, str]) -> Iterator[SetSetting]:
    return (SetSetting(resource, key, present.get(key), value) for key, value in saved.items() if present.get(key) != value)


def _settings(saved: Backup, present: Backup, made: Plan) -> None:
    if _missing(saved.settings, present.settings, "settings", made):
        return
    there = {one.resource: one.settings for one in present.settings or ()}
    brokers = {str(broker.id) for broker in present.brokers}
    for one in saved.settings or ():
        if one.resource.type is r.ResourceType.BROKER and one.name and one.name not in brokers:
            made.remarks.append(f"settings of broker {one.name} are not restored, because it is not in the cluster")
        else:
            made.settings += _differing(one.resource, one.settings, there.get(one.resource, {}))


def _users(saved: Backup, present: Backup, made: Plan) -> None:
    there = {user.name: user.mechanisms for user in present.users or ()}
    for user in saved.users or ():
        missing = [mechanism for mechanism in user.mechanisms if mechanism not in there.get(user.name, {})]
        if missing:
            options = "".join(f" -m {mechanism}" for mechanism in missing)
            made.remarks.append(f"user {user.name}: set a password, which no backup has, with: ottla user add {user.name}{options}")


def _groups(saved: Backup, present: Backup, ranges: Ranges, choices: Choices, made: Plan) -> None:
    if _missing(saved.groups, present.groups, "offsets of groups", made):
        return
    there = {group.name: group for group in present.groups or ()}
    for group in saved.groups or ():
        now = there.get(group.name, SavedGroup(group.name, {}))
        found, refused = _offsets(group, now, ranges, choices)
        if found and now.has_members:
            made.remarks.append(f"group {group.name}: {len(found)} offsets are not restored, because it has members; stop them first")
        else:
            made.offsets += found
        made.remarks += [f"group {group.name}: {why} ({count} partitions)" for why, count in refused.items()]


def _offsets(group: SavedGroup, now: SavedGroup, ranges: Ranges, choices: Choices) -> tuple[list[CommitOffset], dict[str, int]]:
    """The offsets to commit, and the numbers of the others by reason."""
    found: list[CommitOffset] = []
    refused: dict[str, int] = {}
    for topic, offsets in group.offsets.items():
        for number, offset in offsets.items():
            tp = TopicPartition(topic, number)
            before = now.offsets.get(topic, {}).get(number)
            start, end = ranges.get(tp, (0, 0))
            if before is not None and before.offset == offset.offset:
                continue
            if before is not None and not choices.reset_offsets:
                why = f"offsets of {topic} are kept, because they differ: replace them with --reset-offsets"
            elif not start <= offset.offset <= end:
                why = f"offsets of {topic} are outside of its log: restore the records, then use --only groups"
            else:
                found.append(CommitOffset(group.name, tp, None if before is None else before.offset, offset))
                continue
            refused[why] = refused.get(why, 0) + 1
    return found, refused
