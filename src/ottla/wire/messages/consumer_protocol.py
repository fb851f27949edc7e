"""Subscriptions and assignments that consumers exchange in JoinGroup and SyncGroup; opaque bytes for the broker.

    | version: int16 | subscription or assignment, of that version |

| version | change |
|-|-|
| 1 | the partitions a member owns (KIP-429) |
| 2 | the generation it owned them in (KIP-792) |
| 3 | its rack (KIP-881) |

Assignments are the same in all versions. A new version may only add fields at the end: a reader takes a version it does not know for the
last one it does, and ignores what follows, so that a group may be upgraded one member at a time.

Some clients (KafkaJS, kafka-go, sarama-cluster) write version 1 and end after the user data. ``decode_subscription`` reads them: version
0 is a prefix of every version, and fields that are missing at the end have their defaults.
"""

import struct
from typing import Annotated

import msgspec

from ottla.wire.compile import Buffer, decode, encode
from ottla.wire.declare import Ignorable, Int32, MalformedMessage, S, Since, Struct, message, schema_of

__all__ = ["ConsumerProtocolAssignment", "ConsumerProtocolSubscription"]

#: The type of protocol under which consumers join.
PROTOCOL_TYPE = "consumer"
#: One member may read all of a very large cluster, which is more than a request may have elements. In memory one takes up to 100 bytes.
ELEMENTS_MAX = 500_000

_VERSION = struct.Struct(">h")


class TopicPartition(Struct):
    """Partitions of one topic, in spite of its name, which is Kafka's."""

    topic: str = ""
    partitions: list[Int32] = []


@message(until=3, flexible_since=None, extensible=True)
class ConsumerProtocolSubscription(Struct):
    """The topics of a subscription and the owned partitions; generation -1: unknown."""

    topics: list[str] = []
    user_data: bytes | None = None
    owned_partitions: Annotated[list[TopicPartition], Since(1), Ignorable] = []
    generation_id: Annotated[Int32, Since(2), Ignorable] = -1
    rack_id: Annotated[str | None, Since(3), Ignorable] = None


@message(until=3, flexible_since=None, extensible=True)
class ConsumerProtocolAssignment(Struct):
    """The partitions a member is to read."""

    assigned_partitions: list[TopicPartition] = []
    user_data: bytes | None = None


def encode_embedded(message: msgspec.Struct, version: int | None = None) -> bytes:
    """Write a subscription or an assignment behind its version, by default the last one.

    Raises UnsupportedVersion for a version that is not declared.
    """
    if version is None:
        version = schema_of(type(message)).until
    return _VERSION.pack(version) + encode(message, version)


def decode_embedded(cls: type[S], buffer: Buffer) -> S:
    """Read a subscription or an assignment of whatever version. Raises MalformedMessage."""
    return _decode(cls, buffer, _version(cls, buffer))


def decode_subscription(buffer: Buffer) -> ConsumerProtocolSubscription:
    """Reads a subscription; fields of version 1 and later that are missing or unreadable have their defaults.

    Raises: MalformedMessage if version, topics or user data are unreadable. Source: Kafka's ClassicGroup.computeSubscribedTopics, which
    reads version 0 only.
    """
    version = _version(ConsumerProtocolSubscription, buffer)
    while True:
        try:
            return _decode(ConsumerProtocolSubscription, buffer, version)
        except MalformedMessage:
            if version == 0:
                raise
            version -= 1


def _version(cls: type[S], buffer: Buffer) -> int:
    """The version to decode with. Raises MalformedMessage."""
    if len(buffer) < _VERSION.size:
        raise MalformedMessage(f"{len(buffer)} bytes are too few for a version", message=cls.__name__)
    version: int = _VERSION.unpack_from(buffer)[0]
    if version < 0:
        raise MalformedMessage(f"version {version}", message=cls.__name__)
    return min(version, schema_of(cls).until)


def _decode(cls: type[S], buffer: Buffer, version: int) -> S:
    return decode(cls, buffer, version, _VERSION.size, elements_max=ELEMENTS_MAX)
