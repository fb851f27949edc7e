"""A chunk: fetched record batches that were not returned to the user yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.records.batch import BatchHeader, crc_ok
from ottla.records.columns import AbortedTransactions
from ottla.records.errors import RecordsError
from ottla.records.read import records


class Chunk:
    """The batches of one response for one partition; at least one."""

    __slots__ = ("_hiding", "aborted", "batches", "buffer", "counted", "decoded", "given", "next")

    def __init__(self, buffer: memoryview, batches: list[tuple[int, BatchHeader]], aborted: Sequence[tuple[int, int]]) -> None:
        self.buffer = buffer
        self.batches = batches
        #: Index of the next batch to decode.
        self.next = 0
        #: Decoded records of the previous batch, the last one first.
        self.decoded: list[ConsumerRecord] = []
        #: Number of decoded records.
        self.given = 0
        #: Number of records already in metrics.
        self.counted = 0
        #: (producer id, first offset) of aborted transactions to skip.
        self.aborted = aborted
        #: Has seen the batches before `next`; None before its first use.
        self._hiding: AbortedTransactions | None = None

    @property
    def end_offset(self) -> int:
        """The offset after the last batch."""
        return self.batches[-1][1].last_offset + 1

    def decode(self, tp: TopicPartition, start_offset: int, *, check_crcs: bool) -> None:
        """Decodes the next batch. Raises: RecordsError."""
        at, header = self.batches[self.next]
        if check_crcs and not crc_ok(self.buffer, at):
            raise RecordsError("its checksum does not fit")
        if self._hides(at, header):
            return
        topic, partition = tp
        kind = header.timestamp_type
        self.decoded = [
            ConsumerRecord(topic, partition, offset, timestamp, kind, key, value, pairs)
            for offset, timestamp, key, value, pairs in records(self.buffer, at, start_offset=start_offset)
        ]
        self.decoded.reverse()

    def _hides(self, at: int, header: BatchHeader) -> bool:
        """Whether the next batch is skipped: a control batch, or of an aborted transaction."""
        if self._hiding is None:
            self._hiding = self.hiding()
        return self._hiding.hide(self.buffer, at, header)

    def hiding(self) -> AbortedTransactions:
        """Tracks skipped batches from the next batch on."""
        made = AbortedTransactions(self.aborted)
        if self.aborted:
            for at, header in self.batches[: self.next]:
                made.hide(self.buffer, at, header)
        return made

    def begin_at(self, offset: int) -> None:
        """Continues with the batch that contains this offset, or the one after it."""
        self.given -= len(self.decoded)
        self.decoded, self._hiding = [], None
        self.next = next(index for index, (_, header) in enumerate(self.batches) if header.last_offset >= offset)


class Lent(NamedTuple):
    """A lent chunk, and the state of its partition."""

    tp: TopicPartition
    generation: int
    chunk: Chunk
    #: Earlier records are skipped.
    start_offset: int
