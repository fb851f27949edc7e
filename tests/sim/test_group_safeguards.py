"""Each safeguard of groups, switched off alone: the simulator finds a violation."""

from collections.abc import Sequence
from typing import Any

import pytest

from ottla.broker import coordinator
from ottla.broker.apis import k09_offset_fetch
from ottla.broker.coordinator import Shard, ShardState
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.classic.members import GroupMembers, Sessions
from ottla.broker.groups.classic.states import IllegalTransition
from ottla.broker.groups.consumer import changes, reconciliation
from ottla.broker.groups.consumer.group import ConsumerGroup
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.records import GroupMetadataKey
from ottla.records.read import records
from ottla.sim.checkers.groups import CommittedIsKept, OneOwner, Write, ZombiesAreFenced
from ottla.sim.group_history import GROUP_FAULT_KINDS, GroupHistory

pytestmark = pytest.mark.slow

#: Histories that a fault may hide in before the test gives up.
SEEDS = 120
CLASSIC, NEXT = (("classic",),), (("consumer",),)


def harm(kinds: Sequence[str] = GROUP_FAULT_KINDS, protocols: Sequence[Sequence[str]] = CLASSIC, *, first: int = 0) -> list[str]:
    """The problems of the first history that has any."""
    for seed in range(first, first + SEEDS):
        try:
            problems = GroupHistory(seed, kinds=kinds, protocols=protocols).run().problems
        except (AssertionError, IllegalTransition) as error:
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            return problems
    return []


@pytest.mark.parametrize("protocols", [CLASSIC, NEXT, (("classic", "consumer"),)])
def test_with_every_safeguard_on_these_histories_do_no_harm(protocols: Sequence[Sequence[str]]) -> None:
    for seed in range(8):
        assert GroupHistory(seed, protocols=protocols).run().problems == []


def test_answering_a_commit_before_it_is_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.Shard, "committed", lambda self, of: None)
    found = harm(("power cut", "slow disk"), first=1)
    assert any("committed offset" in problem or "gave partition" in problem for problem in found), found


def test_telling_offsets_that_are_not_on_disk_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k09_offset_fetch, "when_committed", lambda call, message, about: message)
    found = harm(("power cut", "slow disk"), first=7)
    assert any("committed offset" in problem for problem in found)


def test_taking_commits_of_an_old_generation_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClassicGroup, "check_commit", lambda self, request, version: None)
    found = harm(("member paused", "member replaced", "pause"), first=9)
    assert any("zombie" in problem or "committed offset" in problem for problem in found)


def test_not_fencing_the_old_id_of_a_static_member_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    find = GroupMembers.find

    def forgiving(self: GroupMembers, member_id: str, instance_id: str | None) -> Any:
        return find(self, self.by_instance.get(instance_id, member_id) if instance_id is not None else member_id, instance_id)

    monkeypatch.setattr(GroupMembers, "find", forgiving)
    found = harm(("member paused", "member replaced"), first=7)
    assert any("zombie" in problem or "settle" in problem for problem in found)


def test_answering_from_a_shard_that_is_half_loaded_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator, "LOAD_BYTES", 300)
    shard_of = coordinator.Coordinator.shard_of

    def impatient(self: Any, key: str) -> Any:
        number = self.partition_of(key)
        shard = self.shards.get(number) if number is not None else None
        return shard if shard is not None and shard.state is ShardState.LOADING else shard_of(self, key)

    monkeypatch.setattr(coordinator.Coordinator, "shard_of", impatient)
    found = harm(("kill", "stop", "slow disk"))
    assert any("committed offset" in problem or "IllegalTransition" in problem for problem in found)


def test_forgetting_tombstones_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(data: Any, position: int) -> Any:
        return (record for record in records(data, position) if record[3] is not None)

    monkeypatch.setattr(coordinator, "records_of", forgetful)
    found = harm(("kill", "stop"))
    assert any("committed offset" in problem for problem in found)


