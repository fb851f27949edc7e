"""Serves consumer groups of a shard: executes decisions.

Decisions of ``heartbeats``, ``classic_members`` and ``changes`` become records in the shard's log, which change the group; then deadlines
are set, and the response is sent when the records are committed. The first records create a group. A classic group may be converted in the
same batch, and converted back when its last consumer member leaves; see ``migration``.

Only deadlines are lost with the broker: after loading, every member has a whole session timeout, and a member with partitions to revoke a
whole rebalance timeout.
"""

from functools import partial
from typing import Any, Protocol

from ottla.base.ids import TopicId, topic_id_text
from ottla.base.log_levels import GROUP
from ottla.broker.coordinator import Record, Reply, Shard
from ottla.broker.groups.assignment_text import by_id_text
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.classic.responses import join_refused
from ottla.broker.groups.consumer import classic_members, heartbeats, migration
from ottla.broker.groups.consumer.assignors import ASSIGNORS
from ottla.broker.groups.consumer.changes import GroupDecision, GroupSettings, StartTimer, Timer, remove
from ottla.broker.groups.consumer.deadlines import Deadlines
from ottla.broker.groups.consumer.group import EMPTY, SETTLED, ConsumerGroup, TopicSize, said_bytes
from ottla.broker.groups.consumer.reconciliation import STATE_NAMES, UNREVOKED_PARTITIONS, ConsumerGroupMember
from ottla.broker.groups.consumer.record_schemas import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupTargetAssignmentMemberKey,
)
from ottla.broker.groups.consumer.records import group_tombstones
from ottla.broker.groups.group import CONSUMER, CONSUMER_PROTOCOL, GroupClient, PartitionCheck
from ottla.broker.groups.memory_limits import Footprint, check_growth, check_member, refusal
from ottla.broker.groups.offsets import GroupsWithOffsets
from ottla.broker.groups.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitValue
from ottla.broker.metadata.configs import BrokerOptions, GroupOptions, group_options
from ottla.broker.metadata.image import Image
from ottla.broker.timeline import shortened
from ottla.wire import errors
from ottla.wire.declare import ZERO_UUID
from ottla.wire.errors import KafkaError
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse

#: Approximate size of a target in a batch: its keys, and each of its topics.
TARGET_BYTES, TOPIC_BYTES = 160, 24
#: Why a member that missed a deadline is removed, for the log.
MISSED = {
    Timer.SESSION: "sent no heartbeat in its session timeout and is removed from",
    Timer.REBALANCE: "did not revoke partitions in its rebalance timeout and is removed from",
    Timer.JOIN: "did not join again in its rebalance timeout and is removed from",
    Timer.SYNC: "did not send SyncGroup in its rebalance timeout and is removed from",
}
#: Delay before the removal of a member is retried after a failed write.
TRY_AGAIN_MS = 1_000


class ImageTopics:
    """The image's topics, with a version that increases with each change."""

    __slots__ = ("_image", "_names", "version")

    def __init__(self, image: Image) -> None:
        self._image = image
        self.version = 0
        #: Names at a version, shared by all groups.
        self._names: tuple[int, frozenset[str]] = (-1, frozenset())

    def size(self, name: str) -> TopicSize | None:
        topic = self._image.topics.get(name)
        return None if topic is None else TopicSize(topic.topic_id, len(topic.replicas))

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self._image.topics_by_id.get(TopicId(topic_id))
        return None if topic is None else topic.name

    def names(self) -> frozenset[str]:
        if self._names[0] != self.version:
            self._names = (self.version, frozenset(self._image.topics))
        return self._names[1]


class ConsumerGroups(GroupsWithOffsets, Protocol):
    """The groups of one shard, as consumer groups see them."""

    topics: ImageTopics

    def terms(self, group_id: str) -> GroupSettings:
        """Settings of a consumer group."""


