"""DescribeProducers: producers of partitions led here, each with its last batch.

Behaviour: producer state expires producer.id.expiration.ms after the last batch. Each partition has its own error. Source: KIP-664.
"""

from collections.abc import Generator

from ottla.broker.controller.topics import check_name
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import InvalidRequest, KafkaError
from ottla.wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

TOPICS = REQUIREMENTS[61].parts["topics"]
#: What a partition weighs in a turn, besides its producers.
WEIGHT = 3


def refuse(call: RequestArrived[DescribeProducersRequest], error: KafkaError) -> DescribeProducersResponse:
    topics = [
        TopicResponse(name=topic.name, partitions=[_refused(number, error) for number in topic.partition_indexes])
        for topic in call.body.topics
    ]
    return DescribeProducersResponse(topics=topics)


@handles(DescribeProducersRequest, (0, 0), refuse=refuse)
def describe_producers(node: Node, call: RequestArrived[DescribeProducersRequest]) -> DescribeProducersResponse | Deferred:
    answer: DescribeProducersResponse | Deferred = node.context.turns.answer(call, _work(node, call))
    return answer


def _work(node: Node, call: RequestArrived[DescribeProducersRequest]) -> Generator[int, None, DescribeProducersResponse]:
    response = DescribeProducersResponse()
    listed = 0
    for topic in call.body.topics:
        refused = node.context.refusals(call, TOPICS, (topic.name,)).get(topic.name)
        answers: list[PartitionResponse] = []
        for number in topic.partition_indexes:
            if refused is not None:
                # To raise it again and again would lengthen its traceback each time.
                answers.append(_refused(number, refused))
                yield WEIGHT
                continue
            try:
                check_name(topic.name)
                described = _described(node, topic.name, number)
                listed += len(described.active_producers)
                if listed > 2 * node.context.options.producer_ids_max:
                    raise InvalidRequest("the answer would list more producers than a broker remembers; name each partition once")
                answers.append(described)
            except KafkaError as error:
                answers.append(_refused(number, error))
            yield WEIGHT + len(answers[-1].active_producers)
        response.topics.append(TopicResponse(name=topic.name, partitions=answers))
    return response


def _described(node: Node, topic: str, number: int) -> PartitionResponse:
    known = node.partitions.leader(topic, number).log.producers.by_id
    return PartitionResponse(
        partition_index=number,
        active_producers=[
            ProducerState(
                producer_id=producer_id,
                producer_epoch=producer.epoch,
                last_sequence=-1 if producer.last_sequence is None else producer.last_sequence,
                last_timestamp=producer.timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.transaction_from,
            )
            for producer_id, producer in sorted(known.items())
        ],
    )


def _refused(number: int, error: KafkaError) -> PartitionResponse:
    return PartitionResponse(partition_index=number, error_code=error.code, error_message=str(error))
