"""Decodes records of ``__consumer_offsets`` and ``__transaction_state`` for display."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ottla.broker.groups import records as group_records
from ottla.broker.transactions import records as transaction_records
from ottla.broker.transactions.states import STATES
from ottla.wire.declare import MalformedMessage

#: By topic.
DECODERS: dict[str, Callable[[bytes, bytes | None], tuple[Any, Any] | None]] = {
    "__consumer_offsets": group_records.decode_record,
    "__transaction_state": transaction_records.decode_record,
}


def describe_record(topic: str, key: bytes | None, value: bytes | None) -> dict[str, Any] | None:
    """Type, key and value of a record, with the names of Kafka's schemas; a value of None is a tombstone. None: not such a record.

    The value of a transactional id has its state's name, too.
    """
    try:
        record = DECODERS[topic](key or b"", value)
    except MalformedMessage:
        return None
    if record is None:
        return None
    key_fields, value_fields = msgspec.to_builtins(record, builtin_types=(bytes,))
    if isinstance(record[1], transaction_records.TransactionLogValue):
        number = record[1].transaction_status
        value_fields["state"] = STATES[number].value if 0 <= number < len(STATES) else None
    return {"type": type(record[0]).__name__.removesuffix("Key"), "key": key_fields, "value": value_fields}