class ConsumerGroupService:
    """A served consumer group. Implements ``Group``."""

    kind = CONSUMER

    def __init__(self, groups: ConsumerGroups, group_id: str) -> None:
        self.group_id = group_id
        self._groups = groups
        self._shard: Shard[Any] = groups.shard
        #: State from records; changed only by ``apply``.
        self.group = ConsumerGroup(group_id, Footprint(groups.footprint))
        self._deadlines = Deadlines(groups.shard, self._missed)

    # Implementation of ``Group``.

    @property
    def footprint(self) -> Footprint:
        return self.group.footprint

    @property
    def state_name(self) -> str:
        return self.group.state

    @property
    def protocol_type(self) -> str:
        return CONSUMER_PROTOCOL

    @property
    def member_count(self) -> int:
        return len(self.group.members)

    @property
    def empty(self) -> bool:
        return not self.group.members

    def subscribed(self, topic: str) -> bool:
        return self.group.subscribes_to(topic)

    def expiry_base(self, committed: OffsetCommitValue) -> int:
        """Offsets of topics without subscription expire, with or without members. Source: Kafka's
        ConsumerGroup.offsetExpirationCondition."""
        return committed.commit_timestamp

    def check_commit(self, request: Any, version: int) -> PartitionCheck | None:
        late = self.group.check_commit(request.member_id, request.generation_id_or_member_epoch, version)
        if late is None:
            return None

        def refusal(topic: str, partition: int) -> KafkaError | None:
            known = self._groups.topics.size(topic)
            return late.refusal(known.topic_id if known is not None else ZERO_UUID, partition)

        return refusal

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        self.group.check_fetch(member_id, member_epoch)

    def check_offset_delete(self) -> None:
        """Subscriptions are known, so this is always allowed."""

    def check_delete(self) -> None:
        if self.group.members:
            raise errors.NonEmptyGroup(f"group {self.group_id!r} is {self.group.state}")

    def tombstones(self) -> list[Record]:
        return group_tombstones(self.group)

    def described(self) -> Any:
        raise errors.GroupIdNotFound(f"group {self.group_id!r} is not a group of the classic protocol")

    def loaded(self) -> None:
        """Starts a session for every member, after loading or after a conversion."""
        session_ms = self._groups.terms(self.group_id).session_timeout_ms
        for member in self.group.members.values():
            timeout_ms = session_ms if member.classic is None else member.classic.session_timeout_ms
            self._deadlines.arm(StartTimer(Timer.SESSION, member.member_id, timeout_ms))
            if member.classic is None and member.state == UNREVOKED_PARTITIONS:
                self._deadlines.arm(StartTimer(Timer.REBALANCE, member.member_id, member.rebalance_timeout_ms, member.epoch))

    def topic_changed(self, topic: str) -> None:
        """No-op: the next heartbeat sees the higher version of the topics."""

    def close(self) -> None:
        self._deadlines.clear()
        self.group.footprint.clear()

    # Requests.

    def join(self, request: Any, client: GroupClient, reply: Reply) -> None:
        """JoinGroup. An empty group takes the protocol of the new member."""
        if not self.group.members:
            self._shard.write(self.group_id, self.tombstones())
            self._groups.join(request, client, reply)
            return
        terms = self._groups.terms(self.group_id)
        decision = classic_members.join(
            self.group,
            request,
            reply.version,
            terms,
            client=client,
            new_member_id=self._new_member_id,
        )
        replaced = self.group.static_member(request.group_instance_id)
        last = replaced is not None and migration.replacing_downgrades(self.group, replaced, **self._downgrade_terms())
        response = self.carry_out(decision)
        if last and response.member_id in self.group.members:
            self._become_classic([], rebalances=self.group.state != SETTLED)
        reply.give(response)

    def sync(self, request: Any, reply: Reply) -> None:
        reply.give(self.carry_out(classic_members.sync(self.group, request, self._groups.terms(self.group_id))))

    def heartbeat(self, request: Any) -> None:
        if self.carry_out(classic_members.beat(self.group, request, self._groups.terms(self.group_id))).error_code:
            raise errors.RebalanceInProgress(f"group {self.group_id!r} has changed; join again")

    def leave(self, members: list[Any]) -> list[Any]:
        decision = classic_members.leave(self.group, members, self._groups.terms(self.group_id))
        gone = [answer.member_id for answer in decision.response.members if not answer.error_code]
        return self._part(decision, gone).members  # type: ignore[no-any-return]

    def next_heartbeat(self, request: ConsumerGroupHeartbeatRequest, client: GroupClient) -> ConsumerGroupHeartbeatResponse:
        """A valid ConsumerGroupHeartbeat. Raises: KafkaError."""
        decision = decide(self._groups, self.group, request, client)
        gone = [request.member_id] if request.member_epoch == -1 else []
        return self._part(decision, gone)  # type: ignore[no-any-return]

    def carry_out(self, decision: GroupDecision) -> Any:
        """Writes records, then sets deadlines; returns the response. Raises: KafkaError if nothing could be written."""
        state = self.group.state
        write(self._shard, self.group_id, decision.records)
        return self.written(decision, state)

    def written(self, decision: GroupDecision, state: str) -> Any:
        """Logs a decision whose records are written, and sets deadlines; returns the response. ``state``: the one before."""
        if decision.causes or decision.assigned_epoch >= 0:
            self._log(decision)
        if decision.records:
            note_reconciliation(self._shard, self.group_id, decision.records)
        if self.group.state != state:
            self._note(f"state {self.group.state}", generation=self.group.epoch, members=len(self.group.members))
        self._deadlines.carry_out(decision)
        return decision.response

    def _note(self, what: str, **fields: Any) -> None:
        """Adds a change to the timeline."""
        self._shard.context.timeline.note("group", shortened(self.group_id), what, **fields)

    def _log(self, decision: GroupDecision) -> None:
        """Logs why the group rebalances, and its new assignment."""
        log, members = self._shard.context.log, self.group.members
        for what, member_id in decision.causes:
            member = members.get(member_id)
            host, client_id = ("", "") if member is None else (member.client_host, shortened(member.client_id))
            self._note(what, member=shortened(member_id), generation=self.group.epoch, client_id=client_id, host=host)
            client: dict[str, Any] = {} if member is None else {"client_id": member.client_id, "host": member.client_host}
            log.many(
                GROUP, "", f"member {member_id!r}", f" {what} group {self.group_id!r}", unit="members", epoch=self.group.epoch, **client
            )
        if decision.assigned_epoch >= 0:
            epoch = decision.assigned_epoch
            log.many(GROUP, "new assignment for ", f"group {self.group_id!r}", unit="groups", epoch=epoch, members=len(members))
            self._note("new assignment", generation=epoch, members=len(members))

    def _new_member_id(self) -> str:
        return new_member_id(self._shard)

    # Removal of members.

    def _missed(self, timer: Timer, member_id: str, epoch: int) -> None:
        member = self.group.members.get(member_id)
        if member is None or (timer is Timer.REBALANCE and member.epoch != epoch):
            return
        decision = GroupDecision()
        remove(self.group, self._groups.terms(self.group_id), decision, [member], cause=MISSED[timer])
        try:
            self._part(decision, [member_id])
        except KafkaError:
            self._deadlines.arm(StartTimer(timer, member_id, TRY_AGAIN_MS, epoch))

    def _part(self, decision: GroupDecision, gone: list[str]) -> Any:
        """Executes a decision that removes these members; the group may become classic, and then rebalances."""
        if not migration.downgrades(self.group, gone, **self._downgrade_terms()):
            return self.carry_out(decision)
        self._log(decision)
        self._become_classic(gone, rebalances=True)
        return decision.response

    def _downgrade_terms(self) -> dict[str, Any]:
        options = self._shard.options
        return {"members_max": options.group_max_size, "policy": options.group_consumer_migration_policy}

    def _become_classic(self, gone: list[str], *, rebalances: bool) -> None:
        """Replaces this group with a classic group of the remaining members.

        ``rebalances``: they must join again, also if the coordinator moves before they have. So the record has the next generation, which
        no member has yet. Kafka's has the present one: members that did not hear of the rebalance continue without the other partitions.
        """
        epoch = self.group.epoch
        protocol, members = migration.downgraded(self.group, gone, self._groups.topics)
        value = GroupMetadataValue(
            protocol_type=CONSUMER_PROTOCOL,
            generation=epoch + rebalances,
            protocol=protocol,
            leader=members[0].member_id,
            current_state_timestamp=self._shard.wall_ms,
            members=members,
        )
        self._shard.write(self.group_id, [*self.tombstones(), (GroupMetadataKey(group=self.group_id), value)])
        classic = self._groups.by_id[self.group_id]
        assert isinstance(classic, ClassicGroup), "the records made it classic"
        for member in classic.members:
            classic.sessions.alive(member)
        if rebalances:
            # Until they have joined, members may commit.
            classic.generation = epoch
            classic.rebalance()


