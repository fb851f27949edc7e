"""Prepares a record for its batch, for both producers: interceptors, serializers, partitioner.

These may be code of the user. They run in the thread of `send`, without a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

from ottla.client.argument_validation import topic_name, whole_number
from ottla.client.interceptors import Interceptors, ProducerRecord
from ottla.client.options import ProducerOptions
from ottla.client.producer.batches import Delivery, DeliveryCallback, RecordMetadata
from ottla.client.producer.partitioner import as_choice
from ottla.client.serializers import as_serializer, close_all

BYTES_LIKE = (bytes, bytearray, memoryview)
#: Unknown fields in the metadata of a record that was not written.
UNKNOWN = -1


class RecordPreparation:
    """The serializers, interceptors and partitioner of a producer."""

    def __init__(
        self,
        options: ProducerOptions,
        rng: Random,
        *,
        key_serializer: Any = None,
        value_serializer: Any = None,
        partitioner: Any = "default",
        interceptors: Iterable[Any] = (),
    ) -> None:
        settings: Mapping[str, Any] = {spec.attribute: getattr(options, spec.attribute) for spec in options.SPECS.values()}
        self._key = as_serializer(key_serializer, settings, is_key=True)
        self._value = as_serializer(value_serializer, settings, is_key=False)
        #: The user's partitioner; None: the default.
        self.choice = as_choice(partitioner, settings, rng)
        self.interceptors = Interceptors(interceptors, settings)
        #: No interceptors and serializers: records need no preparation.
        self.is_passthrough = self._key is None and self._value is None and not self.interceptors
        self._closeable = (key_serializer, value_serializer, partitioner)

    def prepare(self, record: ProducerRecord) -> ProducerRecord:
        """Apply interceptors and serializers. Raises: what serializers raise."""
        if self.interceptors:
            record = self.interceptors.on_send(record)
        if self._key is None and self._value is None:
            return record
        try:
            headers = list(record.headers) if record.headers else []
            key = record.key if self._key is None else self._key(record.topic, headers, record.key)
            value = record.value if self._value is None else self._value(record.topic, headers, record.value)
            return ProducerRecord(record.topic, value, key, headers, record.partition, record.timestamp_ms)
        except Exception as error:
            self.refused(record, error)
            raise

    def refused(self, record: ProducerRecord, error: Exception) -> None:
        """Tell the interceptors that a record was not added to a batch."""
        partition = UNKNOWN if record.partition is None else record.partition
        self.interceptors.on_acknowledgement(RecordMetadata(record.topic, partition, UNKNOWN, UNKNOWN), error)

    def add_callbacks(self, delivery: Delivery, on_delivery: DeliveryCallback | None) -> None:
        """Call the interceptors, then the user's callback, with the outcome."""
        if self.interceptors:
            nowhere = delivery.nowhere()
            delivery.add_delivery_callback(lambda metadata, error: self.interceptors.on_acknowledgement(metadata or nowhere, error))
        if on_delivery is not None:
            delivery.add_delivery_callback(on_delivery)

    def close(self) -> None:
        """Close interceptors, serializers and partitioner."""
        self.interceptors.close()
        close_all(*self._closeable)


def no_fast_path(*record: Any) -> None:
    """Replaces the fast path if records need preparation; returns None."""


def plain_bytes(name: str, given: Any) -> bytes | None:
    """A key or value as bytes. Raises: TypeError, with the remedy, when it is neither bytes-like nor None."""
    if given is None or given.__class__ is bytes:
        return given
    if not isinstance(given, BYTES_LIKE):
        remedy = f"give the producer a {name}_serializer ('str' for text)"
        raise TypeError(f"{name} must be bytes or None, not {type(given).__name__}; {remedy}")
    return bytes(given)


def plain_place(topic: Any, partition: Any) -> tuple[str, int | None]:
    """Topic and partition of a record, checked. Raises: TypeError, ValueError."""
    return topic_name(topic), None if partition is None else whole_number("partition", partition)


def plain_time(given: Any) -> int:
    """Milliseconds since 1970, as whole ones. Raises: TypeError, ValueError."""
    if not isinstance(given, int | float) or isinstance(given, bool):
        raise TypeError(f"timestamp_ms is a number of milliseconds since 1970, such as time.time() * 1000, not {given!r}")
    if not abs(given) < 2**63:
        raise ValueError(f"timestamp_ms is a number of 64 bits, not {given}")
    return int(given)


def plain_headers(given: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Headers as pairs of str and bytes. Raises: TypeError."""
    if isinstance(given, Mapping):
        raise TypeError("headers are pairs of name and value, as a name may come twice: give list(headers.items())")
    found = []
    try:
        pairs = [(name, value) for name, value in given or ()]
    except (TypeError, ValueError):
        raise TypeError(f"headers are pairs of name and value, such as [('trace', b'7')], not {given!r}") from None
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"a header's name is a str, not {type(name).__name__}")
        if value is not None and not isinstance(value, BYTES_LIKE):
            raise TypeError(f"the value of header {name} must be bytes or None, not {type(value).__name__}")
        found.append((str(name), None if value is None else bytes(value)))
    return tuple(found)
