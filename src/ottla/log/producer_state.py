"""Producer state of a partition: the last five batches of each idempotent producer, and its open transaction. Source: KIP-98.

Sequence numbers count a producer's records in this partition, from 0 in each epoch, and wrap from 2147483647 to 0.

==========================================  ====================================================
batch of a client                           the log
==========================================  ====================================================
unknown producer                            appends it with any sequence: the state may have expired
exactly one of the last five batches        answers with the offset of the first append
epoch below the known one                   refuses: StaleProducerEpoch
epoch above the known one                   appends it if its sequence is 0
same epoch, sequence follows the last one   appends it
same epoch, any other sequence              refuses: OutOfOrderSequence
outside a transaction while one is open     refuses: InvalidTransactionState
no sequence (-1): a coordinator's batch     checks only epoch and transaction
in a transaction that is not open here      needs a current guard (``verification.py``), else
                                            refuses: InvalidTransactionState
==========================================  ====================================================

A marker needs an epoch that is not below the known one. With transaction version 2 the coordinator raises the epoch with each transaction,
so the marker's must be above it; the same epoch is a repeated marker if no transaction is open. An older coordinator epoch is refused.
Source: KIP-890, Kafka's ProducerAppendInfo.

The state is a function of the batches in the log. A snapshot is written when a segment begins and at a clean stop; recovery loads the
newest valid one and replays the headers after it. As in Kafka, a snapshot has only the last batch of each producer.

Transactions, on the line of offsets::

    5 t1      8 t2     12 abort t1    15 | high watermark 14
    `- open: LSO 5     `- t1 is decided, and once the high watermark has passed its marker (13 > 12): LSO 8, where t2 began
"""

from collections.abc import Iterable
from itertools import islice
from struct import Struct
from typing import NamedTuple

import msgspec

from ottla.base.ids import NO_OFFSET, Offset, ProducerId
from ottla.base.units import MINUTE_MS
from ottla.log.errors import InvalidTransactionState, OutOfOrderSequence, StaleCoordinatorEpoch, StaleProducerEpoch
from ottla.log.transaction_index import AbortedTransaction
from ottla.log.verification import VerificationGuard, Verifications
from ottla.records.batch import BatchHeader

BATCHES_KEPT = 5
NO_EPOCH = -1
NO_SEQUENCE = -1
_SEQUENCES = 1 << 31
#: A PastBatch in memory: there may be hundreds of thousands of producers, and a tuple of numbers takes eight times as much.
_PAST = Struct("<iqiq")
#: Tolerance for a clock that was set back between two batches, which disturbs the order of last use.
_CLOCK_SLACK_MS = MINUTE_MS


class PastBatch(NamedTuple):
    """An appended batch. ``offset_delta`` is its number of records minus one."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp_ms: int

    @property
    def first_sequence(self) -> int:
        if self.last_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        return self.last_offset - self.offset_delta


class Duplicate(msgspec.Struct, gc=False):
    """The earlier append of a repeated batch. ``timestamp_ms`` is its largest: the append time with LogAppendTime."""

    base_offset: Offset
    last_offset: Offset
    timestamp_ms: int


class Producer(msgspec.Struct, gc=False):
    """State of one producer: about 450 bytes with five batches."""

    #: -1 before the first batch or marker.
    epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    #: Of its last batch or marker.
    timestamp_ms: int = -1
    #: First offset of its open transaction; -1 without one.
    transaction_from: int = NO_OFFSET
    #: Last use by the broker's clock. Expiry uses it, so a producer that sends old timestamps keeps its state. -1 if unknown.
    seen_ms: int = -1
    #: ``batches``, packed.
    packed: bytes = b""

    @property
    def batches(self) -> list[PastBatch]:
        """The last batches, newest last; all of the current epoch."""
        return [PastBatch(*fields) for fields in _PAST.iter_unpack(self.packed)]

    @property
    def last_sequence(self) -> int | None:
        """Last sequence of the newest batch; None without one."""
        return _PAST.unpack_from(self.packed, len(self.packed) - _PAST.size)[0] if self.packed else None

    def remember(self, batch: PastBatch) -> None:
        """Adds a batch; drops the oldest above ``BATCHES_KEPT``."""
        self.packed = self.packed[-(BATCHES_KEPT - 1) * _PAST.size :] + _PAST.pack(*batch)

    def replace_batches(self, batches: Iterable[PastBatch]) -> None:
        """Replaces the batches; keeps the newest ``BATCHES_KEPT``."""
        self.packed = b"".join(_PAST.pack(*batch) for batch in batches)[-BATCHES_KEPT * _PAST.size :]

    def enter(self, epoch: int) -> None:
        """A newer epoch starts its sequences anew."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.packed = b""


