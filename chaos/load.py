"""Clients under faults, each in its own thread; they record what they saw.

Every value is sent once, and is `CLIENT:NUMBER`. Producers are idempotent with acks=all; they never give a record up during the
run. Readers start at offset 0 and must never find their position outside of the log; group members start at the group's offsets.

Requests time out after REQUEST_MS: clients detect a stopped or unreachable broker only by this timeout.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import confluent_kafka

import ottla
from chaos.security import Connection
from ottla.errors import KafkaError
from ottla.sim.checkers.recorder import Operation, Recorder

REQUEST_MS = 2_000
#: Delivery timeout, longer than any fault. librdkafka may write other records twice when it gives some up.
DELIVERY_MS = 300_000
OUTSTANDING_MAX = 2_000
#: Pause between two bursts of a producer, unless a run asks for another.
PAUSE_S = 0.01
OF_LIBRDKAFKA = {
    "log_level": 2, "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "retry.backoff.max.ms": 200,
    "socket.timeout.ms": REQUEST_MS,
    "topic.metadata.refresh.interval.ms": 2_000, "socket.connection.setup.timeout.ms": 1_000,
}  # fmt: skip
#: Errors that no fault explains: who the client is, and what it may do, does not depend on which broker runs.
REFUSALS = {
    confluent_kafka.KafkaError.SASL_AUTHENTICATION_FAILED,
    confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
    confluent_kafka.KafkaError.GROUP_AUTHORIZATION_FAILED,
    confluent_kafka.KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
OF_OTTLA: dict[str, Any] = {
    "request_timeout_ms": REQUEST_MS, "reconnect_backoff_ms": 20, "reconnect_backoff_max_ms": 200, "retry_backoff_max_ms": 200,
    "socket_connection_setup_timeout_ms": 1_000,
}  # fmt: skip


@dataclass(slots=True, eq=False)
class FirstAcknowledgement:
    """Waits for the first acknowledgement of a record that was sent to a partition after a given time."""

    partition: int
    since_ns: int
    acknowledged_ns: int = 0
    happened: threading.Event = field(default_factory=threading.Event)


class Observations:
    """The observations of the clients of one topic."""

    def __init__(self, topic: str, partitions: int, *, burst: int = 1, pause_s: float = PAUSE_S) -> None:
        self.topic = topic
        self.partitions = partitions
        #: Records that a producer sends to each partition at once.
        self.burst = burst
        self.pause_s = pause_s
        self.recorder = Recorder(time.monotonic_ns)
        #: Observations that are impossible in a correct cluster.
        self.violations: list[str] = []
        #: Records that their producer gave up.
        self.given_up: list[str] = []
        #: Acknowledgements without an offset.
        self.unplaced = 0
        #: By reader or group: the highest offset received of each partition.
        self.reached: dict[str, dict[int, int]] = {}
        self._watches: list[FirstAcknowledgement] = []

    def watch(self, partition: int) -> FirstAcknowledgement:
        """Watch records that are sent from now on."""
        made = FirstAcknowledgement(partition, time.monotonic_ns())
        self._watches.append(made)
        return made

    def done(self, send: Operation, offset: int | None) -> None:
        """Record an acknowledgement. Offset -1 or None: the broker only knew that the batch was a duplicate."""
        if offset is not None and offset < 0:
            offset = None
        self.recorder.acknowledged(send, offset)
        self.unplaced += offset is None
        for watch in self._watches:
            if watch.partition == send.key and send.invoked_ns > watch.since_ns and not watch.happened.is_set():
                watch.acknowledged_ns = send.completed_ns
                watch.happened.set()

    def client_error(self, who: str, error: Any) -> None:
        """Record an error that librdkafka reported, if it says that the cluster refused the client. The end of a connection within the
        authentication has the same code as a refusal, and another text.
        """
        text = error.str()
        unverified = error.code() == confluent_kafka.KafkaError._SSL and "certificate" in text
        unauthenticated = error.code() == confluent_kafka.KafkaError._AUTHENTICATION and "SASL authentication error" in text
        if error.fatal() or unverified or unauthenticated or error.code() in REFUSALS:
            self.violations.append(f"{who}: {error.name()}: {text}")

    def gave_up(self, send: Operation, code: int, why: str) -> None:
        self.recorder.failed(send, code)
        self.given_up.append(f"{send.value!r} after {(send.completed_ns - send.invoked_ns) / 1e9:.1f} s: {why}")

    def read(self, who: str, poll: Operation, found: Mapping[int, list[tuple[int, Any]]], rebalanced: Iterable[int] = ()) -> None:
        """Record the result of a poll; ``who`` is the reader or its group."""
        self.recorder.polled(poll, found, rebalanced=rebalanced)
        reached = self.reached.setdefault(who, {})
        for partition, records in found.items():
            reached[partition] = max(reached.get(partition, -1), records[-1][0])

    def behind(self, ends: Mapping[int, int]) -> list[str]:
        """Readers and groups that have not received everything yet."""
        return [who for who, reached in self.reached.items() if any(reached.get(partition, -1) < end for partition, end in ends.items())]

    def missed_by(self, members: str, reader: str) -> list[str]:
        """Records that another reader got and the group (its members' names start with the prefix) never did."""
        given: set[tuple[int, int]] = set()
        there: dict[tuple[int, int], Any] = {}
        for one in self.recorder.operations:
            locations = {(key, offset): value for key, records in one.polled.items() for offset, value in records}
            if one.process.startswith(members):
                given |= locations.keys()
            elif one.process == reader:
                there |= locations
        return [f"{value!r} at {key} {offset}" for (key, offset), value in there.items() if (key, offset) not in given]

    def ends(self) -> dict[int, int]:
        """The highest offset of each partition that any client saw."""
        found: dict[int, int] = {}
        for one in self.recorder.operations:
            if one.offset is not None:
                found[one.key] = max(found.get(one.key, -1), one.offset)
            for key, records in one.polled.items():
                if records:
                    found[key] = max(found.get(key, -1), records[-1][0])
        return found


class Client(Protocol):
    """A client that works until it is stopped."""

    name: str

    def run(self, stop: threading.Event) -> None: ...


class ConfluentProducer:
    """Producer of librdkafka."""

    def __init__(self, name: str, connection: Connection, journal: Observations) -> None:
        self.name, self._journal = name, journal
        settings = {
            **connection.librdkafka(), "acks": "all", "enable.idempotence": True, "linger.ms": 2, "message.timeout.ms": DELIVERY_MS,
            "request.timeout.ms": REQUEST_MS, **OF_LIBRDKAFKA,
        }  # fmt: skip
        self._producer = confluent_kafka.Producer(settings, error_cb=partial(journal.client_error, name))
        self._outstanding: dict[int, int] = defaultdict(int)
        journal.recorder.idempotent.add(name)

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            for partition in range(self._journal.partitions):
                for _ in range(self._journal.burst if self._outstanding[partition] < OUTSTANDING_MAX else 0):
                    self._send(partition, f"{self.name}:{number}".encode())
                    number += 1
            # poll() returns at the first report, so it cannot be the pause.
            time.sleep(self._journal.pause_s)
            self._producer.poll(0)
        if self._producer.flush(DELIVERY_MS / 1000):
            self._journal.violations.append(f"{self.name}: {len(self._producer)} records have no outcome")

    def _send(self, partition: int, value: bytes) -> None:
        send = self._journal.recorder.send(self.name, partition, value)
        self._outstanding[partition] += 1

        def delivered(error: Any, message: Any) -> None:
            self._outstanding[partition] -= 1
            if error is None:
                self._journal.done(send, message.offset())
            else:
                self._journal.gave_up(send, error.code(), error.str())

        self._producer.produce(self._journal.topic, value, partition=partition, on_delivery=delivered)


class OttlaProducer:
    """Producer of Ottla."""

    def __init__(self, name: str, connection: Connection, journal: Observations) -> None:
        self.name, self._journal = name, journal
        self._producer = ottla.Producer(**connection.ottla(), linger_ms=2, delivery_timeout_ms=DELIVERY_MS, **OF_OTTLA)
        self._waiting: dict[int, deque[tuple[Operation, Any]]] = {partition: deque() for partition in range(journal.partitions)}
        journal.recorder.idempotent.add(name)

    def run(self, stop: threading.Event) -> None:
        number = 0
        while not stop.is_set():
            for partition, waiting in self._waiting.items():
                for _ in range(self._journal.burst if len(waiting) < OUTSTANDING_MAX else 0):
                    value = f"{self.name}:{number}".encode()
                    send = self._journal.recorder.send(self.name, partition, value)
                    waiting.append((send, self._producer.send(self._journal.topic, value, partition=partition)))
                    number += 1
            time.sleep(self._journal.pause_s)
            self._harvest()
        deadline_s = time.monotonic() + DELIVERY_MS / 1000
        while any(self._waiting.values()) and time.monotonic() < deadline_s:
            time.sleep(self._journal.pause_s)
            self._harvest()
        if any(self._waiting.values()):
            self._journal.violations.append(f"{self.name}: {sum(map(len, self._waiting.values()))} records have no outcome")
        self._producer.close(timeout_ms=1_000)

    def _harvest(self) -> None:
        for waiting in self._waiting.values():
            while waiting and waiting[0][1].done():
                send, delivery = waiting.popleft()
                try:
                    self._journal.done(send, delivery.result().offset)
                except KafkaError as error:
                    self._journal.gave_up(send, error.code, str(error))


class ConfluentReader:
    """Consumer of librdkafka, on all partitions from offset 0; with a group, on its assignment."""

    def __init__(
        self, name: str, connection: Connection, journal: Observations, *, group: str = "", upto: Mapping[int, int] | None = None
    ) -> None:
        """``upto``: the reader ends when it has seen these offsets."""
        self.name, self._journal, self._upto = name, journal, dict(upto) if upto is not None else None
        self._group = group
        settings = {
            **connection.librdkafka(), "group.id": group or "none", "enable.auto.commit": bool(group), "auto.commit.interval.ms": 500,
            "session.timeout.ms": 6_000, "auto.offset.reset": "earliest" if group else "error", "fetch.wait.max.ms": 50, **OF_LIBRDKAFKA,
        }  # fmt: skip
        self._consumer = confluent_kafka.Consumer(settings, error_cb=partial(journal.client_error, name))
        self._moved: set[int] = set()
        topic, partitions = journal.topic, range(journal.partitions)
        if group:
            self._consumer.subscribe([topic], on_assign=self._rebalanced, on_revoke=self._rebalanced, on_lost=self._rebalanced)
            journal.recorder.subscribed(name, partitions)
        else:
            self._consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in partitions])
            journal.recorder.assigned(name, dict.fromkeys(partitions, 0))

    def _rebalanced(self, consumer: Any, partitions: Any) -> None:
        self._moved |= {one.partition for one in partitions}

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set() and (self._upto is None or self._upto):
            poll = self._journal.recorder.polling(self.name)
            found: dict[int, list[tuple[int, Any]]] = {}
            for message in self._consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    partition, offset = message.partition(), message.offset()
                    assert partition is not None and offset is not None, "a record stands somewhere"
                    found.setdefault(partition, []).append((offset, message.value()))
                elif error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET:
                    self._journal.violations.append(f"{self.name}: its position was outside of the log: {error.str()}")
                else:
                    self._journal.client_error(self.name, error)
            moved, self._moved = self._moved, set()
            self._journal.read(self._group or self.name, poll, found, moved)
            _remove_read(self._upto, found)
        self._consumer.close()


