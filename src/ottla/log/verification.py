"""Verification of a transaction's first batch in a partition: the transaction coordinator must know of it. Source: KIP-890.

Without verification a batch that arrives after its transaction's marker begins a transaction that no marker ends, and the last stable
offset stays below it. The check takes time, because the coordinator is asked. A marker can arrive meanwhile. So a check has an identity::

    begin ──▶ guard g1 ── AddPartitionsToTxn (verify only, or add) ──▶ append(batch, guard=g1)     accepted: g1 is current
                                                          marker ──▶ g1 is void
                                                                       append(batch, guard=g1)     refused

A guard is current from ``begin`` until a batch or marker of the producer is appended. All verifications of a producer that run at the same
time share it. While a transaction is open, its batches need none.

With transaction version 2 a marker voids only guards of lower epochs: the marker of the transaction before has the epoch of this one, and
often arrives while the first batch is verified, because a producer goes on when the decision is made, before its markers are written.

The verification remembers the lowest sequence that was verified: a batch with a higher one is refused, so that it does not overtake an
earlier batch whose verification failed and is tried again.
"""

import msgspec

from ottla.log.errors import InvalidTransactionState, OutOfOrderSequence

#: Limit of verifications in one partition: many times the producers that begin a transaction at the same time. Above it the oldest is
#: dropped, and its batch is refused.
VERIFICATIONS_MAX = 10_000


class VerificationGuard:
    """Identity of a verification; compared with ``is``."""

    __slots__ = ()


class Verification(msgspec.Struct, gc=False):
    """The verification of one producer."""

    guard: VerificationGuard
    #: Of the first request, by the broker's clock.
    began_ms: int
    epoch: int
    #: Of all requests in this epoch.
    lowest_sequence: int
    #: Whether the epoch is raised by each transaction (transaction version 2): sequences then begin at 0.
    raises_epoch: bool


class Verifications:
    """The verifications of one partition."""

    __slots__ = ("by_producer",)

    def __init__(self) -> None:
        #: Oldest first.
        self.by_producer: dict[int, Verification] = {}

    def begin(self, producer_id: int, epoch: int, sequence: int, *, raises_epoch: bool, now_ms: int) -> VerificationGuard:
        """The guard of a producer; a new one if it has none."""
        known = self.by_producer.get(producer_id)
        if known is None:
            known = Verification(VerificationGuard(), now_ms, epoch, sequence, raises_epoch)
            self.by_producer[producer_id] = known
            if len(self.by_producer) > VERIFICATIONS_MAX:
                del self.by_producer[next(iter(self.by_producer))]
        elif epoch > known.epoch:
            known.epoch, known.lowest_sequence = epoch, sequence
        elif epoch == known.epoch:
            known.lowest_sequence = min(known.lowest_sequence, sequence)
        return known.guard

    def check_guard(self, producer_id: int, guard: VerificationGuard | None) -> None:
        """Raises: InvalidTransactionState if ``guard`` is not current."""
        known = self.by_producer.get(producer_id)
        if known is None or known.guard is not guard:
            raise InvalidTransactionState(
                f"producer {producer_id} has no transaction open in this partition, and its coordinator did not confirm one"
            )

    def check_sequence(self, producer_id: int, sequence: int, *, known: bool) -> None:
        """Checks the sequence of a first batch; ``known``: the partition has batches of the producer. Raises: OutOfOrderSequence."""
        verification = self.by_producer.get(producer_id)
        if verification is None:
            return
        if verification.raises_epoch and sequence != 0 and not known:
            raise OutOfOrderSequence(f"producer {producer_id}: sequence {sequence} came where 0 is due, the first of its epoch")
        if sequence > verification.lowest_sequence:
            raise OutOfOrderSequence(
                f"producer {producer_id}: sequence {sequence} came before {verification.lowest_sequence}, which is being verified"
            )

    def end(self, producer_id: int) -> None:
        """A batch of the producer was appended: its guard is void."""
        self.by_producer.pop(producer_id, None)

    def marked(self, producer_id: int, epoch: int) -> None:
        """A marker of the producer was appended: its guard is void, unless the transaction is a later one."""
        known = self.by_producer.get(producer_id)
        if known is not None and not (known.raises_epoch and epoch <= known.epoch):
            del self.by_producer[producer_id]

    def expire(self, before_ms: int) -> None:
        """Drops verifications that began before this time."""
        for producer_id in [each for each, known in self.by_producer.items() if known.began_ms < before_ms]:
            del self.by_producer[producer_id]
