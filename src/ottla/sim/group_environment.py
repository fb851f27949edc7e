"""Where a group or transaction history runs: on one broker or on a cluster.

Clients learn the coordinator of a group and the leader of a partition from the store, as if they had just asked a broker. The broker itself
may know an older state, so errors occur.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from random import Random
from typing import Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.coordinator import ShardState
from ottla.broker.groups.classic.group import ClassicGroup
from ottla.broker.groups.consumer.service import ConsumerGroupService
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader
from ottla.log.log import Log
from ottla.sim.client_connection import Caller
from ottla.sim.clients import TOPIC
from ottla.sim.machine import Machine
from ottla.sim.network import Host, Network
from ottla.sim.world import World
from ottla.store import layout
from ottla.store.memory import MemoryStore

OFFSETS = "__consumer_offsets"


class GroupBrokers(Protocol):
    """Brokers by number. With a single broker every number means that broker."""

    store: MemoryStore
    #: Replicas of each partition.
    replicas: int

    @property
    def brokers(self) -> Sequence[int]: ...

    def host(self, broker: int) -> Host: ...

    def anyone(self) -> int: ...

    def entrance(self, partition: int) -> Host:
        """The host for clients of a partition's leader; -1 for any broker."""
        ...

    def leader_of(self, partition: TopicPartition) -> int:
        """The leader in the store; any broker if there is none."""
        ...

    def coordinator_of(self, key: str, topic: str = OFFSETS) -> int:
        """The coordinator of a group, or of another coordinator's key, in the store; any broker if there is none."""
        ...

    def readable(self, positions: Mapping[int, int], rng: Random) -> tuple[int, dict[int, int]]:
        """A broker to read from, and which of these partitions it leads."""
        ...

    def leads(self, broker: int, partition: int) -> bool:
        """Whether responses of a broker about a partition of the history's topic count."""
        ...

    def node(self, broker: int) -> Node | None:
        """None while it is down."""
        ...

    def start(self) -> None: ...

    def ready(self) -> bool:
        """Whether all brokers serve."""
        ...

    def last_look(self, look: Callable[[Node], None]) -> None:
        """Calls ``look`` before each process ends."""
        ...

    def power_cut(self) -> None:
        """Cuts the power everywhere once, and restores it."""
        ...

    def problems(self) -> list[str]:
        """Violated invariants of the environment itself."""
        ...


class Callers:
    """A client's connections, one per broker."""

    def __init__(self, world: World, network: Network, stage: GroupBrokers, name: str) -> None:
        self._world = world
        self._network = network
        self._stage = stage
        self._name = name
        self._callers: dict[int, Caller] = {}

    def to(self, broker: int) -> Caller:
        found = self._callers.get(broker)
        if found is None:
            found = self._callers[broker] = Caller(self._world, self._network, self._stage.host(broker), self._name)
        return found

    def hang_up(self) -> None:
        for caller in self._callers.values():
            caller.hang_up()


class OneBroker:
    """A single broker with number 1."""

    replicas = 1
    brokers = (1,)

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.store = machine.store

    def host(self, broker: int) -> Host:
        return self._machine

    def anyone(self) -> int:
        return 1

    def entrance(self, partition: int) -> Host:
        return self._machine

    def leader_of(self, partition: TopicPartition) -> int:
        return 1

    def coordinator_of(self, key: str, topic: str = OFFSETS) -> int:
        return 1

    def readable(self, positions: Mapping[int, int], rng: Random) -> tuple[int, dict[int, int]]:
        return 1, dict(positions)

    def leads(self, broker: int, partition: int) -> bool:
        return True

    def node(self, broker: int) -> Node | None:
        return self._machine.node

    def start(self) -> None:
        self._machine.start()

    def ready(self) -> bool:
        return self._machine.node is not None and self._machine.node.ready

    def last_look(self, look: Callable[[Node], None]) -> None:
        self._machine.last_look = look

    def power_cut(self) -> None:
        self._machine.power_cut()
        self._machine.start()

    def problems(self) -> list[str]:
        return []


class Scene:
    """The present state of the history's topic and groups."""

    def __init__(self, stage: GroupBrokers) -> None:
        self._stage = stage
        #: Last decoded value, with its bytes.
        self._topic: tuple[bytes, layout.TopicAssignment] | None = None

    def topic(self) -> layout.TopicAssignment | None:
        node = self._stage.store.tree.nodes.get(layout.topic(TOPIC))
        if node is None:
            return None
        if self._topic is None or self._topic[0] is not node.data:
            self._topic = node.data, layout.decode_topic(node.data)
        return self._topic[1]

    def _leaders(self) -> Iterator[Leader]:
        topic = self.topic()
        for number in topic.replicas if topic is not None else ():
            partition = TopicPartition(TOPIC, number)
            node = self._stage.node(self._stage.leader_of(partition))
            leader = node.partitions.leaders.get(partition) if node is not None else None
            if leader is not None:
                yield leader

    def ends(self) -> dict[int, int]:
        """Log end of each partition that has a leader. A new leader's high watermark may be lower for a while."""
        return {leader.partition.partition: leader.log.end_offset for leader in self._leaders()}

    def logs(self) -> dict[int, Log]:
        return {leader.partition.partition: leader.log for leader in self._leaders()}

    def takes(self, group_id: str, member_id: str, epoch: int) -> bool | None:
        """Whether the group's coordinator would accept a commit of a member now; None without a coordinator."""
        node = self._stage.node(self._stage.coordinator_of(group_id))
        number = node.groups.partition_of(group_id) if node is not None else None
        shard = node.groups.shards.get(number) if node is not None and number is not None else None
        if shard is None or shard.state is not ShardState.ACTIVE:
            return None
        group = shard.machine.by_id.get(group_id)
        if isinstance(group, ClassicGroup):
            return member_id in group.members.by_id and group.generation == epoch
        if isinstance(group, ConsumerGroupService):
            found = group.group.members.get(member_id)
            return found is not None and found.epoch == epoch
        return False