def heartbeat(groups: ConsumerGroups, request: ConsumerGroupHeartbeatRequest, client: GroupClient) -> ConsumerGroupHeartbeatResponse:
    """A valid ConsumerGroupHeartbeat to a group of any kind or none. Raises: KafkaError."""
    group = groups.by_id.get(request.group_id)
    if isinstance(group, ConsumerGroupService):
        return group.next_heartbeat(request, client)
    if request.member_epoch != 0:
        raise errors.UnknownMemberId(f"group {request.group_id!r} has no members of the new protocol")
    draft = ConsumerGroup(request.group_id)
    before: list[Record] = []
    if isinstance(group, ClassicGroup) and not group.empty:
        draft, before = _upgraded(groups, group)
    elif group is not None:
        before = group.tombstones()
    decision = decide(groups, draft, request, client)
    if isinstance(group, ClassicGroup):
        _dismiss(group)
    if before:
        # One batch or nothing: a group has one kind. Source: Kafka's CoordinatorResult.isAtomic.
        groups.shard.write(request.group_id, [*before, *decision.records])
    else:
        write(groups.shard, request.group_id, decision.records)
    made = groups.by_id[request.group_id]
    assert isinstance(made, ConsumerGroupService), "the records made it one of the new protocol"
    made.group.assigned_ms, made.group.changed_ms, made.group.matched = draft.assigned_ms, draft.changed_ms, draft.matched
    made.loaded()
    return made.written(decision, EMPTY)  # type: ignore[no-any-return]


