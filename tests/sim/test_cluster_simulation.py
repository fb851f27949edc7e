"""The simulated cluster on the real broker: every invariant holds, and a seed always has the same history."""

import gc

import pytest

from ottla.records.batch import HEADER_SIZE, LOG_OVERHEAD
from ottla.records.build import build_batch
from ottla.sim.cluster_history import BESIDE, CLUSTER_KINDS, ClusterHistory
from ottla.sim.links import Links
from ottla.sim.sweep import report, run_seed
from ottla.sim.world import World

pytestmark = pytest.mark.slow


def test_a_cluster_loses_nothing_and_settles_whatever_happens() -> None:
    for seed in range(4):
        verdict = run_seed(seed, "cluster")
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


def test_a_broker_with_an_empty_disk_is_not_taken_back_by_a_leader_that_was_suspended() -> None:
    """As was found: the leader still counted with an ISR that it had once asked for."""
    verdict = run_seed(2266, "cluster")
    assert not verdict.problems, report(verdict)


def test_damage_passes_by_a_batch_that_compaction_has_emptied() -> None:
    """As was found: there was nothing to turn a bit of (seed 1882)."""
    emptied, whole = build_batch([(0, b"k", b"v", ())])[:HEADER_SIZE], build_batch([(0, b"k", b"v", ())])
    emptied[8:12] = (HEADER_SIZE - LOG_OVERHEAD).to_bytes(4, "big")
    sent = emptied + whole
    links = Links(World(1))
    links.damage = 1.0
    links.damages(memoryview(sent))
    assert sent == emptied + whole
    links.damages(memoryview(sent)[HEADER_SIZE:])
    assert sent != emptied + whole


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


def test_histories_that_ended_do_not_stay_in_memory() -> None:
    before = _worlds()
    # In these, operations in threads are under way at the end.
    for seed in (27, 33, 35, 43):
        run_seed(seed, "cluster")
    assert _worlds() <= before + 1, "the last history may wait for the next"


def _worlds() -> int:
    # Finalizers release more; other tests of the process may leave threads that make garbage all the time.
    for _ in range(5):
        gc.collect()
    return sum(isinstance(thing, World) for thing in gc.get_objects())