def test_a_replay_that_makes_another_state_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A former defect: members kept the values of their first record."""
    take = ClassicGroup.take

    def as_it_was(self: ClassicGroup, value: Any) -> None:
        known = {member.member_id: member.protocols for member in self.members}
        take(self, value)
        if self._groups.loading:
            for member in self.members:
                if member.member_id in known:
                    self.members.set_protocols(member, known[member.member_id])

    monkeypatch.setattr(ClassicGroup, "take", as_it_was)
    assert any("a replay has" in problem for problem in harm(("member killed", "member joins", "kill")))


def test_changing_a_group_without_a_record_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    write = Shard.write

    def lossy(self: Shard[Groups], of: str, records: Any, **how: Any) -> None:
        write(self, of, [record for record in records if not isinstance(record[0], GroupMetadataKey)], **how)
        for key, value in records:
            if isinstance(key, GroupMetadataKey):
                self.machine.apply(key, value)

    monkeypatch.setattr(Shard, "write", lossy)
    assert any("a replay has" in problem for problem in harm(("kill", "member killed")))


def test_handing_out_a_partition_that_is_not_released_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    reconcile = reconciliation.reconcile

    def hasty(member: Any, **how: Any) -> Any:
        return reconcile(member, **{**how, "owner": lambda topic_id, partition: None})

    monkeypatch.setattr(changes, "reconcile", hasty)
    found = harm(("member joins", "member killed", "slow network"), NEXT)
    assert any("two owners" in problem for problem in found), found


def test_taking_commits_of_an_old_epoch_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroup, "check_commit", lambda group, member_id, epoch, version: None)
    found = harm(("member paused", "member replaced", "pause"), NEXT, first=10)
    assert any("zombie" in problem or "committed offset" in problem for problem in found)


def test_never_giving_up_a_silent_member_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sessions, "_due", lambda self, member: setattr(member, "timer", None))
    assert any("settle" in problem for problem in harm(("member lost", "member killed"), first=14))


# The checkers themselves.


def test_a_committed_offset_fits_an_order_of_the_commits() -> None:
    def reported(offset: int, *, asked_ms: int, now_ms: int) -> list[str]:
        checker = CommittedIsKept()
        five = Write("g", 0, 5, None, 10, "acknowledged", done_ms=20)
        nine = Write("g", 0, 9, None, 30, "unclear")
        seven = Write("g", 0, 7, None, 40, "acknowledged", done_ms=50)
        for write in (five, nine, seven):
            checker.commit_sent(write)
            checker.commit_answered(write)
        checker.read("g", 0, offset, asked_ms=asked_ms, now_ms=now_ms)
        return checker.problems

    assert reported(7, asked_ms=60, now_ms=70) == [] and reported(9, asked_ms=60, now_ms=70) == []
    assert reported(5, asked_ms=60, now_ms=70) and reported(-1, asked_ms=60, now_ms=70)
    assert reported(5, asked_ms=45, now_ms=60) == [], "7 may come into effect after the answer"


def test_fetching_an_older_commit_after_a_newer_one_is_a_violation() -> None:
    checker = CommittedIsKept()
    for write in (Write("g", 0, 5, None, 10, "acknowledged", done_ms=20), Write("g", 0, 9, None, 30, "unclear")):
        checker.commit_sent(write)
        checker.commit_answered(write)
    checker.read("g", 0, 9, asked_ms=40, now_ms=41)
    checker.read("g", 0, 5, asked_ms=50, now_ms=51)
    assert checker.problems == ["committed offset of 0 of g told as 5; it can only be 9 (unclear)"]


def test_a_partition_with_two_readers_that_may_both_commit_is_a_violation() -> None:
    fenced: set[str] = set()
    checker = OneOwner(lambda member: member not in fenced)
    checker.assigned("g", "a", 1, [0], lawful=True, now_ms=0)
    fenced.add("a")
    checker.assigned("g", "b", 2, [0], lawful=True, now_ms=0)
    assert checker.problems == []
    checker.assigned("g", "c", 3, [0], lawful=True, now_ms=0)
    assert len(checker.problems) == 1


def test_a_commit_sent_after_another_was_given_the_partition_is_a_problem_once_it_is_acknowledged() -> None:
    checker = ZombiesAreFenced()
    checker.assigned("g", "b", 2, [0], lawful=True, now_ms=0)
    for outcome in ("refused", "unclear", "acknowledged"):
        write = Write("g", 0, 5, ("a", 1), 10)
        checker.commit_sent(write)
        write.outcome = outcome
        checker.commit_answered(write)
    assert len(checker.problems) == 1
