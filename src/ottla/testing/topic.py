"""A topic in a test: send records, read its content, wait for records.

Reads use separate clients without a group, which faults do not affect, so the application under test does not notice them. A failed wait
raises an AssertionError that shows the records in the topic.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import ConfigChange, NewTopic, Resource
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.producer.batches import RecordMetadata
from ottla.client.serializers import as_deserializer, as_serializer
from ottla.client.sync.admin import Admin
from ottla.client.sync.consumer import Consumer
from ottla.client.sync.producer import Producer
from ottla.testing.faults import UNAFFECTED_CLIENT_ID
from ottla.wire.errors import GroupIdNotFound, KafkaError, TopicAlreadyExists, UnknownTopicOrPartition

#: Interval between two checks of a wait.
POLL_INTERVAL_S = 0.01
#: Timeout of a read or write: longer than any pause of the test's machine.
TIMEOUT_S = 30.0
#: Records in an error message.
SHOWN_MAX = 20
#: Short backoffs, for a fast reconnect to a restarted broker.
SETTINGS = {
    "client_id": UNAFFECTED_CLIENT_ID,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 50,
    "retry_backoff_ms": 5,
    "retry_backoff_max_ms": 50,
}


class Clients:
    """The test helpers' clients of one broker, created on first use. Thread-safe."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        """``settings``: of a client that may do everything."""
        self._settings: dict[str, Any] = {**SETTINGS, **settings}
        self._lock = threading.RLock()
        self._admin: Admin | None = None
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None

    @property
    def admin(self) -> Admin:
        with self._lock:
            if self._admin is None:
                self._admin = Admin(**self._settings)
            return self._admin

    @property
    def producer(self) -> Producer:
        with self._lock:
            if self._producer is None:
                self._producer = Producer(**self._settings, linger_ms=0)
            return self._producer

    def close(self) -> None:
        for client in (self._producer, self._consumer, self._admin):
            if client is not None:
                client.close(timeout_ms=0)

    def create(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """Creates a topic if it does not exist."""
        try:
            self.admin.create_topic(NewTopic(name, partitions, configs=dict(config)))
        except TopicAlreadyExists:
            return

    def read(self, name: str) -> list[ConsumerRecord]:
        """All records of a topic, by partition and offset; empty if it does not exist."""
        with self._lock:
            if self._consumer is None:
                self._consumer = Consumer(**self._settings, auto_offset_reset="earliest", fetch_max_wait_ms=50)
            consumer = self._consumer
            try:
                ends = consumer.end_offsets([TopicPartition(name, index) for index in range(self._partitions(name))])
            except UnknownTopicOrPartition:
                return []
            consumer.assign(ends)
            consumer.seek_to_beginning(*ends)
            found: list[ConsumerRecord] = []
            deadline_s = time.monotonic() + TIMEOUT_S
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                if time.monotonic() > deadline_s:
                    raise AssertionError(f"topic {name!r} could not be read to its end within {TIMEOUT_S:g} s")
                found += consumer.poll(50)
            consumer.assign([])
        return sorted(found, key=lambda record: (record.partition, record.offset))

    def _partitions(self, name: str) -> int:
        return len(self.admin.describe_topic(name).partitions)

    def lag(self, group: str, topic: str) -> int | None:
        """A group's lag in a topic, in records; None before its first commit."""
        found = self.admin.consumer_group_lag([group], times=False)[group]
        if isinstance(found, KafkaError):
            if isinstance(found, GroupIdNotFound):
                return None
            raise found
        partitions = found.by_topic().get(topic, [])
        lags = [one.lag for one in partitions]
        return sum(lag for lag in lags if lag is not None) if lags and any(lag is not None for lag in lags) else None


class Topic:
    """A topic of a broker under test. ``str(topic)`` is its name."""

    def __init__(self, clients: Callable[[], Clients], name: str, *, key: Any = None, value: Any = None) -> None:
        """``key`` and ``value``: None for bytes, the name of a format, or a format of ``ottla.serializers``."""
        self.name = name
        self._clients = clients
        self._put = [as_serializer(form, {}, is_key=is_key) for form, is_key in ((key, True), (value, False))]
        self._see = [as_deserializer(form, {}, is_key=is_key) for form, is_key in ((key, True), (value, False))]

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    def send(
        self,
        value: Any = None,
        *,
        key: Any = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> RecordMetadata:
        """Sends a record, waits until it is written, and returns its position."""
        named = list(headers or [])
        key, value = (data if put is None else put(self.name, named, data) for put, data in zip(self._put, (key, value), strict=True))
        sent = self._clients().producer.send(self.name, value, key, named, partition, timestamp_ms)
        return sent.result(timeout_ms=TIMEOUT_S * 1000)

    def send_all(self, *values: Any) -> None:
        """Sends records with these values, one after the other."""
        for value in values:
            self.send(value)

    def records(self) -> list[ConsumerRecord]:
        """All records, by partition and offset. Raises: SerializationFailed for a record in another format."""
        return [self._seen(record) for record in self._clients().read(self.name)]

    def values(self) -> list[Any]:
        """The values of all records."""
        return [record.value for record in self.records()]

    def keys(self) -> list[Any]:
        """The keys of all records."""
        return [record.key for record in self.records()]

    def latest(self) -> dict[Any, Any]:
        """The last value of each key, without keys whose last value is null, as after compaction."""
        last = {record.key: record.value for record in sorted(self.records(), key=lambda record: record.timestamp)}
        return {key: value for key, value in last.items() if value is not None}

    def wait_for(
        self, count: int = 1, *, where: Callable[[ConsumerRecord], bool] | None = None, timeout_ms: float = 20_000
    ) -> list[ConsumerRecord]:
        """Waits for ``count`` records that match ``where``, and returns all matches. Raises: AssertionError with the topic's records."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        while True:
            records = self.records()
            found = records if where is None else [record for record in records if where(record)]
            if len(found) >= count:
                return found
            if time.monotonic() > deadline_s:
                matching = "" if where is None else " that match"
                raise AssertionError(
                    f"{len(found)} of {count} records{matching} in {self.name!r} after {timeout_ms / 1000:g} s; {_listed(records)}"
                )
            time.sleep(POLL_INTERVAL_S)

    def wait_until_read(self, group: str, *, timeout_ms: float = 20_000) -> None:
        """Waits until the group has committed all current records of the topic. Raises: AssertionError."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        while (lag := self._clients().lag(group, self.name)) != 0:
            if time.monotonic() > deadline_s:
                problem = "has committed nothing" if lag is None else f"is {lag} records behind"
                raise AssertionError(f"group {group!r} {problem} in {self.name!r} after {timeout_ms / 1000:g} s")
            time.sleep(POLL_INTERVAL_S)

    def set_config(self, **settings: Any) -> None:
        """Changes settings of the topic, by Kafka's names with underscores: ``retention_ms=1000``."""
        changes = [ConfigChange(name.replace("_", "."), str(value)) for name, value in settings.items()]
        resource = Resource.topic(self.name)
        outcome = self._clients().admin.incremental_alter_configs({resource: changes})[resource]
        if outcome is not None:
            raise outcome

    def _seen(self, record: ConsumerRecord) -> ConsumerRecord:
        if self._see == [None, None]:
            return record
        headers = list(record.headers)
        data = (record.key, record.value)
        key, value = (one if see is None else see(self.name, headers, one) for see, one in zip(self._see, data, strict=True))
        return ConsumerRecord(
            record.topic, record.partition, record.offset, record.timestamp, record.timestamp_type, key, value, record.headers
        )


def _listed(records: list[ConsumerRecord]) -> str:
    """Records for an error message, one per line."""
    if not records:
        return "the topic is empty"
    lines = [f"    {record.partition}@{record.offset}: {_text(record.key)} = {_text(record.value)}" for record in records[-SHOWN_MAX:]]
    more = f"the last {SHOWN_MAX} of {len(records)}" if len(records) > SHOWN_MAX else "all"
    return f"there are ({more}):\n" + "\n".join(lines)


def _text(data: Any) -> str:
    return repr(data) if isinstance(data, bytes) else json.dumps(data, default=repr, ensure_ascii=False)
