"""Topics that are created and deleted while a cluster has faults, and created again under the same name.

Their records are not checked. At the end, existing topics must be held by all of their replicas and no other broker, and nothing may remain
of deleted ones, also if a broker was down when its partition was deleted, or if its disk lost the deletion.
"""

from collections.abc import Mapping
from typing import Any

from ottla.base.ids import BrokerId
from ottla.sim.client_connection import send_once
from ottla.sim.cluster_clients import Entrance
from ottla.sim.cluster_machine import ClusterMachine
from ottla.sim.network import Network
from ottla.sim.world import World
from ottla.store import layout
from ottla.store.memory import MemoryStore
from ottla.wire.messages import (
    CreatableTopic,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)

NAMES = ("passing-0", "passing-1")


class PassingTopics:
    """Creates, expands and deletes a few topics."""

    def __init__(self, world: World, network: Network, machines: Mapping[BrokerId, ClusterMachine]) -> None:
        self._world = world
        self._network = network
        self._machines = machines
        self._rng = world.rng("passing")

    def happen(self) -> None:
        """Requests a change of one topic and ignores the result."""
        name, rng = self._rng.choice(NAMES), self._rng
        requested = CreatableTopic(name=name, num_partitions=rng.randint(1, 3), replication_factor=rng.randint(1, 3))
        request: Any = rng.choice(
            (
                CreateTopicsRequest(topics=[requested], timeout_ms=1_000),
                DeleteTopicsRequest(topic_names=[name], timeout_ms=1_000),
                CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=4, assignments=None)], timeout_ms=1_000),
            )
        )
        self._world.note(f"{type(request).__name__} {name}")
        send_once(self._world, self._network, Entrance(self._rng, self._machines, lambda: -1), request)

    def remains(self, store: MemoryStore) -> str:
        """The first violation at the end; empty if there is none."""
        for name in NAMES:
            node = store.tree.nodes.get(layout.topic(name))
            topic = layout.decode_topic(node.data) if node is not None else None
            for broker, machine in self._machines.items():
                if machine.node is None:
                    return f"broker {broker} is down"
                held = {
                    partition.partition: log.topic_id
                    for directory in machine.node.context.directories
                    for partition, log in directory.logs.items()
                    if partition.topic == name
                }
                replicas = topic.replicas if topic is not None else {}
                wanted = {number: topic.topic_id for number, brokers in replicas.items() if broker in brokers} if topic is not None else {}
                if held != wanted:
                    return f"of {name} broker {broker} holds {sorted(held)}, not {sorted(wanted)}"
        return ""
