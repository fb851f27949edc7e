"""Interceptors of producers and consumers: they see every record, may change it, and get the outcome.

    class Traced:
        def configure(self, settings): ...                      # once, when the client is created
        def on_send(self, record): return record                # before serialization, in the thread of send()
        def on_acknowledgement(self, metadata, error): ...      # in the thread of the sender
        def on_consume(self, records): return records           # deserialized, before poll() returns them, in the user's thread
        def on_commit(self, offsets): ...                       # committed by partition, in the consumer's thread or loop
        def close(self): ...

Missing methods are not called, so one object may serve both. Interceptors are called in the given order. An exception is logged and
ignored: an interceptor never prevents sending, reading or committing (KIP-42).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.group.commits import OffsetAndMetadata
from ottla.client.producer.batches import RecordMetadata

log = logging.getLogger("ottla.client")


class ProducerRecord(msgspec.Struct):
    """A record as passed to `send`."""

    topic: str
    value: Any = None
    key: Any = None
    #: (name, bytes or None) each.
    headers: Any = ()
    #: None: selected by the key or the partitioner.
    partition: int | None = None
    #: None: the time of send().
    timestamp_ms: int | None = None


class Interceptors:
    """All interceptors of a producer; never raises."""

    def __init__(self, given: Iterable[Any], settings: Mapping[str, Any]) -> None:
        self._given = configured(given, settings, ("on_send", "on_acknowledgement", "close"))

    def __bool__(self) -> bool:
        return bool(self._given)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record after all interceptors."""
        for one in self._given:
            found = called(one, "on_send", record)
            if isinstance(found, ProducerRecord):
                record = found
            elif found is not None:
                log.warning("interceptor %r gave %r for a record; it is left as it was", one, found)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Reports where a record was written, or the error: then the offset is -1, and the partition too if unknown."""
        for one in self._given:
            called(one, "on_acknowledgement", metadata, error)

    def close(self) -> None:
        """The producer was closed."""
        for one in self._given:
            called(one, "close")


class ConsumerInterceptors:
    """All interceptors of a consumer; never raises."""

    def __init__(self, given: Iterable[Any], settings: Mapping[str, Any]) -> None:
        self._given = configured(given, settings, ("on_consume", "on_commit", "close"))

    def __bool__(self) -> bool:
        return bool(self._given)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records after all interceptors. Dropped records count as read."""
        for one in self._given:
            # An interceptor may have changed the list before it failed.
            found = called(one, "on_consume", list(records))
            if isinstance(found, list | tuple) and all(isinstance(record, ConsumerRecord) for record in found):
                records = list(found)
            elif found is not None:
                log.warning("interceptor %r gave %.200r for a list of records; they are left as they were", one, found)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Reports committed offsets."""
        for one in self._given:
            called(one, "on_commit", dict(offsets))

    def close(self) -> None:
        """The consumer was closed."""
        for one in self._given:
            called(one, "close")


def configured(given: Iterable[Any], settings: Mapping[str, Any], methods: tuple[str, ...]) -> list[Any]:
    """The interceptors after `configure`. Raises: TypeError for an object without these methods; errors of `configure`."""
    interceptors = list(given)
    for one in interceptors:
        if not any(hasattr(one, name) for name in methods):
            raise TypeError(f"{one!r} is no interceptor: it has no method {', '.join(methods[:-1])} or {methods[-1]}")
        configure = getattr(one, "configure", None)
        if configure is not None:
            configure(settings)
    return interceptors


def called(one: Any, name: str, *arguments: Any) -> Any:
    """The result of the method; None if it is missing or raises, which is logged."""
    method: Callable[..., Any] | None = getattr(one, name, None)
    if method is None:
        return None
    try:
        return method(*arguments)
    except Exception:
        log.exception("interceptor %r failed in %s", one, name)
        return None
