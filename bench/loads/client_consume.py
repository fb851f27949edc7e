"""Consuming record by record with each Python client, with defaults: the cost of a loop over records.

Each client reads a filled topic from its start, as in its own documentation, and accesses every value, until the time or
the topic ends. The window opens before the partitions are assigned, after connecting. The process's own CPU is the figure
that other load does not distort: it includes the client's threads, and those of librdkafka.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from bench.load import Window

#: Records between two checks of the clock.
STRIDE = 1000
FIRST_TIMEOUT_S = 30


class ConsumerRun:
    """One client's run: until enough records are read, or time is over."""

    def __init__(self, pid: int, topic: str, partitions: int, records: int, seconds: float) -> None:
        self._window = Window(pid)
        self._until = 0.0
        self._seconds = seconds
        self.topic = topic
        self.partitions = range(partitions)
        self.records_max = records
        self.seen = 0
        self.bytes = 0

    def begin(self) -> None:
        """Start after connecting."""
        self._until = self._window.open() + self._seconds

    def over(self) -> bool:
        """Whether to stop; called for each record."""
        self.seen += 1
        if self.seen == self.records_max:
            return True
        return self.seen % STRIDE == 0 and time.perf_counter() > self._until

    def result(self) -> dict[str, Any]:
        return {**self._window.close(), "records": self.seen, "bytes": self.bytes}


def consume(host: str, port: int, pid: int, topic: str, *, client: str, partitions: int, records: int, seconds: float) -> dict[str, Any]:
    """Read with `client`, a name of `CLIENTS`, for some seconds, or until the topic is read."""
    return CLIENTS[client](f"{host}:{port}", ConsumerRun(pid, topic, partitions, records, seconds))


def ottla_blocking(bootstrap: str, turn: ConsumerRun) -> dict[str, Any]:
    from ottla import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        partitions = consumer.partitions_for(turn.topic)
        turn.begin()
        consumer.assign(partitions)
        for record in consumer:
            turn.bytes += len(record.value)
            if turn.over():
                break
        return turn.result()


def ottla_asyncio(bootstrap: str, turn: ConsumerRun) -> dict[str, Any]:
    from ottla.aio import Consumer

    async def main() -> dict[str, Any]:
        async with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
            partitions = await consumer.partitions_for(turn.topic)
            turn.begin()
            consumer.assign(partitions)
            async for record in consumer:
                turn.bytes += len(record.value)
                if turn.over():
                    break
            return turn.result()

    return asyncio.run(main())


def confluent(bootstrap: str, turn: ConsumerRun) -> dict[str, Any]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.list_topics(turn.topic, timeout=FIRST_TIMEOUT_S)
    turn.begin()
    consumer.assign([TopicPartition(turn.topic, partition, 0) for partition in turn.partitions])
    while True:
        message = consumer.poll(FIRST_TIMEOUT_S)
        turn.bytes += len(message.value())
        if turn.over():
            break
    found = turn.result()
    consumer.close()
    return found


def kafka_python(bootstrap: str, turn: ConsumerRun) -> dict[str, Any]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    consumer.partitions_for_topic(turn.topic)
    turn.begin()
    consumer.assign([TopicPartition(turn.topic, partition) for partition in turn.partitions])
    for record in consumer:
        turn.bytes += len(record.value)
        if turn.over():
            break
    found = turn.result()
    consumer.close()
    return found


def aiokafka(bootstrap: str, turn: ConsumerRun) -> dict[str, Any]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def main() -> dict[str, Any]:
        consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        turn.begin()
        consumer.assign([TopicPartition(turn.topic, partition) for partition in turn.partitions])
        async for record in consumer:
            turn.bytes += len(record.value)
            if turn.over():
                break
        found = turn.result()
        await consumer.stop()
        return found

    return asyncio.run(main())


CLIENTS: dict[str, Callable[[str, ConsumerRun], dict[str, Any]]] = {
    "ottla": ottla_blocking,
    "ottla.aio": ottla_asyncio,
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}
