"""Sends records, and reports each record that was not written with its line.

At most `PENDING_MAX` records are unacknowledged; the producer's buffer limits their bytes, so slow brokers slow down the input. The first
failure ends sending, after the records sent before are acknowledged. With `keep_going` failures are reported and sending continues.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import click

from ottla.cli.common.progress import ProgressBar
from ottla.cli.common.rate_limit import RateLimiter
from ottla.cli.produce.input import (
    Chunk,
    CountedInput,
    InputFormat,
    InputRecord,
    JsonLines,
    SendFailed,
    csv_chunks,
    line_label,
    parsed_chunks,
    split,
    text_chunks,
)
from ottla.cli.produce.transactions import InputTransactions
from ottla.client.producer.batches import Delivery, failures
from ottla.client.sync.producer import Producer
from ottla.wire.errors import KafkaError, MessageTooLarge

#: Unacknowledged records.
PENDING_MAX = 100_000
#: Records whose acknowledgement is awaited together.
CHUNK_RECORDS = 10_000
#: Failures that are printed; further ones are only counted.
REPORTED_MAX = 20


def chunks(source: CountedInput, reading: InputFormat, complain: Callable[[str], None]) -> Iterator[Chunk]:
    """All records. `complain` is called for each invalid line: it raises, or reading continues. Raises: OSError; errors of `complain`."""
    for name, file in source.files:
        if reading.form in ("parquet", "arrow"):
            from ottla.cli.produce.arrow_input import arrow_chunks

            yield from arrow_chunks(name, source, reading, complain)
            continue
        lines = split(source.pieces(file), reading, name)
        if reading.form == "csv":
            yield from csv_chunks(name, lines, reading, complain)
        elif reading.form == "json":
            parse = JsonLines(reading).record
            for first, some in lines:
                yield from parsed_chunks(name, zip(range(first, first + len(some)), some, strict=True), parse, complain)
        else:
            yield from text_chunks(name, lines, reading, complain)


class RecordDefaults(NamedTuple):
    """Fields from the command line, for records without them."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    #: Number of times each record is sent.
    each: int = 1


NO_DEFAULTS = RecordDefaults()[:4]


class PendingRecords(NamedTuple):
    """Unacknowledged records, and their place in the input."""

    chunk: Chunk
    first: int
    deliveries: list[Delivery]


class NoPartition(ValueError):
    """A record names a partition that does not exist."""


