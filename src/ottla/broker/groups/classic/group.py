"""A group of the classic protocol: members join, the group leader assigns partitions, members get their assignment.

::

    JoinGroup      members ──▶ wait for all members, up to the longest rebalance timeout ──▶ generation n+1, a leader, a protocol
    SyncGroup      the leader sends the assignment ──▶ one record ──▶ each member gets its part
    Heartbeat      extends the member's session; REBALANCE_IN_PROGRESS makes it join again

``states.py`` has the states and transitions. Each generation is one record: generation, protocol, leader, members, assignments, when the
group became empty. ``take`` applies it, both when it was written and when it is loaded. Waiting requests and deadlines are lost with the
broker: then all members of the last generation get a session timeout, and clients repeat their requests.

Source: Kafka's GroupMetadataManager and ClassicGroup; KIP-345 (static members), KIP-394 (member ids first), KIP-814 (skipped assignment).
Differences: a group that no member joined completely, and without offsets, has no record; a member that is removed while its SyncGroup
waits gets an error.
"""

from typing import Any

from ottla.base.log_levels import GROUP
from ottla.base.units import MINUTE_MS, KiB
from ottla.broker.coordinator import Record, Reply
from ottla.broker.delayed import DelayedOperation
from ottla.broker.groups.assignment_text import embedded_text
from ottla.broker.groups.classic.members import GroupMember, GroupMembers, PendingMembers, Protocols, Sessions, new_member_id, said_bytes
from ottla.broker.groups.classic.responses import (
    answer_joins,
    answer_syncs,
    described,
    generation_record,
    given,
    join_refused,
    joined,
    topics_read,
)
from ottla.broker.groups.classic.states import GroupState, check_transition
from ottla.broker.groups.group import CLASSIC, CONSUMER_PROTOCOL, GroupClient, GroupTable
from ottla.broker.groups.memory_limits import GROUP_BYTES, Footprint, check_growth, check_member, text_bytes
from ottla.broker.groups.records import GroupMetadataKey, GroupMetadataValue, OffsetCommitValue
from ottla.broker.timeline import shortened
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.describe_groups import DescribedGroup
from ottla.wire.messages.join_group import JoinGroupRequest
from ottla.wire.messages.leave_group import MemberIdentity, MemberResponse
from ottla.wire.messages.offset_commit import OffsetCommitRequest
from ottla.wire.messages.sync_group import SyncGroupRequest

EMPTY, PREPARING, COMPLETING, STABLE, DEAD = GroupState
#: A member without an id cannot send heartbeats, and the broken connection of a waiting request is not visible here: it gets this
#: time. Source: Kafka's group.new.member.join.timeout.
NEW_MEMBER_MS = 5 * MINUTE_MS
MEMBER_ID_FIRST_SINCE = 4
SKIP_ASSIGNMENT_SINCE = 9
#: Minimum interval of checks in a join phase in which all members are static and absent.
ABSENT_WAIT_MS = 100
#: Characters of a reason to leave in the log.
REASON_CHARS_MAX = 255
#: Assignments of a group up to this size are decoded for the timeline: below a millisecond.
ASSIGNMENT_BYTES_SHOWN = 16 * KiB


