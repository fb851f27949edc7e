"""librdkafka through confluent-kafka, with one setting changed: `fetch.queue.backoff.ms`.

Its default is a second: a consumer whose queue is full stops fetching for that long, which makes all servers look the
same, at about 240,000 records a second. It is 1 ms here.

The producer sends messages with `produce_batch`, a thousand per call, because a Python call per record would make the client the
bottleneck. Only failed deliveries are reported (`delivery.report.only.error`), and any of them fails the load.
"""

from __future__ import annotations

import random
import time
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import Window

MESSAGES_PER_CALL = 1000
FLUSH_TIMEOUT_S = 60
DRAIN_TIMEOUT_S = 120


def produce(
    host: str,
    port: int,
    pid: int | list[int],
    topic: str,
    *,
    value_size: int,
    acks: int,
    seconds: float,
    bytes_max: int,
    warm_s: float = 0.5,
) -> dict[str, Any]:
    """Produce as fast as librdkafka accepts messages; the clock stops when the last one is acknowledged."""
    failures: list[str] = []
    settings = {"bootstrap.servers": f"{host}:{port}", "acks": acks, "delivery.report.only.error": True}
    producer = Producer({**settings, "on_delivery": lambda error, _: failures.append(str(error))})
    value = random.Random(7).randbytes(value_size)
    _feed(producer, topic, value, until=time.perf_counter() + warm_s, messages_max=bytes_max)
    window = Window(pid)
    sent = _feed(producer, topic, value, until=window.open() + seconds, messages_max=max(1, bytes_max // value_size))
    measured = window.close()
    if failures:
        raise RuntimeError(f"{len(failures)} messages failed: {failures[0]}")
    return {**measured, "records": sent, "bytes": sent * value_size}


def _feed(producer: Producer, topic: str, value: bytes, *, until: float, messages_max: int) -> int:
    sent = 0
    messages = [{"value": value} for _ in range(MESSAGES_PER_CALL)]
    while sent < messages_max and time.perf_counter() < until:
        try:
            queued = producer.produce_batch(topic, messages)
        except BufferError:
            queued = 0
        sent += queued
        producer.poll(0)
        if queued < MESSAGES_PER_CALL:
            # The local queue is full. Messages that were not queued contain the error: start with fresh ones.
            messages = [{"value": value} for _ in range(MESSAGES_PER_CALL)]
            producer.poll(0.005)
    if left := producer.flush(FLUSH_TIMEOUT_S):
        raise RuntimeError(f"{left} messages were not acknowledged within {FLUSH_TIMEOUT_S} s")
    return sent


def consume(
    host: str, port: int, pid: int | list[int], topic: str, *, partitions: int, value_size: int, records: int, seconds: float
) -> dict[str, Any]:
    """Read all `records` of a topic with a fresh consumer, repeatedly until the passes add up to `seconds`.

    A pass ends with the last record. To seek to the start with the same consumer would cost half a second each time, which the
    consumer spends in the long poll at the end of the log.
    """
    total = {"seconds": 0.0, "server_cpu_s": 0.0, "load_cpu_s": 0.0}
    passes = 0
    while total["seconds"] < seconds:
        consumer = Consumer(
            {"bootstrap.servers": f"{host}:{port}", "group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 1}
        )
        consumer.list_topics(topic, timeout=10)  # Connects, outside the window.
        window = Window(pid)
        window.open()
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        _drain(consumer, records)
        for key, value in window.close().items():
            total[key] += value
        consumer.close()
        passes += 1
    return {**total, "passes": passes, "records": records * passes, "bytes": records * passes * value_size}


def _drain(consumer: Consumer, records: int) -> None:
    left = records
    deadline = time.perf_counter() + DRAIN_TIMEOUT_S
    while left:
        messages = consumer.consume(min(MESSAGES_PER_CALL, left), 0.5)
        for message in messages:
            if (error := message.error()) is not None:
                raise RuntimeError(str(error))
        left -= len(messages)
        if time.perf_counter() > deadline:
            raise RuntimeError(f"{left:,} of {records:,} records did not come within {DRAIN_TIMEOUT_S} s")
