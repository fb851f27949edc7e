"""The state of one transactional id, and its decisions: pure functions from a state and a request to the next state.

A producer has an identity, a producer id and an epoch; each decision checks it. The epochs of one id::

    InitProducerId   AddPartitions   EndTxn            markers        next transaction
    version 1   e        e             e               e              e
    version 2   e        e             e               e + 1          e + 1          (KIP-890: a late record of e is refused)
    fenced      e        e             (timeout)       e + 1          InitProducerId: e + 2

Epoch 32766 is the last that a producer gets, so that it can always be fenced with 32767. After it the id gets a new producer id with epoch
0: ``next_producer_id`` holds it until the markers of the old one are written.

Recovery of a prepared transaction (KIP-939): InitProducerId with ``keepPreparedTxn`` gives the producer a second identity
(``next_producer_id``, ``next_producer_epoch``), and leaves the first, which wrote the records, to the markers. EndTxn needs the second.

A repeated request gets the first one's answer: ``last_producer_epoch`` is the epoch before the last increase that its producer asked for.
An increase by somebody else sets it to -1.

Source: Kafka's TransactionMetadata, TransactionCoordinator; KIP-98, KIP-360, KIP-890, KIP-939.

Differences from Kafka: a fence increases the epoch once in version 2 too (KAFKA-19367). After a fence by timeout, the producer is fenced
in version 2 as in version 1.
"""

from collections.abc import Callable, Collection
from typing import NamedTuple, NoReturn

import msgspec

from ottla.base.ids import NO_PRODUCER, TopicPartition
from ottla.broker.transactions.partitions import NONE, Addition, TransactionPartitions
from ottla.broker.transactions.records import TransactionLogKey, TransactionLogValue, encode_record, with_entries
from ottla.broker.transactions.states import STATES, TransactionState, check_transition
from ottla.wire import errors
from ottla.wire.declare import MalformedMessage

NO_EPOCH = -1
#: The last epoch of a producer; one more is left to fence it.
LAST_EPOCH = 2**15 - 2
#: Timeout of a transaction of two-phase commit: none.
NO_TIMEOUT_MS = 2**31 - 1
#: ``transaction.version`` from which on each transaction has its own epoch.
EPOCH_PER_TRANSACTION = 2

S = TransactionState


class ProducerIdentity(NamedTuple):
    """What a producer writes with."""

    producer_id: int
    epoch: int


class Transaction(msgspec.Struct, frozen=True, gc=False):
    """The state of a transactional id; never changed, but replaced."""

    transactional_id: str
    producer_id: int
    #: -1 before the first InitProducerId is decided.
    epoch: int = NO_EPOCH
    #: See the module's docstring.
    last_epoch: int = NO_EPOCH
    #: The producer id before the last change.
    previous_producer_id: int = NO_PRODUCER
    #: Identity after the markers, if it is not that of the markers; or of a producer that came back to its prepared transaction.
    next_producer_id: int = NO_PRODUCER
    next_epoch: int = NO_EPOCH
    timeout_ms: int = 0
    state: TransactionState = S.EMPTY
    #: Partitions that have, or may have, records of the transaction.
    partitions: TransactionPartitions = NONE
    start_ms: int = -1
    last_update_ms: int = -1
    #: ``transaction.version`` of the client's last EndTxn.
    client_version: int = 0

    @property
    def identity(self) -> ProducerIdentity:
        """That of the records and, once decided, of the markers."""
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def recovered(self) -> bool:
        """Whether the producer came back to its prepared transaction."""
        return self.state is S.ONGOING and self.next_producer_id != NO_PRODUCER

    @property
    def held(self) -> ProducerIdentity:
        """The identity that the producer got last."""
        return ProducerIdentity(self.next_producer_id, self.next_epoch) if self.next_producer_id != NO_PRODUCER else self.identity

    def moved(self, state: TransactionState, **changes: object) -> "Transaction":
        """The next state. Raises: IllegalTransition."""
        check_transition(self.state, state, f"transactional id {self.transactional_id!r}")
        return msgspec.structs.replace(self, state=state, **changes)

    def timed_out(self, wall_ms: int) -> bool:
        return self.state is S.ONGOING and self.timeout_ms != NO_TIMEOUT_MS and self.start_ms + self.timeout_ms < wall_ms


