"""Consumers of other clients with a group id: they share a topic, commit, and continue at the committed offset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import confluent_kafka
import pytest
from client_adapters import KAFKA_PYTHON_POLL_MS

import kafka

pytestmark = [pytest.mark.server, pytest.mark.interop]

DEADLINE_S = 40.0
NewTopicName = Callable[..., str]
#: Reads this number of values as a member of a group, commits, and leaves.
ReadSome = Callable[[str, str, str, int], list[bytes]]


def filled(bootstrap: str, topic: str, count: int, partitions: int) -> list[bytes]:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    values = [b"%d" % number for number in range(count)]
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % partitions)
    assert producer.flush(20) == 0
    return values


def with_confluent(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message.value())
                consumer.commit(message=message, asynchronous=False)
        return found
    finally:
        consumer.close()


def with_kafka_python(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=1
    )
    found: list[bytes] = []
    deadline = time.monotonic() + DEADLINE_S
    try:
        while len(found) < count and time.monotonic() < deadline:
            for records in consumer.poll(KAFKA_PYTHON_POLL_MS).values():
                found += [record.value for record in records]
                consumer.commit()
        return found
    finally:
        consumer.close()


def with_aiokafka(bootstrap: str, topic: str, group: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        await consumer.start()
        found: list[bytes] = []
        try:
            async with asyncio.timeout(DEADLINE_S):
                while len(found) < count:
                    found.append((await consumer.getone()).value)
                    await consumer.commit()
            return found
        finally:
            await consumer.stop()

    return asyncio.run(read())


@pytest.mark.parametrize("read", [with_confluent, with_kafka_python, with_aiokafka])
def test_a_group_continues_at_its_committed_offset(read: ReadSome, bootstrap: str, new_topic: NewTopicName) -> None:
    topic = new_topic(partitions=2)
    values = filled(bootstrap, topic, 20, 2)
    first = read(bootstrap, topic, f"group-of-{topic}", 8)
    rest = read(bootstrap, topic, f"group-of-{topic}", 12)
    assert len(first) == 8 and len(rest) == 12
    assert sorted(first + rest) == sorted(values), "each record is read once, by any member"


def test_one_client_continues_at_the_commit_of_another(bootstrap: str, new_topic: NewTopicName) -> None:
    topic = new_topic()
    values = filled(bootstrap, topic, 15, 1)
    found = [value for read in (with_confluent, with_kafka_python, with_aiokafka) for value in read(bootstrap, topic, f"relay-{topic}", 5)]
    assert found == values
