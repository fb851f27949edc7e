"""OffsetCommit: keep how far a group has read.

Behaviour: a member names itself and its generation; without both, offsets are taken for a group without members, which comes into being
with them. An unknown topic or partition is refused by itself, and so is a text longer than offset.metadata.max.bytes; all else is written
as one batch and answered when that is committed. Versions: 2 to 4 may choose how long the offsets are kept; 10 names topics by id.

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
    by_id = call.api_version >= BY_ID_SINCE
    if by_id:
        for topic in request.topics:
            found = node.image.topics_by_id.get(TopicId(topic.topic_id))
            topic.name = found.name if found is not None else ""
    refused = commit(shard.machine, request, call.api_version)
    response = OffsetCommitResponse()
    for topic in request.topics:
        code = errors.UnknownTopicId.code if by_id and not topic.name else NONE
        response.topics.append(_answered(topic, code, refused))
    return shard.answer(call, response, of=request.group_id, refuse=refuse)


def _answered(topic: OffsetCommitRequestTopic, code: int, refused: Refused) -> OffsetCommitResponseTopic:
    """``code`` is the whole topic's; if it has none, each partition has its own."""
    partitions = [
        OffsetCommitResponsePartition(
            partition_index=partition.partition_index, error_code=code or refused.get((topic.name, partition.partition_index), NONE)
        )
        for partition in topic.partitions
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
