"""A record as the consumer gives it."""

from __future__ import annotations

from typing import Any

import msgspec

from ottla.client.options import ConsumerOptions
from ottla.client.serializers import as_deserializer, close_all


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


class Deserializers:
    """What the user makes of keys and values; `serializers` says in which forms they may be given."""

    def __init__(self, options: ConsumerOptions, key: Any, value: Any) -> None:
        settings = {spec.attribute: getattr(options, spec.attribute) for spec in options.SPECS.values()}
        self._key = as_deserializer(key, settings, is_key=True)
        self._value = as_deserializer(value, settings, is_key=False)
        self._closeable = (key, value)
        #: Records stay as they came.
        self.none = self._key is None and self._value is None

    def __call__(self, record: ConsumerRecord) -> ConsumerRecord:
        """The record with its key and value deserialized. Raises what deserializers raise."""
        headers = list(record.headers)
        key = record.key if self._key is None else self._key(record.topic, headers, record.key)
        value = record.value if self._value is None else self._value(record.topic, headers, record.value)
        return msgspec.structs.replace(record, key=key, value=value)

    def close(self) -> None:
        """No record will come any more."""
        close_all(*self._closeable)
