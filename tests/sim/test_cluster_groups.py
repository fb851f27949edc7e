"""Groups in a simulated cluster: coordinators move with the leaders of __consumer_offsets, and no commit is lost."""

import pytest

from ottla.broker import coordinator
from ottla.broker.controller import reassignment, reassignment_driver
from ottla.broker.metadata.image import Image, Topic
from ottla.sim import cluster_environment
from ottla.sim.group_environment import OFFSETS
from ottla.sim.group_history import CLUSTER_GROUP_KINDS, GroupHistory
from ottla.sim.sweep import report, run_seed
from ottla.store import layout

pytestmark = pytest.mark.slow

#: What moves coordinators.
MOVING = ("kill", "session lost", "leave", "cut off", "member killed", "slow disk")


def test_groups_settle_and_keep_their_offsets_whatever_happens_to_their_coordinators() -> None:
    for seed in range(3):
        verdict = run_seed(seed, "cluster-groups")
        assert not verdict.problems, report(verdict)
        assert verdict.acknowledged > 0, f"seed {seed} tested nothing"


def test_offsets_are_kept_in_three_copies_and_coordinators_move() -> None:
    history = GroupHistory(1, kinds=MOVING, brokers=3)
    verdict = history.run()
    assert not verdict.problems, report(verdict)
    states = [
        path
        for path in history.stage.store.tree.nodes
        if path.startswith("/brokers/topics/__consumer_offsets/") and path.endswith("/state")
    ]
    assert states
    assert all(b'"leader_epoch":0,' not in history.stage.store.tree.nodes[path].data for path in states)


def test_copies_of_offsets_that_were_missing_at_first_are_there_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []

    def grown(image: Image, topic: Topic, number: int) -> reassignment.Move | None:
        move = reassignment.grown(image, topic, number)
        moved.extend([] if move is None else [move])
        return move

    monkeypatch.setattr(reassignment_driver, "grown", grown)
    monkeypatch.setattr(cluster_environment, "ONE_AWAY", 1.0)
    for seed in range(4):
        history = GroupHistory(seed, kinds=MOVING, brokers=3)
        verdict = history.run()
        assert not verdict.problems, report(verdict)
        node = layout.decode_topic(history.stage.store.tree.nodes[layout.topic(OFFSETS)].data)
        assert node.factor_wanted == 0 and all(len(replicas) == 3 for replicas in node.replicas.values())
    assert moved, "in no seed was a broker away when the topic was created"


def test_faults_of_groups_in_a_cluster_are_those_of_both() -> None:
    assert {"kill", "silent link", "member paused", "topic grows"} <= set(CLUSTER_GROUP_KINDS)


def test_answering_a_commit_before_the_followers_have_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator.Shard, "committed", lambda self, of: None)
    for seed in range(500):
        problems = GroupHistory(seed, kinds=("kill", "session lost", "cut off"), brokers=3).run().problems
        if problems:
            break
    assert any("committed offset" in problem for problem in problems), "the first history with problems lost a committed offset"
