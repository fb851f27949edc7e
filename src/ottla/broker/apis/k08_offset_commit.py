"""OffsetCommit: keep how far a group has read.

Behaviour: a member names itself and its generation; without both, offsets are taken for a group without members, which comes into being
with them. An unknown topic is refused by itself, and so is a text longer than offset.metadata.max.bytes; all else is written as one batch
and answered when that is committed. Versions: 2 to 4 may choose how long the offsets are kept; 10 names topics by id.

Source: KIP-211, KIP-320, KIP-345, KIP-848.
"""

from typing import TYPE_CHECKING, Any

from ottla.base.ids import TopicId
from ottla.broker.events import RequestArrived
from ottla.broker.groups.offsets import Refused, commit
from ottla.broker.handlers import handles
from ottla.wire import errors
from ottla.wire.errors import NONE, KafkaError
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from ottla.broker.node import Node

BY_ID_SINCE = 10


def refuse(call: RequestArrived, error: KafkaError) -> OffsetCommitResponse:
    return OffsetCommitResponse(topics=[_answered(topic, error.code, {}) for topic in call.body.topics])


@handles(OffsetCommitRequest, (2, 10), refuse=refuse)
def offset_commit(node: "Node", call: RequestArrived) -> Any:
    request: OffsetCommitRequest = call.body
    shard = node.groups.shard_of(request.group_id)
    asked, unknown = request.topics, {}
    request.topics = []
    for topic in asked:
        error = _check_topic(node, call, topic)
        if error is None:
            request.topics.append(topic)
        else:
            unknown[id(topic)] = error
    try:
        refused: Refused = commit(shard.machine, request, call.api_version)
    finally:
        request.topics = asked
    response = OffsetCommitResponse()
    for topic in asked:
        response.topics.append(_answered(topic, unknown.get(id(topic), NONE), refused))
    return shard.answer(call, response, of=request.group_id, refuse=refuse)


def _check_topic(node: "Node", call: RequestArrived, topic: OffsetCommitRequestTopic) -> int | None:
    """Fills in the name of a topic given by id; the error of one that does not exist."""
    if call.api_version < BY_ID_SINCE:
        return None if topic.name in node.image.topics else errors.UnknownTopicOrPartition.code
    found = node.image.topics_by_id.get(TopicId(topic.topic_id))
    if found is None:
        return errors.UnknownTopicId.code
    topic.name = found.name
    return None


def _answered(topic: OffsetCommitRequestTopic, code: int, refused: Refused) -> OffsetCommitResponseTopic:
    """``code`` is the whole topic's; if it has none, each partition has its own."""
    partitions = [
        OffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=code or refused.get((topic.name, partition.partition_index), NONE)
        )
        for partition in topic.partitions
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
