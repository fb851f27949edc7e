"""Sends the rows of one task and waits for their acknowledgements.

A process keeps its producers, one per set of properties, until it ends: Spark reuses its Python workers, so the next task reuses the
connections. If a task fails or is cancelled, rows in flight may still arrive. The next task in the process neither waits for them nor gets
their errors.

With delivery exactly_once each task writes in a transaction of its own, which begins with its first row and stays open when it ends: the
driver commits it (batch_commits.py). Two-phase commit is used where the brokers allow it, else a timeout.

The partition of a row is its column `partition`, else the partitioner decides:

    default       with a key: Java's murmur2 of its bytes; without: sticky, one partition per batch
    uniform       the same, as if no row had a key (Java's partitioner.ignore.keys)
    round_robin   one partition after the other, row by row, whatever the key
    random        a random one for each row, whatever the key
"""

import logging
import os
import random
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.send import BlockingTableDelivery
from ottla.client.sync.producer import Producer
from ottla.spark.sink.registered_values import encoded
from ottla.spark.source import log_client
from ottla.wire.errors import (
    InvalidRecord,
    KafkaError,
    MessageTooLarge,
    TransactionAbortable,
    TransactionalIdAuthorizationFailed,
    UnsupportedVersion,
)

if TYPE_CHECKING:
    from ottla.spark.sink.options import SinkOptions

#: Remedies for errors of the brokers.
ADVICE: Mapping[type[KafkaError], str] = {
    MessageTooLarge: "a row has too many bytes: raise the option kafka.max.request.size and the topic's max.message.bytes, or write less",
    InvalidRecord: "a topic with cleanup.policy=compact needs a key in every row",
}

#: How long the end of a failed task may take.
DISCARD_MS = 2_000
log = logging.getLogger("ottla.spark")

_open: dict[tuple[Any, ...], Producer] = {}
#: Transactional producers that no task uses. Several queries of a pipeline write in threads of the driver.
_idle: dict[tuple[Any, ...], list[Producer]] = {}
#: Brokers, by this process's id and bootstrap addresses, that refused two-phase commit.
_without_two_phase: set[tuple[int, str]] = set()


