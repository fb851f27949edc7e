"""The state of a transactional producer: which call is allowed, and what an error changes. Does no I/O.

    UNINITIALIZED -> INITIALIZING -> READY -> IN_TRANSACTION -> COMMITTING -> READY
                                       ^            |  failed record
                                       |            v
                                       |     ABORTABLE_ERROR -> ABORTING -> READY

An error is one of two kinds for the state. Most make the transaction abortable: nothing more is sent, `commit()` raises, `abort()` ends it,
and the next transaction works. The others are fatal: every call raises, and the producer can only be closed. A retriable error changes
nothing, because the request is sent again.

Source: KIP-98, KIP-360, KIP-939, KIP-1050.
"""

from __future__ import annotations

from enum import Enum
from typing import NoReturn

from ottla.client.errors import CommitFailed
from ottla.client.options import ProducerOptions
from ottla.wire import errors
from ottla.wire.errors import ErrorKind, KafkaError


class ProducerTransactionState(Enum):
    """State of a transactional producer."""

    #: The producer has no producer id: only init_transactions() is allowed.
    UNINITIALIZED = "uninitialized"
    #: init_transactions() waits for the coordinator.
    INITIALIZING = "initializing"
    #: No transaction is open.
    READY = "ready"
    #: Records are accepted.
    IN_TRANSACTION = "in a transaction"
    #: All records are written; another system decides (KIP-939).
    PREPARED = "prepared"
    #: commit() sends the remaining records, then EndTxn.
    COMMITTING = "committing"
    #: abort() waits for requests in flight, then sends EndTxn.
    ABORTING = "aborting"
    #: The transaction failed; nothing is sent until abort().
    ABORTABLE_ERROR = "abortable error"
    #: The producer can only be closed.
    FATAL_ERROR = "fatal error"


#: (from, to) -> when. FATAL_ERROR is reached from every state.
TRANSITIONS: dict[tuple[ProducerTransactionState, ProducerTransactionState], str] = {
    (ProducerTransactionState.UNINITIALIZED, ProducerTransactionState.INITIALIZING): "init_transactions()",
    (ProducerTransactionState.INITIALIZING, ProducerTransactionState.UNINITIALIZED): "it failed; it can be called again",
    (ProducerTransactionState.INITIALIZING, ProducerTransactionState.READY): "the coordinator assigned a producer id and epoch",
    (ProducerTransactionState.INITIALIZING, ProducerTransactionState.PREPARED): "the coordinator kept a prepared transaction",
    (ProducerTransactionState.READY, ProducerTransactionState.IN_TRANSACTION): "begin()",
    (ProducerTransactionState.READY, ProducerTransactionState.UNINITIALIZED): "adopt()",
    (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.PREPARED): "prepare()",
    (ProducerTransactionState.PREPARED, ProducerTransactionState.UNINITIALIZED): "adopt(): another process ends the transaction",
    (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.COMMITTING): "commit()",
    (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.ABORTING): "abort()",
    (ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.ABORTABLE_ERROR): "a record or an offset was not written",
    (ProducerTransactionState.PREPARED, ProducerTransactionState.COMMITTING): "commit() or complete()",
    (ProducerTransactionState.PREPARED, ProducerTransactionState.ABORTING): "abort() or complete()",
    (ProducerTransactionState.PREPARED, ProducerTransactionState.ABORTABLE_ERROR): "a record was not written",
    (ProducerTransactionState.COMMITTING, ProducerTransactionState.READY): "the coordinator decided to commit",
    (ProducerTransactionState.COMMITTING, ProducerTransactionState.ABORTABLE_ERROR): "a record was not written, or the coordinator refused",
    (ProducerTransactionState.ABORTABLE_ERROR, ProducerTransactionState.ABORTING): "abort()",
    (ProducerTransactionState.ABORTING, ProducerTransactionState.READY): "the coordinator decided to abort",
}

#: Calls, and the states in which they are allowed.
CALLS: dict[str, frozenset[ProducerTransactionState]] = {
    "init_transactions": frozenset({ProducerTransactionState.UNINITIALIZED}),
    "begin": frozenset({ProducerTransactionState.READY}),
    "send": frozenset({ProducerTransactionState.IN_TRANSACTION}),
    "send_offsets_to_transaction": frozenset({ProducerTransactionState.IN_TRANSACTION}),
    "prepare": frozenset({ProducerTransactionState.IN_TRANSACTION}),
    "adopt": frozenset({ProducerTransactionState.UNINITIALIZED, ProducerTransactionState.READY, ProducerTransactionState.PREPARED}),
    "commit": frozenset({ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.PREPARED}),
    "abort": frozenset(
        {ProducerTransactionState.IN_TRANSACTION, ProducerTransactionState.PREPARED, ProducerTransactionState.ABORTABLE_ERROR}
    ),
    "complete": frozenset({ProducerTransactionState.PREPARED, ProducerTransactionState.READY}),
}

