"""The admin client that blocks: every method of `ottla.client.admin.admin.Admin`, carried to a loop in a thread and waited for."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.base.ids import TopicPartition
from ottla.client.admin import admin as aio
from ottla.client.admin import cluster_results as c
from ottla.client.admin import group_results as g
from ottla.client.admin import results as r
from ottla.client.admin.calls import Outcome
from ottla.client.argument_validation import patience
from ottla.client.errors import AlreadyClosed
from ottla.client.fetch.offsets import OffsetAndTime
from ottla.client.group.commits import Committed, OffsetAndMetadata
from ottla.client.sync.loop_thread import LoopThread, close_at_exit

if TYPE_CHECKING:
    from ottla.client.admin.group_lag import GroupLag

T = TypeVar("T")
N = TypeVar("N", bound=str | bytes)
Partition = TopicPartition | tuple[str, int]


class Admin:
    """Administers a cluster. Settings are those of `AdminOptions`, as keyword arguments.

    Methods in the plural answer for each item: its result, or the `KafkaError` that befell it. Methods in the singular raise it.

    Raises: ConfigError for a setting that is unknown or invalid.
    """

    def __init__(self, *, rng: Random | None = None, **settings: Any) -> None:
        self._aio = aio.Admin(rng=rng, **settings)
        self.options = self._aio.options
        self._closed = False
        self._thread = LoopThread("ottla-admin")
        close_at_exit(self)

    def __enter__(self) -> Self:
        self._raise_if_closed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self, timeout_ms: float | None = None) -> None:
        """Close the connections, for which nothing has to be waited for: `timeout_ms` is there to be as with the other clients. Closing
        twice is no error.
        """
        patience(timeout_ms)
        if not self._closed:
            self._closed = True
            try:
                self._thread.call(self._aio.close())
            finally:
                self._thread.stop()

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self._raise_if_closed()
        return self._thread.call(work())

    def _raise_if_closed(self) -> None:
        if self._closed:
            raise AlreadyClosed("the admin client is closed; make another one")

    def create_topics(
        self, topics: Iterable[r.NewTopic], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[r.CreatedTopic]]:
        """Create topics; with `validate_only` only check whether they can be created."""
        return self._call(lambda: self._aio.create_topics(topics, validate_only=validate_only, timeout_ms=timeout_ms))

    def create_topic(self, topic: r.NewTopic, *, validate_only: bool = False, timeout_ms: float | None = None) -> r.CreatedTopic:
        """Create one topic. Raises: TopicAlreadyExists, InvalidTopic, InvalidConfig and the like."""
        return self._call(lambda: self._aio.create_topic(topic, validate_only=validate_only, timeout_ms=timeout_ms))

    def delete_topics(self, topics: Iterable[N], *, timeout_ms: float | None = None) -> dict[N, Outcome[None]]:
        """Delete topics, by name or id, with all their records."""
        return self._call(lambda: self._aio.delete_topics(topics, timeout_ms=timeout_ms))

    def delete_topic(self, topic: str | bytes, *, timeout_ms: float | None = None) -> None:
        """Delete one topic, by name or id. Raises: UnknownTopicOrPartition, UnknownTopicId and the like."""
        self._call(lambda: self._aio.delete_topic(topic, timeout_ms=timeout_ms))

    def create_partitions(
        self, partitions: Mapping[str, r.NewPartitions | int], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[None]]:
        """Increase the number of partitions of topics to a new total. This changes which partition a key maps to."""
        return self._call(lambda: self._aio.create_partitions(partitions, validate_only=validate_only, timeout_ms=timeout_ms))

    def list_topics(self, *, internal: bool = False, timeout_ms: float | None = None) -> list[r.TopicListing]:
        """All topics that the client may see, by name."""
        return self._call(lambda: self._aio.list_topics(internal=internal, timeout_ms=timeout_ms))

    def describe_topics(
        self, topics: Iterable[N], *, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> dict[N, Outcome[r.TopicDescription]]:
        """Partitions, leaders and replicas of topics, by name or id; optionally the operations this client is authorized for."""
        return self._call(lambda: self._aio.describe_topics(topics, authorized_operations=authorized_operations, timeout_ms=timeout_ms))

    def describe_topic(
        self, topic: str | bytes, *, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> r.TopicDescription:
        """One topic, by name or id. Raises: UnknownTopicOrPartition, UnknownTopicId and the like."""
        return self._call(lambda: self._aio.describe_topic(topic, authorized_operations=authorized_operations, timeout_ms=timeout_ms))

    def delete_records(self, before: Mapping[Partition, int], *, timeout_ms: float | None = None) -> dict[TopicPartition, Outcome[int]]:
        """Delete the records before an offset (-1: all below the high watermark); returns the new start of each log."""
        return self._call(lambda: self._aio.delete_records(before, timeout_ms=timeout_ms))

    def list_offsets(
        self, times: Mapping[Partition, int], *, read_committed: bool = False, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[OffsetAndTime]]:
        """Offsets by time in milliseconds, or by `offsets.LATEST`, `EARLIEST`, `MAX_TIMESTAMP`, `EARLIEST_LOCAL`, `LATEST_TIERED`."""
        return self._call(lambda: self._aio.list_offsets(times, read_committed=read_committed, timeout_ms=timeout_ms))

    def describe_producers(
        self, partitions: Iterable[Partition], *, broker: int | None = None, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[list[r.ActiveProducer]]]:
        """The producer state of each partition, from its leader or from `broker`, which must have a replica."""
        return self._call(lambda: self._aio.describe_producers(partitions, broker=broker, timeout_ms=timeout_ms))

    def describe_configs(
        self,
        resources: Iterable[r.Resource],
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[r.Resource, Outcome[dict[str, r.ConfigEntry]]]:
        """Settings of topics, brokers and groups by name, all or these."""
        return self._call(
            lambda: self._aio.describe_configs(
                resources, names=names, synonyms=synonyms, documentation=documentation, timeout_ms=timeout_ms
            )
        )

    def describe_config(
        self,
        resource: r.Resource,
        *,
        names: Iterable[str] | None = None,
        synonyms: bool = False,
        documentation: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, r.ConfigEntry]:
        """Settings of one topic, broker or group. Raises: UnknownTopicOrPartition and the like."""
        return self._call(
            lambda: self._aio.describe_config(resource, names=names, synonyms=synonyms, documentation=documentation, timeout_ms=timeout_ms)
        )

    def incremental_alter_configs(
        self, changes: Mapping[r.Resource, Iterable[r.ConfigChange]], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[r.Resource, Outcome[None]]:
        """Change some settings; the others keep their values."""
        return self._call(lambda: self._aio.incremental_alter_configs(changes, validate_only=validate_only, timeout_ms=timeout_ms))

    def incremental_alter_config(
        self, resource: r.Resource, values: Mapping[str, r.ConfigValue], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Change settings of one topic, broker or group; None resets one to its default. Raises: InvalidConfig and the like."""
        self._call(lambda: self._aio.incremental_alter_config(resource, values, validate_only=validate_only, timeout_ms=timeout_ms))

    def alter_configs(
        self, configs: Mapping[r.Resource, Mapping[str, r.ConfigValue]], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[r.Resource, Outcome[None]]:
        """Replace all settings of each resource; others go back to their defaults. Prefer `incremental_alter_configs`."""
        return self._call(lambda: self._aio.alter_configs(configs, validate_only=validate_only, timeout_ms=timeout_ms))

    def list_config_resources(self, types: Iterable[r.ResourceType] = (), *, timeout_ms: float | None = None) -> list[r.Resource]:
        """Resources with settings, of these types or all. Before Kafka 4.1, brokers list CLIENT_METRICS only.

        Raises: BrokerIncompatible.
        """
        return self._call(lambda: self._aio.list_config_resources(types, timeout_ms=timeout_ms))

    def describe_cluster(
        self, *, fenced: bool = False, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> r.ClusterDescription:
        """The cluster's id, brokers and controller; optionally with fenced brokers and the operations this client is authorized for."""
        return self._call(
            lambda: self._aio.describe_cluster(fenced=fenced, authorized_operations=authorized_operations, timeout_ms=timeout_ms)
        )

    def describe_features(self, *, broker: int | None = None, timeout_ms: float | None = None) -> c.Features:
        """Feature levels that a broker supports and that are finalized in the cluster; empty without features. Source: KIP-584."""
        return self._call(lambda: self._aio.describe_features(broker=broker, timeout_ms=timeout_ms))

    def describe_api_versions(self, *, broker: int | None = None, timeout_ms: float | None = None) -> list[c.ApiSupport]:
        """All APIs of a broker (None: any) with their versions, beside this client's versions; by API key."""
        return self._call(lambda: self._aio.describe_api_versions(broker=broker, timeout_ms=timeout_ms))

    def describe_quorum(self, *, timeout_ms: float | None = None) -> c.Quorum:
        """Leader, voters and observers of a KRaft cluster's metadata log. Raises: BrokerIncompatible in other clusters."""
        return self._call(lambda: self._aio.describe_quorum(timeout_ms=timeout_ms))

    def unregister_broker(self, broker: int, *, timeout_ms: float | None = None) -> None:
        """Remove a broker from a KRaft cluster's metadata. Raises: BrokerIdNotRegistered; BrokerIncompatible in other clusters."""
        self._call(lambda: self._aio.unregister_broker(broker, timeout_ms=timeout_ms))

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[int, Outcome[list[r.LogDir]]]:
        """Log directories of brokers (all brokers when None) with their replicas, of all topics or of these."""
        return self._call(lambda: self._aio.describe_log_dirs(brokers, topics=topics, timeout_ms=timeout_ms))

    def describe_replica_log_dirs(
        self, replicas: Iterable[c.Replica | tuple[str, int, int]], *, timeout_ms: float | None = None
    ) -> dict[c.Replica, Outcome[c.ReplicaPlace]]:
        """The log directory of each replica (topic, partition, broker), and the one to which it is moving."""
        return self._call(lambda: self._aio.describe_replica_log_dirs(replicas, timeout_ms=timeout_ms))

    def alter_replica_log_dirs(
        self, places: Mapping[c.Replica | tuple[str, int, int], str], *, timeout_ms: float | None = None
    ) -> dict[c.Replica, Outcome[None]]:
        """Start to move replicas (topic, partition, broker) to other directories of the same broker, given by absolute paths.

        A move is complete when `describe_replica_log_dirs` has no future path for it. LogDirNotFound, ReplicaNotAvailable and
        KafkaStorageError are outcomes; BrokerIncompatible if brokers do not support it.
        """
        return self._call(lambda: self._aio.alter_replica_log_dirs(places, timeout_ms=timeout_ms))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[Partition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Start to move partitions to these brokers, the preferred leader first; None cancels a move."""
        return self._call(
            lambda: self._aio.alter_partition_reassignments(
                reassignments, allow_replication_factor_change=allow_replication_factor_change, timeout_ms=timeout_ms
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, r.PartitionReassignment]:
        """Partitions with replicas that are being added or removed, of all or of these."""
        return self._call(lambda: self._aio.list_partition_reassignments(partitions, timeout_ms=timeout_ms))

    def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        election_type: r.ElectionType = r.ElectionType.PREFERRED,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Elect the preferred replicas as leaders, or, if no replica is in sync, any replica: records may then be lost."""
        return self._call(lambda: self._aio.elect_leaders(partitions, election_type=election_type, timeout_ms=timeout_ms))

    def list_groups(
        self,
        *,
        states: Iterable[g.GroupState | str] = (),
        types: Iterable[g.GroupType | str] = (),
        protocol_types: Iterable[str] = (),
        timeout_ms: float | None = None,
    ) -> list[g.GroupListing]:
        """Groups by id; optionally only those in these states, of these types, or with these kinds of members ("consumer", "connect", ""
        for groups with committed offsets only).
        """
        return self._call(lambda: self._aio.list_groups(states=states, types=types, protocol_types=protocol_types, timeout_ms=timeout_ms))

    def describe_consumer_groups(
        self, groups: Iterable[str], *, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[g.GroupDescription]]:
        """State, members and assignments of groups of either protocol, optionally with authorized operations. GroupIdNotFound for a group
        that does not exist.
        """
        return self._call(
            lambda: self._aio.describe_consumer_groups(groups, authorized_operations=authorized_operations, timeout_ms=timeout_ms)
        )

    def describe_consumer_group(
        self, group: str, *, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> g.GroupDescription:
        """One group. Raises: GroupIdNotFound and the like."""
        return self._call(
            lambda: self._aio.describe_consumer_group(group, authorized_operations=authorized_operations, timeout_ms=timeout_ms)
        )

    def delete_consumer_groups(self, groups: Iterable[str], *, timeout_ms: float | None = None) -> dict[str, Outcome[None]]:
        """Delete groups without members, and their offsets. Errors: NonEmptyGroup, GroupIdNotFound."""
        return self._call(lambda: self._aio.delete_consumer_groups(groups, timeout_ms=timeout_ms))

    def delete_consumer_group(self, group: str, *, timeout_ms: float | None = None) -> None:
        """Delete one group. Raises: NonEmptyGroup, GroupIdNotFound and the like."""
        self._call(lambda: self._aio.delete_consumer_group(group, timeout_ms=timeout_ms))

    def list_consumer_group_offsets(
        self,
        groups: Iterable[str] | Mapping[str, Iterable[Partition] | None],
        *,
        require_stable: bool = False,
        timeout_ms: float | None = None,
    ) -> dict[str, Outcome[dict[TopicPartition, Outcome[OffsetAndMetadata | None]]]]:
        """Committed offsets of groups: of all their partitions, or of these, with None if nothing is committed."""
        return self._call(lambda: self._aio.list_consumer_group_offsets(groups, require_stable=require_stable, timeout_ms=timeout_ms))

    def alter_consumer_group_offsets(
        self, group: str, offsets: Mapping[Partition, Committed], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[None]]:
        """Commit offsets for a group without members, which is created if needed. UnknownMemberId if it has members."""
        return self._call(lambda: self._aio.alter_consumer_group_offsets(group, offsets, timeout_ms=timeout_ms))

    def delete_consumer_group_offsets(
        self, group: str, partitions: Iterable[Partition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[None]]:
        """Delete committed offsets of partitions. GroupSubscribedToTopic if the group reads the topic."""
        return self._call(lambda: self._aio.delete_consumer_group_offsets(group, partitions, timeout_ms=timeout_ms))

    def remove_members_from_consumer_group(
        self,
        group: str,
        members: Iterable[str] | None = None,
        *,
        reason: str = "removed by an administrator",
        timeout_ms: float | None = None,
    ) -> dict[str, Outcome[None]]:
        """Remove static members from their group by instance id, or with None all members by member id."""
        return self._call(lambda: self._aio.remove_members_from_consumer_group(group, members, reason=reason, timeout_ms=timeout_ms))

    def consumer_group_lag(
        self, groups: Iterable[str], *, times: bool = True, timeout_ms: float | None = None
    ) -> dict[str, Outcome[GroupLag]]:
        """The lag of groups in records and, with `times`, in time: see `ottla.client.admin.group_lag`."""
        return self._call(lambda: self._aio.consumer_group_lag(groups, times=times, timeout_ms=timeout_ms))
