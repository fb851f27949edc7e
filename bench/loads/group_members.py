"""Members of one consumer group, hundreds in one process: each is a connection and a task for the group protocol only.

A whole consumer costs many times the broker's work for it, and on one machine would dominate the measurement. So
these members fetch nothing. They have a real consumer's intervals: a classic member sends a heartbeat every 3 s and rejoins when
a response requires it; a member of the consumer protocol uses the broker's interval, and sends a heartbeat at once when it has revoked
or received partitions. They run at a lower priority, because they simulate other machines.

A separate process: reads one command a line, and answers each with one JSON object a line.

    form N      N members join; complete when all are in one generation, or all partitions have their owner
    join        one more; the same
    leave       the last one leaves; the same
    close       all connections are closed

A result has the seconds it took and `fenced`: the number of responses so far that fenced a member.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from typing import Any

from ottla.net.client_connection import ClientConnection, ConnectionBroken, open_connection
from ottla.wire import errors
from ottla.wire.messages.api_versions import ApiVersionsRequest
from ottla.wire.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    encode_embedded,
)
from ottla.wire.messages.find_coordinator import FindCoordinatorRequest
from ottla.wire.messages.heartbeat import HeartbeatRequest
from ottla.wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.wire.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

#: Lower than the broker's and the other clients'.
NICE = 10
SETTLE_TIMEOUT_S = 90.0
#: Kafka's defaults: heartbeat.interval.ms, session.timeout.ms, max.poll.interval.ms.
HEARTBEAT_S, SESSION_MS, REBALANCE_MS = 3.0, 45_000, 300_000
#: A JoinGroup response arrives when the last member has joined.
REQUEST_MS = 320_000
ASSIGNOR = "range"
FENCED = frozenset(
    (errors.UnknownMemberId.code, errors.IllegalGeneration.code, errors.FencedMemberEpoch.code, errors.FencedInstanceId.code)
)


class Group:
    """Shared state of the members, which detects when they agree."""

    def __init__(self, host: str, port: int, topic: str, partitions: int) -> None:
        self.host, self.port, self.topic, self.partitions = host, port, topic, partitions
        self.group_id = f"group-{uuid.uuid4().hex[:8]}"
        self.members: list[Member] = []
        #: Number of members in each generation (or epoch).
        self.at: Counter[int] = Counter()
        #: In the consumer protocol: the owner of each partition.
        self.owners: dict[int, Member] = {}
        self.fenced = 0
        self._goal: Callable[[], bool] = lambda: False
        self._reached: asyncio.Future[None] | None = None
        self._failed: BaseException | None = None

    def moved(self, member: Member, generation: int) -> None:
        """A member has a new generation."""
        self.at[member.generation] -= 1
        member.generation = generation
        self.at[generation] += 1

    def look(self) -> None:
        """Check after a change whether the awaited state is reached."""
        if self._reached is not None and not self._reached.done() and self._goal():
            self._reached.set_result(None)

    def fail(self, why: BaseException) -> None:
        self._failed = why
        if self._reached is not None and not self._reached.done():
            self._reached.set_exception(why)

    async def until(self, goal: Callable[[], bool]) -> None:
        if self._failed is not None:
            raise self._failed
        self._goal, self._reached = goal, asyncio.get_running_loop().create_future()
        self.look()
        try:
            await asyncio.wait_for(self._reached, SETTLE_TIMEOUT_S)
        except TimeoutError:
            raise RuntimeError(f"{len(self.members)} members did not settle within {SETTLE_TIMEOUT_S:.0f} s") from None

    @property
    def newest(self) -> int:
        return max((generation for generation, count in self.at.items() if count), default=-1)

    def all_at(self, after: int) -> bool:
        """Whether all members are in one generation after this one."""
        newest = self.newest
        return newest > after and self.at[newest] == len(self.members)


class Member:
    """A member with its own connection."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.generation = -1
        self._link: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        def lost(why: ConnectionBroken) -> None:
            if self._link is not None:
                self.group.fail(why)

        group = self.group
        self._link = await open_connection(
            group.host, group.port, client_id="bench", frame_bytes_max=64 << 20, timeout_ms=30_000, lost=lost
        )  # fmt: skip

    def start(self) -> None:
        self.group.members.append(self)
        self.group.at[self.generation] += 1
        self._task = asyncio.create_task(self._run())

    async def leave(self) -> None:
        assert self._task is not None, "it has started"
        self._task.cancel()
        self.group.members.remove(self)
        self.group.at[self.generation] -= 1
        await self._say_goodbye()
        self.close()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        link, self._link = self._link, None
        if link is not None:
            link.close()

    async def ask(self, request: Any, version: int) -> Any:
        assert self._link is not None, "it is connected"
        return await self._link.request(request, version, timeout_ms=REQUEST_MS)

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as why:
            self.group.fail(why)
            raise

    def check(self, what: str, code: int) -> None:
        if code in FENCED:
            self.group.fenced += 1
        if code:
            raise errors.error_for(code, f"{what} was answered with an error")

    async def _live(self) -> None:
        raise NotImplementedError

    async def _say_goodbye(self) -> None:
        raise NotImplementedError