class OttlaReader:
    """Consumer of Ottla, on all partitions from offset 0."""

    def __init__(self, name: str, connection: Connection, journal: Observations, *, upto: Mapping[int, int] | None = None) -> None:
        self.name, self._journal, self._upto = name, journal, dict(upto) if upto is not None else None
        self._consumer = ottla.Consumer(**connection.ottla(), auto_offset_reset="none", fetch_max_wait_ms=50, **OF_OTTLA)
        partitions = [(journal.topic, partition) for partition in range(journal.partitions)]
        self._consumer.assign(partitions)
        for partition in partitions:
            self._consumer.seek(partition, 0)
        journal.recorder.assigned(name, dict.fromkeys(range(journal.partitions), 0))

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set() and (self._upto is None or self._upto):
            poll = self._journal.recorder.polling(self.name)
            found: dict[int, list[tuple[int, Any]]] = {}
            try:
                for record in self._consumer.poll(100):
                    found.setdefault(record.partition, []).append((record.offset, record.value))
            except KafkaError as error:
                self._journal.violations.append(f"{self.name}: {type(error).__name__}: {error}")
                time.sleep(0.5)
            self._journal.read(self.name, poll, found)
            _remove_read(self._upto, found)
        self._consumer.close(timeout_ms=1_000)


