"""The clients under test behind one interface, so that one test covers all of them and each reads what another wrote.

An adapter only translates: settings into the client's names, records into the client's calls and back. It does not influence the client's
requests.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import aiokafka
import confluent_kafka

import kafka
from plain_kafka import Record

T = TypeVar("T")
DEADLINE_S = 30.0
#: How long a group member with kafka-python polls. It joins a second time once it knows the partitions of its topics. A poll() that ends
#: within that join leaves version 3.0.12 rebalancing for ever: it has no partitions, and refuses to commit.
KAFKA_PYTHON_POLL_MS = 5_000
#: Retention drops records older than a week, so records are of today unless a test sets a time.
TODAY_MS = time.time_ns() // 1_000_000


class Sent(NamedTuple):
    """One record to produce."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int = TODAY_MS


class Refused(Exception):
    """A record could not be written; `code` is the broker's error code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class ClientAdapter(Protocol):
    """The operations of every client."""

    name: str

    def can_write(self, record: Sent) -> bool:
        """Whether the client itself accepts such a record."""
        ...

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, partition: int = 0, codec: str = "none", acks: str = "all",
        idempotent: bool = False, request_bytes_max: int = 1_000_000,
    ) -> list[int]:  # fmt: skip
        """Writes the records in order and returns their offsets (negative with acks=0). Raises Refused for the first failed one."""
        ...

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        """`count` records from an offset on, of an assigned partition."""
        ...

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        """Log start and high watermark."""
        ...

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        """The first offset with that timestamp or a later one; None without one."""
        ...


class Confluent:
    """confluent-kafka, based on librdkafka."""

    name = "confluent-kafka"

    def can_write(self, record: Sent) -> bool:
        return True

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, partition: int = 0, codec: str = "none", acks: str = "all",
        idempotent: bool = False, request_bytes_max: int = 1_000_000,
    ) -> list[int]:  # fmt: skip
        settings = {
            "bootstrap.servers": bootstrap, "compression.type": codec, "acks": acks, "enable.idempotence": idempotent,
            "message.max.bytes": request_bytes_max, "linger.ms": 20,
        }  # fmt: skip
        producer = confluent_kafka.Producer(settings)
        offsets: list[int] = []
        failures: list[Refused] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failures.append(Refused(error.code(), error.str()))
            else:
                offsets.append(message.offset() if message.offset() is not None else -1)

        for record in records:
            producer.produce(
                topic, record.value, record.key, partition, delivered, timestamp=record.timestamp_ms, headers=list(record.headers)
            )
            producer.poll(0)
        left = producer.flush(DEADLINE_S)
        if failures:
            raise failures[0]
        assert left == 0, f"{left} records were neither written nor refused"
        return offsets

    def _consumer(self, bootstrap: str) -> confluent_kafka.Consumer:
        return confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "assigned-only", "enable.auto.commit": False, "auto.offset.reset": "error"}
        )

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        consumer = self._consumer(bootstrap)
        try:
            consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
            found: list[Record] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(found), 0.2):
                    assert message.error() is None, message.error()
                    found.append(
                        Record(
                            message.offset(), message.timestamp()[1], message.key(), message.value(), tuple(message.headers() or ())
                        )
                    )  # fmt: skip
            return found
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer(bootstrap)
        try:
            low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition(topic, partition), timeout=DEADLINE_S)
            return low, high
        finally:
            consumer.close()

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        consumer = self._consumer(bootstrap)
        try:
            (found,) = consumer.offsets_for_times([confluent_kafka.TopicPartition(topic, partition, timestamp_ms)], DEADLINE_S)
            assert found.error is None, found.error
            return None if found.offset < 0 else int(found.offset)
        finally:
            consumer.close()


def as_record(message: Any) -> Record:
    """A record of kafka-python or aiokafka, which share the class."""
    return Record(message.offset, message.timestamp, message.key, message.value, tuple(message.headers))


class KafkaPython:
    """kafka-python 3."""

    name = "kafka-python"

    def can_write(self, record: Sent) -> bool:
        return (record.key is not None or record.value is not None) and all(value is not None for _, value in record.headers)

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, partition: int = 0, codec: str = "none", acks: str = "all",
        idempotent: bool = False, request_bytes_max: int = 1_000_000,
    ) -> list[int]:  # fmt: skip
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            compression_type=None if codec == "none" else codec,
            acks="all" if acks == "all" else int(acks),
            enable_idempotence=idempotent,
            max_request_size=request_bytes_max,
            linger_ms=20,
        )
        try:
            futures = [
                producer.send(
                    topic, record.value, record.key, headers=list(record.headers), partition=partition, timestamp_ms=record.timestamp_ms
                )
                for record in records
            ]
            producer.flush(DEADLINE_S)
            return [future.get(DEADLINE_S).offset for future in futures]
        except kafka.errors.KafkaError as error:
            raise Refused(getattr(error, "errno", -1), str(error)) from error
        finally:
            producer.close(5)

    def _consumer(self, bootstrap: str) -> kafka.KafkaConsumer:
        return kafka.KafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False, group_id=None)

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        consumer = self._consumer(bootstrap)
        try:
            place = kafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            found: list[Record] = []
            deadline = time.monotonic() + DEADLINE_S
            while len(found) < count and time.monotonic() < deadline:
                found += map(as_record, consumer.poll(200, max_records=count - len(found)).get(place, ()))
            return found
        finally:
            consumer.close()

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer(bootstrap)
        try:
            place = kafka.TopicPartition(topic, partition)
            return consumer.beginning_offsets([place])[place], consumer.end_offsets([place])[place]
        finally:
            consumer.close()

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        consumer = self._consumer(bootstrap)
        try:
            place = kafka.TopicPartition(topic, partition)
            found = consumer.offsets_for_times({place: timestamp_ms})[place]
            return None if found is None else int(found.offset)
        finally:
            consumer.close()


class AioKafka:
    """aiokafka, each call on its own event loop."""

    name = "aiokafka"

    def can_write(self, record: Sent) -> bool:
        return record.key is not None or record.value is not None

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], *, partition: int = 0, codec: str = "none", acks: str = "all",
        idempotent: bool = False, request_bytes_max: int = 1_000_000,
    ) -> list[int]:  # fmt: skip
        async def run() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=bootstrap,
                compression_type=None if codec == "none" else codec,
                acks="all" if acks == "all" else int(acks),
                enable_idempotence=idempotent,
                max_request_size=request_bytes_max,
                linger_ms=20,
            )
            await producer.start()
            try:
                futures = [
                    await producer.send(
                        topic, record.value, record.key, partition, record.timestamp_ms, list(record.headers)
                    )
                    for record in records
                ]  # fmt: skip
                await producer.flush()
                answers = [await future for future in futures]
                return [-1 if answer is None else answer.offset for answer in answers]
            except aiokafka.errors.KafkaError as error:
                raise Refused(getattr(error, "errno", -1), str(error)) from error
            finally:
                await producer.stop()

        return asyncio.run(run())

    def _ask(self, bootstrap: str, what: Callable[[aiokafka.AIOKafkaConsumer], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, auto_offset_reset="none", enable_auto_commit=False, group_id=None
            )
            await consumer.start()
            try:
                return await asyncio.wait_for(what(consumer), DEADLINE_S)
            finally:
                await consumer.stop()

        return asyncio.run(run())

    def consume(self, bootstrap: str, topic: str, count: int, *, partition: int = 0, offset: int = 0) -> list[Record]:
        async def read(consumer: aiokafka.AIOKafkaConsumer) -> list[Record]:
            place = aiokafka.TopicPartition(topic, partition)
            consumer.assign([place])
            consumer.seek(place, offset)
            found: list[Record] = []
            while len(found) < count:
                found += map(as_record, (await consumer.getmany(place, timeout_ms=200, max_records=count - len(found))).get(place, ()))
            return found

        return self._ask(bootstrap, read)

    def watermarks(self, bootstrap: str, topic: str, *, partition: int = 0) -> tuple[int, int]:
        async def read(consumer: aiokafka.AIOKafkaConsumer) -> tuple[int, int]:
            place = aiokafka.TopicPartition(topic, partition)
            return (await consumer.beginning_offsets([place]))[place], (await consumer.end_offsets([place]))[place]

        return self._ask(bootstrap, read)

    def offset_at(self, bootstrap: str, topic: str, timestamp_ms: int, *, partition: int = 0) -> int | None:
        async def read(consumer: aiokafka.AIOKafkaConsumer) -> int | None:
            place = aiokafka.TopicPartition(topic, partition)
            found = (await consumer.offsets_for_times({place: timestamp_ms}))[place]
            return None if found is None else int(found.offset)

        return self._ask(bootstrap, read)


ADAPTERS: tuple[ClientAdapter, ...] = (Confluent(), KafkaPython(), AioKafka())
