"""Measures how long a cluster cannot be written to after the links to its controller are cut, in virtual time, by phase.

Three brokers, a topic whose partitions are each led by another broker, and a producer for each partition with acks=all under
min.insync.replicas 2. The store and clients reach all brokers. There are three kinds of cuts:

================  =======================================================================================================
ONE_WAY           frames to the controller are lost; its requests arrive, and the responses to them are lost
BOTH_WAYS         frames are lost in both directions, as with TCP when packets to the controller are dropped: nothing is
                  acknowledged, so neither requests nor responses arrive
REFUSED           connections to the controller are refused at once; responses to its requests are lost with an error
================  =======================================================================================================

The phases of an outage::

    cut ──▶ most brokers have registered that the controller is unreachable ──▶ it resigned ──▶ another is elected
        ──▶ the last partition has a leader and an ISR that can commit ──▶ the last producer got an acknowledgement
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.records.build import build_batch
from ottla.sim.client_connection import RETRY_MS, Caller
from ottla.sim.cluster_machine import ClusterMachine, wake_all
from ottla.sim.cluster_observer import ClusterObserver
from ottla.sim.links import Links, Way
from ottla.sim.network import Connection, Network
from ottla.sim.world import EPOCH_MS, World
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.wire import errors
from ottla.wire.messages import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from ottla.wire.messages.create_topics import CreatableReplicaAssignment

TOPIC = "written"
BROKERS = 3
#: Time for the brokers to register and for the topic to be created.
READY_MS = 20_000
#: The cut begins within this time after that, at any phase of periodic work.
PHASE_MS = 3_000
#: Timeout of a producer's request; then it looks up the leader again.
PATIENCE_MS = 2_000
PAUSE_MS = 20
#: Interval at which phases are checked.
LOOK_MS = 10
#: A longer outage counts as permanent.
OUTAGE_MAX_MS = 90_000


class Cut(Enum):
    """Kind of cut; see the module's table."""

    ONE_WAY = "one way"
    BOTH_WAYS = "both ways"
    REFUSED = "refused"


@dataclass(slots=True)
class Outage:
    """Milliseconds from the cut to the end of each phase; None if it did not end."""

    registered_ms: int | None = None
    resigned_ms: int | None = None
    elected_ms: int | None = None
    led_ms: int | None = None
    #: By partition.
    written_ms: dict[int, int] = field(default_factory=dict)
    #: The partition that the controller leads when the cut begins.
    own_partition: int = -1

    @property
    def over_ms(self) -> int | None:
        """When every partition was written to again."""
        return max(self.written_ms.values()) if len(self.written_ms) == BROKERS else None


class _Writer:
    """Writes one record after the other to a partition, and looks up its leader in the store after each error."""

    def __init__(self, scene: "ControllerCut", partition: int) -> None:
        self._scene = scene
        self.partition = partition
        self._caller = Caller(scene.world, scene.network, self, f"writer-{partition}", self._later)
        self._taken: dict[int, ClusterMachine] = {}
        #: Number of the next record.
        self._number = 0
        #: When the last acknowledged record was sent.
        self.acknowledged_of_ms = -1
        self._send()

    # The ``Host`` of its connections: the leader.

    def accept(self, connection: Connection) -> bool:
        state = self._scene.state(self.partition)
        machine = self._scene.machines.get(BrokerId(state.leader)) if state is not None else None
        if machine is None or not machine.accept(connection):
            return False
        self._taken[connection.number] = machine
        return True

    def receive(self, connection: Connection, frame: bytearray) -> None:
        self._taken[connection.number].receive(connection, frame)

    def hung_up(self, connection: Connection) -> None:
        self._taken.pop(connection.number).hung_up(connection)

    def _later(self) -> None:
        self._scene.world.after(RETRY_MS, self._send)

    def _send(self) -> None:
        world = self._scene.world
        self._number += 1
        sent_ms = world.now_ms
        data = build_batch([(EPOCH_MS + sent_ms, b"k", b"%d" % self._number, ())])
        part = PartitionProduceData(index=self.partition, records=data)
        request = ProduceRequest(acks=-1, timeout_ms=PATIENCE_MS, topic_data=[TopicProduceData(name=TOPIC, partition_data=[part])])

        def answered(response: Any) -> None:
            if response.responses[0].partition_responses[0].error_code == errors.NONE:
                self.acknowledged_of_ms = sent_ms
                world.after(PAUSE_MS, self._send)
            else:
                # The connection calls ``_later`` when it is closed.
                self._caller.hang_up()

        if not self._caller.call(request, answered, batch=data, timeout_ms=PATIENCE_MS):
            self._later()