def _remove_read(upto: dict[int, int] | None, found: Mapping[int, list[tuple[int, Any]]]) -> None:
    """Remove the partitions that a reader has read to the required offset."""
    if upto is not None:
        for partition, records in found.items():
            if upto.get(partition, -1) <= records[-1][0]:
                upto.pop(partition, None)


class Clients:
    """Running clients."""

    def __init__(self, clients: list[Client], journal: Observations) -> None:
        self._journal = journal
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(client,), name=client.name, daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()

    def _run(self, client: Client) -> None:
        try:
            client.run(self._stop)
        except BaseException as error:
            self._journal.violations.append(f"{client.name} died: {type(error).__name__}: {error}")
            raise

    def join(self, *, stop: bool, timeout_s: float) -> None:
        """Wait until all clients have ended; ``stop`` asks them to end."""
        if stop:
            self._stop.set()
        deadline_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.1, deadline_s - time.monotonic()))
        late = [thread.name for thread in self._threads if thread.is_alive()]
        if late:
            self._journal.violations.append(f"not done within {timeout_s:.0f} s: {', '.join(late)}")
        self._stop.set()


def producers(connection: Connection, journal: Observations) -> list[Client]:
    return [ConfluentProducer("confluent", connection, journal), OttlaProducer("ottla", connection, journal)]


MEMBERS = "member-"
LAST = "last-ottla-reader"


def readers(connection: Connection, journal: Observations) -> list[Client]:
    group = f"group-of-{journal.topic}"
    return [
        ConfluentReader("confluent-reader", connection, journal),
        OttlaReader("ottla-reader", connection, journal),
        *(ConfluentReader(f"{MEMBERS}{number}", connection, journal, group=group) for number in (1, 2)),
    ]


def final_readers(connection: Connection, journal: Observations) -> list[Client]:
    """Readers of everything from the start, by two client libraries."""
    ends = journal.ends()
    return [
        ConfluentReader("last-confluent-reader", connection, journal, upto=ends),
        OttlaReader(LAST, connection, journal, upto=ends),
    ]
