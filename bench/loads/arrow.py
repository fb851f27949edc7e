"""Whole tables into topics and out of them, compared with confluent-kafka record by record with the same values.

Values are lines of JSON of exactly the given size, ten thousand different ones repeatedly, so the codecs get realistic
data. The process's own CPU is the figure that other load does not distort.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from bench.load import Window

ROWS = 500_000
DIFFERENT = 10_000
FLUSH_TIMEOUT_S = 60
BATCH = 500


def values(size: int) -> list[bytes]:
    """Lines of JSON of this many bytes each."""
    rng = random.Random(7)
    begun = [b'{"id":%d,"user":"u%d","page":"/item/%d"' % (n, rng.randrange(5000), rng.randrange(900)) for n in range(DIFFERENT)]
    return [line + b',"x":"' + b"%x" % rng.getrandbits(4 * (size - len(line) - 8)) + b'"}' for line in begun]


def send(
    host: str, port: int, pid: int, topic: str, *, client: str, value_size: int, codec: str, seconds: float, bytes_max: int
) -> dict[str, Any]:
    """Send for some seconds, after a warm-up of one table."""
    window = Window(pid)
    sent = {"send_table": _send_table, "confluent-kafka": _send_confluent}[client](
        f"{host}:{port}", topic, values(value_size), codec, Clock(window, seconds, bytes_max // value_size)
    )
    return {**sent, "bytes": sent["records"] * value_size}


class Clock:
    """The time limit of a load."""

    def __init__(self, window: Window, seconds: float, records_max: int) -> None:
        self._window = window
        self._seconds = seconds
        self._records_max = records_max

    def measured(self, turn: Callable[[], int], end: Callable[[], Any] = lambda: None) -> dict[str, Any]:
        """Run `turn`, which returns a number of records, to warm up, and then until the time limit."""
        before = turn()
        end()
        until = self._window.open() + self._seconds
        records = 0
        while records < self._records_max and time.perf_counter() < until:
            records += turn()
        end()
        return {**self._window.close(), "records": records, "records_total": before + records}


def _send_table(bootstrap: str, topic: str, lines: list[bytes], codec: str, clock: Clock) -> dict[str, Any]:
    import pyarrow as pa

    from ottla import Producer

    table = pa.table({"value": pa.array(lines * (ROWS // DIFFERENT), pa.binary())})
    with Producer(bootstrap_servers=bootstrap, compression_type=codec, compression_lz4_level=1) as producer:
        waiting: list[Any] = []

        def turn() -> int:
            waiting.append(producer.send_table(topic, table, value="value"))
            return ROWS

        found = clock.measured(turn, producer.flush)
        for delivery in waiting:
            delivery.result()
    return found


def _send_confluent(bootstrap: str, topic: str, lines: list[bytes], codec: str, clock: Clock) -> dict[str, Any]:
    from confluent_kafka import Producer

    failures: list[str] = []
    settings = {"bootstrap.servers": bootstrap, "acks": "all", "compression.type": codec, "delivery.report.only.error": True}
    producer = Producer({**settings, "on_delivery": lambda error, _: failures.append(str(error)) if error else None})

    def turn() -> int:
        for line in lines:
            while True:
                try:
                    producer.produce(topic, line)
                    break
                except BufferError:
                    producer.poll(0.005)
        producer.poll(0)
        return DIFFERENT

    found = clock.measured(turn, lambda: producer.flush(FLUSH_TIMEOUT_S))
    if failures:
        raise RuntimeError(f"{len(failures)} messages failed: {failures[0]}")
    return found


def read(host: str, port: int, pid: int, topic: str, *, client: str, partitions: int, records: int, value_size: int) -> dict[str, Any]:
    """Read all records of a topic once, after a warm-up on the same records."""
    reader = {"poll_table": _poll_table, "read_table": _read_table, "confluent-kafka": _read_confluent}[client]
    window = Window(pid)
    for _ in range(2):
        window.open()
        found = reader(f"{host}:{port}", topic, partitions, records)
        measured = window.close()
    if found != records:
        raise RuntimeError(f"{client} gave {found} records of {records}")
    return {**measured, "records": records, "bytes": records * value_size}


def _poll_table(bootstrap: str, topic: str, partitions: int, records: int) -> int:
    from ottla import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", max_partition_fetch_bytes=4 << 20) as consumer:
        consumer.assign([(topic, partition) for partition in range(partitions)])
        found = 0
        while found < records:
            found += consumer.poll_table(10_000).num_rows
    return found


def _read_table(bootstrap: str, topic: str, partitions: int, records: int) -> int:
    import ottla

    return int(ottla.read_table(topic, bootstrap_servers=bootstrap).num_rows)


def _read_confluent(bootstrap: str, topic: str, partitions: int, records: int) -> int:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1})
    consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
    found = 0
    while found < records:
        for message in consumer.consume(BATCH, 10):
            if message.value() is not None:
                found += 1
    consumer.close()
    return found