class RecordSender:
    """Sends chunks of records to a topic."""

    def __init__(
        self,
        producer: Producer,
        topic: str,
        defaults: RecordDefaults,
        *,
        rate: float | None = None,
        keep_going: bool = False,
        kind: str = "line",
        transactions: InputTransactions | None = None,
    ) -> None:
        self._producer, self._topic, self._defaults = producer, topic, defaults
        self._limiter = None if rate is None else RateLimiter(rate)
        self._keep_going, self._kind = keep_going, kind
        self._transactions = transactions
        if transactions is not None:
            transactions.finish = self.finish
        self._pending: deque[PendingRecords] = deque()
        self._pending_count = 0
        #: Number of the topic's partitions; 0: not queried yet.
        self._partitions = 0
        self.sent = 0
        #: Records that were sent but not written; invalid lines.
        self.failed = self.bad = 0
        self.progress: ProgressBar | None = None

    @property
    def written(self) -> int:
        """Number of acknowledged records."""
        return self.sent - self.failed - self._pending_count

    def send_all(self, chunks: Iterable[Chunk], source: CountedInput | None) -> None:
        """Raises: SendFailed; OSError."""
        for chunk in chunks:
            self._send_chunk(chunk)
            if self.progress is not None:
                read = 0 if source is None else source.done
                self.progress.update(read, self.sent, read)
        if self._transactions is not None:
            self._transactions.end()
        self.finish()

    def finish(self, timeout_ms: float | None = None) -> None:
        """Waits until all records are acknowledged. Raises: SendFailed, TimeoutError."""
        self._producer.flush(timeout_ms)
        while self._pending:
            self._await_oldest()

    def complain(self, message: str) -> None:
        """Reports an invalid line. Raises: SendFailed, unless `keep_going`."""
        self.bad += 1
        self._report(message)

    def _report(self, message: str) -> None:
        message = " ".join(message.split())
        if not self._keep_going:
            raise SendFailed(message)
        if self.progress is not None:
            self.progress.clear()
        if self.failed + self.bad <= REPORTED_MAX:
            click.echo(f"Error: {message}", err=True)

    def _send_chunk(self, chunk: Chunk) -> None:
        limit = CHUNK_RECORDS if self._limiter is None else min(CHUNK_RECORDS, self._limiter.chunk_records)
        first = 0
        while first < len(chunk.records):
            records = chunk.records[first : first + (limit if self._transactions is None else min(limit, self._transactions.room))]
            for _ in range(self._defaults.each):
                if self._transactions is None:
                    self._send_records(chunk, first, records)
                else:
                    with self._transactions.lock:
                        self._transactions.ensure_open()
                        before = self.sent
                        self._send_records(chunk, first, records)
                        self._transactions.sent(self.sent - before)
                if self._limiter is not None:
                    self._limiter.wait(len(records))
            first += len(records)

    def _send_records(self, chunk: Chunk, first: int, records: list[InputRecord]) -> None:
        at = 0
        while at < len(records):
            at = self._send_until_bad(chunk, first + at, records[at:] if at else records) - first

    def _send_until_bad(self, chunk: Chunk, first: int, records: list[InputRecord]) -> int:
        """Sends these records, which begin at `first` in the chunk, up to the first that cannot be sent.

        Returns the place in the chunk to continue at. Raises: SendFailed.
        """
        topic, defaults, send = self._topic, self._defaults, self._producer.send
        deliveries: list[Delivery] = []
        add = deliveries.append
        refused: Exception | None = None
        if defaults[:4] != NO_DEFAULTS:
            records = [with_defaults(record, defaults) for record in records]
        try:
            for value, key, headers, partition, timestamp_ms in records:
                if partition is not None and partition >= self._partitions:
                    self._check(partition)
                add(send(topic, value, key, headers, partition, timestamp_ms))
        except (KafkaError, ValueError, TypeError) as error:
            refused = error
        self._pending.append(PendingRecords(chunk, first, deliveries))
        self._pending_count += len(deliveries)
        self.sent += len(deliveries)
        while self._pending and (self._pending_count > PENDING_MAX or all(one.done() for one in self._pending[0].deliveries[-1:])):
            self._await_oldest()
        at = first + len(deliveries)
        if refused is None:
            return at
        message = f"{line_label(chunk.file, chunk.numbers[at], self._kind)}: {refused}"
        if not isinstance(refused, MessageTooLarge | ValueError | TypeError):
            # The following records would fail, too.
            raise SendFailed(" ".join(message.split()))
        self.complain(message)
        return at + 1

    def _check(self, partition: int) -> None:
        """Raises: NoPartition."""
        self._partitions = len(self._producer.partitions_for(self._topic))
        if partition >= self._partitions:
            raise NoPartition(f"topic {self._topic} has {self._partitions} partitions; partition {partition} does not exist")

    def _await_oldest(self) -> None:
        """Waits for the oldest pending records. Raises: SendFailed."""
        chunk, first, deliveries = self._pending.popleft()
        self._pending_count -= len(deliveries)
        failed = failures(deliveries)
        self.failed += len(failed)
        for index, error in failed:
            self._report(f"{line_label(chunk.file, chunk.numbers[first + index], self._kind)}: {error}")


def with_defaults(record: InputRecord, defaults: RecordDefaults) -> InputRecord:
    """The record, with defaults for missing fields."""
    value, key, headers, partition, timestamp_ms = record
    return (
        value,
        defaults.key if key is None else key,
        defaults.headers + headers,
        defaults.partition if partition is None else partition,
        defaults.timestamp_ms if timestamp_ms is None else timestamp_ms,
    )
