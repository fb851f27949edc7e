"""Records of ``__consumer_offsets`` for people and programs that look into a log: what a coordinator wrote, field by field."""

from __future__ import annotations

from typing import Any

import msgspec

from ottla.broker.groups.records import decode_record
from ottla.wire.declare import MalformedMessage

#: The topic whose records these are.
TOPIC = "__consumer_offsets"


def describe_record(key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Type, key and value of a record, by the names of Kafka's schemas; a value of None is a tombstone. None: it is no such record."""
    try:
        found = decode_record(key or b"", value)
    except MalformedMessage:
        return None
    if found is None:
        return None
    name = type(found[0]).__name__.removesuffix("Key")
    return {"type": name, "key": _plain(found[0]), "value": None if found[1] is None else _plain(found[1])}


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
