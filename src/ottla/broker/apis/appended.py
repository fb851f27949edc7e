"""Requests that speak of offsets just after a producer's acks=1: they wait for the flush that is under way.

acks=1 is answered before the record is on disk, and below the high watermark lies only what is. A partition without followers has nothing
else to wait for: its high watermark follows the log end by one flush. In Kafka, which calls a record of such a partition committed once it
is appended, a client that was answered finds its record at the end of the log when it asks for that next; here it does, too, for who asks
is answered once that flush is done. With followers neither promises it.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from ottla.base.units import SECOND_MS
from ottla.broker.events import RequestArrived
from ottla.broker.leader import Leader
from ottla.broker.purgatory import Parked

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: A flush takes some milliseconds; of a disk that hangs, a client is told what there is.
WAIT_MS = 1 * SECOND_MS


def once_on_disk(node: "Node", call: RequestArrived, leaders: Iterable[Leader], answer: Callable[[], Any]) -> Any:
    """``answer()``, after the flush of what partitions without followers hold now; at once where there is none to wait for."""
    waits = [(each, each.log.end_offset) for each in leaders if not each.insync.standings and each.high_watermark < each.log.end_offset]
    if not waits:
        return answer()

    def flushed() -> bool:
        return all(
            leader.high_watermark >= end or node.partitions.leaders.get(leader.partition) is not leader or leader.log.end_offset < end
            for leader, end in waits
        )

    parked = Parked([leader.partition for leader, _ in waits], flushed, lambda expired: node.answer(call, answer()))
    return node.park(call, parked, node.now_ms + WAIT_MS)