def _key(options: "SinkOptions", settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return (os.getpid(), options.bootstrap, *sorted(settings.items()))


def producer_for(options: "SinkOptions") -> Producer:
    """This process's producer for a sink's settings. A forked process does not use inherited ones."""
    settings = options.producer_settings()
    key = _key(options, settings)
    producer = _open.get(key)
    if producer is None:
        producer = _open[key] = Producer(bootstrap_servers=options.bootstrap, **settings)
    return producer


@dataclass(frozen=True, slots=True)
class TaskTransaction:
    """The open transaction of a task, and its producer, which the next task adopts."""

    producer: Producer
    _key: tuple[Any, ...]

    @classmethod
    def begin(cls, options: "SinkOptions", transactional_id: str, *, two_phase: bool) -> Self:
        """Begins a transaction. Earlier producers of the id are fenced, and their transaction is aborted.

        `two_phase`: tries two-phase commit, if the options do not say. Raises: KafkaError.
        """
        brokers = (os.getpid(), options.bootstrap)
        wanted = options.two_phase if options.two_phase is not None else two_phase and brokers not in _without_two_phase
        settings = options.producer_settings()
        settings |= {"transaction_two_phase_commit_enable": True} if wanted else {"transaction_timeout_ms": options.timeout_ms}
        key = _key(options, settings)
        try:
            # Another thread may take the last one.
            producer = _idle[key].pop()
            producer.adopt(transactional_id)
        except (KeyError, IndexError):
            producer = Producer(bootstrap_servers=options.bootstrap, transactional_id=transactional_id, **settings)
        begun = cls(producer, key)
        try:
            producer.init_transactions()
            producer.begin()
        except (UnsupportedVersion, TransactionalIdAuthorizationFailed):
            begun.discard()
            if not wanted or options.two_phase:
                raise
            _without_two_phase.add(brokers)
            return cls.begin(options, transactional_id, two_phase=False)
        except BaseException:
            begun.discard()
            raise
        return begun

    def hand_over(self) -> tuple[int, int]:
        """Waits until every record is written. Returns producer id and epoch; the transaction stays open. Raises: KafkaError."""
        identity = self.producer.hand_over()
        _idle.setdefault(self._key, []).append(self.producer)
        return identity

    def discard(self) -> None:
        """Closes the producer, which aborts its transaction if the brokers answer in time."""
        try:
            self.producer.close(timeout_ms=DISCARD_MS)
        except (KafkaError, TimeoutError) as error:
            log.warning("the transaction of a failed task was not aborted: %s", error)


class TaskProducer:
    """Sends the rows of one task.

    `transactional_id`: writes in a transaction. `two_phase`: with two-phase commit where the brokers allow it.
    """

    def __init__(self, options: "SinkOptions", rng: random.Random, transactional_id: str | None = None, *, two_phase: bool = False) -> None:
        self._options = options
        self._log = log_client.open_log_client(options.bootstrap, options.client)
        self._transactional_id = transactional_id
        self._two_phase = two_phase
        #: None before the first row; the second also without transactions.
        self._producer: Producer | None = None
        self._transaction: TaskTransaction | None = None
        self._rng = rng
        #: Partition counts by topic, fetched once.
        self._counts: dict[str, int] = {}
        #: Next partition for rows that neither a key nor a column places, by topic.
        self._next: dict[str, int] = {}
        #: Unconfirmed tables, oldest first.
        self._sent: deque[BlockingTableDelivery] = deque()

    def send(self, topic: str, rows: "pa.RecordBatch") -> None:
        """Starts sending rows; blocks while the buffer is full. The columns have the sink's names; `topic` is ignored.

        Raises: NoSuchData if the topic does not exist, ValueError for an invalid partition, KafkaError as soon as earlier rows have failed.
        """
        # Writing does not create topics.
        count = self._counts.get(topic) or self._counts.setdefault(topic, self._log.partition_count(topic))
        if self._options.formats:
            rows = encoded(rows, topic, dict(self._options.formats), self._options.registry_url)
        columns: dict[str, Any] = {name: name for name in rows.schema.names if name != "topic"}
        partitions = PARTITIONERS[self._options.partitioner](self, topic, count, rows.num_rows)
        if partitions is not None:
            rows, columns["partition"] = _with_partitions(rows, partitions)
        producer = self._producer or self._begin()
        self._with_advice(lambda: self._sent.append(producer.send_table(topic, rows, **columns)))
        while self._sent and self._sent[0].done():
            self._confirm_oldest()

    def _begin(self) -> Producer:
        if self._transactional_id is not None:
            try:
                self._transaction = TaskTransaction.begin(self._options, self._transactional_id, two_phase=self._two_phase)
            except UnsupportedVersion as error:
                if self._options.required or self._options.two_phase:
                    raise
                log.warning("rows are written at least once, because the brokers serve no transactions: %s", error)
        self._producer = producer_for(self._options) if self._transaction is None else self._transaction.producer
        return self._producer

    def finish(self) -> tuple[int, int] | None:
        """Waits until every row is acknowledged. Returns producer id and epoch of the transaction, which stays open; None without one.

        Raises: KafkaError of the first failed row.
        """
        if self._producer is None:
            return None
        if self._transaction is None:
            self._producer.flush()
            self._confirm_all()
            return None
        try:
            identity = self._transaction.hand_over()
        except TransactionAbortable:
            # The error of the row says more.
            self._confirm_all()
            raise
        self._confirm_all()
        return identity

    def fail(self) -> None:
        """Aborts the transaction of a task that failed."""
        if self._transaction is not None:
            self._transaction.discard()

    def _confirm_all(self) -> None:
        while self._sent:
            self._confirm_oldest()

    def _confirm_oldest(self) -> None:
        self._with_advice(lambda: self._sent.popleft().result())

    def _with_advice(self, work: Callable[[], object]) -> None:
        try:
            work()
        except KafkaError as error:
            for kind, advice in ADVICE.items():
                if isinstance(error, kind):
                    raise type(error)(f"{error}; {advice}") from error
            raise

    def _uniform(self, topic: str, count: int, rows: int) -> "int | array[int]":
        self._next[topic] = partition = self._next_partition(topic, count)
        self._next[topic] += 1
        return partition

    def _round_robin(self, topic: str, count: int, rows: int) -> "int | array[int]":
        first = self._next_partition(topic, count)
        self._next[topic] = first + rows
        return (array("i", range(count)) * (rows // count + 2))[first : first + rows]

    def _random(self, topic: str, count: int, rows: int) -> "int | array[int]":
        return array("i", self._rng.choices(range(count), k=rows))

    def _next_partition(self, topic: str, count: int) -> int:
        # Tasks start at a random partition: otherwise small batches would all go to partition 0.
        return self._next.setdefault(topic, self._rng.randrange(count)) % count


#: By name: one partition for all rows, or one for each; None: the producer's partitioner decides.
PARTITIONERS: Mapping[str, Callable[[TaskProducer, str, int, int], "int | array[int] | None"]] = {
    "default": lambda producer, topic, count, rows: None,
    "uniform": TaskProducer._uniform,
    "round_robin": TaskProducer._round_robin,
    "random": TaskProducer._random,
}


def _with_partitions(rows: "pa.RecordBatch", partitions: "int | array[int]") -> "tuple[pa.RecordBatch, str | int]":
    """The rows with a column of partitions, where a row's own takes precedence; or one number if no row has its own."""
    names = rows.schema.names
    own = "partition" in names
    if isinstance(partitions, int) and not own:
        return rows, partitions
    if isinstance(partitions, int):
        chosen: Any = pa.scalar(partitions, pa.int32())
    else:
        chosen = pa.Array.from_buffers(pa.int32(), len(partitions), [None, pa.py_buffer(partitions)])
    columns = {name: rows.column(name) for name in names}
    columns["partition"] = pc.coalesce(columns["partition"], chosen) if own else chosen
    return pa.RecordBatch.from_pydict(columns), "partition"
