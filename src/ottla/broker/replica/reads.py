"""Reads from a replica: from a leader, and by consumers in its rack from a follower (KIP-392).

Consumers read below the high watermark known here. A follower's is behind the leader's, so an offset that the leader returned may not be
here yet: the answer is OFFSET_NOT_AVAILABLE. An offset before the log start is out of range on both, because followers advance their log
start after the leader.
"""

import msgspec

from ottla.base.ids import NO_EPOCH, TopicPartition
from ottla.broker.replica.log_errors import refusal_of
from ottla.log.errors import LogError
from ottla.log.flush import Slice
from ottla.log.log import Log
from ottla.wire import errors

READ_COMMITTED = 1


class Read(msgspec.Struct, gc=False):
    """The result of a read."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Slice | None = None
    #: (producer id, first offset); None for read_uncommitted.
    aborted: list[tuple[int, int]] | None = None
    #: (epoch, end offset) where the reader's log diverges.
    diverging: tuple[int, int] | None = None


class Readable:
    """Reads shared by leaders and followers."""

    __slots__ = ()

    partition: TopicPartition
    log: Log
    epoch: int
    high_watermark: int
    #: Whether this replica is a follower.
    follows = False

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuses a client with an older or newer leader epoch; -1 is not checked. Source: KIP-320."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.epoch:
            return
        if current_leader_epoch < self.epoch:
            raise errors.FencedLeaderEpoch(f"{self.partition} is at leader epoch {self.epoch}, not {current_leader_epoch}")
        raise errors.UnknownLeaderEpoch(f"{self.partition} is at leader epoch {self.epoch}; {current_leader_epoch} is not known here yet")

    def readable_end(self, isolation_level: int) -> int:
        """The offset before which readers of this isolation level read."""
        return self.log.last_stable_offset(self.high_watermark) if isolation_level == READ_COMMITTED else self.high_watermark

    def agrees(self, offset: int, last_fetched_epoch: int) -> bool:
        """Whether a log that ends at ``offset`` with a batch of this epoch (-1: unknown) can be a prefix of ours. Source: KIP-595."""
        if last_fetched_epoch == NO_EPOCH:
            return True
        end = self.log.epochs.end_of(last_fetched_epoch)
        return end is not None and end[0] == last_fetched_epoch and end[1] >= offset

    def _begins_at(self, offset: int) -> bool:
        """Whether the batch with the log start begins at or before this offset: a follower without records copies it whole."""
        try:
            return self.log.first_batch_offset() <= offset < self.log.start_offset
        except LogError:
            return False

    def read(
        self,
        offset: int,
        *,
        max_bytes: int,
        at_least_one: bool,
        isolation_level: int,
        last_fetched_epoch: int = NO_EPOCH,
        replica: bool = False,
    ) -> Read:
        """Batches from the one that contains ``offset``, as a slice of the log file; no records at the end. Replicas read to the log end.

        Raises: KafkaError (offset out of range).
        """
        log, high_watermark = self.log, self.high_watermark
        start, end, stable = log.start_offset, log.end_offset, log.last_stable_offset(high_watermark)
        upto = end if replica else self.readable_end(isolation_level)
        found = Read(high_watermark, stable, start)
        if last_fetched_epoch != NO_EPOCH and not self.agrees(offset, last_fetched_epoch):
            # An epoch above ours is damage in the other log: our latest epoch is the last that both can share.
            found.diverging = log.epochs.end_of(last_fetched_epoch) or (log.epochs.latest, end)
            return found
        if offset > end and self.follows:
            raise errors.OffsetNotAvailable(f"{self.partition} is copied up to {end} here, not to {offset} yet")
        if not start <= offset <= end and not (replica and self._begins_at(offset)):
            raise errors.OffsetOutOfRange(f"{self.partition} holds offsets {start} to {end}, not {offset}")
        if offset < upto and (max_bytes > 0 or at_least_one):
            try:
                found.records = log.locate(max(offset, start), max_bytes=max_bytes, upto=upto, at_least_one=at_least_one)
            except LogError as error:
                raise refusal_of(error) from error
        if isolation_level == READ_COMMITTED:
            gone = log.aborted_in(offset, found.records, upto) if found.records is not None else []
            found.aborted = [(transaction.producer_id, transaction.first_offset) for transaction in gone]
        return found
