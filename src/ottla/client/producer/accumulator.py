"""The accumulator: batches to send and to be acknowledged, by partition. Pure: the sender drains batches and reports outcomes.

A `PartitionQueue` has the batches of a partition, their order and sequence numbers. The accumulator has what they share: memory, delivery
timeout, and fairness.

Outcomes are set here, and reported to users separately, by `tell`.

A batch that the broker finds too large is split into halves (KIP-126), down to a single record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from ottla.client.errors import DeliveryTimedOut
from ottla.client.options import ProducerOptions
from ottla.client.producer.batches import Batch
from ottla.client.producer.partition_queue import INVALID_EPOCH, OUT_OF_ORDER, UNKNOWN_PRODUCER, PartitionQueue
from ottla.client.producer.sticky_partitioning import NodeLatency, choose
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.cluster import NOBODY, TopicInfo
from ottla.records import partition_for_key
from ottla.records.batch import parse_header
from ottla.records.build import BatchBuilder
from ottla.records.codec import OpenBatches
from ottla.records.compression import Codec
from ottla.wire.errors import KafkaError, MessageTooLarge

DUPLICATE = 46
TOO_LARGE = MessageTooLarge.code
#: Approximate size of a record in addition to key and value.
RECORD_OVERHEAD = 12
#: Upper bound of a produce request without its batches.
REQUEST_OVERHEAD = 512

Headers = Sequence[tuple[str, bytes | None]]
Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class Drained:
    """Batches to send now, and the time of the next drain."""

    #: By node: at most one batch of each partition.
    requests: dict[int, list[Batch]] = field(default_factory=dict)
    #: Time of the next drain without other events.
    next_ms: float = float("inf")
    #: Partitions with batches and without a leader.
    leaderless: list[tuple[str, int]] = field(default_factory=list)


class Placed(NamedTuple):
    """The place of a record."""

    batch: Batch
    place: int
    timestamp_ms: int


def _no_clock() -> int:
    raise AssertionError("whoever gives an accumulator no clock gives its records their times")


class Accumulator:
    """All batches of a producer. `now_ms` is monotonic; all bytes are before compression."""

    def __init__(
        self,
        options: ProducerOptions,
        rng: Random,
        *,
        give: Callable[[Batch, int, int], Any] = Placed,
        clock_ns: Callable[[], int] = _no_clock,
    ) -> None:
        self._options = options
        self._rng = rng
        self._buffer_memory = options.buffer_memory
        #: Open batches of all queues, accessible from every thread; a batch is removed before anything else is done with it.
        self.open = OpenBatches(options.buffer_memory, give, clock_ns, options.partitioner_ignore_keys)
        self._give = give
        self._batch_size = min(options.batch_size, options.max_request_size)
        self._backlog_size = min(max(options.batch_size_backlog, options.batch_size), options.max_request_size)
        self._codec, self._level = _codec(options)
        self._partitions: dict[tuple[str, int], PartitionQueue] = {}
        self._topics: set[str] = set()
        #: Partitions with batches to send.
        self._active: dict[tuple[str, int], PartitionQueue] = {}
        #: Batches without an outcome, oldest first.
        self._incomplete: dict[Batch, None] = {}
        #: (id, epoch) of the producer; None while a new one is needed.
        self.producer: tuple[int, int] | None = None
        #: A batch became ready since the last drain.
        self.closed_one = False
        #: Number of splits.
        self.splits = 0
        self._latency = NodeLatency(options.partitioner_availability_timeout_ms)
        #: Batches with an outcome that was not reported yet.
        self._finished: list[Batch] = []

    # -- Filling.

    @property
    def used_bytes(self) -> int:
        """Bytes of all incomplete batches; may exceed the limit by one record."""
        return self.open.used

    def add(
        self, topic: str, partition: int | None, timestamp_ms: int | None, key: bytes | None, value: bytes | None, headers: Headers
    ) -> Any:
        """Adds a record to the open batch of its partition; returns the result of `give` for its place, or None if no batch has room: then
        use `begin`. Without a partition, the key decides, or sticky partitioning.
        """
        return self.open.put(topic, value, key, headers, partition, timestamp_ms)

    def begin(
        self,
        topic: str,
        partition: int | None,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        now_ms: float,
        info: TopicInfo,
    ) -> Any:
        """Closes the partition's open batch and begins one with this record, unless another batch has room; returns the result of `give`
        for its place. None while memory is full.

        Raises: MessageTooLarge if the record exceeds `max_request_size`.
        """
        if self.used_bytes >= self._buffer_memory:
            return None
        self.open.resize(topic, len(info.partitions))
        keyless = partition is None and (key is None or self._options.partitioner_ignore_keys)
        if keyless and self._move(topic, info, len(key or b"") + len(value or b"") + RECORD_OVERHEAD):
            added = self.add(topic, None, timestamp_ms, key, value, headers)
            if added is not None:
                return added
        if partition is None:
            partition = self.open.stuck(topic)[0] if keyless else partition_for_key(key or b"", len(info.partitions))
        queue = self._partitions.get((topic, partition)) or self._queue(topic, partition)
        builder = BatchBuilder(codec=self._codec, level=self._level, size_max=self._size_for(queue))
        builder.append(timestamp_ms, key, value, headers)
        if builder.size > self._options.max_request_size:
            raise MessageTooLarge(
                f"a record of {builder.size} bytes for {topic} is larger than max_request_size ({self._options.max_request_size});"
                " raise that, and max.message.bytes of the topic, or send less at a time"
            )
        if queue.open is not None:
            self._close(queue)
        batch = queue.open = Batch(topic, partition, builder, now_ms)
        batch.size = builder.size
        if keyless:
            self.open.spend(topic, batch.size)
        self._admit(queue, batch)
        given = self._give(batch, 0, timestamp_ms)
        self.open.open(topic, partition, builder, batch)
        return given

    def _move(self, topic: str, info: TopicInfo, size: int) -> bool:
        """Changes the sticky partition of a topic if it is time; returns whether it changed."""
        here, left = self.open.stuck(topic)
        known = info.partitions
        if left > size and 0 <= here < len(known) and known[here].leader != NOBODY:
            return False
        chosen = self.choose(topic, info)
        queue = self._partitions.get((topic, chosen))
        share = max(self._batch_size if queue is None else self._size_for(queue), 1)
        self.open.stick(topic, chosen, share, -share)
        return True

    def choose(self, topic: str, info: TopicInfo) -> int:
        """The sticky partition for records without a key."""
        queues = self._partitions

        def waiting(partition: int) -> int:
            queue = queues.get((topic, partition))
            return 0 if queue is None else queue.waiting

        adaptive = self._options.partitioner_adaptive_partitioning_enable
        return choose(info, self._rng, waiting=waiting if adaptive else None, slow_nodes=self._latency.slow())

    @property
    def form(self) -> tuple[int, Codec, int | None]:
        """Parameters of batches that are encoded elsewhere: (maximum bytes, codec, level). They come in large numbers, so they are as
        large as those of a backlog.
        """
        return self._backlog_size, self._codec, self._level

    def _size_for(self, queue: PartitionQueue) -> int:
        """Maximum size of the next batch: larger if it has to wait for others."""
        return self._backlog_size if len(queue.ready) + (queue.open is not None) > 1 else self._batch_size

    def learned(self, topics: Mapping[str, TopicInfo]) -> None:
        """Adopts new metadata of topics in use."""
        for topic in self._topics:
            info = topics.get(topic)
            if info is None:
                self.open.forget(topic)
                continue
            self.open.resize(topic, len(info.partitions))
            here, _ = self.open.stuck(topic)
            if here >= 0 and info.partitions[here].leader == NOBODY:
                self.open.stick(topic, -1, 0, 0)

    def append_batch(
        self, topic: str, partition: int | None, data: bytearray, now_ms: float, info: TopicInfo | None = None
    ) -> Batch | None:
        """Adds an encoded batch; the producer's sequence numbers are written into it, in place. None while memory is full.

        Without a partition, a random one is used if metadata is known.

        Raises: MessageTooLarge; RecordsError if it is not exactly one batch.
        """
        header = parse_header(data)
        if header.size != len(data):
            raise ValueError(f"the batch says it has {header.size} bytes, given are {len(data)}")
        if len(data) > self._options.max_request_size:
            raise MessageTooLarge(f"a batch of {len(data)} bytes for {topic} is larger than max_request_size")
        if self.used_bytes >= self._buffer_memory:
            return None
        if partition is None:
            # If the topic was deleted, the sender finds out.
            partition = 0 if info is None else self.choose(topic, info)
        queue = self._partitions.get((topic, partition)) or self._queue(topic, partition)
        if queue.open is not None:
            self._close(queue)
        batch = Batch(topic, partition, None, now_ms)
        batch.data, batch.size, batch.count = data, len(data), header.last_offset_delta + 1
        queue.ready.append(batch)
        self.closed_one = True
        self._admit(queue, batch)
        return batch

    def close_open(self) -> list[Batch]:
        """Closes every open batch; returns all batches without an outcome."""
        for queue in self._active.values():
            if queue.open is not None:
                self._close(queue)
        return list(self._incomplete)

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        backoff = Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms, self._rng)
        self._topics.add(topic)
        made = self._partitions[topic, partition] = PartitionQueue(topic, partition, backoff)
        return made

    def _admit(self, queue: PartitionQueue, batch: Batch) -> None:
        self.open.charge(batch.size)
        self._incomplete[batch] = None
        self._active[queue.topic, queue.partition] = queue

    def _close(self, queue: PartitionQueue) -> None:
        self.open.shut(queue.topic, queue.partition)
        queue.close_open()
        self.closed_one = True

    # -- Draining.

    def drain(self, now_ms: float, leader: Callable[[str, int], int | None], ready: Callable[[int], bool]) -> Drained:
        """Batches to send now; they are then in flight. `ready`: whether a node can take a request."""
        drained = Drained()
        if self._options.enable_idempotence and self.producer is None:
            return drained
        self.closed_one = False
        sizes: dict[int, int] = {}
        nodes: dict[int, bool] = {}
        for key, queue in list(self._active.items()):
            due_ms = self._due_ms(queue, now_ms)
            if due_ms > now_ms:
                drained.next_ms = min(drained.next_ms, due_ms)
                continue
            node = leader(queue.topic, queue.partition)
            if node is None:
                drained.leaderless.append(key)
                continue
            if node not in nodes:
                nodes[node] = took = ready(node)
                self._latency.asked(node, now_ms, took=took)
            if not nodes[node]:
                continue
            size = queue.first().size_now + REQUEST_OVERHEAD
            if node in sizes and sizes[node] + size > self._options.max_request_size:
                # The rest is in the next request; the sender drains until nothing is left.
                continue
            batch = self._take(queue)
            if batch is None:
                # A new producer id is needed; everything waits for it.
                return drained
            sizes[node] = sizes.get(node, 0) + size
            drained.requests.setdefault(node, []).append(batch)
            # The partition moves to the end of the row, so that none starves.
            del self._active[key]
            if not queue.idle:
                self._active[key] = queue
        return drained

    def _due_ms(self, queue: PartitionQueue, now_ms: float) -> float:
        """When this partition may send; +inf while it waits for responses."""
        if queue.in_flight and (queue.retries or queue.renew or (self._options.enable_idempotence and not queue.confirmed)):
            return float("inf")
        due_ms = queue.blocked_until_ms
        if not queue.retries and not queue.ready and queue.open is not None and self.used_bytes < self._buffer_memory:
            if queue.open.size_now >= self._batch_size:
                # It was allowed to grow because others waited; they are gone.
                return due_ms
            due_ms = max(due_ms, queue.open.created_ms + self._options.linger_ms)
        return due_ms

    def _take(self, queue: PartitionQueue) -> Batch | None:
        """Moves the next batch into flight with a sequence number; None if a new producer id is needed first."""
        if self._options.enable_idempotence:
            assert self.producer is not None, "drain waits for a producer id"
            if not queue.prepare_numbers(self.producer):
                self.producer = None
                return None
        if queue.open is not None and not queue.retries and not queue.ready:
            self._close(queue)
        return queue.take()

    # -- Outcomes.

    def succeeded(self, batch: Batch, base_offset: int, append_time_ms: int = -1) -> None:
        """The broker acknowledged the batch."""
        queue = self._landed(batch)
        queue.acknowledged(batch)
        self._settle(batch, None, base_offset, append_time_ms)

    def failed(self, batch: Batch, error: KafkaError, now_ms: float) -> bool:
        """The broker refused the batch, or did not answer. True if it will be sent again."""
        if error.code == DUPLICATE:
            self.succeeded(batch, -1)
            return False
        queue = self._landed(batch)
        batch.last_error = error
        if error.code == TOO_LARGE and not batch.done and self._split(queue, batch):
            return True
        again = error.retriable
        if self._options.enable_idempotence and error.code in (OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_EPOCH):
            again = queue.renumber(batch, error.code)
        if again and batch.attempts <= self._options.retries and not batch.done:
            queue.again(batch)
            self._active[queue.topic, queue.partition] = queue
            queue.blocked_until_ms = now_ms + queue.backoff.failed()
            return True
        self._give_up(queue, batch, error)
        return False

    def abandon(self, error: KafkaError) -> None:
        """Fails all batches; those in flight stay until they are answered."""
        for queue in self._partitions.values():
            for batch in self._unsent(queue):
                self._give_up(queue, batch, error)
            for batch in queue.in_flight:
                self._settle(batch, error)
        self._active.clear()

    def forget(self, error: KafkaError) -> None:
        """Fails all batches without callbacks, in a forked process: the parent sends them."""
        for batch in self._incomplete:
            batch.finish(error=error)
            batch.told = True

    def refuse(self, topic: str, error: KafkaError, *, partition: int | None = None) -> None:
        """Fails batches of a topic or partition that is not available."""
        self.open.forget(topic)
        for key, queue in list(self._active.items()):
            if queue.topic == topic and partition in (None, queue.partition):
                for batch in self._unsent(queue):
                    self._give_up(queue, batch, error)
                del self._active[key]

    def expire(self, now_ms: float, trouble: Callable[[str, int], str | None] = lambda topic, partition: None) -> float:
        """Fails batches older than the delivery timeout; returns the time of the next one. Batches in flight get their outcome too, and
        keep their place until they are answered. `trouble` returns the problem of a partition's leader.
        """
        limit_ms = self._options.delivery_timeout_ms
        while (batch := self.oldest()) is not None:
            if batch.created_ms + limit_ms > now_ms:
                return batch.created_ms + limit_ms
            queue = self._partitions[batch.topic, batch.partition]
            error = self._expired(batch, trouble(batch.topic, batch.partition))
            if batch in queue.in_flight:
                self._settle(batch, error)
                continue
            if batch is queue.open:
                self._close(queue)
            if batch in queue.retries:
                queue.retries.remove(batch)
            else:
                queue.ready.remove(batch)
            if queue.idle:
                del self._active[queue.topic, queue.partition]
            self._give_up(queue, batch, error)
        return float("inf")

    def tell(self) -> list[Batch]:
        """Reports outcomes since the last call; returns these batches. Must not be called under the lock, because callbacks may send."""
        finished, self._finished = self._finished, []
        for batch in finished:
            batch.tell()
        return finished

    def incomplete(self) -> list[Batch]:
        """Batches without an outcome, oldest first."""
        return list(self._incomplete)

    @property
    def empty(self) -> bool:
        """Whether every batch has an outcome."""
        return not self._incomplete

    def oldest(self) -> Batch | None:
        """The oldest batch without an outcome."""
        return next(iter(self._incomplete), None)

    def _landed(self, batch: Batch) -> PartitionQueue:
        queue = self._partitions[batch.topic, batch.partition]
        queue.in_flight.remove(batch)
        if not queue.idle:
            self._active[queue.topic, queue.partition] = queue
        return queue

    def _split(self, queue: PartitionQueue, batch: Batch) -> bool:
        """Replaces a batch with its halves, under its sequence numbers; False if it cannot be split."""
        parts = batch.split(self._codec, self._level)
        if not parts:
            return False
        waiting: dict[Batch, None] = {}
        for old in self._incomplete:
            # The parts have the age of the batch: the first to expire stay in front.
            waiting.update(dict.fromkeys(parts) if old is batch else {old: None})
        self._incomplete = waiting
        self.open.charge(sum(part.size for part in parts) - batch.size)
        for part in parts:
            queue.again(part)
        self._active[queue.topic, queue.partition] = queue
        self.splits += 1
        return True

    def _unsent(self, queue: PartitionQueue) -> list[Batch]:
        """Removes all waiting batches, in order."""
        if queue.open is not None:
            self._close(queue)
        return queue.unsent()

    def _give_up(self, queue: PartitionQueue, batch: Batch, error: KafkaError) -> None:
        queue.gave_up(batch)
        self._settle(batch, error)

    def _settle(self, batch: Batch, error: KafkaError | None, base_offset: int = -1, append_time_ms: int = -1) -> None:
        if batch in self._incomplete:
            del self._incomplete[batch]
            self.open.charge(-batch.size)
        if batch.finish(base_offset=base_offset, append_time_ms=append_time_ms, error=error):
            self._finished.append(batch)

    def _expired(self, batch: Batch, trouble: str | None) -> DeliveryTimedOut:
        tried = f"sent {batch.attempts} times" if batch.attempts else "never sent"
        why = f"; last: {batch.last_error}" if batch.last_error else f": {trouble}" if trouble else ""
        count = batch.builder.count if batch.builder is not None else batch.count
        return DeliveryTimedOut(
            f"{count} records for {batch.topic}-{batch.partition} were not acknowledged within {self._options.delivery_timeout_ms} ms,"
            f" {tried}{why}"
        )


def _codec(options: ProducerOptions) -> tuple[Codec, int | None]:
    match options.compression_type:
        case "gzip":
            return Codec.GZIP, None if options.compression_gzip_level < 0 else options.compression_gzip_level
        case "snappy":
            return Codec.SNAPPY, None
        case "lz4":
            return Codec.LZ4, options.compression_lz4_level
        case "zstd":
            return Codec.ZSTD, options.compression_zstd_level
        case _:
            return Codec.NONE, None
