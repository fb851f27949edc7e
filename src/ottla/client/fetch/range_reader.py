"""Reads ranges of offsets, without assignment and positions: for `read_table` and for Spark's source.

The next bytes of a partition are fetched while the previous ones are used. Records are returned undecoded, so that the caller chooses the
thread for decoding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic
from typing import NamedTuple

from ottla.base.ids import TopicPartition
from ottla.base.units import MiB
from ottla.client.arrow.read import check_sums, portions
from ottla.client.fetch.raw_fetch import RawFetch
from ottla.client.sync.loop_thread import LoopCall
from ottla.records.batch import headers
from ottla.records.columns import AbortedTransactions, Columns
from ottla.wire.errors import OffsetOutOfRange

#: Bytes per fetch: about 70,000 records of 100 bytes, the fastest size for tables.
FETCH_BYTES = 8 * MiB

Fetch = Callable[[TopicPartition, int], LoopCall[RawFetch]]


class Fetched(NamedTuple):
    """Undecoded records of a partition; those in `[start, end)` are needed."""

    tp: TopicPartition
    raw: RawFetch
    start: int
    end: int
    check_crcs: bool
    read_committed: bool

    def columns(self, *, with_headers: bool, timestamps_us: bool = False) -> Iterator[Columns]:
        """The records in parts. Raises: RecordsError, CorruptBatch for a wrong checksum."""
        if self.check_crcs:
            check_sums(self.raw.records, self.tp)
        aborted = AbortedTransactions(self.raw.aborted) if self.read_committed else None
        found = portions(self.raw.records, self.start, self.end, aborted=aborted, with_headers=with_headers, timestamps_us=timestamps_us)
        return (part for part in found if part.rows)


class RangeReader:
    """A reader. `fetch(partition, offset)` starts a fetch of about `FETCH_BYTES`, which waits for records."""

    def __init__(self, fetch: Fetch, *, check_crcs: bool, read_committed: bool, clock: Callable[[], float] = monotonic) -> None:
        self._fetch = fetch
        self._clock = clock
        self._check_crcs = check_crcs
        self._read_committed = read_committed

    def read(self, tp: TopicPartition, start: int, end: int, *, timeout_ms: float | None, gone: Callable[[int], int]) -> Iterator[Fetched]:
        """The records of a range in order. Offsets without a record (compaction, transactions) are skipped.

        `gone(offset)` returns where to continue if that offset is no longer in the log, or raises.

        A result without records marks a gap at the end of the log.

        Raises: TimeoutError if no data arrives for `timeout_ms` before the end of the range; CorruptBatch.
        """
        position, coming, idle_s = start, self._fetch(tp, start) if start < end else None, self._clock()
        while position < end:
            try:
                raw = (coming or self._fetch(tp, position)).result()
            except OffsetOutOfRange:
                position, coming = gone(position), None
                continue
            coming = None
            if not len(raw.records) and raw.empty_until <= position:
                if timeout_ms is not None and (self._clock() - idle_s) * 1000 >= timeout_ms:
                    raise TimeoutError(f"{tp}: nothing came from offset {position} on for {timeout_ms:.0f} ms, and {end} is the end wanted")
                continue
            behind = max(position + 1, raw.empty_until)
            for _, header in headers(raw.records):
                behind = max(behind, header.last_offset + 1)
            if behind < end:
                coming = self._fetch(tp, behind)
            yield Fetched(tp, raw, position, end, self._check_crcs, self._read_committed)
            position, idle_s = behind, self._clock()
