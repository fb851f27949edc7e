"""The batches of one partition and their sequence numbers. Oldest first:

    retries         in flight        ready            open
    sent, failed    sent, no answer  closed, unsent   being filled
    [b3 b4]         [b5]             [b6 b7]          b8

A batch gets its sequence number when it is first sent. After a retriable failure, the partition sends nothing until all batches in flight
have a response. Then the retries go first, in order of their numbers, one at a time. So records are written in order; without idempotence
this needs at most one request in flight.

**Idempotence.** A broker accepts a batch only if its number follows the last one, and answers a duplicate of the last five batches as a
success. So after a broken connection all batches in flight are sent again with the same numbers. A batch that fails for good, or exceeds
`delivery_timeout_ms`, leaves a *hole*: the broker may or may not have it. Later batches keep their numbers. If one is accepted, the broker
had the batch. If one is refused as out of order, the hole is real, and nothing behind it was written. Then, once nothing is in flight, the
partition's producer epoch is incremented and all waiting batches are numbered from 0. A refusal without a hole means that the broker lost
acknowledged records: the batch fails with the broker's error, and the numbers restart.

The first batch of a producer id and epoch is sent alone. A broker that does not know the producer accepts any first number, so a second
batch could be written before a refused first one.

A client may increment the epoch itself (KIP-360). After epoch 32767 it needs a new producer id.

**Transactions.** The coordinator alone sets the epoch. The numbers restart when it changes, between two transactions, while nothing is in
flight. A batch that fails for good aborts its transaction, so there are no holes.

A sequence number counts records, so the parts of a split batch (KIP-126) share the numbers of the whole.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from ottla.client.producer.batches import NOT_NUMBERED, ProducerBatch
from ottla.client.transport.backoff import Backoff

OUT_OF_ORDER = 45
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59
EPOCH_MAX = 32767


@dataclass(slots=True)
class PartitionQueue:
    topic: str
    partition: int
    backoff: Backoff
    transactional: bool = False
    open: ProducerBatch | None = None
    ready: deque[ProducerBatch] = field(default_factory=deque)
    #: Ordered by number, like in_flight. Not empty: nothing new is sent.
    retries: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    #: -1: not set yet; the producer's id and epoch are used.
    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    #: Sequence numbers of failed batches, ascending, until a later success shows that they were written.
    holes: list[int] = field(default_factory=list)
    #: A batch under this producer id and epoch was acknowledged.
    confirmed: bool = False
    #: Restart from 0 with the next epoch once nothing is in flight.
    renew: bool = False
    #: Backoff: nothing is sent before this time.
    blocked_until_ms: float = float("-inf")

    @property
    def idle(self) -> bool:
        """Nothing to send."""
        return self.open is None and not self.ready and not self.retries

    @property
    def waiting(self) -> int:
        """Batches that are not in flight."""
        return len(self.retries) + len(self.ready) + (self.open is not None)

    def close_open(self) -> None:
        """Close the open batch."""
        batch = self.open
        assert batch is not None and batch.builder is not None, "only an open batch is closed"
        batch.count, batch.size = batch.builder.count, batch.builder.size
        self.ready.append(batch)
        self.open = None

    def unsent(self) -> list[ProducerBatch]:
        """Remove all closed unsent batches, in order."""
        waiting = [*self.retries, *self.ready]
        self.retries.clear()
        self.ready.clear()
        return waiting

    def first(self) -> ProducerBatch:
        """The next batch to send."""
        batch = self.retries[0] if self.retries else self.ready[0] if self.ready else self.open
        assert batch is not None, "an active partition has something to send"
        return batch

    def take(self) -> ProducerBatch:
        """Move the next batch to `in_flight`, with its sequence number."""
        if self.retries:
            batch = self.retries.pop(0)
        else:
            batch = self.ready.popleft()
            self._number(batch)
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def retry(self, batch: ProducerBatch) -> None:
        """Add a batch to the retries."""
        insort(self.retries, batch, key=lambda waiting: waiting.sequence)

    # -- the numbering

    def _number(self, batch: ProducerBatch) -> None:
        batch.number(self.producer_id, self.epoch, self.next_sequence, transactional=self.transactional)
        self.next_sequence += batch.count

    def prepare_numbers(self, producer: tuple[int, int]) -> bool:
        """Start or restart the sequence numbers with the producer's (id, epoch); False if a new producer id is needed first."""
        if self.transactional and producer != (self.producer_id, self.epoch):
            assert not self.in_flight and not self.retries, "an identity changes between transactions"
            self.producer_id = -1
        if self.renew:
            assert not self.in_flight, "numbers change only while nothing is in flight"
            if self.epoch >= EPOCH_MAX:
                if producer[0] == self.producer_id:
                    return False
                self.producer_id = -1
            else:
                self.epoch += 1
        if self.producer_id == -1:
            self.producer_id, self.epoch = producer
        elif not self.renew:
            return True
        self.renew = self.confirmed = False
        self.next_sequence = 0
        self.holes.clear()
        for batch in self.retries:
            self._number(batch)
        return True

    def renumber(self, batch: ProducerBatch, code: int) -> bool:
        """Whether a batch that was refused as out of order can be sent again, perhaps with new numbers."""
        if any(earlier.sequence < batch.sequence for earlier in [*self.in_flight, *self.retries]):
            return code != INVALID_EPOCH or not self.transactional
        if self.transactional:
            return False
        self.renew = True
        return code == UNKNOWN_PRODUCER or any(hole < batch.sequence for hole in self.holes)

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The broker has this batch, and so all before it."""
        self.confirmed = True
        self.holes = [hole for hole in self.holes if hole > batch.sequence]
        if not self.retries:
            self.backoff.succeeded()

    def abandoned(self, batch: ProducerBatch) -> None:
        """The batch failed for good; the broker may have it."""
        if batch.sequence != NOT_NUMBERED and not self.transactional:
            insort(self.holes, batch.sequence)
