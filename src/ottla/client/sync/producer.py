"""The blocking producer, for code without an event loop. Its loop runs in a thread of its own.

`send()` does not use that thread. Most records are only added to an open batch, which is one call of compiled code. Everything else is
done under a lock, and the sender is woken only when it has something new to do. Other calls run on the loop, and the caller waits; Ctrl-C
interrupts the wait.

Any thread may use a producer.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from queue import Empty, SimpleQueue
from random import Random
from time import time_ns
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from ottla.base.ids import TopicPartition
from ottla.client.argument_validation import checked, topic_name
from ottla.client.arrow.rows import ANY, TableColumns, TableRows
from ottla.client.arrow.send import BlockingTableDelivery, attach_delivery, batches_of_table
from ottla.client.errors import AlreadyClosed
from ottla.client.interceptors import ProducerRecord
from ottla.client.options import ProducerOptions
from ottla.client.producer.accumulator import Accumulator, Bytes
from ottla.client.producer.batches import BlockingDelivery, DeliveryCallback, ProducerBatch, wait_for_batches
from ottla.client.producer.producer import Headers, buffer_exhausted, identity_of, log_lost_records, no_transactional_id, partitions_of
from ottla.client.producer.record_preparation import RecordPreparation, no_fast_path, plain_bytes, plain_headers, plain_place, plain_time
from ottla.client.producer.sender import Sender
from ottla.client.producer.transactions import ProducerTransactions
from ottla.client.profiles import client_options
from ottla.client.settings import ProducerSettings
from ottla.client.sync.loop_thread import FORKED, Forked, LoopThread, close_at_exit, register_fork_handler
from ottla.client.sync.waiting import taken
from ottla.client.transport.network import Network, monotonic_ms
from ottla.records import NATIVE

P = ParamSpec("P")
T = TypeVar("T")
#: Threads that wait for memory are woken when at most this share of it is used,
FULL_SHARE = 0.875
#: or when some memory has been free for this time.
FULL_MS = 5


def _awaited(method: Callable[Concatenate[ProducerTransactions, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Producer, P], T]:
    """A coroutine of the producer's transactions: runs on the loop, and the caller waits for its result."""

    @wraps(method)
    def call(self: Producer, /, *arguments: P.args, **named: P.kwargs) -> T:
        transactions = self._transactional(method.__name__)
        return self._thread.call(method(transactions, *arguments, **named))

    return call


def _on_loop(method: Callable[Concatenate[ProducerTransactions, P], T]) -> Callable[Concatenate[Producer, P], T]:
    """A function of the producer's transactions: runs on the loop, and the caller waits for its result."""

    @wraps(method)
    def call(self: Producer, /, *arguments: P.args, **named: P.kwargs) -> T:
        transactions = self._transactional(method.__name__)
        return self._thread.run(lambda: method(transactions, *arguments, **named))

    return call


