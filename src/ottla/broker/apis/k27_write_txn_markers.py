"""WriteTxnMarkers: ends transactions in partitions led here. Sent by transaction coordinators.

Behaviour: each partition succeeds or fails alone. The response waits until the markers are on the disks of all in-sync replicas; a
partition whose marker is not, after MARKER_WAIT_MS, gets REQUEST_TIMED_OUT, and the coordinator sends it again. A marker in
__consumer_offsets commits or drops the offsets of the transaction; while that partition is being loaded the error is
COORDINATOR_LOAD_IN_PROGRESS. A request that arrives after a later one of the same coordinator, and a marker for a leader of another epoch,
are refused with errors after which a coordinator tries again.

Source: KIP-98, KIP-1228.
"""

from collections.abc import Generator
from itertools import zip_longest

from ottla.base.ids import TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.delayed import DelayedOperation
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.replica.leader import Leader, Marker
from ottla.broker.timeline import producer_name
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: Longer than a follower's fetch and flush; shorter than request.timeout.ms of the coordinator.
MARKER_WAIT_MS = 5 * SECOND_MS
#: What a marker weighs in a turn. It takes 15 to 40 µs; but each turn begins a flush, which has costs of its own, so that usual requests
#: have fewer turns. From ``LARGE`` markers on a turn has three: each lets the threads run that flush others.
USUAL_WEIGHT, LARGE_WEIGHT, LARGE = 12, 66, 400

#: The partition's result, its leader, and the offset after the marker.
Written = tuple[WritableTxnMarkerPartitionResult, Leader, int]


def refuse(call: RequestArrived[WriteTxnMarkersRequest], error: KafkaError) -> WriteTxnMarkersResponse:
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=number, error_code=error.code)
                            for number in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in call.body.markers
        ]
    )


@handles(WriteTxnMarkersRequest, (1, 2), refuse=refuse)
def write_txn_markers(node: Node, call: RequestArrived[WriteTxnMarkersRequest]) -> WriteTxnMarkersResponse | Deferred:
    markers = call.body.markers
    if markers and not node.marker_order.arrived(call.body.sequence, markers[0].coordinator_epoch):
        raise errors.RequestTimedOut("a later request of the same transaction coordinator arrived before")
    written: list[Written] = []

    def answer(response: WriteTxnMarkersResponse) -> WriteTxnMarkersResponse | Deferred:
        if all(leader.high_watermark >= end for _, leader, end in written):
            return response
        return _wait(node, call, response, written)

    answered: WriteTxnMarkersResponse | Deferred = node.context.turns.answer(call, _append_all(node, call.body, written), answer)
    return answered


def _append_all(node: Node, request: WriteTxnMarkersRequest, written: list[Written]) -> Generator[int, None, WriteTxnMarkersResponse]:
    response = WriteTxnMarkersResponse()
    count = sum(len(topic.partition_indexes) for marker in request.markers for topic in marker.topics)
    weight = USUAL_WEIGHT if count < LARGE else LARGE_WEIGHT
    for marker in request.markers:
        topics = []
        for topic in marker.topics:
            found = WritableTxnMarkerTopicResult(name=topic.name)
            for number, epoch in zip_longest(topic.partition_indexes, topic.leader_epochs[: len(topic.partition_indexes)]):
                found.partitions.append(_append(node, request, TopicPartition(topic.name, number), epoch, marker, written))
                yield weight
            topics.append(found)
        response.markers.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
    return response


def _append(
    node: Node,
    request: WriteTxnMarkersRequest,
    partition: TopicPartition,
    epoch: int | None,
    marker: WritableTxnMarker,
    written: list[Written],
) -> WritableTxnMarkerPartitionResult:
    """``epoch``: of the leader that the coordinator knows, if it names one."""
    result = WritableTxnMarkerPartitionResult(partition_index=partition.partition)
    end = Marker(marker.producer_id, marker.producer_epoch, marker.transaction_result, marker.coordinator_epoch, marker.transaction_version)
    try:
        if node.marker_order.overtaken(request.sequence, request.markers[0].coordinator_epoch):
            raise errors.RequestTimedOut("a later request of the same transaction coordinator arrived meanwhile")
        leader = node.partitions.leader(*partition)
        if epoch is not None and epoch != leader.epoch:
            raise (errors.FencedLeaderEpoch if epoch < leader.epoch else errors.UnknownLeaderEpoch)(f"the leader epoch is {leader.epoch}")
        shard = None
        if partition.topic == node.groups.topic:
            shard = node.groups.shards.get(partition.partition)
            if shard is None:
                raise errors.NotLeaderOrFollower(f"{partition} is not coordinated here")
            node.context.isolation.touched.append(shard)
        try:
            upto = leader.append_marker(end, wall_ms=node.context.wall_ms) if shard is None else shard.end_transaction(end)
        except OSError as error:
            raise node.partitions.append_failed(leader, error) from error
        node.partitions.wrote(leader)
        node.context.timeline.note(
            "transaction",
            producer_name(marker.producer_id),
            "commit marker" if marker.transaction_result else "abort marker",
            partition=str(partition),
            offset=upto - 1,
            producer_epoch=marker.producer_epoch,
        )
        written.append((result, leader, upto))
    except KafkaError as error:
        result.error_code = error.code
    return result


def _wait(node: Node, call: RequestArrived[WriteTxnMarkersRequest], response: WriteTxnMarkersResponse, written: list[Written]) -> Deferred:
    leaders = node.partitions.leaders

    #: Each flush asks again, so what is done once is not looked at again.
    left = list(written)

    def ready() -> bool:
        while left:
            _, leader, end = left[-1]
            if leader.high_watermark < end and leaders.get(leader.partition) is leader:
                return False
            left.pop()
        return True

    def finish(expired: bool) -> None:
        for result, leader, end in written:
            if leader.high_watermark < end:
                moved = leaders.get(leader.partition) is not leader
                result.error_code = errors.NotLeaderOrFollower.code if moved else errors.RequestTimedOut.code
        node.context.answer(call, response)

    operation = DelayedOperation("transaction markers", finish, keys=[leader.partition for _, leader, _ in written], ready=ready)
    return node.context.delay(call, operation, node.context.now_ms + MARKER_WAIT_MS)
