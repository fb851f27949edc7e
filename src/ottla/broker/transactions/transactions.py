"""All transactional ids of one shard of ``__transaction_state``.

::

    InitProducerId ... EndTxn                              records of the partition
              │                                                   │
              ▼                                                   ▼
    decision (``transaction.py``) ──▶ shard.write ──▶ apply(key, value): the id has a new state
                                                              │
                          PrepareCommit, PrepareAbort: once committed, markers (``markers.py``)
                          CompleteCommit, CompleteAbort: when every marker is on disk

A decision is one record. It counts when it is on the disks of all in-sync replicas: only then is it answered and are its markers written.
A later decision may be made before that; it is behind the first in the log. A coordinator that loads the log goes on with the markers of
every decided transaction.

``TIMERS`` are the tasks at intervals: transactions are aborted after their timeout, and idle ids expire.

Source: Kafka's TransactionCoordinator, TransactionStateManager; KIP-98. Difference: a request is not refused with CONCURRENT_TRANSACTIONS
because the record of another is being written.
"""

from collections.abc import Callable, Collection, Iterator
from itertools import islice
from typing import Any, NamedTuple

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import TRANSACTION
from ottla.base.units import MiB
from ottla.broker.context import BrokerContext
from ottla.broker.controller.controller import Controller
from ottla.broker.coordinator import Coordinator, Record, Shard
from ottla.broker.metadata.configs import BrokerOptions, Settings
from ottla.broker.metadata.features import TRANSACTION_VERSION
from ottla.broker.replica.replicas import Replicas
from ottla.broker.timeline import shortened
from ottla.broker.transactions import transaction as decisions
from ottla.broker.transactions.markers import MARKER_RETRY_MS, Markers
from ottla.broker.transactions.partitions import NONE, Addition, TransactionPartitions
from ottla.broker.transactions.producer_ids import ProducerIds
from ottla.broker.transactions.records import TransactionLogKey, decode_record
from ottla.broker.transactions.states import TransactionState
from ottla.broker.transactions.transaction import (
    Initialization,
    ProducerIdentity,
    Transaction,
    check_identity,
    check_undecided,
    encode_state,
    transaction_of,
)
from ottla.wire import errors
from ottla.wire.errors import KafkaError

TRANSACTIONS_TOPIC = "__transaction_state"
#: Ids that one step looks at for expiry: about a millisecond.
LOOKED_AT_ONCE = 1_000
#: Memory of an id without its partitions, and of a partition.
ID_BYTES, PARTITION_BYTES = 1_000, 150
#: Characters of a client's id that are kept for display.
CLIENT_ID_MAX = 200
#: Partitions that an entry of the timeline names.
PARTITIONS_SHOWN = 5


class TransactionalClient(NamedTuple):
    """The client of a transactional id."""

    client_id: str
    host: str


class Timer(NamedTuple):
    """A task at intervals."""

    name: str
    interval_ms: Callable[[BrokerOptions], int]
    run: "Callable[[Transactions], Iterator[None]]"


