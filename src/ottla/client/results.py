"""What an admin client answers: plain structures, each with the names Kafka's users know."""

from __future__ import annotations

from enum import IntEnum

import msgspec

from ottla.base.ids import topic_id_text


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


class ElectionType(IntEnum):
    """Who may be elected: the first replica, if it is in sync; or any that is alive, where none in sync is left."""

    PREFERRED = 0
    UNCLEAN = 1


class Resource(msgspec.Struct, frozen=True, order=True):
    """A thing with settings: a topic by name, a broker by id, the cluster's default for brokers by the empty name."""

    type: ResourceType
    name: str

    @classmethod
    def topic(cls, name: str) -> Resource:
        """A topic."""
        return cls(ResourceType.TOPIC, name)

    @classmethod
    def broker(cls, node_id: int | None) -> Resource:
        """A broker; None: what holds for all brokers."""
        return cls(ResourceType.BROKER, "" if node_id is None else str(node_id))


class NewTopic(msgspec.Struct):
    """A topic to create. -1 takes the cluster's default; `assignments`, replicas by partition, stands in for both numbers."""

    name: str
    num_partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str | None] = {}
    assignments: dict[int, list[int]] = {}


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


class CreatedTopic(msgspec.Struct):
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


class TopicListing(msgspec.Struct):
    """A topic's name and id."""

    name: str
    topic_id: bytes
    is_internal: bool
    partition_count: int
    replication_factor: int


class PartitionDescription(msgspec.Struct):
    """A partition: leader -1 while there is none; replicas in order of preference."""

    partition: int
    leader: int
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline_replicas: list[int]


class TopicDescription(msgspec.Struct):
    """A topic and its partitions, in order."""

    name: str
    topic_id: bytes
    is_internal: bool
    partitions: list[PartitionDescription]

    @property
    def topic_id_text(self) -> str:
        """The id as Kafka prints it."""
        return topic_id_text(self.topic_id)


class ClusterDescription(msgspec.Struct):
    """The cluster: its id, its brokers, and the broker that is the controller (-1: none, or any)."""

    cluster_id: str | None
    controller: int
    nodes: list[Node]


class ConfigSynonym(msgspec.Struct):
    """Another place that could give the value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(msgspec.Struct):
    """A setting and its value, as text; None for a secret. `config_type` is the protocol's number, 0 from an old broker."""

    name: str
    value: str | None
    source: ConfigSource
    is_sensitive: bool
    is_read_only: bool
    config_type: int = 0
    documentation: str | None = None
    synonyms: list[ConfigSynonym] = []

    @property
    def is_default(self) -> bool:
        """Nobody set it."""
        return self.source in (ConfigSource.DEFAULT, ConfigSource.STATIC_BROKER)


class ConfigChange(msgspec.Struct):
    """One change of one setting."""

    name: str
    value: str | None = None
    operation: ConfigOperation = ConfigOperation.SET


class PartitionReassignment(msgspec.Struct):
    """A move under way: all replicas, those of the target first, and which of them come and go."""

    replicas: list[int]
    adding: list[int]
    removing: list[int]

    @property
    def target(self) -> list[int]:
        """The replicas when it is done."""
        return [broker for broker in self.replicas if broker not in self.removing]


class ReplicaLog(msgspec.Struct):
    """A replica in a log directory: bytes on disk, and how far it lags behind. `is_future`: it is moving here from another directory."""

    topic: str
    partition: int
    size_bytes: int
    offset_lag: int
    is_future: bool


class LogDir(msgspec.Struct):
    """A log directory of a broker. Totals are -1 where the broker is too old to tell; `error`: why it is offline."""

    path: str
    error: str | None
    total_bytes: int
    usable_bytes: int
    replicas: list[ReplicaLog]


class ActiveProducer(msgspec.Struct):
    """A producer that the leader of a partition remembers. Times are milliseconds; `transaction_start_offset` is -1 outside of a
    transaction.
    """

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int
