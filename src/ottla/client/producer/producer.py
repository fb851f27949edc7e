"""The producer for asyncio: `send()` adds a record to the accumulator and returns a delivery; the sender sends batches.

    async with Producer(bootstrap_servers="127.0.0.1:9092") as producer:
        delivery = await producer.send("orders", b"value", key=b"key")   # is in a batch
        metadata = await delivery                                        # is written

`send()` waits for the metadata of a new topic, and while `buffer_memory` is full; at most `max_block_ms` in total.
"""

from __future__ import annotations

import asyncio
import logging
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, nullcontext
from functools import wraps
from random import Random
from time import monotonic_ns, time_ns
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack

from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.argument_validation import checked, topic_name, whole_number
from ottla.client.arrow.rows import ANY, TableColumns, TableRows
from ottla.client.arrow.send import TableDelivery, attach_delivery, batches_of_table
from ottla.client.errors import AlreadyClosed, BufferExhausted, MetadataTimedOut
from ottla.client.interceptors import ProducerRecord
from ottla.client.options import ProducerOptions
from ottla.client.producer.accumulator import Accumulator, Bytes
from ottla.client.producer.batches import Delivery, DeliveryCallback, ProducerBatch, wait_for_batches
from ottla.client.producer.record_preparation import RecordPreparation, no_fast_path, plain_bytes, plain_headers, plain_place, plain_time
from ottla.client.producer.sender import Sender
from ottla.client.producer.transactions import ProducerTransactions
from ottla.client.profiles import client_options
from ottla.client.settings import ProducerSettings
from ottla.client.sync.loop_thread import FORKED, register_fork_handler
from ottla.client.transport.event_loop import OneLoop
from ottla.client.transport.network import Network, monotonic_ms
from ottla.wire.errors import UnknownTopicOrPartition

#: How long brokers may have old metadata after partitions were added.
ADDED_MS = 500
Headers = Sequence[tuple[str, bytes | None]]
P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("ottla.client")


def _of_transactions(method: Callable[Concatenate[ProducerTransactions, P], T]) -> Callable[Concatenate[Producer, P], T]:
    """A method of the producer's transactions."""

    @wraps(method)
    def call(self: Producer, /, *arguments: P.args, **named: P.kwargs) -> T:
        return method(self._transactional(method.__name__), *arguments, **named)

    return call


