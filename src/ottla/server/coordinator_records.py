"""Decodes records of ``__consumer_offsets`` for display."""

from __future__ import annotations

from typing import Any

import msgspec

from ottla.broker.groups.records import decode_record
from ottla.wire.declare import MalformedMessage

#: The topic whose records these are.
TOPIC = "__consumer_offsets"


def describe_record(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Type, key and value of a record, with the names of Kafka's schemas; a value of None is a tombstone. None: not such a record."""
    try:
        record = decode_record(key or b"", value)
    except MalformedMessage:
        return None
    if record is None:
        return None
    key_fields, value_fields = msgspec.to_builtins(record, builtin_types=(bytes,))
    return {"type": type(record[0]).__name__.removesuffix("Key"), "key": key_fields, "value": value_fields}
