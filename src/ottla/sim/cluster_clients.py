"""Clients of a simulated cluster: they look up the leader of their partition, and try another broker after an error.

A client reads the store instead of sending Metadata: mostly it goes to the leader, often to another broker. Consumers send the leader epoch
that they know, so that a former leader cannot answer them.
"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.broker.apis.k02_list_offsets import LATEST
from ottla.sim.checkers.cluster import LatestNeverFalls
from ottla.sim.client_connection import RETRY_MS, Caller
from ottla.sim.clients import Consumer
from ottla.sim.cluster_machine import ClusterMachine
from ottla.sim.network import Connection, Network
from ottla.sim.world import World
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

#: Probability that a client connects to the right broker.
WELL_INFORMED = 0.8
#: Probability that a client looks for another broker after a success.
RESTLESS = 0.1


class Entrance:
    """The host that clients connect to: mostly the broker that ``belongs`` returns, often another one."""

    def __init__(self, rng: Random, machines: Mapping[BrokerId, ClusterMachine], belongs: Callable[[], int]) -> None:
        """``belongs``: -1 for any broker."""
        self._rng = rng
        self._machines = machines
        self._belongs = belongs
        self._taken: dict[int, ClusterMachine] = {}
        #: The broker of the last connection.
        self.last = BrokerId(-1)

    def accept(self, connection: Connection) -> bool:
        machine = self._rng.choice(list(self._machines.values()))
        if self._rng.random() < WELL_INFORMED:
            machine = self._machines.get(BrokerId(self._belongs()), machine)
        self._taken[connection.number] = machine
        self.last = machine.broker_id
        return machine.accept(connection)

    def receive(self, connection: Connection, frame: bytearray) -> None:
        self._taken[connection.number].receive(connection, frame)

    def hung_up(self, connection: Connection) -> None:
        self._taken.pop(connection.number).hung_up(connection)


class Reader(Consumer):
    """A consumer that changes brokers after an error, sometimes without one, and follows its preferred read replica."""

    #: The preferred read replica; -1 for the leader.
    near = -1

    def _answered(self, response: Any) -> None:
        data = response.responses[0].partitions[0] if response.responses else None
        if data is None or data.error_code:
            self.near = -1
            self._caller.hang_up()
        elif data.preferred_read_replica >= 0:
            self.near = data.preferred_read_replica
            self._caller.hang_up()
        elif self._rng.random() < RESTLESS:
            self._caller.hang_up()
        super()._answered(response)


class Lister:
    """Lists the end offset of a partition for ever, with the leader epoch that it knows."""

    def __init__(
        self,
        world: World,
        network: Network,
        host: Entrance,
        partition: TopicPartition,
        state: Callable[[], PartitionState | None],
        checker: LatestNeverFalls,
        leader_of: Callable[[TopicPartition, int], int | None],
    ) -> None:
        """``host`` belongs to this client alone; ``leader_of`` returns the leader of an epoch."""
        self._host = host
        self._leader_of = leader_of
        self._world = world
        self._rng = world.rng(f"lister {partition}")
        self._partition = partition
        self._state = state
        self._checker = checker
        self._caller = Caller(world, network, host, "lister", self._again)
        world.after(self._rng.randint(0, 500), self._ask)

    def _again(self) -> None:
        self._world.after(RETRY_MS, self._ask)

    def _ask(self) -> None:
        state = self._state()
        epoch = state.leader_epoch if state is not None else -1
        requested = ListOffsetsPartition(partition_index=self._partition.partition, current_leader_epoch=epoch, timestamp=LATEST)
        request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=self._partition.topic, partitions=[requested])])
        told = self._checker.highest(self._partition)

        def answered(response: Any) -> None:
            answer = response.topics[0].partitions[0]
            if answer.error_code == errors.NONE:
                self._checker.told(self._partition, answer.offset, asked_at=told)
                if epoch >= 0 and self._leader_of(self._partition, epoch) != asked:
                    self._checker.wrong(self._partition, epoch, asked)
            if answer.error_code != errors.NONE or self._rng.random() < RESTLESS:
                # A closed connection starts again.
                self._caller.hang_up()
            else:
                self._world.after(self._world.unhurried(self._rng.choice((20, 100, 500))), self._ask)

        if not self._caller.call(request, answered):
            self._again()
        asked = self._host.last
