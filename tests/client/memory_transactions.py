"""The transaction coordinator of an in-memory cluster. It decides with the broker's own pure functions, and writes markers at once.

`hold_markers` keeps decided transactions from completing, so that the next request gets CONCURRENT_TRANSACTIONS, until `release`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ottla.base.ids import TopicPartition
from ottla.broker.transactions import transaction as tx
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import Initialization, ProducerIdentity, Transaction
from ottla.wire import messages as m
from ottla.wire.errors import KafkaError
from ottla.wire.messages.add_partitions_to_txn import AddPartitionsToTxnPartitionResult, AddPartitionsToTxnTopicResult
from ottla.wire.messages.txn_offset_commit import TxnOffsetCommitResponsePartition, TxnOffsetCommitResponseTopic

if TYPE_CHECKING:
    from memory_cluster import MemoryCluster

OFFSETS = TopicPartition("__consumer_offsets", 0)
NEVER_MS = 0


class MemoryTransactions:
    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        #: Finalized transaction.version of the cluster.
        self.version = 2
        self.ids: dict[str, Transaction] = {}
        self.hold_markers = False
        #: Called after each change of a state.
        self.changed: Callable[[], None] = lambda: None
        #: Offsets by producer id, until the marker.
        self.pending: dict[int, dict[tuple[str, int], tuple[int, int, str]]] = {}

    def new_producer_id(self) -> int:
        self.cluster.last_producer_id += 1
        return self.cluster.last_producer_id

    # -- decisions

    def initialize(self, request: Any) -> m.InitProducerIdResponse:
        before = self.ids.get(request.transactional_id) or Transaction(request.transactional_id, self.new_producer_id())
        expected = None if request.producer_id < 0 else ProducerIdentity(request.producer_id, request.producer_epoch)
        asked = Initialization(request.transaction_timeout_ms, expected, request.enable2_pc, request.keep_prepared_txn)
        after = tx.initialize(before, asked, new_producer_id=self.new_producer_id, wall_ms=NEVER_MS)
        self._apply(after)
        if after.state.decided:
            return m.InitProducerIdResponse(error_code=51)
        response = m.InitProducerIdResponse(producer_id=after.held.producer_id, producer_epoch=after.held.epoch)
        if after.recovered:
            response.ongoing_txn_producer_id, response.ongoing_txn_producer_epoch = after.identity
        return response

    def add(self, transactional_id: str, identity: ProducerIdentity, partitions: list[TopicPartition]) -> None:
        """Raises: KafkaError."""
        before = tx.check_identity(self.ids.get(transactional_id), identity, transactional_id)
        self._apply(tx.add_partitions(before, partitions, wall_ms=NEVER_MS))

    def end(self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, version: int) -> ProducerIdentity:
        """The identity of the next transaction. Raises: KafkaError."""
        before = self.ids.get(transactional_id) or Transaction(transactional_id, -1)
        after = tx.end(before, identity, commit=commit, version=version, new_producer_id=self.new_producer_id, wall_ms=NEVER_MS)
        self._apply(after)
        return after.held

    def fence(self, transactional_id: str) -> None:
        """Abort the open transaction, as the coordinator does after its timeout."""
        self._apply(tx.fence(self.ids[transactional_id], wall_ms=NEVER_MS))

    def state(self, transactional_id: str = "x") -> TransactionState:
        return self.ids[transactional_id].state

    def release(self) -> None:
        """Complete what was held."""
        self.hold_markers = False
        for transaction in list(self.ids.values()):
            self._apply(transaction)

    def _apply(self, transaction: Transaction) -> None:
        if transaction.state.decided and not self.hold_markers:
            for topic, partition in set(transaction.partitions) - {OFFSETS}:
                log = self.cluster.logs[topic][partition]
                log.mark(*transaction.identity, commit=transaction.state is TransactionState.PREPARE_COMMIT)
            offsets = self.pending.pop(transaction.producer_id, {})
            if transaction.state is TransactionState.PREPARE_COMMIT:
                self.cluster.groups.offsets |= offsets
            transaction = tx.complete(transaction, wall_ms=NEVER_MS)
            for node in self.cluster.nodes.values():
                node.look_again()
        self.ids[transaction.transactional_id] = transaction
        self.changed()

    # -- requests

    def on_AddPartitionsToTxn(self, request: Any) -> Any:
        assert not request.transactions, "clients send version 3"
        identity = ProducerIdentity(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
        asked = [TopicPartition(topic.name, index) for topic in request.v3_and_below_topics for index in topic.partitions]
        code = _code(lambda: self.add(request.v3_and_below_transactional_id, identity, asked))
        topics = [
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code) for index in topic.partitions
                ],
            )
            for topic in request.v3_and_below_topics
        ]
        return m.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)

    def on_AddOffsetsToTxn(self, request: Any) -> Any:
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        return m.AddOffsetsToTxnResponse(error_code=_code(lambda: self.add(request.transactional_id, identity, [OFFSETS])))

    def on_EndTxn(self, request: Any, version: int) -> Any:
        identity, held = ProducerIdentity(request.producer_id, request.producer_epoch), []
        implicit = 2 if version >= 5 else 1
        code = _code(
            lambda: held.append(self.end(request.transactional_id, identity, commit=request.committed, version=implicit))
        )  # fmt: skip
        if code:
            return m.EndTxnResponse(error_code=code)
        return m.EndTxnResponse(producer_id=held[0].producer_id, producer_epoch=held[0].epoch)

    def on_TxnOffsetCommit(self, request: Any, version: int) -> Any:
        identity = ProducerIdentity(request.producer_id, request.producer_epoch)
        code = 0
        if version >= 5:
            code = _code(lambda: self.add(request.transactional_id, identity, [OFFSETS]))
        elif OFFSETS not in self.ids[request.transactional_id].partitions:
            code = 120
        if not code and request.member_id:
            code = self.cluster.groups.refuse_member(request.member_id, request.generation_id)
        topics = []
        for topic in request.topics:
            name = self.cluster.name_of(topic)
            wrong = code or (0 if name in self.cluster.logs else 100 if version >= 6 else 3)
            if not wrong:
                kept = {
                    (name, one.partition_index): (one.committed_offset, one.committed_leader_epoch, one.committed_metadata or "")
                    for one in topic.partitions
                }
                self.pending.setdefault(request.producer_id, {}).update(kept)
            answers = [TxnOffsetCommitResponsePartition(partition_index=one.partition_index, error_code=wrong) for one in topic.partitions]
            topics.append(TxnOffsetCommitResponseTopic(name=topic.name, topic_id=topic.topic_id, partitions=answers))
        return m.TxnOffsetCommitResponse(topics=topics)

    def refuse_batch(self, transactional_id: str | None, header: Any, partition: TopicPartition, version: int) -> int:
        """The error code of a transactional batch; version 12 adds its partition."""
        identity = ProducerIdentity(header.producer_id, header.producer_epoch)
        if transactional_id is None:
            return 53
        if version >= 12:
            code = _code(lambda: self.add(transactional_id, identity, [partition]))
            return 47 if code == 90 else code
        known = self.ids.get(transactional_id)
        if known is None or known.identity != identity:
            return 47
        return 0 if partition in known.partitions and known.state is TransactionState.ONGOING else 48


def _code(decide: Any) -> int:
    try:
        decide()
    except KafkaError as error:
        return error.code
    return 0
