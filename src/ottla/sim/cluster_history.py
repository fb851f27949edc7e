"""One simulated history of a cluster: three to five brokers over one store, topics with three replicas, clients that look up leaders.

Phases as in ``history.py``: topics are created; producers (acks=all, min.insync.replicas 2) and consumers run while faults happen to
brokers, disks, clocks, links, the store and clients; topics grow, are created and deleted. Then all faults are undone. Within
``SETTLED_BY_MS`` producers must finish and the cluster must be healthy: every partition led, every replica in sync, all replicas equal, no
remains of deleted topics. Finally the power fails everywhere, and the cluster must become healthy again.

``cluster_observer.py`` checks invariants during the whole history.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.log.errors import LogError
from ottla.log.log import Log
from ottla.records.errors import RecordsError
from ottla.sim.cluster_faults import CLUSTER_FAULT_KINDS, SKEW_MS, ClusterFaults
from ottla.sim.cluster_machine import ClusterMachine, wake_all
from ottla.sim.cluster_observer import ClusterObserver
from ottla.sim.cluster_topic import REPLICAS, ClusterTopic
from ottla.sim.history import CLEANER, Verdict, read_log
from ottla.sim.links import Links
from ottla.sim.network import Network
from ottla.sim.transient_topics import PassingTopics
from ottla.sim.world import EPOCH_MS, World
from ottla.store.memory import MemoryStore

FAULTS_UNTIL_MS = 8_000
BEGUN_BY_MS = 20_000
#: Time from the end of the faults, when no broker sleeps, to a healthy cluster.
SETTLED_BY_MS = 60_000
#: Faults of this kind of history beside those of every cluster.
GROWTH, PASSING, MOVE, ELECTION, LATE = "topic grows", "topic comes or goes", "partition moves", "preferred election", "late election"
CLUSTER_KINDS = (*CLUSTER_FAULT_KINDS, GROWTH, PASSING, MOVE, ELECTION)
#: Faults that are added in three of ten histories.
BESIDE, BESIDE_IN_TEN = ("controller hard to reach", "change in doubt", LATE), 3
#: In two of ten histories clients delete records of a topic.
TRIM, TRIM_IN_TEN = "records deleted", 2
#: In two of ten histories bits rot on one broker's disk, and its logs are scrubbed often.
ROT, ROT_IN_TEN, SCRUBBED = "bit rot", 2, {"ottla.log.scrub.interval.ms": "2000", "log.flush.offset.checkpoint.interval.ms": "500"}
SCRUB_PASS_MS = 6_000
RACKS = ("a", "b", "c")
SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
#: Followers leave the ISR soon, so that histories exercise it.
SETTINGS = {
    "ottla.disk.reserve.bytes": "65536",
    "replica.lag.time.max.ms": "1000",
    "replica.fetch.wait.max.ms": "200",
    "controlled.shutdown.retry.backoff.ms": "300",
    "leader.imbalance.check.interval.seconds": "2",
    **CLEANER,
}


class ClusterHistory:
    """One history of a cluster."""

    def __init__(
        self,
        seed: int,
        *,
        kinds: Sequence[str] = CLUSTER_KINDS,
        configs: Mapping[str, str] | None = None,
        brokers: int | None = None,
        gentle: bool | None = None,
        kinds_max: int = 8,
    ) -> None:
        """``kinds`` are the faults to choose from, at most ``kinds_max`` of them.
        ``configs`` are topic settings. ``gentle`` is described below; by default one history of seven is gentle.
        """
        self.world = World(seed)
        rng = self.world.rng("profile")
        self.complaints: list[str] = []
        self.network = Network(self.world)
        self.store = MemoryStore()
        self.links = Links(self.world)
        self.machines: dict[BrokerId, ClusterMachine] = {}
        texts = {**SETTINGS, "num.replica.fetchers": str(rng.choice((1, 1, 2)))}
        self.rots = rots = ROT in kinds or (kinds is CLUSTER_KINDS and self.world.rng("rot").random() * 10 < ROT_IN_TEN)
        texts |= SCRUBBED if rots else {}
        #: Brokers have racks, and consumers in a rack read from a replica there.
        self.racks = self.world.rng("racks").random() < 0.3
        for number in range(1, (brokers or rng.choice((3, 3, 3, 4, 5))) + 1):
            own = {**texts, "broker.rack": RACKS[number % len(RACKS)], "replica.selector.class": SELECTOR} if self.racks else texts
            ClusterMachine(self.world, self.store, own, self.machines, self.links, broker_id=number)
        wake_all(self.store, self.machines)
        self.topics: list[ClusterTopic] = []
        self.observer = ClusterObserver(
            self.machines, self.store, lambda topic: all(topic != each.name or not each.compacted for each in self.topics)
        )
        #: Gentle: the page cache counts as durable, and processes end only while the cluster is healthy, so no single end loses records.
        odds = rng.random()
        self.gentle = not configs and odds < 0.15 if gentle is None else gentle
        chosen = rng.sample(kinds, rng.randint(1, min(kinds_max, len(kinds))))
        chosen += self._beside(kinds, chosen)
        if rots and ROT not in chosen:
            chosen.append(ROT)
        if self.gentle:
            chosen = [kind for kind in chosen if kind not in ("power cut of some", "power cut everywhere")] or ["power cut"]
        if "clock jumps" in chosen:
            for machine in self.machines.values():
                machine.epoch_ms = EPOCH_MS + rng.randint(-SKEW_MS, SKEW_MS)
        self.faults = self._faults(chosen)
        self.configs = {
            "min.insync.replicas": "2",
            "internal.segment.bytes": str(rng.choice((2_000, 10_000, 1 << 20))),
            "index.interval.bytes": str(rng.choice((0, 100, 4096))),
            "retention.ms": "-1",
            **({"write.caching": "true"} if self.gentle else {}),
            **(configs or {}),
        }
        self.caching = self.configs.get("write.caching") == "true"
        self._producers = 0

    def _beside(self, kinds: Sequence[str], chosen: Sequence[str]) -> list[str]:
        """Kinds in addition to the chosen ones."""
        beside, more = self.world.rng("besides"), []
        if kinds is CLUSTER_KINDS and beside.random() * 10 < BESIDE_IN_TEN:
            more.append(beside.choice(BESIDE))
        #: Whether clients delete records.
        self.trims = TRIM in kinds or (kinds is CLUSTER_KINDS and self.world.rng("trims").random() * 10 < TRIM_IN_TEN)
        if self.trims and TRIM not in chosen:
            more.append(TRIM)
        return more

    def _faults(self, chosen: Sequence[str]) -> ClusterFaults:
        self.passing = PassingTopics(self.world, self.network, self.machines)
        more: dict[str, Callable[[], None]] = {GROWTH: self._grow, PASSING: self.passing.happen, MOVE: self._move, ELECTION: self._elect}
        more[LATE] = self._elect_late
        more[TRIM] = self._trim
        return ClusterFaults(
            self.world,
            self.machines,
            self.store,
            self.links,
            self.network,
            chosen,
            more,
            at_rest=lambda: not self._restless(),
            gentle=self.gentle,
        )

    def run(self) -> Verdict:
        """Runs the whole history."""
        for machine in self.machines.values():
            machine.start()
        self._wait(BEGUN_BY_MS, lambda: self._registered() == len(self.machines), "the brokers never registered")
        self._create()
        self._wait(BEGUN_BY_MS, lambda: all(topic.admin.done for topic in self.topics), "the topics were never created")
        self._people()
        self.faults.plan()
        self.world.run(self.world.now_ms + FAULTS_UNTIL_MS)
        self.faults.heal()
        self.world.await_sleepers(self.faults.asleep_until_ms)
        self._wait(SETTLED_BY_MS, lambda: all(topic.done for topic in self.topics), "producers did not finish after the faults")
        if self.rots:
            # Every log is scrubbed once more, so that all rot is found.
            self.world.run(self.world.now_ms + SCRUB_PASS_MS)
        self._settle("after the faults")
        for machine in self.machines.values():
            if self.gentle:
                machine.kill()
            else:
                machine.power_cut()
        for machine in self.machines.values():
            machine.start()
        self._settle("after the last power cut")
        self._judge()
        problems = [*self.complaints, *self.observer.problems, *(text for topic in self.topics for text in topic.problems)]
        acknowledged = sum(topic.reports.acknowledged_count for topic in self.topics)
        return Verdict.of(self.world, problems, acknowledged=acknowledged, faults=self.faults.count, story="cluster")

    def _registered(self) -> int:
        return sum(path.startswith("/brokers/ids/") for path in self.store.tree.nodes)

    def _create(self) -> None:
        rng = self.world.rng("profile")
        for number in range(rng.choice((1, 1, 2))):
            compacted = rng.random() < 0.25
            trimmed = self.trims and not compacted
            topic = ClusterTopic(
                self.world,
                self.network,
                self.machines,
                self.observer,
                ("history", "annals")[number],
                partitions=rng.randint(1, 3),
                configs=self.configs,
                compacted=compacted,
                racks=RACKS if self.racks else ("",),
                trimmed=trimmed,
            )
            self.topics.append(topic)

    def _people(self) -> None:
        rng = self.world.rng("profile")
        for topic in self.topics:
            for partition in range(topic.partitions):
                topic.watched(partition)
            for number in range(rng.randint(1, 3)):
                self._producer(topic, number % topic.partitions)

    def _producer(self, topic: ClusterTopic, partition: int) -> None:
        rng = self.world.rng("profile")
        topic.produced_by(partition, batches=rng.randint(10, 50), number=self._producers, idempotent=rng.random() < 0.8)
        self._producers += 1

    def _grow(self) -> None:
        topic = self.world.rng("growth").choice(self.topics)

        def grown(partition: int) -> None:
            topic.watched(partition)
            if not self.faults.over:
                self._producer(topic, partition)

        topic.grow(grown)

    def _move(self) -> None:
        """Reassigns a partition; sometimes its leader receives that later than others."""
        rng = self.world.rng("moves")
        partition = rng.choice(self.topics).move()
        state = self.observer.state(partition)
        if state is not None and state.leader >= 0 and rng.random() < 0.5:
            self.faults.slow(self.machines[BrokerId(state.leader)], from_store_ms=2_000, for_ms=(3_000,))

    def _trim(self) -> None:
        """Deletes records of every topic for that."""
        for topic in self.topics:
            if topic.trimmed:
                topic.trim()

    def _elect(self) -> None:
        self.world.rng("elections").choice(self.topics).elect()

    def _elect_late(self) -> None:
        """Elects the preferred replica of a partition while it falls behind. If every preferred replica leads, a partition is reassigned
        first.
        """
        topic = self.world.rng("elections").choice(self.topics)
        found = topic.unpreferred()
        if found is None:
            self._move()
        else:
            leader, other = (self.machines[BrokerId(broker)] for broker in found)
            self.faults.elect_late(leader, other, topic.elect)

    def _wait(self, within_ms: int, done: Callable[[], bool], otherwise: str) -> None:
        if not self.world.run(self.world.now_ms + within_ms, done):
            self.complaints.append(otherwise)

    # The end.

    def _settle(self, when: str) -> None:
        if not self.world.run(self.world.now_ms + SETTLED_BY_MS, lambda: not self._restless()):
            self.complaints.append(f"the cluster did not come to rest {when}: {self._restless()}")

    def _restless(self) -> str:
        """The first thing that is not healthy at the end."""
        for topic in self.topics:
            for partition in topic.all_partitions:
                state = self.observer.state(partition)
                if state is None or state.leader < 0 or len(state.isr) != REPLICAS:
                    return f"{partition} has the state {state}"
                copies, replicas = self._copies(partition), self.observer.replicas(partition)
                if sorted(copies) != sorted(replicas):
                    return f"{partition} has copies at {list(copies)}, and the replicas {replicas}"
                damaged = [broker for broker, log in copies.items() if log.damages]
                if damaged:
                    return f"the copies of {partition} at {damaged} are damaged"
                ends = [(log.end_offset, log.end_offset if self.caching else log.recovery_point) for log in copies.values()]
                if len(set(ends)) != 1:
                    return f"the copies of {partition} end at {ends}"
        return self.passing.remains(self.store)

    def _copies(self, partition: TopicPartition) -> dict[BrokerId, Log]:
        found = ((broker, self.observer.replica(broker, partition)) for broker in self.machines)
        return {broker: replica.log for broker, replica in found if replica is not None}

    def _judge(self) -> None:
        """Reads every log from its start; replicas must be equal."""
        for topic in self.topics:
            final: dict[int, list[tuple[int, bytes]]] = {}
            for partition in topic.all_partitions:
                copies: dict[BrokerId, list[tuple[int, bytes]]] = {}
                for broker, log in self._copies(partition).items():
                    try:
                        copies[broker] = read_log(log)
                    except (RecordsError, LogError) as error:
                        self.complaints.append(f"{partition} of broker {broker} cannot be read back: {error}")
                self._compare(topic, partition, copies)
                state = self.observer.state(partition)
                final[partition.partition] = copies.get(BrokerId(state.leader), []) if state is not None else []
            for checker in topic.checkers:
                checker.finish(final)

    def _compare(self, topic: ClusterTopic, partition: TopicPartition, copies: Mapping[BrokerId, Any]) -> None:
        if topic.trimmed and copies:
            # A deletion that was not acknowledged may have taken effect on some.
            start = max(log.start_offset for log in self._copies(partition).values())
            copies = {broker: [record for record in copy if record[0] >= start] for broker, copy in copies.items()}
        if not topic.compacted:
            if any(copy != next(iter(copies.values())) for copy in copies.values()):
                self.complaints.append(f"the copies of {partition} differ: {[len(copy) for copy in copies.values()]} records")
            return
        values: dict[int, bytes] = {}
        for broker, copy in copies.items():
            for offset, value in copy:
                if values.setdefault(offset, value) != value:
                    self.complaints.append(f"{offset} of {partition} at {broker} holds another value than elsewhere")
                    return
