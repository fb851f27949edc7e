"""A producer batch, and the delivery that `send()` returns for each of its records.

A batch is open while its builder takes records; closed when it is full or has lingered; sealed into bytes, with a sequence number, when it
is first sent; done when a broker acknowledged it or it failed. A delivery is (batch, index), so all records share the batch's result.

The outcome of a split batch is that of its parts; its deliveries find the part of their record.

A batch is done once, in the sender's thread; later outcomes are ignored. Deliveries may be used from any thread. An exception of a
callback is only logged, so that it does not stop the sender.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import accumulate
from queue import Empty, SimpleQueue
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from ottla.client.sync.waiting import taken
from ottla.records.batch import ATTRIBUTES_AT, CRC_AT, TRANSACTIONAL_BIT, parse_header
from ottla.records.build import BatchBuilder
from ottla.records.checksum import crc32c
from ottla.records.compression import Codec
from ottla.records.read import records
from ottla.wire.errors import InvalidRecord, KafkaError

log = logging.getLogger("ottla.client")

#: Position of producer id, epoch and base sequence in the header.
_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")
_CRC = Struct(">I")
SEQUENCES = 1 << 31
NOT_NUMBERED = -1


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 if it is unknown: with acks=0, or for a duplicate that the broker no longer remembers."""

    topic: str
    partition: int
    offset: int
    timestamp: int


#: Called with (metadata, None) or (None, error).
DeliveryCallback = Callable[[RecordMetadata | None, KafkaError | None], None]