class ClassicMember(Member):
    """JoinGroup, SyncGroup, Heartbeat; the group leader computes the assignment."""

    member_id = ""

    async def _live(self) -> None:
        group = self.group
        await self._meet()
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            request = HeartbeatRequest(group_id=group.group_id, generation_id=self.generation, member_id=self.member_id)
            code = (await self.ask(request, 4)).error_code
            if code == errors.RebalanceInProgress.code:
                await self._meet()
            else:
                self.check("Heartbeat", code)

    async def _meet(self) -> None:
        group = self.group
        while True:
            joined = await self._join()
            assignments = []
            if joined.leader == self.member_id:
                assignments = shares([member.member_id for member in joined.members], group.topic, group.partitions)
            request = SyncGroupRequest(
                group_id=group.group_id,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name=ASSIGNOR,
                assignments=assignments,
            )
            code = (await self.ask(request, 5)).error_code
            if code != errors.RebalanceInProgress.code:
                break
        self.check("SyncGroup", code)
        group.moved(self, joined.generation_id)
        group.look()

    async def _join(self) -> JoinGroupResponse:
        said = encode_embedded(ConsumerProtocolSubscription(topics=[self.group.topic]))
        while True:
            request = JoinGroupRequest(
                group_id=self.group.group_id,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name=ASSIGNOR, metadata=said)],
            )
            answer: JoinGroupResponse = await self.ask(request, 9)
            if answer.error_code == errors.MemberIdRequired.code:
                self.member_id = answer.member_id
            elif answer.error_code != errors.RebalanceInProgress.code:
                self.check("JoinGroup", answer.error_code)
                return answer

    async def _say_goodbye(self) -> None:
        identity = MemberIdentity(member_id=self.member_id)
        answer = await self.ask(LeaveGroupRequest(group_id=self.group.group_id, members=[identity]), 5)
        self.check("LeaveGroup", answer.error_code or answer.members[0].error_code)


def shares(member_ids: list[str], topic: str, partitions: int) -> list[SyncGroupRequestAssignment]:
    """The range assignor, for one topic."""
    found = []
    each, more = divmod(partitions, len(member_ids))
    begin = 0
    for number, member_id in enumerate(sorted(member_ids)):
        end = begin + each + (number < more)
        part = [TopicPartition(topic=topic, partitions=list(range(begin, end)))]
        found.append(SyncGroupRequestAssignment(member_id, encode_embedded(ConsumerProtocolAssignment(assigned_partitions=part))))
        begin = end
    return found


