"""Sends tables: rows become record batches by partition, column by column, with one delivery for the whole table.

    table --portions of some MiB--> key, value ... as bytes --murmur2--> rows by partition --> batches of each in turn

No step runs per row in Python. Each batch is appended to the accumulator when it is made, after earlier records of its partition. Memory
is therefore ``buffer_memory`` and a few portions for a table or stream of any size.

Rows of one partition keep their order. Rows without key and partition go batch by batch to random partitions, like single records. The
producer's serializers and interceptors are not applied to tables.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from queue import Empty
from time import monotonic
from typing import Any, NamedTuple

from ottla.client.arrow.optional import pa
from ottla.client.arrow.rows import ANY, Portion, TableRows
from ottla.client.producer.batches import ProducerBatch, wait_for_end, wait_limit_ms
from ottla.records.build import column_encoder, rows_by_partition, seal_encoded
from ottla.records.codec import Builder
from ottla.records.compression import Codec
from ottla.wire.errors import KafkaError

#: Threads that compress while rows are encoded; compression runs without the GIL.
THREADS = min(4, os.cpu_count() or 1)


class RowSelection(NamedTuple):
    """Rows of a table: ``size`` rows from ``first`` on; with ``chosen`` (int64), those row numbers. Numbers are relative to ``base``."""

    first: int
    size: int
    chosen: bytes | None = None
    base: int = 0

    def numbers(self) -> list[int]:
        """Their row numbers in the table."""
        if self.chosen is None:
            return list(range(self.base + self.first, self.base + self.first + self.size))
        return [self.base + row for row in memoryview(self.chosen).cast("q")[self.first : self.first + self.size]]


class Encoded(NamedTuple):
    """A batch to send. Its partition is ANY if it may go to any."""

    partition: int
    data: bytearray
    rows: RowSelection


def batches_of_table(table: TableRows, partitions: int, size_max: int, codec: Codec, level: int | None) -> Iterator[Encoded]:
    """All rows of a table as batches, for a topic with this number of partitions.

    Raises: errors of ``TableRows.portions``; ValueError for a partition that does not exist.
    """
    drafts = (draft for portion in table.portions(partitions) for draft in _drafts(portion, partitions, size_max))
    seal = partial(seal_encoded, size_max=size_max, codec=codec, level=level)
    if codec is Codec.NONE or THREADS < 2:
        for partition, builder, rows in drafts:
            yield Encoded(partition, seal(builder), rows)
        return
    with ThreadPoolExecutor(THREADS, "ottla-compress") as pool:
        coming: deque[tuple[int, Future[bytearray], RowSelection]] = deque()
        for partition, builder, rows in drafts:
            sealed = pool.submit(seal, builder)
            coming.append((partition, sealed, rows))
            if len(coming) > THREADS:
                partition, sealed, rows = coming.popleft()
                yield Encoded(partition, sealed.result(), rows)
        for partition, sealed, rows in coming:
            yield Encoded(partition, sealed.result(), rows)


def _drafts(portion: Portion, partitions: int, size_max: int) -> Iterator[tuple[int, Builder, RowSelection]]:
    """The batches of a portion, one of each partition in turn, uncompressed."""
    groups = [
        (partition, chosen, first, column_encoder(portion.value, first=first, last=last, rows=chosen, **portion.others))
        for partition, chosen, first, last in _groups(portion, partitions)
    ]
    while groups:
        left = []
        for partition, chosen, first, encoder in groups:
            builder = encoder.encode(size_max)
            if builder is not None:
                yield partition, builder, RowSelection(first, builder.count, chosen, portion.first_row)
                left.append((partition, chosen, first + builder.count, encoder))
        groups = left


def _groups(portion: Portion, partitions: int) -> Iterator[tuple[int, bytes | None, int, int]]:
    """(partition, row numbers, first, last) of each partition's rows; row numbers are None if consecutive."""
    if isinstance(portion.partition, int):
        yield portion.partition, None, 0, portion.count
        return
    try:
        chosen, ends = rows_by_partition(portion.partitions(partitions), partitions)
    except IndexError as error:
        raise ValueError(f"counted from row {portion.first_row} of the table on, {error}") from None
    if partitions == 1:
        yield 0, None, 0, portion.count
        return
    first = 0
    for number, last in enumerate(ends, start=ANY):
        if last > first:
            yield (number, None, 0, portion.count) if last - first == portion.count else (number, chosen, first, last)
        first = last


# ---------------------------------------------------------------------------------------------------------------- the promise


