"""DeleteRecords: delete all records before an offset, in partitions led here.

Behaviour: offset -1 means the high watermark; one below 0 or above the high watermark is OFFSET_OUT_OF_RANGE. A topic that is only
compacted refuses with POLICY_VIOLATION, an internal one with INVALID_TOPIC_EXCEPTION. Returns the low watermark, which with one replica is
the new log start; an offset at or below the log start changes nothing. Waiting readers below the new start are answered at once. The
request waits for a flush in progress: ``partition_requests.py``. If a request names a partition twice, its last offset counts.

Differences from Kafka: the log start is written right after the response, not within a minute. Source: KIP-107, KIP-204.
"""

from functools import partial

from ottla.broker.apis.partition_requests import by_topic, when_settled
from ottla.broker.controller.topics import INTERNAL
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.log.directory import LogDirectory
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

HIGH_WATERMARK = -1


def refuse(call: RequestArrived[DeleteRecordsRequest], error: KafkaError) -> DeleteRecordsResponse:
    topics = [
        DeleteRecordsTopicResult(name=topic.name, partitions=[_refused(ask, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return DeleteRecordsResponse(topics=topics)


@handles(DeleteRecordsRequest, (0, 2), refuse=refuse)
def delete_records(node: Node, call: RequestArrived[DeleteRecordsRequest]) -> DeleteRecordsResponse | Deferred:
    about = [(topic.name, ask.partition_index) for topic in call.body.topics for ask in topic.partitions]
    return when_settled(node, call, about, partial(_answer, node, call))


def _answer(node: Node, call: RequestArrived[DeleteRecordsRequest]) -> DeleteRecordsResponse:
    response = DeleteRecordsResponse()
    changed: dict[str, LogDirectory] = {}
    asked = by_topic((topic.name, ask.partition_index, ask) for topic in call.body.topics for ask in topic.partitions)
    for topic, partitions in asked.items():
        results = []
        for ask in partitions.values():
            try:
                results.append(_delete(node, topic, ask, changed))
            except KafkaError as error:
                results.append(_refused(ask, error))
        response.topics.append(DeleteRecordsTopicResult(name=topic, partitions=results))
    for directory in changed.values():
        node.periodic_tasks.checkpoint(directory)
    return response


def _delete(node: Node, topic: str, ask: DeleteRecordsPartition, changed: dict[str, LogDirectory]) -> DeleteRecordsPartitionResult:
    leader = node.partitions.leader(topic, ask.partition_index)
    if topic in INTERNAL:
        raise errors.InvalidTopic(f"records of {topic}, an internal topic, cannot be deleted")
    if "delete" not in leader.options.cleanup_policy:
        raise errors.PolicyViolation(f"{topic} is only compacted; records are deleted where cleanup.policy holds delete")
    offset = leader.high_watermark if ask.offset == HIGH_WATERMARK else ask.offset
    if not 0 <= offset <= leader.high_watermark:
        raise errors.OffsetOutOfRange(f"{leader.partition} can be deleted up to its high watermark, {leader.high_watermark}, not {offset}")
    if offset > leader.log.start_offset:
        node.partitions.delete_before(leader, offset)
        changed[leader.directory.root] = leader.directory
    return DeleteRecordsPartitionResult(partition_index=ask.partition_index, low_watermark=leader.log.start_offset)


def _refused(ask: DeleteRecordsPartition, error: KafkaError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=ask.partition_index, low_watermark=-1, error_code=error.code)