class ControllerCut:
    """One cluster whose controller is cut off."""

    def __init__(self, seed: int, *, settings: Mapping[str, str] | None = None) -> None:
        self.world = World(seed)
        self.network = Network(self.world)
        self.store = MemoryStore()
        self.links = Links(self.world)
        self.machines: dict[BrokerId, ClusterMachine] = {}
        for number in range(1, BROKERS + 1):
            ClusterMachine(self.world, self.store, dict(settings or {}), self.machines, self.links, broker_id=number)
        wake_all(self.store, self.machines)
        self.observer = ClusterObserver(self.machines, self.store, lambda topic: True)
        self._writers: list[_Writer] = []
        self._begin()

    def _begin(self) -> None:
        for machine in self.machines.values():
            machine.start()
        assert self.world.run(READY_MS, lambda: len(self._registrations()) == BROKERS and self.controller is not None), "brokers register"
        self._create()
        self._writers = [_Writer(self, partition) for partition in range(BROKERS)]
        ready = self.world.run(2 * READY_MS, lambda: all(writer.acknowledged_of_ms >= 0 for writer in self._writers))
        assert ready, "every partition is written to"
        self.world.run(self.world.now_ms + self.world.rng("phase").randint(0, PHASE_MS))

    def _create(self) -> None:
        """Creates the topic; retries while a broker does not know all brokers yet."""
        numbers = list(self.machines)
        replicas = [[*numbers[first:], *numbers[:first]] for first in range(BROKERS)]
        assignments = [CreatableReplicaAssignment(partition_index=at, broker_ids=[*map(int, ids)]) for at, ids in enumerate(replicas)]
        requested = CreatableTopic(
            name=TOPIC,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=[CreatableTopicConfig(name="min.insync.replicas", value="2")],
        )
        caller = Caller(self.world, self.network, self.machines[numbers[0]], "operator")

        def create() -> None:
            caller.call(CreateTopicsRequest(topics=[requested], timeout_ms=1_000), created)

        def created(response: Any) -> None:
            if response.topics[0].error_code not in (errors.NONE, errors.TopicAlreadyExists.code):
                self.world.after(RETRY_MS, create)

        create()

    @property
    def controller(self) -> BrokerId | None:
        node = self.store.tree.nodes.get(layout.CONTROLLER)
        return layout.decode_controller(node.data) if node is not None else None

    def state(self, partition: int) -> layout.PartitionState | None:
        return self.observer.state(TopicPartition(TOPIC, partition))

    def outage(self, cut: Cut, *, until_ms: int = OUTAGE_MAX_MS) -> Outage:
        """Cuts the links to the controller, and measures until every partition is written to again, at most until ``until_ms``."""
        holder = self.controller
        assert holder is not None, "there is a controller"
        epoch = layout.decode_controller_epoch(self.store.tree.nodes[layout.CONTROLLER_EPOCH].data)
        outage = Outage()
        for partition in range(BROKERS):
            state = self.state(partition)
            assert state is not None, "every partition is written to"
            if state.leader == holder:
                outage.own_partition = partition
        cut_ms = self.world.now_ms
        self.links.cut(self._ways(holder, cut), silent=cut is not Cut.REFUSED)
        while self.world.now_ms - cut_ms < until_ms and outage.over_ms is None:
            self.world.run(self.world.now_ms + LOOK_MS)
            self._look(outage, holder, epoch, cut_ms)
        return outage

    def heal(self) -> None:
        """Undoes all cuts."""
        self.links.mend()

    def in_sync(self) -> bool:
        """Whether every replica of every partition is in the ISR."""
        states = [self.state(partition) for partition in range(BROKERS)]
        return all(state is not None and len(state.isr) == BROKERS for state in states)

    def _ways(self, holder: BrokerId, cut: Cut) -> list[Way]:
        others = [broker for broker in self.machines if broker != holder]
        ways: list[Way] = [(other, holder) for other in others]
        if cut is Cut.BOTH_WAYS:
            ways += [(holder, other) for other in others]
        return ways

    def _registrations(self) -> list[layout.BrokerRegistration]:
        return [layout.decode_broker(node.data) for path, node in self.store.tree.nodes.items() if layout.broker_of(path) is not None]

    def _look(self, outage: Outage, holder: BrokerId, epoch: int, cut_ms: int) -> None:
        """Records the phases that have ended."""
        took_ms = self.world.now_ms - cut_ms
        naming = sum(found.unheard == epoch for found in self._registrations())
        if outage.registered_ms is None and naming * 2 > BROKERS:
            outage.registered_ms = took_ms
        if outage.resigned_ms is None and self.controller != holder:
            outage.resigned_ms = took_ms
        if outage.elected_ms is None and self.controller not in (None, holder):
            outage.elected_ms = took_ms
        states = [self.state(partition) for partition in range(BROKERS)]
        if all(state is not None and holder not in (state.leader, *state.isr) and len(state.isr) > 1 for state in states):
            outage.led_ms = outage.led_ms or took_ms
        for writer in self._writers:
            if writer.acknowledged_of_ms > cut_ms:
                outage.written_ms.setdefault(writer.partition, took_ms)
