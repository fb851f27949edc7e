"""A record as the consumer gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.serializers import SerializationFailed, as_reader, close_all


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """One record as it stands in the log. `timestamp` is milliseconds; `timestamp_type` 0 is the producer's time, 1 the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()


class RecordDeserializationFailed(SerializationFailed):
    """A record's key or value cannot be deserialized. It is told again by each poll until you seek past it:
    `consumer.seek(error.partition, error.offset + 1)`. Kafka's RecordDeserializationException (KIP-334, KIP-1036).
    """

    def __init__(self, record: ConsumerRecord, origin: str, cause: Exception | str) -> None:
        #: "key" or "value": what it is that failed; `__cause__` is what the deserializer raised.
        self.origin = origin
        #: The record as it came, with the bytes of its key and value.
        self.record = record
        self.partition = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        self._why = str(cause)
        super().__init__(f"the {origin} of {self.partition} at offset {self.offset}: {cause}; seek to offset {self.offset + 1} to pass it")

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordDeserializationFailed, (self.record, self.origin, self._why)


class Deserializers:
    """What the user makes of keys and values; `serializers` says in which forms they may be given."""

    def __init__(self, settings: Mapping[str, Any], key: Any, value: Any) -> None:
        self._key, self._read_key = as_reader(key, settings, is_key=True)
        self._value, self._read_value = as_reader(value, settings, is_key=False)
        self._closeable = (key, value)
        #: Records stay as they came.
        self.none = self._key is None and self._value is None
        #: Nobody asks for topic and headers.
        self._quick = (self._key is None) == (self._read_key is None) and (self._value is None) == (self._read_value is None)

    def __call__(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with its key and value deserialized. Raises: RecordDeserializationFailed from what deserializers raise."""
        key, value, read_key, read_value = record.key, record.value, self._read_key, self._read_value
        if not self._quick:
            return self._asked(record)
        try:
            if read_key is not None and key is not None:
                key = read_key(key)
            if read_value is not None and value is not None:
                value = read_value(value)
        except Exception:
            return self._asked(record)
        return ConsumerRecord(
            record.topic, record.partition, record.offset, record.timestamp, record.timestamp_type, key, value, record.headers
        )

    def _asked(self, record: ConsumerRecord) -> ConsumerRecord:
        """By the long way, which knows what is read."""
        topic, key, value, headers = record.topic, record.key, record.value, list(record.headers)
        origin = "key"
        try:
            if self._key is not None:
                key = self._key(topic, headers, key)
            origin = "value"
            if self._value is not None:
                value = self._value(topic, headers, value)
        except Exception as error:
            raise RecordDeserializationFailed(record, origin, error) from error
        return ConsumerRecord(topic, record.partition, record.offset, record.timestamp, record.timestamp_type, key, value, record.headers)

    def close(self) -> None:
        """No record will come any more."""
        close_all(*self._closeable)
