"""The context of a scenario: a cluster, clients on a topic of its own, and measurements; and the result of a scenario."""

from __future__ import annotations

import contextlib
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from chaos.cluster import REPLICAS, Broker, Cluster, ConditionTimeout, until
from chaos.load import LAST, MEMBERS, REQUEST_MS, Clients, FirstAcknowledgement, Observations, final_readers, producers, readers
from ottla.sim.checkers.log_history import Findings, check

PARTITIONS = 3
#: Time limit after faults until everything has a leader, is in sync, and is written to.
RECOVERY_S = 90.0
#: Time allowed after the end of a dead broker's session: election, propagation, and the clients' search for the leader.
REACTION_MS = 2_000
#: Time limit for the first acknowledgement.
FAILOVER_S = 60.0


@dataclass(slots=True)
class ScenarioResult:
    """The result of one scenario."""

    scenario: str
    seed: int
    faults: int = 0
    seconds: float = 0.0
    #: Time from each fault to the first acknowledgement of a later record to the affected partition.
    failovers_ms: list[float] = field(default_factory=list)
    #: Time from each fault to the election of another leader.
    elections_ms: list[float] = field(default_factory=list)
    #: Upper bound of a failover; 0: none.
    bound_ms: int = 0
    #: Time from the end of each fault until all replicas are in sync.
    in_sync_ms: list[float] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)
    given_up: list[str] = field(default_factory=list)
    #: Acknowledgements without an offset.
    unplaced: int = 0
    problems: list[str] = field(default_factory=list)
    skipped: str = ""

    @property
    def late(self) -> int:
        """Number of failovers above the bound."""
        return sum(took_ms > self.bound_ms for took_ms in self.failovers_ms) if self.bound_ms else 0

    @property
    def lost(self) -> int:
        """Number of acknowledged records that are missing, or at another offset."""
        return sum(self.findings.counts.get(kind, 0) for kind in ("lost write", "unseen", "inconsistent offset"))

    @property
    def good(self) -> bool:
        return not self.problems and self.findings.sound

    def summary(self) -> dict[str, object]:
        """The JSON document."""
        times = self.failovers_ms
        return {
            "story": self.scenario,
            "seed": self.seed,
            "skipped": self.skipped,
            "faults": self.faults,
            "seconds": round(self.seconds, 1),
            "acknowledged": self.findings.acknowledged,
            "polled": self.findings.polled,
            "unknown": self.findings.unknown,
            "given_up": len(self.given_up),
            "unplaced": self.unplaced,
            "lost": self.lost,
            "duplicates": self.findings.counts.get("duplicate", 0),
            "anomalies": self.findings.counts,
            "failover_ms": [round(took_ms) for took_ms in times],
            "failover_median_ms": round(statistics.median(times)) if times else None,
            "election_median_ms": round(statistics.median(self.elections_ms)) if self.elections_ms else None,
            "bound_ms": self.bound_ms,
            "late": self.late,
            "in_sync_median_ms": round(statistics.median(self.in_sync_ms)) if self.in_sync_ms else None,
            "lag_ms": round(self.findings.lag_ns / 1e6),
            "laggard": self.findings.laggard,
            "problems": [*self.problems, *self.findings.lines()],
        }


class ScenarioContext:
    """The cluster, clients and measurements of one scenario."""

    def __init__(self, cluster: Cluster, journal: Observations, outcome: ScenarioResult, log: Callable[[str], None]) -> None:
        self.cluster = cluster
        self.journal = journal
        self.outcome = outcome
        self.log = log
        self.random = random.Random(f"{outcome.scenario} {outcome.seed}")

    @property
    def session_s(self) -> float:
        return self.cluster.setup.session_timeout_ms / 1000

    def leader(self, partition: int) -> Broker:
        return self.cluster.leader(self.journal.topic, partition)

    def led_by(self, broker: Broker) -> list[int]:
        """Partitions of the topic that a broker leads."""
        states = {partition: self.cluster.state(self.journal.topic, partition) for partition in range(PARTITIONS)}
        return [partition for partition, state in states.items() if state is not None and state.leader == broker.number]

    def controller(self) -> Broker:
        """The running controller. Raises: ConditionTimeout."""

        def holds() -> Broker | None:
            broker = self.cluster.brokers.get(self.cluster.controller() or 0)
            return broker if broker is not None and broker.alive else None

        return until(holds, "there is a controller", timeout_s=60)

    def failover(
        self, partition: int, fault: Callable[[], object], what: str, *, leaves: Broker | None = None, serves_on: bool = False
    ) -> None:
        """Inject a fault into a partition, and measure until later records are acknowledged. ``leaves``: the leader that must be
        replaced, if any; ``serves_on``: it continues until then, so only records sent after that count. Raises: ConditionTimeout.
        """
        fault()
        watch = self.journal.watch(partition)
        began_ns = watch.since_ns
        self.outcome.faults += 1
        if leaves is not None:
            until(
                lambda: self._led_by_another(partition, leaves),
                f"{partition} is led by another broker, after: {what}",
                timeout_s=FAILOVER_S,
            )
            self.outcome.elections_ms.append((time.monotonic_ns() - began_ns) / 1e6)
            if serves_on:
                watch = self.journal.watch(partition)
        self._await(watch, FAILOVER_S, f"after: {what}")
        took_ms = (watch.acknowledged_ns - began_ns) / 1e6
        self.outcome.failovers_ms.append(took_ms)
        elected = f"elected after {self.outcome.elections_ms[-1]:.0f} ms, " if leaves is not None else ""
        self.log(f"{self.outcome.scenario} {self.outcome.faults}: {what}; {elected}written again after {took_ms:.0f} ms")

    def _led_by_another(self, partition: int, than: Broker) -> bool:
        state = self.cluster.state(self.journal.topic, partition)
        return state is not None and state.leader not in (-1, than.number)

    def await_writes(self, *, timeout_s: float = RECOVERY_S) -> None:
        """Wait until every partition has acknowledged a record sent from now on. Raises: ConditionTimeout."""
        for watch in [self.journal.watch(partition) for partition in range(PARTITIONS)]:
            self._await(watch, timeout_s, "though nothing stands in the way")

    def _await(self, watch: FirstAcknowledgement, timeout_s: float, when: str) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not watch.happened.wait(0.5):
            if self.cluster.died():
                raise ConditionTimeout("; ".join(self.cluster.died()))
            if time.monotonic() > deadline_s:
                raise ConditionTimeout(f"nothing is acknowledged in partition {watch.partition} within {timeout_s:.0f} s {when}")

    def await_recovery(self) -> None:
        """Wait until all replicas are in sync and all partitions are written to, and measure it. Raises: ConditionTimeout."""
        began_s = time.monotonic()
        until(lambda: self.cluster.in_sync(self.journal.topic, PARTITIONS), "all replicas are in sync", timeout_s=RECOVERY_S)
        self.outcome.in_sync_ms.append((time.monotonic() - began_s) * 1000)
        self.await_writes()

    def restart(self, broker: Broker) -> None:
        """Restart a broker, and wait until the cluster has recovered. Raises: ConditionTimeout."""
        broker.spawn()
        broker.await_ready()
        self.await_recovery()


