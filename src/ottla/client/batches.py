"""A batch on its way, and the promise that `send()` gives for each record in it.

A batch is born open, in its builder; closed when it is full or has lingered; sealed into bytes, with a place in the producer's numbering,
when it is first sent; done when a broker acknowledged it or it was given up. A delivery is only (batch, index): the one result of the
batch serves all its records.

Done happens once, in the sender's thread; the first outcome stands. A delivery may be asked from any thread.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from ottla.records.batch import ATTRIBUTES_AT, CRC_AT
from ottla.records.build import BatchBuilder
from ottla.records.checksum import crc32c
from ottla.wire.errors import KafkaError

#: Producer id, epoch and base sequence stand side by side in the header.
_PRODUCER_AT = 43
_PRODUCER = Struct(">qhi")
_CRC = Struct(">I")
SEQUENCES = 1 << 31
NOT_NUMBERED = -1


class RecordMetadata(NamedTuple):
    """Where a record was written. `offset` is -1 when the broker did not say (acks=0, or a repeat so late that it forgot)."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class Batch:
    """Records of one partition that travel together."""

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
        "partition",
        "producer_id",
        "sequence",
        "size",
        "topic",
    )  # fmt: skip

    def __init__(self, topic: str, partition: int, builder: BatchBuilder | None, created_ms: float) -> None:
        self.topic = topic
        self.partition = partition
        #: None once the batch is sealed.
        self.builder = builder
        #: The encoded batch; None until it is sealed.
        self.data: bytearray | None = None
        #: Filled in when the batch is closed.
        self.count = 0
        #: Bytes it takes from the buffer's memory.
        self.size = 0
        self.created_ms = created_ms
        self.attempts = 0
        #: Place of the first record in the partition's numbering, counted without wrapping; NOT_NUMBERED until first sent.
        self.sequence = NOT_NUMBERED
        self.producer_id = -1
        self.epoch = -1
        self.done = False
        self.error: KafkaError | None = None
        #: Why it had to be sent again.
        self.last_error: KafkaError | None = None
        self.base_offset = -1
        #: -1 unless the topic stamps records with the time of the append.
        self.append_time_ms = -1
        self._callbacks: list[Callable[[], None]] = []

    def __repr__(self) -> str:
        return f"<Batch {self.topic}-{self.partition} #{self.sequence} x{self.count or (self.builder.count if self.builder else 0)}>"

    def seal(self) -> bytearray:
        """The bytes to send, with the numbering of this moment."""
        if self.data is None:
            assert self.builder is not None, "a batch has a builder until it has bytes"
            numbered = self.producer_id >= 0
            self.data = self.builder.finish(
                producer_id=self.producer_id, producer_epoch=self.epoch, base_sequence=self.sequence % SEQUENCES if numbered else -1
            )
            self.builder = None
        return self.data

    def number(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Give the batch its place; again, when its numbering had to start over."""
        self.producer_id, self.epoch, self.sequence = producer_id, epoch, sequence
        if self.data is not None and producer_id >= 0:
            _PRODUCER.pack_into(self.data, _PRODUCER_AT, producer_id, epoch, sequence % SEQUENCES)
            _CRC.pack_into(self.data, CRC_AT, crc32c(self.data, ATTRIBUTES_AT))

    def finish(self, *, base_offset: int = -1, append_time_ms: int = -1, error: KafkaError | None = None) -> bool:
        """Settle the outcome and tell whoever waits; False when it was settled before."""
        if self.done:
            return False
        self.base_offset, self.append_time_ms, self.error = base_offset, append_time_ms, error
        self.done = True
        self._call()
        return True

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call once the outcome is settled: at once if it is, in the sender's thread otherwise."""
        self._callbacks.append(callback)
        if self.done:
            self._call()

    def _call(self) -> None:
        # A callback added while the other thread settles the outcome is popped by one of the two, never by both.
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:
                return
            callback()

    def outcome(self, index: int, timestamp_ms: int) -> RecordMetadata:
        """Where the record with this index was written. Raises: the batch's error."""
        if self.error is not None:
            raise self.error
        offset = self.base_offset + index if self.base_offset >= 0 else -1
        return RecordMetadata(self.topic, self.partition, offset, self.append_time_ms if self.append_time_ms >= 0 else timestamp_ms)


class Delivery(msgspec.Struct, gc=False, eq=False):
    """The promise of one record, for asyncio: await it to get the `RecordMetadata`."""

    # One is made for every record that is sent; a Struct takes a third of the time of a class with slots.
    _batch: Batch
    _index: int
    _timestamp_ms: int

    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._batch.done

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
    """The promise of one record, for threads: `result()` waits for the `RecordMetadata`."""

    def result(self, *, timeout_ms: float | None = None) -> RecordMetadata:
        """Wait for the outcome. Raises: the KafkaError that ended it, TimeoutError when it is not known in time (the record is still on
        its way).
        """
        self._wait(timeout_ms)
        return self._batch.outcome(self._index, self._timestamp_ms)

    def exception(self, *, timeout_ms: float | None = None) -> KafkaError | None:
        """Wait for the outcome; None when the record was written. Raises: TimeoutError."""
        self._wait(timeout_ms)
        return self._batch.error

    def _wait(self, timeout_ms: float | None) -> None:
        if self._batch.done:
            return
        event = threading.Event()
        self._batch.when_done(event.set)
        if not event.wait(None if timeout_ms is None else timeout_ms / 1000):
            raise TimeoutError(f"the record for {self._batch.topic}-{self._batch.partition} is not acknowledged after {timeout_ms:.0f} ms")
