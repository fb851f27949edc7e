"""A group of Ottla's consumer and another client: they agree on an assignor, decode each other's metadata, and share the topic."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from aiokafka.coordinator.assignors import range as aio_range
from aiokafka.coordinator.assignors import roundrobin as aio_roundrobin
from aiokafka.coordinator.assignors.sticky import sticky_assignor as aio_sticky
from client_adapters import KAFKA_PYTHON_POLL_MS
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

import kafka
import ottla

pytestmark = [pytest.mark.server, pytest.mark.interop]
NewTopicName = Callable[..., str]
Seen = list[bytes]
PARTITIONS = 6
COUNT = 600
AIO = {
    "range": aio_range.RangePartitionAssignor,
    "roundrobin": aio_roundrobin.RoundRobinPartitionAssignor,
    "sticky": aio_sticky.StickyPartitionAssignor,
}
PYTHON = {"range": RangePartitionAssignor, "roundrobin": RoundRobinPartitionAssignor, "sticky": StickyPartitionAssignor}


def with_kafka_python(bootstrap: str, topic: str, group: str, strategy: str, seen: Seen, stop: threading.Event) -> None:
    consumer = kafka.KafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=300,
        partition_assignment_strategy=[PYTHON[strategy]],
    )  # fmt: skip
    while not stop.is_set():
        for records in consumer.poll(KAFKA_PYTHON_POLL_MS).values():
            seen += [record.value for record in records]
    consumer.close()


def with_aiokafka(bootstrap: str, topic: str, group: str, strategy: str, seen: Seen, stop: threading.Event) -> None:
    async def work() -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", heartbeat_interval_ms=300,
            partition_assignment_strategy=[AIO[strategy]],
        )  # fmt: skip
        await consumer.start()
        try:
            while not stop.is_set():
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    seen.extend(record.value for record in records)
        finally:
            await consumer.stop()

    asyncio.run(work())


def with_confluent(bootstrap: str, topic: str, group: str, strategy: str, seen: Seen, stop: threading.Event) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": strategy,
    }
    if strategy == "next":
        settings = {**settings, "group.protocol": "consumer"}
        del settings["partition.assignment.strategy"], settings["heartbeat.interval.ms"]
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([topic])
    while not stop.is_set():
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            seen.append(message.value())
    consumer.close()


def with_ottla(bootstrap: str, topic: str, group: str, strategy: str, seen: Seen, stop: threading.Event) -> None:
    settings: dict[str, Any] = {"partition_assignment_strategy": strategy, "heartbeat_interval_ms": 300}
    if strategy == "next":
        settings = {"group_protocol": "consumer"}
    with ottla.Consumer(topic, bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest", **settings) as consumer:
        while not stop.is_set():
            seen += [record.value for record in consumer.poll(200)]


CASES = [
    (with_kafka_python, "range"),
    (with_kafka_python, "roundrobin"),
    (with_kafka_python, "sticky"),
    (with_aiokafka, "range"),
    (with_aiokafka, "sticky"),
    (with_confluent, "range"),
    (with_confluent, "roundrobin"),
    (with_confluent, "cooperative-sticky"),
    (with_confluent, "next"),
]


@pytest.mark.parametrize(("other", "strategy"), CASES, ids=[f"{other.__name__[5:]}-{strategy}" for other, strategy in CASES])
@pytest.mark.parametrize("first", ["ottla", "other"])
def test_ottla_and_another_client_share_a_topic(
    bootstrap: str, new_topic: NewTopicName, other: Callable[..., None], strategy: str, first: str
) -> None:
    """The first member is the leader: it computes the assignment and decodes the other member's metadata."""
    topic = new_topic(partitions=PARTITIONS)
    group = f"g-{topic}"
    stop = threading.Event()
    seen: list[Seen] = [[], []]
    members = [with_ottla, other] if first == "ottla" else [other, with_ottla]
    threads = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    try:
        for member, into in zip(members, seen, strict=True):
            thread = threading.Thread(target=member, args=(bootstrap, topic, group, strategy, into, stop), daemon=True)
            thread.start()
            threads.append(thread)
            # Until it reads: it must see records sent meanwhile, or the previous one.
            until(partial(bool, into), lambda: producer_sends(producer, topic, b"warm"))
        for number in range(COUNT):
            producer.produce(topic, b"%d" % number, partition=number % PARTITIONS)
        assert producer.flush(20) == 0
        until(lambda: len({value for some in seen for value in some} - {b"warm"}) == COUNT, lambda: None)
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
    counts = Counter(value for some in seen for value in some if value != b"warm")
    assert counts == Counter(b"%d" % number for number in range(COUNT))
    shares = [len([value for value in some if value != b"warm"]) for some in seen]
    assert shares == [COUNT // 2, COUNT // 2], "three partitions each"


def producer_sends(producer: confluent_kafka.Producer, topic: str, value: bytes) -> None:
    for partition in range(PARTITIONS):
        producer.produce(topic, value, partition=partition)
    producer.flush(10)


def until(holds: Callable[[], bool], meanwhile: Callable[[], None], limit_s: float = 40) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "in time"
        meanwhile()
        time.sleep(0.3)
