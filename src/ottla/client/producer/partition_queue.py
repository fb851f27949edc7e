"""The batches of one partition and their place in the producer's numbering.

One partition's batches, oldest first:

    retries         in flight        ready            open
    sent, failed    sent, no answer  closed, unsent   being filled
    [b3 b4]         [b5]             [b6 b7]          b8

A batch gets its number when it is first sent. When one fails and may be tried again, nothing more is sent to that partition until every
batch in flight is answered; then the retries go first, in order of their numbers, one at a time. So a partition's records are written in
order, also without idempotence as long as no more than one request is in flight.

**Idempotence.** The broker takes a batch only if its number follows the last one it has, and answers a repeat as if it were new (it
remembers five). A broken connection is therefore harmless: all that was in flight is sent again under the same numbers. When a batch is
given up (it was refused for good, or `delivery_timeout_ms` is over) its number leaves a *hole* that may or may not be filled at the
broker. What follows is sent under its old numbers. If it is taken, the hole was filled. If it is refused as out of order, the hole is
real, so nothing behind it was written either: once nothing is in flight, the producer epoch of this partition goes up by one, and all
waiting batches are numbered again from 0. A refusal without a hole before it means that the broker lost what it had acknowledged; that
batch fails with the broker's error, and the numbering starts over.

The first batch under a producer id and epoch travels alone: a broker that does not know the producer takes any number as its first, so if
the second batch overtook a first that was refused, the order would be lost for good.

Raising the epoch is free: a broker accepts it from whoever knows the id (KIP-360). After epoch 32767 a new producer id is needed.

A number counts records, so the parts of a batch that was split (KIP-126) take the numbers of the whole.
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
    """See the module."""

    topic: str
    partition: int
    backoff: Backoff
    open: ProducerBatch | None = None
    ready: deque[ProducerBatch] = field(default_factory=deque)
    #: Ordered by number, like in_flight. Not empty: nothing new is sent.
    retries: list[ProducerBatch] = field(default_factory=list)
    in_flight: list[ProducerBatch] = field(default_factory=list)
    #: -1: the producer's own is to be taken, with its epoch.
    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    #: Numbers of batches that were given up and that no later success has proved written; ascending.
    holes: list[int] = field(default_factory=list)
    #: A batch under this producer id and epoch was acknowledged.
    confirmed: bool = False
    #: Number from 0 again, under the next epoch, as soon as nothing is in flight.
    renew: bool = False
    #: Nothing is sent before, after a failure.
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
        """The open batch takes no more records."""
        batch = self.open
        assert batch is not None and batch.builder is not None, "only an open batch is closed"
        batch.count, batch.size = batch.builder.count, batch.builder.size
        self.ready.append(batch)
        self.open = None

    def unsent(self) -> list[ProducerBatch]:
        """Take out all that is closed and waits, in order."""
        waiting = [*self.retries, *self.ready]
        self.retries.clear()
        self.ready.clear()
        return waiting

    def first(self) -> ProducerBatch:
        """What goes next."""
        batch = self.retries[0] if self.retries else self.ready[0] if self.ready else self.open
        assert batch is not None, "an active partition has something to send"
        return batch

    def take(self) -> ProducerBatch:
        """Move what goes next into flight, numbered."""
        if self.retries:
            batch = self.retries.pop(0)
        else:
            batch = self.ready.popleft()
            self._number(batch)
        batch.attempts += 1
        self.in_flight.append(batch)
        return batch

    def retry(self, batch: ProducerBatch) -> None:
        """Put a batch among the retries."""
        insort(self.retries, batch, key=lambda waiting: waiting.sequence)

    # -- the numbering

    def _number(self, batch: ProducerBatch) -> None:
        batch.number(self.producer_id, self.epoch, self.next_sequence)
        self.next_sequence += batch.count

    def prepare_numbers(self, producer: tuple[int, int]) -> bool:
        """Start the numbering, or start it over, with the producer's (id, epoch); False when a new producer id is needed first."""
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
        """Whether a batch that does not fit the broker's numbering can be sent again, perhaps under new numbers."""
        if any(earlier.sequence < batch.sequence for earlier in [*self.in_flight, *self.retries]):
            return True
        self.renew = True
        return code == UNKNOWN_PRODUCER or any(hole < batch.sequence for hole in self.holes)

    def acknowledged(self, batch: ProducerBatch) -> None:
        """The broker has it, and so everything before it."""
        self.confirmed = True
        self.holes = [hole for hole in self.holes if hole > batch.sequence]
        if not self.retries:
            self.backoff.succeeded()

    def abandoned(self, batch: ProducerBatch) -> None:
        """Nobody will send it again; whether the broker has it is not known."""
        if batch.sequence != NOT_NUMBERED:
            insort(self.holes, batch.sequence)
