"""The records of ``__consumer_offsets``, byte for byte as in Kafka.

A key and a value each begin with an int16: the type of the record, and the version of the value; a message follows::

    key    | type 2 | group id |                                value  | version 3 | protocol type | generation | ... members |
    key    | type 1 | group id | topic | partition |              value  | version 3 | offset | leader epoch | metadata | time |

No value is a tombstone. Loading skips types of later versions and refuses values of later versions. ``TYPES`` has all known types; the
message of a key is declared with the type as its only version, except OffsetCommitKey, whose types 0 and 1 are equivalent.

Source: Kafka's group-coordinator message schemas, GroupCoordinatorRecordSerde.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from struct import Struct as Layout
from typing import Annotated, Any

import msgspec

from ottla.broker.groups.consumer import record_schemas as consumer
from ottla.wire.compile import decode, encode
from ottla.wire.declare import Ignorable, Int32, Int64, MalformedMessage, Since, Struct, Until, message
from ottla.wire.errors import UnsupportedVersion

_VERSION = Layout(">h")
#: The end of an OffsetCommit key; the start of its value up to the metadata, the end, and both without metadata.
_PARTITION, _VALUE, _TIME, _VALUE_WITHOUT_TEXT = Layout(">i"), Layout(">hqih"), Layout(">q"), Layout(">hqihq")
#: Maximum length of a string in a record.
TEXT_BYTES_MAX = 2**15 - 1


@message(since=0, until=1, flexible_since=None)
class OffsetCommitKey(Struct):
    """A group's offset in one partition; types 0 and 1."""

    group: str = ""
    topic: str = ""
    partition: Int32 = 0


@message(since=0, until=4, flexible_since=4)
class OffsetCommitValue(Struct):
    """A committed offset. Times are wall clock; the expiry is set only by clients that choose one (OffsetCommit 2 to 4)."""

    offset: Int64 = 0
    leader_epoch: Annotated[Int32, Since(3), Ignorable] = -1
    metadata: str = ""
    commit_timestamp: Int64 = 0
    expire_timestamp: Annotated[Int64, Since(1), Until(1), Ignorable] = -1


@message(since=2, until=2, flexible_since=None)
class GroupMetadataKey(Struct):
    """A group of the classic protocol; type 2."""

    group: str = ""


class MemberMetadata(Struct):
    """A member: its last JoinGroup, with the chosen protocol, and its assignment."""

    member_id: str = ""
    group_instance_id: Annotated[str | None, Since(3), Ignorable] = None
    client_id: str = ""
    client_host: str = ""
    rebalance_timeout: Annotated[Int32, Since(1), Ignorable] = -1
    session_timeout: Int32 = 0
    subscription: bytes = b""
    assignment: bytes = b""


@message(since=0, until=4, flexible_since=4)
class GroupMetadataValue(Struct):
    """A complete generation of a group. Without members the group is empty since ``current_state_timestamp``."""

    protocol_type: str = ""
    generation: Int32 = 0
    protocol: str | None = None
    leader: str | None = None
    current_state_timestamp: Annotated[Int64, Since(2), Ignorable] = -1
    members: list[MemberMetadata] = []


@dataclass(frozen=True, slots=True)
class RecordType:
    """One type of record."""

    key: type[msgspec.Struct]
    value: type[msgspec.Struct]
    #: The type as written.
    number: int
    #: The version of written values.
    value_version: int


