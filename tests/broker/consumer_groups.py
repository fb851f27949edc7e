"""A consumer group without a broker: topics, a clock, deadlines, and members that follow the protocol.

After each request, the harness replays the written records into a new group, as a restart does, and compares the two groups. It also
checks that no partition has two members that read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any

from ottla.broker.groups.consumer import classic_members, heartbeats
from ottla.broker.groups.consumer.changes import GroupDecision, GroupSettings, Timer, remove
from ottla.broker.groups.consumer.group import ConsumerGroup, TopicSize, assignment_of
from ottla.broker.groups.consumer.reconciliation import STATE_NAMES, Assignment
from ottla.broker.groups.group import GroupClient
from ottla.broker.groups.records import decode_record, encode_record
from ottla.wire.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.wire.messages.consumer_protocol import ConsumerProtocolSubscription, TopicPartition, encode_embedded
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.leave_group import MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest


def topic_id(name: str) -> bytes:
    """A topic's id, the same in every run, in the order of names."""
    return name.encode().ljust(16, b"\0")[:16]


class FakeTopics:
    """Topics and partition counts chosen by a test."""

    def __init__(self, sizes: dict[str, int]) -> None:
        self.sizes = dict(sizes)
        self.version = 1

    def size(self, name: str) -> TopicSize | None:
        return TopicSize(topic_id(name), self.sizes[name]) if name in self.sizes else None

    def name_of(self, wanted: bytes) -> str | None:
        return next((name for name in self.sizes if topic_id(name) == wanted), None)

    def names(self) -> Iterable[str]:
        return list(self.sizes)

    def become(self, **sizes: int) -> None:
        """Creates topics or adds partitions; 0 deletes a topic."""
        for name, size in sizes.items():
            self.sizes[name] = size
        self.sizes = {name: size for name, size in self.sizes.items() if size}
        self.version += 1


class GroupHarness:
    """One consumer group that handles one request after the other."""

    def __init__(self, sizes: dict[str, int], *, check_replay: bool = True, check_owners: bool = True, **terms: Any) -> None:
        self.topics = FakeTopics(sizes)
        self.group = ConsumerGroup("g")
        self.now_ms = 1_000_000
        self.overrides = terms
        self.log: list[tuple[Any, Any]] = []
        self.deadlines: dict[tuple[Timer, str], tuple[int, int]] = {}
        self._ids = count(1)
        self._check_replay = check_replay
        self._check_owners = check_owners

    @property
    def terms(self) -> GroupSettings:
        return GroupSettings(now_ms=self.now_ms, wall_ms=self.now_ms, topics=self.topics, **self.overrides)

    def new_id(self) -> str:
        return f"m{next(self._ids)}"

    def heartbeat(
        self, *, version: int = 1, client_id: str = "c", client_host: str = "/h", **fields: Any
    ) -> ConsumerGroupHeartbeatResponse:
        request = ConsumerGroupHeartbeatRequest(group_id="g", **fields)
        heartbeats.check(request, version, self.terms.assignors)
        decision = heartbeats.heartbeat(
            self.group, request, self.terms, client=GroupClient(client_id, client_host), new_member_id=self.new_id
        )
        return self.carry_out(decision)  # type: ignore[no-any-return]

    def classic_join(self, member_id: str, *topics: str, owned: dict[str, list[int]] | None = None, **fields: Any) -> JoinGroupResponse:
        subscription = ConsumerProtocolSubscription(
            topics=list(topics), owned_partitions=[TopicPartition(topic=name, partitions=each) for name, each in (owned or {}).items()]
        )
        protocols = fields.pop("protocols", ["cooperative-sticky", "range"])
        request = JoinGroupRequest(
            group_id="g",
            member_id=member_id,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=[JoinGroupRequestProtocol(name=name, metadata=encode_embedded(subscription, 2)) for name in protocols],
            **fields,
        )
        return self.carry_out(  # type: ignore[no-any-return]
            classic_members.join(self.group, request, 9, self.terms, client=GroupClient("c", "/h"), new_member_id=self.new_id)
        )

    def classic_sync(self, member_id: str, generation: int) -> Any:
        request = SyncGroupRequest(group_id="g", member_id=member_id, generation_id=generation)
        return self.carry_out(classic_members.sync(self.group, request, self.terms))

    def classic_beat(self, member_id: str, generation: int) -> Any:
        request = HeartbeatRequest(group_id="g", member_id=member_id, generation_id=generation)
        return self.carry_out(classic_members.beat(self.group, request, self.terms))

    def classic_leave(self, *identities: MemberIdentity) -> Any:
        return self.carry_out(classic_members.leave(self.group, identities, self.terms))

    def carry_out(self, decision: GroupDecision) -> Any:
        """What the broker does with a decision."""
        for key, value in decision.records:
            self.log.append((key, value))
            self.group.apply(*reread(key, value))
        for timer, member_id in decision.disarm:
            self.deadlines.pop((timer, member_id), None)
        for arm in decision.arm:
            if not (arm.keep and (arm.timer, arm.member_id) in self.deadlines):
                self.deadlines[arm.timer, arm.member_id] = (self.now_ms + arm.delay_ms, arm.epoch)
        self.check()
        return decision.response

    def wait(self, ms: int) -> list[tuple[str, str]]:
        """Time passes; returns the deadlines that were missed, in order, whose members are removed."""
        self.now_ms += ms
        missed = []
        for (timer, member_id), (due_ms, epoch) in sorted(self.deadlines.items(), key=lambda item: item[1]):
            if due_ms <= self.now_ms and (timer, member_id) in self.deadlines:
                del self.deadlines[timer, member_id]
                member = self.group.members.get(member_id)
                if member is not None and (timer is not Timer.REBALANCE or member.epoch == epoch):
                    missed.append((timer.value, member_id))
                    decision = GroupDecision()
                    remove(self.group, self.terms, decision, [member])
                    self.carry_out(decision)
        return missed

    def check(self) -> None:
        held: dict[tuple[bytes, int], str] = {}
        for member in self.group.members.values() if self._check_owners else ():
            for assignment in (member.assigned, member.revoking):
                for topic, partitions in assignment.items():
                    for partition in partitions:
                        other = held.setdefault((topic, partition), member.member_id)
                        assert other == member.member_id, f"{topic!r}-{partition} is read by {other} and {member.member_id}"
        if self._check_replay:
            again = replayed(self.log)
            assert (again is None) == self.group.gone
            if again is not None:
                assert durable(again) == durable(self.group), "a restart finds the same group"
                cleaned = replayed(compacted(self.log))
                assert cleaned is not None
                assert durable(cleaned) == durable(self.group), "and so does one after the log was compacted"

    def describe(self) -> dict[str, Any]:
        """Members as a person reads them: epoch, state, what they read, what they have yet to give up."""
        return {
            member.member_id: (
                member.epoch,
                STATE_NAMES[member.state],
                self.named(member.assigned),
                *([self.named(member.revoking)] if member.revoking else []),
            )
            for member in self.group.members.values()
        }

    def named(self, assignment: Assignment) -> str:
        return " ".join(
            f"{self.topics.name_of(topic)}:{','.join(map(str, sorted(numbers)))}" for topic, numbers in sorted(assignment.items())
        )


