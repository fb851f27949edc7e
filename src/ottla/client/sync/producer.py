"""The blocking producer, for code without an event loop; its loop runs in a thread of its own. `sync_consumer` and `sync_admin` are the
others.

`send()` does not go through that thread. Nearly every record only has to be put into an open batch, which is one call of compiled code;
what that does not do is done under a lock, and the sender is woken only when it has something new to do. Everything else is carried over
to the loop and waited for, which Ctrl-C interrupts.

Any thread may use a producer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from random import Random
from time import time_ns
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import checked, topic_name
from ottla.client.errors import AlreadyClosed
from ottla.client.interceptors import ProducerRecord
from ottla.client.options import ProducerOptions, from_keywords
from ottla.client.producer.accumulator import Accumulator, Bytes
from ottla.client.producer.batches import BlockingDelivery, DeliveryCallback, ProducerBatch
from ottla.client.producer.producer import Headers, buffer_exhausted, log_lost_records, partitions_of, wait_for_batches
from ottla.client.producer.record_preparation import RecordPreparation, no_fast_path, plain_bytes, plain_headers, plain_place, plain_time
from ottla.client.producer.sender import Sender
from ottla.client.sync.loop_thread import FORKED, Forked, LoopThread, close_at_exit, tell_of_forks
from ottla.client.sync.waiting import taken
from ottla.client.transport.network import Network, monotonic_ms
from ottla.records import NATIVE

if TYPE_CHECKING:
    from ottla.client.arrow.rows import TableColumns
    from ottla.client.arrow.send import BlockingTableDelivery

T = TypeVar("T")
#: Threads that wait for memory are woken when no more than this share of it is taken ...
FULL_SHARE = 0.875
#: ... or when there has been any for so long.
FULL_MS = 5


@checked("send_batch", "partitions_for", "flush", "close")
class Producer:
    """Sends records. Settings are those of `ProducerOptions`, as keyword arguments.

    Raises: ConfigError for a setting that is unknown or makes no sense.
    """

    def __init__(
        self,
        *,
        key_serializer: Any = None,
        value_serializer: Any = None,
        partitioner: Any = "default",
        interceptors: Iterable[Any] = (),
        rng: Random | None = None,
        **settings: Any,
    ) -> None:
        self.options = from_keywords(ProducerOptions, settings)
        rng = rng or Random()
        self._preparation = RecordPreparation(
            self.options,
            rng,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            interceptors=interceptors,
        )
        self._choice = self._preparation.choice
        self._lock: threading.Lock | Forked = threading.Lock()
        #: Under the lock: who waits for memory, and hears of it when batches got their outcome.
        self._waiting: list[SimpleQueue[None]] = []
        self._accumulator = Accumulator(self.options, rng, give=BlockingDelivery, clock_ns=time_ns)
        #: Puts a record that needs nothing but a place in an open batch; gives None where there is more to do.
        self._at_once: Callable[..., BlockingDelivery | None] = no_fast_path
        if NATIVE and self._choice is None:
            self._at_once = self._accumulator.open.put
        #: The same where the record is as the user gave it.
        self._fast_path: Callable[..., BlockingDelivery | None] = self._at_once if self._preparation.is_passthrough else no_fast_path
        self._closed = False
        self._forked = False
        self._waking = False
        self._telling: asyncio.TimerHandle | None = None
        self._thread = LoopThread("ottla-producer")
        self._network, self._sender = self._thread.run(lambda: self._begin(rng))
        close_at_exit(self)
        tell_of_forks(self)

    def _begin(self, rng: Random) -> tuple[Network, Sender]:
        network = Network(self.options, rng=rng)
        sender = Sender(network, self._accumulator, self.options, self._lock)
        sender.on_finished = self._tell_waiting
        return network, sender

    def _tell_waiting(self) -> None:
        """Wake those who wait for memory, once there is enough of it to be worth a change of threads, or after a moment."""
        if not self._sender.metrics.waiting_threads:
            return
        used = self._accumulator.used_bytes
        if used <= self.options.buffer_memory * FULL_SHARE:
            self._tell_now()
        elif used < self.options.buffer_memory and self._telling is None:
            self._telling = self._thread.loop.call_later(FULL_MS / 1000, self._tell_now)

    def _tell_now(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        with self._lock:
            self._tell_all()

    def _tell_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._sender.metrics.waiting_threads = 0
        for bell in waiting:
            bell.put(None)

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._thread.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        # Cleared before the step looks: whoever adds a record from now on wakes it again.
        self._waking = False
        self._sender.wake()

    def __enter__(self) -> Self:
        if self._closed:
            raise AlreadyClosed("the producer is closed; make another one")
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
        on_delivery: DeliveryCallback | None = None,
    ) -> BlockingDelivery:
        """Put a record on its way; `.result()` of what it returns waits until the record is written and tells where.

        Without a partition, the key decides, as in Java's client; without a key, any partition. The time is now unless given.
        `on_delivery(metadata, error)`, one of them None, is called with the outcome in the producer's own thread; it may send, and must not
        wait. Waits only for metadata of a topic not seen before, and while `buffer_memory` is full, at most `max_block_ms` together.

        Raises: MetadataTimedOut, BufferExhausted, MessageTooLarge, TypeError, ValueError; UnknownTopicOrPartition for a partition that is
        not there, TopicAuthorizationFailed and the like when the topic cannot be had; what serializers raise.
        """
        if on_delivery is None:
            try:
                delivery = self._fast_path(topic, value, key, headers, partition, timestamp_ms)
            except (TypeError, OverflowError):
                # What it was given is nothing for it; the long way says what.
                delivery = None
            if delivery is not None:
                return delivery
        elif not callable(on_delivery):
            raise TypeError(f"on_delivery is a function of (metadata, error), not {on_delivery!r}")
        return self._send(ProducerRecord(topic, value, key, headers, partition, timestamp_ms), on_delivery)

    def _send(self, record: ProducerRecord, on_delivery: DeliveryCallback | None) -> BlockingDelivery:
        """`send`, with everything that a record may need: the user's own parts, metadata, a new batch, memory."""
        preparation = self._preparation
        if not preparation.is_passthrough:
            record = preparation.prepare(record)
        delivery: BlockingDelivery | None
        try:
            delivery = self._at_once(record.topic, record.value, record.key, record.headers, record.partition, record.timestamp_ms)
        except (TypeError, OverflowError):
            # What it was given is nothing for it; the long way says what.
            delivery = None
        if delivery is None:
            try:
                delivery = self._put(record)
            except Exception as error:
                preparation.refused(record, error)
                raise
        preparation.add_callbacks(delivery, on_delivery)
        return delivery

    def _put(self, record: ProducerRecord) -> BlockingDelivery:
        topic, partition = plain_place(record.topic, record.partition)
        timestamp_ms = time_ns() // 1_000_000 if record.timestamp_ms is None else plain_time(record.timestamp_ms)
        value, key = plain_bytes("value", record.value), plain_bytes("key", record.key)
        headers = plain_headers(record.headers)
        info = self._network.cluster.topics.get(topic)
        left_ms: float = self.options.max_block_ms
        if info is None or (partition is not None and not 0 <= partition < len(info.partitions)):
            began_ms = monotonic_ms()
            self._thread.call(partitions_of(self._network, topic, partition, left_ms))
            info = self._network.cluster.topics[topic]
            waited_ms = monotonic_ms() - began_ms
            left_ms -= waited_ms
            self._sender.metrics.metadata_wait_ns += int(waited_ms * 1e6)
        if partition is None and self._choice is not None:
            partition = self._choice(topic, key, value, info)
        accumulator = self._accumulator

        def attempt() -> BlockingDelivery | None:
            # Another thread may have begun a batch meanwhile.
            added = accumulator.add(topic, partition, timestamp_ms, key, value, headers)
            return added or accumulator.begin(topic, partition, timestamp_ms, key, value, headers, monotonic_ms(), info)  # type: ignore[no-any-return]

        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed; make another one")
            given = attempt()
        if given is None:
            given = self._when_room(attempt, left_ms)
        if accumulator.closed_one or self._sender.next_step_ms > monotonic_ms() + self.options.linger_ms:
            self._wake()
        return given

    def send_batch(self, topic: str, partition: int, batch: Bytes) -> BlockingDelivery:
        """Put an encoded record batch (format v2, one batch, compressed or not) on its way, behind what was sent to the partition before.

        What it returns stands for the first record. A bytearray is taken over and stamped in place with the producer's numbers; anything
        else is copied. Records are not looked at: keys, times and partitions are as the batch has them.

        Raises: what `send` raises; ValueError when it is not exactly one batch.
        """
        self._partition_count(topic, partition)
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        return BlockingDelivery(self._place(topic, partition, data), 0, int.from_bytes(data[27:35], "big", signed=True))

    def send_table(self, topic: str, table: Any, **columns: Unpack[TableColumns]) -> BlockingTableDelivery:
        """Put the rows of an Arrow table on their way, column by column and without a Python object per row; `.result()` of what it
        returns waits until all are written and tells where.

        `table` is a pyarrow Table, RecordBatch or reader, or anything that gives Arrow data: polars, pandas, DuckDB. Its columns are named
        by `key=`, `value=` (default: all, as JSON), `headers=`, `partition=`, `timestamp_ms=`; `key_format=`, `value_format=` and `schema=`
        say how they become bytes (`client.arrow_rows`, `client.arrow_values`). Waits while `buffer_memory` is full, at most `max_block_ms`
        at a time. What it raises it raises before the row at fault; rows before it are on their way.

        Raises: ValueError, TypeError for columns that are not there or do not fit; SerializationFailed; ImportError without pyarrow; what
        `send` raises.
        """
        from ottla.client.arrow.rows import ANY, TableRows
        from ottla.client.arrow.send import BlockingTableDelivery, attach_delivery, batches_of_table

        rows = TableRows(table, now_ms=time_ns() // 1_000_000, **columns)
        count = self._partition_count(topic, rows.partition)
        delivery = BlockingTableDelivery(topic)
        with attach_delivery(delivery):
            for partition, data, part in batches_of_table(rows, count, *self._accumulator.batch_settings):
                delivery.add(self._place(topic, None if partition == ANY else partition, data), part)
        return delivery

    def _partition_count(self, topic: str, partition: int | None) -> int:
        """How many partitions the topic has, once it has this one. Raises: MetadataTimedOut."""
        known = self._network.cluster.partition_count(topic_name(topic))
        if known is None or (partition is not None and not 0 <= partition < known):
            known = self._thread.call(partitions_of(self._network, topic, partition, self.options.max_block_ms))
        return known

    def _place(self, topic: str, partition: int | None, data: bytearray) -> ProducerBatch:
        """Put an encoded batch behind those of its partition, or of any, when there is memory for it."""
        accumulator, info = self._accumulator, self._network.cluster.topics.get(topic)

        def attempt() -> ProducerBatch | None:
            return accumulator.append_batch(topic, partition, data, monotonic_ms(), info)

        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed; make another one")
            made = attempt()
        if made is None:
            made = self._when_room(attempt, self.options.max_block_ms)
        self._wake()
        return made

    def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions, in order. Raises: MetadataTimedOut."""
        count = self._thread.call(partitions_of(self._network, topic, None, self.options.max_block_ms))
        return [TopicPartition(topic, partition) for partition in range(count)]

    def numbered(self) -> tuple[int, int]:
        """The producer id and epoch under which batches are written from now on; asks the cluster for them before anything is sent.

        Every batch of an idempotent producer carries them, so that whoever keeps them can find in a log what was written, even by a
        process that did not live to hear of it. A partition's epoch goes up when its numbering starts over; what was written under the
        first one has no gaps. Raises: ValueError without idempotence; RequestTimedOut after `max_block_ms`; KafkaError.
        """
        if not self.options.enable_idempotence:
            raise ValueError("only an idempotent producer has a number: enable_idempotence is off")
        return self._thread.call(self._sender.ensure_producer_id(self.options.max_block_ms))

    def flush(self, timeout_ms: float | None = None) -> None:
        """Send what waits, and wait until every record sent so far has its outcome. Raises: TimeoutError; AlreadyClosed."""
        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed; make another one")
            waiting = self._accumulator.close_open()
        self._wake()
        began_ns = time.monotonic_ns()
        self._thread.call(wait_for_batches(waiting, timeout_ms))
        self._sender.metrics.flush_ns += time.monotonic_ns() - began_ns

    def close(self, timeout_ms: float | None = None) -> None:
        """Wait for the outcome of what was sent, at most `timeout_ms`; what has none by then fails. Closing twice is no error."""
        if self._forked:
            return
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
            self._preparation.close()

    async def _end(self, waiting: list[ProducerBatch], timeout_ms: float | None) -> None:
        try:
            await wait_for_batches(waiting, timeout_ms)
        except TimeoutError:
            pass
        finally:
            self._sender.close()
            log_lost_records(self._accumulator.incomplete(), "the producer was closed before they were acknowledged")
            with self._lock:
                self._accumulator.fail_all(AlreadyClosed("the producer was closed before the record was acknowledged"))
                self._tell_all()
            self._accumulator.notify_finished()
            await self._network.close()

    def metrics(self) -> dict[str, dict[str, float] | dict[str, dict[str, float]]]:
        """What the producer counts, under Kafka's names: `producer-metrics` by name, `producer-topic-metrics` and `producer-node-metrics`
        by topic and broker, then by name. Averages, maxima and rates are of the last minute; NaN where nothing was measured.
        """
        return self._sender.figures()

    def close_at_exit(self, timeout_ms: float) -> None:
        """Close at the end of the interpreter, and say what failed, since nobody will ask any more."""
        waiting = self._accumulator.incomplete()
        self.close(timeout_ms)
        failed = [batch for batch in waiting if batch.error is not None and not isinstance(batch.error, AlreadyClosed)]
        if failed:
            log_lost_records(failed, f"they failed while the interpreter ended: {failed[0].error}")

    def forked(self) -> None:
        """This is a child process now: nothing here will ever be sent."""
        self._forked = True
        self._at_once = self._fast_path = no_fast_path
        self._lock = Forked()
        self._accumulator.fail_silently(AlreadyClosed(FORKED))

    def _when_room(self, append: Callable[[], T | None], limit_ms: float) -> T:
        if self._thread.here:
            # Room is made by this very thread.
            limit_ms = 0
        began_ns = time.monotonic_ns()
        deadline = time.monotonic() + limit_ms / 1000
        metrics = self._sender.metrics
        try:
            while True:
                bell: SimpleQueue[None] = SimpleQueue()
                with self._lock:
                    if self._closed:
                        raise AlreadyClosed("the producer is closed; make another one")
                    added = append()
                    if added is not None:
                        return added
                    self._waiting.append(bell)
                    metrics.waiting_threads = len(self._waiting)
                self._wake()
                try:
                    taken(bell, max(deadline - time.monotonic(), 0))
                except Empty:
                    with self._lock:
                        self._waiting = [other for other in self._waiting if other is not bell]
                        metrics.waiting_threads = len(self._waiting)
                        metrics.buffer_exhausted += 1
                    raise buffer_exhausted(self._accumulator, self.options) from None
        finally:
            with self._lock:
                metrics.buffer_wait_ns += time.monotonic_ns() - began_ns