#: By the number at the start of a key. Kafka reads OffsetCommit keys with both numbers, and writes 1.
TYPES: dict[int, RecordType] = {
    0: RecordType(OffsetCommitKey, OffsetCommitValue, 1, 3),
    1: RecordType(OffsetCommitKey, OffsetCommitValue, 1, 3),
    2: RecordType(GroupMetadataKey, GroupMetadataValue, 2, 3),
    3: RecordType(consumer.ConsumerGroupMetadataKey, consumer.ConsumerGroupMetadataValue, 3, 0),
    4: RecordType(consumer.ConsumerGroupPartitionMetadataKey, consumer.ConsumerGroupPartitionMetadataValue, 4, 0),
    5: RecordType(consumer.ConsumerGroupMemberMetadataKey, consumer.ConsumerGroupMemberMetadataValue, 5, 0),
    6: RecordType(consumer.ConsumerGroupTargetAssignmentMetadataKey, consumer.ConsumerGroupTargetAssignmentMetadataValue, 6, 0),
    7: RecordType(consumer.ConsumerGroupTargetAssignmentMemberKey, consumer.ConsumerGroupTargetAssignmentMemberValue, 7, 0),
    8: RecordType(consumer.ConsumerGroupCurrentMemberAssignmentKey, consumer.ConsumerGroupCurrentMemberAssignmentValue, 8, 0),
    16: RecordType(consumer.ConsumerGroupRegularExpressionKey, consumer.ConsumerGroupRegularExpressionValue, 16, 0),
}
#: The version of an OffsetCommitValue with an expiry.
EXPIRY_VERSION = 1

_BY_KEY = {kind.key: kind for kind in TYPES.values()}
_OFFSET = TYPES[1]


def encode_record(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    """Key and value as bytes; value None is a tombstone."""
    if type(key) is OffsetCommitKey:
        return _encode_offset(key, value)
    return _encode(key, value)


def _encode_offset(key: OffsetCommitKey, value: OffsetCommitValue | None) -> tuple[bytes, bytes | None]:
    """As ``_encode``, which takes four times as long: a request may have thousands of offsets."""
    start = _key_start(key.group, key.topic)
    if start is None or (value is not None and value.expire_timestamp != -1):
        return _encode(key, value)
    written = start + _PARTITION.pack(key.partition)
    if value is None:
        return written, None
    version = _OFFSET.value_version
    if not value.metadata:
        return written, _VALUE_WITHOUT_TEXT.pack(version, value.offset, value.leader_epoch, 0, value.commit_timestamp)
    text = value.metadata.encode()
    if len(text) > TEXT_BYTES_MAX:
        return _encode(key, value)
    return written, _VALUE.pack(version, value.offset, value.leader_epoch, len(text)) + text + _TIME.pack(value.commit_timestamp)


@lru_cache(maxsize=8)
def _key_start(group: str, topic: str) -> bytes | None:
    """The start of an OffsetCommit key, which is that of all partitions of the topic; None if a name is too long."""
    names = group.encode(), topic.encode()
    if max(map(len, names)) > TEXT_BYTES_MAX:
        return None
    return _VERSION.pack(_OFFSET.number) + b"".join(_VERSION.pack(len(name)) + name for name in names)


def _encode(key: Any, value: Any) -> tuple[bytes, bytes | None]:
    kind = _BY_KEY[type(key)]
    written = _VERSION.pack(kind.number) + encode(key, kind.number)
    if value is None:
        return written, None
    version = kind.value_version
    if type(value) is OffsetCommitValue and value.expire_timestamp != -1:
        version = EXPIRY_VERSION
    return written, _VERSION.pack(version) + encode(value, version)


def decode_record(key: bytes, value: bytes | None) -> tuple[Any, Any] | None:
    """Key and value as messages; None for an unknown type. Raises: MalformedMessage."""
    kind = TYPES.get(_number(key))
    if kind is None:
        return None
    read = decode(kind.key, key, kind.number, _VERSION.size)
    return read, None if value is None else _value(kind, value)


def _value(kind: RecordType, value: bytes) -> Any:
    try:
        return decode(kind.value, value, _number(value), _VERSION.size)
    except UnsupportedVersion as error:
        raise MalformedMessage(str(error)) from None


def _number(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise MalformedMessage("a key or value begins with two bytes of version")
    number: int = _VERSION.unpack_from(data)[0]
    return number
