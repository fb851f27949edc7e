"""Sends the rows of one task and waits for their acknowledgements.

A process keeps its producers, one per set of properties, until it ends: Spark reuses its Python workers, so the next task reuses the
connections. If a task fails or is cancelled, rows in flight may still arrive. The next task in the process neither waits for them nor gets
their errors.

The partition of a row is its column `partition`, else the partitioner decides:

    default       with a key: Java's murmur2 of its bytes; without: sticky, one partition per batch
    uniform       the same, as if no row had a key (Java's partitioner.ignore.keys)
    round_robin   one partition after the other, row by row, whatever the key
    random        a random one for each row, whatever the key
"""

import os
import random
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ottla.client.arrow.send import BlockingTableDelivery
from ottla.client.sync.producer import Producer
from ottla.spark.source import log_client
from ottla.wire.errors import InvalidRecord, KafkaError, MessageTooLarge

if TYPE_CHECKING:
    from ottla.spark.sink.options import SinkOptions

#: Remedies for errors of the brokers.
ADVICE: Mapping[type[KafkaError], str] = {
    MessageTooLarge: "a row has too many bytes: raise the option kafka.max.request.size and the topic's max.message.bytes, or write less",
    InvalidRecord: "a topic with cleanup.policy=compact needs a key in every row",
}

_open: dict[tuple[Any, ...], Producer] = {}


def producer_for(options: "SinkOptions") -> Producer:
    """This process's producer for a sink's settings. A forked process does not use inherited ones."""
    settings = options.producer_settings()
    key = (os.getpid(), options.bootstrap, *sorted(settings.items()))
    producer = _open.get(key)
    if producer is None:
        producer = _open[key] = Producer(bootstrap_servers=options.bootstrap, **settings)
    return producer


class TaskProducer:
    """Sends the rows of one task."""

    def __init__(self, options: "SinkOptions", rng: random.Random) -> None:
        self._options = options
        self._log = log_client.open_log_client(options.bootstrap, options.client)
        self._producer = producer_for(options)
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
        columns: dict[str, Any] = {name: name for name in rows.schema.names if name != "topic"}
        partitions = PARTITIONERS[self._options.partitioner](self, topic, count, rows.num_rows)
        if partitions is not None:
            rows, columns["partition"] = _with_partitions(rows, partitions)
        self._with_advice(lambda: self._sent.append(self._producer.send_table(topic, rows, **columns)))
        while self._sent and self._sent[0].done():
            self._confirm_oldest()

    def finish(self) -> None:
        """Waits until every row is acknowledged. Raises: KafkaError of the first failed row."""
        self._producer.flush()
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