def write(shard: Shard[Any], group_id: str, records: list[Record]) -> None:
    """Writes a decision as one batch if it fits; a target assignment for very many members needs several. Raises: KafkaError.

    After part of a target assignment the group epoch is ahead of the assignment epoch, whose record is the last: an incomplete target
    assignment is computed again.
    """
    room = shard.leader.options.max_message_bytes // 2
    batch: list[Record] = []
    size = 0
    for record in records:
        key, value = record
        if isinstance(key, ConsumerGroupTargetAssignmentMemberKey) and value is not None:
            about = TARGET_BYTES + sum(TOPIC_BYTES + 4 * len(each.partitions) for each in value.topic_partitions)
            if batch and size + about > room:
                shard.write(group_id, batch)
                batch, size = [], 0
            size += about
        batch.append(record)
    shard.write(group_id, batch)


def note_reconciliation(shard: Shard[Any], group_id: str, records: list[Record]) -> None:
    """Adds to the timeline what each member has, and what it must revoke first."""
    for key, value in records:
        if isinstance(key, ConsumerGroupCurrentMemberAssignmentKey) and isinstance(value, ConsumerGroupCurrentMemberAssignmentValue):
            shard.context.timeline.note(
                "group",
                shortened(group_id),
                STATE_NAMES.get(value.state, str(value.state)).lower().replace("_", " "),
                member=shortened(key.member_id),
                generation=value.member_epoch,
                partitions=by_id_text(shard.image, {one.topic_id: one.partitions for one in value.assigned_partitions}),
                revoking=by_id_text(shard.image, {one.topic_id: one.partitions for one in value.partitions_pending_revocation}),
            )


def decide(groups: ConsumerGroups, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, client: GroupClient) -> GroupDecision:
    """Decides a heartbeat with the present settings."""
    return heartbeats.heartbeat(
        group,
        request,
        groups.terms(group.group_id),
        client=client,
        new_member_id=lambda: new_member_id(groups.shard),
    )


