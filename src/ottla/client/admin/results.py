"""Results of admin requests, with Kafka's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Self, TypeAlias

import msgspec

from ottla.base.acls import Operation as Operation
from ottla.base.ids import topic_id_text
from ottla.client.argument_validation import mapping, topic_name, whole_number
from ottla.client.html_tables import html_table

#: Value of a setting: Kafka's text, or Python's numbers and truth values. None: the default.
ConfigValue: TypeAlias = str | int | float | bool | None


def config_text(value: ConfigValue) -> str | None:
    """A value in Kafka's text form."""
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


class ProtocolName(StrEnum):
    """A name of the protocol in any case; names of later brokers are UNKNOWN."""

    @classmethod
    def _missing_(cls, value: object) -> Self:
        wanted = str(value).lower()
        return next((one for one in cls if one.value.lower() == wanted), cls("Unknown"))


class ResourceType(IntEnum):
    """Types of resources with settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Origin of a setting's value; the first that is set applies."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    DYNAMIC_BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class ConfigOperation(IntEnum):
    """How `incremental_alter_configs` changes a setting; the last two are for lists."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class ConfigType(IntEnum):
    """Type of a setting's text. Source: KIP-569."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class ElectionType(IntEnum):
    """PREFERRED: the first replica, if it is in sync. UNCLEAN: any live replica, if none is in sync."""

    PREFERRED = 0
    UNCLEAN = 1


class Resource(msgspec.Struct, frozen=True, order=True):
    """A resource with settings: a topic by name, a broker by id, the default of all brokers by the empty name."""

    type: ResourceType
    name: str

    def __str__(self) -> str:
        return f"{self.type.name.lower().replace('_', ' ')} {self.name or '(default for all)'}"

    @classmethod
    def topic(cls, name: str) -> Resource:
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, node_id: int | None) -> Resource:
        """A broker; None: the default of all brokers."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    @classmethod
    def broker_logger(cls, node_id: int) -> Resource:
        """The log levels of a broker. Source: KIP-412."""
        return cls(ResourceType.BROKER_LOGGER, str(node_id))

    @classmethod
    def group(cls, group_id: str) -> Resource:
        """A group of the consumer protocol. Source: KIP-848."""
        return cls(ResourceType.GROUP, group_id)

    @classmethod
    def client_metrics(cls, name: str) -> Resource:
        """A subscription to client metrics. Source: KIP-714."""
        return cls(ResourceType.CLIENT_METRICS, name)


@dataclass(init=False, slots=True)
class NewTopic:
    """A topic to create: `NewTopic("orders", partitions=6)`. -1 is the cluster's default. `assignments`, replicas by partition, replaces
    both numbers. `num_partitions`, Java's name, and `partitions` are the same.

    Raises: TypeError, ValueError.
    """

    name: str
    num_partitions: int
    replication_factor: int
    configs: Mapping[str, ConfigValue]
    assignments: Mapping[int, Sequence[int]]

    def __init__(
        self,
        name: str,
        num_partitions: int = -1,
        replication_factor: int = -1,
        configs: Mapping[str, ConfigValue] | None = None,
        assignments: Mapping[int, Sequence[int]] | None = None,
        *,
        partitions: int | None = None,
    ) -> None:
        if partitions is not None and num_partitions != -1:
            raise TypeError("partitions= and num_partitions= are the same; give one of them")
        self.name = topic_name(name)
        self.num_partitions = whole_number("partitions", num_partitions if partitions is None else partitions, at_least=-1)
        self.replication_factor = whole_number("replication_factor", replication_factor, at_least=-1)
        self.configs = mapping("configs", configs or {}, "{'retention.ms': 3600000}")
        self.assignments = {
            whole_number("a partition of assignments", index): [whole_number("a broker's id", node) for node in nodes]
            for index, nodes in mapping("assignments", assignments or {}, "{0: [1, 2], 1: [2, 3]}").items()
        }


class NewPartitions(msgspec.Struct):
    """The new total number of partitions of a topic, and optionally the replicas of the new ones."""

    total_count: int
    assignments: list[list[int]] | None = None


class Node(msgspec.Struct, frozen=True):
    """A broker."""

    id: int
    host: str
    port: int
    rack: str | None = None
    is_fenced: bool = False


class CreatedTopic(msgspec.Struct, frozen=True):
    """A created topic; numbers are -1 and configs empty if the broker is too old to report them."""

    name: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    configs: dict[str, str | None]

    @property
    def topic_id_text(self) -> str:
        """The id in Kafka's text form."""
        return topic_id_text(self.topic_id)


class TopicListing(msgspec.Struct, frozen=True):
    """A topic's name and id."""

    name: str
    topic_id: bytes
    is_internal: bool
    partition_count: int
    replication_factor: int


class PartitionDescription(msgspec.Struct, frozen=True):
    """A partition; leader -1 if there is none; replicas in order of preference."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]
    #: Eligible leader replicas, and the last known ones; None if the broker is too old to report them. Source: KIP-966.
    elr: list[int] | None = None
    last_known_elr: list[int] | None = None


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic and its partitions, in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionDescription]
    #: Operations this client is authorized for, if requested.
    authorized_operations: frozenset[Operation] | None = None

    @property
    def topic_id_text(self) -> str:
        """The id in Kafka's text form."""
        return topic_id_text(self.topic_id)

    def _repr_html_(self) -> str:
        return html_table(self.partitions, title=f"{self.name}  {self.topic_id_text}")


class ClusterDescription(msgspec.Struct, frozen=True):
    """The cluster's id, its brokers, and its controller (-1: none, or any)."""

    cluster_id: str | None
    controller: int
    nodes: list[Node]
    #: Operations this client is authorized for, if requested.
    authorized_operations: frozenset[Operation] | None = None

    def _repr_html_(self) -> str:
        return html_table(self.nodes, title=f"cluster {self.cluster_id}, controller {self.controller}")


class ConfigSynonym(msgspec.Struct, frozen=True):
    """Another origin of a setting, and its value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """A setting and its value as text; None for a secret. `config_type` is UNKNOWN before Kafka 2.6."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    is_read_only: bool
    config_type: ConfigType = ConfigType.UNKNOWN
    documentation: str | None = None
    synonyms: list[ConfigSynonym] = []

    @property
    def is_default(self) -> bool:
        """Whether it has no override."""
        return self.source in (ConfigSource.DEFAULT, ConfigSource.STATIC_BROKER)


class ConfigChange(msgspec.Struct, frozen=True):
    """One change of a setting."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


class PartitionReassignment(msgspec.Struct, frozen=True):
    """A reassignment: all replicas, the target's first, and those that are added and removed."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas after the reassignment."""
        return [broker for broker in self.replicas if broker not in self.removing]


class ReplicaLog(msgspec.Struct, frozen=True):
    """A replica in a log directory: its size in bytes and its lag. `is_future`: it is moving here from another directory.

    `damage`: the damage of the log that an Ottla broker found; empty otherwise.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    damage: str = ""


class LogDir(msgspec.Struct, frozen=True):
    """A log directory of a broker. Totals are -1 if the broker is too old to report them; `error`: why it is offline."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaLog]
    #: It receives no new replicas. Source: KIP-1066.
    is_cordoned: bool = False


class ActiveProducer(msgspec.Struct, frozen=True):
    """A producer in the producer state of a partition. Times are milliseconds; `transaction_start_offset` is -1 outside of a
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int
