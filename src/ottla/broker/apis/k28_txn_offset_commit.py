"""TxnOffsetCommit: stores a group's offsets as part of a transaction.

Behaviour: the offsets are pending until the transaction's marker commits or drops them. As in Produce, the transaction coordinator first
confirms that the transaction has the group's partition of __consumer_offsets; from version 5 on it adds it. A sender that names a member
or a generation is fenced like one of OffsetCommit (KIP-447), in both group protocols; one that names neither is not. Entries of unknown
partitions are refused alone.

Versions: 3 names the member; 6 names topics by id. Below 4 INVALID_TXN_STATE takes the place of TRANSACTION_ABORTABLE, and below 6
ILLEGAL_GENERATION that of GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH.

Source: KIP-98, KIP-447, KIP-890, KIP-1319.
"""

from collections.abc import Iterator, Mapping
from itertools import count

from ottla.base.ids import TopicId, TopicPartition
from ottla.broker.apis.transaction_requests import check_id, when_verified
from ottla.broker.coordinator import CommitTransaction
from ottla.broker.events import RequestArrived
from ottla.broker.groups.offsets import Refused, commit_in_transaction, entries_of, unknown
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.records.batch import NO_SEQUENCE
from ottla.wire import errors
from ottla.wire.errors import NONE, KafkaError
from ottla.wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: First versions whose client knows TRANSACTION_ABORTABLE, and does not send AddOffsetsToTxn. Source: KIP-890.
ABORTABLE_SINCE, ADDS_PARTITION_SINCE = 4, 5
BY_ID_SINCE = KNOWS_EPOCHS_SINCE = 6
TOPICS = REQUIREMENTS[28].parts["topics"]


def refuse(call: RequestArrived[TxnOffsetCommitRequest], error: KafkaError) -> TxnOffsetCommitResponse:
    return _answer(call, {}, error.code)


@handles(TxnOffsetCommitRequest, (0, 6), refuse=refuse)
def txn_offset_commit(node: Node, call: RequestArrived[TxnOffsetCommitRequest]) -> TxnOffsetCommitResponse | Deferred:
    request = call.body
    check_id(request.transactional_id)
    if not request.group_id:
        raise errors.InvalidGroupId("offsets of a transaction belong to a group, whose id has at least one character")
    shard = node.groups.shard_of(request.group_id)
    identity = ProducerIdentity(request.producer_id, request.producer_epoch)
    add = call.api_version >= ADDS_PARTITION_SINCE
    verify = add or node.context.options.transaction_partition_verification_enable
    held = node.verification.begin(shard.leader, identity, NO_SEQUENCE, add=add) if verify else None
    if held is None:
        return _committed(node, call, CommitTransaction(*identity, None, verify))
    partition, waiting = shard.partition, held

    def go_on(refused: Mapping[TopicPartition, KafkaError]) -> TxnOffsetCommitResponse | Deferred:
        if partition in refused:
            return refuse(call, _of_group(refused[partition]))
        try:
            if node.context.access is not None:
                # Rules may have changed meanwhile.
                node.context.access.check(call)
            return _committed(node, call, CommitTransaction(*identity, waiting.guard, verify))
        except KafkaError as error:
            return refuse(call, error)

    return when_verified(
        node,
        call,
        request.transactional_id,
        identity,
        {partition: held},
        add=add,
        abortable=call.api_version >= ABORTABLE_SINCE,
        then=go_on,
    )


def _of_group(error: KafkaError) -> KafkaError:
    """An error of the partition as one of its group coordinator: clients look for it again."""
    if isinstance(error, errors.NotEnoughReplicas):
        return errors.CoordinatorNotAvailable(str(error))
    return errors.NotCoordinator(str(error)) if isinstance(error, errors.NotLeaderOrFollower) else error


def _committed(
    node: Node, call: RequestArrived[TxnOffsetCommitRequest], transaction: CommitTransaction
) -> TxnOffsetCommitResponse | Deferred:
    """Raises: KafkaError."""
    request = call.body
    shard = node.groups.shard_of(request.group_id)
    offsets = _as_offset_commit(node, call)
    missing = unknown(node.context.image, offsets)
    forbidden = node.context.refusals(call, TOPICS, (topic.name for topic in offsets.topics if topic.name))
    if forbidden:
        missing |= {number: forbidden[name].code for number, name, _ in entries_of(offsets) if name in forbidden}
    knows_epochs = call.api_version >= KNOWS_EPOCHS_SINCE
    refused = commit_in_transaction(shard.machine, offsets, transaction, missing, knows_epochs=knows_epochs)

    def refuse_others(call: RequestArrived[TxnOffsetCommitRequest], error: KafkaError) -> TxnOffsetCommitResponse:
        return _answer(call, missing, error.code)

    return shard.answer(call, _answer(call, refused, NONE), of=request.group_id, refuse=refuse_others)


def _as_offset_commit(node: Node, call: RequestArrived[TxnOffsetCommitRequest]) -> OffsetCommitRequest:
    """The same offsets outside of a transaction. An unknown topic id is an empty topic name."""
    request = call.body
    topics = []
    for topic in request.topics:
        found = node.context.image.topics_by_id.get(TopicId(topic.topic_id)) if call.api_version >= BY_ID_SINCE else None
        name = topic.name if call.api_version < BY_ID_SINCE else found.name if found is not None else ""
        partitions = [
            OffsetCommitRequestPartition(
                partition_index=each.partition_index,
                committed_offset=each.committed_offset,
                committed_leader_epoch=each.committed_leader_epoch,
                committed_metadata=each.committed_metadata,
            )
            for each in topic.partitions
        ]
        topics.append(OffsetCommitRequestTopic(name=name, topic_id=topic.topic_id, partitions=partitions))
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )


def _answer(call: RequestArrived[TxnOffsetCommitRequest], refused: Refused, code: int) -> TxnOffsetCommitResponse:
    """``code`` applies to entries without an error of their own."""
    numbers = count()
    return TxnOffsetCommitResponse(topics=[_answered(topic, refused, code, numbers) for topic in call.body.topics])


def _answered(topic: TxnOffsetCommitRequestTopic, refused: Refused, code: int, numbers: Iterator[int]) -> TxnOffsetCommitResponseTopic:
    partitions = [
        TxnOffsetCommitResponsePartition(partition_index=each.partition_index, error_code=refused.get(next(numbers), code))
        for each in topic.partitions
    ]
    return TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
