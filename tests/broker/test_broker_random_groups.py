"""Random members of a group join, sync, send heartbeats, commit, leave, fall silent, disconnect and return, while the broker restarts.

After every step what is counted is what there is. Once all behave, the group settles with everybody in it, and when all have left nothing
of it waits or ticks.
"""

from random import Random

import pytest
from cluster import Broker, Cluster, Sent
from groups import cluster_of_groups, commit, coordinating, heartbeat, join_request, leave, sync

from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.classic.states import GroupState
from ottla.wire import errors

MEMBERS = 6
STEPS = 150
WAYS: tuple[tuple[str, ...], ...] = (("range",), ("range", "sticky"), ("sticky", "range"))


#: Events that may happen to a member, some more often.
DEEDS = ("behave", "behave", "behave", "join", "beat", "commit", "leave", "hang up", "come back", "wait", "wait", "restart")


class Life:
    """One member, and what it knows."""

    def __init__(self, number: int) -> None:
        self.instance = f"static-{number}" if number % 3 == 0 else None
        self.version = 9 if number % 2 else (5 if self.instance else 2)
        self.member_id = ""
        self.generation_id = -1
        self.waiting: Sent | None = None
        self.synced = False
        self.assignment = b""

    def forget(self) -> None:
        self.member_id, self.generation_id, self.waiting, self.synced = "", -1, None, False


class Town:
    """A group and those who are in it."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.cluster: Cluster = cluster_of_groups(group_initial_rebalance_delay_ms=self.rng.choice(("0", "3000")))
        self.lives = [Life(number) for number in range(MEMBERS)]

    @property
    def broker(self) -> Broker:
        return coordinating(self.cluster)

    @property
    def group(self) -> ClassicGroup | None:
        found = self.broker.node.groups.shard_of("g").machine.by_id.get("g")
        assert found is None or isinstance(found, ClassicGroup)
        return found

    def join(self, life: Life) -> None:
        ways = tuple((way, b"") for way in self.rng.choice(WAYS))
        request = join_request("g", life.member_id, instance=life.instance, protocols=ways, rebalance_timeout_ms=20_000)
        life.waiting, life.synced = self.broker.send(request, life.version), False

    def listen(self, life: Life) -> None:
        """Take in an answer that has come."""
        if life.waiting is None or (answer := life.waiting.answer) is None:
            return
        life.waiting = None
        if answer.error_code == errors.MemberIdRequired.code:
            life.member_id = answer.member_id
        elif answer.error_code in (errors.UnknownMemberId.code, errors.FencedInstanceId.code):
            life.forget()
        elif answer.error_code == 0 and hasattr(answer, "leader"):
            life.member_id, life.generation_id = answer.member_id, answer.generation_id
            if answer.leader == answer.member_id:
                self.leader_syncs(life, [each.member_id for each in answer.members])
        elif answer.error_code == 0:
            life.synced = True
            life.assignment = answer.assignment
            assert answer.assignment.startswith(b"%d:" % life.generation_id) or not answer.assignment, "of its own generation"

    def leader_syncs(self, life: Life, members: list[str]) -> None:
        given = {each: f"{life.generation_id}:{number}".encode() for number, each in enumerate(members)}
        life.waiting = sync(self.broker, life, given=given, group_instance_id=life.instance)

    def beat(self, life: Life) -> int:
        code = heartbeat(self.broker, life, group_instance_id=life.instance)
        if code in (errors.UnknownMemberId.code, errors.FencedInstanceId.code):
            life.forget()
        elif code == errors.IllegalGeneration.code:
            life.generation_id = -1
        return code

    def behave(self, life: Life) -> None:
        """What a proper client does next."""
        self.listen(life)
        if life.waiting is not None:
            return
        if life.generation_id < 0 or not life.member_id:
            self.join(life)
        elif not life.synced:
            life.waiting = sync(self.broker, life, group_instance_id=life.instance)
            if life.waiting.answer is not None and life.waiting.answer.error_code == errors.RebalanceInProgress.code:
                self.join(life)
        elif self.beat(life) != 0:
            self.join(life)
        self.listen(life)

    def step(self) -> None:
        """One random event happens to a random member."""
        life = self.rng.choice(self.lives)
        self.listen(life)
        match self.rng.choice(DEEDS):
            case "behave":
                self.behave(life)
            case "join" if life.waiting is None:
                self.join(life)
            case "beat" if life.member_id:
                self.beat(life)
            case "commit" if life.member_id:
                commit(self.broker, "g", "t", 0, 1, joined=life, version=9)
            case "leave" if life.member_id and life.waiting is None:
                leave(self.broker, life.member_id)
                life.forget()
            case "hang up" if life.waiting is not None:
                self.broker.hang_up(life.waiting)
                life.waiting = None
            case "come back":
                life.forget()
            case "wait":
                self.cluster.pass_ms(self.rng.choice((10, 1_000, 4_000, 11_000, 21_000)))
            case "restart" if self.rng.random() < 0.2:
                self.cluster.restart(1)
                for each in self.lives:
                    each.waiting = None
        self.check()

    def check(self) -> None:
        """What is counted is what there is."""
        group = self.group
        if group is None:
            return
        members = group.members
        assert members.joining == sum(member.joining is not None for member in members)
        assert members.by_instance == {member.instance_id: member.member_id for member in members if member.instance_id is not None}
        assert [member.member_id for member in members] == list(members.by_id)
        assert set(group._unsynced) <= set(members.by_id)
        assert (group.leader in members.by_id) if len(members) else group.state in (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert not members.joining, "no member waits to join when the join phase is over"
        if group.state is not GroupState.COMPLETING_REBALANCE:
            assert all(member.syncing is None for member in members), "no member waits for an assignment outside of the sync phase"
        assert all(member.timer is not None or member.excused for member in members), "everybody is waited for, or waits"


@pytest.mark.parametrize("seed", range(20))
def test_a_group_settles_once_its_members_behave_and_leaves_nothing_behind(seed: int) -> None:
    town = Town(seed)
    for _ in range(STEPS):
        town.step()
    for life in town.lives:
        if life.waiting is not None:
            town.broker.hang_up(life.waiting)
        life.forget()
    for _ in range(90):
        for life in town.lives:
            town.behave(life)
        town.check()
        town.cluster.pass_ms(1_000)
    group = town.group
    assert group is not None and group.state is GroupState.STABLE and len(group.members) == MEMBERS
    assert all(life.synced and town.beat(life) == 0 for life in town.lives)
    assert len({life.assignment for life in town.lives}) == MEMBERS, "each has a part of its own"
    for life in town.lives:
        assert leave(town.broker, life.member_id) == [0, 0]
    town.cluster.pass_ms(25_000)
    assert town.group is not None and town.group.state is GroupState.EMPTY
    assert town.broker.node.context.delayed.count == len(town.broker.node.groups.shards), "only the looks for expired offsets are to come"
