"""Requests about the end of a log that wait for the flush under way: who was answered with acks=1 finds what it wrote.

Kafka's high watermark is at the end of the log at once where a partition has one replica, so clients write with acks=1 and then ask where
the log ends, or delete up to there. Here the high watermark waits for the disk, a few milliseconds, and so do they: for what had been
appended when they asked. With several replicas nobody waits, as in Kafka, where the high watermark comes later then, too.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.base.ids import TopicPartition
from ottla.broker.delayed import Parked
from ottla.broker.events import RequestArrived

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: A disk that takes longer is about to be declared broken; the answer is then what holds without it.
WAIT_MS = 5_000


def when_settled(node: "Node", call: RequestArrived, about: Iterable[tuple[str, int]], answer: Callable[[], Any]) -> Any:
    """Answer at once, or as soon as what these partitions hold now is on disk, where this broker has their only replica."""
    leaders = node.partitions.leaders
    found = (leaders.get(TopicPartition(topic, partition)) for topic, partition in about)
    ends = [(leader, leader.log.end_offset) for leader in found if leader is not None and leader.unsettled]
    if not ends:
        return answer()

    def settled() -> bool:
        return all(leader.high_watermark >= end or leaders.get(leader.partition) is not leader for leader, end in ends)

    def finish(_expired: bool) -> None:
        node.answer(call, answer())

    return node.park(call, Parked([leader.partition for leader, _ in ends], settled, finish), node.now_ms + WAIT_MS)
