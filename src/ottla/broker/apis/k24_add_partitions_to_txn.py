"""AddPartitionsToTxn: adds partitions to a transaction, or verifies that they were added.

Behaviour: the first partition begins the transaction. If a partition of a request does not exist, it gets UNKNOWN_TOPIC_OR_PARTITION, all
others OPERATION_NOT_ATTEMPTED, and nothing is added. While the last transaction is being completed the request waits; after
add.partitions.to.txn.retry.backoff.max.ms the error is CONCURRENT_TRANSACTIONS.

Versions: clients use 0 to 3. From 4 on leaders of partitions name several transactions, to add their partitions or to verify them before
the first append (KIP-890); a partition that was not added is TRANSACTION_ABORTABLE, INVALID_TXN_STATE in version 4.

Source: KIP-98, KIP-588, KIP-890.
"""

from collections.abc import Generator, Mapping

from ottla.base.ids import TopicPartition
from ottla.broker.apis.transaction_requests import FENCED_SINCE, check_id, code_for, when_completed
from ottla.broker.coordinator import Shard, when_committed
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.broker.transactions.transactions import Transactions
from ottla.broker.turns import portions
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

#: What a topic weighs in a turn, whose rights are looked up.
TOPIC_WEIGHT = 3

#: The error of each partition that has one.
Codes = Mapping[TopicPartition, int]


def refuse(call: RequestArrived[AddPartitionsToTxnRequest], error: KafkaError) -> AddPartitionsToTxnResponse:
    if call.api_version >= SEVERAL_SINCE:
        return AddPartitionsToTxnResponse(error_code=error.code)
    code = code_for(error, call.api_version, FENCED_SINCE)
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=[_same(topic, code) for topic in call.body.v3_and_below_topics])


def _same(topic: AddPartitionsToTxnTopic, code: int) -> AddPartitionsToTxnTopicResult:
    """The same code for each partition."""
    partitions = [AddPartitionsToTxnPartitionResult(partition_index=number, partition_error_code=code) for number in topic.partitions]
    return AddPartitionsToTxnTopicResult(name=topic.name, results_by_partition=partitions)


def _refuse_in_turns(
    call: RequestArrived[AddPartitionsToTxnRequest], error: KafkaError
) -> Generator[int, None, AddPartitionsToTxnResponse]:
    if call.api_version >= SEVERAL_SINCE:
        return refuse(call, error)
    results = yield from _results(call.body.v3_and_below_topics, {}, code_for(error, call.api_version, FENCED_SINCE))
    return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)


@handles(AddPartitionsToTxnRequest, (0, 5), refuse=refuse, refuse_in_turns=_refuse_in_turns)
def add_partitions_to_txn(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    request = call.body
    if call.api_version >= SEVERAL_SINCE:
        added = [asked.transactional_id for asked in request.transactions if not asked.verify_only]
        return when_completed(node, call, added, lambda: _several(node, call))
    node.context.demand(call, TRANSACTIONAL_IDS, request.v3_and_below_transactional_id)
    return when_completed(node, call, [request.v3_and_below_transactional_id], lambda: _one(node, call))


def _one(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    def answer(found: AddPartitionsToTxnResponse | Shard[Transactions]) -> AddPartitionsToTxnResponse | Deferred:
        if isinstance(found, AddPartitionsToTxnResponse):
            return found
        response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=done)
        return found.answer(call, response, of=call.body.v3_and_below_transactional_id)

    done: list[AddPartitionsToTxnTopicResult] = []
    answered: AddPartitionsToTxnResponse | Deferred = node.context.turns.answer(call, _add(node, call, done), answer)
    return answered


def _add(
    node: Node, call: RequestArrived[AddPartitionsToTxnRequest], done: list[AddPartitionsToTxnTopicResult]
) -> Generator[int, None, AddPartitionsToTxnResponse | Shard[Transactions]]:
    """Adds the partitions of a client. Returns the shard, and ``done`` has the results; or the response, if one was refused."""
    request = call.body
    topics = request.v3_and_below_topics
    partitions, refused, unknown = yield from _checked(node, call)
    if unknown or refused:
        codes = dict.fromkeys(partitions, errors.OperationNotAttempted.code)
        codes |= dict.fromkeys(unknown, errors.UnknownTopicOrPartition.code)
        codes |= {partition: refused[partition.topic].code for partition in partitions if partition.topic in refused}
        results = yield from _results(topics, codes)
        return AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results)
    done += yield from _results(topics, {})
    transactional_id = check_id(request.v3_and_below_transactional_id)
    identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    shard = yield from _add_to(node, transactional_id, identity, partitions)
    shard.machine.note_client(transactional_id, call.client_id, call.origin.host)
    return shard


