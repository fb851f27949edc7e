"""The producer for asyncio: `send()` puts a record into the accumulator and gives a promise; the sender does the rest.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", b"value", key=b"key")   # is in a batch
        metadata = await delivery                                        # is written

`send()` itself waits only for metadata of a topic not seen before, and while `buffer_memory` is full; both together at most `max_block_ms`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from random import Random
from types import TracebackType
from typing import Any, Self

from ottla.base.ids import TopicPartition
from ottla.client.accumulator import Accumulator, Bytes
from ottla.client.batches import Batch, Delivery
from ottla.client.errors import AlreadyClosed, BufferExhausted, MetadataTimedOut
from ottla.client.network import Network, monotonic_ms
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.partitioner import Partitioner
from ottla.client.sender import Sender

Serializer = Callable[[Any], bytes | None]
Headers = Sequence[tuple[str, bytes | None]]
BYTES_LIKE = (bytes, bytearray, memoryview)


class Producer:
    """Sends records. Settings are those of `ProducerOptions`, as keyword arguments; belongs to the loop in which it was started.

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
        self._rng = rng or Random()
        self._accumulator = Accumulator(self.options, self._rng)
        switch_bytes = min(self.options.batch_size, self.options.max_request_size)
        self._partitioner = Partitioner(switch_bytes=switch_bytes, rng=self._rng)
        self._network: Network | None = None
        self._sender: Sender | None = None
        self._room: asyncio.Event | None = None
        self._closed = False

    # -- life

    async def start(self) -> Self:
        """Begin to send; `send()` and `async with` do it too. No broker is contacted yet."""
        self._begin()
        return self

    def _begin(self) -> Sender:
        if self._closed:
            raise AlreadyClosed("the producer is closed")
        if self._sender is None:
            self._network = Network(self.options, rng=self._rng)
            self._sender = Sender(self._network, self._accumulator, self.options, nullcontext())
            self._room = asyncio.Event()
            self._sender.settled = self._room.set
        return self._sender

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Send what waits, and wait until every record sent so far has its outcome. Raises: TimeoutError."""
        sender = self._begin()
        waiting = self._accumulator.close_open()
        sender.wake()
        await all_done(waiting, timeout_ms)

    async def close(self, timeout_ms: float | None = None) -> None:
        """Wait for the outcome of what was sent, at most `timeout_ms`; what has none by then fails. Closing twice is no error."""
        if self._closed:
            return
        sender, network = self._sender, self._network
        if sender is None or network is None:
            self._closed = True
            return
        try:
            await self.flush(timeout_ms)
        except TimeoutError:
            pass
        finally:
            self._closed = True
            sender.close()
            self._accumulator.abandon(AlreadyClosed("the producer was closed before the record was acknowledged"))
            self._accumulator.tell()
            sender.settled()
            await network.close()

    # -- records

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Put a record on its way; await the `Delivery` to know where it was written.

        Without a partition, the key decides, as in Java's client; without a key, any partition. The time is now unless given.

        Raises: MetadataTimedOut, BufferExhausted, MessageTooLarge, TypeError; TopicAuthorizationFailed and the like when the topic cannot
        be had.
        """
        sender = self._begin()
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        check_bytes(key, value)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        count = sender.network.cluster.partition_count(topic)
        if count is None or (partition is not None and not 0 <= partition < count):
            count = await partitions_of(sender.network, topic, partition, self.options.max_block_ms)
        if partition is None:
            partition = self._partitioner.partition(topic, key, 0 if value is None else len(value), count)
        record = (topic, partition, timestamp_ms, key, value, headers or ())
        added = self._accumulator.add(*record)
        if added is not None:
            return Delivery(added[0], added[1], timestamp_ms)
        batch = self._accumulator.begin(*record, sender.network.clock_ms())
        if batch is None:
            batch, index = await self._when_room(lambda: self._attempt(record))
        else:
            index = 0
        sender.wake()
        # Give the sender its turn at each new batch; else a loop of sends fills the memory before anything leaves.
        await asyncio.sleep(0)
        return Delivery(batch, index, timestamp_ms)

    def _attempt(self, record: tuple[str, int, int, Any, Any, Headers]) -> tuple[Batch, int] | None:
        added = self._accumulator.add(*record)
        if added is not None:
            return added
        batch = self._accumulator.begin(*record, monotonic_ms())
        return None if batch is None else (batch, 0)

    async def send_batch(self, topic: str, partition: int, batch: Bytes) -> Delivery:
        """Put an encoded record batch (format v2, one batch, compressed or not) on its way, behind what was sent to the partition before.

        The `Delivery` is that of its first record. A bytearray is taken over and stamped in place with the producer's numbers; anything
        else is copied. Records are not looked at: keys, times and partitions are as the batch has them.

        Raises: what `send` raises; ValueError when it is not exactly one batch.
        """
        sender = self._begin()
        network = sender.network
        count = network.cluster.partition_count(topic)
        if count is None or not 0 <= partition < count:
            await partitions_of(network, topic, partition, self.options.max_block_ms)
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        made = self._accumulator.append_batch(topic, partition, data, network.clock_ms())
        if made is None:
            made = await self._when_room(lambda: self._accumulator.append_batch(topic, partition, data, network.clock_ms()))
        sender.wake()
        return Delivery(made, 0, int.from_bytes(data[27:35], "big", signed=True))

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises: MetadataTimedOut."""
        count = await partitions_of(self._begin().network, topic, None, self.options.max_block_ms)
        return [TopicPartition(topic, partition) for partition in range(count)]

    async def _when_room(self, append: Callable[[], Any]) -> Any:
        assert self._room is not None and self._sender is not None, "send starts the producer"
        limit_ms = self.options.max_block_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                while True:
                    self._room.clear()
                    self._sender.wake()
                    await self._room.wait()
                    if self._closed:
                        raise AlreadyClosed("the producer is closed")
                    added = append()
                    if added is not None:
                        return added
        except TimeoutError:
            raise buffer_exhausted(self._accumulator, self.options) from None


def check_bytes(key: Any, value: Any) -> None:
    """Raises: TypeError, with the remedy, when one is neither bytes-like nor None."""
    for name, given in (("value", value), ("key", key)):
        if given is not None and not isinstance(given, BYTES_LIKE):
            remedy = f"give the producer a {name}_serializer (str.encode for text)"
            raise TypeError(f"{name} must be bytes or None, not {type(given).__name__}; {remedy}")


async def partitions_of(network: Network, topic: str, partition: int | None, timeout_ms: float) -> int:
    """Wait until the topic's partitions are known, and enough of them. Raises: MetadataTimedOut, or the error that makes it pointless."""

    def known() -> int | None:
        count = network.cluster.partition_count(topic)
        fatal = network.cluster.fatal(topic) or network.cluster.deleted(topic, None, network.clock_ms())
        if count is None and fatal is not None:
            raise fatal
        return count if count is not None and (partition is None or partition < count) else None

    if partition is not None and partition < 0:
        raise ValueError(f"partition {partition}: partitions count from 0")
    network.cluster.want(topic, network.clock_ms())
    return await network.until(known, timeout_ms=timeout_ms, doing=lambda: network.cluster.why_not(topic, partition))


def buffer_exhausted(accumulator: Accumulator, options: ProducerOptions) -> BufferExhausted:
    """What to tell who waited in vain for memory."""
    oldest = accumulator.oldest()
    why = f"; {oldest.topic}-{oldest.partition} waits longest" if oldest else ""
    last = f", its last error: {oldest.last_error}" if oldest and oldest.last_error else ""
    return BufferExhausted(
        f"no room for the record within {options.max_block_ms} ms: {accumulator.used_bytes} of {options.buffer_memory} bytes"
        f" (buffer_memory) wait to be acknowledged{why}{last}"
    )


async def all_done(batches: list[Batch], timeout_ms: float | None) -> None:
    """Wait until every batch has its outcome. Raises: TimeoutError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            for batch in batches:
                if not batch.told:
                    future: asyncio.Future[None] = loop.create_future()
                    batch.when_done(lambda future=future: None if future.done() else future.set_result(None))  # type: ignore[misc]
                    await future
    except TimeoutError:
        left = sum(not batch.done for batch in batches)
        raise TimeoutError(f"{left} batches have no outcome after {timeout_ms:.0f} ms") from None


__all__ = ["MetadataTimedOut", "Producer"]
