"""The records of ``__cluster_metadata`` that an import reads, as in Kafka's metadata schemas.

A value is three unsigned varints, then the message: version of the frame (1), key of the record type, version of the record. All versions
are flexible, so tagged fields that are not declared here are skipped. Source: KIP-631, KIP-858 (directories), KIP-966 (ELR).
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ottla.wire.codegen import long_uvarint
from ottla.wire.compile import decode
from ottla.wire.declare import ZERO_UUID, Float64, Int8, Int16, Int32, Int64, MalformedMessage, Since, Struct, Tag, UInt16, Uuid, message

_FRAME_VERSION = 1


class Endpoint(Struct):
    """An address of a broker."""

    name: str = ""
    host: str = ""
    port: UInt16 = 0
    security_protocol: Int16 = 0


class SupportedFeature(Struct):
    """A range of levels that a broker supports."""

    name: str = ""
    min_supported_version: Int16 = 0
    max_supported_version: Int16 = 0


@message(until=4, flexible_since=0)
class RegisterBrokerRecord(Struct):
    """Key 0."""

    broker_id: Int32 = 0
    is_migrating_zk_broker: Annotated[bool, Since(2)] = False
    incarnation_id: Uuid = ZERO_UUID
    broker_epoch: Int64 = 0
    end_points: list[Endpoint] = []
    features: list[SupportedFeature] = []
    rack: str | None = None
    fenced: bool = True
    in_controlled_shutdown: Annotated[bool, Since(1)] = False


@message(until=0, flexible_since=0)
class UnregisterBrokerRecord(Struct):
    """Key 1."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = 0


@message(until=0, flexible_since=0)
class TopicRecord(Struct):
    """Key 2."""

    name: str = ""
    topic_id: Uuid = ZERO_UUID


@message(until=2, flexible_since=0)
class PartitionRecord(Struct):
    """Key 3: the whole state of a partition."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    replicas: list[Int32] = []
    isr: list[Int32] = []
    removing_replicas: list[Int32] = []
    adding_replicas: list[Int32] = []
    leader: Int32 = -1
    leader_recovery_state: Annotated[Int8, Tag(0)] = 0
    leader_epoch: Int32 = -1
    partition_epoch: Int32 = -1
    directories: Annotated[list[Uuid], Since(1)] = []
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(1)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(2)] = None


@message(until=0, flexible_since=0)
class ConfigRecord(Struct):
    """Key 4: one setting; a value of null deletes it."""

    resource_type: Int8 = 0
    resource_name: str = ""
    name: str = ""
    value: str | None = None


@message(until=2, flexible_since=0)
class PartitionChangeRecord(Struct):
    """Key 5: changes of a partition's state. Fields with their default did not change; a change of the leader raises its epoch."""

    partition_id: Int32 = -1
    topic_id: Uuid = ZERO_UUID
    isr: Annotated[list[Int32] | None, Tag(0)] = None
    leader: Annotated[Int32, Tag(1)] = -2
    replicas: Annotated[list[Int32] | None, Tag(2)] = None
    removing_replicas: Annotated[list[Int32] | None, Tag(3)] = None
    adding_replicas: Annotated[list[Int32] | None, Tag(4)] = None
    leader_recovery_state: Annotated[Int8, Tag(5)] = -1
    eligible_leader_replicas: Annotated[list[Int32] | None, Since(2), Tag(6)] = None
    last_known_elr: Annotated[list[Int32] | None, Since(2), Tag(7)] = None
    directories: Annotated[list[Uuid] | None, Since(1), Tag(8)] = None


@message(until=0, flexible_since=0)
class RemoveTopicRecord(Struct):
    """Key 9: removes the topic with its partitions."""

    topic_id: Uuid = ZERO_UUID


@message(until=0, flexible_since=0)
class DelegationTokenRecord(Struct):
    """Key 10."""

    owner: str = ""
    requester: str = ""
    renewers: list[str] = []
    issue_timestamp: Int64 = 0
    max_timestamp: Int64 = 0
    expiration_timestamp: Int64 = 0
    token_id: str = ""


@message(until=0, flexible_since=0)
class UserScramCredentialRecord(Struct):
    """Key 11. The secrets are read past and never shown."""

    name: str = ""
    mechanism: Int8 = 0
    salt: bytes = b""
    stored_key: bytes = b""
    server_key: bytes = b""
    iterations: Int32 = 0


