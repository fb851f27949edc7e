"""A member of a group under the classic protocol: join, sync, heartbeats, and joining again when the group rebalances. Pure.

            step, polled                joined                    synced
    OUT ------------------> JOINING ------------> ASSIGNING? ---> SYNCING ------> STABLE
     ^                         ^                  (the leader)                      |
     |  id or generation lost  |   REBALANCE_IN_PROGRESS, subscription, partitions  |
     +-------------------------+----------------------------------------------------+

A member joins once the user polls. Before it joins again, what it must give up is given up in the user's poll (`Change`): everything, if
any of its assignors is eager; with cooperative ones only what it no longer subscribes to, and after the sync what moves elsewhere, upon
which it joins once more to free that (KIP-429). A static member that is restarted in between no longer knows that it had to: so the leader
has the group meet again when all have had the time to. Heartbeats go on meanwhile, whatever the user does.

    answer                                          | what follows
    NOT_COORDINATOR, COORDINATOR_NOT_AVAILABLE      | find the coordinator again; nothing is lost
    COORDINATOR_LOAD_IN_PROGRESS, a broken link     | the same again, after a pause
    REBALANCE_IN_PROGRESS                           | join again
    MEMBER_ID_REQUIRED                              | join again at once, with the id given (KIP-394)
    ILLEGAL_GENERATION                              | the partitions are lost; join again
    UNKNOWN_MEMBER_ID                               | the partitions and the id are lost; join again
    FENCED_INSTANCE_ID                              | another has the instance id: the user is told, now and ever after
    anything else                                   | the user is told; the next poll tries again

A user who does not poll for `max_poll_interval_ms` is taken for stuck: the member leaves, so that others get its partitions, and joins
again with the next poll. A static member does not leave: it falls silent and keeps its place until its session ends (KIP-345).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.group.assignors import Assignment, Assignor, Member, without_moving
from ottla.client.group.coordinator_search import COORDINATOR_LOADING, COORDINATOR_MOVED, Call, Change, CoordinatorSearch, Kind, group_error
from ottla.client.group.membership_state import Polled
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
from ottla.client.transport.backoff import Backoff
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import (
    FencedInstanceId,
    IllegalGeneration,
    KafkaError,
    MemberIdRequired,
    RebalanceInProgress,
    UnknownMemberId,
)
from ottla.wire.messages import FindCoordinatorRequest, HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from ottla.wire.messages.consumer_protocol import ConsumerProtocolAssignment, decode_embedded

NO_GENERATION = -1
#: A join is answered when all members came back or the rebalance timeout is over; the answer may take this much longer.
JOIN_GRACE_MS = 5000
#: The first versions that know instance ids.
JOIN_INSTANCE_SINCE, SYNC_INSTANCE_SINCE, HEARTBEAT_INSTANCE_SINCE = 5, 3, 3
UNKNOWN_MEMBER, ILLEGAL_GENERATION = UnknownMemberId.code, IllegalGeneration.code


class Phase(Enum):
    """Where the member is; see the module."""

    OUT = "out"
    JOINING = "joining"
    ASSIGNING = "assigning"
    SYNCING = "syncing"
    STABLE = "stable"


class Membership(Polled):
    """See the module. `now_ms` is monotonic; `count` gives a topic's partitions, 0 where there is no such topic, None while that is not
    known.
    """

    def __init__(self, options: ConsumerOptions, assignors: list[Assignor], rng: Random, count: Callable[[str], int | None]) -> None:
        super().__init__(options)
        self._assignors = {one.name: one for one in assignors}
        self._cooperative = all(one.cooperative for one in assignors)
        self._count = count
        self._backoff = Backoff(options.retry_backoff_ms, options.retry_backoff_max_ms, rng)
        self.coordinator = CoordinatorSearch(options, rng)
        self.phase = Phase.OUT
        self.member_id = ""
        self.generation = NO_GENERATION
        #: Topics whose partitions have to be known: those subscribed to, and the leader's group's.
        self.wanted: frozenset[str] = frozenset()
        self._topics: frozenset[str] = frozenset()
        #: Why to join again; None: no need.
        self._rejoin: str | None = None
        #: A join or sync that is not answered yet; what comes for an older one is dropped.
        self._asked: Call | None = None
        self._beating: Call | None = None
        self._beat_at_ms = float("inf")
        self._heard_ms = float("-inf")
        self._pause_until_ms = float("-inf")
        self._protocol = ""
        #: As leader: the members, and the partitions that were given out.
        self._members: dict[str, Member] = {}
        self._given: dict[str, int] = {}
        self._skip = False
        #: As leader: partitions were withheld from their new owners until the old ones give them up.
        self._withheld = False
        self._free_at_ms = float("inf")

    # -- the user's side

    def subscribe(self, topics: Iterable[str]) -> None:
        """Read these topics, together with the group."""
        topics = frozenset(topics)
        if topics != self._topics:
            self._topics = topics
            self.wanted = topics | frozenset(self._given)
            self.rejoin("the subscription changed")

    def rejoin(self, reason: str) -> None:
        """Have the group rebalance."""
        if self.phase is not Phase.OUT:
            self._rejoin = self._rejoin or reason

    @property
    def subscribed(self) -> bool:
        """Whether it shares partitions with the group: then it may commit as a member alone."""
        return bool(self._topics)

    @property
    def committing(self) -> tuple[str, int]:
        """Member id and generation to commit under."""
        return self.member_id, self.generation

    @property
    def settled(self) -> bool:
        """Whether the group is at rest, as far as this member knows."""
        return self.phase is Phase.STABLE and self._rejoin is None and not self._changes

    def commit_refused(self, code: int) -> None:
        """A commit was answered with this error, which tells of the group, too."""
        if self.phase is not Phase.STABLE:
            return
        if code == RebalanceInProgress.code:
            self.rejoin("the group rebalances")
        elif code in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
            self._out(code)
        elif code == FencedInstanceId.code:
            self._failed(code)

    def leave(self, reason: str, for_good: bool | None = None) -> Call | None:
        """Leave the group: what to send, if anybody has to be told. Nothing is owned and nothing is to be done after that."""
        told = None
        static = bool(self._options.group_instance_id)
        if self.member_id and (not static if for_good is None else for_good) and self.coordinator.place is not None:
            build = partial(leave_request, self._options, self.member_id, reason)
            told = Call(LeaveGroupRequest, build, self._options.request_timeout_ms, at_least=LEAVE_LIST_SINCE if static else 0)
        self._reset(forget_id=True)
        self.owned = []
        self._changes.clear()
        self._alive = False
        return told

    # -- what to send

    def step(self, now_ms: float) -> list[Call]:
        """Requests to send now."""
        calls: list[Call] = []
        self._leave_if_stuck(calls, now_ms)
        if not self._topics or not self._alive or isinstance(self._error, FencedInstanceId):
            return calls
        question = self.coordinator.call(now_ms)
        if question is not None:
            calls.append(question)
        if self.coordinator.place is None:
            return calls
        if self.phase is Phase.STABLE:
            self._look_at_partitions()
            if now_ms >= self._free_at_ms:
                self._free_at_ms = float("inf")
                self.rejoin("partitions were given up, and nobody has asked for them")
            self._beat(calls, now_ms)
        if self._asked is None and now_ms >= self._pause_until_ms:
            self._go_on(calls)
        return calls

    def next_ms(self, now_ms: float) -> float:
        """When to step again, if nothing happens before. What is due and not done waits for something else."""
        if not self._topics or not self._alive:
            return float("inf")
        times = [self._poll_until_ms]
        if self.coordinator.place is None:
            times.append(self.coordinator.retry_at_ms)
        elif self.phase is Phase.STABLE:
            times.append(self._free_at_ms)
            if self._beating is None:
                times.append(self._beat_at_ms)
        if self._asked is None and (self._rejoin is not None or self.phase is not Phase.STABLE):
            times.append(self._pause_until_ms)
        return min((at_ms for at_ms in times if at_ms > now_ms), default=float("inf"))

    def _go_on(self, calls: list[Call]) -> None:
        """Join or sync, when it is time for it."""
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
            # A beat that is under way tells of the generation that ends here.
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

    def _ask(self, calls: list[Call], request: type[Any], build: Callable[[int], Any], timeout_ms: float, instance_since: int) -> None:
        # A rebalance may last: the answer to a sync comes when the leader has synced.
        if request is SyncGroupRequest:
            timeout_ms = max(timeout_ms, self._options.max_poll_interval_ms + JOIN_GRACE_MS)
        self._asked = Call(request, build, timeout_ms, at_least=instance_since if self._options.group_instance_id else 0)
        calls.append(self._asked)

    def _prepared(self) -> bool:
        """Whether it may join: nothing is left for the user to give up or take."""
        if self._changes:
            return False
        if self.generation == NO_GENERATION:
            going, kind = self.owned, Kind.LOST
        elif self._cooperative:
            going, kind = [tp for tp in self.owned if tp.topic not in self._topics], Kind.REVOKED
        else:
            going, kind = self.owned, Kind.REVOKED
        if going:
            self._changes.append(Change(kind, tuple(going)))
        return not going

    def _beat(self, calls: list[Call], now_ms: float) -> None:
        if now_ms - self._heard_ms > self._options.session_timeout_ms:
            self._heard_ms = now_ms
            self.coordinator.lost(now_ms)
        elif self._beating is None and now_ms >= self._beat_at_ms:
            at_least = HEARTBEAT_INSTANCE_SINCE if self._options.group_instance_id else 0
            build = partial(heartbeat_request, self._options, self.member_id, self.generation)
            self._beating = Call(HeartbeatRequest, build, self._options.request_timeout_ms, at_least=at_least)
            calls.append(self._beating)

    def _look_at_partitions(self) -> None:
        """The leader watches whether there is something else to be assigned by now."""
        for topic, was in self._given.items():
            count = self._count(topic)
            if count is not None and count != was:
                self.rejoin(f"topic {topic} has {count} partitions, not {was}")

    # -- answers

    def failed(self, call: Call, error: KafkaError, now_ms: float) -> None:
        """A request was not answered."""
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

    def answered(self, call: Call, response: Any, now_ms: float) -> None:
        """A request was answered."""
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
        if code in (0, RebalanceInProgress.code):
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

    def _refused(self, call: Call, response: Any, now_ms: float) -> None:
        """A join or sync did not succeed."""
        code = response.error_code
        joining = call.request is JoinGroupRequest
        if code == MemberIdRequired.code and joining:
            self.member_id = response.member_id
            self._again(now_ms, pause=False)
        elif code in COORDINATOR_MOVED:
            self.coordinator.lost(now_ms, group_error(code, self._options))
            self._again(now_ms)
        elif code in (COORDINATOR_LOADING, RebalanceInProgress.code):
            self._again(now_ms, pause=joining)
        elif code in (UNKNOWN_MEMBER, ILLEGAL_GENERATION):
            self._out(code)
        elif group_error(code, self._options).retriable:
            self._again(now_ms)
        else:
            self._failed(code)

    def _again(self, now_ms: float, pause: bool = True) -> None:
        """Join again; what the member owns stays with it."""
        self.phase = Phase.OUT
        if pause:
            self._pause_until_ms = now_ms + self._backoff.failed()

    def _out(self, code: int) -> None:
        """The group goes on without this member."""
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
        """As leader, who reads what; None until the partitions of all topics are known. Others have nothing to say."""
        if not self._members:
            return {}
        counts = {topic: self._count(topic) for topic in sorted(self.wanted)}
        if any(count is None for count in counts.values()):
            return None
        self._given = {topic: count or 0 for topic, count in counts.items()}
        assignor = self._assignors.get(self._protocol)
        if self._skip or assignor is None:
            # A static leader that was restarted does not know what it withheld before.
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
            # Made for what was subscribed before.
            self.rejoin("the subscription changed")
            found = [tp for tp in found if tp.topic in self._topics]
        assignor = self._assignors.get(self._protocol)
        if assignor is not None:
            assignor.assigned(found, self.generation)
        going = tuple(tp for tp in self.owned if tp not in set(found))
        if going:
            self._changes.append(Change(Kind.REVOKED, going))
            self.rejoin("others can have what this member gave up")
        self._changes.append(Change(Kind.ASSIGNED, tuple(tp for tp in found if tp not in set(self.owned))))