# Records.


def encode_state(key: TransactionLogKey, transaction: Transaction | None, version: int) -> tuple[bytes, bytes | None]:
    """The record of a state as bytes, with this version of the value; None is a tombstone."""
    if transaction is None:
        return encode_record(key, None, version)
    written, value = encode_record(key, _without_partitions(transaction), version)
    parts = transaction.partitions.parts
    if value is not None and parts:
        count = sum(len(part.entries) for part in parts)
        value = with_entries(value, version, count, (part.encoded(version) for part in parts))
    return written, value


def _without_partitions(transaction: Transaction) -> TransactionLogValue:
    return TransactionLogValue(
        producer_id=transaction.producer_id,
        previous_producer_id=transaction.previous_producer_id,
        next_producer_id=transaction.next_producer_id,
        producer_epoch=transaction.epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state.code,
        transaction_partitions=None if transaction.state is S.EMPTY else [],
        transaction_last_update_timestamp_ms=transaction.last_update_ms,
        transaction_start_timestamp_ms=transaction.start_ms,
        client_transaction_version=transaction.client_version,
        next_producer_epoch=transaction.next_epoch,
        last_producer_epoch=transaction.last_epoch,
    )


def transaction_of(key: TransactionLogKey, value: TransactionLogValue) -> Transaction:
    """The state in a record. Raises: MalformedMessage for a state that Kafka does not write."""
    if not 0 <= value.transaction_status < len(STATES) or STATES[value.transaction_status] in (S.DEAD, S.PREPARE_EPOCH_FENCE):
        raise MalformedMessage(f"transactional id {key.transactional_id!r} has the unknown state {value.transaction_status}")
    next_epoch = value.next_producer_epoch
    if value.next_producer_id != NO_PRODUCER and next_epoch == NO_EPOCH:
        # Kafka before KIP-939 leaves out the epoch of a new producer id.
        next_epoch = 0
    return Transaction(
        transactional_id=key.transactional_id,
        producer_id=value.producer_id,
        epoch=value.producer_epoch,
        last_epoch=value.last_producer_epoch,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_epoch=next_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=STATES[value.transaction_status],
        partitions=TransactionPartitions.of(
            TopicPartition(entry.topic, number) for entry in value.transaction_partitions or () for number in entry.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        client_version=value.client_transaction_version,
    )


# InitProducerId.


class Initialization(NamedTuple):
    """An InitProducerId: what the producer has (None: it is new), and what it asks for."""

    timeout_ms: int
    expected: ProducerIdentity | None = None
    two_phase: bool = False
    keep_prepared: bool = False


def initialize(before: Transaction, asked: Initialization, *, new_producer_id: Callable[[], int], wall_ms: int) -> Transaction:
    """The next state: Empty with the producer's identity, or PrepareAbort if a transaction is to be aborted first; Ongoing with
    ``keep_prepared``. Equal to ``before`` for a repeated request.

    Raises: ConcurrentTransactions, ProducerFenced, and the errors of ``new_producer_id``.
    """
    expected = asked.expected
    if expected is not None and not _may_continue(before, expected):
        _fenced(before, expected)
    if before.state.decided:
        raise errors.ConcurrentTransactions(f"the transaction of {before.transactional_id!r} is being completed; try again")
    timeout_ms = NO_TIMEOUT_MS if asked.two_phase else asked.timeout_ms
    if before.state is S.ONGOING:
        if asked.keep_prepared:
            return _recovered(before, timeout_ms, new_producer_id=new_producer_id, wall_ms=wall_ms)
        return fence(before, wall_ms=wall_ms)
    if expected is not None and before.epoch != NO_EPOCH and expected.epoch != before.epoch:
        if expected.epoch != before.last_epoch:
            _fenced(before, expected)
        # Repeated: the producer did not get the answer.
        return before.moved(S.EMPTY, timeout_ms=timeout_ms, partitions=NONE, start_ms=-1, last_update_ms=wall_ms)
    producer_id, epoch = _bumped(before.identity, new_producer_id)
    return before.moved(
        S.EMPTY,
        producer_id=producer_id,
        epoch=epoch,
        last_epoch=NO_EPOCH if expected is None else before.epoch,
        previous_producer_id=before.producer_id,
        timeout_ms=timeout_ms,
        partitions=NONE,
        start_ms=-1,
        last_update_ms=wall_ms,
    )


def _may_continue(before: Transaction, expected: ProducerIdentity) -> bool:
    """Whether a producer with this id may be the present one; the epoch is checked later. Source: KIP-360."""
    if before.epoch == NO_EPOCH or expected.producer_id == before.held.producer_id:
        return True
    return expected.producer_id == before.previous_producer_id and expected.epoch >= LAST_EPOCH


def _bumped(identity: ProducerIdentity, new_producer_id: Callable[[], int]) -> ProducerIdentity:
    if identity.epoch >= LAST_EPOCH:
        return ProducerIdentity(new_producer_id(), 0)
    return ProducerIdentity(identity.producer_id, identity.epoch + 1)


def _recovered(before: Transaction, timeout_ms: int, *, new_producer_id: Callable[[], int], wall_ms: int) -> Transaction:
    producer_id, epoch = _bumped(before.held, new_producer_id)
    return before.moved(S.ONGOING, next_producer_id=producer_id, next_epoch=epoch, timeout_ms=timeout_ms, last_update_ms=wall_ms)


def fence(before: Transaction, *, wall_ms: int) -> Transaction:
    """Aborts a transaction against its producer's will: the markers have an epoch that its producer does not have."""
    fenced = before.moved(S.PREPARE_EPOCH_FENCE, epoch=before.epoch + 1, last_epoch=NO_EPOCH)
    if before.recovered:
        # The second identity is fenced too.
        fenced = msgspec.structs.replace(fenced, next_epoch=before.next_epoch + 1)
    return fenced.moved(S.PREPARE_ABORT, last_update_ms=wall_ms)


# Partitions.


def check_identity(transaction: Transaction | None, identity: ProducerIdentity, transactional_id: str) -> Transaction:
    """The transaction, if this identity writes its records. Raises: InvalidProducerIdMapping, ProducerFenced."""
    if transaction is None:
        raise errors.InvalidProducerIdMapping(f"there is no transactional id {transactional_id!r}; it may have expired")
    if transaction.producer_id != identity.producer_id:
        raise errors.InvalidProducerIdMapping(f"{transactional_id!r} has another producer id than {identity.producer_id}")
    if transaction.epoch != identity.epoch or transaction.recovered:
        _fenced(transaction, identity)
    return transaction


def check_undecided(transaction: Transaction) -> None:
    """Raises: ConcurrentTransactions."""
    if transaction.state.decided:
        raise errors.ConcurrentTransactions(f"the transaction of {transaction.transactional_id!r} is being completed; try again")


def add_partitions(before: Transaction, added: Collection[TopicPartition] | Addition, *, wall_ms: int) -> Transaction:
    """Ongoing, with more partitions; equal to ``before`` if it has them. Raises: ConcurrentTransactions."""
    check_undecided(before)
    if before.state is S.ONGOING:
        partitions = before.partitions.union(added)
        if partitions is before.partitions:
            return before
        return before.moved(S.ONGOING, partitions=partitions, last_update_ms=wall_ms)
    return before.moved(S.ONGOING, partitions=NONE.union(added), start_ms=wall_ms, last_update_ms=wall_ms)


# EndTxn.


def end(
    before: Transaction, identity: ProducerIdentity, *, commit: bool, version: int, new_producer_id: Callable[[], int], wall_ms: int
) -> Transaction:
    """PrepareCommit or PrepareAbort; equal to ``before`` if a repeated request was completed.

    ``version``: the client's ``transaction.version``. Raises: InvalidProducerIdMapping, ProducerFenced, ConcurrentTransactions,
    InvalidTxnState, and the errors of ``new_producer_id``.
    """
    if version >= EPOCH_PER_TRANSACTION:
        if identity != before.held:
            return _repeated(before, identity, commit=commit)
        # The identity is that of the next transaction, which may be aborted before it has a partition (KAFKA-18464).
        check_undecided(before)
        if before.state.idle and commit:
            _wrong_outcome(before, commit=commit)
        return _prepared(before, commit=commit, version=version, new_producer_id=new_producer_id, wall_ms=wall_ms)
    if identity.producer_id != before.held.producer_id:
        raise errors.InvalidProducerIdMapping(f"{before.transactional_id!r} has another producer id than {identity.producer_id}")
    if identity.epoch != before.held.epoch:
        _fenced(before, identity)
    if before.state is S.ONGOING:
        return _prepared(before, commit=commit, version=version, new_producer_id=new_producer_id, wall_ms=wall_ms)
    return _same_outcome(before, commit=commit)


def _repeated(before: Transaction, identity: ProducerIdentity, *, commit: bool) -> Transaction:
    """An EndTxn of version 2 with an identity that is not the present one: a repeated request, or a zombie's."""
    after = before.held
    follows = after == (identity.producer_id, identity.epoch + 1)
    renewed = (
        after.epoch == 0 and identity.epoch == LAST_EPOCH and identity.producer_id in (before.producer_id, before.previous_producer_id)
    )
    if identity.producer_id != after.producer_id and not renewed:
        raise errors.InvalidProducerIdMapping(f"{before.transactional_id!r} has another producer id than {identity.producer_id}")
    ended = before.state.decided or before.state in (S.COMPLETE_COMMIT, S.COMPLETE_ABORT)
    if not ended or not (follows or renewed) or before.last_epoch != identity.epoch:
        _fenced(before, identity)
    return _same_outcome(before, commit=commit)


def _same_outcome(before: Transaction, *, commit: bool) -> Transaction:
    if before.state is S.EMPTY or before.state.commits != commit:
        _wrong_outcome(before, commit=commit)
    if before.state.decided:
        raise errors.ConcurrentTransactions(f"the transaction of {before.transactional_id!r} is being completed; try again")
    return before


def _prepared(before: Transaction, *, commit: bool, version: int, new_producer_id: Callable[[], int], wall_ms: int) -> Transaction:
    held = before.held
    after = _bumped(held, new_producer_id) if version >= EPOCH_PER_TRANSACTION else held
    # Markers of version 2 and of a prepared transaction have an epoch that no record has.
    epoch = before.epoch + 1 if version >= EPOCH_PER_TRANSACTION else before.epoch
    renewed = after != (before.producer_id, epoch)
    return before.moved(
        S.PREPARE_COMMIT if commit else S.PREPARE_ABORT,
        epoch=epoch,
        last_epoch=held.epoch if version >= EPOCH_PER_TRANSACTION else before.last_epoch,
        next_producer_id=after.producer_id if renewed else NO_PRODUCER,
        next_epoch=after.epoch if renewed else NO_EPOCH,
        start_ms=before.start_ms if before.state is S.ONGOING else wall_ms,
        partitions=before.partitions if before.state is S.ONGOING else NONE,
        last_update_ms=wall_ms,
        client_version=version,
    )


def complete(before: Transaction, *, wall_ms: int) -> Transaction:
    """CompleteCommit or CompleteAbort: every marker is on disk."""
    producer_id, epoch = before.held
    return before.moved(
        S.COMPLETE_COMMIT if before.state is S.PREPARE_COMMIT else S.COMPLETE_ABORT,
        producer_id=producer_id,
        epoch=epoch,
        previous_producer_id=before.producer_id,
        next_producer_id=NO_PRODUCER,
        next_epoch=NO_EPOCH,
        partitions=NONE,
        last_update_ms=wall_ms,
    )


def _wrong_outcome(before: Transaction, *, commit: bool) -> NoReturn:
    wanted = "committed" if commit else "aborted"
    raise errors.InvalidTxnState(f"the transaction of {before.transactional_id!r} cannot be {wanted}: its state is {before.state.value}")


def _fenced(before: Transaction, identity: ProducerIdentity) -> NoReturn:
    raise errors.ProducerFenced(
        f"{before.transactional_id!r} has epoch {before.held.epoch} of producer id {before.held.producer_id}; epoch {identity.epoch} of "
        f"{identity.producer_id} is fenced"
    )