@message(until=0, flexible_since=0)
class FeatureLevelRecord(Struct):
    """Key 12."""

    name: str = ""
    feature_level: Int16 = 0


class QuotaEntity(Struct):
    """A part of the name of what has a quota; null is the default."""

    entity_type: str = ""
    entity_name: str | None = None


@message(until=0, flexible_since=0)
class ClientQuotaRecord(Struct):
    """Key 14."""

    entity: list[QuotaEntity] = []
    key: str = ""
    value: Float64 = 0.0
    remove: bool = False


@message(until=0, flexible_since=0)
class ProducerIdsRecord(Struct):
    """Key 15: producer ids below the next one are assigned."""

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    next_producer_id: Int64 = 0


@message(until=0, flexible_since=0)
class AccessControlEntryRecord(Struct):
    """Key 18."""

    id: Uuid = ZERO_UUID
    resource_type: Int8 = 0
    resource_name: str = ""
    pattern_type: Int8 = 0
    principal: str = ""
    host: str = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@message(until=0, flexible_since=0)
class RemoveAccessControlEntryRecord(Struct):
    """Key 19."""

    id: Uuid = ZERO_UUID


@message(until=0, flexible_since=0)
class RemoveUserScramCredentialRecord(Struct):
    """Key 22."""

    name: str = ""
    mechanism: Int8 = 0


@message(until=0, flexible_since=0)
class BeginTransactionRecord(Struct):
    """Key 23: the records up to the end or abort are applied together. Source: KIP-868."""

    name: Annotated[str | None, Tag(0)] = None


@message(until=0, flexible_since=0)
class EndTransactionRecord(Struct):
    """Key 24."""


@message(until=0, flexible_since=0)
class AbortTransactionRecord(Struct):
    """Key 25."""

    reason: Annotated[str | None, Tag(0)] = None


@message(until=0, flexible_since=0)
class RemoveDelegationTokenRecord(Struct):
    """Key 26."""

    token_id: str = ""


@message(until=0, flexible_since=0)
class ClearElrRecord(Struct):
    """Key 28: clears the eligible leader replicas of a topic, or of all topics if the name is empty."""

    topic_name: str = ""


#: Messages by the key of the record type.
TYPES: dict[int, type[Struct]] = {
    0: RegisterBrokerRecord,
    1: UnregisterBrokerRecord,
    2: TopicRecord,
    3: PartitionRecord,
    4: ConfigRecord,
    5: PartitionChangeRecord,
    9: RemoveTopicRecord,
    10: DelegationTokenRecord,
    11: UserScramCredentialRecord,
    12: FeatureLevelRecord,
    14: ClientQuotaRecord,
    15: ProducerIdsRecord,
    18: AccessControlEntryRecord,
    19: RemoveAccessControlEntryRecord,
    22: RemoveUserScramCredentialRecord,
    23: BeginTransactionRecord,
    24: EndTransactionRecord,
    25: AbortTransactionRecord,
    26: RemoveDelegationTokenRecord,
    28: ClearElrRecord,
}
#: Types without content for an import: fencing, changes of registrations, no-ops, migration from ZooKeeper, controllers.
IGNORED = frozenset({7, 8, 17, 20, 21, 27, 29})


def decode_metadata_record(value: bytes) -> msgspec.Struct | None:
    """The message in a record of the metadata log; None for a type that an import ignores.

    Raises: MalformedMessage, UnsupportedVersion. A type that is not known is malformed: it may be about topics.
    """
    try:
        frame, position = long_uvarint(value, 0)
        key, position = long_uvarint(value, position)
        version, position = long_uvarint(value, position)
    except IndexError as error:
        raise MalformedMessage(f"a metadata record has no frame: {error}") from None
    if frame != _FRAME_VERSION:
        raise MalformedMessage(f"a metadata record has frame version {frame}, and {_FRAME_VERSION} is known")
    if key in IGNORED:
        return None
    kind: Any = TYPES.get(key)
    if kind is None:
        raise MalformedMessage(f"a metadata record has the type {key}, which this version of Ottla does not know")
    found: msgspec.Struct = decode(kind, value, version, position)
    return found
