"""Users' interceptors around a producer: each sees every record before it is serialized, may change it, and hears what became of it.

    class Traced:
        def configure(self, settings): ...                      # once, when the producer is made
        def on_send(self, record): return record                # in the thread of send(); gives the record to go on with
        def on_acknowledgement(self, metadata, error): ...      # in the thread of the sender
        def close(self): ...

Methods that an interceptor does not have are not called. They are asked in the order in which they were given. What one raises is logged,
and the record goes on as the one before it left it: an interceptor never keeps anything from being sent (KIP-42).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from ottla.client.batches import RecordMetadata

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
    """Any number of interceptors as one that never raises."""

    def __init__(self, given: Iterable[Any], settings: Mapping[str, Any]) -> None:
        self._given = list(given)
        for one in self._given:
            if not any(hasattr(one, name) for name in ("on_send", "on_acknowledgement", "close")):
                raise TypeError(f"{one!r} is no interceptor: it has no method on_send, on_acknowledgement or close")
            configure = getattr(one, "configure", None)
            if configure is not None:
                configure(settings)

    def __bool__(self) -> bool:
        return bool(self._given)

    def on_send(self, record: ProducerRecord) -> ProducerRecord:
        """The record as they want it."""
        for one in self._given:
            found = self._called(one, "on_send", record)
            if isinstance(found, ProducerRecord):
                record = found
            elif found is not None:
                log.warning("interceptor %r gave %r for a record; it is left as it was", one, found)
        return record

    def on_acknowledgement(self, metadata: RecordMetadata, error: Exception | None) -> None:
        """Tell them where a record was written, or why it was not: then the metadata's offset is -1, and its partition where unknown."""
        for one in self._given:
            self._called(one, "on_acknowledgement", metadata, error)

    def close(self) -> None:
        """The producer is closed."""
        for one in self._given:
            self._called(one, "close")

    def _called(self, one: Any, name: str, *arguments: Any) -> Any:
        method: Callable[..., Any] | None = getattr(one, name, None)
        if method is None:
            return None
        try:
            return method(*arguments)
        except Exception:
            log.exception("interceptor %r failed in %s", one, name)
            return None
