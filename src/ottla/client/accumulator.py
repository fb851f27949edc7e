"""Records waiting to be sent and batches waiting to be acknowledged, by partition. Pure: the sender asks what to send and tells what came
of it.

One partition's batches, oldest first:

    retries         in flight        ready            open
    sent, failed    sent, no answer  closed, unsent   being filled
    [b3 b4]         [b5]             [b6 b7]          b8

A batch gets its number when it is first sent. When one fails and may be tried again, nothing more is sent to that partition until every
batch in flight is answered; then the retries go first, in order of their numbers, one at a time. So a partition's records are written in
order, also without idempotence as long as no more than one request is in flight.

**Idempotence.** The broker takes a batch only if its number follows the last one it has, and answers a repeat as if it were new (it
remembers five). A broken connection is therefore harmless: all that was in flight is sent again under the same numbers. When a batch is
given up (it was refused for good, or `delivery_timeout_ms` is over) its number leaves a *hole* that may or may not be filled at the
broker. What follows is sent under its old numbers. If it is taken, the hole was filled. If it is refused as out of order, the hole is
real, so nothing behind it was written either: once nothing is in flight, the producer epoch of this partition goes up by one, and all
waiting batches are numbered again from 0. A refusal without a hole before it means that the broker lost what it had acknowledged; that
batch fails with the broker's error, and the numbering starts over.

The first batch under a producer id and epoch travels alone: a broker that does not know the producer takes any number as its first, so if
the second batch overtook a first that was refused, the order would be lost for good.

Raising the epoch is free: a broker accepts it from whoever knows the id (KIP-360). After epoch 32767 a new producer id is needed.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from ottla.client.backoff import Backoff
from ottla.client.batches import NOT_NUMBERED, Batch
from ottla.client.errors import DeliveryTimedOut
from ottla.client.options import ProducerOptions
from ottla.records.batch import parse_header
from ottla.records.build import BatchBuilder
from ottla.records.compression import Codec
from ottla.wire.errors import KafkaError, MessageTooLarge

OUT_OF_ORDER = 45
DUPLICATE = 46
INVALID_EPOCH = 47
UNKNOWN_PRODUCER = 59
EPOCH_MAX = 32767
#: What a produce request holds beside its batches, generously.
REQUEST_OVERHEAD = 512

Headers = Sequence[tuple[str, bytes | None]]
Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class _Partition:
    """The queue of one partition, and its place in the numbering."""

    topic: str
    partition: int
    backoff: Backoff
    open: Batch | None = None
    ready: deque[Batch] = field(default_factory=deque)
    #: Ordered by number, like in_flight. Not empty: nothing new is sent.
    retries: list[Batch] = field(default_factory=list)
    in_flight: list[Batch] = field(default_factory=list)
    #: -1: the producer's own is to be taken, with its epoch.
    producer_id: int = -1
    epoch: int = -1
    next_sequence: int = 0
    #: Numbers of batches that were given up and that no later success has proved written; ascending.
    holes: list[int] = field(default_factory=list)
    #: A batch under this producer id and epoch was acknowledged.
    confirmed: bool = False
    #: Number from 0 again, under the next epoch, as soon as nothing is in flight.
    renew: bool = False
    #: Nothing is sent before, after a failure.
    blocked_until_ms: float = float("-inf")

    @property
    def idle(self) -> bool:
        """Nothing to send."""
        return self.open is None and not self.ready and not self.retries


@dataclass(slots=True)
class Drained:
    """What to send now, and when to ask again."""

    #: By node: at most one batch of each partition.
    requests: dict[int, list[Batch]] = field(default_factory=dict)
    #: Time at which something may become due if nothing else happens.
    next_ms: float = float("inf")
    #: Partitions with something to send and nobody to send it to.
    leaderless: list[tuple[str, int]] = field(default_factory=list)


class Accumulator:
    """See the module. `now_ms` is monotonic; all bytes are before compression."""

    def __init__(self, options: ProducerOptions, rng: Random) -> None:
        self._options = options
        self._rng = rng
        self._buffer_memory = options.buffer_memory
        self._batch_size = min(options.batch_size, options.max_request_size)
        self._codec, self._level = _codec(options)
        self._partitions: dict[tuple[str, int], _Partition] = {}
        #: Partitions with something to send.
        self._active: dict[tuple[str, int], _Partition] = {}
        #: Batches without an outcome, oldest first.
        self._incomplete: dict[Batch, None] = {}
        #: (id, epoch) of the producer; None while it has none and needs one.
        self.producer: tuple[int, int] | None = None
        #: Bytes of all incomplete batches; may pass the limit by one record.
        self.used_bytes = 0
        self.closed_one = False

    # -- filling

    def add(
        self, topic: str, partition: int, timestamp_ms: int, key: Bytes | None, value: Bytes | None, headers: Headers
    ) -> tuple[Batch, int] | None:
        """Add a record to the partition's open batch: (the batch, its index there). None when none has room for it: then `begin` one."""
        queue = self._partitions.get((topic, partition))
        if queue is None or (batch := queue.open) is None or self.used_bytes >= self._buffer_memory:
            return None
        builder = batch.builder
        index = builder.append(timestamp_ms, key, value, headers)  # type: ignore[union-attr]
        if index is None:
            return None
        size = builder.size  # type: ignore[union-attr]
        self.used_bytes += size - batch.size
        batch.size = size
        return batch, index

    def begin(
        self, topic: str, partition: int, timestamp_ms: int, key: Bytes | None, value: Bytes | None, headers: Headers, now_ms: float
    ) -> Batch | None:
        """Close the partition's open batch, if any, and begin one with this record. None while the memory is full.

        Raises: MessageTooLarge when the record alone is larger than `max_request_size`.
        """
        if self.used_bytes >= self._buffer_memory:
            return None
        queue = self._partitions.get((topic, partition)) or self._queue(topic, partition)
        builder = BatchBuilder(codec=self._codec, level=self._level, size_max=self._batch_size)
        builder.append(timestamp_ms, key, value, headers)
        if builder.size > self._options.max_request_size:
            raise MessageTooLarge(
                f"a record of {builder.size} bytes for {topic} is larger than max_request_size ({self._options.max_request_size})"
            )
        if queue.open is not None:
            self._close(queue)
        batch = queue.open = Batch(topic, partition, builder, now_ms)
        batch.size = builder.size
        self._admit(queue, batch)
        return batch

    def append_batch(self, topic: str, partition: int, data: bytearray, now_ms: float) -> Batch | None:
        """Add an encoded batch behind what is there; it is stamped with this producer's numbers, in place. None while the memory is full.

        Raises: MessageTooLarge; RecordsError when it is not one whole batch.
        """
        header = parse_header(data)
        if header.size != len(data):
            raise ValueError(f"the batch says it has {header.size} bytes, given are {len(data)}")
        if len(data) > self._options.max_request_size:
            raise MessageTooLarge(f"a batch of {len(data)} bytes for {topic} is larger than max_request_size")
        if self.used_bytes >= self._buffer_memory:
            return None
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
        """Close every open batch, so that it does not wait for more records; gives all batches without an outcome."""
        for queue in self._active.values():
            if queue.open is not None:
                self._close(queue)
        return list(self._incomplete)

    def _queue(self, topic: str, partition: int) -> _Partition:
        backoff = Backoff(self._options.retry_backoff_ms, self._options.retry_backoff_max_ms, self._rng)
        made = self._partitions[topic, partition] = _Partition(topic, partition, backoff)
        return made

    def _admit(self, queue: _Partition, batch: Batch) -> None:
        self.used_bytes += batch.size
        self._incomplete[batch] = None
        self._active[queue.topic, queue.partition] = queue

    def _close(self, queue: _Partition) -> None:
        batch = queue.open
        assert batch is not None and batch.builder is not None, "only an open batch is closed"
        batch.count = batch.builder.count
        queue.ready.append(batch)
        queue.open = None
        self.closed_one = True

    # -- draining

    def drain(self, now_ms: float, leader: Callable[[str, int], int | None], ready: Callable[[int], bool]) -> Drained:
        """What may be sent now to whom; batches handed out are in flight. `ready` says whether a node can take a request."""
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
                nodes[node] = ready(node)
            if not nodes[node]:
                continue
            size = self._first(queue).size + REQUEST_OVERHEAD
            if node in sizes and sizes[node] + size > self._options.max_request_size:
                # The rest takes the next request; the sender drains until nothing comes.
                continue
            batch = self._take(queue)
            if batch is None:
                # The producer id ran out; everybody waits for a new one.
                return drained
            sizes[node] = sizes.get(node, 0) + size
            drained.requests.setdefault(node, []).append(batch)
            # The partition goes to the end of the row, so that none is starved by those before it.
            del self._active[key]
            if not queue.idle:
                self._active[key] = queue
        return drained

    def _due_ms(self, queue: _Partition, now_ms: float) -> float:
        """When this partition may send; +inf while it waits for answers."""
        if queue.in_flight and (queue.retries or queue.renew or (self._options.enable_idempotence and not queue.confirmed)):
            return float("inf")
        due_ms = queue.blocked_until_ms
        if not queue.retries and not queue.ready and queue.open is not None and self.used_bytes < self._buffer_memory:
            due_ms = max(due_ms, queue.open.created_ms + self._options.linger_ms)
        return due_ms

    def _first(self, queue: _Partition) -> Batch:
        batch = queue.retries[0] if queue.retries else queue.ready[0] if queue.ready else queue.open
        assert batch is not None, "an active partition has something to send"
        return batch

    def _take(self, queue: _Partition) -> Batch | None:
        """Move the next batch into flight, numbered."""
        if self._options.enable_idempotence and not self._prepare_numbers(queue):
            return None
        if queue.retries:
            batch = queue.retries.pop(0)
        else:
            if not queue.ready:
                self._close(queue)
            batch = queue.ready.popleft()
            self._number(queue, batch)
        batch.attempts += 1
        queue.in_flight.append(batch)
        return batch

    def _number(self, queue: _Partition, batch: Batch) -> None:
        batch.number(queue.producer_id, queue.epoch, queue.next_sequence)
        queue.next_sequence += batch.count

    def _prepare_numbers(self, queue: _Partition) -> bool:
        """Start the numbering, or start it over; False when a new producer id is needed first."""
        if queue.renew:
            assert not queue.in_flight, "numbers change only while nothing is in flight"
            if queue.epoch >= EPOCH_MAX:
                if self.producer is not None and self.producer[0] == queue.producer_id:
                    self.producer = None
                    return False
                queue.producer_id = -1
            else:
                queue.epoch += 1
        if queue.producer_id == -1:
            assert self.producer is not None, "drain waits for a producer id"
            queue.producer_id, queue.epoch = self.producer
        elif not queue.renew:
            return True
        queue.renew = queue.confirmed = False
        queue.next_sequence = 0
        queue.holes.clear()
        for batch in queue.retries:
            self._number(queue, batch)
        return True

    # -- outcomes

    def succeeded(self, batch: Batch, base_offset: int, append_time_ms: int = -1) -> None:
        """The broker has it."""
        queue = self._landed(batch)
        queue.confirmed = True
        queue.holes = [hole for hole in queue.holes if hole > batch.sequence]
        if not queue.retries:
            queue.backoff.succeeded()
        self._settle(batch, None, base_offset, append_time_ms)

    def failed(self, batch: Batch, error: KafkaError, now_ms: float) -> bool:
        """The broker refused it, or no answer came. True if it will be sent again."""
        if error.code == DUPLICATE:
            self.succeeded(batch, -1)
            return False
        queue = self._landed(batch)
        batch.last_error = error
        again = error.retriable
        if self._options.enable_idempotence and error.code in (OUT_OF_ORDER, UNKNOWN_PRODUCER, INVALID_EPOCH):
            again = self._renumber(queue, batch, error.code)
        if again and batch.attempts <= self._options.retries and not batch.done:
            insort(queue.retries, batch, key=lambda waiting: waiting.sequence)
            self._active[queue.topic, queue.partition] = queue
            queue.blocked_until_ms = now_ms + queue.backoff.failed()
            return True
        self._give_up(queue, batch, error)
        return False

    def abandon(self, error: KafkaError) -> None:
        """Give up everything that has no outcome; what is in flight stays so until it is answered."""
        for queue in self._partitions.values():
            if queue.open is not None:
                self._close(queue)
            for batch in [*queue.retries, *queue.ready]:
                self._give_up(queue, batch, error)
            queue.retries.clear()
            queue.ready.clear()
            for batch in queue.in_flight:
                self._settle(batch, error)
        self._active.clear()

    def refuse(self, topic: str, error: KafkaError, *, partition: int | None = None) -> None:
        """Give up what waits for a topic, or one partition of it, that cannot be had."""
        for key, queue in list(self._active.items()):
            if queue.topic == topic and partition in (None, queue.partition):
                if queue.open is not None:
                    self._close(queue)
                for batch in [*queue.retries, *queue.ready]:
                    self._give_up(queue, batch, error)
                queue.retries.clear()
                queue.ready.clear()
                del self._active[key]

    def expire(self, now_ms: float) -> float:
        """Give up what is too old; gives the time of the next one. Batches in flight get their outcome too, and keep their place until
        they are answered.
        """
        limit_ms = self._options.delivery_timeout_ms
        while (batch := self.oldest()) is not None:
            if batch.created_ms + limit_ms > now_ms:
                return batch.created_ms + limit_ms
            queue = self._partitions[batch.topic, batch.partition]
            error = self._expired(batch)
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

    @property
    def empty(self) -> bool:
        """Every batch has its outcome."""
        return not self._incomplete

    def oldest(self) -> Batch | None:
        """The batch that waits longest for its outcome."""
        return next(iter(self._incomplete), None)

    def _landed(self, batch: Batch) -> _Partition:
        queue = self._partitions[batch.topic, batch.partition]
        queue.in_flight.remove(batch)
        if not queue.idle:
            self._active[queue.topic, queue.partition] = queue
        return queue

    def _renumber(self, queue: _Partition, batch: Batch, code: int) -> bool:
        """Whether a batch that does not fit the broker's numbering can be sent again, perhaps under new numbers."""
        if any(earlier.sequence < batch.sequence for earlier in [*queue.in_flight, *queue.retries]):
            return True
        queue.renew = True
        return code == UNKNOWN_PRODUCER or any(hole < batch.sequence for hole in queue.holes)

    def _give_up(self, queue: _Partition, batch: Batch, error: KafkaError) -> None:
        if batch.sequence != NOT_NUMBERED:
            insort(queue.holes, batch.sequence)
        self._settle(batch, error)

    def _settle(self, batch: Batch, error: KafkaError | None, base_offset: int = -1, append_time_ms: int = -1) -> None:
        if batch in self._incomplete:
            del self._incomplete[batch]
            self.used_bytes -= batch.size
        batch.finish(base_offset=base_offset, append_time_ms=append_time_ms, error=error)

    def _expired(self, batch: Batch) -> DeliveryTimedOut:
        tried = f"sent {batch.attempts} times" if batch.attempts else "never sent"
        why = f"; last: {batch.last_error}" if batch.last_error else ""
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
