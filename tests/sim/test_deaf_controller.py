"""A simulated controller that no broker reaches for long, though the store does: the office goes to another, and writing goes on."""

import pytest

from ottla.broker.controller.hearing import Hearing
from ottla.sim import cluster_history
from ottla.sim.cluster_faults import ClusterFaults
from ottla.sim.cluster_history import ClusterHistory
from ottla.sim.sweep import report
from ottla.store import layout

CUT_MS = 45_000


def offices(monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[int, int, ClusterHistory]:
    """Who was controller when it was cut off, and who is before that ends."""
    found: list[int] = []
    happen, heal = ClusterFaults._happen, ClusterFaults.heal

    def cut(self: ClusterFaults) -> None:
        holder = self._controller
        if not found and holder is not None:
            found.append(holder.broker_id)
            self._links.cut(self._all_ways(holder), silent=seed % 2 == 0)
        happen(self)

    def healed(self: ClusterFaults) -> None:
        found.append(layout.decode_controller(self._store.tree.nodes[layout.CONTROLLER].data))
        heal(self)

    monkeypatch.setattr(ClusterFaults, "_happen", cut)
    monkeypatch.setattr(ClusterFaults, "heal", healed)
    monkeypatch.setattr(cluster_history, "FAULTS_UNTIL_MS", CUT_MS)
    history = ClusterHistory(seed, kinds=("cut from users", "slow disk"), brokers=3)
    verdict = history.run()
    assert not verdict.problems, report(verdict)
    return found[0], found[-1], history


@pytest.mark.parametrize("seed", range(4))
def test_the_office_leaves_a_controller_that_brokers_cannot_reach(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    before, after, _ = offices(monkeypatch, seed)
    assert before != after


def test_without_that_it_would_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hearing, "look", lambda self: None)
    before, after, _ = offices(monkeypatch, 0)
    assert before == after
