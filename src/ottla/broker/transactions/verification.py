"""Verifies at a partition's leader that a transaction has the partition, before the first record of the transaction is appended.

Without this, a record that arrives after its transaction's marker begins a transaction that nobody ends. ::

    first batch ──▶ guard ──▶ AddPartitionsToTxn to the coordinator ──▶ verified ──▶ append, if no marker came meanwhile
                                                                       error    ──▶ refuse

Old clients have added the partition: the request only verifies it. Produce 12 and TxnOffsetCommit 5 rely on it to add the partition.
Batches of a transaction that is open in the log are not verified again.

Requests to a coordinator are batched while ``REQUESTS_AT_ONCE`` are in progress. Those of one transactional id are asked one after the
other, so that batches of one producer keep their order. One id does not wait for another, whose last transaction is being completed.

The guard is the log's (``log/verification.py``). Source: Kafka's AddPartitionsToTxnManager; KIP-890.

Difference from Kafka: two requests of one transaction wait for each other; Kafka fails the first with NETWORK_EXCEPTION.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.readable import numbers_by_topic
from ottla.broker.context import BrokerContext
from ottla.broker.coordinator import Coordinator
from ottla.broker.replica.leader import Leader
from ottla.broker.transactions.transaction import ProducerIdentity
from ottla.log.verification import VerificationGuard
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

#: The version of requests between brokers.
VERSION = 5
#: Transactions in one request: the coordinator decides each in some ten microseconds.
TRANSACTIONS_AT_ONCE = 500
#: Requests in progress to one coordinator.
REQUESTS_AT_ONCE = 4

#: Errors of the verification itself, after which a producer tries again. Produce has no error of its own for these.
_NOT_VERIFIED = (
    errors.ConcurrentTransactions.code,
    errors.NetworkError.code,
    errors.CoordinatorLoadInProgress.code,
    errors.CoordinatorNotAvailable.code,
    errors.NotCoordinator.code,
)


class Held(NamedTuple):
    """A verification that a batch waits for."""

    leader: Leader
    #: None: the transaction is open, but an earlier batch waits, or another one of the request.
    guard: VerificationGuard | None


class Asked(NamedTuple):
    """Partitions of one transaction to verify or to add."""

    transactional_id: str
    identity: ProducerIdentity
    partitions: frozenset[TopicPartition]
    #: Whether to add them.
    add: bool
    #: Gets the error code of each partition.
    done: Callable[[Mapping[TopicPartition, int]], None]


class Verifications:
    """The verifications of one broker."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        self._queued: dict[BrokerId, list[Asked]] = {}
        #: Number of requests in progress to each coordinator; without zeros.
        self._asking: dict[BrokerId, int] = {}
        #: Transactional ids with a request in progress. Later ones stay in the queue.
        self._busy: set[str] = set()
        #: Number of batches of each producer that wait for a verification; without zeros.
        self._waiting: dict[tuple[TopicPartition, int], int] = {}

    # Batches that wait.

    def begin(self, leader: Leader, identity: ProducerIdentity, sequence: int, *, add: bool) -> Held | None:
        """Begins to verify a batch, which ``end`` ends; None if it can be appended now.

        ``sequence``: of the batch, -1 for offsets; ``add``: the coordinator adds the partition. Raises: InvalidProducerEpoch.
        """
        guard = leader.begin_verification(identity.producer_id, identity.epoch, sequence, raises_epoch=add, wall_ms=self._context.wall_ms)
        if guard is None and (leader.partition, identity.producer_id) not in self._waiting:
            return None
        return self._held(leader, identity, guard)

    def wait(self, leader: Leader, identity: ProducerIdentity) -> Held:
        """Makes a batch of an open transaction wait, because another partition of its request is verified; ``end`` ends it."""
        return self._held(leader, identity, None)

    def _held(self, leader: Leader, identity: ProducerIdentity, guard: VerificationGuard | None) -> Held:
        key = leader.partition, identity.producer_id
        self._waiting[key] = self._waiting.get(key, 0) + 1
        return Held(leader, guard)

    def end(self, held: Held, producer_id: int) -> None:
        """The batch is appended or refused."""
        key = held.leader.partition, producer_id
        self._waiting[key] -= 1
        if not self._waiting[key]:
            del self._waiting[key]

    # Requests to coordinators.

    def ask(
        self,
        coordinators: Coordinator[Any],
        transactional_id: str,
        identity: ProducerIdentity,
        partitions: Iterable[TopicPartition],
        *,
        add: bool,
        done: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        """Verifies or adds partitions of a transaction; ``done`` gets the error code of each, 0 for success."""
        context = self._context
        wanted = frozenset(partitions)
        number = coordinators.partition_of(transactional_id)
        topic = context.image.topics.get(coordinators.topic)
        state = topic.states.get(number) if topic is not None and number is not None else None
        if state is None or BrokerId(state.leader) not in context.image.brokers:
            done(dict.fromkeys(wanted, errors.CoordinatorNotAvailable.code))
            return
        coordinator = BrokerId(state.leader)
        self._queued.setdefault(coordinator, []).append(Asked(transactional_id, identity, wanted, add, done))
        self._send(coordinator)

    def _send(self, coordinator: BrokerId) -> None:
        queue = self._queued.get(coordinator)
        if not queue or self._asking.get(coordinator, 0) >= REQUESTS_AT_ONCE:
            return
        taken, left = _next(queue, self._busy)
        if left:
            self._queued[coordinator] = left
        else:
            del self._queued[coordinator]
        if not taken:
            return
        self._asking[coordinator] = self._asking.get(coordinator, 0) + 1
        self._busy.update(taken)
        request = AddPartitionsToTxnRequest(transactions=[_transaction(asked) for asked in taken.values()])
        timeout_ms = self._context.options.request_timeout_ms
        self._context.ask(
            coordinator, request, version=VERSION, timeout_ms=timeout_ms, done=lambda response: self._answered(coordinator, taken, response)
        )

    def _answered(self, coordinator: BrokerId, taken: dict[str, list[Asked]], response: AddPartitionsToTxnResponse | None) -> None:
        self._asking[coordinator] -= 1
        if not self._asking[coordinator]:
            del self._asking[coordinator]
        self._busy.difference_update(taken)
        found: dict[str, dict[TopicPartition, int]] = {}
        whole = errors.NetworkError.code if response is None else response.error_code
        if response is not None:
            for result in response.results_by_transaction:
                found[result.transactional_id] = {
                    TopicPartition(topic.name, each.partition_index): each.partition_error_code
                    for topic in result.topic_results
                    for each in topic.results_by_partition
                }
        for transactional_id, several in taken.items():
            codes = found.get(transactional_id, {})
            for asked in several:
                asked.done({partition: codes.get(partition, whole or errors.UnknownServerError.code) for partition in asked.partitions})
        # An id can wait for another coordinator, if its own moved.
        for each in list(self._queued):
            self._send(each)


def _next(queue: list[Asked], busy: Iterable[str]) -> tuple[dict[str, list[Asked]], list[Asked]]:
    """What one request may have: an id once, with one identity; and the rest."""
    taken: dict[str, list[Asked]] = {}
    left: list[Asked] = []
    blocked = set(busy)
    for asked in queue:
        same = taken.get(asked.transactional_id)
        first = same[0] if same else None
        fits = first is None or (first.identity, first.add) == (asked.identity, asked.add)
        if asked.transactional_id in blocked or not fits or (first is None and len(taken) >= TRANSACTIONS_AT_ONCE):
            blocked.add(asked.transactional_id)
            left.append(asked)
        else:
            taken.setdefault(asked.transactional_id, []).append(asked)
    return taken, left


def _transaction(several: list[Asked]) -> AddPartitionsToTxnTransaction:
    first = several[0]
    partitions = frozenset().union(*(asked.partitions for asked in several))
    return AddPartitionsToTxnTransaction(
        transactional_id=first.transactional_id,
        producer_id=first.identity.producer_id,
        producer_epoch=first.identity.epoch,
        verify_only=not first.add,
        topics=[AddPartitionsToTxnTopic(name=topic, partitions=numbers) for topic, numbers in numbers_by_topic(partitions).items()],
    )


def refusal_of_code(code: int, *, abortable: bool) -> KafkaError:
    """The error of a batch whose verification had this error. ``abortable``: the client knows TRANSACTION_ABORTABLE."""
    if code in _NOT_VERIFIED:
        return errors.NotEnoughReplicas(f"the coordinator did not verify the partition of the transaction (error {code}); try again")
    if code == errors.ProducerFenced.code:
        return errors.InvalidProducerEpoch("the epoch is not that of the transactional id; another producer uses it, or it timed out")
    if code == errors.TransactionAbortable.code:
        if abortable:
            return errors.TransactionAbortable("the partition was not added to the transaction")
        return errors.InvalidTxnState("the partition was not added to the transaction")
    return errors.BY_CODE.get(code, errors.UnknownServerError)("the transaction's coordinator refused the partition")
