"""Observes what no client sees: every broker after each step that may have changed something, and each change of the store.

It reports changes to the checkers of ``checkers/cluster.py`` and is the ``Cluster`` that they read.
"""

from collections.abc import Callable, Mapping, Sequence

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.ports import Op
from ottla.broker import events
from ottla.broker.registration.peers import PEER
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.sim.checkers import cluster as checkers
from ottla.sim.cluster_machine import ClusterMachine
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.store.memory import MemoryStore

#: Events after which a broker may lead other partitions or know other high watermarks; also requests of other brokers.
TELLING = frozenset(
    (
        events.Flushed,
        events.LogsChanged,
        events.PeerAnswered,
        events.Scrubbed,
        events.StoreChanged,
        events.StoreAnswered,
        events.SessionChanged,
    )
)
#: Store paths that only the controller writes.
CONTROLLED = (layout.TOPICS + "/", layout.CONFIG + "/", layout.CONTROLLER_EPOCH)


class ObservedReplica:
    """A replica as last observed."""

    __slots__ = ("epoch", "high_watermark", "replica")

    def __init__(self, replica: Leader | Follower) -> None:
        self.replica = replica
        self.epoch = -1
        self.high_watermark = 0


class ClusterObserver:
    """Observes all brokers and the store of a cluster."""

    def __init__(self, machines: Mapping[BrokerId, ClusterMachine], store: MemoryStore, follows: Callable[[str], bool]) -> None:
        """``follows``: whether the batches of a topic never change."""
        self._machines = machines
        self._store = store
        #: By broker and partition.
        self._seen: dict[BrokerId, dict[TopicPartition, ObservedReplica]] = {broker: {} for broker in machines}
        #: Decoded states with their bytes.
        self._states: dict[TopicPartition, tuple[bytes, PartitionState]] = {}
        #: Broker epochs of each running process.
        self._registrations: dict[BrokerId, set[int]] = {broker: set() for broker in machines}
        #: What each process had on disk when it ended, by broker and broker epoch.
        self._ended: dict[tuple[int, int], dict[TopicPartition, int]] = {}
        leaders = checkers.OneLeaderPerEpoch(self)
        #: By partition and epoch.
        self.leader_of = leaders.leader_of
        #: Gets acknowledged deletions.
        self.deleted = checkers.DeletedStaysDeleted(self)
        self.checkers: list[checkers.ClusterChecker] = [
            leaders,
            checkers.EpochsRise(self),
            checkers.OneControllerPerEpoch(self),
            checkers.MarksOnlyRise(self),
            checkers.CommittedIsSpread(self),
            checkers.NobodyLeadsUnheard(self),
            checkers.IsrHoldsCommitted(self),
            checkers.CopiesAgree(self, follows),
            self.deleted,
        ]
        for machine in machines.values():
            machine.stepped = self.stepped
            machine.submits = self.submits
            machine.ends = self.ends

    @property
    def problems(self) -> list[str]:
        return [problem for checker in self.checkers for problem in checker.problems]

    # The present state.

    def state(self, partition: TopicPartition) -> PartitionState | None:
        node = self._store.tree.nodes.get(layout.partition_state(*partition))
        if node is None:
            return None
        data, state = self._states.get(partition, (b"", None))
        if data is not node.data or state is None:
            state = layout.decode_partition_state(node.data)
            self._states[partition] = (node.data, state)
        return state

    def replicas(self, partition: TopicPartition) -> tuple[int, ...]:
        """All assigned replicas, including those that a reassignment adds or removes."""
        node = self._store.tree.nodes.get(layout.topic(partition.topic))
        return layout.decode_topic(node.data).replicas.get(partition.partition, ()) if node is not None else ()

    def registration(self, broker: int) -> int | None:
        node, machine = self._store.tree.nodes.get(layout.broker(broker)), self._machines.get(BrokerId(broker))
        running = machine.node.context.epoch if machine is not None and machine.node is not None else None
        return running if node is not None and node.created_zxid == running else None

    def replica(self, broker: int, partition: TopicPartition) -> Leader | Follower | None:
        machine = self._machines.get(BrokerId(broker))
        return machine.node.partitions.replica(partition) if machine is not None and machine.node is not None else None

    def held_at_end(self, broker: int, registration: int, partition: TopicPartition) -> int | None:
        return self._ended.get((broker, registration), {}).get(partition)

    def is_rotten(self, broker: int, partition: TopicPartition) -> bool:
        machine = self._machines.get(BrokerId(broker))
        return machine is not None and partition in machine.rotten

    # Events.

    def stepped(self, machine: ClusterMachine, event: events.Event) -> None:
        """A broker took a step."""
        kind = type(event)
        if kind not in TELLING and (kind is not events.RequestArrived or event.client_id != PEER):  # type: ignore[attr-defined]
            return
        assert machine.node is not None, "it has just stepped"
        if isinstance(event, events.SessionChanged):
            machine.session_connected = event.state == "connected"
        # A broker that stops handles only what its threads still do.
        if not machine.session_connected and not machine.node.context.stopping:
            for checker in self.checkers:
                checker.unheard(machine.broker_id, len(machine.node.partitions.leaders), controls=machine.node.controller.active)
        if machine.node.context.epoch is not None:
            self._registrations[machine.broker_id].add(machine.node.context.epoch)
        partitions, seen = machine.node.partitions, self._seen[machine.broker_id]
        for partition, leader in partitions.leaders.items():
            known = seen.get(partition)
            if known is None or known.replica is not leader:
                known = seen[partition] = ObservedReplica(leader)
            if known.epoch != leader.epoch:
                known.epoch = leader.epoch
                for checker in self.checkers:
                    checker.led(machine.broker_id, leader)
            if known.high_watermark != leader.high_watermark:
                self._moved(machine.broker_id, known)
        for partition, follower in partitions.followers.items():
            known = seen.get(partition)
            if known is None or known.replica is not follower:
                known = seen[partition] = ObservedReplica(follower)
            if known.high_watermark != follower.high_watermark:
                self._moved(machine.broker_id, known)

    def ends(self, machine: ClusterMachine) -> None:
        """A process is about to end."""
        assert machine.node is not None, "it has not ended yet"
        partitions = machine.node.partitions
        held = {
            partition: checkers.held_by(replica)
            for kind in (partitions.leaders, partitions.followers)
            for partition, replica in kind.items()
        }
        for registration in self._registrations[machine.broker_id]:
            self._ended[machine.broker_id, registration] = held
        self._registrations[machine.broker_id] = set()

    def _moved(self, broker: BrokerId, known: ObservedReplica) -> None:
        before, known.high_watermark = known.high_watermark, known.replica.high_watermark
        for checker in self.checkers:
            checker.moved(broker, known.replica, before)

    def submits(self, machine: ClusterMachine, ops: Sequence[Op], carry_out: Callable[[], None]) -> None:
        """A broker submits operations to the store."""
        partitions = [tp for op in ops if op.kind in ("create", "set") and (tp := layout.partition_state_of(op.path)) is not None]
        before = {partition: self.state(partition) for partition in partitions}
        zxid = self._store.tree.zxid
        carry_out()
        if self._store.tree.zxid == zxid:
            return
        if any(op.kind != "check" and op.path.startswith(CONTROLLED) for op in ops):
            epoch = layout.decode_controller_epoch(self._store.tree.nodes[layout.CONTROLLER_EPOCH].data)
            for checker in self.checkers:
                checker.wrote(machine.broker_id, epoch)
        for op in ops:
            topic = layout.topic_of(op.path) if op.kind == "delete" else None
            if topic is not None:
                for checker in self.checkers:
                    checker.gone(topic)
        for partition, former in before.items():
            state = self.state(partition)
            if state is not None:
                for checker in self.checkers:
                    checker.state_written(partition, former, state)