class ConsumerGroupMember(Member):
    """ConsumerGroupHeartbeat, and immediate reconciliation."""

    def __init__(self, group: Group) -> None:
        super().__init__(group)
        self.member_id = str(uuid.uuid4())
        self.owned: list[TopicPartitions] = []

    async def _live(self) -> None:
        group = self.group
        request = ConsumerGroupHeartbeatRequest(
            group_id=group.group_id,
            member_id=self.member_id,
            rebalance_timeout_ms=REBALANCE_MS,
            subscribed_topic_names=[group.topic],
            topic_partitions=[],
        )
        while True:
            answer = await self.ask(request, 1)
            self.check("ConsumerGroupHeartbeat", answer.error_code)
            request = ConsumerGroupHeartbeatRequest(group_id=group.group_id, member_id=self.member_id, member_epoch=answer.member_epoch)
            if answer.member_epoch != self.generation:
                group.moved(self, answer.member_epoch)
            if answer.assignment is not None:
                self._take(answer.assignment.topic_partitions)
                request.topic_partitions = self.owned
            group.look()
            if answer.assignment is None:
                await asyncio.sleep(answer.heartbeat_interval_ms / 1000)

    def _take(self, target: list[TopicPartitions]) -> None:
        owners = self.group.owners
        self._give_up()
        self.owned = target
        for part in target:
            for partition in part.partitions:
                if partition in owners:
                    raise RuntimeError(f"partition {partition} has two owners")
                owners[partition] = self

    def _give_up(self) -> None:
        for part in self.owned:
            for partition in part.partitions:
                del self.group.owners[partition]

    async def _say_goodbye(self) -> None:
        self._give_up()
        request = ConsumerGroupHeartbeatRequest(group_id=self.group.group_id, member_id=self.member_id, member_epoch=-1)
        self.check("ConsumerGroupHeartbeat", (await self.ask(request, 1)).error_code)


class CommandRunner:
    """Executes the commands."""

    def __init__(self, group: Group, kind: type[Member]) -> None:
        self._group, self._kind = group, kind

    async def run(self, command: str) -> dict[str, Any]:
        match command.split():
            case ["form", count]:
                await self._find_coordinator()
                return await self._join(int(count))
            case ["join"]:
                return await self._join(1)
            case ["leave"]:
                began, before = time.perf_counter(), self._group.newest
                await self._group.members[-1].leave()
                return await self._settle(began, before)
            case ["close"]:
                for member in self._group.members:
                    member.close()
                return {}
        raise ValueError(command)

    async def _find_coordinator(self) -> None:
        """Create the coordinator's topic, and wait until it is ready."""
        member = Member(self._group)
        await member.connect()
        await member.ask(ApiVersionsRequest(client_software_name="bench", client_software_version="1"), 3)
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            found = await member.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[self._group.group_id]), 4)
            probe = HeartbeatRequest(group_id=self._group.group_id, generation_id=0, member_id="nobody")
            # UNKNOWN_MEMBER_ID is expected once the coordinator has loaded.
            if not found.coordinators[0].error_code and (await member.ask(probe, 4)).error_code == errors.UnknownMemberId.code:
                member.close()
                return
            await asyncio.sleep(0.1)
        raise RuntimeError("no coordinator")

    async def _join(self, count: int) -> dict[str, Any]:
        added = [self._kind(self._group) for _ in range(count)]
        for member in added:
            await member.connect()
        began, before = time.perf_counter(), self._group.newest
        for member in added:
            member.start()
        return await self._settle(began, before)

    async def _settle(self, began: float, before: int) -> dict[str, Any]:
        group = self._group
        if self._kind is ConsumerGroupMember:
            await group.until(lambda: group.newest > before and self._shared())
        else:
            await group.until(lambda: group.all_at(before))
        return {"seconds": time.perf_counter() - began, "fenced": group.fenced, "members": len(group.members)}

    def _shared(self) -> bool:
        """Whether every partition has an owner, and every member a partition, if there are enough."""
        group = self._group
        if len(group.owners) < group.partitions:
            return False
        return all(isinstance(member, ConsumerGroupMember) and member.owned for member in group.members)


async def serve(group: Group, kind: type[Member]) -> None:
    loop, play = asyncio.get_running_loop(), CommandRunner(group, kind)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await play.run(line)), flush=True)


def main() -> None:
    arguments = json.loads(sys.argv[1])
    os.nice(NICE)
    kind = {"classic": ClassicMember, "consumer": ConsumerGroupMember}[arguments.pop("protocol")]

    async def run() -> None:
        await serve(Group(**arguments), kind)

    asyncio.run(run())


if __name__ == "__main__":
    main()