@checked("send_batch", "partitions_for", "flush", "close", "init_transactions", "send_offsets_to_transaction", "complete")
class Producer:
    """Sends records. Settings are keyword arguments of `ProducerOptions`. Belongs to the event loop in which it was started.

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
        self._rng = rng or Random()
        self._preparation = RecordPreparation(
            self.options,
            self._rng,
            key_serializer=key_serializer,
            value_serializer=value_serializer,
            partitioner=partitioner,
            interceptors=interceptors,
        )
        self._choice = self._preparation.choice
        self._accumulator = Accumulator(self.options, self._rng, give=Delivery, clock_ns=time_ns)
        #: Adds a record to an open batch; None if the record needs more work.
        self._fast_path: Callable[..., Delivery | None] = self._accumulator.open.put
        if not self._preparation.is_passthrough or self._choice is not None:
            self._fast_path = no_fast_path
        self._network: Network | None = None
        self._sender: Sender | None = None
        #: None without a transactional id.
        self._transactions: ProducerTransactions | None = None
        self._room: asyncio.Event | None = None
        self._own = OneLoop("Producer")
        self._closed = False
        self._forked = False
        register_fork_handler(self)

    # Lifecycle.

    async def start(self) -> Self:
        """Starts the producer; `send()` and `async with` do it too. It does not connect yet."""
        self._begin()
        return self

    def _begin(self) -> Sender:
        if self._forked:
            raise RuntimeError(FORKED)
        if self._closed:
            raise AlreadyClosed("the producer is closed; make another one")
        self._own.check()
        if self._sender is None:
            self._network = Network(self.options, rng=self._rng)
            self._sender = Sender(self._network, self._accumulator, self.options, nullcontext())
            self._room = asyncio.Event()
            self._sender.on_finished = self._room.set
            if self.options.transactional_id:
                self._transactions = ProducerTransactions(self._sender, self.options)
        return self._sender

    def _transactional(self, call: str) -> ProducerTransactions:
        """Raises: ConfigError without a transactional id."""
        self._begin()
        if self._transactions is None:
            raise no_transactional_id(call)
        return self._transactions

    def forked(self) -> None:
        """Called in a child process after a fork: disables the producer."""
        self._forked = True
        self._fast_path = no_fast_path
        self._accumulator.fail_silently(AlreadyClosed(FORKED))

    def __del__(self) -> None:
        if not getattr(self, "_closed", True) and not self._forked and self._sender is not None:
            warnings.warn(f"a producer for {', '.join(self.options.bootstrap_servers)} was not closed", ResourceWarning, stacklevel=2)
            log_lost_records(self._accumulator.incomplete(), "its producer was thrown away without being closed")

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def flush(self, timeout_ms: float | None = None) -> None:
        """Sends all buffered records and waits for their outcomes. Raises: TimeoutError.

        Example: `await producer.flush(timeout_ms=10_000)`.
        """
        sender = self._begin()
        waiting = self._accumulator.close_open()
        sender.wake()
        began_ns = monotonic_ns()
        await wait_for_batches(waiting, timeout_ms)
        sender.metrics.flush_ns += monotonic_ns() - began_ns

    async def close(self, timeout_ms: float | None = None) -> None:
        """Flushes for at most `timeout_ms`, then fails the remaining records and disconnects. An open transaction is aborted, unless it is
        prepared. Closing twice is allowed.

        Example: `await producer.close(timeout_ms=10_000)`.
        """
        if self._closed or self._forked:
            return
        sender, network = self._sender, self._network
        if self._own.elsewhere():
            self._closed = True
            log_lost_records(self._accumulator.incomplete(), "the event loop of their producer is gone")
            raise self._own.wrong()
        if sender is None or network is None:
            self._closed = True
            self._preparation.close()
            return
        try:
            if self._transactions is not None:
                await self._transactions.close(timeout_ms)
            await self.flush(timeout_ms)
        except TimeoutError:
            pass
        finally:
            self._closed = True
            sender.close()
            log_lost_records(self._accumulator.incomplete(), "the producer was closed before they were acknowledged")
            self._accumulator.fail_all(AlreadyClosed("the producer was closed before the record was acknowledged"))
            self._accumulator.notify_finished()
            sender.on_finished()
            await network.close()
            self._preparation.close()

    # Transactions.

    @property
    def transactions(self) -> ProducerTransactions:
        """The state of the transactions, for internal use. Raises: ConfigError without a transactional id."""
        return self._transactional("transactions")

    init_transactions = _of_transactions(ProducerTransactions.init_transactions)
    begin = _of_transactions(ProducerTransactions.begin)
    send_offsets_to_transaction = _of_transactions(ProducerTransactions.send_offsets_to_transaction)
    prepare = _of_transactions(ProducerTransactions.prepare)
    hand_over = _of_transactions(ProducerTransactions.hand_over)
    adopt = _of_transactions(ProducerTransactions.adopt)
    commit = _of_transactions(ProducerTransactions.commit)
    abort = _of_transactions(ProducerTransactions.abort)
    complete = _of_transactions(ProducerTransactions.complete)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Self]:
        """A transaction around a block: `async with producer.transaction():` commits at the end, and aborts after an exception, which it
        raises again. Calls `init_transactions()` first if that was not done.

        Raises: errors of `init_transactions`, `begin` and `commit`; ProducerFenced.

        Example: `await producer.transaction()`.
        """
        transactions = self._transactional("transaction")
        await transactions.enter()
        try:
            yield self
        except BaseException as error:
            await transactions.leave(error)
            raise
        await transactions.leave(None)

    async def numbered(self) -> tuple[int, int]:
        """The producer id and epoch of the next batches, requested if there are none yet; of a transactional producer those of the present
        transaction, or of the next one.

        Raises: ValueError without idempotence; RequestTimedOut after `max_block_ms`; RuntimeError before `init_transactions()`; KafkaError.
        """
        return await identity_of(self._begin(), self.options)

    # Records.

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        on_delivery: DeliveryCallback | None = None,
    ) -> Delivery:
        """Sends a record; await the returned `Delivery` for its `RecordMetadata`.

        Without a partition, the key selects it, as in Java's client; without a key, sticky partitioning. Default timestamp: now.
        `on_delivery(metadata, error)`, one of them None, is called with the outcome.

        Raises: MetadataTimedOut, BufferExhausted, MessageTooLarge, TypeError, ValueError; UnknownTopicOrPartition for a partition that
        does not exist; TopicAuthorizationFailed and other errors of the topic; errors of serializers.

        Example: `await producer.send("orders", b"3 apples", key=b"ann", headers=[("from", b"web")])`.
        """
        # `_get_running_loop` returns None after a fork, where `get_running_loop` raises.
        if self._own.loop is not asyncio._get_running_loop():
            self._begin()
        if on_delivery is None:
            try:
                delivery = self._fast_path(topic, value, key, headers, partition, timestamp_ms)
            except (TypeError, OverflowError):
                # Invalid arguments; the slow path reports them.
                delivery = None
            if delivery is not None:
                return delivery
        elif not callable(on_delivery):
            raise TypeError(f"on_delivery is a function of (metadata, error), not {on_delivery!r}")
        record = self._preparation.prepare(ProducerRecord(topic, value, key, headers, partition, timestamp_ms))
        try:
            delivery = await self._put(record)
        except Exception as error:
            self._preparation.refused(record, error)
            raise
        self._preparation.add_callbacks(delivery, on_delivery)
        return delivery

    async def _put(self, record: ProducerRecord) -> Delivery:
        """Slow path: waits for metadata and memory, and starts a new batch if needed."""
        sender = self._begin()
        network = sender.network
        topic, partition = plain_place(record.topic, record.partition)
        timestamp_ms = time_ns() // 1_000_000 if record.timestamp_ms is None else plain_time(record.timestamp_ms)
        value, key = plain_bytes("value", record.value), plain_bytes("key", record.key)
        headers = plain_headers(record.headers)
        self._accumulator.admit()
        info = network.cluster.topics.get(topic)
        left_ms: float = self.options.max_block_ms
        if info is None or (partition is not None and not 0 <= partition < len(info.partitions)):
            began_ms = monotonic_ms()
            await partitions_of(network, topic, partition, left_ms)
            info = network.cluster.topics[topic]
            waited_ms = monotonic_ms() - began_ms
            left_ms -= waited_ms
            sender.metrics.metadata_wait_ns += int(waited_ms * 1e6)
        if partition is None and self._choice is not None:
            partition = self._choice(topic, key, value, info)
        accumulator = self._accumulator
        given: Delivery | None = accumulator.add(topic, partition, timestamp_ms, key, value, headers)
        if given is not None:
            return given

        def attempt() -> Delivery | None:
            added = accumulator.add(topic, partition, timestamp_ms, key, value, headers)
            return added or accumulator.begin(topic, partition, timestamp_ms, key, value, headers, network.clock_ms(), info)  # type: ignore[no-any-return]

        given = attempt()
        if given is None:
            given = await self._when_room(attempt, left_ms)
        sender.wake()
        # Yield to the sender at each new batch; else a loop of sends fills the memory before it runs.
        await asyncio.sleep(0)
        return given

    async def send_batch(self, topic: str, partition: int, batch: Bytes) -> Delivery:
        """Sends an encoded record batch (format v2, one batch, compressed or not), after the records sent to the partition before.

        The returned delivery is that of its first record. A bytearray is used in place, and the producer's numbers are written into it;
        other buffers are copied. Records are not examined: keys, timestamps and partitions are those of the batch.

        Raises: errors of `send`; ValueError if it is not exactly one batch.

        Example: `await producer.send_batch("orders", 0, batch)`.
        """
        await self._partition_count(topic, partition)
        data = batch if isinstance(batch, bytearray) else bytearray(batch)
        return Delivery(await self._place(topic, partition, data), 0, int.from_bytes(data[27:35], "big", signed=True))

    async def send_table(self, topic: str, table: Any, **columns: Unpack[TableColumns]) -> TableDelivery:
        """Sends the rows of an Arrow table, column by column, without a Python object per row. Await the returned delivery for the outcome.

        `table` is a pyarrow Table, RecordBatch or reader, or any Arrow data: polars, pandas, DuckDB. `key=`, `value=` (default: all
        columns as JSON), `headers=`, `partition=` and `timestamp_ms=` name its columns; `key_format=`, `value_format=` and `schema=` set
        their encoding (`client.arrow.rows`, `client.arrow.values`). Waits while `buffer_memory` is full, at most `max_block_ms` at a time.
        An error is raised before the row that causes it; earlier rows are sent.

        Raises: ValueError, TypeError for missing or unsuitable columns; SerializationFailed; ImportError without pyarrow; errors of `send`.

        Example: `await producer.send_table("orders", table, key="user", value="json")`.
        """
        rows = TableRows(table, now_ms=time_ns() // 1_000_000, **columns)
        count = await self._partition_count(topic, rows.partition)
        delivery = TableDelivery(topic)
        encoded = batches_of_table(rows, count, *self._accumulator.batch_settings)
        with attach_delivery(delivery):
            # Encoding a batch would hold up the loop, compressed or not.
            while (one := await asyncio.to_thread(next, encoded, None)) is not None:
                delivery.add(await self._place(topic, None if one.partition == ANY else one.partition, one.data), one.rows)
        return delivery

    async def _partition_count(self, topic: str, partition: int | None) -> int:
        """The number of partitions of the topic, once this partition exists. Raises: MetadataTimedOut."""
        network = self._begin().network
        self._accumulator.admit()
        count = network.cluster.partition_count(topic_name(topic))
        if count is None or (partition is not None and not 0 <= partition < count):
            count = await partitions_of(network, topic, partition, self.options.max_block_ms)
        return count

    async def _place(self, topic: str, partition: int | None, data: bytearray) -> ProducerBatch:
        """Adds an encoded batch to its partition, or to any, when there is memory for it."""
        sender = self._begin()
        network, accumulator = sender.network, self._accumulator
        info = network.cluster.topics.get(topic)

        def attempt() -> ProducerBatch | None:
            return accumulator.append_batch(topic, partition, data, network.clock_ms(), info)

        made = attempt()
        if made is None:
            made = await self._when_room(attempt, self.options.max_block_ms)
        sender.wake()
        return made

    async def partitions_for(self, topic: str) -> list[TopicPartition]:
        """The topic's partitions in order. Raises: MetadataTimedOut. Example: `await producer.partitions_for("orders")`."""
        count = await partitions_of(self._begin().network, topic, None, self.options.max_block_ms)
        return [TopicPartition(topic, partition) for partition in range(count)]

    def metrics(self) -> dict[str, dict[str, float] | dict[str, dict[str, float]]]:
        """Metrics with Kafka's names: `producer-metrics` by name, `producer-topic-metrics` and `producer-node-metrics` by topic or broker,
        then by name. Averages, maxima and rates cover the last minute; NaN without samples.

        Example: `producer.metrics()`.
        """
        return self._begin().figures()

    async def _when_room(self, append: Callable[[], T | None], limit_ms: float) -> T:
        assert self._room is not None and self._sender is not None, "send starts the producer"
        metrics, began_ns = self._sender.metrics, monotonic_ns()
        metrics.waiting_threads += 1
        try:
            async with asyncio.timeout(max(limit_ms, 0) / 1000):
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
            metrics.buffer_exhausted += 1
            raise buffer_exhausted(self._accumulator, self.options) from None
        finally:
            metrics.waiting_threads -= 1
            metrics.buffer_wait_ns += monotonic_ns() - began_ns


