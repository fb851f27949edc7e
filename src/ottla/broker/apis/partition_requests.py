"""Functions shared by the handlers of requests about partitions.

Kafka collects the partitions of a Produce, Fetch, DeleteRecords or ListOffsets request in a map. So the last entry of a partition counts,
and the response names the partition once. Source: Kafka's KafkaApis and FetchRequest.

Requests about the end of a log wait for a flush in progress, so that a client with acks=1 finds its records.

With a single replica Kafka's high watermark is at once at the log end, so clients write with acks=1 and then list the end offset or delete
up to it. Here the high watermark follows the disk, some milliseconds later, so these requests wait for records appended before them; so
does a Fetch without a wait that would miss them. With several replicas they do not wait, because Kafka's high watermark is late too.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import PENDING, Deferred, Resp
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader

T = TypeVar("T", bound=Hashable)
V = TypeVar("V")

#: A slower disk is about to fail; the request is then answered without waiting.
WAIT_MS = 5_000


def by_topic(entries: Iterable[tuple[T, int, V]]) -> dict[T, dict[int, V]]:
    """Groups (topic, partition, value): the last value of each partition, in the order of first appearance."""
    found: dict[T, dict[int, V]] = {}
    for topic, partition, value in entries:
        found.setdefault(topic, {})[partition] = value
    return found


def when_settled(
    node: Node, call: RequestArrived[Any], about: Iterable[tuple[str, int]], answer: Callable[[], Resp | Deferred]
) -> Resp | Deferred:
    """Answers at once, or when the present records of these partitions are on disk, if this broker has their only replica.

    ``answer`` may delay the request further.
    """
    # Few of them: those that were written in the last milliseconds.
    unsettled: dict[tuple[str, int], Leader] = {leader.partition: leader for leader in node.partitions.unsettled() if leader.unsettled}
    if not unsettled:
        return answer()
    ends = [(leader, leader.log.end_offset) for each in dict.fromkeys(about) if (leader := unsettled.get(each)) is not None]
    return wait_for_flush(node, call, ends, answer) if ends else answer()


def wait_for_flush(
    node: Node, call: RequestArrived[Any], ends: Sequence[tuple[Leader, int]], answer: Callable[[], Resp | Deferred]
) -> Deferred:
    """Answers when each leader's records below the offset are on disk."""
    leaders = node.partitions.leaders

    def settled() -> bool:
        return all(leader.high_watermark >= end or leaders.get(leader.partition) is not leader for leader, end in ends)

    def finish(_expired: bool) -> None:
        response = answer()
        if response is not PENDING:
            node.context.answer(call, response)

    operation = DelayedOperation("flush", finish, keys=[leader.partition for leader, _ in ends], ready=settled)
    return node.context.delay(call, operation, node.context.now_ms + WAIT_MS)