@checked("send_batch", "partitions_for", "flush", "close", "init_transactions", "send_offsets_to_transaction", "complete")
class Producer:
    """Sends records. Settings are keyword arguments of `ProducerOptions`.

    Raises: ConfigError for an unknown or contradictory setting.
    """

    def __init__(
        self,
        *,
        key_serializer: Any = None,
        value_serializer: Any = None,
        partitioner: Any = "default",
        interceptors: Iterable[Any] = (),
        rng: Random | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        self.options = client_options(ProducerOptions, settings)
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
        #: Under the lock: threads that wait for memory.
        self._waiting: list[SimpleQueue[None]] = []
        self._accumulator = Accumulator(self.options, rng, give=BlockingDelivery, clock_ns=time_ns)
        #: Adds a record to an open batch; returns None if more is needed.
        self._at_once: Callable[..., BlockingDelivery | None] = no_fast_path
        if NATIVE and self._choice is None:
            self._at_once = self._accumulator.open.put
        #: The same for a record that needs no preparation.
        self._fast_path: Callable[..., BlockingDelivery | None] = self._at_once if self._preparation.is_passthrough else no_fast_path
        self._closed = False
        self._forked = False
        self._waking = False
        self._wake_timer: asyncio.TimerHandle | None = None
        self._thread = LoopThread("ottla-producer")
        self._network, self._sender = self._thread.run(lambda: self._begin(rng))
        #: None without a transactional id.
        self._transactions = ProducerTransactions(self._sender, self.options) if self.options.transactional_id else None
        close_at_exit(self)
        register_fork_handler(self)

    def _begin(self, rng: Random) -> tuple[Network, Sender]:
        network = Network(self.options, rng=rng)
        sender = Sender(network, self._accumulator, self.options, self._lock)
        sender.on_finished = self._wake_waiting
        return network, sender

    def _transactional(self, call: str) -> ProducerTransactions:
        """Raises: ConfigError without a transactional id; AlreadyClosed."""
        if self._closed:
            raise AlreadyClosed("the producer is closed; make another one")
        if self._transactions is None:
            raise no_transactional_id(call)
        return self._transactions

    def _wake_waiting(self) -> None:
        """Wakes threads that wait for memory once enough is free to be worth a thread switch, or after FULL_MS."""
        if not self._sender.metrics.waiting_threads:
            return
        used = self._accumulator.used_bytes
        if used <= self.options.buffer_memory * FULL_SHARE:
            self._wake_now()
        elif used < self.options.buffer_memory and self._wake_timer is None:
            self._wake_timer = self._thread.loop.call_later(FULL_MS / 1000, self._wake_now)

    def _wake_now(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None
        with self._lock:
            self._wake_all()

    def _wake_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._sender.metrics.waiting_threads = 0
        for bell in waiting:
            bell.put(None)

    def _wake(self) -> None:
        if not self._waking:
            self._waking = True
            self._thread.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        # Cleared before the step: a record that is added from now on wakes the sender again.
        self._waking = False
        self._sender.wake()

    def __enter__(self) -> Self:
        if self._closed:
            raise AlreadyClosed("the producer is closed; make another one")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        # After an interrupt, closing must not wait for brokers that may have caused it.
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
        """Sends a record. `.result()` of the returned delivery waits for its `RecordMetadata`.

        Without a partition, the key selects it, as in Java's client; without a key, sticky partitioning. Default timestamp: now.
        `on_delivery(metadata, error)`, one of them None, is called with the outcome in the producer's thread; it may send, and must not
        block. Waits only for metadata of a new topic and while `buffer_memory` is full, at most `max_block_ms` in total.

        Raises: MetadataTimedOut, BufferExhausted, MessageTooLarge, TypeError, ValueError; UnknownTopicOrPartition for a partition that
        does not exist; TopicAuthorizationFailed and other errors of the topic; errors of serializers.

        Example: `producer.send("orders", b"3 apples", key=b"ann", headers=[("from", b"web")])`.
        """
        if on_delivery is None:
            try:
                delivery = self._fast_path(topic, value, key, headers, partition, timestamp_ms)
            except (TypeError, OverflowError):
                # The slow path names the invalid argument.
                delivery = None
            if delivery is not None:
                return delivery
        elif not callable(on_delivery):
            raise TypeError(f"on_delivery is a function of (metadata, error), not {on_delivery!r}")
        return self._send(ProducerRecord(topic, value, key, headers, partition, timestamp_ms), on_delivery)

    def _send(self, record: ProducerRecord, on_delivery: DeliveryCallback | None) -> BlockingDelivery:
        """The slow path of `send`: serializers, interceptors, metadata, a new batch, memory."""
        preparation = self._preparation
        if not preparation.is_passthrough:
            record = preparation.prepare(record)
        delivery: BlockingDelivery | None
        try:
            delivery = self._at_once(record.topic, record.value, record.key, record.headers, record.partition, record.timestamp_ms)
        except (TypeError, OverflowError):
            # The slow path names the invalid argument.
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
        self._accumulator.admit()
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
            # Another thread may have started a batch meanwhile.
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
        """Sends an encoded record batch (format v2, one batch, compressed or not), after the records sent to the partition before.

        The returned delivery is that of its first record. A bytearray is used in place, and the producer's numbers are written into it;
        other buffers are copied. Records are not examined: keys, timestamps and partitions are those of the batch.

        Raises: errors of `send`; ValueError if it is not exactly one batch.

        Example: `producer.send_batch("orders", 0, batch)`.
        """
        self._partition_count(topic, partition)
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        return BlockingDelivery(self._place(topic, partition, data), 0, int.from_bytes(data[27:35], "big", signed=True))

    def send_table(self, topic: str, table: Any, **columns: Unpack[TableColumns]) -> BlockingTableDelivery:
        """Sends the rows of an Arrow table, column by column, without a Python object per row. `.result()` of the returned delivery waits
        until all are written.

        `table` is a pyarrow Table, RecordBatch or reader, or any Arrow data: polars, pandas, DuckDB. `key=`, `value=` (default: all
        columns as JSON), `headers=`, `partition=` and `timestamp_ms=` name its columns; `key_format=`, `value_format=` and `schema=` set
        their encoding (`client.arrow.rows`, `client.arrow.values`). Waits while `buffer_memory` is full, at most `max_block_ms` at a time.
        An error is raised before the row that causes it; earlier rows are sent.

        Raises: ValueError, TypeError for missing or unsuitable columns; SerializationFailed; ImportError without pyarrow; errors of `send`.

        Example: `producer.send_table("orders", table, key="user", value="json")`.
        """
        rows = TableRows(table, now_ms=time_ns() // 1_000_000, **columns)
        count = self._partition_count(topic, rows.partition)
        delivery = BlockingTableDelivery(topic)
        with attach_delivery(delivery):
            for partition, data, part in batches_of_table(rows, count, *self._accumulator.batch_settings):
                delivery.add(self._place(topic, None if partition == ANY else partition, data), part)
        return delivery

    def _partition_count(self, topic: str, partition: int | None) -> int:
        """The number of partitions of the topic, once this partition exists. Raises: MetadataTimedOut."""
        self._accumulator.admit()
        known = self._network.cluster.partition_count(topic_name(topic))
        if known is None or (partition is not None and not 0 <= partition < known):
            known = self._thread.call(partitions_of(self._network, topic, partition, self.options.max_block_ms))
        return known

    def _place(self, topic: str, partition: int | None, data: bytearray) -> ProducerBatch:
        """Adds an encoded batch to its partition, or to any, when there is memory for it."""
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
        """The topic's partitions in order. Raises: MetadataTimedOut. Example: `producer.partitions_for("orders")`."""
        count = self._thread.call(partitions_of(self._network, topic, None, self.options.max_block_ms))
        return [TopicPartition(topic, partition) for partition in range(count)]

    @property
    def transactions(self) -> ProducerTransactions:
        """The state of the transactions, for internal use on the loop. Raises: ConfigError without a transactional id."""
        return self._transactional("transactions")

    init_transactions = _awaited(ProducerTransactions.init_transactions)
    begin = _on_loop(ProducerTransactions.begin)
    send_offsets_to_transaction = _awaited(ProducerTransactions.send_offsets_to_transaction)
    prepare = _awaited(ProducerTransactions.prepare)
    hand_over = _awaited(ProducerTransactions.hand_over)
    adopt = _on_loop(ProducerTransactions.adopt)
    commit = _awaited(ProducerTransactions.commit)
    abort = _awaited(ProducerTransactions.abort)
    complete = _awaited(ProducerTransactions.complete)

    @contextmanager
    def transaction(self) -> Iterator[Self]:
        """A transaction around a block: `with producer.transaction():` commits at the end, and aborts after an exception, which it raises
        again. Calls `init_transactions()` first if that was not done.

        Raises: errors of `init_transactions`, `begin` and `commit`; ProducerFenced.

        Example: `producer.transaction()`.
        """
        transactions = self._transactional("transaction")
        self._thread.call(transactions.enter())
        try:
            yield self
        except BaseException as error:
            self._thread.call(transactions.leave(error))
            raise
        self._thread.call(transactions.leave(None))

    def numbered(self) -> tuple[int, int]:
        """The producer id and epoch of the next batches; requests them from the cluster before anything is sent.

        Each batch of an idempotent producer has them, so the stored pair identifies in a log what this producer wrote, even if its process
        did not receive the responses. A partition's epoch increases when its sequence numbers start over; what was written in the first
        epoch has no gaps. Of a transactional producer: those of the present transaction, or of the next one.

        Raises: ValueError without idempotence; RequestTimedOut after `max_block_ms`; RuntimeError before `init_transactions()`; KafkaError.
        """
        return self._thread.call(identity_of(self._sender, self.options))

    def flush(self, timeout_ms: float | None = None) -> None:
        """Sends all buffered records and waits for their outcomes. Raises: TimeoutError; AlreadyClosed.

        Example: `producer.flush(timeout_ms=10_000)`.
        """
        with self._lock:
            if self._closed:
                raise AlreadyClosed("the producer is closed; make another one")
            waiting = self._accumulator.close_open()
        self._wake()
        began_ns = time.monotonic_ns()
        self._thread.call(wait_for_batches(waiting, timeout_ms))
        self._sender.metrics.flush_ns += time.monotonic_ns() - began_ns

    def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms`, then fails the remaining records and disconnects. An open transaction is aborted, unless it is
        prepared. Closing twice is allowed.

        Example: `producer.close(timeout_ms=10_000)`.
        """
        if self._forked:
            return
        if self._transactions is not None and not self._closed:
            self._thread.call(self._transactions.close(timeout_ms))
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
                self._wake_all()
            self._accumulator.notify_finished()
            await self._network.close()

    def metrics(self) -> dict[str, dict[str, float] | dict[str, dict[str, float]]]:
        """Metrics with Kafka's names: `producer-metrics` by name, `producer-topic-metrics` and `producer-node-metrics` by topic or broker,
        then by name. Averages, maxima and rates cover the last minute; NaN without samples.

        Example: `producer.metrics()`.
        """
        return self._sender.figures()

    def close_at_exit(self, timeout_ms: float) -> None:
        """Closes the producer at the end of the interpreter, and logs lost records."""
        waiting = self._accumulator.incomplete()
        self.close(timeout_ms)
        failed = [batch for batch in waiting if batch.error is not None and not isinstance(batch.error, AlreadyClosed)]
        if failed:
            log_lost_records(failed, f"they failed while the interpreter ended: {failed[0].error}")

    def forked(self) -> None:
        """Called in a child process after a fork: disables the producer."""
        self._forked = True
        self._at_once = self._fast_path = no_fast_path
        self._lock = Forked()
        self._accumulator.fail_silently(AlreadyClosed(FORKED))

    def _when_room(self, append: Callable[[], T | None], limit_ms: float) -> T:
        if self._thread.here:
            # This thread itself frees memory.
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