def no_transactional_id(call: str) -> ConfigError:
    """The error of a producer without transactions."""
    return ConfigError("transactional_id", f"{call}() needs one: give the producer a transactional_id")


async def identity_of(sender: Sender, options: ProducerOptions) -> tuple[int, int]:
    """See `Producer.numbered`."""
    if not options.enable_idempotence:
        raise ValueError("only an idempotent producer has a number: enable_idempotence is off")
    if options.transactional_id:
        if sender.accumulator.producer is None:
            raise RuntimeError("a transactional producer has no producer id yet: call init_transactions() first")
        return sender.accumulator.producer
    return await sender.ensure_producer_id(options.max_block_ms)


async def partitions_of(network: Network, topic: str, partition: int | None, timeout_ms: float, *, create: bool = True) -> int:
    """Waits until the topic's partitions are known, including this one. `create`: brokers may create the topic.

    Raises: UnknownTopicOrPartition if brokers consistently report fewer partitions; MetadataTimedOut, or the fatal error of the topic.
    """
    cluster, version, short_since_ms = network.cluster, network.cluster.version, float("inf")

    def known() -> int | None:
        nonlocal short_since_ms
        count, now_ms = cluster.partition_count(topic), network.clock_ms()
        if count is None:
            fatal = cluster.fatal(topic) or cluster.deleted(topic, None, now_ms)
            if fatal is not None:
                raise fatal
            return None
        if partition is None or partition < count:
            return count
        if cluster.version > version:
            short_since_ms = min(short_since_ms, now_ms)
        if now_ms - short_since_ms >= ADDED_MS:
            raise UnknownTopicOrPartition(f"topic {topic} has {count} partitions, counted from 0, no partition {partition}")
        return None

    if partition is not None:
        whole_number("partition", partition)
    network.cluster.want(topic, network.clock_ms(), create=create)
    return await network.until(known, timeout_ms=timeout_ms, doing=lambda: network.cluster.why_not(topic, partition))