def _checked(
    node: Node, call: RequestArrived[AddPartitionsToTxnRequest]
) -> Generator[int, None, tuple[list[TopicPartition], dict[str, KafkaError], list[TopicPartition]]]:
    """The partitions of a client's request, the topics that it may not write to, and the partitions that do not exist."""
    partitions = yield from _partitions_of(call.body.v3_and_below_topics)
    refused: dict[str, KafkaError] = {}
    for some in portions(call.body.v3_and_below_topics, lambda topic: TOPIC_WEIGHT):
        refused |= node.context.refusals(call, TOPICS, (topic.name for topic in some))
        yield TOPIC_WEIGHT * len(some)
    unknown: list[TopicPartition] = []
    for some_of in portions(partitions, lambda partition: 1):
        unknown += [partition for partition in some_of if not node.context.image.has(*partition)]
        yield len(some_of)
    return partitions, refused, unknown


def _add_to(
    node: Node, transactional_id: str, identity: ProducerIdentity, partitions: list[TopicPartition]
) -> Generator[int, None, Shard[Transactions]]:
    """Adds partitions in one decision. Returns the shard. Raises: KafkaError."""
    while True:
        base = node.transactions.shard_of(transactional_id).machine.partitions_of(transactional_id)
        added = yield from base.union_in_turns(partitions)
        # Another request may have added some, or the shard may have moved, in between.
        shard = node.transactions.shard_of(transactional_id)
        if shard.machine.partitions_of(transactional_id) is base:
            shard.machine.add(transactional_id, identity, added)
            return shard


def _several(node: Node, call: RequestArrived[AddPartitionsToTxnRequest]) -> AddPartitionsToTxnResponse | Deferred:
    shards: list[tuple[Shard[Transactions], str]] = []

    def answer(response: AddPartitionsToTxnResponse) -> AddPartitionsToTxnResponse | Deferred:
        return when_committed(call, response, shards)

    answered: AddPartitionsToTxnResponse | Deferred = node.context.turns.answer(call, _each(node, call, shards), answer)
    return answered


def _each(
    node: Node, call: RequestArrived[AddPartitionsToTxnRequest], shards: list[tuple[Shard[Transactions], str]]
) -> Generator[int, None, AddPartitionsToTxnResponse]:
    response = AddPartitionsToTxnResponse()
    for asked in call.body.transactions:
        partitions = yield from _partitions_of(asked.topics)
        codes: Codes
        try:
            shard, codes = yield from _codes(node, asked, partitions, call.api_version)
            shards.append((shard, asked.transactional_id))
        except KafkaError as error:
            codes = dict.fromkeys(partitions, error.code)
            refusing = node.transactions.shard_for(asked.transactional_id)
            if refusing is not None:
                # An error, too, may be about what is not committed.
                shards.append((refusing, asked.transactional_id))
        results = yield from _results(asked.topics, codes)
        response.results_by_transaction.append(AddPartitionsToTxnResult(transactional_id=asked.transactional_id, topic_results=results))
    return response


def _codes(
    node: Node, asked: AddPartitionsToTxnTransaction, partitions: list[TopicPartition], version: int
) -> Generator[int, None, tuple[Shard[Transactions], Codes]]:
    """The shard whose commit counts, and the error of each partition. Raises: KafkaError."""
    identity = ProducerIdentity(asked.producer_id, asked.producer_epoch)
    transactional_id = check_id(asked.transactional_id)
    if not asked.verify_only:
        return (yield from _add_to(node, transactional_id, identity, partitions)), {}
    shard = node.transactions.shard_of(transactional_id)
    codes = shard.machine.verify(transactional_id, identity, partitions)
    if version < ABORTABLE_SINCE:
        codes = {partition: errors.InvalidTxnState.code if code else code for partition, code in codes.items()}
    return shard, codes


def _partitions_of(topics: list[AddPartitionsToTxnTopic]) -> Generator[int, None, list[TopicPartition]]:
    """Each partition once, in the order of the request."""
    found: dict[TopicPartition, None] = {}
    for topic in topics:
        for some in portions(topic.partitions, lambda number: 1):
            found |= dict.fromkeys(TopicPartition(topic.name, number) for number in some)
            yield len(some)
    return list(found)


def _results(
    topics: list[AddPartitionsToTxnTopic], codes: Codes, others: int = errors.NONE
) -> Generator[int, None, list[AddPartitionsToTxnTopicResult]]:
    """``others``: the error of partitions that are not in ``codes``."""
    found = []
    for topic in topics:
        result = AddPartitionsToTxnTopicResult(name=topic.name)
        for some in portions(topic.partitions, lambda number: 1):
            result.results_by_partition += [
                AddPartitionsToTxnPartitionResult(
                    partition_index=number, partition_error_code=codes.get(TopicPartition(topic.name, number), others)
                )
                for number in some
            ]
            yield len(some)
        found.append(result)
    return found
