"""Writers and a reader that go on while their server dies and comes back, and what they saw, for a test to hold it to.

Every value is `<writer>:<number>`, numbers grow by one, and a writer never sends a number twice itself. So, whatever happened to the
server, of each partition it can be said afterwards: which values the server promised to keep, which were written twice, and whether a
reader saw something that is not there.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, Protocol

import confluent_kafka

import ottla
from plain_kafka import Record, fetch_all

OUTSTANDING_MAX = 2_000


class Writer(Protocol):
    """A producer in a thread of its own, on a partition of its own."""

    name: str
    topic: str
    partition: int
    idempotent: bool
    #: Acknowledged offset by value.
    acknowledged: dict[bytes, int]
    #: Values that the client gave up.
    failed: list[str]

    def run(self, stop: threading.Event) -> None: ...


class ConfluentWriter:
    """librdkafka, at acks=all."""

    def __init__(self, name: str, bootstrap: str, topic: str, partition: int, *, idempotent: bool) -> None:
        self.name, self.topic, self.partition, self.idempotent = name, topic, partition, idempotent
        self.acknowledged: dict[bytes, int] = {}
        self.failed: list[str] = []
        settings = {
            "bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": idempotent, "linger.ms": 1, "batch.num.messages": 100,
            "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "message.timeout.ms": 60_000, "compression.type": "lz4",
            "max.in.flight.requests.per.connection": 5, "log_level": 2,
        }  # fmt: skip
        self._producer = confluent_kafka.Producer(settings)
        self._outstanding = 0

    def _delivered(self, error: Any, message: Any) -> None:
        self._outstanding -= 1
        if error is None:
            self.acknowledged[message.value()] = message.offset()
        else:
            self.failed.append(error.str())

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            if self._outstanding >= OUTSTANDING_MAX:
                self._producer.poll(0.01)
                continue
            self._outstanding += 1
            value = f"{self.name}:{number}".encode()
            self._producer.produce(self.topic, value, partition=self.partition, on_delivery=self._delivered)
            number += 1
            self._producer.poll(0)
            if number % 100 == 0:
                time.sleep(0.005)
        self._producer.flush(30)


class OttlaWriter:
    """Our own producer with its defaults: acks=all, idempotent."""

    idempotent = True

    def __init__(self, name: str, bootstrap: str, topic: str, partition: int) -> None:
        self.name, self.topic, self.partition = name, topic, partition
        self.acknowledged: dict[bytes, int] = {}
        self.failed: list[str] = []
        self._producer = ottla.Producer(bootstrap_servers=bootstrap, linger_ms=1, reconnect_backoff_max_ms=200, delivery_timeout_ms=60_000)

    def run(self, stop: threading.Event) -> None:
        waiting: deque[tuple[bytes, Any]] = deque()
        number = 0
        while waiting or not stop.is_set():
            while waiting and (waiting[0][1].done() or len(waiting) >= OUTSTANDING_MAX or stop.is_set()):
                value, delivery = waiting.popleft()
                try:
                    self.acknowledged[value] = delivery.result(timeout_ms=30_000).offset
                except ottla.KafkaError as error:
                    self.failed.append(str(error))
            if not stop.is_set():
                value = f"{self.name}:{number}".encode()
                waiting.append((value, self._producer.send(self.topic, value, partition=self.partition)))
                number += 1
                if number % 100 == 0:
                    time.sleep(0.005)
        self._producer.close()


class Reader:
    """Follows one partition from its beginning; keeps the value it saw at each offset."""

    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        self.topic, self.partition = topic, partition
        self.seen: dict[int, bytes] = {}
        self.faults: list[str] = []
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap, "group.id": "assigned-only", "enable.auto.commit": False, "auto.offset.reset": "error",
                "reconnect.backoff.max.ms": 200, "fetch.wait.max.ms": 50, "log_level": 2,
            }
        )  # fmt: skip
        self._consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            for message in self._consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    if self.seen.setdefault(message.offset(), message.value()) != message.value():
                        self.faults.append(f"offset {message.offset()} changed its content")
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    self.faults.append(f"the position was beyond the log's end: {error.str()}")
        self._consumer.close()


@contextlib.contextmanager
def running(*participants: Writer | Reader) -> Iterator[None]:
    """Runs each in a thread; leaving the block ends the writing and waits until every record sent has its outcome."""
    stop = threading.Event()
    raised: list[BaseException] = []

    def run(participant: Writer | Reader) -> None:
        try:
            participant.run(stop)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(participant,), name=type(participant).__name__) for participant in participants]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)
    assert not raised, raised
    assert not any(thread.is_alive() for thread in threads), "every writer and reader came to its end"


def check(address: tuple[str, int] | Callable[[], tuple[str, int]], writers: list[Writer], readers: list[Reader]) -> int:
    """Holds the server to what was seen; the number of records acknowledged."""
    logs = {(writer.topic, writer.partition): log(address, writer.topic, writer.partition) for writer in writers}
    for writer in writers:
        records = logs[writer.topic, writer.partition]
        at = {record.offset: record.value for record in records}
        lost = [(value, offset) for value, offset in writer.acknowledged.items() if at.get(offset) != value]
        assert not lost, f"{writer.name}: {len(lost)} acknowledged records are not where they were promised, first {lost[0]}"
        assert not writer.failed, f"{writer.name}: {len(writer.failed)} records were given up, first {writer.failed[0]}"
        mine = [record.value for record in records if record.value and record.value.startswith(writer.name.encode() + b":")]
        if writer.idempotent:
            twice = [value for value, times in Counter(mine).items() if times > 1]
            assert not twice, f"{writer.name}: {len(twice)} records were written twice, first {twice[0]!r}"
            numbers = [int(value.rpartition(b":")[2]) for value in mine]
            assert all(a < b for a, b in pairwise(numbers)), f"{writer.name}: records are in the order they were sent"
    for reader in readers:
        assert not reader.faults, reader.faults
        at = {record.offset: record.value for record in logs[reader.topic, reader.partition]}
        vanished = [offset for offset, value in reader.seen.items() if at.get(offset) != value]
        assert not vanished, f"{len(vanished)} records that were read are gone or different, first at {vanished[0]}"
    return sum(len(writer.acknowledged) for writer in writers)


def log(address: tuple[str, int] | Callable[[], tuple[str, int]], topic: str, partition: int) -> list[Record]:
    """Every record of a partition; its offsets are dense."""
    batches = fetch_all(address, topic, partition)
    records = [record for batch in batches for record in batch.records]
    assert [record.offset for record in records] == list(range(len(records))), "offsets are dense and begin at 0"
    return records
