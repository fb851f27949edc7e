"""A simulated controller that no broker reaches for long, though the store does: another broker is elected, and every partition is written
to again within 15 s of virtual time.

`outages` prints where the time goes: ``.venv/bin/python tests/sim/test_unreachable_controller.py``.
"""

import statistics
from collections.abc import Callable

import pytest
from controller_cut import ControllerCut, Cut, Outage

from ottla.broker.controller.reachability import ControllerReachability
from ottla.sim import cluster_history
from ottla.sim.cluster_faults import ClusterFaults
from ottla.sim.cluster_history import ClusterHistory
from ottla.sim.links import Way
from ottla.sim.sweep import report
from ottla.store import layout

pytestmark = pytest.mark.slow

CUT_MS = 20_000
#: From the cut until every partition has acknowledged a record with acks=all.
OUTAGE_MAX_MS = 15_000
#: From the mending of the links until all replicas are in sync again.
IN_SYNC_MS = 20_000
#: Kafka's default, and what histories have.
LAGS_MS = (30_000, 1_000)


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
def test_controller_that_brokers_cannot_reach_resigns(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    before, after, _ = offices(monkeypatch, seed)
    assert before != after


def test_without_that_it_would_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControllerReachability, "_count_reports", lambda self: None)
    before, after, _ = offices(monkeypatch, 0)
    assert before == after


def a_cut(seed: int, lag_ms: int) -> ControllerCut:
    return ControllerCut(seed, settings={"replica.lag.time.max.ms": str(lag_ms), "ottla.disk.reserve.bytes": "65536"})


@pytest.mark.parametrize("lag_ms", LAGS_MS)
@pytest.mark.parametrize("cut", Cut)
@pytest.mark.parametrize("seed", range(4))
def test_every_partition_is_written_to_within_15_s_of_a_cut_of_the_links_to_the_controller(seed: int, cut: Cut, lag_ms: int) -> None:
    scene = a_cut(seed, lag_ms)
    outage = scene.outage(cut)
    assert outage.over_ms is not None and outage.over_ms <= OUTAGE_MAX_MS, outage
    scene.heal()
    assert scene.world.run(scene.world.now_ms + IN_SYNC_MS, scene.in_sync), "the fenced broker catches up and joins the ISRs"
    assert scene.observer.problems == []


def test_a_controller_that_answers_five_seconds_late_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one does that gets little CPU time."""
    scene = a_cut(0, 30_000)
    before, carry = scene.controller, scene.links.carry

    def late(way: Way, delay_ms: int, arrive: Callable[[], None], lost: Callable[[], None]) -> None:
        carry(way, delay_ms + (5_000 if way[1] == before else 0), arrive, lost)

    monkeypatch.setattr(scene.links, "carry", late)
    scene.world.run(scene.world.now_ms + 120_000)
    epoch = layout.decode_controller_epoch(scene.store.tree.nodes[layout.CONTROLLER_EPOCH].data)
    assert (scene.controller, epoch) == (before, 1)


def test_without_fencing_what_the_controller_leads_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ControllerReachability, "fenced", property(lambda self: False))
    outage = a_cut(0, 1_000).outage(Cut.BOTH_WAYS, until_ms=2 * OUTAGE_MAX_MS)
    assert set(outage.written_ms) == {0, 1, 2} - {outage.own_partition}


def outages(seeds: int = 20) -> None:
    """Print the median and the longest time of each phase."""
    phases: dict[str, Callable[[Outage], int | None]] = {
        "registered": lambda outage: outage.registered_ms,
        "resigned": lambda outage: outage.resigned_ms,
        "elected": lambda outage: outage.elected_ms,
        "led": lambda outage: outage.led_ms,
        "written": lambda outage: outage.over_ms,
    }
    for lag_ms in LAGS_MS:
        for cut in Cut:
            found = [a_cut(seed, lag_ms).outage(cut) for seed in range(seeds)]
            cells = []
            for name, phase in phases.items():
                times = [took_ms for outage in found if (took_ms := phase(outage)) is not None]
                never = f", {seeds - len(times)} never" if len(times) < seeds else ""
                cells.append(f"{name} {statistics.median(times):.0f} (at most {max(times)}{never})" if times else f"{name} never")
            print(f"lag {lag_ms} ms, {cut.value}: {'; '.join(cells)}")


if __name__ == "__main__":
    outages()
