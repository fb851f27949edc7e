"""The sink's way to the brokers: the rows of one task, on their way and acknowledged.

A process that writes keeps its producers, one for each set of properties, for as long as it lives: Spark reuses its Python workers, so the
next task finds the connections made. What a task sent belongs to that task: when it fails, or is not wanted any more, the rows that are
still on their way may arrive all the same, and whoever comes after it in the same process neither waits for them nor hears of them.

Who has the say about a row's partition, first match wins: the row's column `partition`, then the partitioner:

    default       with a key: Java's murmur2 of its bytes; without: neighbours together, some batches here, some there
    uniform       the same, as if no row had a key (Java's partitioner.ignore.keys)
    round_robin   one partition after the other, row by row, whatever the key
    random        any, row by row, whatever the key
"""

import os
import random
from array import array
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ottla.client.options import ProducerOptions
from ottla.client.sync.producer import Producer
from ottla.spark.source import log_client
from ottla.wire.errors import InvalidRecord, KafkaError, MessageTooLarge

if TYPE_CHECKING:
    import pyarrow as pa

    from ottla.client.arrow.send import BlockingTableDelivery
    from ottla.spark.sink.options import SinkOptions

PRODUCER_SETTINGS = frozenset(spec.attribute for spec in ProducerOptions.SPECS.values())
#: Why a broker refuses rows, and what can be done about it from here.
ADVICE: Mapping[type[KafkaError], str] = {
    MessageTooLarge: "a row has too many bytes: raise the option kafka.max.request.size and the topic's max.message.bytes, or write less",
    InvalidRecord: "a topic whose cleanup.policy is compact takes no row without a key",
}

_open: dict[tuple[Any, ...], Producer] = {}


def producer_for(options: "SinkOptions") -> Producer:
    """This process's producer for a sink's settings. A process that was forked does not touch those it inherited."""
    given = options.producer_settings()
    key = (os.getpid(), options.bootstrap, *sorted(given.items()))
    producer = _open.get(key)
    if producer is None:
        producer = _open[key] = Producer(bootstrap_servers=options.bootstrap, **given)
    return producer


class Sending:
    """What one task sends."""

    def __init__(self, options: "SinkOptions", rng: random.Random) -> None:
        self._options = options
        self._log = log_client.open_log(options.bootstrap, options.client)
        self._producer = producer_for(options)
        self._rng = rng
        #: Number of partitions by topic, asked for once.
        self._counts: dict[str, int] = {}
        #: Where the next row goes that no key and no column places, by topic.
        self._next: dict[str, int] = {}
        #: Tables without an outcome, oldest first.
        self._sent: deque[BlockingTableDelivery] = deque()

    def send(self, topic: str, rows: "pa.RecordBatch") -> None:
        """Puts rows on their way; waits while too many are. Their columns are named as the sink's, `topic` aside.

        Raises: NoSuchData for a topic that is not there, ValueError for a partition that is not; KafkaError as soon as rows sent before are
        known to have been refused.
        """
        # No topic is made by writing to it.
        count = self._counts.get(topic) or self._counts.setdefault(topic, self._log.partition_count(topic))
        columns: dict[str, Any] = {name: name for name in rows.schema.names if name != "topic"}
        placed = PARTITIONERS[self._options.partitioner](self, topic, count, rows.num_rows)
        if placed is not None:
            rows, columns["partition"] = _with_partitions(rows, placed)
        self._do(lambda: self._sent.append(self._producer.send_table(topic, rows, **columns)))
        while self._sent and self._sent[0].done():
            self._settle()

    def finish(self) -> None:
        """Waits until every row is acknowledged. Raises: KafkaError of the first that was not."""
        self._producer.flush()
        while self._sent:
            self._settle()

    def _settle(self) -> None:
        self._do(lambda: self._sent.popleft().result())

    def _do(self, work: Callable[[], object]) -> None:
        try:
            work()
        except KafkaError as error:
            for kind, advice in ADVICE.items():
                if isinstance(error, kind):
                    raise type(error)(f"{error}; {advice}") from error
            raise

    def _uniform(self, topic: str, count: int, rows: int) -> "int | array[int]":
        self._next[topic] = chosen = self._turn(topic, count)
        self._next[topic] += 1
        return chosen

    def _round_robin(self, topic: str, count: int, rows: int) -> "int | array[int]":
        first = self._turn(topic, count)
        self._next[topic] = first + rows
        return (array("i", range(count)) * (rows // count + 2))[first : first + rows]

    def _random(self, topic: str, count: int, rows: int) -> "int | array[int]":
        return array("i", self._rng.choices(range(count), k=rows))

    def _turn(self, topic: str, count: int) -> int:
        # Tasks begin anywhere: if all began with partition 0, small batches would all go there.
        return self._next.setdefault(topic, self._rng.randrange(count)) % count


#: By name: where rows go, one partition for all or one for each; None leaves it to the producer.
PARTITIONERS: Mapping[str, Callable[[Sending, str, int, int], "int | array[int] | None"]] = {
    "default": lambda sending, topic, count, rows: None,
    "uniform": Sending._uniform,
    "round_robin": Sending._round_robin,
    "random": Sending._random,
}


def _with_partitions(rows: "pa.RecordBatch", placed: "int | array[int]") -> "tuple[pa.RecordBatch, str | int]":
    """The rows with a column that has a partition for each, its own before the one chosen; or, where no row has its own, one number."""
    import pyarrow as pa
    import pyarrow.compute as pc

    names = rows.schema.names
    own = "partition" in names
    if isinstance(placed, int) and not own:
        return rows, placed
    if isinstance(placed, int):
        chosen: Any = pa.scalar(placed, pa.int32())
    else:
        chosen = pa.Array.from_buffers(pa.int32(), len(placed), [None, pa.py_buffer(placed)])
    columns = {name: rows.column(name) for name in names}
    columns["partition"] = pc.coalesce(columns["partition"], chosen) if own else chosen
    return pa.RecordBatch.from_pydict(columns), "partition"
