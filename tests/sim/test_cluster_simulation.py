"""A cluster in the simulator, on the broker as it is: everything must hold, and a seed must always tell the same story."""

import pytest

from ottla.sim.cluster_history import BESIDE, CLUSTER_KINDS, ClusterHistory
from ottla.sim.sweep import report, run_seed


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_a_cluster_loses_nothing_and_settles_whatever_happens(first: int) -> None:
    for seed in range(first, first + 10):
        verdict = run_seed(seed, "cluster")
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


def test_a_broker_with_an_empty_disk_is_not_taken_back_by_a_leader_that_was_suspended() -> None:
    """As was found: the leader still counted with an ISR that it had once asked for."""
    verdict = run_seed(2266, "cluster")
    assert not verdict.problems, report(verdict)


@pytest.mark.parametrize("kind", sorted((*CLUSTER_KINDS, *BESIDE)))
def test_a_cluster_survives_each_kind_of_fault_alone(kind: str) -> None:
    verdict = ClusterHistory(1, kinds=(kind,)).run()
    assert not verdict.problems, report(verdict)
    assert verdict.faults > 0


def test_seeds_make_clusters_of_three_to_five_brokers_and_topics_of_either_kind() -> None:
    histories = [ClusterHistory(seed) for seed in range(60)]
    assert {len(history.machines) for history in histories} == {3, 4, 5}
    kinds = set()
    for history in histories[:8]:
        history.run()
        kinds |= {topic.compacted for topic in history.topics}
    assert kinds == {True, False}
