"""OffsetCommit: keep how far a group has read.

Behaviour: a member names itself and its generation; without both, offsets are taken for a group without members, which comes into being
with them. An unknown topic or partition is refused by itself, whoever sends it and whatever becomes of the others; so is a text longer
than offset.metadata.max.bytes. If a request names a partition twice, each entry is answered by itself and the last one that is not refused
counts. All else is written as one batch and answered when that is committed. Versions: 2 to 4 may choose how
long the offsets are kept; 10 names topics by id.

Source: KIP-211, KIP-320, KIP-345, KIP-848.
"""

from collections.abc import Iterator
from itertools import count
from typing import TYPE_CHECKING, Any

from ottla.base.ids import TopicId
from ottla.broker.events import RequestArrived
from ottla.broker.groups.offsets import Refused, commit, unknown
from ottla.broker.handlers import handles
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
    return _answer(call, {}, error.code)


@handles(OffsetCommitRequest, (2, 10), refuse=refuse)
def offset_commit(node: "Node", call: RequestArrived) -> Any:
    request: OffsetCommitRequest = call.body
    if call.api_version >= BY_ID_SINCE:
        for topic in request.topics:
            found = node.image.topics_by_id.get(TopicId(topic.topic_id))
            topic.name = found.name if found is not None else ""
    missing = unknown(node.image, request)
    if len(missing) == sum(len(topic.partitions) for topic in request.topics):
        return _answer(call, missing, NONE)

    def refuse_others(call: RequestArrived, error: KafkaError) -> OffsetCommitResponse:
        return _answer(call, missing, error.code)

    try:
        shard = node.groups.shard_of(request.group_id)
        refused = commit(shard.machine, request, call.api_version, missing)
    except KafkaError as error:
        return refuse_others(call, error)
    return shard.answer(call, _answer(call, refused, NONE), of=request.group_id, refuse=refuse_others)


def _answer(call: RequestArrived, refused: Refused, code: int) -> OffsetCommitResponse:
    """``code`` is that of the entries that are not refused by themselves."""
    numbers = count()
    return OffsetCommitResponse(topics=[_answered(topic, refused, code, numbers) for topic in call.body.topics])


def _answered(topic: OffsetCommitRequestTopic, refused: Refused, code: int, numbers: Iterator[int]) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=refused.get(next(numbers), code))
        for partition in topic.partitions
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
