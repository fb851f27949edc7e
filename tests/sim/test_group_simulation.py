"""Groups in the simulator with the real broker and client: every invariant holds, and a seed always has the same history."""

import pytest

from ottla.sim.group_history import GROUP_FAULT_KINDS, GroupHistory
from ottla.sim.history import Verdict
from ottla.sim.sweep import report, run_seed, run_seeds

pytestmark = pytest.mark.slow


def test_groups_keep_their_place_and_settle_whatever_happens() -> None:
    for seed in range(4):
        verdict = run_seed(seed, "groups")
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


@pytest.mark.parametrize("kind", sorted(set(GROUP_FAULT_KINDS)))
def test_groups_survive_each_kind_of_fault_alone(kind: str) -> None:
    for seed in range(2):
        verdict = GroupHistory(seed, kinds=(kind,)).run()
        assert not verdict.problems, report(verdict)
        assert verdict.faults > 0


def test_every_group_is_given_every_record_by_members_of_both_protocols() -> None:
    history = GroupHistory(3, kinds=("member killed", "kill"), protocols=(("classic", "consumer"),))
    assert not history.run().problems
    assert {member.options.group_protocol for member in history.members.values()} == {"classic", "consumer"}


def test_sweep_runs_a_history_of_each_seed_in_order() -> None:
    reported = [(verdict.seed, verdict.story, verdict.problems) for verdict in run_seeds(range(3, 6), jobs=1)]
    assert reported == [(3, "cluster-groups", []), (4, "groups", []), (5, "cluster-transactions", [])]


def test_a_failure_names_the_story_that_shows_it_again() -> None:
    verdict = Verdict(seed=7, story="groups", problems=["something is wrong"])
    assert report(verdict).endswith("ottla sim run --seed 7 --story groups")
