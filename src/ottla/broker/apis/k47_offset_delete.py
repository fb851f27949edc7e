"""OffsetDelete: delete a group's offsets of some partitions.

Behaviour: a topic that a member subscribes to is refused with GROUP_SUBSCRIBED_TO_TOPIC per partition; a group whose members are not
consumers is NON_EMPTY_GROUP as a whole. A missing offset is ignored. Source: KIP-496.
"""

from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.wire.errors import NONE, KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition
from ottla.wire.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)

TOPICS = REQUIREMENTS[47].parts["topics"]


@handles(OffsetDeleteRequest, (0, 0), refuse=whole_error(OffsetDeleteResponse))
def offset_delete(node: Node, call: RequestArrived[OffsetDeleteRequest]) -> OffsetDeleteResponse | Deferred:
    request = call.body
    shard = node.groups.shard_of(request.group_id)
    shard.machine.find(request.group_id).check_offset_delete()
    refused = node.context.refusals(call, TOPICS, (topic.name for topic in request.topics))
    response = OffsetDeleteResponse()
    for topic in request.topics:
        numbers = [partition.partition_index for partition in topic.partitions]
        code = NONE
        try:
            if topic.name in refused:
                raise TopicAuthorizationFailed(str(refused[topic.name]))
            if topic.name not in node.context.image.topics:
                raise UnknownTopicOrPartition(f"there is no topic {topic.name!r}")
            shard.machine.delete_offsets(request.group_id, topic.name, numbers)
        except KafkaError as error:
            code = error.code
        partitions = [OffsetDeleteResponsePartition(partition_index=number, error_code=code) for number in numbers]
        response.topics.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    return shard.answer(call, response, of=request.group_id)