REMEDIES: dict[ProducerTransactionState, str] = {
    ProducerTransactionState.UNINITIALIZED: "call init_transactions() first",
    ProducerTransactionState.INITIALIZING: "init_transactions() has not finished; call it again",
    ProducerTransactionState.READY: "call begin() first, or use `with producer.transaction():`",
    ProducerTransactionState.IN_TRANSACTION: "end the open transaction with commit() or abort() first",
    ProducerTransactionState.PREPARED: "end the prepared transaction with commit(), abort() or complete()",
    ProducerTransactionState.COMMITTING: "commit() has not finished; call it again",
    ProducerTransactionState.ABORTING: "abort() has not finished; call it again",
}

#: Errors of batches that end the producer. Others abort the transaction.
FATAL_OF_BATCHES = frozenset(
    error.code
    for error in (
        errors.ProducerFenced,
        errors.TransactionalIdAuthorizationFailed,
        errors.ClusterAuthorizationFailed,
        errors.UnsupportedVersion,
    )
)
#: Errors of coordinators after which the transaction can be aborted. Others, if not retriable, end the producer.
ABORTABLE_OF_COORDINATORS = frozenset(
    error.code
    for error in (
        errors.TransactionAbortable,
        errors.TopicAuthorizationFailed,
        errors.GroupAuthorizationFailed,
        errors.OperationNotAttempted,
        errors.UnknownProducerId,
        errors.InvalidProducerIdMapping,
        errors.IllegalGeneration,
        errors.UnknownMemberId,
        errors.FencedInstanceId,
        errors.FencedMemberEpoch,
        errors.StaleMemberEpoch,
        errors.RebalanceInProgress,
    )
)


class TransactionMachine:
    """The state of one producer."""

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self.state = ProducerTransactionState.UNINITIALIZED
        #: Why, in the two error states.
        self.error: KafkaError | None = None

    def move(self, state: ProducerTransactionState, error: KafkaError | None = None) -> None:
        """Changes the state. An error belongs to the error states, and to no other."""
        known = state is ProducerTransactionState.FATAL_ERROR or (self.state, state) in TRANSITIONS
        assert known, f"no transition from {self.state.value} to {state.value}"
        assert (error is not None) == (state in (ProducerTransactionState.ABORTABLE_ERROR, ProducerTransactionState.FATAL_ERROR)), (
            "an error state has its error"
        )
        self.state, self.error = state, error

    def check(self, call: str) -> None:
        """Raises: TransactionAbortable, the fatal error, or RuntimeError with the state and the remedy, if the call is not allowed now."""
        if self.state in CALLS[call]:
            return
        if self.error is not None:
            self.raise_error()
        raise RuntimeError(
            f"{call}() is not allowed: the producer of transactional_id {self._options.transactional_id!r} is {self.state.value};"
            f" {REMEDIES[self.state]}"
        )

    def admit(self) -> None:
        """Raises: why no record is accepted now."""
        if self.state is not ProducerTransactionState.IN_TRANSACTION:
            self.check("send")

    def raise_error(self) -> NoReturn:
        """Raises a new error about the present one: one object would collect the traceback of each call."""
        assert self.error is not None, "only an error state has an error"
        if self.state is ProducerTransactionState.FATAL_ERROR:
            raise type(self.error)(f"{self.error}; {self._fatal_remedy(self.error)}") from self.error
        raise errors.TransactionAbortable(
            f"the transaction of {self._options.transactional_id!r} cannot be committed: {self.error}; call abort(), then do it again in a"
            " new transaction: none of its records is visible to read_committed consumers"
        ) from self.error

    def _fatal_remedy(self, error: KafkaError) -> str:
        if error.code in (errors.ProducerFenced.code, errors.InvalidProducerEpoch.code):
            timeout = (
                "" if self._options.transaction_two_phase_commit_enable else " or the transaction was open for longer than"
                f" transaction_timeout_ms ({self._options.transaction_timeout_ms});"
            )  # fmt: skip
            return (
                f"another producer with transactional_id {self._options.transactional_id!r} has replaced this one,{timeout} close this one,"
                " and create a new one if this process goes on: it continues after the last commit"
            )
        if error.kind is ErrorKind.INVALID_CONFIGURATION:
            return "correct the permission or the setting, then create a new producer: this one can only be closed"
        return "close this producer and create a new one, which continues after the last commit"

    def fail(self, error: KafkaError, *, fatal: bool) -> None:
        """A failure: fatal, or of the open transaction. The first error counts; without an open transaction only a fatal one does."""
        if self.state is ProducerTransactionState.FATAL_ERROR:
            return
        if fatal:
            self.move(ProducerTransactionState.FATAL_ERROR, error)
        elif (self.state, ProducerTransactionState.ABORTABLE_ERROR) in TRANSITIONS:
            self.move(ProducerTransactionState.ABORTABLE_ERROR, error)


def fenced(error: KafkaError) -> KafkaError:
    """The error of a coordinator; old ones say INVALID_PRODUCER_EPOCH for PRODUCER_FENCED. Source: KIP-588."""
    return errors.ProducerFenced(error.message) if error.code == errors.InvalidProducerEpoch.code else error


def is_fatal(error: KafkaError) -> bool:
    """Whether an error of a coordinator that is not retried ends the producer."""
    return not error.retriable and error.code not in ABORTABLE_OF_COORDINATORS and not isinstance(error, CommitFailed)
