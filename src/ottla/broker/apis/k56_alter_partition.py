"""AlterPartition: on the controller; a leader requests an ISR change.

Behaviour: a sender that is not at the address of a registered broker is refused as a whole (CLUSTER_AUTHORIZATION_FAILED), also by a broker
that is not the controller. So is a request of an earlier registration of its broker (STALE_BROKER_EPOCH). Each partition succeeds or fails
alone (``controller/alter_partition.py``), with compare-and-set on the version of its state and on the registrations of new members. Not
advertised to clients.

Versions: only 3, whose members have broker epochs.

Differences from Kafka: an ISR change does not increase the leader epoch. Source: KIP-497, KIP-841, KIP-903.
"""

from ottla.base.ids import BrokerId, TopicId
from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes
from ottla.broker.controller.alter_partition import altered
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles, whole_error
from ottla.broker.metadata.image import Topic
from ottla.broker.node import Node
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartition,
    AlterPartitionResponse,
    AlterPartitionResponsePartition,
    AlterPartitionResponseTopic,
)

#: Timeout of the store.
STORE_MS = 10_000


@handles(AlterPartitionRequest, (3, 3), refuse=whole_error(AlterPartitionResponse), at_controller=True, advertised=False, from_brokers=True)
def alter_partition(node: Node, call: RequestArrived[AlterPartitionRequest]) -> AlterPartitionResponse | Deferred:
    request = call.body
    registered = node.context.image.brokers.get(BrokerId(request.broker_id))
    if registered is None or registered.epoch != request.broker_epoch:
        raise errors.StaleBrokerEpoch(f"broker {request.broker_id} is not registered under epoch {request.broker_epoch}")
    writes = Writes(node, call)
    response = AlterPartitionResponse()
    for topic in request.topics:
        answers = [_alter(node, writes, request.broker_id, TopicId(topic.topic_id), requested) for requested in topic.partitions]
        response.topics.append(AlterPartitionResponseTopic(topic_id=topic.topic_id, partitions=answers))
    return writes.answer_when_done(response, STORE_MS)


def _alter(
    node: Node, writes: Writes, broker: int, topic_id: TopicId, requested: AlterPartitionRequestPartition
) -> AlterPartitionResponsePartition:
    answer = AlterPartitionResponsePartition(partition_index=requested.partition_index)
    topic = node.context.image.topics_by_id.get(topic_id)
    if topic is None:
        answer.error_code = errors.UnknownTopicId.code
        return answer
    try:
        state = altered(node.context.image, topic, broker, requested, options=node.context.topic_options(topic.name))
    except KafkaError as error:
        answer.error_code = error.code
        return answer

    def done(error: KafkaError | None) -> None:
        if error is not None:
            answer.error_code = error.code
            return
        answer.leader_id, answer.leader_epoch, answer.isr = state.leader, state.leader_epoch, list(state.isr)
        answer.leader_recovery_state = int(state.recovering)
        answer.partition_epoch = requested.partition_epoch + 1

    path = layout.partition_state(topic.name, requested.partition_index)
    altering = Op("set", path, layout.encode_partition_state(state), version=requested.partition_epoch)
    writes.add(
        (*_joining(node, topic, topic.states[requested.partition_index], state), altering), done, changed=errors.InvalidUpdateVersion
    )
    return answer


def _joining(node: Node, topic: Topic, before: PartitionState, after: PartitionState) -> list[Op]:
    """New members must not have reported their replica as ineligible meanwhile, and must still be assigned: the state may arrive before
    its assignment.
    """
    brokers = node.context.image.brokers
    added = [BrokerId(broker) for broker in after.isr if broker not in before.isr]
    if not added:
        return []
    checks = [Op("check", layout.broker(broker), version=brokers[broker].version) for broker in added]
    return [Op("check", layout.topic(topic.name), version=topic.version), *checks]