class ClassicGroup:
    """A classic group. Implements ``Group``."""

    kind = CLASSIC

    def __init__(self, groups: GroupTable, group_id: str) -> None:
        self.group_id = group_id
        self._groups = groups
        self._shard = groups.shard
        self.state = EMPTY
        #: Whether this rebalance is the first since the group was empty, which waits for more members.
        self._initial = False
        self._newcomers = False
        self.generation = 0
        #: Of the last record. It is above the present one only while a group that was one of consumers rebalances.
        self._recorded_generation = 0
        self.protocol_type: str | None = None
        self.protocol: str | None = None
        self.leader: str | None = None
        #: Wall clock time of the last record; None before the first, and in records of old Kafka versions.
        self.since_ms: int | None = None
        #: Memory of the group, its members and pending member ids; zero for a group with offsets only, which count separately.
        self.footprint = Footprint(groups.footprint, own=GROUP_BYTES + text_bytes(group_id))
        self.members = GroupMembers(self.footprint)
        self.sessions = Sessions(self._shard, self._lost)
        self.pending = PendingMembers(self._shard, self.footprint, self._pending_due)
        #: Members of this generation that have not sent SyncGroup.
        self._unsynced: dict[str, None] = {}
        self._join_timer: DelayedOperation | None = None
        self._sync_timer: DelayedOperation | None = None
        #: Whether the log has a record of the group.
        self.recorded = False
        self._topics: tuple[set[str] | None] | None = None

    # Implementation of ``Group``.

    @property
    def state_name(self) -> str:
        return self.state.value

    @property
    def member_count(self) -> int:
        return len(self.members)

    @property
    def empty(self) -> bool:
        return self.state is EMPTY

    @property
    def unused(self) -> bool:
        """Whether the group can be dropped, except for its offsets."""
        return self.state is EMPTY and not self.pending and not self.recorded

    def subscribed(self, topic: str) -> bool:
        """Members' subscriptions; if one cannot be parsed, the member may read any topic."""
        if self._topics is None:
            self._topics = (topics_read(self),)
        topics = self._topics[0]
        return self.protocol_type == CONSUMER_PROTOCOL if topics is None else topic in topics

    def expiry_base(self, committed: OffsetCommitValue) -> int | None:
        """Source: Kafka's ClassicGroup.offsetExpirationCondition."""
        if self.protocol_type is None:
            return committed.commit_timestamp
        if self.state is EMPTY:
            return committed.commit_timestamp if self.since_ms is None else self.since_ms
        if self.protocol_type == CONSUMER_PROTOCOL and self.state is STABLE:
            self.subscribed("")
            if self._topics is not None and self._topics[0] is not None:
                return committed.commit_timestamp
        return None

    def check_commit(self, request: OffsetCommitRequest, version: int) -> None:
        generation = request.generation_id_or_member_epoch
        if generation < 0 and self.state is EMPTY:
            return
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise errors.UnknownMemberId(f"group {self.group_id!r} has members; only they may commit")
        member = self.members.find(request.member_id, request.group_instance_id)
        self._check_generation(generation)
        if self.state is COMPLETING:
            raise errors.RebalanceInProgress(f"group {self.group_id!r} awaits its assignment")
        self.sessions.alive(member)

    def check_fetch(self, member_id: str | None, member_epoch: int) -> None:
        """Every client may fetch."""

    def check_offset_delete(self) -> None:
        if self.state is not EMPTY and self.protocol_type != CONSUMER_PROTOCOL:
            raise errors.NonEmptyGroup(f"group {self.group_id!r} has members whose topics are not known")

    def check_delete(self) -> None:
        if self.state is not EMPTY:
            raise errors.NonEmptyGroup(f"group {self.group_id!r} is {self.state.value}")

    def tombstones(self) -> list[Record]:
        return [(GroupMetadataKey(group=self.group_id), None)]

    def described(self) -> DescribedGroup:
        return described(self)

    # Joining.

    def join(self, request: JoinGroupRequest, client: GroupClient, reply: Reply) -> None:
        protocols: Protocols = tuple({said.name: said.metadata for said in request.protocols}.items())
        if not self._room_for(request.member_id):
            if request.member_id in self.members.by_id:
                self._remove(self.members.by_id[request.member_id])
            reply.give(join_refused(reply.version, errors.GroupMaxSizeReached(), ""))
            return
        self._check_protocols(request.protocol_type, protocols)
        self._check_join_size(request, client, protocols)
        if request.member_id:
            self._join_again(request, client, protocols, reply)
        else:
            self._join_first(request, client, protocols, reply)

    def _room_for(self, member_id: str) -> bool:
        """During a join phase, members that have joined count, so that a group that is too large refuses the last ones."""
        size_max, member = self._shard.options.group_max_size, self.members.by_id.get(member_id)
        if self.state is EMPTY:
            return True
        if self.state is PREPARING:
            return (member is not None and member.joining is not None) or self.members.joining < size_max
        return member is not None or len(self.members) < size_max

    def _check_protocols(self, protocol_type: str, protocols: Protocols) -> None:
        if self.state is EMPTY:
            if not protocol_type or not protocols:
                raise errors.InconsistentGroupProtocol("a member says its type of protocol, and at least one protocol")
        elif protocol_type != self.protocol_type or not self.members.agree(protocols):
            raise errors.InconsistentGroupProtocol(f"group {self.group_id!r} of type {self.protocol_type!r} knows none of these protocols")

    def _join_first(self, request: JoinGroupRequest, client: GroupClient, protocols: Protocols, reply: Reply) -> None:
        instance_id = request.group_instance_id
        member_id = new_member_id(client.client_id if instance_id is None else instance_id, self._shard.rng)
        assert member_id not in self.members.by_id and member_id not in self.pending, "a new member id is new"
        if instance_id is None and reply.version >= MEMBER_ID_FIRST_SINCE:
            self.pending.add(member_id, request.session_timeout_ms)
            reply.give(join_refused(reply.version, errors.MemberIdRequired(), member_id))
            return
        present = self.members.by_instance.get(instance_id) if instance_id is not None else None
        if present is None:
            self._add(member_id, request, client, protocols, reply)
        else:
            self._rejoin(self.members.by_id[present], member_id, request, protocols, reply)

    def _check_join_size(self, request: JoinGroupRequest, client: GroupClient, protocols: Protocols) -> None:
        """Raises: InvalidRequest, GroupMaxSizeReached; see ``memory_limits.py``."""
        size = said_bytes(request.member_id, request.group_instance_id, client, protocols)
        check_member(self._groups, self.group_id, size)
        known = self.members.by_instance.get(request.group_instance_id or "", request.member_id)
        member = self.members.by_id.get(known)
        before = 0 if member is None else member.size_bytes - len(member.assignment)
        check_growth(self._groups, self.group_id, self.footprint.bytes, size - before)

    def _rejoin(self, member: GroupMember, member_id: str, request: JoinGroupRequest, protocols: Protocols, reply: Reply) -> None:
        """Rejoin of a static member, which has its instance id but lost its member id.

        It gets a new member id and keeps its place. Requests with the old id are fenced. In a stable group with an unchanged protocol no
        rebalance is needed: the assignment is written for the new id. A leader must not assign again: from JoinGroup 9 on the response
        says so; before, it names the former leader id. Source: KIP-345, KIP-814.

        Raises: KafkaError if the new id could not be written; the old one stays valid then.
        """
        former, leader = member.member_id, self.leader
        fenced = errors.FencedInstanceId(f"{member.instance_id!r} has come back as another member")
        if member.joining is not None:
            member.joining.give(join_refused(member.joining.version, fenced, former))
            self.members.await_join(member, None)
        self.answer_sync(member, fenced)
        before = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        self.rename(member, member_id)
        self.update(member, request, protocols, None)
        self.sessions.alive(member)
        if self.state is not STABLE or self.members.elected_protocol() != self.protocol:
            self.members.await_join(member, reply)
            self.rebalance()
            return
        try:
            self.write_generation({each.member_id: each.assignment for each in self.members})
        except KafkaError:
            self.members.set_protocols(member, before[0])
            member.rebalance_timeout_ms, member.session_timeout_ms = before[1:]
            self.rename(member, former)
            raise
        if reply.version >= SKIP_ASSIGNMENT_SINCE:
            reply.give(joined(self, member, skip_assignment=self.leader == member_id))
        else:
            reply.give(joined(self, member, leader=leader))

    def _add(self, member_id: str, request: JoinGroupRequest, client: GroupClient, protocols: Protocols, reply: Reply) -> None:
        member = GroupMember(
            member_id,
            instance_id=request.group_instance_id,
            client=client,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=protocols,
        )
        member.new, member.joining = True, reply
        if not self.members:
            self.protocol_type = request.protocol_type
            self.leader = None
        self.leader = self.leader or member_id
        self._newcomers = self._newcomers or (self.state is PREPARING and self._initial)
        self.members.add(member)
        self._log_member("joined", member, reason=request.reason)
        self.pending.discard(member_id)
        self.sessions.alive(member, NEW_MEMBER_MS)
        self.rebalance()

    def _join_again(self, request: JoinGroupRequest, client: GroupClient, protocols: Protocols, reply: Reply) -> None:
        if request.member_id in self.pending:
            self._add(request.member_id, request, client, protocols, reply)
            return
        member = self.members.find(request.member_id, request.group_instance_id)
        same = member.protocols == protocols
        if (self.state is COMPLETING and same) or (self.state is STABLE and same and member.member_id != self.leader):
            # The response was lost, or a follower joins again: nothing has changed.
            reply.give(joined(self, member))
        elif self.state is EMPTY:
            raise errors.UnknownMemberId(f"group {self.group_id!r} is empty")
        else:
            if self.state is not PREPARING:
                self._log_member("starts a rebalance of" if same else "changed its subscription in", member, reason=request.reason)
            self.update(member, request, protocols, reply)
            self.rebalance()

    def update(self, member: GroupMember, request: JoinGroupRequest, protocols: Protocols, reply: Reply | None) -> None:
        """Adopts a member's JoinGroup; ``reply`` replaces the waiting request."""
        if member.joining is not None:
            member.joining.give(join_refused(member.joining.version, errors.RebalanceInProgress(), member.member_id))
        if reply is not None:
            self._note("rejoined", member=shortened(member.member_id), generation=self.generation)
        self.members.set_protocols(member, protocols)
        self.members.await_join(member, reply)
        member.rebalance_timeout_ms, member.session_timeout_ms = request.rebalance_timeout_ms, request.session_timeout_ms

    # Join phase.

    def rebalance(self) -> None:
        """Members joined, left or changed: starts a join phase, or checks whether all members have joined."""
        if self.state is not PREPARING:
            self._prepare()
        elif not self._initial:
            self._complete_if_all_joined()

    def _prepare(self) -> None:
        if self.state is COMPLETING:
            for member in self.members:
                self.members.assign(member, b"")
                self.answer_sync(member, errors.RebalanceInProgress(f"group {self.group_id!r} has changed"))
        self._end_sync_phase()
        self._initial = self.state is EMPTY
        self._note("rebalance started", generation=self.generation, members=len(self.members))
        self._move(PREPARING)
        if self._initial:
            delay_ms = self._shard.options.group_initial_rebalance_delay_ms
            self._newcomers = False
            self._wait_longer(delay_ms, max(self.members.rebalance_timeout_ms() - delay_ms, 0))
        elif not self._complete_if_all_joined():
            self._await_join(self.members.rebalance_timeout_ms())

    def _wait_longer(self, delay_ms: int, remaining_ms: int) -> None:
        """Members of a new group seldom arrive alone: waits longer as long as more join, within the rebalance timeout."""

        def over() -> None:
            if self._newcomers and remaining_ms:
                self._newcomers = False
                longest_ms = self._shard.options.group_initial_rebalance_delay_ms
                self._wait_longer(min(longest_ms, remaining_ms), max(remaining_ms - delay_ms, 0))
            else:
                self._complete_join()

        self._await_join(delay_ms, over)

    def _await_join(self, delay_ms: int, over: Any = None) -> None:
        self._shard.cancel(self._join_timer)
        self._join_timer = self._shard.after(delay_ms, over or self._complete_join)

    def _complete_if_all_joined(self) -> bool:
        if self.state is not PREPARING or self.pending or self.members.joining < len(self.members):
            return False
        self._complete_join()
        return True

    def _complete_join(self) -> None:
        """The join phase ends: members that joined form the next generation. Absent static members keep their place."""
        self._shard.cancel(self._join_timer)
        for member in [absent for absent in self.members if absent.joining is None and absent.instance_id is None]:
            self._log_member("did not join the rebalance in time and is removed from", member, timeout_ms=member.rebalance_timeout_ms)
            self._remove(member)
        if not self.members:
            self._write_empty()
            return
        present = self.members.by_id.get(self.leader or "")
        if present is None or present.joining is None:
            leader = next((member.member_id for member in self.members if member.joining is not None), None)
            if leader is None:
                # Only static members, and none has joined: wait for their sessions.
                # A rebalance timeout of 0 would end the wait at once, for ever.
                self._await_join(max(self.members.rebalance_timeout_ms(), ABSENT_WAIT_MS))
                return
            self.leader = leader
        self.generation = self._next_generation
        self.protocol = self.members.elected_protocol()
        self._topics = None
        self._log_generation()
        self._note(
            "generation", generation=self.generation, members=len(self.members), leader=shortened(self.leader), protocol=self.protocol
        )
        self._move(COMPLETING)
        self._sync_timer = self._shard.after(self.members.rebalance_timeout_ms(), self._sync_due)
        for member in self.members:
            self._unsynced[member.member_id] = None
            member.new = False
            self.sessions.alive(member)
        answer_joins(self, self._shard)

    def _log_generation(self) -> None:
        self._shard.context.log.many(
            GROUP,
            "new generation of ",
            f"group {self.group_id!r}",
            unit="groups",
            generation=self.generation,
            members=len(self.members),
            leader=self.leader,
            protocol=self.protocol,
        )

    def _note(self, what: str, **fields: Any) -> None:
        """Adds a change to the timeline."""
        self._shard.context.timeline.note("group", shortened(self.group_id), what, **fields)

    def _log_member(self, what: str, member: GroupMember, **fields: Any) -> None:
        """Logs why the group rebalances."""
        reason = {name: shortened(value) if isinstance(value, str) else value for name, value in fields.items() if value not in (None, "")}
        self._note(
            what,
            member=shortened(member.member_id),
            client_id=shortened(member.client.client_id),
            host=member.client.host,
            generation=self.generation,
            **reason,
        )
        said = {name: value for name, value in fields.items() if value not in (None, "")}
        client = member.client
        said.update(member=shortened(member.member_id), client_id=client.client_id, host=client.host, generation=self.generation)
        self._shard.context.log.many(GROUP, "", f"member {member.member_id!r}", f" {what} group {self.group_id!r}", unit="members", **said)

    @property
    def _next_generation(self) -> int:
        return max(self.generation, self._recorded_generation) + 1

    def _write_empty(self) -> None:
        generation = self.generation
        try:
            self.write_generation({}, generation=self._next_generation)
        except KafkaError:
            # The last generation is in the log; its members are gone, and after a restart their sessions expire: then it is logged.
            self._move(EMPTY)
            return
        self._shard.context.log.many(GROUP, "no members are left in ", f"group {self.group_id!r}", unit="groups", generation=generation)
        self._note("empty", generation=self.generation)

    # Sync phase.

    def sync(self, request: SyncGroupRequest, reply: Reply) -> None:
        member = self.members.find(request.member_id, request.group_instance_id)
        self._check_generation(request.generation_id)
        if request.protocol_type not in (None, self.protocol_type) or request.protocol_name not in (None, self.protocol):
            raise errors.InconsistentGroupProtocol(f"group {self.group_id!r} goes by {self.protocol_type!r}, {self.protocol!r}")
        if self.state is PREPARING:
            raise errors.RebalanceInProgress(f"group {self.group_id!r} is meeting; join again")
        if member.member_id in self._unsynced:
            self._note("synced", member=shortened(member.member_id), generation=self.generation)
        self._synced(member.member_id)
        if self.state is STABLE:
            reply.give(given(self, member))
            return
        self.answer_sync(member, errors.RebalanceInProgress("the member has asked again"))
        member.syncing = reply
        assigned = {each.member_id: each.assignment for each in request.assignments}
        # The waiting request would keep the assignments in memory.
        request.assignments = []
        if member.member_id != self.leader:
            return
        try:
            self._check_assignment_size(assigned)
            self.write_generation({each.member_id: assigned.get(each.member_id, b"") for each in self.members})
        except KafkaError as error:
            for each in self.members:
                self.answer_sync(each, error)
            self.rebalance()
            return
        self._note_assignment(assigned)
        answer_syncs(self, self.sessions, self._shard)

    def _note_assignment(self, assigned: dict[str, bytes]) -> None:
        """Adds to the timeline that the group is stable, and what its members got unless that is much to decode."""
        if sum(map(len, assigned.values())) <= ASSIGNMENT_BYTES_SHOWN and self.protocol_type == CONSUMER_PROTOCOL:
            for member in self.members:
                found = embedded_text(assigned.get(member.member_id, b""))
                self._note("assigned", member=shortened(member.member_id), generation=self.generation, partitions=found)
        self._note("stable", generation=self.generation, members=len(self.members))

    def _check_assignment_size(self, assigned: dict[str, bytes]) -> None:
        """The leader's assignment, by member id. Raises: InvalidRequest, GroupMaxSizeReached; see ``memory_limits.py``."""
        growth = 0
        for member in self.members:
            more = len(assigned.get(member.member_id, b"")) - len(member.assignment)
            if more > 0:
                check_member(self._groups, self.group_id, member.size_bytes + more)
            growth += more
        check_growth(self._groups, self.group_id, self.footprint.bytes, growth)

    def answer_sync(self, member: GroupMember, error: KafkaError) -> None:
        """Refuses a member that waits for its assignment."""
        if member.syncing is not None:
            syncing, member.syncing = member.syncing, None
            syncing.refuse(error)
            self.sessions.alive(member)

    def _synced(self, member_id: str) -> None:
        self._unsynced.pop(member_id, None)
        if not self._unsynced:
            self._shard.cancel(self._sync_timer)

    def _end_sync_phase(self) -> None:
        self._unsynced.clear()
        self._shard.cancel(self._sync_timer)

    def _sync_due(self) -> None:
        """Members did not send SyncGroup in their generation: removes them."""
        for member_id in list(self._unsynced):
            member = self.members.by_id[member_id]
            self._log_member("did not send SyncGroup in time and is removed from", member, timeout_ms=member.rebalance_timeout_ms)
            self._remove(member)
        self.rebalance()

    # Heartbeats and leaving.

    def heartbeat(self, request: Any) -> None:
        member = self.members.find(request.member_id, request.group_instance_id)
        self._check_generation(request.generation_id)
        self.sessions.alive(member)
        if self.state is PREPARING:
            raise errors.RebalanceInProgress(f"group {self.group_id!r} is meeting; join again")

    def leave(self, members: list[MemberIdentity]) -> list[MemberResponse]:
        answers, left = [], False
        for named in members:
            answer = MemberResponse(member_id=named.member_id, group_instance_id=named.group_instance_id)
            try:
                self._leave(named)
                left = True
            except KafkaError as error:
                answer.error_code = error.code
            answers.append(answer)
        if left:
            self._after_leaving()
        return answers

    def _leave(self, named: MemberIdentity) -> None:
        if named.member_id in self.pending:
            self.pending.discard(named.member_id)
            return
        member_id = named.member_id
        if not member_id and named.group_instance_id is not None:
            # An operator removes a static member without its present member id.
            member_id = self.members.by_instance.get(named.group_instance_id, "")
        member = self.members.find(member_id, named.group_instance_id)
        self._log_member("left", member, reason=(named.reason or "")[:REASON_CHARS_MAX])
        self._remove(member)

    def _after_leaving(self) -> None:
        if self.state is EMPTY:
            self._groups.forget_unused(self)
        else:
            self.rebalance()

    def _remove(self, member: GroupMember) -> None:
        """Removes a member. The caller starts the rebalance."""
        gone = errors.UnknownMemberId(f"{member.member_id} was removed from group {self.group_id!r}")
        self.members.remove(member)
        self._unsynced.pop(member.member_id, None)
        if self.leader == member.member_id:
            self.leader = next(iter(self.members.by_id), None)
        if member.joining is not None:
            member.joining.give(join_refused(member.joining.version, gone, ""))
        if member.syncing is not None:
            member.syncing.refuse(gone)
        member.joining = member.syncing = None
        self.sessions.end(member)

    def _pending_due(self) -> None:
        if self.state is EMPTY:
            self._groups.forget_unused(self)
        elif self.state is PREPARING:
            self.rebalance()

    def _lost(self, member: GroupMember) -> None:
        """The member's session expired."""
        self._log_member("sent no heartbeat in its session timeout and is removed from", member, timeout_ms=member.session_timeout_ms)
        self._remove(member)
        self.rebalance()

    def _check_generation(self, generation: int) -> None:
        if generation != self.generation:
            raise errors.IllegalGeneration(f"group {self.group_id!r} is at generation {self.generation}, not {generation}")

    # Records and state.

    def rename(self, member: GroupMember, member_id: str) -> None:
        """A static member gets another member id."""
        if self.leader == member.member_id:
            self.leader = member_id
        if member.member_id in self._unsynced:
            del self._unsynced[member.member_id]
            self._unsynced[member_id] = None
        self.members.rename(member, member_id)

    def _move(self, state: GroupState) -> None:
        check_transition(self.state, state, f"group {self.group_id!r} at generation {self.generation} with {len(self.members)} members")
        self.state = state

    def write_generation(self, assignments: dict[str, bytes], *, generation: int | None = None) -> None:
        """Writes the generation with its assignments; ``take`` applies it. Raises: KafkaError if nothing has changed."""
        generation = self.generation if generation is None else generation
        value = generation_record(self, assignments, generation=generation, wall_ms=self._shard.wall_ms)
        self._shard.write(self.group_id, [(GroupMetadataKey(group=self.group_id), value)])

    def take(self, value: GroupMetadataValue) -> None:
        """Applies a record. Known members keep their state except the assignment: the rest came from their requests. While a log is loaded,
        members are created from the record alone.
        """
        self.footprint.add(0)
        state = STABLE if value.members else EMPTY
        made_from_record = self._groups.loading or (self.state is EMPTY and not self.recorded)
        if state is not self.state and not made_from_record:
            self._move(state)
        self.state, self.recorded = state, True
        self.generation, self.protocol, self.leader = value.generation, value.protocol, value.leader
        self._recorded_generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.since_ms = None if value.current_state_timestamp == -1 else value.current_state_timestamp
        self._topics = None
        named = () if self._groups.loading else {said.member_id for said in value.members}
        for gone in [member for member in self.members if member.member_id not in named]:
            self.members.remove(gone)
        for said in value.members:
            member = self.members.by_id.get(said.member_id)
            if member is None:
                self.members.add(GroupMember.recorded(said, value.protocol))
            else:
                self.members.assign(member, said.assignment)

    def loaded(self) -> None:
        for member in self.members:
            self.sessions.alive(member)
        if len(self.members) > self._shard.options.group_max_size:
            self._prepare()

    def topic_changed(self, topic: str) -> None:
        """No-op: clients detect changed topics."""

    def close(self) -> None:
        self._shard.cancel(self._join_timer)
        self._end_sync_phase()
        self.pending.clear()
        for member in list(self.members):
            self._remove(member)
        self.footprint.clear()
        self.state = DEAD