class ProducerBatch:
    """Records of one partition that are sent together."""

    __slots__ = (
        "_callbacks",
        "append_time_ms",
        "attempts",
        "base_offset",
        "builder",
        "count",
        "created_ms",
        "data",
        "done",
        "epoch",
        "error",
        "last_error",
        "notified",
        "partition",
        "parts",
        "producer_id",
        "refused",
        "sent_ms",
        "sequence",
        "size",
        "topic",
        "transactional",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, builder: BatchBuilder | None, created_ms: float) -> None:
        self.topic = topic
        self.partition = partition
        #: None once the batch is sealed.
        self.builder = builder
        #: The encoded batch; None until it is sealed.
        self.data: bytearray | None = None
        #: Set when the batch is closed.
        self.count = 0
        #: Bytes charged to buffer_memory; of an open batch, those of its first record.
        self.size = 0
        self.created_ms = created_ms
        self.attempts = 0
        #: Sequence number of the first record, without wrapping; NOT_NUMBERED until first sent.
        self.sequence = NOT_NUMBERED
        self.producer_id = -1
        self.epoch = -1
        #: Part of a transaction of this producer id and epoch.
        self.transactional = False
        #: The outcome is known ...
        self.done = False
        #: ... and the callbacks were called, in the sender's thread, without the lock.
        self.notified = False
        self.error: KafkaError | None = None
        #: Error of the last attempt.
        self.last_error: KafkaError | None = None
        self.base_offset = -1
        #: -1 unless the topic uses LogAppendTime.
        self.append_time_ms = -1
        #: When it was last sent; 0: not yet.
        self.sent_ms = 0.0
        #: Records for which the broker refused the batch, with the reasons (KIP-467); None: not reported.
        self.refused: dict[int, str] | None = None
        #: Parts of a split batch: (index of its first record, part), ascending. None: not split.
        self.parts: list[tuple[int, ProducerBatch]] | None = None
        self._callbacks: deque[Callable[[], None] | tuple[DeliveryCallback, int, int]] = deque()

    def __repr__(self) -> str:
        return f"<Batch {self.topic}-{self.partition} #{self.sequence} x{self.count or (self.builder.count if self.builder else 0)}>"

    @property
    def size_now(self) -> int:
        """Bytes before compression, also of an open batch."""
        return self.size if self.builder is None else self.builder.size

    def seal(self) -> bytearray:
        """The encoded batch, with its current sequence number."""
        if self.data is None:
            assert self.builder is not None, "a batch has a builder until it has bytes"
            numbered = self.producer_id >= 0
            self.data = self.builder.finish(
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                base_sequence=self.sequence % SEQUENCES if numbered else -1,
                transactional=self.transactional,
            )
            self.builder = None
        return self.data

    def number(self, producer_id: int, epoch: int, sequence: int, *, transactional: bool = False) -> None:
        """Set producer id, epoch, sequence and the transactional attribute; also in sealed bytes, after a renumbering."""
        self.producer_id, self.epoch, self.sequence, self.transactional = producer_id, epoch, sequence, transactional
        if self.data is not None and producer_id >= 0:
            if transactional:
                # The attribute is in the low byte of two.
                self.data[ATTRIBUTES_AT + 1] |= TRANSACTIONAL_BIT
            _PRODUCER.pack_into(self.data, _PRODUCER_AT, producer_id, epoch, sequence % SEQUENCES)
            _CRC.pack_into(self.data, CRC_AT, crc32c(self.data, ATTRIBUTES_AT))

    def split(self, codec: Codec, level: int | None) -> list[ProducerBatch]:
        """Split into two batches of about half the bytes, with the same age and sequence numbers; empty for a single record."""
        data = self.seal()
        if self.count < 2 or parse_header(data).count != self.count:
            return []
        taken = list(records(data))
        sizes = [len(key or b"") + len(value or b"") for _, _, key, value, _ in taken]
        ends = list(accumulate(sizes))
        middle = min(max(bisect_right(ends, ends[-1] // 2), 1), self.count - 1)
        parts = [
            (first, ProducerBatch(self.topic, self.partition, BatchBuilder(codec=codec, level=level), self.created_ms))
            for first in (0, middle)
        ]
        for index, (_, timestamp_ms, key, value, headers) in enumerate(taken):
            builder = parts[index >= middle][1].builder
            assert builder is not None, "it was just begun"
            builder.append(timestamp_ms, key, value, tuple(headers))
        for first, part in parts:
            assert part.builder is not None, "it was just begun"
            part.count, part.size = part.builder.count, part.builder.size
            part.producer_id, part.epoch, part.sequence = self.producer_id, self.epoch, self.sequence + first
            part.transactional = self.transactional
            part.last_error = self.last_error
            part.when_done(self._part_done)
        self.parts = parts
        return [part for _, part in parts]

    def _part_done(self) -> None:
        if self.parts is not None and all(part.done for _, part in self.parts):
            self.finish(error=next((part.error for _, part in self.parts if part.error is not None), None))
            self.notify()

    def finish(self, *, base_offset: int = -1, append_time_ms: int = -1, error: KafkaError | None = None) -> bool:
        """Sets the outcome; False if it was set before. `tell` notifies waiting callers."""
        if self.done:
            return False
        self.base_offset, self.append_time_ms, self.error = base_offset, append_time_ms, error
        self.done = True
        return True

    def notify(self) -> None:
        """Call the callbacks, in the order of registration."""
        assert self.done, "a batch is notified when it is done"
        self.notified = True
        self._run_callbacks()

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back with the other callbacks, in the sender's thread; at once if they were called already."""
        self._callbacks.append(callback)
        if self.notified:
            self._run_callbacks()

    def forget_data(self) -> None:
        """Free the bytes of a done batch; its deliveries stay valid."""
        self.data = None
        for _, part in self.parts or ():
            part.forget_data()

    def when_delivered(self, callback: tuple[DeliveryCallback, int, int]) -> None:
        """`when_done` for one record: (callback, index, timestamp)."""
        self._callbacks.append(callback)
        if self.notified:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        # Two threads may run this at once; each callback is popped by one of them.
        callbacks = self._callbacks
        while callbacks:
            try:
                callback = callbacks.popleft()
            except IndexError:
                return
            try:
                if isinstance(callback, tuple):
                    deliver, index, timestamp_ms = callback
                    error = self.error_of(index)
                    deliver(None if error is not None else self.outcome(index, timestamp_ms), error)
                else:
                    callback()
            except Exception:
                log.exception("a callback for records of %s-%s failed", self.topic, self.partition)

    def part_of(self, index: int) -> tuple[ProducerBatch, int]:
        """The batch that holds the record after splits, and its index there."""
        if self.parts is None:
            return self, index
        first, part = self.parts[bisect_right(self.parts, index, key=lambda one: one[0]) - 1]
        return part.part_of(index - first)

    def error_of(self, index: int) -> KafkaError | None:
        """Why the record with this index was not written; None when it was."""
        batch, index = self.part_of(index)
        if batch.error is None or not batch.refused:
            return batch.error
        said = batch.refused.get(index)
        where = f"{batch.topic}-{batch.partition}"
        if said is not None:
            return InvalidRecord(f"{where}: {said}")
        return InvalidRecord(f"{where}: another record of the batch is invalid, not this one; send this one again: {batch.error}")

    def outcome(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Where the record with this index was written. Raises: its error."""
        error = self.error_of(index)
        if error is not None:
            raise error
        batch, index = self.part_of(index)
        offset = batch.base_offset + index if batch.base_offset >= 0 else -1
        return RecordMetadata(batch.topic, batch.partition, offset, batch.append_time_ms if batch.append_time_ms >= 0 else timestamp_ms)


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The delivery of one record, for asyncio: await it to get the `RecordMetadata`."""

    # One is created per record; a Struct takes a third of the time of a class with slots.
    _batch: ProducerBatch
    _index: int
    _timestamp_ms: int

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done

    def travels_with(self, other: Delivery) -> bool:
        """Whether both records are in one batch, and so finish together."""
        return self._batch is other._batch

    def nowhere(self) -> RecordMetadata:
        """Metadata of a record that was not written: topic and partition only."""
        return RecordMetadata(self._batch.topic, self._batch.partition, -1, -1)

    def add_delivery_callback(self, callback: DeliveryCallback) -> None:
        """Call `callback(metadata, error)`, one of them None, when the outcome is known, in the thread of the sender; at once if it is."""
        self._batch.when_delivered((callback, self._index, self._timestamp_ms))

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        """Call `callback(delivery)` when the outcome is known, in the thread of the sender; at once if it is known already."""
        self._batch.when_done(lambda: callback(self))

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        if not self._batch.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._batch.when_done(lambda: None if future.done() else future.set_result(None))
            yield from future
        return self._batch.outcome(self._index, self._timestamp_ms)


class BlockingDelivery(Delivery, gc=False, eq=False):
    """The delivery of one record, for threads: `result()` waits for the `RecordMetadata`."""

    def result(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait for the outcome, at most `timeout` seconds, as futures of `concurrent.futures` have it, or `timeout_ms` milliseconds.

        Raises: the record's KafkaError; TimeoutError if the outcome is not known in time (the record may still be written).
        """
        self._wait(wait_limit_ms(timeout, timeout_ms))
        return self._batch.outcome(self._index, self._timestamp_ms)

    def exception(self, timeout: float | None = None, *, timeout_ms: float | None = None) -> KafkaError | None:
        """Wait for the outcome as `result` does; None when the record was written. Raises: TimeoutError."""
        self._wait(wait_limit_ms(timeout, timeout_ms))
        return self._batch.error_of(self._index)

    def _wait(self, timeout_ms: float | None) -> None:
        if self._batch.done:
            return
        try:
            wait_for_end(self._batch, None if timeout_ms is None else timeout_ms / 1000)
        except Empty:
            where = f"{self._batch.topic}-{self._batch.partition}"
            raise TimeoutError(f"the record for {where} is not acknowledged after {timeout_ms:.0f} ms") from None


def wait_for_end(batch: ProducerBatch, timeout_s: float | None = None) -> None:
    """Wait until the batch is done. Raises: queue.Empty after the timeout."""
    bell: SimpleQueue[None] = SimpleQueue()
    batch.when_done(partial(bell.put, None))
    taken(bell, timeout_s)


async def wait_for_batches(batches: list[ProducerBatch], timeout_ms: float | None) -> None:
    """Waits until all batches are done. Raises: TimeoutError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            for batch in batches:
                if not batch.notified:
                    future: asyncio.Future[None] = loop.create_future()
                    batch.when_done(lambda future=future: None if future.done() else future.set_result(None))  # type: ignore[misc]
                    await future
    except TimeoutError:
        left = sum(not batch.done for batch in batches)
        raise TimeoutError(f"{left} batches have no outcome after {timeout_ms:.0f} ms") from None


def wait_limit_ms(timeout_s: float | None, timeout_ms: float | None) -> float | None:
    """The timeout in ms, from one of two units. Raises: TypeError."""
    if timeout_s is not None and timeout_ms is not None:
        raise TypeError("how long to wait is said once: timeout= is in seconds, timeout_ms= in milliseconds")
    given = timeout_ms if timeout_s is None else timeout_s
    if given is not None and not isinstance(given, int | float):
        raise TypeError(f"a time to wait is a number, timeout= of seconds or timeout_ms= of milliseconds, not {given!r}")
    return timeout_ms if timeout_s is None else timeout_s * 1000


def failures(deliveries: Sequence[Delivery]) -> list[tuple[int, KafkaError]]:
    """Wait for all outcomes; returns (index, error) of those that failed. Fast for many, because neighbours mostly share a batch."""
    failed: list[tuple[int, KafkaError]] = []
    batch: ProducerBatch | None = None
    for number, delivery in enumerate(deliveries):
        if delivery._batch is not batch:
            batch = delivery._batch
            if not batch.done:
                wait_for_end(batch)
        if batch.error is not None or batch.parts is not None:
            error = batch.error_of(delivery._index)
            if error is not None:
                failed.append((number, error))
    return failed
