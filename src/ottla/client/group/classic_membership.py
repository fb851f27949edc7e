"""Membership in the classic protocol: join, sync, heartbeats, rebalances. Pure.

            step, polled                joined                    synced
    OUT ------------------> JOINING ------------> ASSIGNING? ---> SYNCING ------> STABLE
     ^                         ^                  (the leader)                      |
     |  id or generation lost  |   REBALANCE_IN_PROGRESS, subscription, partitions  |
     +-------------------------+----------------------------------------------------+

A member joins when the user polls. Before it rejoins, it revokes partitions in the user's poll (`AssignmentChange`): all of them if any
assignor is eager; with cooperative ones only those it no longer subscribes to, and after the sync those that move, and then it joins again
to release them (KIP-429). A static leader that restarted does not know of withheld partitions, so it triggers another rebalance after all
members had time to revoke. Heartbeats continue meanwhile.

    response                                        | action
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE      | look up the coordinator; nothing is lost
    COORDINATOR_LOAD_IN_PROGRESS, a broken link     | retry after a backoff
    REBALANCE_IN_PROGRESS                           | join again
    MEMBER_ID_REQUIRED                              | join again at once with the given id (KIP-394)
    ILLEGAL_GENERATION                              | partitions are lost; join again
    UNKNOWN_MEMBER_ID                               | partitions and id are lost; join again
    FENCED_INSTANCE_ID                              | another client has the instance id: every poll raises this error
    any other                                       | the poll raises it; the next poll retries

If the user does not poll for `max_poll_interval_ms`, the member leaves, so that other members get its partitions, and joins again with the
next poll. A static member does not leave: it stops heartbeats and keeps its partitions until its session expires (KIP-345).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.group.assignor import Assignment, Assignor, Member, without_moving
from ottla.client.group.coordinator_search import (
    COORDINATOR_LOADING,
    COORDINATOR_MOVED,
    AssignmentChange,
    AssignmentChangeKind,
    CoordinatorRequest,
    group_error,
)
from ottla.client.group.membership_state import PolledMembership
from ottla.client.group.messages import (
    LEAVE_LIST_SINCE,
    heartbeat_request,
    join_request,
    leave_request,
    member_told,
    protocol,
    sync_request,
)
from ottla.client.options import ConsumerOptions
from ottla.wire import errors
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import KafkaError
from ottla.wire.messages import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded

NO_GENERATION = -1
#: A join is answered when all members have joined or at the rebalance timeout; the response may take this much longer.
JOIN_GRACE_MS = 5000
#: First versions with instance ids.
JOIN_INSTANCE_SINCE, SYNC_INSTANCE_SINCE, HEARTBEAT_INSTANCE_SINCE = 5, 3, 3
UNKNOWN_MEMBER, ILLEGAL_GENERATION = errors.UnknownMemberId.code, errors.IllegalGeneration.code


class Phase(Enum):
    """State of the member; see the module's diagram."""

    OUT = "out"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    STABLE = "stable"


