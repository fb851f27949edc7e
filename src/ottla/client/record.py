"""A record as the consumer gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

Deserializer = Callable[[bytes | None], Any]


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


def deserialized(record: ConsumerRecord, key: Deserializer | None, value: Deserializer | None) -> ConsumerRecord:
    """The record with what the user makes of its key and value. Raises what these raise."""
    if key is None and value is None:
        return record
    return msgspec.structs.replace(record, key=key(record.key) if key else record.key, value=value(record.value) if value else record.value)
