"""A topic of a simulated cluster with its clients and checkers.

Each partition has a consumer that reads everything and a client that lists its end offset; producers (acks=all) write to some partitions. A
topic may grow: new partitions get clients of their own. For a compacted topic only values are compared, because each broker compacts its
own replica.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.sim.checkers import Checker
from ottla.sim.checkers.checks import (
    AcknowledgedIsKept,
    LastValueIsKept,
    NoDuplicates,
    OffsetsAreDense,
    OffsetsAreNeverReused,
    OffsetsStay,
    OrderIsKept,
)
from ottla.sim.checkers.client_history import HistoryIsSound
from ottla.sim.checkers.cluster import LatestNeverFalls
from ottla.sim.client_connection import Caller, send_once
from ottla.sim.clients import Admin, Producer
from ottla.sim.cluster_clients import Entrance, Lister, Reader
from ottla.sim.cluster_machine import ClusterMachine
from ottla.sim.cluster_observer import ClusterObserver
from ottla.sim.network import Network
from ottla.sim.report_fanout import Reports
from ottla.sim.world import World
from ottla.wire import messages as m

CHECKERS: tuple[type[Checker], ...] = (
    AcknowledgedIsKept,
    NoDuplicates,
    OffsetsAreDense,
    OffsetsAreNeverReused,
    OrderIsKept,
    HistoryIsSound,
)
#: Of a topic whose records are deleted. The other checkers need every record from offset 0 on.
TRIMMED: tuple[type[Checker], ...] = (AcknowledgedIsKept, NoDuplicates, OffsetsAreDense, OffsetsAreNeverReused)
COMPACTED: tuple[type[Checker], ...] = (LastValueIsKept, NoDuplicates, OffsetsStay)
PARTITIONS_MAX = 5
REPLICAS = 3
#: Timeouts after which a producer looks for another leader.
PATIENCE_MS = (300, 800, 2_000)
#: Delays between two batches of a producer. A slow producer continues as long as there are faults.
PAUSES_MS = ((0, 5, 20, 100), (0, 5, 20, 100), (100, 300, 900))
#: Compacted often, in small segments.
COMPACTION = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "internal.segment.bytes": "3000",
    "file.delete.delay.ms": "500",
}


class ClusterTopic:
    """One topic of a cluster history."""

    def __init__(
        self,
        world: World,
        network: Network,
        machines: Mapping[BrokerId, ClusterMachine],
        observer: ClusterObserver,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        compacted: bool,
        racks: Sequence[str] = ("",),
        trimmed: bool = False,
    ) -> None:
        """``racks``: racks of consumers. ``trimmed``: clients delete records."""
        self._racks = racks
        self.name = name
        self.partitions = partitions
        self.compacted = compacted
        self.trimmed = trimmed
        #: By partition: the offset up to which clients asked to delete records.
        self.deleted_to: dict[int, int] = {}
        self._readers: dict[int, Reader] = {}
        self.checkers: list[Checker] = [kind() for kind in (COMPACTED if compacted else TRIMMED if trimmed else CHECKERS)]
        for checker in self.checkers:
            checker.deleted_to = self.deleted_to
        self.reports = Reports(world, self.checkers, of=name)
        self.latest = LatestNeverFalls()
        self.producers: list[Producer] = []
        self._world = world
        self._network = network
        self._machines = machines
        self._witness = observer
        self._rng = world.rng(f"topic {name}")
        self._pauses = world.rng(f"tempo of {name}")
        configs = {**configs, **(COMPACTION if compacted else {})}
        self.admin = Admin(world, network, self._entrance(0), partitions, configs, topic=name, replication_factor=REPLICAS)

    def watched(self, partition: int) -> None:
        """Adds a consumer and an end-offset client to a partition."""
        where = TopicPartition(self.name, partition)
        entrance = Entrance(self._world.rng("entrances"), self._machines, lambda: reader.near if reader.near >= 0 else self._leader(where))
        reader = Reader(self._world, self._network, entrance, self.reports, number=partition, partition=partition, topic=self.name)
        reader.leader_epoch = lambda: self._epoch(where)
        reader.rack = self._rng.choice(self._racks)
        reader.dense = not self.compacted
        reader.deleted_to = lambda: self.deleted_to.get(partition, 0)
        self._readers[partition] = reader
        own, state = self._entrance(partition), lambda: self._witness.state(where)
        Lister(self._world, self._network, own, where, state, self.latest, self._witness.leader_of)

    def produced_by(self, partition: int, *, batches: int, number: int, idempotent: bool) -> None:
        """Adds a producer; ``number`` is unique."""
        self.producers.append(
            Producer(
                self._world,
                self._network,
                self._entrance(partition),
                self.reports,
                number=number,
                partition=partition,
                batches=batches,
                idempotent=idempotent,
                keyed=self.compacted,
                topic=self.name,
                pauses_ms=self._pauses.choice(PAUSES_MS),
                patience_ms=self._rng.choice(PATIENCE_MS),
            )
        )

    def grow(self, grown: Callable[[int], None]) -> None:
        """Adds a partition; ``grown`` is called with its number if that succeeded."""
        number = self.partitions
        if number >= PARTITIONS_MAX:
            return
        requested = m.CreatePartitionsTopic(name=self.name, count=number + 1, assignments=None)
        self._request(m.CreatePartitionsRequest(topics=[requested], timeout_ms=1_000))

        def look() -> None:
            # The request or its response may be lost: the store decides.
            if self._witness.state(TopicPartition(self.name, number)) is not None and self.partitions == number:
                self.partitions += 1
                grown(number)

        self._world.after(1_500, look)

    def trim(self) -> None:
        """Deletes records that the consumer of a partition has read."""
        number = self._rng.choice(list(self._readers))
        where, offset = TopicPartition(self.name, number), self._rng.randint(0, self._readers[number].position)
        self.deleted_to[number] = max(self.deleted_to.get(number, 0), offset)
        asked = m.DeleteRecordsTopic(name=self.name, partitions=[m.DeleteRecordsPartition(partition_index=number, offset=offset)])
        caller = Caller(self._world, self._network, self._entrance(number), "operator")

        def answered(response: Any) -> None:
            [result] = response.topics[0].partitions
            if result.error_code == 0:
                self._world.note(f"deleted {where} up to {result.low_watermark}")
                self._witness.deleted.acknowledged(where, result.low_watermark)
            caller.hang_up()

        caller.call(m.DeleteRecordsRequest(topics=[asked], timeout_ms=self._rng.choice((500, 3_000))), answered)

    def move(self) -> TopicPartition:
        """Reassigns a partition or cancels that, and ignores the result. Returns the partition."""
        number = self._rng.randrange(self.partitions)
        state = self._witness.state(TopicPartition(self.name, number))
        brokers = [int(broker) for broker in self._machines]
        if state is not None and len(brokers) > REPLICAS and self._rng.random() < 0.5:
            # The leader must change.
            brokers = [broker for broker in brokers if broker != state.leader]
        target = self._rng.sample(brokers, REPLICAS)
        requested = m.ReassignablePartition(partition_index=number, replicas=target if self._rng.random() < 0.8 else None)
        request = m.AlterPartitionReassignmentsRequest(
            topics=[m.ReassignableTopic(name=self.name, partitions=[requested])], timeout_ms=1_000
        )
        self._world.note(f"{self.name}-{number} is to move to {requested.replicas}")
        self._request(request)
        return TopicPartition(self.name, number)

    def unpreferred(self) -> tuple[int, int] | None:
        """Leader and preferred replica of a partition where they differ; None if there is none."""
        for where in self.all_partitions:
            state, replicas = self._witness.state(where), self._witness.replicas(where)
            if state is not None and state.leader >= 0 and replicas[0] != state.leader and replicas[0] in state.isr:
                return state.leader, replicas[0]
        return None

    def elect(self) -> None:
        """Requests a preferred leader election."""
        asked = m.ElectLeadersRequestTopicPartitions(topic=self.name, partitions=list(range(self.partitions)))
        self._request(m.ElectLeadersRequest(election_type=0, topic_partitions=[asked], timeout_ms=1_000))

    def _request(self, request: Any) -> None:
        send_once(self._world, self._network, self._entrance(-1), request)

    @property
    def done(self) -> bool:
        return all(producer.done for producer in self.producers)

    @property
    def all_partitions(self) -> list[TopicPartition]:
        return [TopicPartition(self.name, number) for number in range(self.partitions)]

    @property
    def problems(self) -> list[str]:
        found = [*self.reports.complaints, *self.latest.problems, *self.reports.problems]
        return [f"{self.name}: {text}" for text in found]

    def _epoch(self, partition: TopicPartition) -> int:
        state = self._witness.state(partition)
        return state.leader_epoch if state is not None else -1

    def _leader(self, partition: TopicPartition) -> int:
        state = self._witness.state(partition)
        return state.leader if state is not None else -1

    def _entrance(self, partition: int) -> Entrance:
        where = TopicPartition(self.name, partition)
        return Entrance(self._world.rng("entrances"), self._machines, lambda: self._leader(where))
