"""A cluster as the environment of group and transaction histories: offsets have three replicas, and coordinators move with partition
leaders.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random

from ottla.base.ids import BrokerId, TopicPartition, partition_for
from ottla.broker.node import Node
from ottla.broker.transactions.transactions import TRANSACTIONS_TOPIC
from ottla.sim.cluster_clients import Entrance
from ottla.sim.cluster_faults import ClusterFaults
from ottla.sim.cluster_machine import ClusterMachine, wake_all
from ottla.sim.cluster_observer import ClusterObserver
from ottla.sim.disk import SimDisk
from ottla.sim.faults import Faults
from ottla.sim.group_environment import OFFSETS, GroupBrokers, OneBroker
from ottla.sim.links import Links
from ottla.sim.machine import Machine
from ottla.sim.network import Host, Network
from ottla.sim.world import World
from ottla.store import layout
from ottla.store.memory import MemoryStore

#: Topics whose replicas that are missing at first are added later.
GROWING = (OFFSETS, TRANSACTIONS_TOPIC)
SETTINGS = {"replica.lag.time.max.ms": "1000", "replica.fetch.wait.max.ms": "200", "controlled.shutdown.retry.backoff.ms": "300"}
#: Probability that a broker is down when clients start, and the interval at which its start is checked.
ONE_AWAY, LOOK_MS = 0.25, 5


class Brokers:
    """Several brokers over one store. A ``GroupEnvironment``."""

    replicas = 3

    def __init__(self, world: World, network: Network, texts: Mapping[str, str], count: int, *topics: str) -> None:
        """``topics`` are those of the history; ``entrance``, ``readable`` and ``leads`` are about the first."""
        self._world = world
        self._network = network
        self._topic = topics[0]
        self._rng = world.rng("brokers")
        self._links = Links(world)
        self.store = MemoryStore()
        self.machines: dict[BrokerId, ClusterMachine] = {}
        texts = {**texts, **SETTINGS, "min.insync.replicas": "2"}
        for number in range(1, count + 1):
            ClusterMachine(world, self.store, texts, self.machines, self._links, broker_id=number)
        wake_all(self.store, self.machines)
        self.brokers: Sequence[int] = list(self.machines)
        self.observer = ClusterObserver(self.machines, self.store, lambda name: name in topics)

    def faults(self, kinds: Sequence[str], more: Mapping[str, Callable[[], None]]) -> ClusterFaults:
        """The faults of this cluster."""
        return ClusterFaults(
            self._world, self.machines, self.store, self._links, self._network, kinds, more, at_rest=lambda: not self._restless()
        )

    def host(self, broker: int) -> Host:
        return self.machines[BrokerId(broker)]

    def anyone(self) -> int:
        return self._rng.choice(self.brokers)

    def entrance(self, partition: int) -> Host:
        where = TopicPartition(self._topic, partition)
        return Entrance(self._rng, self.machines, lambda: self.leader_of(where))

    def leader_of(self, partition: TopicPartition) -> int:
        state = self.observer.state(partition)
        return state.leader if state is not None and state.leader >= 0 else self.anyone()

    def coordinator_of(self, key: str, topic: str = OFFSETS) -> int:
        node = self.store.tree.nodes.get(layout.topic(topic))
        if node is None:
            return self.anyone()
        return self.leader_of(TopicPartition(topic, partition_for(key, len(layout.decode_topic(node.data).replicas))))

    def readable(self, positions: Mapping[int, int], rng: Random) -> tuple[int, dict[int, int]]:
        leader = self.leader_of(TopicPartition(self._topic, rng.choice(sorted(positions))))
        led = {number: at for number, at in positions.items() if self.leader_of(TopicPartition(self._topic, number)) == leader}
        return leader, led or dict(positions)

    def leads(self, broker: int, partition: int) -> bool:
        state = self.observer.state(TopicPartition(self._topic, partition))
        return state is not None and state.leader == broker

    def node(self, broker: int) -> Node | None:
        return self.machines[BrokerId(broker)].node

    def start(self) -> None:
        for machine in self.machines.values():
            machine.start()
        if self._world.rng("away").random() < ONE_AWAY:
            self._world.after(LOOK_MS, self._one_goes)

    def _one_goes(self) -> None:
        """Stops a broker before clients look for coordinators, so that the offsets topic begins with fewer replicas."""
        if layout.topic(self._topic) not in self.store.tree.nodes:
            self._world.after(LOOK_MS, self._one_goes)
            return
        rng = self._world.rng("away")
        machine = self.machines[BrokerId(rng.choice(self.brokers))]
        machine.stop()
        self._world.after(rng.choice((1_000, 3_000, 6_000)), lambda: None if machine.node is not None else machine.start())

    def ready(self) -> bool:
        return all(machine.node is not None and machine.node.ready for machine in self.machines.values()) and not self._restless()

    def last_look(self, look: Callable[[Node], None]) -> None:
        for machine in self.machines.values():
            machine.last_look = look

    def power_cut(self) -> None:
        for machine in self.machines.values():
            machine.power_cut()
        for machine in self.machines.values():
            machine.start()

    def problems(self) -> list[str]:
        return self.observer.problems

    def _restless(self) -> bool:
        """Whether a partition has no leader, or a replica that is missing or not in sync."""
        for path in self.store.tree.nodes:
            partition = layout.partition_state_of(path)
            state = self.observer.state(partition) if partition is not None else None
            if partition is not None and state is not None:
                copies = len(self.observer.replicas(partition))
                # If brokers were down at its creation, replicas of an internal topic are added when they are back.
                if state.leader < 0 or len(state.isr) != copies or (partition.topic in GROWING and copies < self.replicas):
                    return True
                # Until the store expires a dead broker's session, ISRs look as if it were alive.
                if any((node := self.node(broker)) is None or node.context.epoch != state.registration_of(broker) for broker in state.isr):
                    return True
        return False


def environment(
    world: World,
    network: Network,
    texts: dict[str, str],
    brokers: int | None,
    topics: Sequence[str],
    kinds: Sequence[str],
    more: dict[str, Callable[[], None]],
) -> tuple[GroupBrokers, Faults | ClusterFaults]:
    """The brokers of a history with their faults of these kinds, and ``more`` of the history: a cluster, or one broker for None."""
    if brokers is not None:
        cluster = Brokers(world, network, texts, brokers, *topics)
        return cluster, cluster.faults(kinds, more)
    machine = Machine(world, MemoryStore(), SimDisk(now_ms=lambda: world.now_ms), texts)
    return OneBroker(machine), Faults(world, machine, network, list(kinds), more)