def buffer_exhausted(accumulator: Accumulator, options: ProducerOptions) -> BufferExhausted:
    """The error after `max_block_ms` without memory."""
    oldest = accumulator.oldest()
    why = f"; {oldest.topic}-{oldest.partition} waits longest" if oldest else ""
    last = f", its last error: {oldest.last_error}" if oldest and oldest.last_error else ""
    return BufferExhausted(
        f"no room for the record within {options.max_block_ms} ms: {accumulator.used_bytes} of {options.buffer_memory} bytes"
        f" (buffer_memory) wait to be acknowledged{why}{last}"
    )


def _is_logging_configured() -> bool:
    """Whether a handler prints what this logger logs; the client's own prints nothing."""
    return any(not isinstance(handler, logging.NullHandler) for name in (None, "ottla") for handler in logging.getLogger(name).handlers)


def log_lost_records(batches: list[ProducerBatch], why: str) -> None:
    """Reports the number of records that will not be sent, if any; also in a program that has not configured logging."""
    records = sum(batch.count if batch.builder is None else batch.builder.count for batch in batches)
    if records:
        where = ", ".join(sorted({f"{batch.topic}-{batch.partition}" for batch in batches})[:10])
        last = next((f"; last error: {batch.last_error}" for batch in batches if batch.last_error is not None), "")
        message = f"{records} records for {where} may be lost: {why}{last}"
        log.error("%s", message)
        if not _is_logging_configured():
            warnings.warn(message, RuntimeWarning, stacklevel=2)


__all__ = ["MetadataTimedOut", "Producer"]
