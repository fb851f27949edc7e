"""Records as returned by the consumer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.html_tables import html_table
from ottla.client.serializers import SerializationFailed, as_reader, close_all


class ConsumerRecord(msgspec.Struct, frozen=True, gc=False):
    """A record of the log. `timestamp` is in milliseconds; `timestamp_type` 0 is the producer's time, 1 the broker's."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: Any
    value: Any
    headers: tuple[tuple[str, bytes | None], ...] = ()

    def _repr_html_(self) -> str:
        return html_table([self])


class RecordDeserializationFailed(SerializationFailed):
    """A record's key or value cannot be deserialized. Each poll raises it again until you seek past it:
    `consumer.seek(error.partition, error.offset + 1)`. Kafka's RecordDeserializationException (KIP-334, KIP-1036).
    """

    def __init__(self, record: ConsumerRecord, origin: str, cause: Exception | str) -> None:
        #: "key" or "value"; `__cause__` is the deserializer's exception.
        self.origin = origin
        #: The record with the raw bytes of key and value.
        self.record = record
        self.partition = TopicPartition(record.topic, record.partition)
        self.offset = record.offset
        self._why = str(cause)
        super().__init__(f"the {origin} of {self.partition} at offset {self.offset}: {cause}; seek to offset {self.offset + 1} to pass it")

    def __reduce__(self) -> tuple[Any, ...]:
        return RecordDeserializationFailed, (self.record, self.origin, self._why)


class Deserializers:
    """Deserializers of key and value, in any form that `serializers` allows."""

    def __init__(self, settings: Mapping[str, Any], key: Any, value: Any) -> None:
        self._key, self._read_key = as_reader(key, settings, is_key=True)
        self._value, self._read_value = as_reader(value, settings, is_key=False)
        self._closeable = (key, value)
        #: Records are returned unchanged.
        self.none = self._key is None and self._value is None
        #: Neither topic nor headers are needed.
        self._quick = (self._key is None) == (self._read_key is None) and (self._value is None) == (self._read_value is None)

    def __call__(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with deserialized key and value. Raises: RecordDeserializationFailed."""
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
        """The slow path, with the context for an error."""
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
        """No records will be returned any more."""
        close_all(*self._closeable)
