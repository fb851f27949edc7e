"""Groups in virtual time: a coordinator with Kafka's rules for both protocols, and members whose users poll, hang or die.

    simulation = GroupSimulation(t=4)
    a, b = simulation.member(), simulation.member()
    simulation.run(10_000)
    assert a.owned + b.owned == ...

Nothing sleeps: `run` jumps from event to event. After each event an invariant is checked: no partition is read by two members that are
both in the coordinator's current generation, or that never revoked it.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.errors import ConnectionFailed
from ottla.client.group.assignor import Member
from ottla.client.group.assignors import assignors_from
from ottla.client.group.classic_membership import Membership
from ottla.client.group.consumer_membership import Reconciliation
from ottla.client.group.coordinator_search import AssignmentChangeKind, CoordinatorRequest
from ottla.client.group.sticky_assignor import even
from ottla.client.options import ConsumerOptions, from_keywords
from ottla.wire import messages as m
from ottla.wire.messages.consumer_group_heartbeat import Assignment, TopicPartitions

Reply = Callable[[Any], None]
LATENCY_MS = 1.0
POLL_MS = 100.0


class ClassicCoordinator:
    """One group under the classic protocol."""

    def __init__(self, simulation: GroupSimulation) -> None:
        self.simulation = simulation
        self.generation = 0
        self.state = "Empty"
        self.leader = ""
        self.protocol = ""
        #: member id -> JoinGroup request; last heartbeat time
        self.members: dict[str, Any] = {}
        self.last_heartbeat_ms: dict[str, float] = {}
        self.pending: set[str] = set()
        self.static: dict[str, str] = {}
        self.joins: dict[str, Reply] = {}
        self.syncs: dict[str, Reply] = {}
        self.assignments: dict[str, bytes] = {}
        self.ids = count(1)

    def expire(self) -> None:
        for member, last_heartbeat_ms in list(self.last_heartbeat_ms.items()):
            if member not in self.joins and self.simulation.now_ms - last_heartbeat_ms > self.members[member].session_timeout_ms:
                self.remove(member)

    def remove(self, member: str) -> None:
        request = self.members.pop(member, None)
        self.last_heartbeat_ms.pop(member, None)
        self.joins.pop(member, None)
        self.syncs.pop(member, None)
        if request is not None:
            self.static.pop(request.group_instance_id or "", None)
            self.rebalance()

    def rebalance(self) -> None:
        if self.state != "PreparingRebalance":
            self.state = "PreparingRebalance"
            for reply in self.syncs.values():
                reply(m.SyncGroupResponse(error_code=27))
            self.syncs.clear()
            wait_ms = max([one.rebalance_timeout_ms for one in self.members.values()], default=0)
            round_ = self.generation
            self.simulation.at(self.simulation.now_ms + wait_ms, lambda: self.complete(round_))
        if self.members and set(self.joins) >= set(self.members):
            self.complete(self.generation)
        elif not self.members:
            self.state = "Empty"

    def complete(self, round_: int) -> None:
        if self.state != "PreparingRebalance" or round_ != self.generation:
            return
        for member in [one for one in self.members if one not in self.joins]:
            request = self.members.pop(member)
            self.last_heartbeat_ms.pop(member, None)
            self.static.pop(request.group_instance_id or "", None)
        if not self.members:
            self.state = "Empty"
            return
        self.generation += 1
        self.state = "CompletingRebalance"
        if self.leader not in self.members:
            self.leader = next(iter(self.members))
        names = [{one.name for one in request.protocols} for request in self.members.values()]
        first = self.members[self.leader].protocols
        self.protocol = next(one.name for one in first if all(one.name in known for known in names))
        joined = [
            m.JoinGroupResponseMember(
                member_id=member,
                group_instance_id=request.group_instance_id,
                metadata=next(one.metadata for one in request.protocols if one.name == self.protocol),
            )
            for member, request in self.members.items()
        ]
        joins, self.joins = self.joins, {}
        self.assignments = {}
        for member, reply in joins.items():
            self.last_heartbeat_ms[member] = self.simulation.now_ms
            reply(
                m.JoinGroupResponse(
                    generation_id=self.generation,
                    protocol_name=self.protocol,
                    leader=self.leader,
                    member_id=member,
                    members=joined if member == self.leader else [],
                )
            )

    def on_JoinGroup(self, request: Any, reply: Reply) -> None:
        member = request.member_id
        instance = request.group_instance_id or ""
        if instance and not member:
            before = self.static.pop(instance, None)
            member = f"{instance}-{next(self.ids)}"
            if before is not None:
                self.members[member] = self.members.pop(before)
                self.last_heartbeat_ms.pop(before, None)
                if self.leader == before:
                    self.leader = member
            self.static[instance] = member
        elif not member:
            member = f"m{next(self.ids)}"
            self.pending.add(member)
            reply(m.JoinGroupResponse(error_code=79, member_id=member))
            return
        elif instance and self.static.get(instance) != member:
            reply(m.JoinGroupResponse(error_code=82 if instance in self.static else 25, member_id=member))
            return
        elif member not in self.members and member not in self.pending:
            reply(m.JoinGroupResponse(error_code=25, member_id=member))
            return
        self.pending.discard(member)
        self.members[member] = request
        self.last_heartbeat_ms[member] = self.simulation.now_ms
        self.joins[member] = reply
        self.rebalance()

    def on_SyncGroup(self, request: Any, reply: Reply) -> None:
        member = request.member_id
        code = self.refuse(request)
        if code or self.state == "PreparingRebalance":
            reply(m.SyncGroupResponse(error_code=code or 27))
            return
        self.last_heartbeat_ms[member] = self.simulation.now_ms
        if self.state == "CompletingRebalance" and member == self.leader:
            self.assignments = {one.member_id: one.assignment for one in request.assignments}
            self.state = "Stable"
            for other, waiting in self.syncs.items():
                waiting(m.SyncGroupResponse(assignment=self.assignments.get(other, b"")))
            self.syncs.clear()
        if self.state == "Stable":
            reply(m.SyncGroupResponse(assignment=self.assignments.get(member, b"")))
        else:
            self.syncs[member] = reply

    def on_Heartbeat(self, request: Any, reply: Reply) -> None:
        code = self.refuse(request)
        if not code:
            self.last_heartbeat_ms[request.member_id] = self.simulation.now_ms
        reply(m.HeartbeatResponse(error_code=code or (27 if self.state == "PreparingRebalance" else 0)))

    def refuse(self, request: Any) -> int:
        instance = request.group_instance_id or ""
        if instance and instance in self.static and self.static[instance] != request.member_id:
            return 82
        if request.member_id not in self.members:
            return 25
        return 22 if request.generation_id != self.generation else 0

    def on_LeaveGroup(self, request: Any, reply: Reply) -> None:
        for one in request.members:
            self.remove(one.member_id)
        reply(m.LeaveGroupResponse())


class ConsumerProtocolCoordinator:
    """One group under the consumer protocol (KIP-848), with one target assignment for all."""

    def __init__(self, simulation: GroupSimulation) -> None:
        self.simulation = simulation
        self.epoch = 0
        self.heartbeat_interval_ms = 5000
        #: member id -> subscribed topics, reported partitions, epoch, assignment, last heartbeat time
        self.members: dict[str, dict[str, Any]] = {}
        self.target: dict[str, list[TopicPartition]] = {}

    def expire(self) -> None:
        for member, known in list(self.members.items()):
            if self.simulation.now_ms - known["last_heartbeat_ms"] > 45_000:
                self.gone(member)

    def gone(self, member: str) -> None:
        self.members.pop(member)
        self.retarget()

    def retarget(self) -> None:
        self.epoch += 1
        members = {name: Member(frozenset(known["topics"])) for name, known in self.members.items()}
        self.target = even(self.simulation.topics, members, {name: (self.target.get(name, []), 1) for name in members})

    def on_ConsumerGroupHeartbeat(self, request: Any, reply: Reply) -> None:
        member, known = request.member_id, self.members.get(request.member_id)
        if request.member_epoch in (-1, -2):
            if known is not None:
                self.gone(member)
            reply(m.ConsumerGroupHeartbeatResponse(member_id=member, member_epoch=request.member_epoch))
            return
        if request.member_epoch == 0:
            assert request.topic_partitions == [] and request.rebalance_timeout_ms > 0, (
                "a joining member owns nothing and sends complete data"
            )
            known = self.members[member] = {"topics": request.subscribed_topic_names, "owned": [], "epoch": 0, "given": None}
            self.retarget()
        elif known is None or request.member_epoch > known["epoch"]:
            reply(m.ConsumerGroupHeartbeatResponse(error_code=25 if known is None else 110))
            return
        known["last_heartbeat_ms"] = self.simulation.now_ms
        if request.subscribed_topic_names is not None and request.subscribed_topic_names != known["topics"]:
            known["topics"] = request.subscribed_topic_names
            self.retarget()
        if request.topic_partitions is not None:
            known["owned"] = self.simulation.by_name(request.topic_partitions)
        target = set(self.target[member])
        if set(known["owned"]) <= target:
            known["epoch"] = self.epoch
            taken = {tp for other, one in self.members.items() if other != member for tp in [*one["owned"], *(one["given"] or ())]}
            now = sorted(target - taken)
        else:
            now = sorted(set(known["owned"]) & target)
        changes = now != known["given"] or request.member_epoch == 0
        known["given"] = now
        reply(
            m.ConsumerGroupHeartbeatResponse(
                member_id=member,
                member_epoch=known["epoch"],
                heartbeat_interval_ms=self.heartbeat_interval_ms,
                assignment=Assignment(topic_partitions=self.simulation.by_id(now)) if changes else None,
            )
        )


class SimulatedMember:
    """A group member and its user, who polls every 100 ms unless it hangs."""

    def __init__(self, simulation: GroupSimulation, **settings: Any) -> None:
        self.simulation = simulation
        settings = {"group_id": "g", "retry_backoff_ms": 10, "retry_backoff_max_ms": 50, **settings}
        assignors = assignors_from(settings.get("partition_assignment_strategy", "range,cooperative-sticky"))
        if "partition_assignment_strategy" in settings:
            settings["partition_assignment_strategy"] = [one.name for one in assignors]
        self.options = from_keywords(ConsumerOptions, settings)
        rng = Random(len(simulation.members))
        self.machine: Membership | Reconciliation
        if self.options.group_protocol == "consumer":
            self.machine = Reconciliation(
                self.options, rng, simulation.topic_id, lambda: {simulation.topic_id(name): name for name in simulation.topics}
            )
        else:
            self.machine = Membership(self.options, assignors, rng, lambda topic: simulation.topics.get(topic, 0))
        #: Whether the process runs, the user polls, and packets arrive.
        self.alive = self.polls = self.connected = True
        self.notifications: list[tuple[str, list[str]]] = []
        self.errors: list[Exception] = []
        self.sent: list[Any] = []
        self._stepping_at = float("inf")

    @property
    def owned(self) -> list[str]:
        return sorted(map(str, self.machine.owned))

    def step(self) -> None:
        if not self.alive:
            return
        for call in self.machine.step(self.simulation.now_ms):
            self.send(call)
        at_ms = self.machine.next_ms(self.simulation.now_ms)
        if at_ms < float("inf"):
            self.simulation.at(at_ms, self.step)

    def send(self, call: CoordinatorRequest) -> None:
        known = m.API[{cls.request: key for key, cls in m.API.items()}[call.request]]
        message = call.build(known.versions[1])
        self.sent.append(message)
        self.simulation.deliver(self, call, message)

    def answered(self, call: CoordinatorRequest, response: Any) -> None:
        if self.alive:
            self.machine.answered(call, response, self.simulation.now_ms)
            self.step()

    def broken(self, call: CoordinatorRequest) -> None:
        if self.alive:
            self.machine.failed(call, ConnectionFailed("cut"), self.simulation.now_ms)
            self.step()

    def poll(self) -> None:
        """One turn of the user's poll loop."""
        if not self.alive:
            return
        if self.polls:
            machine = self.machine
            machine.poll_began()
            while (change := machine.change()) is not None:
                machine.changed(change)
                self.notifications.append((change.kind.value, sorted(map(str, change.partitions))))
                if change.kind is not AssignmentChangeKind.ASSIGNED or change.partitions:
                    self.simulation.check()
            error = machine.error()
            if error is not None:
                self.errors.append(error)
            self.step()
            machine.poll_ended(self.simulation.now_ms)
            self.step()
        self.simulation.at(self.simulation.now_ms + POLL_MS, self.poll)

    def leave(self) -> None:
        """Close gracefully."""
        call = self.machine.leave("closed")
        if call is not None:
            self.send(call)
        self.alive = False

    def times_notified(self, kind: str) -> int:
        """Number of listener calls of this kind with partitions."""
        return sum(1 for one, partitions in self.notifications if one == kind and partitions)


