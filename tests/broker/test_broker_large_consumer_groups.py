"""Large consumer groups in virtual time: five hundred members with their heartbeats; duration and cost of a rebalance."""

from heapq import heapify, heappop, heappush

import pytest
from consumer_groups import GroupHarness, ObedientMember

from ottla.broker.groups.consumer.record_schemas import ConsumerGroupTargetAssignmentMetadataKey

COUNT = 500
PARTITIONS = 1_000


class LargeGroup:
    """Members that send heartbeats at the interval of the last response, and at once after an assignment changed."""

    def __init__(self) -> None:
        #: Other tests check after each request. This harness is checked once, when the group is stable.
        self.harness = GroupHarness({"t": PARTITIONS}, check_replay=False, check_owners=False)
        self.members: dict[str, ObedientMember] = {}
        self._due: list[tuple[int, str]] = []
        self.beats = 0

    def join(self, name: str, at_ms: int) -> None:
        self.members[name] = ObedientMember(self.harness, name, "t")
        heappush(self._due, (at_ms, name))

    def leave(self, name: str) -> None:
        self.members.pop(name).leave()
        self._due = [due for due in self._due if due[1] != name]
        heapify(self._due)

    def run(self, until_ms: int, *, until_settled: bool = False) -> None:
        """Advances the clock and sends the heartbeats that are due."""
        while self._due and self._due[0][0] <= until_ms:
            if until_settled and self.settled:
                return
            self.harness.now_ms, name = heappop(self._due)
            member = self.members[name]
            response = member.beat()
            self.beats += 1
            heappush(self._due, (self.harness.now_ms + (0 if member.news else response.heartbeat_interval_ms), name))
        if not until_settled:
            self.harness.now_ms = until_ms

    @property
    def settled(self) -> bool:
        return self.harness.group.state == "Stable" and all(member.epoch for member in self.members.values())

    def settle_ms(self) -> int:
        """Virtual time until each member owns its target assignment."""
        began = self.harness.now_ms
        self.run(began + 60_000, until_settled=True)
        assert self.settled, self.harness.group.state
        held = [number for member in self.members.values() for numbers in member.owned.values() for number in numbers]
        assert sorted(held) == list(range(PARTITIONS))
        assert {sum(map(len, member.owned.values())) for member in self.members.values()} <= {1, 2, 3}
        return self.harness.now_ms - began

    @property
    def targets(self) -> int:
        return sum(isinstance(key, ConsumerGroupTargetAssignmentMetadataKey) for key, _ in self.harness.log)


@pytest.fixture(scope="module")
def large() -> LargeGroup:
    """A stable group whose members send heartbeats at different times."""
    group = LargeGroup()
    began = group.harness.now_ms
    for index in range(COUNT):
        group.join(f"m{index}", began + index * 11 % 5_000)
    group.run(began + 60_000)
    assert group.settled
    return group


@pytest.mark.parametrize("within_ms", [1, 1_000, 3_000])
def test_members_that_join_together_are_stable_in_seconds_after_few_assignments(within_ms: int) -> None:
    large = LargeGroup()
    for index in range(COUNT):
        large.join(f"m{index}", large.harness.now_ms + index * within_ms // COUNT)
    assert large.settle_ms() <= within_ms + 3_000
    assert large.targets <= 2 + within_ms // 1_000
    assert large.beats <= 16 * COUNT


def test_join_and_leave_complete_within_a_heartbeat_interval(large: LargeGroup) -> None:
    for number in range(3):
        targets = large.targets
        large.join(f"late{number}", large.harness.now_ms + 1)
        assert large.settle_ms() <= 5_000
        large.run(large.harness.now_ms + 7_000)
        large.leave(f"m{number * 7}")
        assert large.settle_ms() <= 5_000
        large.run(large.harness.now_ms + 7_000)
        assert large.targets - targets <= 4


@pytest.mark.parametrize("count", [1, 2, 20, 21])
def test_join_and_leave_complete_within_a_heartbeat_interval_in_a_small_idle_group(count: int) -> None:
    large = LargeGroup()
    for index in range(count):
        large.join(f"m{index}", large.harness.now_ms + index * 777)
    large.run(large.harness.now_ms + 30_000)
    for number in range(8):
        large.join("late", large.harness.now_ms)
        began = large.harness.now_ms
        large.run(began)
        large.run(began + 5_000, until_settled=True)
        assert large.settled, "one heartbeat until the others revoke, one more until the new member is assigned"
        large.run(began + 20_000 + number * 431)
        large.leave("late")
        large.run(large.harness.now_ms + 5_000, until_settled=True)
        assert large.settled
        large.run(large.harness.now_ms + 15_000)


def test_stable_group_writes_no_records(large: LargeGroup) -> None:
    large.run(large.harness.now_ms + 10_000)
    written, beats = len(large.harness.log), large.beats
    large.run(large.harness.now_ms + 10_000)
    assert len(large.harness.log) == written
    assert 2 * COUNT <= large.beats - beats <= 3 * COUNT, "members send heartbeats at the normal interval"
