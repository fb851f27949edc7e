"""One worker of `python -m chaos.transactions`: consumes, processes and produces in transactions until SIGTERM.

Each input record has one record in each of two topics. A *unit* is what the worker writes in one piece: all its records are in one
transaction, and each has the unit's id and number of records::

    value of an output record    UNIT COUNT NUMBER      one-41-7 24 10233

    kind          client                            group protocol    a unit is
    process       ottla.process                     consumer          one call of its function
    ottla         ottla.Producer, ottla.Consumer    classic           a transaction
    librdkafka    confluent_kafka                   classic           a transaction

The worker appends the outcome of its units to a file: `aborted UNIT` before it aborts one on purpose, `committed UNIT` after a commit has
returned. It creates its clients again after an error that it cannot pass. The transactional id is made of the worker's name, so a
restarted worker fences its predecessor.
"""

from __future__ import annotations

import faulthandler
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import confluent_kafka
from confluent_kafka import KafkaException

import ottla
from chaos.load import OF_LIBRDKAFKA, OF_OTTLA
from ottla.errors import ErrorKind, KafkaError, RequestTimedOut

INPUT = "input"
#: By the group that writes them.
OUTPUTS = {"by-process": ("process-a", "process-b"), "by-hand": ("hand-a", "hand-b")}
GROUPS = {"process": "by-process", "ottla": "by-hand", "librdkafka": "by-hand"}
TRANSACTION_TIMEOUT_MS = 5_000
SESSION_MS = 6_000
#: Input records of a transaction.
RECORDS_MAX = 200
COLLECTING_S = 0.1
#: One transaction in so many is aborted on purpose.
ABORTED_ONE_IN = 12
#: An abort of `process` ends its run, so the member leaves its group.
PROCESS_ABORTED_ONE_IN = 120
CALL_S = 10.0
#: A call of librdkafka's transactions may never return, although it has a timeout of CALL_S. The worker then ends with its stacks.
HUNG_S = 4 * CALL_S
#: A worker writes the stacks of its threads after this signal.
STACKS = signal.SIGUSR1


def transactional_id(kind: str, name: str) -> str:
    """The transactional id of a worker."""
    return f"{GROUPS[kind]}-{name}"


class Aborted(Exception):
    """Raised on purpose."""


class Units:
    """Ids of units, and the file of their outcomes."""

    def __init__(self, name: str, outcomes: Path, one_in: int) -> None:
        self._prefix = f"{name}-{os.getpid()}"
        self._numbers = itertools.count()
        self._one_in = one_in
        self._random = random.Random(self._prefix)
        # Unbuffered: a kill loses no line.
        self._file = outcomes.open("ab", buffering=0)

    def begin(self, numbers: Iterable[int], outputs: tuple[str, str]) -> tuple[str, list[tuple[str, bytes, bytes]]]:
        """A new unit, and its records: (topic, key, value)."""
        unit = f"{self._prefix}-{next(self._numbers)}"
        inputs = list(numbers)
        count = len(inputs) * len(outputs)
        return unit, [(topic, b"%d" % number, b"%s %d %d" % (unit.encode(), count, number)) for number in inputs for topic in outputs]

    def aborts(self, unit: str) -> bool:
        """Whether the unit is aborted on purpose; writes it down."""
        chosen = not self._random.randrange(self._one_in)
        if chosen:
            self._file.write(f"aborted {unit}\n".encode())
        return chosen

    def committed(self, unit: str) -> None:
        self._file.write(f"committed {unit}\n".encode())


