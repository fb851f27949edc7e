"""TxnOffsetCommit: stores a group's offsets as part of a transaction.

Behaviour: the offsets are pending until the transaction's marker commits or drops them. As in Produce, the transaction coordinator first
confirms that the transaction has the group's partition of __consumer_offsets; from version 5 on it adds it. A sender that names a member
or a generation is fenced like one of OffsetCommit (KIP-447), in both group protocols; one that names neither is not. Entries of unknown
partitions are refused alone.

Many entries take turns (``offset_portions.py``), with a batch for each. All are of the transaction that the first one found open or began:
when it ended meanwhile, the rest is refused.

Versions: 3 names the member; 6 names topics by id. Below 4 INVALID_TXN_STATE takes the place of TRANSACTION_ABORTABLE, and below 6
ILLEGAL_GENERATION that of GROUP_ID_NOT_FOUND and STALE_MEMBER_EPOCH.

Source: KIP-98, KIP-447, KIP-890, KIP-1319.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from ottla.base.ids import NO_OFFSET, TopicPartition
from ottla.broker.apis.offset_portions import Answers, OffsetPortions, all_refused, done_at_once
from ottla.broker.apis.transaction_requests import check_id, when_verified
from ottla.broker.coordinator import CommitTransaction, Shard
from ottla.broker.events import RequestArrived
from ottla.broker.groups.groups import Groups
from ottla.broker.groups.offsets import Entry, commit_in_transaction
from ottla.broker.handlers import Deferred, handles
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.records.batch import NO_SEQUENCE
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.offset_commit import OffsetCommitRequest
from ottla.wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

#: First versions whose client knows TRANSACTION_ABORTABLE, and does not send AddOffsetsToTxn. Source: KIP-890.
ABORTABLE_SINCE, ADDS_PARTITION_SINCE = 4, 5
BY_ID_SINCE = KNOWS_EPOCHS_SINCE = 6
TOPICS = REQUIREMENTS[28].parts["topics"]
ANSWERS = Answers(TxnOffsetCommitResponse, TxnOffsetCommitResponseTopic, TxnOffsetCommitResponsePartition)


def refuse(call: RequestArrived[TxnOffsetCommitRequest], error: KafkaError) -> TxnOffsetCommitResponse:
    answer: TxnOffsetCommitResponse = done_at_once(refuse_in_turns(call, error))
    return answer


def refuse_in_turns(call: RequestArrived[TxnOffsetCommitRequest], error: KafkaError) -> Generator[int, None, Any]:
    return all_refused(ANSWERS, call.body.topics, error.code, by_id=call.api_version >= BY_ID_SINCE)


@handles(TxnOffsetCommitRequest, (0, 6), refuse=refuse, refuse_in_turns=refuse_in_turns)
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
            return refused_in_turns(_of_group(refused[partition]))
        try:
            if node.context.access is not None:
                # Rules may have changed meanwhile.
                node.context.access.check(call)
        except KafkaError as error:
            return refused_in_turns(error)
        return _committed(node, call, CommitTransaction(*identity, waiting.guard, verify))

    def refused_in_turns(error: KafkaError) -> TxnOffsetCommitResponse | Deferred:
        answer: TxnOffsetCommitResponse | Deferred = node.context.turns.answer(call, refuse_in_turns(call, error))
        return answer

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
    by_id = call.api_version >= BY_ID_SINCE
    portions = OffsetPortions(node, call, ANSWERS, readable=TOPICS, by_id=by_id, write=TransactionalWrites(call, transaction))
    answer: TxnOffsetCommitResponse | Deferred = portions.answer()
    return answer


class TransactionalWrites:
    """Writes the portions of one request. Called with each; see ``OffsetPortions``."""

    def __init__(self, call: RequestArrived[TxnOffsetCommitRequest], transaction: CommitTransaction) -> None:
        request = call.body
        self._sender = OffsetCommitRequest(
            group_id=request.group_id,
            generation_id_or_member_epoch=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
        self._knows_epochs = call.api_version >= KNOWS_EPOCHS_SINCE
        self._transaction = transaction
        #: First offset of the transaction in the partition, once a portion is written.
        self._began: int | None = None

    def __call__(self, shard: Shard[Groups], entries: Sequence[Entry]) -> None:
        producer_id, epoch = self._transaction.producer_id, self._transaction.producer_epoch
        if self._began is not None and shard.leader.transaction_start(producer_id, epoch) not in (self._began, NO_OFFSET):
            raise errors.InvalidTxnState("the transaction of the first offsets ended, and the producer has begun another one")
        if commit_in_transaction(shard.machine, self._sender, self._transaction, entries, knows_epochs=self._knows_epochs):
            self._began = shard.leader.transaction_start(producer_id, epoch)
            # What is written from now on must not begin a transaction, which no marker would end.
            self._transaction = CommitTransaction(producer_id, epoch, guard=None, verify=True)