def _upgraded(groups: ConsumerGroups, group: ClassicGroup) -> tuple[ConsumerGroup, list[Record]]:
    """The consumer group made from a classic one. Members in their first join are omitted and join again, except static members."""
    options = groups.shard.options
    if not migration.may_upgrade(options.group_consumer_migration_policy):
        raise errors.GroupIdNotFound(
            f"group {group.group_id!r} is of the classic protocol, and group.consumer.migration.policy keeps it so"
        )
    if group.protocol_type != CONSUMER_PROTOCOL:
        raise errors.GroupIdNotFound(f"group {group.group_id!r} is not a group of consumers")
    if len(group.members) > options.group_consumer_max_size:
        raise errors.GroupIdNotFound(f"group {group.group_id!r} has more members than group.consumer.max.size")
    members = [member for member in group.members if not member.new or member.instance_id is not None]
    draft, records = migration.upgraded(group.group_id, group.generation, group.protocol, members, groups.topics)
    return draft, [*group.tombstones(), *records]


def _dismiss(group: ClassicGroup) -> None:
    """Refuses all waiting requests, because the group is about to be converted.

    Clients handle MEMBER_ID_REQUIRED with their present id silently; some report REBALANCE_IN_PROGRESS in a JoinGroup response to users.
    Difference from Kafka, which sends the latter.
    """
    again = errors.RebalanceInProgress(f"group {group.group_id!r} changes its protocol; join again")
    for member in group.members:
        if member.joining is not None:
            joining, first = member.joining, member.joining.version < classic_members.ID_REQUIRED_SINCE
            group.members.await_join(member, None)
            joining.give(join_refused(joining.version, again if first else errors.MemberIdRequired(), member.member_id))
        group.answer_sync(member, again)


def terms(shard: Shard[Any], topics: ImageTopics, group_id: str) -> GroupSettings:
    """Settings of a group in effect: its own over the broker's."""
    options = shard.options
    own: GroupOptions = group_options(options, shard.image, group_id)
    return GroupSettings(
        now_ms=shard.now_ms,
        wall_ms=shard.wall_ms,
        topics=topics,
        assignors=assignors(options),
        heartbeat_interval_ms=own.consumer_heartbeat_interval_ms,
        unsettled_interval_ms=options.group_consumer_unsettled_interval_ms,
        session_timeout_ms=own.consumer_session_timeout_ms,
        assignment_interval_ms=own.consumer_assignment_interval_ms,
        members_max=options.group_consumer_max_size,
        check_bytes=partial(_check_bytes, shard.machine),
    )


def _check_bytes(groups: ConsumerGroups, group: ConsumerGroup, before: ConsumerGroupMember | None, after: ConsumerGroupMember) -> None:
    """See ``memory_limits.py``. Raises: InvalidRequest, GroupMaxSizeReached."""
    size = said_bytes(after)
    check_member(groups, group.group_id, size)
    check_growth(groups, group.group_id, group.footprint.bytes, size - (said_bytes(before) if before is not None else 0))
    if after.pattern is None or after.pattern in group.patterns:
        return
    alone = before is not None and before.pattern is not None and group.patterns[before.pattern] == 1
    limit = groups.shard.options.group_patterns_max
    if len(group.patterns) - alone >= limit:
        raise refusal(
            groups,
            errors.GroupMaxSizeReached(
                f"members of group {group.group_id!r} subscribe with {len(group.patterns)} different regular expressions; "
                f"ottla.group.consumer.patterns.max is {limit}"
            ),
        )


def assignors(options: BrokerOptions) -> tuple[str, ...]:
    """Allowed assignors; an empty list means all."""
    return options.group_consumer_assignors or tuple(ASSIGNORS)


def new_member_id(shard: Shard[Any]) -> str:
    """An id in Kafka's form: 128 random bits in 22 characters."""
    return topic_id_text(shard.rng.randbytes(16))


def apply(groups: ConsumerGroups, key: Any, value: Any) -> None:
    """Applies a record of a consumer group: creates, changes or deletes it."""
    group = groups.by_id.get(key.group_id)
    if not isinstance(group, ConsumerGroupService):
        if value is None:
            return
        if group is not None:
            group.close()
        group = groups.by_id[key.group_id] = ConsumerGroupService(groups, key.group_id)
    group.group.apply(key, value)
    if group.group.gone:
        group.close()
        del groups.by_id[key.group_id]
        if groups.offsets.holds(key.group_id):
            groups.by_id[key.group_id] = ClassicGroup(groups, key.group_id)
