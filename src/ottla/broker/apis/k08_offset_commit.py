"""OffsetCommit: store a group's offsets.

Behaviour: a member sends its id and generation; without both, offsets are accepted for a group without members, which is created if
necessary. Unknown partitions and metadata longer than offset.metadata.max.bytes are refused per entry, for every sender. If a request
names a partition twice, each entry has a response, and the last accepted one counts. The rest is written as one batch and answered when it
is committed. Versions: 2 to 4 can set the retention; 10 names topics by id.

Source: KIP-211, KIP-320, KIP-345, KIP-848.
"""

from collections.abc import Iterator
from itertools import count

from ottla.base.ids import TopicId
from ottla.broker.events import RequestArrived
from ottla.broker.groups.offsets import Refused, commit, entries_of, unknown
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import NONE, KafkaError
from ottla.wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)

BY_ID_SINCE = 10
TOPICS = REQUIREMENTS[8].parts["topics"]


def refuse(call: RequestArrived[OffsetCommitRequest], error: KafkaError) -> OffsetCommitResponse:
    return _answer(call, {}, error.code)


@handles(OffsetCommitRequest, (2, 10), refuse=refuse)
def offset_commit(node: Node, call: RequestArrived[OffsetCommitRequest]) -> OffsetCommitResponse | Deferred:
    request = call.body
    if call.api_version >= BY_ID_SINCE:
        for topic in request.topics:
            found = node.context.image.topics_by_id.get(TopicId(topic.topic_id))
            topic.name = found.name if found is not None else ""
    missing = unknown(node.context.image, request)
    forbidden = node.context.refusals(call, TOPICS, (topic.name for topic in request.topics if topic.name))
    if forbidden:
        missing |= {number: forbidden[name].code for number, name, _ in entries_of(request) if name in forbidden}
    if len(missing) == sum(len(topic.partitions) for topic in request.topics):
        return _answer(call, missing, NONE)

    def refuse_others(call: RequestArrived[OffsetCommitRequest], error: KafkaError) -> OffsetCommitResponse:
        return _answer(call, missing, error.code)

    try:
        shard = node.groups.shard_of(request.group_id)
        refused = commit(shard.machine, request, call.api_version, missing)
    except KafkaError as error:
        return refuse_others(call, error)
    return shard.answer(call, _answer(call, refused, NONE), of=request.group_id, refuse=refuse_others)


def _answer(call: RequestArrived[OffsetCommitRequest], refused: Refused, code: int) -> OffsetCommitResponse:
    """``code`` applies to entries without an error of their own."""
    numbers = count()
    return OffsetCommitResponse(topics=[_answered(topic, refused, code, numbers) for topic in call.body.topics])


def _answered(topic: OffsetCommitRequestTopic, refused: Refused, code: int, numbers: Iterator[int]) -> OffsetCommitResponseTopic:
    partitions = [
        OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=refused.get(next(numbers), code))
        for partition in topic.partitions
    ]
    return OffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