class Membership(PolledMembership):
    """A classic member. `now_ms` is monotonic; `count` returns a topic's partition count, 0 for a missing topic, None while it is
    unknown.
    """

    def __init__(self, options: ConsumerOptions, assignors: list[Assignor], rng: Random, count: Callable[[str], int | None]) -> None:
        super().__init__(options, rng)
        self._assignors = {one.name: one for one in assignors}
        self._cooperative = all(one.cooperative for one in assignors)
        self._count = count
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        #: Reason to rejoin; None without one.
        self._rejoin: str | None = None
        #: A join or sync in flight; responses to older ones are ignored.
        self._asked: CoordinatorRequest | None = None
        self._beating: CoordinatorRequest | None = None
        self._beat_at_ms = float("inf")
        self._heard_ms = float("-inf")
        self._pause_until_ms = float("-inf")
        self._protocol = ""
        #: For the leader: the members, and the assigned partitions.
        self._members: dict[str, Member] = {}
        self._given: dict[str, int] = {}
        self._skip = False
        #: For the leader: partitions were withheld until their owners revoke them.
        self._withheld = False
        self._free_at_ms = float("inf")

    # -- For the consumer.

    def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribes to these topics."""
        topics = frozenset(topics)
        if topics != self._topics:
            self._topics = topics
            self.wanted = topics | frozenset(self._given)
            self.rejoin("the subscription changed")

    def rejoin(self, reason: str) -> None:
        """Triggers a rebalance."""
        if self.phase is not Phase.OUT:
            self._rejoin = self._rejoin or reason

    @property
    def subscribed(self) -> bool:
        return bool(self._topics)

    @property
    def committing(self) -> tuple[str, int]:
        """Member id and generation for commits."""
        return self.member_id, self.generation

    @property
    def settled(self) -> bool:
        """Whether the group is stable, as far as known."""
        return self.phase is Phase.STABLE and self._rejoin is None and not self._changes

    def commit_refused(self, code: int) -> None:
        """Handles an error of a commit that concerns membership."""
        if self.phase is not Phase.STABLE:
            return
        if code == errors.RebalanceInProgress.code:
            self.rejoin("the group rebalances")
        elif code in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
            self._out(code)
        elif code == errors.FencedInstanceId.code:
            self._failed(code)

    def leave(self, reason: str, for_good: bool | None = None) -> CoordinatorRequest | None:
        """Leaves the group: returns the request, if one is needed. Nothing is owned afterwards."""
        told = None
        static = bool(self._options.group_instance_id)
        if self.member_id and (not static if for_good is None else for_good) and self.coordinator.place is not None:
            build = partial(leave_request, self._options, self.member_id, reason)
            told = CoordinatorRequest(
                LeaveGroupRequest, build, self._options.request_timeout_ms, at_least=LEAVE_LIST_SINCE if static else 0
            )
        self._reset(forget_id=True)
        self.owned = []
        self._changes.clear()
        self._alive = False
        return told

    # -- Requests.

    def _request(self, calls: list[CoordinatorRequest], now_ms: float) -> None:
        if self.phase is Phase.STABLE:
            self._look_at_partitions()
            if now_ms >= self._free_at_ms:
                self._free_at_ms = float("inf")
                self.rejoin("revoked partitions are not assigned yet")
            self._beat(calls, now_ms)
        if self._asked is None and now_ms >= self._pause_until_ms:
            self._go_on(calls)

    def _due_ms(self, found: bool) -> list[float]:
        times = []
        if found and self.phase is Phase.STABLE:
            times.append(self._free_at_ms)
            if self._beating is None:
                times.append(self._beat_at_ms)
        if self._asked is None and (self._rejoin is not None or self.phase is not Phase.STABLE):
            times.append(self._pause_until_ms)
        return times

    def _go_on(self, calls: list[CoordinatorRequest]) -> None:
        """Joins or syncs if it is due."""
        options = self._options
        if self.phase is Phase.ASSIGNING:
            made = self._assigned_to_all()
            if made is not None:
                self.phase = Phase.SYNCING
                self._ask(
                    calls,
                    SyncGroupRequest,
                    partial(sync_request, self._options, self.member_id, self.generation, self._protocol, made),
                    options.request_timeout_ms,
                    SYNC_INSTANCE_SINCE,
                )
        elif (self.phase is Phase.OUT or (self.phase is Phase.STABLE and self._rejoin is not None)) and self._prepared():
            self.phase = Phase.JOINING
            reason, self._rejoin = self._rejoin or "", None
            # A heartbeat in flight belongs to the generation that ends here.
            self._beating = None
            timeout_ms = max(options.request_timeout_ms, options.max_poll_interval_ms + JOIN_GRACE_MS)
            told = (self._topics, self.owned, self.generation)
            protocols = [protocol(options, assignor, *told) for assignor in self._assignors.values()]
            self._ask(
                calls,
                JoinGroupRequest,
                partial(join_request, self._options, self.member_id, protocols, reason),
                timeout_ms,
                JOIN_INSTANCE_SINCE,
            )

    def _ask(
        self, calls: list[CoordinatorRequest], request: type[Any], build: Callable[[int], Any], timeout_ms: float, instance_since: int
    ) -> None:
        # A rebalance may take long: a sync is answered when the leader has synced.
        if request is SyncGroupRequest:
            timeout_ms = max(timeout_ms, self._options.max_poll_interval_ms + JOIN_GRACE_MS)
        self._asked = CoordinatorRequest(request, build, timeout_ms, at_least=instance_since if self._options.group_instance_id else 0)
        calls.append(self._asked)

    def _prepared(self) -> bool:
        """Whether it may join: the user has applied all changes."""
        if self._changes:
            return False
        if self.generation == NO_GENERATION:
            going, kind = self.owned, AssignmentChangeKind.LOST
        elif self._cooperative:
            going, kind = [tp for tp in self.owned if tp.topic not in self._topics], AssignmentChangeKind.REVOKED
        else:
            going, kind = self.owned, AssignmentChangeKind.REVOKED
        if going:
            self._changes.append(AssignmentChange(kind, tuple(going)))
        return not going

    def _beat(self, calls: list[CoordinatorRequest], now_ms: float) -> None:
        if now_ms - self._heard_ms > self._options.session_timeout_ms:
            self._heard_ms = now_ms
            self.coordinator.lost(now_ms)
        elif self._beating is None and now_ms >= self._beat_at_ms:
            at_least = HEARTBEAT_INSTANCE_SINCE if self._options.group_instance_id else 0
            build = partial(heartbeat_request, self._options, self.member_id, self.generation)
            self._beating = CoordinatorRequest(HeartbeatRequest, build, self._options.request_timeout_ms, at_least=at_least)
            calls.append(self._beating)

    def _look_at_partitions(self) -> None:
        """The leader checks whether partition counts have changed."""
        for topic, was in self._given.items():
            count = self._count(topic)
            if count is not None and count != was:
                self.rejoin(f"topic {topic} has {count} partitions, not {was}")

    # -- Responses.

    def failed(self, call: CoordinatorRequest, error: KafkaError, now_ms: float) -> None:
        """A request got no response."""
        if call.request is FindCoordinatorRequest:
            self.coordinator.failed(error, now_ms)
            if not error.retriable:
                self._error = error
            return
        if call is self._beating:
            self._beating = None
            self.coordinator.lost(now_ms, error)
        elif call is self._asked:
            self._asked = None
            if error.retriable:
                self._again(now_ms)
                self.coordinator.lost(now_ms, error)
            else:
                self._reset(forget_id=False)
                self._tell(error)

    def answered(self, call: CoordinatorRequest, response: Any, now_ms: float) -> None:
        """A request got a response."""
        if call.request is FindCoordinatorRequest:
            error = self.coordinator.answered(response, now_ms)
            if error is not None:
                self._tell(error)
        elif call is self._beating:
            self._beating = None
            self._beat_at_ms = now_ms + self._options.heartbeat_interval_ms
            self._beaten(response.error_code, now_ms)
        elif call is self._asked:
            self._asked = None
            if response.error_code:
                self._refused(call, response, now_ms)
            elif call.request is JoinGroupRequest:
                self._joined(response)
            else:
                self._synced(response, now_ms)

    def _beaten(self, code: int, now_ms: float) -> None:
        if code in (0, errors.RebalanceInProgress.code):
            self._heard_ms = now_ms
            if code:
                self.rejoin("the group rebalances")
        elif code in COORDINATOR_MOVED:
            self.coordinator.lost(now_ms, group_error(code, self._options))
            self._beat_at_ms = now_ms
        elif code in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
            self._out(code)
        elif code != COORDINATOR_LOADING:
            self._failed(code)

    def _refused(self, call: CoordinatorRequest, response: Any, now_ms: float) -> None:
        """A join or sync failed."""
        code = response.error_code
        joining = call.request is JoinGroupRequest
        if code == errors.MemberIdRequired.code and joining:
            self.member_id = response.member_id
            self._again(now_ms, pause=False)
        elif code in COORDINATOR_MOVED:
            self.coordinator.lost(now_ms, group_error(code, self._options))
            self._again(now_ms)
        elif code in (COORDINATOR_LOADING, errors.RebalanceInProgress.code):
            self._again(now_ms, pause=joining)
        elif code in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
            self._out(code)
        elif group_error(code, self._options).retriable:
            self._again(now_ms)
        else:
            self._failed(code)

    def _again(self, now_ms: float, pause: bool = True) -> None:
        """Joins again and keeps the owned partitions."""
        self.phase = Phase.OUT
        if pause:
            self._pause_until_ms = now_ms + self._backoff.failed()

    def _out(self, code: int) -> None:
        """The member was removed from the group."""
        self._reset(forget_id=code == UNKNOWN_MEMBER)
        self._lose()

    def _failed(self, code: int) -> None:
        self._out(UNKNOWN_MEMBER)
        self._tell(group_error(code, self._options))

    def _reset(self, *, forget_id: bool) -> None:
        self.phase = Phase.OUT
        self.generation = NO_GENERATION
        if forget_id:
            self.member_id = ""
        self._rejoin = None
        self._asked = self._beating = None
        self._follow()

    def _follow(self) -> None:
        self._members, self._given = {}, {}
        self._withheld, self._free_at_ms = False, float("inf")
        self.wanted = self._topics

    def _joined(self, response: Any) -> None:
        self._backoff.succeeded()
        self._pause_until_ms = float("-inf")
        self.member_id, self.generation = response.member_id, response.generation_id
        self._protocol = response.protocol_name or ""
        self._follow()
        self.phase = Phase.ASSIGNING
        self._skip = response.skip_assignment
        if response.leader == self.member_id:
            self._members = {one.member_id: member_told(one) for one in response.members}
            self.wanted = self._topics.union(*(member.topics for member in self._members.values()))

    def _assigned_to_all(self) -> Assignment | None:
        """For the leader, the assignment; None until all partition counts are known. For others, an empty one."""
        if not self._members:
            return {}
        counts = {topic: self._count(topic) for topic in sorted(self.wanted)}
        if any(count is None for count in counts.values()):
            return None
        self._given = {topic: count or 0 for topic, count in counts.items()}
        assignor = self._assignors.get(self._protocol)
        if self._skip or assignor is None:
            # A static leader that restarted does not know what it withheld before.
            self._withheld = assignor is not None and assignor.cooperative
            return {}
        read = frozenset[str]().union(*(member.topics for member in self._members.values()))
        made = assignor.assign({topic: count for topic, count in self._given.items() if count and topic in read}, self._members)
        if not assignor.cooperative:
            return made
        given = without_moving(made, self._members)
        self._withheld = given != made
        return given

    def _synced(self, response: Any, now_ms: float) -> None:
        self.phase = Phase.STABLE
        if self._withheld:
            self._free_at_ms = now_ms + self._options.max_poll_interval_ms
        self._heard_ms = now_ms
        self._beat_at_ms = now_ms + self._options.heartbeat_interval_ms
        self._backoff.succeeded()
        try:
            data = response.assignment
            given = decode_embedded(ConsumerProtocolAssignment, data).assigned_partitions if data else []
        except MalformedMessage as error:
            self._error = KafkaError(f"group {self._options.group_id}: the leader's assignment cannot be read: {error}")
            return
        found = [TopicPartition(one.topic, partition) for one in given for partition in one.partitions]
        if any(tp.topic not in self._topics for tp in found):
            # Computed for an earlier subscription.
            self.rejoin("the subscription changed")
            found = [tp for tp in found if tp.topic in self._topics]
        assignor = self._assignors.get(self._protocol)
        if assignor is not None:
            assignor.assigned(found, self.generation)
        going = tuple(tp for tp in self.owned if tp not in set(found))
        if going:
            self._changes.append(AssignmentChange(AssignmentChangeKind.REVOKED, going))
            self.rejoin("others can have what this member gave up")
        self._changes.append(AssignmentChange(AssignmentChangeKind.ASSIGNED, tuple(tp for tp in found if tp not in set(self.owned))))