class TableMetadata(NamedTuple):
    """Partitions and offsets of the rows of a table."""

    topic: str
    rows: int
    #: By partition: the first offset and the one behind the last; other producers' records may lie between. -1, -1 when the broker did
    #: not say (acks=0).
    offsets: dict[int, tuple[int, int]]


class TableDelivery:
    """Future of a sent table, for asyncio: await it to get the ``TableMetadata``.

    Batches succeed and fail one by one. If some failed, awaiting it raises the error of the first, and ``failed_rows`` are the rows that
    were not acknowledged, so ``table.take(delivery.failed_rows())`` is what to send again.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        #: Batches with their rows, in the order of creation.
        self._sent: list[tuple[ProducerBatch, RowSelection]] = []
        self.rows = 0

    def __repr__(self) -> str:
        done = sum(rows.size for batch, rows in self._sent if batch.done)
        return f"<{type(self).__name__} {self.topic}: {done} of {self.rows} rows done>"

    def add(self, batch: ProducerBatch, rows: RowSelection) -> None:
        """Adds a batch."""
        self.rows += rows.size
        self._sent.append((batch, rows))
        batch.when_done(batch.forget_data)

    def done(self) -> bool:
        """Whether the outcome of all rows is known."""
        return all(batch.done for batch, _ in self._sent)

    def add_batch_callback(self, callback: Callable[[int, KafkaError | None], None]) -> None:
        """Call `callback(rows, error)` for each batch of rows when its result is known, with None if it was written; in the sender's
        thread, or at once if it is known already.
        """
        for batch, rows in self._sent:
            batch.when_done(partial(_tell, callback, batch, rows.size))

    def failed_rows(self) -> pa.Array:
        """The row numbers (int64) that were not acknowledged so far, in ascending order."""
        failed = [rows for batch, rows in self._sent if batch.done and batch.error is not None]
        return pa.array(sorted(number for rows in failed for number in rows.numbers()), "int64")

    def _outcome(self) -> TableMetadata:
        """Raises: the error of the first batch that failed."""
        failed = next((batch.error for batch, _ in self._sent if batch.error is not None), None)
        if failed is not None:
            raise failed
        offsets: dict[int, tuple[int, int]] = {}
        for batch, rows in self._sent:
            first, last = batch.outcome(0, -1).offset, batch.outcome(rows.size - 1, -1).offset + 1
            if first < 0:
                offsets.setdefault(batch.partition, (-1, -1))
                continue
            begin, end = offsets.get(batch.partition, (first, last))
            offsets[batch.partition] = (first if begin < 0 else min(begin, first), max(end, last))
        return TableMetadata(self.topic, self.rows, dict(sorted(offsets.items())))

    def __await__(self) -> Generator[Any, None, TableMetadata]:
        for batch, _ in self._sent:
            if not batch.done:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                batch.when_done(lambda future=future: None if future.done() else future.set_result(None))  # type: ignore[misc]
                yield from future
        return self._outcome()


class BlockingTableDelivery(TableDelivery):
    """Future of a sent table, for threads: ``result()`` waits for the ``TableMetadata``."""

    def result(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> TableMetadata:
        """Wait for the result, at most `timeout` seconds or `timeout_ms` milliseconds.

        Raises: the error of the first batch that failed; TimeoutError, while the rows are still being sent.
        """
        self._wait(wait_limit_ms(timeout, timeout_ms))
        return self._outcome()

    def exception(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> KafkaError | None:
        """Wait like `result`; None if all rows were written. Raises: TimeoutError."""
        try:
            self.result(timeout, timeout_ms=timeout_ms)
        except KafkaError as error:
            return error
        return None

    def _wait(self, timeout_ms: float | None) -> None:
        deadline = None if timeout_ms is None else monotonic() + timeout_ms / 1000
        for batch, _ in self._sent:
            if batch.done:
                continue
            try:
                wait_for_end(batch, None if deadline is None else max(deadline - monotonic(), 0))
            except Empty:
                left = sum(rows.size for waiting, rows in self._sent if not waiting.done)
                raise TimeoutError(f"{left} of {self.rows} rows for {self.topic} are not acknowledged after {timeout_ms:.0f} ms") from None


def _tell(callback: Callable[[int, KafkaError | None], None], batch: ProducerBatch, rows: int) -> None:
    callback(rows, batch.error)


@contextmanager
def attach_delivery(delivery: TableDelivery) -> Iterator[None]:
    """Adds to an exception how much of the table was sent before it."""
    try:
        yield
    except Exception as error:
        if delivery.rows:
            error.add_note(f"{delivery.rows} rows of the table were put on their way to {delivery.topic} before; flush() waits for them")
        raise
