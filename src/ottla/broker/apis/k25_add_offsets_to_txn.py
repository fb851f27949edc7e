"""AddOffsetsToTxn: adds the partition of a group's offsets to a transaction, before TxnOffsetCommit.

Behaviour: as AddPartitionsToTxn with the group's partition of __consumer_offsets, which need not be on this broker. Until that topic
exists, the error is COORDINATOR_NOT_AVAILABLE: the client looks for the group's coordinator, which creates it, and tries again.

Versions: below 2 PRODUCER_FENCED is INVALID_PRODUCER_EPOCH. Difference from Kafka: Kafka adds a partition of a topic that does not exist.
Source: KIP-98, KIP-588.
"""

from ottla.base.ids import TopicPartition
from ottla.broker.apis.transaction_requests import FENCED_SINCE, check_id, code_for, when_completed
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


def refuse(call: RequestArrived[AddOffsetsToTxnRequest], error: KafkaError) -> AddOffsetsToTxnResponse:
    return AddOffsetsToTxnResponse(error_code=code_for(error, call.api_version, FENCED_SINCE))


@handles(AddOffsetsToTxnRequest, (0, 4), refuse=refuse)
def add_offsets_to_txn(node: Node, call: RequestArrived[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse | Deferred:
    return when_completed(node, call, [call.body.transactional_id], lambda: _added(node, call))


def _added(node: Node, call: RequestArrived[AddOffsetsToTxnRequest]) -> AddOffsetsToTxnResponse | Deferred:
    request = call.body
    transactional_id = check_id(request.transactional_id)
    shard = node.transactions.shard_of(transactional_id)
    number = node.groups.partition_of(request.group_id)
    if number is None:
        try:
            node.groups.create()
        except KafkaError as error:
            raise errors.CoordinatorNotAvailable(f"{node.groups.topic} cannot be created: {error}") from error
        raise errors.CoordinatorNotAvailable(f"{node.groups.topic} is being created; try again")
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    shard.machine.add(transactional_id, identity, [TopicPartition(node.groups.topic, number)])
    shard.machine.note_client(transactional_id, call.client_id, call.origin.host)
    return shard.answer(call, AddOffsetsToTxnResponse(), of=transactional_id)
