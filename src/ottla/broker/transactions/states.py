"""States and transitions of a transactional id.

::

    state               condition                                                        the producer may
    Empty               no transaction since the last InitProducerId                     begin
    Ongoing             partitions are added; records are written                        add, produce, end
    PrepareCommit       decided: markers are being written                               retry
    PrepareAbort        the same                                                         retry
    CompleteCommit      every marker is on disk                                          begin
    CompleteAbort       the same                                                         begin
    Dead                the id expired; a tombstone follows                              nothing
    PrepareEpochFence   the epoch was increased, to abort against the producer's will    nothing

PrepareEpochFence and Dead are never written: one decision passes through each.

A prepared transaction of two-phase commit (KIP-939) has no state of its own. It is Ongoing, has no timeout, and once its producer came back
with ``keepPreparedTxn`` it has a second identity, with which the producer ends it (``transaction.py``).

``TRANSITIONS`` is the only definition; docs/reference/transaction-states.md is generated from it. Source: Kafka's TransactionState.
"""

from enum import Enum


class TransactionState(Enum):
    """A state, with Kafka's name."""

    EMPTY = "Empty"
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"

    @property
    def code(self) -> int:
        """The number in a record."""
        return STATES.index(self)

    @property
    def decided(self) -> bool:
        """Whether markers are being written."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def idle(self) -> bool:
        """Whether there is no transaction, so that the id may expire."""
        return self in (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)

    @property
    def commits(self) -> bool:
        """Whether the outcome is, or will be, a commit."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)


#: By the number in a record.
STATES = tuple(TransactionState)

_E, _O, _PC, _PA, _CC, _CA, _D, _F = STATES

#: (from, to) -> reason.
TRANSITIONS: dict[tuple[TransactionState, TransactionState], str] = {
    (_E, _E): "InitProducerId again",
    (_E, _O): "the first partition is added",
    (_E, _PA): "the producer aborts a transaction without partitions (transaction.version 2)",
    (_E, _D): "the id expires",
    (_O, _O): "partitions are added, or the producer of a prepared transaction comes back",
    (_O, _PC): "EndTxn commits",
    (_O, _PA): "EndTxn aborts",
    (_O, _F): "InitProducerId by another producer, or the timeout",
    (_F, _PA): "in the same decision",
    (_PC, _CC): "every marker is on disk",
    (_PA, _CA): "every marker is on disk",
    (_CC, _E): "InitProducerId",
    (_CC, _O): "the first partition is added",
    (_CC, _PA): "the producer aborts a transaction without partitions (transaction.version 2)",
    (_CC, _D): "the id expires",
    (_CA, _E): "InitProducerId",
    (_CA, _O): "the first partition is added",
    (_CA, _PA): "the producer aborts a transaction without partitions (transaction.version 2)",
    (_CA, _D): "the id expires",
}


class IllegalTransition(AssertionError):
    """A transition that is not in the table."""


def check_transition(before: TransactionState, after: TransactionState, story: str) -> None:
    """Raises: IllegalTransition with ``story``, unless the table has the transition."""
    if (before, after) not in TRANSITIONS:
        raise IllegalTransition(f"{story}: no way leads from {before.value} to {after.value}")
