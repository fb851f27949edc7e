"""Record batches that were fetched and not yet given to the user."""

from __future__ import annotations

from ottla.client.record import ConsumerRecord
from ottla.records.batch import BatchHeader


class Chunk:
    """The batches of one answer for one partition."""

    __slots__ = ("aborted", "batches", "buffer", "decoded", "next", "open_aborted")

    def __init__(self, buffer: memoryview, batches: list[tuple[int, BatchHeader]], aborted: list[tuple[int, int]]) -> None:
        self.buffer = buffer
        self.batches = batches
        #: Index of the batch to decode next.
        self.next = 0
        #: Decoded records of the batch before, the last one first.
        self.decoded: list[ConsumerRecord] = []
        #: (first offset, producer id) of aborted transactions that have not begun yet, the last one first.
        self.aborted = sorted(aborted, reverse=True)
        self.open_aborted: set[int] = set()
