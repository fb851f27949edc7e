"""Latency from a producer to a consumer of the same client, at a steady rate; and the CPU of an idle consumer.

Record n is due n / rate seconds after the start, independent of earlier ones, and its latency counts from then until the consumer's
loop has it: a stall affects all records that were due meanwhile. Clients have defaults except for acks=all and no linger. Both ends are in
one process, in a thread each, or on one event loop for asyncio clients, so they share a clock.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from bench.load import Window

#: Records at the start that do not count: connections, metadata, first execution of code.
WARM_UP = 300
GIVE_UP_S = 30.0
POLL_S = 1.0


class Schedule:
    """The schedule of records, and the received ones."""

    def __init__(self, pid: int, rate: int, seconds: float, value_size: int) -> None:
        self.window = Window(pid)
        self.count = WARM_UP + int(rate * seconds)
        self._gap_ns = 1_000_000_000 // rate
        self._padding = bytes(value_size - 8)
        self.latencies_ns: list[int] = []
        #: Set when the consumer's position is at the end of the topic: records may be sent.
        self.ready = threading.Event()
        self.failed: Exception | None = None

    def due(self) -> Iterator[tuple[int, bytes]]:
        """Due time of each record, on `time.monotonic_ns()`, and its value."""
        began_ns = time.monotonic_ns() + 10_000_000
        for number in range(self.count):
            if number == WARM_UP:
                self.window.open()
            at_ns = began_ns + number * self._gap_ns
            yield at_ns, at_ns.to_bytes(8, "big") + self._padding

    def came(self, value: bytes) -> bool:
        """Record a received value; returns whether more are expected."""
        self.latencies_ns.append(time.monotonic_ns() - int.from_bytes(value[:8], "big"))
        return len(self.latencies_ns) < self.count

    def result(self) -> dict[str, Any]:
        counted = sorted(self.latencies_ns[WARM_UP:])
        at = {name: counted[min(int(len(counted) * share), len(counted) - 1)] / 1e6 for name, share in (("p50", 0.5), ("p99", 0.99))}
        return {**self.window.close(), **at, "max": counted[-1] / 1e6, "records": len(counted)}


def latency(host: str, port: int, pid: int, topic: str, *, client: str, value_size: int, rate: int, seconds: float) -> dict[str, Any]:
    """Send and receive at a rate with `client`, a name of `CLIENTS`."""
    return CLIENTS[client](f"{host}:{port}", topic, Schedule(pid, rate, seconds, value_size))


def idle(host: str, port: int, pid: int, topic: str, *, client: str, seconds: float) -> dict[str, Any]:
    """The CPU of a connected consumer that receives nothing."""
    window = Window(pid)

    def nothing(poll: Callable[[], Any]) -> dict[str, Any]:
        poll()
        until = window.open() + seconds
        while time.perf_counter() < until:
            poll()
        return window.close()

    return IDLE[client](f"{host}:{port}", topic, nothing)


def _in_threads(pace: Schedule, send: Callable[[bytes], Any], receive: Callable[[], None]) -> dict[str, Any]:
    def receiving() -> None:
        try:
            receive()
        except Exception as error:
            pace.failed = error
            pace.ready.set()

    receiver = threading.Thread(target=receiving, daemon=True)
    receiver.start()
    pace.ready.wait(GIVE_UP_S)
    for at_ns, value in pace.due():
        if (left_ns := at_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        send(value)
    receiver.join(GIVE_UP_S)
    if pace.failed is not None or receiver.is_alive():
        raise RuntimeError(f"{len(pace.latencies_ns)} of {pace.count} records came: {pace.failed}")
    return pace.result()


async def _on_loop(pace: Schedule, send: Callable[[bytes], Any], receive: Callable[[], Any]) -> dict[str, Any]:
    receiver = asyncio.create_task(receive())
    await asyncio.to_thread(pace.ready.wait, GIVE_UP_S)
    for at_ns, value in pace.due():
        if (left_ns := at_ns - time.monotonic_ns()) > 0:
            await asyncio.sleep(left_ns / 1e9)
        await send(value)
    await asyncio.wait_for(receiver, GIVE_UP_S)
    return pace.result()


# ---------------------------------------------------------------------------------------------------------------- the clients


def _ottla_consumer(bootstrap: str, topic: str) -> Any:
    from ottla import Consumer

    consumer = Consumer(bootstrap_servers=bootstrap)
    consumer.assign(consumer.partitions_for(topic))
    for place in consumer.assignment():
        consumer.position(place)
    return consumer


def ottla_blocking(bootstrap: str, topic: str, pace: Schedule) -> dict[str, Any]:
    from ottla import Producer

    def receive() -> None:
        with _ottla_consumer(bootstrap, topic) as consumer:
            pace.ready.set()
            for record in consumer:
                if not pace.came(record.value):
                    break

    with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
        return _in_threads(pace, lambda value: producer.send(topic, value), receive)


def ottla_asyncio(bootstrap: str, topic: str, pace: Schedule) -> dict[str, Any]:
    from ottla.aio import Consumer, Producer

    async def receive() -> None:
        async with Consumer(bootstrap_servers=bootstrap) as consumer:
            consumer.assign(await consumer.partitions_for(topic))
            for place in consumer.assignment():
                await consumer.position(place)
            pace.ready.set()
            async for record in consumer:
                if not pace.came(record.value or b""):
                    break

    async def main() -> dict[str, Any]:
        async with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer:
            return await _on_loop(pace, lambda value: producer.send(topic, value), receive)

    return asyncio.run(main())


def _confluent_consumer(bootstrap: str, topic: str) -> Any:
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    there = consumer.list_topics(topic, timeout=GIVE_UP_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_END) for partition in there])
    consumer.poll(POLL_S)
    return consumer


def confluent(bootstrap: str, topic: str, pace: Schedule) -> dict[str, Any]:
    from confluent_kafka import Producer

    def receive() -> None:
        consumer = _confluent_consumer(bootstrap, topic)
        pace.ready.set()
        while True:
            message = consumer.poll(GIVE_UP_S)
            if not pace.came(message.value()):
                break
        consumer.close()

    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0})

    def send(value: bytes) -> None:
        producer.produce(topic, value)
        producer.poll(0)

    found = _in_threads(pace, send, receive)
    producer.flush(GIVE_UP_S)
    return found


def _kafka_python_consumer(bootstrap: str, topic: str) -> Any:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=bootstrap)
    consumer.assign([TopicPartition(topic, partition) for partition in consumer.partitions_for_topic(topic)])
    for place in consumer.assignment():
        consumer.position(place)
    return consumer


def kafka_python(bootstrap: str, topic: str, pace: Schedule) -> dict[str, Any]:
    from kafka import KafkaProducer

    def receive() -> None:
        consumer = _kafka_python_consumer(bootstrap, topic)
        pace.ready.set()
        for record in consumer:
            if not pace.came(record.value):
                break
        consumer.close()

    producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
    try:
        return _in_threads(pace, lambda value: producer.send(topic, value), receive)
    finally:
        producer.close()


async def _aiokafka_consumer(bootstrap: str, topic: str) -> Any:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    there = set(await consumer._client._wait_on_metadata(topic))
    consumer.assign([TopicPartition(topic, partition) for partition in there])
    await consumer.seek_to_end()
    for place in consumer.assignment():
        await consumer.position(place)
    return consumer


def aiokafka(bootstrap: str, topic: str, pace: Schedule) -> dict[str, Any]:
    from aiokafka import AIOKafkaProducer

    async def receive() -> None:
        consumer = await _aiokafka_consumer(bootstrap, topic)
        pace.ready.set()
        async for record in consumer:
            if not pace.came(record.value):
                break
        await consumer.stop()

    async def main() -> dict[str, Any]:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=0)
        await producer.start()
        try:
            return await _on_loop(pace, lambda value: producer.send(topic, value), receive)
        finally:
            await producer.stop()

    return asyncio.run(main())


Nothing = Callable[[Callable[[], Any]], dict[str, Any]]


def _idle_ottla(bootstrap: str, topic: str, nothing: Nothing) -> dict[str, Any]:
    with _ottla_consumer(bootstrap, topic) as consumer:
        return nothing(lambda: consumer.poll(timeout_ms=POLL_S * 1000))


def _idle_confluent(bootstrap: str, topic: str, nothing: Nothing) -> dict[str, Any]:
    consumer = _confluent_consumer(bootstrap, topic)
    found = nothing(lambda: consumer.poll(POLL_S))
    consumer.close()
    return found


def _idle_kafka_python(bootstrap: str, topic: str, nothing: Nothing) -> dict[str, Any]:
    consumer = _kafka_python_consumer(bootstrap, topic)
    found = nothing(lambda: consumer.poll(timeout_ms=int(POLL_S * 1000)))
    consumer.close()
    return found


def _idle_aiokafka(bootstrap: str, topic: str, nothing: Nothing) -> dict[str, Any]:
    with asyncio.Runner() as runner:
        consumer = runner.run(_aiokafka_consumer(bootstrap, topic))
        found = nothing(lambda: runner.run(consumer.getmany(timeout_ms=int(POLL_S * 1000))))
        runner.run(consumer.stop())
    return found


CLIENTS: dict[str, Callable[[str, str, Schedule], dict[str, Any]]] = {
    "ottla": ottla_blocking,
    "ottla.aio": ottla_asyncio,
    "confluent-kafka": confluent,
    "aiokafka": aiokafka,
    "kafka-python": kafka_python,
}
IDLE: dict[str, Callable[[str, str, Nothing], dict[str, Any]]] = {
    "ottla": _idle_ottla,
    "confluent-kafka": _idle_confluent,
    "aiokafka": _idle_aiokafka,
    "kafka-python": _idle_kafka_python,
}
