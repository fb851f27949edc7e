"""The records of ``__transaction_state``, byte for byte as in Kafka.

A key and a value each begin with an int16, their version; a message follows::

    key     | version 0 | transactional id |
    value   | version 1 | producer id | epoch | timeout | state | partitions | times | tagged fields |

No value is a tombstone. Values are written in version 1, or in version 0 without tagged fields while ``transaction.version`` is 0. Loading
skips keys of later versions and refuses values of later versions.

The tagged field 10000 is ours; Kafka skips it. It lets a retry be recognised after a failover: Kafka keeps ``last_producer_epoch`` in
memory only.

Source: Kafka's TransactionLogKey and TransactionLogValue; KIP-890, KIP-939.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct as Layout
from typing import Annotated

from ottla.wire.codegen import uvarint
from ottla.wire.compile import decode, encode
from ottla.wire.declare import Ignorable, Int8, Int16, Int32, Int64, MalformedMessage, Since, Struct, Tag, message
from ottla.wire.errors import UnsupportedVersion

KEY_VERSION = 0
_VERSION, _COUNT = Layout(">h"), Layout(">i")
#: Bytes before the list of partitions in a value, without its version: producer id, epoch, timeout and state.
_PARTITIONS_AT = 15


@message(until=0, flexible_since=None)
class TransactionLogKey(Struct):
    """A transactional id."""

    transactional_id: str = ""


class PartitionsSchema(Struct):
    """Partitions of one topic."""

    topic: str = ""
    partition_ids: list[Int32] = []


@message(until=1, flexible_since=1)
class TransactionLogValue(Struct):
    """The state of a transactional id. Times are wall clock; without a transaction the start is -1."""

    producer_id: Int64 = 0
    previous_producer_id: Annotated[Int64, Since(1), Tag(0), Ignorable] = -1
    next_producer_id: Annotated[Int64, Since(1), Tag(1), Ignorable] = -1
    producer_epoch: Int16 = 0
    transaction_timeout_ms: Int32 = 0
    transaction_status: Int8 = 0
    transaction_partitions: list[PartitionsSchema] | None = []
    transaction_last_update_timestamp_ms: Int64 = 0
    transaction_start_timestamp_ms: Int64 = 0
    client_transaction_version: Annotated[Int16, Since(1), Tag(2), Ignorable] = 0
    next_producer_epoch: Annotated[Int16, Since(1), Tag(3), Ignorable] = -1
    last_producer_epoch: Annotated[Int16, Since(1), Tag(10_000), Ignorable] = -1


def entries_bytes(entries: list[PartitionsSchema], version: int) -> bytes:
    """Entries of a value's list of partitions, as a version of the value has them."""
    whole, empty = encode(TransactionLogValue(transaction_partitions=entries), version), encode(TransactionLogValue(), version)
    after = len(empty) - _PARTITIONS_AT - len(_count(0, version))
    return whole[_PARTITIONS_AT + len(_count(len(entries), version)) : len(whole) - after]


def with_entries(value: bytes, version: int, count: int, entries: Iterable[bytes]) -> bytes:
    """A value, with its version, whose list of partitions is empty, with these entries of ``entries_bytes`` in it."""
    at = _VERSION.size + _PARTITIONS_AT
    return b"".join((value[:at], _count(count, version), *entries, value[at + len(_count(0, version)) :]))


def _count(elements: int, version: int) -> bytes:
    """The head of a list: a varint from version 1 on, else an int32."""
    return uvarint(elements + 1) if version >= 1 else _COUNT.pack(elements)


def encode_record(key: TransactionLogKey, value: TransactionLogValue | None, version: int) -> tuple[bytes, bytes | None]:
    """Key and value as bytes, with this version of the value; value None is a tombstone."""
    written = _VERSION.pack(KEY_VERSION) + encode(key, KEY_VERSION)
    return written, None if value is None else _VERSION.pack(version) + encode(value, version)


def decode_record(key: bytes, value: bytes | None) -> tuple[TransactionLogKey, TransactionLogValue | None] | None:
    """Key and value as messages; None for a key of a later version. Raises: MalformedMessage."""
    if _number(key) != KEY_VERSION:
        return None
    read = decode(TransactionLogKey, key, KEY_VERSION, _VERSION.size)
    if value is None:
        return read, None
    try:
        return read, decode(TransactionLogValue, value, _number(value), _VERSION.size)
    except UnsupportedVersion as error:
        raise MalformedMessage(str(error)) from None


def _number(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage("a key or value begins with two bytes of version")
    number: int = _VERSION.unpack_from(data)[0]
    return number
