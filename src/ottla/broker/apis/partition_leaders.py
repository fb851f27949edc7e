"""Who leads a partition, for clients: the hints with which Produce and Fetch answer one that asked the wrong broker, partitions as
Metadata shows them, and addresses as clients see them.

Source: KIP-951.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.base.ids import NO_EPOCH, BrokerId, TopicPartition
from ottla.broker.events import RequestArrived
from ottla.broker.metadata.image import NO_LEADER, Registration, Topic
from ottla.wire.messages.leader_hints import LeaderIdAndEpoch, NodeEndpoint

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: A broker that listens everywhere registers this; it is no address to send a client to.
ANYWHERE = ("", "0.0.0.0", "::")


class Seen(NamedTuple):
    """A partition as far as this broker knows; leader -1 when none of its replicas can lead it now."""

    leader: BrokerId
    leader_epoch: int
    isr: list[int]
    offline: list[int]


def as_seen(node: "Node", topic: Topic, number: int) -> Seen:
    """What to tell about a partition: a replica is offline when its broker is gone, or its log directory failed.

    The ISR is told as it stands in the store, also of brokers that are gone: of a partition without a leader it says whom to bring back.
    """
    state = topic.states.get(number)
    partition, brokers = TopicPartition(topic.name, number), node.image.brokers
    broken = partition in node.partitions.offline
    offline = [
        broker
        for broker in topic.replicas[number]
        if (found := brokers.get(BrokerId(broker))) is None or partition in found.offline or (broken and broker == node.broker_id)
    ]
    if state is None:
        return Seen(NO_LEADER, NO_EPOCH, [], offline)
    leader = NO_LEADER if state.leader in offline else BrokerId(state.leader)
    return Seen(leader, state.leader_epoch, list(state.isr), offline)


def leader_hint(node: "Node", partition: TopicPartition) -> LeaderIdAndEpoch:
    """The leader of a partition as this broker knows it."""
    state = node.image.state(partition)
    return LeaderIdAndEpoch(leader_id=state.leader, leader_epoch=state.leader_epoch) if state else LeaderIdAndEpoch()


def endpoints_of(node: "Node", call: RequestArrived, partitions: Iterable[TopicPartition]) -> list[NodeEndpoint]:
    """Addresses of the brokers that lead these partitions, without this one."""
    leaders = dict.fromkeys(leader_hint(node, partition).leader_id for partition in partitions)
    found = (node.image.brokers.get(BrokerId(leader)) for leader in leaders if leader != node.broker_id)
    return [
        NodeEndpoint(node_id=broker.broker, host=address[0], port=address[1], rack=broker.rack)
        for broker in found
        if broker is not None
        for address in (address_for(node, call, broker),)
    ]


def address_for(node: "Node", call: RequestArrived, broker: Registration) -> tuple[str, int]:
    """Host and port under which this client reaches a broker: what the broker was told to listen at, or to advertise.

    For one that listens everywhere, without advertised.listeners, it is the host that the client itself used: what works from where it is.
    Every broker tells the same of each; a client that hears two names of one broker drops its connection with every answer.
    """
    unnamed = broker.host in ANYWHERE and bool(call.local[0]) and not node.options.advertised_listeners
    return (call.local[0] if unnamed else broker.host), broker.port