class Transactions:
    """The state machine of a shard."""

    def __init__(self, shard: "Shard[Transactions]", producer_ids: ProducerIds) -> None:
        self.shard = shard
        self._producer_ids = producer_ids
        #: By transactional id.
        self.by_id: dict[str, Transaction] = {}
        #: Ids whose transaction is Ongoing: only these can time out.
        self.ongoing: dict[str, None] = {}
        #: The client that used each id last, for DescribeTransactions. In memory only: empty after a failover, until the next request.
        self.clients: dict[str, TransactionalClient] = {}
        self.bytes = 0
        self.markers = Markers(shard, self, self._complete)

    # For the coordinator.

    def encode(self, key: Any, value: Any) -> tuple[bytes, bytes | None]:
        return encode_state(key, value, 1 if transaction_version(self.shard.context) >= 1 else 0)

    def decode(self, key: bytes, value: bytes | None) -> Record | None:
        read = decode_record(key, value)
        if read is None:
            return None
        found, state = read
        return found, None if state is None else transaction_of(found, state)

    def apply(self, key: TransactionLogKey, after: Transaction | None) -> None:
        transactional_id = key.transactional_id
        before = self.by_id.pop(transactional_id, None)
        self.ongoing.pop(transactional_id, None)
        if before is not None:
            self.bytes -= footprint(before)
        if after is not None:
            self.by_id[transactional_id] = after
            self.bytes += footprint(after)
            if after.state is TransactionState.ONGOING:
                self.ongoing[transactional_id] = None
        else:
            self.clients.pop(transactional_id, None)

    def apply_transactional(self, key: Any, value: Any, *, producer_id: int, record_offset: int) -> None:
        """No transaction writes here."""
        self.apply(key, value)

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        """No transaction writes here."""

    def loaded(self) -> None:
        for transaction in list(self.by_id.values()):
            self.go_on_with(transaction)
        for timer in TIMERS:
            self._start(timer)

    # Requests. All raise KafkaError and the errors of a write.

    def initialize(self, transactional_id: str, asked: Initialization) -> Transaction:
        """InitProducerId: the new state, see ``transaction.initialize``."""
        before = self.by_id.get(transactional_id)
        if before is None:
            self._check_room(transactional_id)
            before = Transaction(transactional_id, self._new_producer_id())
        after = decisions.initialize(before, asked, new_producer_id=self._new_producer_id, wall_ms=self.shard.wall_ms)
        self._write(after)
        return after

    def add(self, transactional_id: str, identity: ProducerIdentity, partitions: Collection[TopicPartition] | Addition) -> None:
        """AddPartitionsToTxn, AddOffsetsToTxn."""
        before = check_identity(self.by_id.get(transactional_id), identity, transactional_id)
        after = decisions.add_partitions(before, partitions, wall_ms=self.shard.wall_ms)
        if after is not before:
            self._write(after)

    def partitions_of(self, transactional_id: str) -> TransactionPartitions:
        """The partitions to which ``add`` would add others."""
        found = self.by_id.get(transactional_id)
        return found.partitions if found is not None and found.state is TransactionState.ONGOING else NONE

    def note_client(self, transactional_id: str, client_id: str | None, host: str) -> None:
        """A client with the identity of this id sent a request."""
        self.clients[transactional_id] = TransactionalClient((client_id or "")[:CLIENT_ID_MAX], host)

    def verify(
        self, transactional_id: str, identity: ProducerIdentity, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The error of each partition; 0 if it belongs to the transaction. Source: KIP-890."""
        transaction = check_identity(self.by_id.get(transactional_id), identity, transactional_id)
        check_undecided(transaction)
        known = transaction.partitions
        return {partition: errors.NONE if partition in known else errors.TransactionAbortable.code for partition in partitions}

    def end(self, transactional_id: str, identity: ProducerIdentity, *, commit: bool, version: int) -> Transaction:
        """EndTxn: the new state; ``version`` is the client's ``transaction.version``. Its markers need ``go_on_with``."""
        before = self.by_id.get(transactional_id)
        if before is None:
            raise errors.InvalidProducerIdMapping(f"there is no transactional id {transactional_id!r}; it may have expired")
        after = decisions.end(
            before, identity, commit=commit, version=version, new_producer_id=self._new_producer_id, wall_ms=self.shard.wall_ms
        )
        if after is not before:
            self._store(after)
        return after

    def find(self, transactional_id: str) -> Transaction:
        """Raises: TransactionalIdNotFound."""
        found = self.by_id.get(transactional_id)
        if found is None:
            raise errors.TransactionalIdNotFound(f"there is no transactional id {transactional_id!r}")
        return found

    def _new_producer_id(self) -> int:
        producer_id = self._producer_ids.take()
        if producer_id is None:
            raise errors.CoordinatorLoadInProgress("the store allocates producer ids; try again")
        return producer_id

    def _check_room(self, transactional_id: str) -> None:
        limit = self.shard.options.transactions_max_bytes
        used = sum(shard.machine.bytes for shard in self.shard.siblings.values())
        if used + ID_BYTES + len(transactional_id) > limit:
            raise errors.PolicyViolation(
                f"the transactional ids of this broker take all of ottla.transactions.max.bytes, {limit}; idle ones expire after "
                "transactional.id.expiration.ms"
            )

    # Markers.

    def decided(self, transactional_id: str) -> Transaction | None:
        """The transaction, if its markers are being written."""
        found = self.by_id.get(transactional_id)
        return found if found is not None and found.state.decided else None

    def _write(self, after: Transaction) -> None:
        self._store(after)
        self.go_on_with(after)

    def _store(self, after: Transaction) -> None:
        self.shard.write(after.transactional_id, [(TransactionLogKey(transactional_id=after.transactional_id), after)])
        self._note(after)

    def _note(self, after: Transaction) -> None:
        """Adds a state to the timeline."""
        client = self.clients.get(after.transactional_id)
        self.shard.context.timeline.note(
            "transaction",
            shortened(after.transactional_id),
            after.state.value,
            producer_id=after.producer_id,
            producer_epoch=after.epoch,
            partitions=len(after.partitions),
            first_partitions=[str(one) for one in islice(after.partitions, PARTITIONS_SHOWN)],
            started_ms=after.start_ms,
            timeout_ms=after.timeout_ms,
            client_id="" if client is None else client.client_id,
        )

    def go_on_with(self, transaction: Transaction) -> None:
        """Writes the markers of a transaction as soon as its decision is committed."""
        if transaction.state.decided:
            self.shard.once_committed(transaction.transactional_id, lambda: self.markers.begin(transaction))

    def _complete(self, transactional_id: str) -> None:
        """Every marker of a transaction is on disk."""
        transaction = self.decided(transactional_id)
        if transaction is None:
            return
        try:
            self._write(decisions.complete(transaction, wall_ms=self.shard.wall_ms))
        except KafkaError:
            # Too few replicas are in sync, or the disk is full.
            self.shard.after(MARKER_RETRY_MS, lambda: self._complete(transactional_id))
        else:
            self.shard.context.delayed.poke(completion(transactional_id))

    # Time.

    def _start(self, timer: Timer) -> None:
        self.shard.after(timer.interval_ms(self.shard.options), lambda: self._go_on(timer, timer.run(self)))

    def _go_on(self, timer: Timer, work: Iterator[None]) -> None:
        """Runs one part of a task, and the next at the next tick, so that requests are not delayed."""
        try:
            next(work)
        except StopIteration:
            self._start(timer)
        else:
            self.shard.after(1, lambda: self._go_on(timer, work))

    def abort_timed_out(self) -> Iterator[None]:
        """Aborts transactions after their timeout, and fences their producers; yields after each part."""
        for looked_at, transactional_id in enumerate(list(self.ongoing), 1):
            transaction = self.by_id.get(transactional_id)
            if transaction is not None and transaction.timed_out(self.shard.wall_ms):
                self.shard.context.log.many(
                    TRANSACTION,
                    "the transaction timed out and is aborted: ",
                    repr(transactional_id),
                    unit="transactional ids",
                    producer_id=transaction.producer_id,
                    timeout_ms=transaction.timeout_ms,
                    client_id=self.clients[transactional_id].client_id if transactional_id in self.clients else "",
                )
                self._try_to_write(decisions.fence(transaction, wall_ms=self.shard.wall_ms))
            if looked_at % LOOKED_AT_ONCE == 0:
                yield

    def expire(self) -> Iterator[None]:
        """Deletes idle transactional ids; yields after each part."""
        for looked_at, transactional_id in enumerate(list(self.by_id), 1):
            transaction = self.by_id.get(transactional_id)
            expired_ms = self.shard.wall_ms - self.shard.options.transactional_id_expiration_ms
            if transaction is not None and transaction.state.idle and transaction.last_update_ms <= expired_ms:
                self._forget(transaction.moved(TransactionState.DEAD))
            if looked_at % LOOKED_AT_ONCE == 0:
                yield

    def _forget(self, dead: Transaction) -> None:
        try:
            self.shard.write(dead.transactional_id, [(TransactionLogKey(transactional_id=dead.transactional_id), None)])
        except KafkaError:
            # The next check tries again.
            return

    def _try_to_write(self, after: Transaction) -> None:
        try:
            self._write(after)
        except KafkaError:
            # No client waits for it; the next check tries again.
            return


TIMERS = (
    Timer("abort", lambda options: options.transaction_abort_timed_out_transaction_cleanup_interval_ms, Transactions.abort_timed_out),
    Timer("expire", lambda options: options.transaction_remove_expired_transaction_cleanup_interval_ms, Transactions.expire),
)


def completion(transactional_id: str) -> tuple[str, str]:
    """The key of operations that wait until a transaction is completed."""
    return "completed transaction", transactional_id


def footprint(transaction: Transaction) -> int:
    """Memory of a transactional id, an estimate."""
    return ID_BYTES + len(transaction.transactional_id) + PARTITION_BYTES * len(transaction.partitions)


def transaction_version(context: BrokerContext) -> int:
    """The finalized level of transaction.version: 2 has an epoch per transaction (KIP-890), 1 has flexible records."""
    return context.image.levels.get(TRANSACTION_VERSION, 0)


def transaction_coordinator(
    context: BrokerContext, replicas: Replicas, controller: Controller, producer_ids: ProducerIds
) -> Coordinator[Transactions]:
    """The transaction coordinator of a broker."""

    def replication_factor(settings: Settings) -> int:
        """A configured replication factor is not reduced."""
        configured = "transaction.state.log.replication.factor" in settings.texts
        return settings.options.transaction_state_log_replication_factor if configured else -1

    def configs(options: BrokerOptions) -> dict[str, str]:
        size = options.transaction_state_log_segment_bytes
        # Kafka's minimum of segment.bytes, which transaction.state.log.segment.bytes does not have.
        segment = "segment.bytes" if size >= MiB else "internal.segment.bytes"
        in_sync = options.transaction_state_log_min_isr
        if "transaction.state.log.min.isr" not in context.settings.texts:
            # Lower than Kafka's default while that leaves no broker that may fail.
            factor = replication_factor(context.settings)
            in_sync = min(in_sync, max((len(context.image.brokers) if factor == -1 else factor) - 1, 1))
        return {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(in_sync),
            segment: str(size),
        }

    return Coordinator(
        context,
        replicas,
        controller,
        TRANSACTIONS_TOPIC,
        lambda shard: Transactions(shard, producer_ids),
        partitions=lambda options: options.transaction_state_log_num_partitions,
        replication_factor=replication_factor,
        configs=configs,
    )