class Stop:
    """Set by SIGTERM."""

    def __init__(self) -> None:
        self.set = False
        signal.signal(signal.SIGTERM, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self.set = True


def say(text: str) -> None:
    print(f"{time.time():.3f} {text}", file=sys.stderr, flush=True)


def run_process(name: str, bootstrap: str, outcomes: Path) -> None:
    """A worker that calls ottla.process."""
    units, stop = Units(name, outcomes, PROCESS_ABORTED_ONE_IN), Stop()
    outputs = OUTPUTS["by-process"]

    def function(records: list[ottla.ConsumerRecord]) -> Iterator[ottla.ProducerRecord]:
        unit, written = units.begin((int(record.value or b"") for record in records), outputs)
        if units.aborts(unit):
            raise Aborted
        return (ottla.ProducerRecord(topic, value, key) for topic, key, value in written)

    while not stop.set:
        processor = ottla.process(
            INPUT, group="by-process", batch=True, max_batch_records=RECORDS_MAX, group_protocol="consumer", group_instance_id=name,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, bootstrap_servers=bootstrap, linger_ms=2, **OF_OTTLA,
        )  # fmt: skip
        try:
            processed = processor(function)
        except Aborted:
            continue
        except KafkaError as error:
            say(f"process starts again after {type(error).__name__}: {error}")
            time.sleep(0.5)
        else:
            say(f"{processed} records were processed in the last run")
            return


def run_ottla(name: str, bootstrap: str, outcomes: Path) -> None:
    """A worker with the producer and the consumer of Ottla."""
    units, stop = Units(name, outcomes, ABORTED_ONE_IN), Stop()
    while not stop.set:
        try:
            with (
                ottla.Producer(
                    bootstrap_servers=bootstrap, transactional_id=transactional_id("ottla", name), linger_ms=2,
                    transaction_timeout_ms=TRANSACTION_TIMEOUT_MS, **OF_OTTLA,
                ) as producer,
                ottla.Consumer(
                    INPUT, bootstrap_servers=bootstrap, group_id="by-hand", isolation_level="read_committed", enable_auto_commit=False,
                    auto_offset_reset="earliest", group_protocol="classic", partition_assignment_strategy="range",
                    session_timeout_ms=SESSION_MS, heartbeat_interval_ms=1000, **OF_OTTLA,
                ) as consumer,
            ):  # fmt: skip
                producer.init_transactions()
                while not stop.set:
                    ottla_transaction(units, producer, consumer)
        except KafkaError as error:
            say(f"the clients are replaced after {type(error).__name__}: {error}")


def ottla_transaction(units: Units, producer: ottla.Producer, consumer: ottla.Consumer) -> None:
    """Processes what one poll returns. Raises: KafkaError."""
    records = consumer.poll(timeout_ms=COLLECTING_S * 1000, max_records=RECORDS_MAX)
    if not records:
        return
    firsts: dict[tuple[str, int], int] = {}
    for record in records:
        firsts.setdefault((record.topic, record.partition), record.offset)
    unit, written = units.begin((int(record.value or b"") for record in records), OUTPUTS["by-hand"])
    try:
        producer.begin()
        for topic, key, value in written:
            producer.send(topic, value, key=key)
        producer.send_offsets_to_transaction(consumer.positions(), consumer.group_metadata())
        if units.aborts(unit):
            producer.abort()
            for place, first in firsts.items():
                consumer.seek(place, first)
            return
        while True:
            try:
                producer.commit()
                break
            except RequestTimedOut as error:
                say(f"commit is sent again: {error}")
    except KafkaError as error:
        if error.kind is ErrorKind.ABORTABLE:
            with suppress(KafkaError):
                producer.abort()
        raise
    units.committed(unit)


class Collector:
    """The consumer of librdkafka; drops what it has collected when partitions are revoked."""

    def __init__(self, bootstrap: str) -> None:
        self._collected: list[Any] = []
        settings = {
            "bootstrap.servers": bootstrap, "group.id": "by-hand", "enable.auto.commit": False, "auto.offset.reset": "earliest",
            "isolation.level": "read_committed", "partition.assignment.strategy": "range", "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": 1000, "fetch.wait.max.ms": 50, **OF_LIBRDKAFKA,
        }  # fmt: skip
        self.consumer = confluent_kafka.Consumer(settings)
        self.consumer.subscribe([INPUT], on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, consumer: Any, partitions: Any) -> None:
        self._collected.clear()

    def collect(self) -> list[Any]:
        """Messages of the present assignment."""
        self._collected.clear()
        until_s = time.monotonic() + COLLECTING_S
        while len(self._collected) < RECORDS_MAX and (left_s := until_s - time.monotonic()) > 0:
            message = self.consumer.poll(left_s)
            if message is not None and message.error() is None:
                self._collected.append(message)
        return list(self._collected)


def run_librdkafka(name: str, bootstrap: str, outcomes: Path) -> None:
    """A worker with librdkafka."""
    units, stop = Units(name, outcomes, ABORTED_ONE_IN), Stop()
    settings = {
        "bootstrap.servers": bootstrap, "transactional.id": transactional_id("librdkafka", name), "linger.ms": 2,
        "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS, "message.timeout.ms": TRANSACTION_TIMEOUT_MS, **OF_LIBRDKAFKA,
    }  # fmt: skip
    while not stop.set:
        collector = Collector(bootstrap)
        producer = confluent_kafka.Producer(settings)
        try:
            producer.init_transactions(CALL_S)
            while not stop.set:
                faulthandler.dump_traceback_later(HUNG_S, exit=True)
                librdkafka_transaction(units, producer, collector)
        except KafkaException as error:
            say(f"the clients are replaced after {error}")
            time.sleep(0.2)
        finally:
            collector.consumer.close()
            faulthandler.cancel_dump_traceback_later()


def librdkafka_transaction(units: Units, producer: Any, collector: Collector) -> None:
    """Processes the messages of a moment. Raises: KafkaException."""
    messages = collector.collect()
    if not messages:
        return
    ends: dict[int, int] = {}
    firsts: dict[int, int] = {}
    for message in messages:
        firsts.setdefault(message.partition(), message.offset())
        ends[message.partition()] = message.offset() + 1
    unit, written = units.begin((int(message.value()) for message in messages), OUTPUTS["by-hand"])
    consumer = collector.consumer
    producer.begin_transaction()
    for topic, key, value in written:
        producer.produce(topic, value, key)
    positions = [confluent_kafka.TopicPartition(INPUT, partition, end) for partition, end in ends.items()]
    producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), CALL_S)
    if units.aborts(unit):
        # librdkafka numbers its records when it gets them: an abort of unsent ones leaves a gap, after which it has to begin again.
        producer.flush(CALL_S)
        producer.abort_transaction(CALL_S)
        for partition, first in firsts.items():
            consumer.seek(confluent_kafka.TopicPartition(INPUT, partition, first))
        return
    while True:
        try:
            producer.commit_transaction(CALL_S)
            break
        except KafkaException as error:
            if not error.args[0].retriable():
                raise
            say(f"commit is sent again: {error}")
    units.committed(unit)


RUNS = {"process": run_process, "ottla": run_ottla, "librdkafka": run_librdkafka}


def main() -> None:
    """Arguments: kind, name, bootstrap servers, file of outcomes."""
    kind, name, bootstrap, outcomes = sys.argv[1:]
    faulthandler.register(STACKS, all_threads=True)
    RUNS[kind](name, bootstrap, Path(outcomes))


if __name__ == "__main__":
    main()
