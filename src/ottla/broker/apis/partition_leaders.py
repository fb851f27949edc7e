"""Partition leaders for clients: leader hints in Produce and Fetch errors, partitions in Metadata, and client addresses of brokers.

Source: KIP-951.
"""

from collections.abc import Iterable
from typing import Any

import msgspec

from ottla.base.ids import NO_EPOCH, BrokerId, TopicPartition
from ottla.broker.events import RequestArrived
from ottla.broker.metadata.image import NO_LEADER, Registration, Topic
from ottla.broker.node import Node
from ottla.wire.messages.leader_hints import LeaderIdAndEpoch, NodeEndpoint

#: Registered by brokers that listen everywhere; not an address for clients.
ANYWHERE = ("", "0.0.0.0", "::")


class PartitionView(msgspec.Struct, gc=False):
    """A partition as this broker knows it; leader -1 if no replica can lead it now."""

    leader: BrokerId
    leader_epoch: int
    isr: list[int]
    offline: list[int]


def partition_view(node: Node, topic: Topic, number: int) -> PartitionView:
    """The state of a partition for clients: a replica is offline if its broker is gone or its log directory failed.

    The ISR is the one in the store, including brokers that are gone: for a partition without a leader it shows which brokers to start.
    """
    state = topic.states.get(number)
    # Equal to the TopicPartition, and cheaper.
    partition, context = (topic.name, number), node.context
    brokers, broken = context.image.brokers, partition in node.partitions.offline
    offline = [
        broker
        for broker in topic.replicas[number]
        if (found := brokers.get(broker)) is None  # type: ignore[call-overload]
        or partition in found.offline
        or (broken and broker == context.broker_id)
    ]
    if state is None:
        return PartitionView(NO_LEADER, NO_EPOCH, [], offline)
    leader = NO_LEADER if state.leader in offline else BrokerId(state.leader)
    return PartitionView(leader, state.leader_epoch, list(state.isr), offline)


def leader_hint(node: Node, partition: TopicPartition) -> LeaderIdAndEpoch:
    """The leader of a partition as this broker knows it."""
    state = node.context.image.state(partition)
    return LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch) if state else LeaderIdAndEpoch()


def endpoints_of(node: Node, call: RequestArrived[Any], partitions: Iterable[TopicPartition]) -> list[NodeEndpoint]:
    """Addresses of the leaders of these partitions, except this broker."""
    leaders = dict.fromkeys(leader_hint(node, partition).leader_id for partition in partitions)
    found = (node.context.image.brokers.get(BrokerId(leader)) for leader in leaders if leader != node.context.broker_id)
    return [
        NodeEndpoint(node_id=broker.broker, host=address[0], port=address[1], rack=broker.rack)
        for broker in found
        if broker is not None
        if (address := address_for(node, call, broker)) is not None
    ]


def address_for(node: Node, call: RequestArrived[Any], broker: Registration) -> tuple[str, int] | None:
    """Host and port of a broker for this client: those of its listener with the name of the listener that the client uses; None if the
    broker advertises none.

    For a broker that listens everywhere without advertised.listeners it is the host that the client used. Every broker returns the same
    address of a broker: a client that gets two addresses for one broker reconnects with every response.
    """
    origin = call.origin
    found = broker.addresses.get(origin.listener)
    if found is not None and found[0] in ANYWHERE and origin.local[0] and not node.context.options.advertised_listeners:
        return origin.local[0], found[1]
    return found


def unreachable(node: Node, call: RequestArrived[Any]) -> set[int]:
    """Brokers without the listener that the client uses."""
    return {broker.broker for broker in node.context.image.brokers.values() if broker.endpoint(call.origin.listener) is None}