class Producers:
    """All producers of one log."""

    __slots__ = ("_decided", "_open", "by_id", "end_offset", "snapshot_offset", "verifications")

    def __init__(self) -> None:
        #: Transactions whose first batch here is being verified; not in snapshots.
        self.verifications = Verifications()
        #: In the order of last use, idle for longest first.
        self.by_id: dict[int, Producer] = {}
        #: Batches below this offset are included.
        self.end_offset = Offset(0)
        #: Offset of the newest snapshot file; -1 without one.
        self.snapshot_offset = NO_OFFSET
        #: First offset -> producer id of each open transaction, in the order of offsets.
        self._open: dict[int, int] = {}
        #: First offset -> offset of the marker, of transactions whose marker was above the last known high watermark.
        self._decided: dict[int, int] = {}

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int, *, raises_epoch: bool, now_ms: int
    ) -> VerificationGuard | None:
        """The guard for a batch of a transaction; None if the transaction is open here. Raises: StaleProducerEpoch."""
        producer = self.by_id.get(producer_id)
        if producer is not None:
            _check_epoch(producer, producer_id, epoch)
            if _is_open(producer, epoch):
                return None
        return self.verifications.begin(producer_id, epoch, sequence, raises_epoch=raises_epoch, now_ms=now_ms)

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether a producer has a transaction open in this epoch."""
        producer = self.by_id.get(producer_id)
        return producer is not None and _is_open(producer, epoch)

    def transaction_start(self, producer_id: int, epoch: int) -> Offset:
        """First offset of the transaction that a producer has open in this epoch; ``NO_OFFSET`` without one."""
        producer = self.by_id.get(producer_id)
        return Offset(producer.transaction_from) if producer is not None and _is_open(producer, epoch) else NO_OFFSET

    def check(self, header: BatchHeader, *, guard: VerificationGuard | None = None, verify: bool = False) -> Duplicate | None:
        """Checks a batch of a client or coordinator; returns a Duplicate when it was appended before.

        ``guard``: that of ``begin_verification``; ``verify``: whether a transaction's first batch needs one.
        Raises: StaleProducerEpoch, OutOfOrderSequence, InvalidTransactionState.
        """
        producer = self.by_id.get(header.producer_id)
        if producer is None:
            if header.is_transactional:
                self._check_first(None, header, guard, verify)
            return None
        epoch, first = header.producer_epoch, header.base_sequence
        if first != NO_SEQUENCE and epoch == producer.epoch and first != _next(producer):
            last = header.last_sequence
            for past in producer.batches:
                if past.last_sequence == last and past.first_sequence == first:
                    return Duplicate(Offset(past.first_offset), Offset(past.last_offset), past.timestamp_ms)
        _check_epoch(producer, header.producer_id, epoch)
        if header.is_transactional and not _is_open(producer, epoch):
            self._check_first(producer, header, guard, verify)
        if first != NO_SEQUENCE:
            self._check_sequence(producer, header)
        if producer.transaction_from != NO_OFFSET and not header.is_transactional:
            raise InvalidTransactionState(
                f"producer {header.producer_id} has a transaction open since offset {producer.transaction_from} and writes outside of it"
            )
        return None

    def _check_first(self, producer: Producer | None, header: BatchHeader, guard: VerificationGuard | None, verify: bool) -> None:
        """Checks a batch that begins a transaction here."""
        if verify:
            self.verifications.check_guard(header.producer_id, guard)
        if header.base_sequence != NO_SEQUENCE and self.verifications.by_producer:
            known = producer is not None and bool(producer.packed)
            self.verifications.check_sequence(header.producer_id, header.base_sequence, known=known)

    def _check_sequence(self, producer: Producer, header: BatchHeader) -> None:
        first = header.base_sequence
        if header.producer_epoch != producer.epoch:
            expected = first if producer.epoch == NO_EPOCH else 0
        else:
            after = _next(producer)
            expected = after if after is not None else first if producer.epoch == NO_EPOCH else 0
        if first != expected:
            raise OutOfOrderSequence(
                f"producer {header.producer_id}, epoch {header.producer_epoch}: sequence {first} came where {expected} is due"
            )

    def check_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, raises_epoch: bool = False) -> None:
        """Checks a transaction marker; ``raises_epoch``: of transaction version 2. Raises: StaleProducerEpoch, StaleCoordinatorEpoch."""
        producer = self.by_id.get(producer_id)
        if producer is None:
            return
        late = raises_epoch and producer_epoch == producer.epoch and producer.transaction_from != NO_OFFSET
        if producer_epoch < producer.epoch or late:
            raise StaleProducerEpoch(
                f"marker for producer {producer_id} has epoch {producer_epoch}, {producer.epoch} is known"
                + (", of a later transaction" if late else "")
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise StaleCoordinatorEpoch(
                f"marker for producer {producer_id} has coordinator epoch {coordinator_epoch}, {producer.coordinator_epoch} is known"
            )

    def data_appended(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Applies an appended data batch with a producer id."""
        producer = self._used(header.producer_id)
        producer.enter(header.producer_epoch)
        delta = header.last_offset_delta
        producer.remember(PastBatch(header.last_sequence, base_offset + delta, delta, header.max_timestamp))
        producer.timestamp_ms = header.max_timestamp
        producer.seen_ms = now_ms
        if header.is_transactional and producer.transaction_from == NO_OFFSET:
            producer.transaction_from = base_offset
            self._open[base_offset] = header.producer_id
        if self.verifications.by_producer:
            self.verifications.end(header.producer_id)

    def _used(self, producer_id: int) -> Producer:
        """The existing or a new producer, moved to the end of the order of use."""
        producer = self.by_id.pop(producer_id, None)
        if producer is None:
            producer = Producer()
        self.by_id[producer_id] = producer
        return producer

    def marker_appended(
        self, header: BatchHeader, offset: int, *, commit: bool, coordinator_epoch: int, timestamp_ms: int, now_ms: int
    ) -> AbortedTransaction | None:
        """Applies an appended marker. Returns its transaction index entry: only if it aborts a transaction with data."""
        producer = self._used(header.producer_id)
        producer.enter(header.producer_epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.timestamp_ms = timestamp_ms
        producer.seen_ms = now_ms
        self.verifications.marked(header.producer_id, header.producer_epoch)
        first = producer.transaction_from
        if first == NO_OFFSET:
            return None
        producer.transaction_from = NO_OFFSET
        self._open.pop(first, None)
        self._decided[first] = offset
        if commit:
            return None
        stable = next(iter(self._open), offset + 1)
        return AbortedTransaction(ProducerId(header.producer_id), Offset(first), Offset(offset), Offset(stable))

    def last_stable_offset(self, high_watermark: int) -> Offset:
        """Below it every transaction is decided by a marker below the high watermark. At most the high watermark."""
        if not self._open and not self._decided:
            return Offset(high_watermark)
        if self._decided:
            for first, marker in list(self._decided.items()):
                if marker < high_watermark:
                    del self._decided[first]
        stable = high_watermark
        for first in self._decided:
            stable = min(stable, first)
        for first in self._open:
            return Offset(min(stable, first))
        return Offset(stable)

    @property
    def open_transactions(self) -> dict[int, int]:
        """First offset -> producer id, oldest first."""
        return dict(self._open)

    def expire(self, now_ms: int, after_ms: int) -> int:
        """Removes producers idle for ``after_ms`` without an open transaction; returns their number. Source: KIP-98."""
        self.verifications.expire(now_ms - after_ms)
        gone = []
        for producer_id, producer in self.by_id.items():
            if now_ms - producer.seen_ms + _CLOCK_SLACK_MS < after_ms:
                break
            if producer.transaction_from == NO_OFFSET and now_ms - producer.seen_ms >= after_ms:
                gone.append(producer_id)
        return self._forget(gone)

    def forget_oldest(self, count: int) -> int:
        """Removes the producers idle for longest without an open transaction; returns their number."""
        idle = (producer_id for producer_id, producer in self.by_id.items() if producer.transaction_from == NO_OFFSET)
        return self._forget(list(islice(idle, count)))

    def _forget(self, gone: list[int]) -> int:
        for producer_id in gone:
            del self.by_id[producer_id]
        return len(gone)

    def restore(self, producers: dict[int, Producer], offset: int) -> None:
        """Replaces the state by that of a snapshot for ``offset``."""
        self.by_id = producers
        self.verifications = Verifications()
        self._decided = {}
        self._open = dict(sorted((p.transaction_from, pid) for pid, p in producers.items() if p.transaction_from != NO_OFFSET))
        self.end_offset = Offset(offset)


def _next(producer: Producer) -> int | None:
    """The sequence that follows the producer's last batch; None without one."""
    last = producer.last_sequence
    return None if last is None else (last + 1) % _SEQUENCES


def _check_epoch(producer: Producer, producer_id: int, epoch: int) -> None:
    if epoch < producer.epoch:
        raise StaleProducerEpoch(f"producer {producer_id} writes with epoch {epoch}, {producer.epoch} is known")


def _is_open(producer: Producer, epoch: int) -> bool:
    """Whether the producer has a transaction open in this epoch."""
    return producer.transaction_from != NO_OFFSET and producer.epoch == epoch
