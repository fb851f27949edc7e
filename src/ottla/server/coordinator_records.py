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
    name = type(record[0]).__name__.removesuffix("Key")
    return {"type": name, "key": _plain(record[0]), "value": None if record[1] is None else _plain(record[1])}


def _plain(value: Any) -> Any:
    """Structures as dictionaries; bytes stay bytes."""
    match value:
        case msgspec.Struct():
            return {field: _plain(getattr(value, field)) for field in value.__struct_fields__}
        case list() | tuple():
            return [_plain(one) for one in value]
        case dict():
            return {name: _plain(one) for name, one in value.items()}
        case memoryview() | bytearray():
            return bytes(value)
        case _:
            return value