class ObedientMember:
    """A client: it owns its last assignment, reports it when it has changed, and rejoins when it is fenced."""

    def __init__(
        self, harness: GroupHarness, name: str, *topics: str, pattern: str | None = None, instance_id: str | None = None, **fields: Any
    ) -> None:
        self.harness = harness
        self.member_id = name
        self.epoch = 0
        self.owned: Assignment = {}
        self.news = False
        self.said = {
            "subscribed_topic_names": list(topics) or None, "subscribed_topic_regex": pattern, "instance_id": instance_id,
            "rebalance_timeout_ms": 20_000, **fields,
        }  # fmt: skip

    def beat(self, **fields: Any) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat: a full one to join, then only what is new."""
        if self.epoch == 0:
            said: dict[str, Any] = {**self.said, "topic_partitions": []}
        else:
            said = {"instance_id": self.said["instance_id"]}
            if self.news:
                said["topic_partitions"] = [
                    TopicPartitions(topic_id=topic, partitions=sorted(numbers)) for topic, numbers in self.owned.items()
                ]
        answer = self.harness.heartbeat(member_id=self.member_id, member_epoch=self.epoch, **{**said, **fields})
        self.epoch = answer.member_epoch
        self.news = False
        if answer.assignment is not None:
            reported = assignment_of(answer.assignment.topic_partitions)
            self.news = reported != self.owned
            self.owned = reported
        return answer

    def leave(self, epoch: int = -1) -> ConsumerGroupHeartbeatResponse:
        answer = self.harness.heartbeat(member_id=self.member_id, member_epoch=epoch, instance_id=self.said["instance_id"])
        self.epoch, self.owned = 0, {}
        return answer

    @property
    def reads(self) -> str:
        return self.harness.named(self.owned)


def settle(harness: GroupHarness, *members: ObedientMember, rounds: int = 20) -> int:
    """Let members come again, a second apart, until the group is stable; returns the rounds it took."""
    for took in range(1, rounds + 1):
        harness.wait(1_000)
        for member in members:
            member.beat()
        if harness.group.state == "Stable" and not any(member.news for member in members):
            return took
    raise AssertionError(f"not settled: {harness.group.state}, {harness.describe()}")


def reread(key: Any, value: Any) -> tuple[Any, Any]:
    """A record as it comes back from the log."""
    found = decode_record(*encode_record(key, value))
    assert found == (key, value)
    return found


def replayed(log: Iterable[tuple[Any, Any]]) -> ConsumerGroup | None:
    """The group as a restart finds it."""
    group: ConsumerGroup | None = None
    for key, value in log:
        if group is None and value is None:
            continue
        group = group or ConsumerGroup("g")
        group.apply(key, value)
        if group.gone:
            group = None
    return group


def compacted(log: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The last value of each key, without tombstones, in the order of the log."""
    last = {encode_record(key, None)[0]: index for index, (key, _) in enumerate(log)}
    return [(key, value) for index, (key, value) in enumerate(log) if value is not None and last[encode_record(key, None)[0]] == index]


def durable(group: ConsumerGroup) -> dict[str, Any]:
    """All of a group that records tell, or that is counted from them."""
    soft = {"topics_version", "matched_ms", "assigned_ms", "changed_ms", "matched"}
    return {name: value for name, value in vars(group).items() if name not in soft} | {"footprint": group.footprint.bytes}
