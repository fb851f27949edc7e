"""The blocking producer, for code without an event loop; its loop runs in a thread of its own. `sync_consumer` and `sync_admin` are the
others.

`send()` does not go through that thread: it fills the accumulator under a lock and wakes the sender only when that has
something new to do, so a record costs a microsecond or two. Everything else is carried over to the loop and waited for, which Ctrl-C
interrupts.

Any thread may use a producer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from time import time_ns
from types import TracebackType
from typing import Any, Self

from ottla.base.ids import TopicPartition
from ottla.client.accumulator import Accumulator, Bytes
from ottla.client.batches import Batch, BlockingDelivery
from ottla.client.errors import AlreadyClosed
from ottla.client.loop_thread import LoopThread, close_at_exit
from ottla.client.network import Network, monotonic_ms
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.partitioner import Partitioner
from ottla.client.producer import Headers, Serializer, all_done, buffer_exhausted, check_bytes, partitions_of
from ottla.client.sender import Sender


class Producer:
    """Sends records. Settings are those of `ProducerOptions`, as keyword arguments.

    Raises: ConfigError for a setting that is unknown or makes no sense.
    """

    def __init__(
        self,
        *,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        rng: Random | None = None,
        **settings: Any,
    ) -> None:
        self.options = from_keywords(ProducerOptions, settings)
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._lock = threading.Lock()
        #: Shares the lock: told when batches got their outcome, so that memory may be free.
        self._room = threading.Condition(self._lock)
        rng = rng or Random()
        self._accumulator = Accumulator(self.options, rng)
        switch_bytes = min(self.options.batch_size, self.options.max_request_size)
        self._partitioner = Partitioner(switch_bytes=switch_bytes, rng=rng)
        self._closed = False
        self._waking = False
        self._waiting = 0
        self._thread = LoopThread("ottla-producer")
        self._network, self._sender = self._thread.run(lambda: self._begin(rng))
        close_at_exit(self)

    def _begin(self, rng: Random) -> tuple[Network, Sender]:
        network = Network(self.options, rng=rng)
        sender = Sender(network, self._accumulator, self.options, self._lock)
        sender.settled = self._tell_waiting
        return network, sender

    def _tell_waiting(self) -> None:
        if self._waiting:
            with self._room:
                self._room.notify_all()

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._thread.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        # Cleared before the step looks: whoever adds a record from now on wakes it again.
        self._waking = False
        self._sender.wake()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # An interrupt should not have to wait for brokers that may be the reason for it.
        self.close(timeout_ms=0 if kind is not None and issubclass(kind, KeyboardInterrupt) else None)

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BlockingDelivery:
        """Put a record on its way; `.result()` of what it returns waits until the record is written and tells where.

        Without a partition, the key decides, as in Java's client; without a key, any partition. The time is now unless given. Waits only
        for metadata of a topic not seen before, and while `buffer_memory` is full, at most `max_block_ms` each.

        Raises: MetadataTimedOut, BufferExhausted, MessageTooLarge, TypeError; TopicAuthorizationFailed and the like when the topic cannot
        be had.
        """
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        if timestamp_ms is None:
            timestamp_ms = time_ns() // 1_000_000
        if (value is not None and value.__class__ is not bytes) or (key is not None and key.__class__ is not bytes):
            check_bytes(key, value)
        known = self._network.cluster.topics.get(topic)
        count = 0 if known is None else len(known.partitions)
        if not count or (partition is not None and not 0 <= partition < count):
            count = self._thread.call(partitions_of(self._network, topic, partition, self.options.max_block_ms))
        if headers is None:
            headers = ()
        with self._lock:
            if partition is None:
                partition = self._partitioner.partition(topic, key, 0 if value is None else len(value), count)
            added = self._accumulator.add(topic, partition, timestamp_ms, key, value, headers)
        if added is None:
            return BlockingDelivery(*self._begun(topic, partition, timestamp_ms, key, value, headers), timestamp_ms)
        return BlockingDelivery(added[0], added[1], timestamp_ms)

    def _begun(
        self, topic: str, partition: int, timestamp_ms: int, key: Bytes | None, value: Bytes | None, headers: Headers
    ) -> tuple[Batch, int]:
        """Begin a batch with a record, when there is memory for it, and wake the sender. Another thread may have begun one meanwhile."""

        def attempt() -> tuple[Batch, int] | None:
            added = self._accumulator.add(topic, partition, timestamp_ms, key, value, headers)
            if added is not None:
                return added
            batch = self._accumulator.begin(topic, partition, timestamp_ms, key, value, headers, monotonic_ms())
            return None if batch is None else (batch, 0)

        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed")
            begun = attempt()
        if begun is None:
            begun = self._when_room(attempt)
        if self._accumulator.closed_one or self._sender.next_step_ms > monotonic_ms() + self.options.linger_ms:
            self._wake()
        return begun

    def send_batch(self, topic: str, partition: int, batch: Bytes) -> BlockingDelivery:
        """Put an encoded record batch (format v2, one batch, compressed or not) on its way, behind what was sent to the partition before.

        What it returns stands for the first record. A bytearray is taken over and stamped in place with the producer's numbers; anything
        else is copied. Records are not looked at: keys, times and partitions are as the batch has them.

        Raises: what `send` raises; ValueError when it is not exactly one batch.
        """
        known = self._network.cluster.partition_count(topic)
        if known is None or not 0 <= partition < known:
            self._thread.call(partitions_of(self._network, topic, partition, self.options.max_block_ms))
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed")
            made = self._accumulator.append_batch(topic, partition, data, monotonic_ms())
        if made is None:
            made = self._when_room(lambda: self._accumulator.append_batch(topic, partition, data, monotonic_ms()))
        self._wake()
        return BlockingDelivery(made, 0, int.from_bytes(data[27:35], "big", signed=True))

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises: MetadataTimedOut."""
        count = self._thread.call(partitions_of(self._network, topic, None, self.options.max_block_ms))
        return [TopicPartition(topic, partition) for partition in range(count)]

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send what waits, and wait until every record sent so far has its outcome. Raises: TimeoutError."""
        with self._lock:
            waiting = self._accumulator.close_open()
        self._wake()
        self._thread.call(all_done(waiting, timeout_ms))

    def close(self, timeout_ms: float | None = None) -> None:
        """Wait for the outcome of what was sent, at most `timeout_ms`; what has none by then fails. Closing twice is no error."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            waiting = self._accumulator.close_open()
        try:
            self._wake()
            self._thread.call(self._end(waiting, timeout_ms))
        finally:
            self._thread.stop()

    async def _end(self, waiting: list[Batch], timeout_ms: float | None) -> None:
        try:
            await all_done(waiting, timeout_ms)
        except TimeoutError:
            pass
        finally:
            self._sender.close()
            with self._room:
                self._accumulator.abandon(AlreadyClosed("the producer was closed before the record was acknowledged"))
                self._room.notify_all()
            self._accumulator.tell()
            await self._network.close()

    def _when_room(self, append: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + self.options.max_block_ms / 1000
        with self._room:
            self._waiting += 1
            try:
                while True:
                    self._wake()
                    left = deadline - time.monotonic()
                    if left <= 0 or not self._room.wait(left):
                        raise buffer_exhausted(self._accumulator, self.options)
                    if self._closed:
                        raise AlreadyClosed("the producer is closed")
                    added = append()
                    if added is not None:
                        return added
            finally:
                self._waiting -= 1
