"""Sends records, and makes sure that what was not written is told by its line.

Up to `WAITING_MAX` records have no outcome yet; the producer's own memory bounds their bytes, so that whoever writes to us is held up when
brokers are. The first failure ends it: what was sent before is waited for, what comes later is not sent. With `keep_going` each failure is
told, and the rest is sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import click

from ottla.cli.common.progress import Progress
from ottla.cli.common.rate_limit import Pace
from ottla.cli.produce.input import Chunk, Counted, Given, where
from ottla.client.producer.batches import Delivery, failures
from ottla.client.sync.producer import Producer
from ottla.wire.errors import KafkaError, MessageTooLarge

#: Records whose outcome is not known, before the first of them must be.
WAITING_MAX = 100_000
#: Records that are waited for together.
PORTION = 10_000
#: Failures that are told each by itself.
TOLD_MAX = 20


class Fixed(NamedTuple):
    """What the command line says of all records, where a record does not say it itself."""

    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None
    #: How often each record is sent.
    each: int = 1


NOTHING_FIXED = Fixed()[:4]


class Waiting(NamedTuple):
    """Records on their way, and where they came from."""

    chunk: Chunk
    first: int
    deliveries: list[Delivery]


class Failed(Exception):
    """A record was not written, or not understood; the message names it."""


class NoPartition(ValueError):
    """A record names a partition that its topic has not."""


class Sending:
    """Sends chunks of records to a topic."""

    def __init__(
        self, producer: Producer, topic: str, fixed: Fixed, *, rate: float | None = None, keep_going: bool = False, kind: str = "line"
    ) -> None:
        self._producer, self._topic, self._fixed = producer, topic, fixed
        self._pace = None if rate is None else Pace(rate)
        self._keep_going, self._kind = keep_going, kind
        self._waiting: deque[Waiting] = deque()
        self._waiting_count = 0
        #: How many the topic has, as far as was asked.
        self._partitions = 0
        self.sent = 0
        #: Those that were sent, and not written; and lines that made no record.
        self.failed = self.bad = 0
        self.progress: Progress | None = None

    @property
    def written(self) -> int:
        """How many records brokers have acknowledged, of those that were waited for."""
        return self.sent - self.failed - self._waiting_count

    def send_all(self, chunks: Iterable[Chunk], source: Counted | None) -> None:
        """Raises: Failed; OSError."""
        for chunk in chunks:
            self._send_chunk(chunk)
            if self.progress is not None:
                read = 0 if source is None else source.done
                self.progress.update(read, self.sent, read)
        self.finish()

    def finish(self, timeout_ms: float | None = None) -> None:
        """Wait for all that was sent. Raises: Failed, TimeoutError."""
        self._producer.flush(timeout_ms)
        while self._waiting:
            self._settle()

    def complain(self, told: str) -> None:
        """A line makes no record. Raises: Failed unless going on."""
        self.bad += 1
        self._tell(told)

    def _tell(self, told: str) -> None:
        told = " ".join(told.split())
        if not self._keep_going:
            raise Failed(told)
        if self.progress is not None:
            self.progress.wipe()
        if self.failed + self.bad <= TOLD_MAX:
            click.echo(f"Error: {told}", err=True)

    def _send_chunk(self, chunk: Chunk) -> None:
        step = PORTION if self._pace is None else min(PORTION, self._pace.portion)
        for first in range(0, len(chunk.records), step):
            portion = chunk.records[first : first + step]
            for _ in range(self._fixed.each):
                at = 0
                while at < len(portion):
                    at = self._send_until_bad(chunk, first + at, portion[at:] if at else portion) - first
                if self._pace is not None:
                    self._pace.wait(len(portion))

    def _send_until_bad(self, chunk: Chunk, first: int, records: list[Given]) -> int:
        """Send these, which begin at `first` in the chunk, up to one that cannot be sent; where to go on. Raises: Failed."""
        topic, fixed, send = self._topic, self._fixed, self._producer.send
        deliveries: list[Delivery] = []
        add = deliveries.append
        refused: Exception | None = None
        if fixed[:4] != NOTHING_FIXED:
            records = [completed(record, fixed) for record in records]
        try:
            for value, key, headers, partition, timestamp_ms in records:
                if partition is not None and partition >= self._partitions:
                    self._check(partition)
                add(send(topic, value, key, headers, partition, timestamp_ms))
        except (KafkaError, ValueError, TypeError) as error:
            refused = error
        self._waiting.append(Waiting(chunk, first, deliveries))
        self._waiting_count += len(deliveries)
        self.sent += len(deliveries)
        while self._waiting and (self._waiting_count > WAITING_MAX or all(one.done() for one in self._waiting[0].deliveries[-1:])):
            self._settle()
        at = first + len(deliveries)
        if refused is None:
            return at
        told = f"{where(chunk.file, chunk.numbers[at], self._kind)}: {refused}"
        if not isinstance(refused, MessageTooLarge | ValueError | TypeError):
            # It would be the same for all that follow.
            raise Failed(" ".join(told.split()))
        self.complain(told)
        return at + 1

    def _check(self, partition: int) -> None:
        """Whether there is such a partition. Raises: NoPartition."""
        self._partitions = len(self._producer.partitions_for(self._topic))
        if partition >= self._partitions:
            raise NoPartition(f"topic {self._topic} has {self._partitions} partitions, no partition {partition}")

    def _settle(self) -> None:
        """Wait for the oldest. Raises: Failed."""
        chunk, first, deliveries = self._waiting.popleft()
        self._waiting_count -= len(deliveries)
        found = failures(deliveries)
        self.failed += len(found)
        for index, error in found:
            self._tell(f"{where(chunk.file, chunk.numbers[first + index], self._kind)}: {error}")


def completed(record: Given, fixed: Fixed) -> Given:
    """A record with what the command line says where it says nothing itself."""
    value, key, headers, partition, timestamp_ms = record
    return (
        value,
        fixed.key if key is None else key,
        fixed.headers + headers,
        fixed.partition if partition is None else partition,
        fixed.timestamp_ms if timestamp_ms is None else timestamp_ms,
    )
