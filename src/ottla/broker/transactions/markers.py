"""Writes the markers of decided transactions to the leaders of their partitions.

::

    begin ──▶ missing partitions ──▶ queue of each leader ──▶ WriteTxnMarkers, one at a time for each leader
                     ▲                                              │
                     │        after MARKER_RETRY_MS                 ├── on disk: not missing any more
                     └──────────────────────────────────────────────┤
                       the leader moved, died, or is not ready      └── none is missing: completed

A marker counts when its leader says so, which is when it is on the disks of all in-sync replicas. Nothing here survives a failover: the
next coordinator begins again with all partitions of the transaction, and a marker that is written twice does no harm. One that arrives
late, when the producer's next transaction has begun, would: requests are numbered (``marker_order.py``).

The marker of a deleted partition is not needed. A leader that refuses the marker's epoch (INVALID_PRODUCER_EPOCH) has it already, or later
records: it is not needed either. Kafka stops there, and the transaction stays undecided until a failover (KAFKA-19999).

Source: Kafka's TransactionMarkerChannelManager. Difference: markers of one partition of ``__transaction_state`` are batched.
"""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.readable import numbers_by_topic
from ottla.base.units import SECOND_MS
from ottla.broker.coordinator import Shard, ShardState
from ottla.broker.delayed import DelayedOperation
from ottla.broker.timeline import shortened
from ottla.broker.transactions.transaction import EPOCH_PER_TRANSACTION, Transaction
from ottla.wire import errors
from ottla.wire.messages.write_txn_markers import (
    MarkerSequence,
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

#: Wait before markers are sent again: a leader election takes about as long.
MARKER_RETRY_MS = SECOND_MS // 5
#: The version of requests between brokers.
VERSION = 2
#: Markers in one request: a leader appends some thousand in a step of some milliseconds.
MARKERS_AT_ONCE = 1_000

#: Answers after which the marker of a partition is not needed any more.
_OVER = (errors.NONE, errors.InvalidProducerEpoch.code, errors.UnsupportedForMessageFormat.code)


class DecidedTransactions(Protocol):
    """The machine whose markers are written."""

    def decided(self, transactional_id: str) -> Transaction | None:
        """The transaction, if its markers are being written."""


class Markers:
    """The markers of one shard."""

    def __init__(self, shard: Shard[Any], transactions: DecidedTransactions, completed: Callable[[str], None]) -> None:
        """``completed``: every marker of a transaction is on disk."""
        self._shard = shard
        self._transactions = transactions
        self._completed = completed
        #: Partitions without a marker, by transactional id.
        self.missing: dict[str, set[TopicPartition]] = {}
        #: Markers for each leader that wait for the request in progress.
        self._queued: dict[BrokerId, dict[str, set[TopicPartition]]] = {}
        #: Leaders with a request in progress.
        self._asked: set[BrokerId] = set()
        #: Requests so far.
        self._sent = 0
        #: Markers that are sent again when the timer fires.
        self._failed: dict[str, set[TopicPartition]] = {}
        self._timer: DelayedOperation | None = None

    def begin(self, transaction: Transaction) -> None:
        """Starts to write the markers of a decided transaction."""
        if transaction.transactional_id not in self.missing:
            self.missing[transaction.transactional_id] = set(transaction.partitions)
            self._route({transaction.transactional_id: set(transaction.partitions)})

    def _route(self, markers: dict[str, set[TopicPartition]]) -> None:
        """Queues markers for the present leaders of their partitions."""
        image = self._shard.image
        leaders: dict[BrokerId, None] = {}
        for transactional_id, partitions in markers.items():
            # Sorted: the order of a set is another one in each process, and the simulator repeats a history.
            for partition in sorted(partitions):
                if not image.has(*partition):
                    # Deleted: there is nothing to decide.
                    self._written(transactional_id, (partition,))
                    continue
                state = image.topics[partition.topic].states.get(partition.partition)
                leader = BrokerId(-1) if state is None else BrokerId(state.leader)
                if leader in image.brokers:
                    leaders[leader] = None
                    self._queued.setdefault(leader, {}).setdefault(transactional_id, set()).add(partition)
                else:
                    self._again(transactional_id, (partition,))
            self._check(transactional_id)
        for leader in leaders:
            self._send(leader)

    def _send(self, leader: BrokerId) -> None:
        if leader in self._asked or not self._queued.get(leader):
            return
        queue = self._queued[leader]
        sent = {transactional_id: queue.pop(transactional_id) for transactional_id in list(queue)[:MARKERS_AT_ONCE]}
        if not queue:
            del self._queued[leader]
        # In the order of the response.
        ids: list[str] = []
        self._sent += 1
        shard = self._shard
        request = WriteTxnMarkersRequest(
            sequence=MarkerSequence(partition=shard.partition.partition, broker_epoch=shard.context.epoch or 0, number=self._sent)
        )
        for transactional_id, partitions in sent.items():
            transaction = self._transactions.decided(transactional_id)
            if transaction is not None:
                ids.append(transactional_id)
                request.markers.append(self._marker(transaction, partitions))
        if not ids:
            self._send(leader)
            return
        self._asked.add(leader)

        def done(response: WriteTxnMarkersResponse | None) -> None:
            if self._shard.state is not ShardState.GONE:
                self._shard.context.isolation.run_shard(self._shard, lambda: self._answered(leader, sent, ids, response))

        timeout_ms = self._shard.options.request_timeout_ms
        self._shard.context.ask(leader, request, version=VERSION, timeout_ms=timeout_ms, done=done)

    def _marker(self, transaction: Transaction, partitions: Iterable[TopicPartition]) -> WritableTxnMarker:
        return WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            transaction_result=transaction.state.commits,
            topics=[
                WritableTxnMarkerTopic(
                    name=topic, partition_indexes=numbers, leader_epochs=[self._leader_epoch(topic, one) for one in numbers]
                )
                for topic, numbers in numbers_by_topic(partitions).items()
            ],
            coordinator_epoch=self._shard.leader.epoch,
            transaction_version=min(transaction.client_version, EPOCH_PER_TRANSACTION),
        )

    def _leader_epoch(self, topic: str, partition: int) -> int:
        """As far as this broker knows; -1 if the partition has no state."""
        image = self._shard.image
        state = image.topics[topic].states.get(partition) if image.has(topic, partition) else None
        return -1 if state is None else state.leader_epoch

    def _answered(
        self, leader: BrokerId, sent: dict[str, set[TopicPartition]], ids: list[str], response: WriteTxnMarkersResponse | None
    ) -> None:
        self._asked.discard(leader)
        results = response.markers if response is not None and len(response.markers) == len(ids) else [None] * len(ids)
        for transactional_id, result in zip(ids, results, strict=True):
            codes = {} if result is None else {
                TopicPartition(topic.name, each.partition_index): each.error_code for topic in result.topics for each in topic.partitions
            }  # fmt: skip
            asked = sent[transactional_id]
            self._note(transactional_id, leader, len(asked), sum(codes.get(partition) in _OVER for partition in asked))
            self._written(transactional_id, [partition for partition in asked if codes.get(partition) in _OVER])
            # A coordinator that is fenced is about to learn that it is none; it does not try again.
            failed = [partition for partition in asked if codes.get(partition) not in (*_OVER, errors.TransactionCoordinatorFenced.code)]
            self._again(transactional_id, failed)
            self._check(transactional_id)
        self._send(leader)

    def _note(self, transactional_id: str, leader: BrokerId, asked: int, written: int) -> None:
        """Adds a leader's answer to the timeline."""
        self._shard.context.timeline.note(
            "transaction", shortened(transactional_id), "markers answered", leader=leader, asked=asked, written=written
        )

    def _written(self, transactional_id: str, partitions: Iterable[TopicPartition]) -> None:
        missing = self.missing.get(transactional_id)
        if missing is not None:
            missing.difference_update(partitions)

    def _check(self, transactional_id: str) -> None:
        if self.missing.get(transactional_id, True) == set():
            del self.missing[transactional_id]
            self._completed(transactional_id)

    def _again(self, transactional_id: str, partitions: Iterable[TopicPartition]) -> None:
        waiting = set(partitions)
        if not waiting:
            return
        self._failed.setdefault(transactional_id, set()).update(waiting)
        if self._timer is None:
            self._timer = self._shard.after(MARKER_RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._timer = None
        failed, self._failed = self._failed, {}
        self._route(failed)