def run_scenario(
    scenario: str,
    run: Callable[[ScenarioContext], None],
    cluster: Cluster,
    *,
    seed: int,
    bound_ms: int,
    log: Callable[[str], None],
) -> ScenarioResult:
    """Run a scenario from the topic's creation to the last read, and check it."""
    outcome = ScenarioResult(scenario, seed, bound_ms=bound_ms)
    began_s = time.monotonic()
    journal = Observations(scenario, PARTITIONS, burst=cluster.setup.burst, pause_s=cluster.setup.pause_ms / 1000)
    try:
        cluster.create(scenario, PARTITIONS)
        context = ScenarioContext(cluster, journal, outcome, log)
        watching = Clients(readers(cluster.clients, journal), journal)
        writing = Clients(producers(cluster.clients, journal), journal)
        try:
            context.await_writes()
            run(context)
            _heal(cluster)
            context.await_recovery()
        except ConditionTimeout as error:
            outcome.problems += [str(error), *cluster.died()]
            _heal(cluster)
        writing.join(stop=True, timeout_s=RECOVERY_S + REQUEST_MS / 1000)
        ends = journal.ends()
        with contextlib.suppress(ConditionTimeout):
            until(lambda: not journal.behind(ends), "", timeout_s=RECOVERY_S)
        journal.violations += [f"{who} was not given everything within {RECOVERY_S:.0f} s" for who in journal.behind(ends)]
        Clients(final_readers(cluster.clients, journal), journal).join(stop=False, timeout_s=RECOVERY_S)
        watching.join(stop=True, timeout_s=30)
        if missing := journal.missed_by(MEMBERS, LAST):
            journal.violations.append(f"the group was never given {len(missing)} records, first {missing[0]}")
        _compare_copies(cluster, journal, outcome)
        outcome.problems += cluster.died()
    except (ConditionTimeout, OSError, RuntimeError) as error:
        outcome.problems.append(f"{type(error).__name__}: {error}")
    outcome.findings = check(journal.recorder)
    outcome.given_up, outcome.unplaced = journal.given_up, journal.unplaced
    outcome.problems += dict.fromkeys(journal.violations)
    outcome.seconds = time.monotonic() - began_s
    return outcome


def _heal(cluster: Cluster) -> None:
    """Start all processes, and remove all network faults."""
    if cluster.network is not None:
        cluster.network.heal()
    if cluster.ensemble is not None:
        for server in cluster.ensemble.servers:
            if not server.alive:
                cluster.ensemble.spawn(server)
                cluster.ensemble.await_ready(server)
    for broker in cluster.brokers.values():
        if broker.alive:
            broker.freeze(frozen=False)
        else:
            broker.spawn()
            broker.await_ready()


def _compare_copies(cluster: Cluster, journal: Observations, outcome: ScenarioResult) -> None:
    """Compare byte for byte; followers may be slightly behind."""
    for partition in range(PARTITIONS):
        try:
            until(partial(_equal, cluster, journal.topic, partition), "", timeout_s=15)
        except ConditionTimeout:
            sizes = [len(copy) for copy in cluster.copies(journal.topic, partition)]
            outcome.problems.append(f"the copies of partition {partition} differ; they have {sizes} bytes")


def _equal(cluster: Cluster, topic: str, partition: int) -> bool:
    copies = cluster.copies(topic, partition)
    return len(copies) == REPLICAS and len(set(copies)) == 1
