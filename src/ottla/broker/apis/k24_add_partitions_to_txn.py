"""AddPartitionsToTxn: adds partitions to a transaction, or verifies that they were added.

Behaviour: the first partition begins the transaction. If a partition of a request does not exist, it gets UNKNOWN_TOPIC_OR_PARTITION, all
others OPERATION_NOT_ATTEMPTED, and nothing is added. While the last transaction is being completed the request waits; after
add.partitions.to.txn.retry.backoff.max.ms the error is CONCURRENT_TRANSACTIONS.

Versions: clients use 0 to 3. From 4 on leaders of partitions name several transactions, to add their partitions or to verify them before
the first append (KIP-890); a partition that was not added is TRANSACTION_ABORTABLE, INVALID_TXN_STATE in version 4.

Source: KIP-98, KIP-588, KIP-890.
"""

from collections.abc import Mapping

from ottla.base.ids import TopicPartition
from ottla.broker.apis.transaction_requests import FENCED_SINCE, check_id, code_for, partitions_of, when_completed
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.broker.transactions.transactions import Transactions
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)

SEVERAL_SINCE = 4
ABORTABLE_SINCE = 5
TRANSACTIONAL_IDS = REQUIREMENTS[24].parts["transactional id"]
TOPICS = REQUIREMENTS[24].parts["topics"]

#: The error of each partition.
Codes = Mapping[TopicPartition, int]


def refuse(call: RequestArrived[AddPartitionsToTxnRequest], error: KafkaError) -> AddPartitionsToTxnResponse:
    if call.api_version >= SEVERAL_SINCE:
        return AddPartitionsToTxnResponse(error_code=error.code)
    topics = call.body.v3_and_below_topics
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_same(topics, code_for(error, call.api_version, FENCED_SINCE)))


@handles(AddPartitionsToTxnRequest, (0, 5), refuse=refuse)
def add_partitions_to_txn(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    request = call.body
    if call.api_version >= SEVERAL_SINCE:
        added = [asked.transactional_id for asked in request.transactions if not asked.verify_only]
        return when_completed(node, call, added, lambda: _several(node, call))
    node.context.demand(call, TRANSACTIONAL_IDS, request.v3_and_below_transactional_id)
    return when_completed(node, call, [request.v3_and_below_transactional_id], lambda: _one(node, call))


def _one(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    request = call.body
    topics = request.v3_and_below_topics
    partitions = partitions_of(topics)
    refused = node.context.refusals(call, TOPICS, (partition.topic for partition in partitions))
    unknown = [partition for partition in partitions if not node.context.image.has(*partition)]
    if unknown or refused:
        codes = dict.fromkeys(partitions, errors.OperationNotAttempted.code)
        codes |= dict.fromkeys(unknown, errors.UnknownTopicOrPartition.code)
        codes |= {partition: refused[partition.topic].code for partition in partitions if partition.topic in refused}
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_results(topics, codes))
    transactional_id = check_id(request.v3_and_below_transactional_id)
    shard = node.transactions.shard_of(transactional_id)
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    shard.machine.add(transactional_id, identity, partitions)
    shard.machine.note_client(transactional_id, call.client_id, call.origin.host)
    response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=_same(topics, errors.NONE))
    return shard.answer(call, response, of=transactional_id)


def _several(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    response = AddPartitionsToTxnResponse()
    shards: list[tuple[Shard[Transactions], str]] = []
    for asked in call.body.transactions:
        partitions = partitions_of(asked.topics)
        codes: Codes
        try:
            shard = node.transactions.shard_of(check_id(asked.transactional_id))
            shards.append((shard, asked.transactional_id))
            codes = _codes(shard.machine, asked, partitions, call.api_version)
        except KafkaError as error:
            codes = dict.fromkeys(partitions, error.code)
        response.results_by_transaction.append(
            AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=_results(asked.topics, codes))
        )
    return when_committed(call, response, shards)


def _codes(machine: Transactions, asked: AddPartitionsToTxnTransaction, partitions: list[TopicPartition], version: int) -> Codes:
    identity = ProducerIdentity(asked.producer_id, asked.producer_epoch)
    if not asked.verify_only:
        machine.add(asked.transactional_id, identity, partitions)
        return dict.fromkeys(partitions, errors.NONE)
    codes = machine.verify(asked.transactional_id, identity, partitions)
    if version < ABORTABLE_SINCE:
        return {partition: errors.InvalidTxnState.code if code else code for partition, code in codes.items()}
    return codes


def _same(topics: list[AddPartitionsToTxnTopic], code: int) -> list[AddPartitionsToTxnTopicResult]:
    """The same code for each partition."""
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code) for number in topic.partitions
            ],
        )
        for topic in topics
    ]


def _results(topics: list[AddPartitionsToTxnTopic], codes: Codes) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=codes[TopicPartition(topic.name, number)])
                for number in topic.partitions
            ],
        )
        for topic in topics
    ]
