"""Records to send and batches without an acknowledgement, by partition. Does no I/O: the sender drains batches and reports outcomes.

A `PartitionQueue` holds the batches of a partition, their order and their sequence numbers. The accumulator holds what partitions share:
the memory limit, the delivery timeout, and the order in which partitions are drained.

An outcome is set first; `notify_finished` calls the callbacks later, outside of the lock.

A transaction (`transactions.py`) sets `admit`, `added`, `batch_failed` and `stopped`: which records are accepted, which partitions may be
sent, and what follows from a failed batch. A producer without transactions leaves them as they are.

A batch that is too large for the broker is split in halves, which take its place (KIP-126), until it has a single record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from ottla.client.errors import DeliveryTimedOut
from ottla.client.options import ProducerOptions
from ottla.client.producer.batches import ProducerBatch
from ottla.client.producer.partition_queue import INVALID_EPOCH, OUT_OF_ORDER, UNKNOWN_PRODUCER, PartitionQueue
from ottla.client.producer.sticky_partitioning import NodeLatency, choose
from ottla.client.transport.backoff import Backoff
from ottla.client.transport.cluster import NO_NODE, TopicInfo
from ottla.records import partition_for_key
from ottla.records.batch import parse_header
from ottla.records.build import BatchBuilder
from ottla.records.codec import OpenBatches
from ottla.records.compression import Codec
from ottla.wire.errors import KafkaError, MessageTooLarge

DUPLICATE = 46
#: A broker knows the last five batches of a producer in a partition. It takes a repeated batch that is older for one out of order.
BATCHES_REMEMBERED = 5
CONCURRENT = 51
CONCURRENT_MS = 10
TOO_LARGE = MessageTooLarge.code
#: Approximate bytes of a record apart from key and value.
RECORD_OVERHEAD = 12
#: Upper estimate of the bytes of a produce request apart from its batches.
REQUEST_OVERHEAD = 512

Headers = Sequence[tuple[str, bytes | None]]
Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class Drained:
    """Batches to send, and the time of the next drain."""

    #: By node: at most one batch of each partition.
    requests: dict[int, list[ProducerBatch]] = field(default_factory=dict)
    #: Time at which the next batch becomes due.
    next_ms: float = float("inf")
    #: Partitions with batches and without a known leader.
    leaderless: list[tuple[str, int]] = field(default_factory=list)
    #: Partitions with batches that are not part of the transaction yet.
    to_add: list[tuple[str, int]] = field(default_factory=list)


class PlacedRecord(NamedTuple):
    """The batch and index of a record."""

    batch: ProducerBatch
    place: int
    timestamp_ms: int


def _always() -> None:
    """Accepts every record."""


def _ignore(batch: ProducerBatch, error: KafkaError) -> None:
    """A batch that fails concerns nobody else."""


def _no_clock() -> int:
    raise AssertionError("an accumulator without a clock needs a timestamp for each record")


class Accumulator:
    """`now_ms` is monotonic. Sizes are bytes before compression."""

    def __init__(
        self,
        options: ProducerOptions,
        rng: Random,
        *,
        give: Callable[[ProducerBatch, int, int], Any] = PlacedRecord,
        clock_ns: Callable[[], int] = _no_clock,
    ) -> None:
        self._options = options
        self._rng = rng
        self._buffer_memory = options.buffer_memory
        #: The open batches of all queues, shared by all threads. A batch is removed from it before it is closed.
        self.open = OpenBatches(options.buffer_memory, give, clock_ns, options.partitioner_ignore_keys)
        self._make_delivery = give
        self._batch_size = min(options.batch_size, options.max_request_size)
        self._backlog_size = min(max(options.batch_size_backlog, options.batch_size), options.max_request_size)
        self._codec, self._level = _codec(options)
        self._partitions: dict[tuple[str, int], PartitionQueue] = {}
        self._topics: set[str] = set()
        #: Partitions with something to send.
        self._active: dict[tuple[str, int], PartitionQueue] = {}
        #: Batches without an outcome, oldest first.
        self._incomplete: dict[ProducerBatch, None] = {}
        #: Called before a batch begins. Raises: why no record is accepted now.
        self.admit: Callable[[], None] = _always
        #: Partitions whose batches may be sent; None for all.
        self.added: set[tuple[str, int]] | None = None
        #: Called for each batch that fails for good, with the lock held.
        self.batch_failed: Callable[[ProducerBatch, KafkaError], None] = _ignore
        #: Why no batch is sent: the transaction failed. The sender fails waiting batches with it.
        self.stopped: KafkaError | None = None
        #: (id, epoch) of the producer; None until a broker assigned them.
        self.producer: tuple[int, int] | None = None
        #: A batch was closed since the last drain.
        self.closed_one = False
        #: How many batches were split.
        self.splits = 0
        self._latency = NodeLatency(options.partitioner_availability_timeout_ms)
        #: Finished batches whose callbacks were not called yet.
        self._finished: list[ProducerBatch] = []

    # -- filling

    @property
    def used_bytes(self) -> int:
        """Bytes of all incomplete batches; may exceed the limit by one record."""
        return self.open.used

    def add(
        self, topic: str, partition: int | None, timestamp_ms: int | None, key: bytes | None, value: bytes | None, headers: Headers
    ) -> Any:
        """Add a record to the open batch of its partition and return the result of `give`. None if no open batch has room: call `begin`.

        Without a partition, the key selects it; without a key, sticky partitioning does.
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
        """Close the partition's open batch and start one with this record, and return the result of `give`. None while the memory is full.

        A record without a key may move to another partition's open batch.

        Raises: MessageTooLarge when the record alone is larger than `max_request_size`; errors of `admit`.
        """
        self.admit()
        if self.used_bytes >= self._buffer_memory:
            return None
        self.open.resize(topic, len(info.partitions))
        keyless = partition is None and (key is None or self._options.partitioner_ignore_keys)
        if keyless and self._switch_partition(topic, info, len(key or b"") + len(value or b"") + RECORD_OVERHEAD):
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
                " raise it and the topic's max.message.bytes, or send smaller records"
            )
        if queue.open is not None:
            self._close(queue)
        batch = queue.open = ProducerBatch(topic, partition, builder, now_ms)
        batch.size = builder.size
        if keyless:
            self.open.spend(topic, batch.size)
        self._admit(queue, batch)
        given = self._make_delivery(batch, 0, timestamp_ms)
        self.open.open(topic, partition, builder, batch)
        return given

    def _switch_partition(self, topic: str, info: TopicInfo, size: int) -> bool:
        """Select another partition for a topic's records without a key, if the current one has had its share; True if selected."""
        here, left = self.open.stuck(topic)
        known = info.partitions
        if left > size and 0 <= here < len(known) and known[here].leader != NO_NODE:
            return False
        chosen = self.choose(topic, info)
        queue = self._partitions.get((topic, chosen))
        share = max(self._batch_size if queue is None else self._size_for(queue), 1)
        self.open.stick(topic, chosen, share, -share)
        return True

    def choose(self, topic: str, info: TopicInfo) -> int:
        """A random partition for records without a key (KIP-794)."""
        queues = self._partitions

        def waiting(partition: int) -> int:
            queue = queues.get((topic, partition))
            return 0 if queue is None else queue.waiting

        adaptive = self._options.partitioner_adaptive_partitioning_enable
        return choose(info, self._rng, waiting=waiting if adaptive else None, slow_nodes=self._latency.slow())

    @property
    def batch_settings(self) -> tuple[int, Codec, int | None]:
        """(size limit, codec, level) for batches that are encoded elsewhere. They come in bulk, so the backlog's size limit applies."""
        return self._backlog_size, self._codec, self._level

    def _size_for(self, queue: PartitionQueue) -> int:
        """Size limit of the next batch: larger if other batches are queued before it."""
        return self._backlog_size if len(queue.ready) + (queue.open is not None) > 1 else self._batch_size

    def update_metadata(self, topics: Mapping[str, TopicInfo]) -> None:
        """Apply new metadata to the topics in use."""
        for topic in self._topics:
            info = topics.get(topic)
            if info is None:
                self.open.forget(topic)
                continue
            self.open.resize(topic, len(info.partitions))
            here, _ = self.open.stuck(topic)
            if here >= 0 and info.partitions[here].leader == NO_NODE:
                self.open.stick(topic, -1, 0, 0)

    def append_batch(
        self, topic: str, partition: int | None, data: bytearray, now_ms: float, info: TopicInfo | None = None
    ) -> ProducerBatch | None:
        """Append an encoded batch to its partition's queue; its producer id and sequence are set in place. None while the memory is full.

        Without a partition, a random one is selected.

        Raises: MessageTooLarge; RecordsError when it is not one whole batch; errors of `admit`.
        """
        self.admit()
        header = parse_header(data)
        if header.size != len(data):
            raise ValueError(f"the batch header says {header.size} bytes, but there are {len(data)}")
        if len(data) > self._options.max_request_size:
            raise MessageTooLarge(f"a batch of {len(data)} bytes for {topic} is larger than max_request_size")
        if self.used_bytes >= self._buffer_memory:
            return None
        if partition is None:
            # Without metadata the topic may be deleted; the sender then fails the batch.
            partition = 0 if info is None else self.choose(topic, info)
        queue = self._partitions.get((topic, partition)) or self._queue(topic, partition)
        if queue.open is not None:
            self._close(queue)
        batch = ProducerBatch(topic, partition, None, now_ms)
        batch.data, batch.size, batch.count = data, len(data), header.last_offset_delta + 1
        queue.ready.append(batch)
        self.closed_one = True
        self._admit(queue, batch)
        return batch

    def close_open(self) -> list[ProducerBatch]:
        """Close every open batch, so that it is sent without lingering; returns all incomplete batches."""
        for queue in self._active.values():
            if queue.open is not None:
                self._close(queue)
        return list(self._incomplete)

    def _queue(self, topic: str, partition: int) -> PartitionQueue:
        backoff = Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms, self._rng)
        self._topics.add(topic)
        made = self._partitions[topic, partition] = PartitionQueue(topic, partition, backoff, bool(self._options.transactional_id))
        return made

    def _admit(self, queue: PartitionQueue, batch: ProducerBatch) -> None:
        self.open.charge(batch.size)
        self._incomplete[batch] = None
        self._active[queue.topic, queue.partition] = queue

    def _close(self, queue: PartitionQueue) -> None:
        self.open.shut(queue.topic, queue.partition)
        queue.close_open()
        self.closed_one = True

    # -- draining

    def drain(self, now_ms: float, leader: Callable[[str, int], int | None], ready: Callable[[int], bool]) -> Drained:
        """Batches to send now, by leader; they are in flight afterwards. `ready`: whether a node can take a request."""
        drained = Drained()
        if self.stopped is not None or (self._options.enable_idempotence and self.producer is None):
            return drained
        self.closed_one = False
        sizes: dict[int, int] = {}
        nodes: dict[int, bool] = {}
        for key, queue in list(self._active.items()):
            if self.added is not None and key not in self.added:
                # Added at once, also while the batch lingers.
                drained.to_add.append(key)
                continue
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
                # The partition goes into the next request: the sender drains until nothing is left.
                continue
            batch = self._take(queue)
            if batch is None:
                # The epochs of the producer id are used up; all partitions wait for a new id.
                return drained
            sizes[node] = sizes.get(node, 0) + size
            drained.requests.setdefault(node, []).append(batch)
            # The partition moves to the end, so that no partition starves.
            del self._active[key]
            if not queue.idle:
                self._active[key] = queue
        return drained

    def _due_ms(self, queue: PartitionQueue, now_ms: float) -> float:
        """When this partition may send; +inf while it waits for responses."""
        if queue.in_flight and (queue.retries or queue.renew or (self._options.enable_idempotence and not queue.confirmed)):
            return float("inf")
        if self._options.enable_idempotence and len(queue.in_flight) >= BATCHES_REMEMBERED:
            # The limit of requests is one of a connection: after a change of the leader there may be requests on two of them.
            return float("inf")
        due_ms = queue.blocked_until_ms
        if not queue.retries and not queue.ready and queue.open is not None and self.used_bytes < self._buffer_memory:
            if queue.open.size_now >= self._batch_size:
                # It was allowed to exceed batch_size because other batches were queued; they are sent.
                return due_ms
            due_ms = max(due_ms, queue.open.created_ms + self._options.linger_ms)
        return due_ms

    def _take(self, queue: PartitionQueue) -> ProducerBatch | None:
        """Move the next batch into flight, numbered; None when a new producer id is needed first."""
        if self._options.enable_idempotence:
            assert self.producer is not None, "drain waits for a producer id"
            if not queue.prepare_numbers(self.producer):
                self.producer = None
                return None
        if queue.open is not None and not queue.retries and not queue.ready:
            self._close(queue)
        return queue.take()

    # -- outcomes

    def succeeded(self, batch: ProducerBatch, base_offset: int, append_time_ms: int = -1) -> None:
        """The broker acknowledged the batch."""
        queue = self._remove_in_flight(batch)
        queue.acknowledged(batch)
        self._finish(batch, None, base_offset, append_time_ms)

    def failed(self, batch: ProducerBatch, error: KafkaError, now_ms: float) -> bool:
        """The batch was refused or got no response. True if it will be sent again."""
        if error.code == DUPLICATE:
            self.succeeded(batch, -1)
            return False
        queue = self._remove_in_flight(batch)
        batch.last_error = error
        if error.code == TOO_LARGE and not batch.done and self._split(queue, batch):
            return True
        again = error.retriable
        if self._options.enable_idempotence and error.code in (OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_EPOCH):
            again = queue.renumber(batch, error.code)
        if again and batch.attempts <= self._options.retries and not batch.done and self.stopped is None:
            queue.retry(batch)
            self._active[queue.topic, queue.partition] = queue
            pause_ms = queue.backoff.failed()
            # The markers of the transaction before are written within milliseconds.
            queue.blocked_until_ms = now_ms + (min(pause_ms, CONCURRENT_MS) if error.code == CONCURRENT else pause_ms)
            return True
        self._give_up(queue, batch, error)
        return False

    def fail_all(self, error: KafkaError) -> None:
        """Fail all incomplete batches. Those in flight keep their place until their response."""
        for queue in self._partitions.values():
            for batch in self._unsent(queue):
                self._give_up(queue, batch, error)
            for batch in queue.in_flight:
                self._finish(batch, error)
        self._active.clear()

    def fail_unsent(self, error: KafkaError) -> None:
        """Fail all batches but those in flight, which get their outcome from the response."""
        for queue in list(self._active.values()):
            for batch in self._unsent(queue):
                self._give_up(queue, batch, error)
        self._active.clear()

    def fail_silently(self, error: KafkaError) -> None:
        """Fail all incomplete batches without callbacks. After a fork, the parent process sends them."""
        for batch in self._incomplete:
            batch.finish(error=error)
            batch.notified = True

    def fail_topic(self, topic: str, error: KafkaError, *, partition: int | None = None) -> None:
        """Fail the unsent batches of a topic, or of one partition."""
        self.open.forget(topic)
        for key, queue in list(self._active.items()):
            if queue.topic == topic and partition in (None, queue.partition):
                for batch in self._unsent(queue):
                    self._give_up(queue, batch, error)
                del self._active[key]

    def expire(self, now_ms: float, trouble: Callable[[str, int], str | None] = lambda topic, partition: None) -> float:
        """Fail batches older than the delivery timeout; returns when the next one expires. Expired batches in flight keep their place
        until their response. `trouble`: why a partition's leader cannot be reached.
        """
        limit_ms = self._options.delivery_timeout_ms
        while (batch := self.oldest()) is not None:
            if batch.created_ms + limit_ms > now_ms:
                return batch.created_ms + limit_ms
            queue = self._partitions[batch.topic, batch.partition]
            error = self._expired(batch, trouble(batch.topic, batch.partition))
            if batch in queue.in_flight:
                self._finish(batch, error)
                self.batch_failed(batch, error)
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

    def notify_finished(self) -> list[ProducerBatch]:
        """Call the callbacks of batches that finished since the last call; returns these batches. Callbacks may send, so the caller must
        not hold the lock.
        """
        finished, self._finished = self._finished, []
        for batch in finished:
            batch.notify()
        return finished

    def incomplete(self) -> list[ProducerBatch]:
        """Batches without an outcome, oldest first."""
        return list(self._incomplete)

    @property
    def empty(self) -> bool:
        """No batch is incomplete."""
        return not self._incomplete

    def oldest(self) -> ProducerBatch | None:
        """The oldest incomplete batch."""
        return next(iter(self._incomplete), None)

    def _remove_in_flight(self, batch: ProducerBatch) -> PartitionQueue:
        queue = self._partitions[batch.topic, batch.partition]
        queue.in_flight.remove(batch)
        if not queue.idle:
            self._active[queue.topic, queue.partition] = queue
        return queue

    def _split(self, queue: PartitionQueue, batch: ProducerBatch) -> bool:
        """Replace a batch by its halves, with its sequence numbers; False if it has a single record."""
        parts = batch.split(self._codec, self._level)
        if not parts:
            return False
        waiting: dict[ProducerBatch, None] = {}
        for old in self._incomplete:
            # The halves have the age of the batch, so the order by age is kept.
            waiting.update(dict.fromkeys(parts) if old is batch else {old: None})
        self._incomplete = waiting
        self.open.charge(sum(part.size for part in parts) - batch.size)
        for part in parts:
            queue.retry(part)
        self._active[queue.topic, queue.partition] = queue
        self.splits += 1
        return True

    def _unsent(self, queue: PartitionQueue) -> list[ProducerBatch]:
        """Remove all unsent batches, in order."""
        if queue.open is not None:
            self._close(queue)
        return queue.unsent()

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: KafkaError) -> None:
        queue.abandoned(batch)
        self._finish(batch, error)
        self.batch_failed(batch, error)

    def _finish(self, batch: ProducerBatch, error: KafkaError | None, base_offset: int = -1, append_time_ms: int = -1) -> None:
        if batch in self._incomplete:
            del self._incomplete[batch]
            self.open.charge(-batch.size)
        if batch.finish(base_offset=base_offset, append_time_ms=append_time_ms, error=error):
            self._finished.append(batch)

    def _expired(self, batch: ProducerBatch, trouble: str | None) -> DeliveryTimedOut:
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
