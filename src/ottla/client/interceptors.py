"""Users' interceptors around a producer and a consumer: each sees every record, may change it, and hears what became of it.

    class Traced:
        def configure(self, settings): ...                      # once, when the client is made
        def on_send(self, record): return record                # before it is serialized, in the thread of send()
        def on_acknowledgement(self, metadata, error): ...      # in the thread of the sender
        def on_consume(self, records): return records           # deserialized, before poll() or a loop gives them, in the user's thread
        def on_commit(self, offsets): ...                       # committed by partition, in the consumer's own thread or loop
        def close(self): ...

Methods that an interceptor does not have are not called, so that one object may serve both. They are asked in the order in which they were
given. What one raises is logged, and things go on as the one before it left them: an interceptor never keeps anything from being sent,
read or committed (KIP-42).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.producer.batches import RecordMetadata

if TYPE_CHECKING:
    from ottla.client.group.commits import OffsetAndMetadata

log = logging.getLogger("ottla.client")


class ProducerRecord(msgspec.Struct):
    """A record as it was given to `send`."""

    topic: str
    value: Any = None
    key: Any = None
    #: (name, bytes or None) each.
    headers: Any = ()
    #: None: the key, or the partitioner, decides.
    partition: int | None = None
    #: None: the time of send().
    timestamp_ms: int | None = None


class Interceptors:
    """Any number of a producer's interceptors as one that never raises."""

    def __init__(self, given: Iterable[Any], settings: Mapping[str, Any]) -> None:
        self._given = configured(given, settings, ("on_send", "on_acknowledgement", "close"))

    def __bool__(self) -> bool:
        return bool(self._given)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as they want it."""
        for one in self._given:
            found = called(one, "on_send", record)
            if isinstance(found, ProducerRecord):
                record = found
            elif found is not None:
                log.warning("interceptor %r gave %r for a record; it is left as it was", one, found)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Tell them where a record was written, or why it was not: then the metadata's offset is -1, and its partition where unknown."""
        for one in self._given:
            called(one, "on_acknowledgement", metadata, error)

    def close(self) -> None:
        """The producer is closed."""
        for one in self._given:
            called(one, "close")


class ConsumerInterceptors:
    """Any number of a consumer's interceptors as one that never raises."""

    def __init__(self, given: Iterable[Any], settings: Mapping[str, Any]) -> None:
        self._given = configured(given, settings, ("on_consume", "on_commit", "close"))

    def __bool__(self) -> bool:
        return bool(self._given)

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        """The records as they want them: changed, fewer, or others. What is left out counts as read."""
        for one in self._given:
            # It may have spoilt the list before it failed.
            found = called(one, "on_consume", list(records))
            if isinstance(found, list | tuple) and all(isinstance(record, ConsumerRecord) for record in found):
                records = list(found)
            elif found is not None:
                log.warning("interceptor %r gave %.200r for a list of records; they are left as they were", one, found)
        return records

    def on_commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Tell them what was committed."""
        for one in self._given:
            called(one, "on_commit", dict(offsets))

    def close(self) -> None:
        """The consumer is closed."""
        for one in self._given:
            called(one, "close")


def configured(given: Iterable[Any], settings: Mapping[str, Any], methods: tuple[str, ...]) -> list[Any]:
    """The interceptors, told of the client's settings. Raises: TypeError for what has none of these methods; what `configure` raises."""
    interceptors = list(given)
    for one in interceptors:
        if not any(hasattr(one, name) for name in methods):
            raise TypeError(f"{one!r} is no interceptor: it has no method {', '.join(methods[:-1])} or {methods[-1]}")
        configure = getattr(one, "configure", None)
        if configure is not None:
            configure(settings)
    return interceptors


def called(one: Any, name: str, *arguments: Any) -> Any:
    """What the method gives; None if there is none, or if it raises, which is logged."""
    method: Callable[..., Any] | None = getattr(one, name, None)
    if method is None:
        return None
    try:
        return method(*arguments)
    except Exception:
        log.exception("interceptor %r failed in %s", one, name)
        return None
