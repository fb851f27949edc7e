"""Large consumer groups in virtual time: five hundred members with their heartbeats; duration and cost of a rebalance."""

from heapq import heapify, heappop, heappush

import pytest
from consumer_groups import GroupHarness, ObedientMember

from ottla.broker.groups.consumer.record_schemas import ConsumerGroupTargetAssignmentMetadataKey

COUNT = 500
PARTITIONS = 1_000


class Crowd:
    """Members that heartbeat when they were told to, and at once when they have news."""

    def __init__(self) -> None:
        #: What is checked after every request elsewhere is checked here once a crowd has settled.
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
        """Let time pass."""
        while self._due and self._due[0][0] <= until_ms:
            if until_settled and self.settled:
                return
            self.harness.now_ms, name = heappop(self._due)
            member = self.members[name]
            told = member.beat()
            self.beats += 1
            heappush(self._due, (self.harness.now_ms + (0 if member.news else told.heartbeat_interval_ms), name))
        if not until_settled:
            self.harness.now_ms = until_ms

    @property
    def settled(self) -> bool:
        return self.harness.group.state == "Stable" and all(member.epoch for member in self.members.values())

    def settle_ms(self) -> int:
        """How long until everybody reads what they shall."""
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
def crowd() -> Crowd:
    """All there for a while, and asked to come at times of their own."""
    made = Crowd()
    began = made.harness.now_ms
    for index in range(COUNT):
        made.join(f"m{index}", began + index * 11 % 5_000)
    made.run(began + 60_000)
    assert made.settled
    return made


@pytest.mark.parametrize("within_ms", [1, 1_000, 3_000])
def test_crowd_that_comes_at_once_settles_in_seconds_with_a_few_targets(within_ms: int) -> None:
    crowd = Crowd()
    for index in range(COUNT):
        crowd.join(f"m{index}", crowd.harness.now_ms + index * within_ms // COUNT)
    assert crowd.settle_ms() <= within_ms + 3_000
    assert crowd.targets <= 2 + within_ms // 1_000
    assert crowd.beats <= 16 * COUNT


def test_one_more_and_one_less_settle_within_a_heartbeat_interval(crowd: Crowd) -> None:
    for number in range(3):
        targets = crowd.targets
        crowd.join(f"late{number}", crowd.harness.now_ms + 1)
        assert crowd.settle_ms() <= 5_000
        crowd.run(crowd.harness.now_ms + 7_000)
        crowd.leave(f"m{number * 7}")
        assert crowd.settle_ms() <= 5_000
        crowd.run(crowd.harness.now_ms + 7_000)
        assert crowd.targets - targets <= 4


@pytest.mark.parametrize("count", [1, 2, 20, 21])
def test_so_do_they_in_a_small_group_that_was_quiet(count: int) -> None:
    crowd = Crowd()
    for index in range(count):
        crowd.join(f"m{index}", crowd.harness.now_ms + index * 777)
    crowd.run(crowd.harness.now_ms + 30_000)
    for number in range(8):
        crowd.join("late", crowd.harness.now_ms)
        began = crowd.harness.now_ms
        crowd.run(began)
        crowd.run(began + 5_000, until_settled=True)
        assert crowd.settled, "at most one heartbeat until others hear of it, and one more until the newcomer does"
        crowd.run(began + 20_000 + number * 431)
        crowd.leave("late")
        crowd.run(crowd.harness.now_ms + 5_000, until_settled=True)
        assert crowd.settled
        crowd.run(crowd.harness.now_ms + 15_000)


def test_crowd_at_rest_writes_nothing(crowd: Crowd) -> None:
    crowd.run(crowd.harness.now_ms + 10_000)
    written, beats = len(crowd.harness.log), crowd.beats
    crowd.run(crowd.harness.now_ms + 10_000)
    assert len(crowd.harness.log) == written
    assert 2 * COUNT <= crowd.beats - beats <= 3 * COUNT, "nobody needs to come more often than that"
