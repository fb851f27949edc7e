"""OffsetForLeaderEpoch: the end of a leader epoch in partitions led here, for readers that check whether their log diverged.

Behaviour: returns the largest epoch not above the requested one, and the offset after its last record; the present epoch ends at the log
end. A future epoch, or -1, returns epoch -1 and offset -1. An older current leader epoch is FENCED_LEADER_EPOCH, a newer one
UNKNOWN_LEADER_EPOCH.

Versions: 2 to 4 differ only in form. Source: KIP-101, KIP-279, KIP-320.
"""

from collections.abc import Generator

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import KafkaError
from ottla.wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

TOPICS = REQUIREMENTS[23].parts["topics"]
#: What a partition weighs in a turn.
WEIGHT = 2


def refuse(call: RequestArrived[OffsetForLeaderEpochRequest], error: KafkaError) -> OffsetForLeaderEpochResponse:
    topics = [
        OffsetForLeaderTopicResult(topic=topic.topic, partitions=[_refused(ask, error) for ask in topic.partitions])
        for topic in call.body.topics
    ]
    return OffsetForLeaderEpochResponse(topics=topics)


@handles(OffsetForLeaderEpochRequest, (2, 4), refuse=refuse)
def offset_for_leader_epoch(node: Node, call: RequestArrived[OffsetForLeaderEpochRequest]) -> OffsetForLeaderEpochResponse | Deferred:
    answer: OffsetForLeaderEpochResponse | Deferred = node.context.turns.answer(call, _answer(node, call))
    return answer


def _answer(node: Node, call: RequestArrived[OffsetForLeaderEpochRequest]) -> Generator[int, None, OffsetForLeaderEpochResponse]:
    response = OffsetForLeaderEpochResponse()
    for topic in call.body.topics:
        refused = node.context.refusals(call, TOPICS, (topic.topic,)).get(topic.topic)
        answers: list[EpochEndOffset] = []
        response.topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=answers))
        for ask in topic.partitions:
            # To raise an error again and again would lengthen its traceback each time.
            answers.append(_end(node, topic.topic, ask) if refused is None else _refused(ask, refused))
            yield WEIGHT
    return response


def _end(node: Node, topic: str, ask: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        leader = node.partitions.leader(topic, ask.partition)
        leader.check_epoch(ask.current_leader_epoch)
    except KafkaError as error:
        return _refused(ask, error)
    found = leader.log.epochs.end_of(ask.leader_epoch)
    if found is None:
        return EpochEndOffset(partition=ask.partition)
    return EpochEndOffset(partition=ask.partition, leader_epoch=found[0], end_offset=found[1])


def _refused(ask: OffsetForLeaderPartition, error: KafkaError) -> EpochEndOffset:
    return EpochEndOffset(partition=ask.partition, error_code=error.code)
