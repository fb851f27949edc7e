"""What an admin client answers: plain structures, each with the names Kafka's users know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

import msgspec

from ottla.base.ids import topic_id_text
from ottla.client.argument_validation import mapping, topic_name, whole_number
from ottla.wire.messages.metadata import NOT_ASKED

#: A setting's value as users may write it: Kafka's text, or Python's numbers and truth values. None: the default.
ConfigValue: TypeAlias = str | int | float | bool | None


def config_text(value: ConfigValue) -> str | None:
    """A value as brokers read it."""
    return str(value).lower() if isinstance(value, bool) else None if value is None else str(value)


class ResourceType(IntEnum):
    """What has settings."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class ConfigSource(IntEnum):
    """Where a setting's value comes from; the first that is set wins."""

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
    """What a setting's text means. Source: KIP-569."""

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


class Operation(IntEnum):
    """What a client may do with a topic, a group or the cluster. Source: KIP-11, KIP-430."""

    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15

    @classmethod
    def of_bits(cls, bits: int) -> frozenset[Operation] | None:
        """The operations of a bit field, where bit n stands for code n; None: the broker was not asked, or did not say."""
        return None if bits == NOT_ASKED else frozenset(one for one in cls if bits >> one & 1)


class ElectionType(IntEnum):
    """Who may be elected: the first replica, if it is in sync; or any that is alive, where none in sync is left."""

    PREFERRED = 0
    UNCLEAN = 1


class Resource(msgspec.Struct, frozen=True, order=True):
    """A thing with settings: a topic by name, a broker by id, the cluster's default for brokers by the empty name."""

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
        """A broker; None: what holds for all brokers."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))

    @classmethod
    def broker_logger(cls, node_id: int) -> Resource:
        """The levels at which a broker logs. Source: KIP-412."""
        return cls(ResourceType.BROKER_LOGGER, str(node_id))

    @classmethod
    def group(cls, group_id: str) -> Resource:
        """A consumer group of the new protocol. Source: KIP-848."""
        return cls(ResourceType.GROUP, group_id)

    @classmethod
    def client_metrics(cls, name: str) -> Resource:
        """A subscription to clients' metrics. Source: KIP-714."""
        return cls(ResourceType.CLIENT_METRICS, name)


@dataclass(init=False, slots=True)
class NewTopic:
    """A topic to create: `NewTopic("orders", partitions=6)`. -1 takes the cluster's default; `assignments`, replicas by partition, stands
    in for both numbers. `num_partitions`, as Java calls it, and `partitions` are the same.

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
    """How many partitions a topic shall have in all, and for the new ones which replicas, if that is not left to the cluster."""

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
    """A topic that was created; numbers are -1 and configs empty where the broker is too old to tell."""

    name: str
    topic_id: bytes
    num_partitions: int
    replication_factor: int
    configs: dict[str, str | None]

    @property
    def topic_id_text(self) -> str:
        """The id as Kafka prints it."""
        return topic_id_text(self.topic_id)


class TopicListing(msgspec.Struct, frozen=True):
    """A topic's name and id."""

    name: str
    topic_id: bytes
    is_internal: bool
    partition_count: int
    replication_factor: int


class PartitionDescription(msgspec.Struct, frozen=True):
    """A partition: leader -1 while there is none; replicas in order of preference."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]
    #: Replicas outside of the ISR that have all that was committed, and those that led or were in the ISR last; None where the broker is
    #: too old to tell. Source: KIP-966.
    elr: list[int] | None = None
    last_known_elr: list[int] | None = None


class TopicDescription(msgspec.Struct, frozen=True):
    """A topic and its partitions, in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionDescription]
    #: What this client may do with it, where that was asked.
    authorized_operations: frozenset[Operation] | None = None

    @property
    def topic_id_text(self) -> str:
        """The id as Kafka prints it."""
        return topic_id_text(self.topic_id)


class ClusterDescription(msgspec.Struct, frozen=True):
    """The cluster: its id, its brokers, and the broker that is the controller (-1: none, or any)."""

    cluster_id: str | None
    controller: int
    nodes: list[Node]
    #: What this client may do with the cluster, where that was asked.
    authorized_operations: frozenset[Operation] | None = None


class ConfigSynonym(msgspec.Struct, frozen=True):
    """Another place that could give the value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct, frozen=True):
    """A setting and its value, as text; None for a secret. `config_type` is UNKNOWN from a broker before Kafka 2.6."""

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
        """Nobody set it."""
        return self.source in (ConfigSource.DEFAULT, ConfigSource.STATIC_BROKER)


class ConfigChange(msgspec.Struct, frozen=True):
    """One change of one setting."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


class PartitionReassignment(msgspec.Struct, frozen=True):
    """A move under way: all replicas, those of the target first, and which of them come and go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas when it is done."""
        return [broker for broker in self.replicas if broker not in self.removing]


class ReplicaLog(msgspec.Struct, frozen=True):
    """A replica in a log directory: bytes on disk, and how far it lags behind. `is_future`: it is moving here from another directory.

    `damage`: what an Ottla broker knows to be wrong with the log, in words; empty otherwise.
    """

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool
    damage: str = ""


class LogDir(msgspec.Struct, frozen=True):
    """A log directory of a broker. Totals are -1 where the broker is too old to tell; `error`: why it is offline."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaLog]
    #: It gets no new replicas. Source: KIP-1066.
    is_cordoned: bool = False


class ActiveProducer(msgspec.Struct, frozen=True):
    """A producer that the leader of a partition remembers. Times are milliseconds; `transaction_start_offset` is -1 outside of a
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int
