"""The batches of one partition, and their sequence numbers.

Batches, oldest first:

    retries         in flight        ready            open
    sent, failed    sent, no answer  closed, unsent   being filled
    [b3 b4]         [b5]             [b6 b7]          b8

A batch gets its sequence number when it is first sent. When one fails with a retriable error, nothing more is sent to the partition until
all batches in flight are answered; then retries are sent first, in order, one at a time. So records are written in order, without
idempotence only with one request in flight.

**Idempotence.** The broker accepts a batch only if its number follows the last one, and acknowledges a duplicate (it remembers five). So
after a broken connection all batches in flight are sent again with the same numbers. When a batch fails for good (refused, or
`delivery_timeout_ms`) its number leaves a *hole* that the broker may or may not have. Later batches are sent with their old numbers. If
one is accepted, the broker had the hole. If it is refused as out of order, the hole is real and nothing after it was written: when nothing
is in flight, the producer epoch of this partition is incremented, and all waiting batches are numbered from 0. A refusal without a hole
means that the broker lost acknowledged records; that batch fails with the broker's error, and the numbering starts over.

The first batch under a producer id and epoch is sent alone: a broker that does not know the producer accepts any first number, so a second
batch that overtakes a refused first one would change the order.

The client increments the epoch itself: brokers accept it for a known id (KIP-360). After epoch 32767 a new producer id is needed.

A sequence number counts records, so the parts of a split batch (KIP-126) have the numbers of the whole.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from dataclasses import dataclass, field

from ottla.client.producer.batches import NOT_NUMBERED, Batch
from ottla.client.transport.backoff import Backoff

OUT_OF_ORDER = 45
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59
EPOCH_MAX = 32767


@dataclass(slots=True)
class PartitionQueue:
    """The queue of one partition."""

    topic: str
    partition: int
    backoff: Backoff
    open: Batch | None = None
    ready: deque[Batch] = field(default_factory=deque)
    #: In order of sequence numbers, like in_flight. If not empty, nothing new is sent.
    retries: list[Batch] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)
    #: -1: the producer's id and epoch are used.
    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    #: Sequence numbers of failed batches that no later success has proved written; ascending.
    holes: list[int] = field(default_factory=list)
    #: A batch with this producer id and epoch was acknowledged.
    confirmed: bool = False
    #: Number from 0 again with the next epoch, when nothing is in flight.
    renew: bool = False
    #: End of the backoff after a failure.
    blocked_until_ms: float = float("-inf")

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send."""
        return self.open is None and not self.ready and not self.retries

    @property
    def waiting(self) -> int:
        """Batches that are not in flight."""
        return len(self.retries) + len(self.ready) + (self.open is not None)

    def close_open(self) -> None:
        """Closes the open batch."""
        batch = self.open
        assert batch is not None and batch.builder is not None, "only an open batch is closed"
        batch.count, batch.size = batch.builder.count, batch.builder.size
        self.ready.append(batch)
        self.open = None

    def unsent(self) -> list[Batch]:
        """Removes all closed waiting batches, in order."""
        waiting = [*self.retries, *self.ready]
        self.retries.clear()
        self.ready.clear()
        return waiting

    def first(self) -> Batch:
        """The next batch to send."""
        batch = self.retries[0] if self.retries else self.ready[0] if self.ready else self.open
        assert batch is not None, "an active partition has something to send"
        return batch

    def take(self) -> Batch:
        """Moves the next batch into flight with a sequence number."""
        if self.retries:
            batch = self.retries.pop(0)
        else:
            batch = self.ready.popleft()
            self._number(batch)
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def again(self, batch: Batch) -> None:
        """Adds a batch to the retries."""
        insort(self.retries, batch, key=lambda waiting: waiting.sequence)

    # -- Sequence numbers.

    def _number(self, batch: Batch) -> None:
        batch.number(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence += batch.count

    def prepare_numbers(self, producer: tuple[int, int]) -> bool:
        """Starts or restarts the numbering with the producer's (id, epoch); False if a new producer id is needed first."""
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

    def renumber(self, batch: Batch, code: int) -> bool:
        """Whether a batch that was refused as out of order can be sent again, possibly with new numbers."""
        if any(earlier.sequence < batch.sequence for earlier in [*self.in_flight, *self.retries]):
            return True
        self.renew = True
        return code == UNKNOWN_PRODUCER or any(hole < batch.sequence for hole in self.holes)

    def acknowledged(self, batch: Batch) -> None:
        """The broker has this batch and all before it."""
        self.confirmed = True
        self.holes = [hole for hole in self.holes if hole > batch.sequence]
        if not self.retries:
            self.backoff.succeeded()

    def gave_up(self, batch: Batch) -> None:
        """The batch failed; whether the broker has it is unknown."""
        if batch.sequence != NOT_NUMBERED:
            insort(self.holes, batch.sequence)
