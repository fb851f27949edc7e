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

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Protocol

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.readable import numbers_by_topic
from ottla.base.units import SECOND_MS
from ottla.broker.coordinator import Shard, ShardState
from ottla.broker.delayed import DelayedOperation
from ottla.broker.timeline import shortened
from ottla.broker.transactions.transaction import EPOCH_PER_TRANSACTION, Transaction
from ottla.broker.turns import portions
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
#: Markers in one request: a few milliseconds of encoding and decoding, if the leader is another broker.
MARKERS_AT_ONCE = 1_000
#: What it weighs in a turn to find the leader of a partition, and to add its marker to a request.
ROUTE_WEIGHT = MARKER_WEIGHT = 2

#: Answers after which the marker of a partition is not needed any more.
_OVER = (errors.NONE, errors.InvalidProducerEpoch.code, errors.UnsupportedForMessageFormat.code)
_NOT_AGAIN = (*_OVER, errors.TransactionCoordinatorFenced.code)


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
        self._queued: dict[BrokerId, dict[str, list[TopicPartition]]] = {}
        #: Leaders with a request in progress.
        self._asked: set[BrokerId] = set()
        #: Requests so far.
        self._sent = 0
        #: Markers that are sent again when the timer fires.
        self._failed: dict[str, list[TopicPartition]] = {}
        self._timer: DelayedOperation | None = None

    def begin(self, transaction: Transaction) -> None:
        """Starts to write the markers of a decided transaction."""
        if transaction.transactional_id not in self.missing:
            partitions = transaction.partitions
            self.missing[transaction.transactional_id] = set().union(*(part.partitions for part in partitions.parts))
            self._do(self._route({transaction.transactional_id: partitions}))

    def _do(self, work: Generator[int, None, None]) -> None:
        """Takes a turn of work now, and the others later."""
        turns = self._shard.context.turns
        if turns.advanced(work):
            turns.work_off(work, self._shard)

    def _route(self, markers: Mapping[str, Iterable[TopicPartition]]) -> Generator[int, None, None]:
        """Queues markers for the present leaders of their partitions."""
        for transactional_id, partitions in markers.items():
            for some in portions(partitions, lambda partition: ROUTE_WEIGHT):
                if self._shard.state is ShardState.GONE:
                    return
                self._queue(transactional_id, some)
                yield ROUTE_WEIGHT * len(some)
            self._check(transactional_id)

    def _queue(self, transactional_id: str, partitions: list[TopicPartition]) -> None:
        image = self._shard.image
        leaders: dict[BrokerId, None] = {}
        for partition in partitions:
            if not image.has(*partition):
                # Deleted: there is nothing to decide.
                self._written(transactional_id, (partition,))
                continue
            state = image.topics[partition.topic].states.get(partition.partition)
            leader = BrokerId(-1) if state is None else BrokerId(state.leader)
            if leader in image.brokers:
                leaders[leader] = None
                self._queued.setdefault(leader, {}).setdefault(transactional_id, []).append(partition)
            else:
                self._again(transactional_id, [partition])
        for leader in leaders:
            self._send(leader)

    def _send(self, leader: BrokerId) -> None:
        if leader not in self._asked and self._queued.get(leader):
            self._asked.add(leader)
            self._do(self._ask(leader))

    def _ask(self, leader: BrokerId) -> Generator[int, None, None]:
        shard, sent = self._shard, self._take(leader)
        # In the order of the response.
        ids: list[str] = []
        markers: list[WritableTxnMarker] = []
        for transactional_id, partitions in sent.items():
            transaction = self._transactions.decided(transactional_id)
            if transaction is not None:
                ids.append(transactional_id)
                markers.append((yield from self._marker(transaction, partitions)))
        if shard.state is ShardState.GONE:
            return
        if not ids:
            self._asked.discard(leader)
            self._send(leader)
            return
        self._sent += 1
        sequence = MarkerSequence(partition=shard.partition.partition, broker_epoch=shard.context.epoch or 0, number=self._sent)

        def answered(response: WriteTxnMarkersResponse | None) -> None:
            if shard.state is not ShardState.GONE:
                shard.context.isolation.run_shard(shard, lambda: self._do(self._answered(leader, sent, ids, response)))

        request = WriteTxnMarkersRequest(markers=markers, sequence=sequence)
        shard.context.ask(leader, request, version=VERSION, timeout_ms=shard.options.request_timeout_ms, done=answered)

    def _take(self, leader: BrokerId) -> dict[str, list[TopicPartition]]:
        """Removes what one request may have from a leader's queue."""
        queue, room = self._queued[leader], MARKERS_AT_ONCE
        sent: dict[str, list[TopicPartition]] = {}
        while queue and room:
            transactional_id = next(iter(queue))
            partitions = queue[transactional_id]
            sent[transactional_id] = partitions[:room]
            if len(partitions) <= room:
                del queue[transactional_id]
            else:
                queue[transactional_id] = partitions[room:]
            room -= len(sent[transactional_id])
        if not queue:
            del self._queued[leader]
        return sent

    def _marker(self, transaction: Transaction, partitions: list[TopicPartition]) -> Generator[int, None, WritableTxnMarker]:
        topics: dict[str, WritableTxnMarkerTopic] = {}
        for some in portions(partitions, lambda partition: MARKER_WEIGHT):
            for name, numbers in numbers_by_topic(some).items():
                topic = topics.setdefault(name, WritableTxnMarkerTopic(name=name))
                topic.partition_indexes += numbers
                topic.leader_epochs += [self._leader_epoch(name, one) for one in numbers]
            yield MARKER_WEIGHT * len(some)
        return WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.epoch,
            transaction_result=transaction.state.commits,
            topics=list(topics.values()),
            coordinator_epoch=self._shard.leader.epoch,
            transaction_version=min(transaction.client_version, EPOCH_PER_TRANSACTION),
        )

    def _leader_epoch(self, topic: str, partition: int) -> int:
        """As far as this broker knows; -1 if the partition has no state."""
        image = self._shard.image
        state = image.topics[topic].states.get(partition) if image.has(topic, partition) else None
        return -1 if state is None else state.leader_epoch

    def _answered(
        self, leader: BrokerId, sent: dict[str, list[TopicPartition]], ids: list[str], response: WriteTxnMarkersResponse | None
    ) -> Generator[int, None, None]:
        results = response.markers if response is not None and len(response.markers) == len(ids) else [None] * len(ids)
        for transactional_id, result in zip(ids, results, strict=True):
            codes: dict[TopicPartition, int] = {}
            for topic in [] if result is None else result.topics:
                for some in portions(topic.partitions, lambda each: 1):
                    codes |= {TopicPartition(topic.name, each.partition_index): each.error_code for each in some}
                    yield len(some)
            asked = sent[transactional_id]
            written = 0
            for some_of in portions(asked, lambda partition: 1):
                over = [partition for partition in some_of if codes.get(partition) in _OVER]
                self._written(transactional_id, over)
                written += len(over)
                # A coordinator that is fenced is about to learn that it is none; it does not try again.
                self._again(transactional_id, [partition for partition in some_of if codes.get(partition) not in _NOT_AGAIN])
                yield len(some_of)
            if self._shard.state is ShardState.GONE:
                return
            self._note(transactional_id, leader, len(asked), written)
            self._check(transactional_id)
        self._asked.discard(leader)
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

    def _again(self, transactional_id: str, partitions: list[TopicPartition]) -> None:
        if not partitions:
            return
        self._failed.setdefault(transactional_id, []).extend(partitions)
        if self._timer is None:
            self._timer = self._shard.after(MARKER_RETRY_MS, self._retry)

    def _retry(self) -> None:
        self._timer = None
        failed, self._failed = self._failed, {}
        self._do(self._route(failed))