class GroupSimulation:
    """Topics, one coordinator, members and the clock."""

    def __init__(self, **topics: int) -> None:
        self.topics = topics
        self.now_ms = 0.0
        self.classic = ClassicCoordinator(self)
        self.consumer = ConsumerProtocolCoordinator(self)
        self.members: list[SimulatedMember] = []
        #: Called before each request: (member, request) -> response, "cut", or None to let it through.
        self.faults: list[Callable[[SimulatedMember, Any], Any]] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.at(0, self._tick)

    def topic_id(self, topic: str) -> bytes:
        return topic.encode().rjust(16, b"\x01") if topic in self.topics else bytes(16)

    def by_name(self, given: list[TopicPartitions]) -> list[TopicPartition]:
        names = {self.topic_id(name): name for name in self.topics}
        return [TopicPartition(names[one.topic_id], partition) for one in given for partition in one.partitions]

    def by_id(self, partitions: list[TopicPartition]) -> list[TopicPartitions]:
        topics: dict[str, list[int]] = {}
        for topic, partition in partitions:
            topics.setdefault(topic, []).append(partition)
        return [TopicPartitions(topic_id=self.topic_id(topic), partitions=some) for topic, some in topics.items()]

    def member(self, *topics: str, **settings: Any) -> SimulatedMember:
        member = SimulatedMember(self, **settings)
        self.members.append(member)
        member.machine.subscribe(topics or list(self.topics))
        self.at(self.now_ms, member.poll)
        return member

    def at(self, at_ms: float, what: Callable[[], None]) -> None:
        heappush(self._events, (max(at_ms, self.now_ms), next(self._order), what))

    def run(self, for_ms: float) -> None:
        until_ms = self.now_ms + for_ms
        while self._events and self._events[0][0] <= until_ms:
            self.now_ms, _, what = heappop(self._events)
            what()
        self.now_ms = until_ms

    def until(self, holds: Callable[[], bool], limit_ms: float = 120_000) -> float:
        """Run until a condition holds. Returns the elapsed time."""
        began_ms = self.now_ms
        while not holds():
            assert self.now_ms - began_ms < limit_ms, [(member.owned, member.notifications) for member in self.members]
            self.run(10)
        return self.now_ms - began_ms

    def settled(self) -> bool:
        """Whether each partition is read by exactly one member and every member is stable."""
        playing = [member for member in self.members if member.alive and member.polls and member.connected]
        owned = [tp for member in playing for tp in member.owned]
        every = {f"{topic}-{index}" for topic, some in self.topics.items() for index in range(some)}
        return len(owned) == len(set(owned)) and set(owned) == every and all(member.machine.settled for member in playing)

    def _tick(self) -> None:
        self.classic.expire()
        self.consumer.expire()
        self.at(self.now_ms + 100, self._tick)

    def deliver(self, member: SimulatedMember, call: CoordinatorRequest, message: Any) -> None:
        def reply(response: Any) -> None:
            if member.connected:
                self.at(self.now_ms + LATENCY_MS, lambda: member.answered(call, response))
            else:
                self.at(self.now_ms + call.timeout_ms, lambda: member.broken(call))

        def arrive() -> None:
            if not member.connected:
                self.at(self.now_ms + 1000, lambda: member.broken(call))
                return
            for fault in list(self.faults):
                answer = fault(member, message)
                if answer is not None:
                    self.faults.remove(fault)
                    if answer == "cut":
                        member.broken(call)
                    else:
                        reply(answer)
                    return
            name = type(message).__name__.removesuffix("Request")
            if name == "FindCoordinator":
                reply(m.FindCoordinatorResponse(coordinators=[m.find_coordinator.Coordinator(key="g", node_id=1, host="h", port=1)]))
                return
            handler = getattr(self.classic, f"on_{name}", None) or getattr(self.consumer, f"on_{name}")
            handler(message, reply)

        self.at(self.now_ms + LATENCY_MS, arrive)

    def check(self) -> None:
        """Assert that no partition has two readers that may both commit."""
        owners: dict[TopicPartition, SimulatedMember] = {}
        for member in self.members:
            if not (member.alive and member.connected and member.polls) or member.machine.committing[1] < 0:
                continue
            if isinstance(member.machine, Membership) and member.machine.member_id not in self.classic.members:
                continue
            if isinstance(member.machine, Reconciliation) and member.machine.member_id not in self.consumer.members:
                continue
            for tp in member.machine.owned:
                assert tp not in owners, f"{tp} is read twice at {self.now_ms}: {[(one.owned, one.notifications) for one in self.members]}"
                owners[tp] = member
