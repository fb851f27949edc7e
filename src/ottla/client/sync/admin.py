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
        """Settings of topics, brokers and groups, by name; of all names or those given."""
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
        """Change some settings and leave the others as they are."""
        return self._call(lambda: self._aio.incremental_alter_configs(changes, validate_only=validate_only, timeout_ms=timeout_ms))

    def incremental_alter_config(
        self, resource: r.Resource, values: Mapping[str, r.ConfigValue], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Give some settings of one topic, broker or group these values; with None their defaults back. Raises: InvalidConfig and the
        like.
        """
        self._call(lambda: self._aio.incremental_alter_config(resource, values, validate_only=validate_only, timeout_ms=timeout_ms))

    def alter_configs(
        self, configs: Mapping[r.Resource, Mapping[str, r.ConfigValue]], *, validate_only: bool = False, timeout_ms: float | None = None
    ) -> dict[r.Resource, Outcome[None]]:
        """Replace all settings of each resource: what is not named goes back to its default. Rather use `incremental_alter_configs`."""
        return self._call(lambda: self._aio.alter_configs(configs, validate_only=validate_only, timeout_ms=timeout_ms))

    def list_config_resources(self, types: Iterable[r.ResourceType] = (), *, timeout_ms: float | None = None) -> list[r.Resource]:
        """Things that have settings of their own, of these types or all. Before Kafka 4.1, brokers can list CLIENT_METRICS alone.

        Raises: BrokerIncompatible.
        """
        return self._call(lambda: self._aio.list_config_resources(types, timeout_ms=timeout_ms))

    def describe_cluster(
        self, *, fenced: bool = False, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> r.ClusterDescription:
        """The cluster's id, brokers and controller; with brokers that are `fenced`, and what this client may do, if asked."""
        return self._call(
            lambda: self._aio.describe_cluster(fenced=fenced, authorized_operations=authorized_operations, timeout_ms=timeout_ms)
        )

    def describe_features(self, *, broker: int | None = None, timeout_ms: float | None = None) -> c.Features:
        """Feature levels that a broker knows and that the cluster has agreed on; none in a cluster without such. Source: KIP-584."""
        return self._call(lambda: self._aio.describe_features(broker=broker, timeout_ms=timeout_ms))

    def describe_api_versions(self, *, broker: int | None = None, timeout_ms: float | None = None) -> list[c.ApiSupport]:
        """Every kind of request that a broker (None: any) takes, in which versions, beside those of this client; by API key."""
        return self._call(lambda: self._aio.describe_api_versions(broker=broker, timeout_ms=timeout_ms))

    def describe_quorum(self, *, timeout_ms: float | None = None) -> c.Quorum:
        """Leader, voters and observers of a KRaft cluster's metadata log. Raises: BrokerIncompatible where there is none."""
        return self._call(lambda: self._aio.describe_quorum(timeout_ms=timeout_ms))

    def unregister_broker(self, broker: int, *, timeout_ms: float | None = None) -> None:
        """Have a KRaft cluster forget a broker that is gone for good. Raises: BrokerIdNotRegistered; BrokerIncompatible elsewhere."""
        self._call(lambda: self._aio.unregister_broker(broker, timeout_ms=timeout_ms))

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None, timeout_ms: float | None = None
    ) -> dict[int, Outcome[list[r.LogDir]]]:
        """Log directories of brokers (all brokers when None) and what lies in them, of all topics or those given."""
        return self._call(lambda: self._aio.describe_log_dirs(brokers, topics=topics, timeout_ms=timeout_ms))

    def describe_replica_log_dirs(
        self, replicas: Iterable[c.Replica | tuple[str, int, int]], *, timeout_ms: float | None = None
    ) -> dict[c.Replica, Outcome[c.ReplicaPlace]]:
        """In which directory each replica (topic, partition, broker) is, and to which it is moving."""
        return self._call(lambda: self._aio.describe_replica_log_dirs(replicas, timeout_ms=timeout_ms))

    def alter_replica_log_dirs(
        self, places: Mapping[c.Replica | tuple[str, int, int], str], *, timeout_ms: float | None = None
    ) -> dict[c.Replica, Outcome[None]]:
        """Begin to move replicas (topic, partition, broker) to other directories of the same broker, named by their absolute paths.

        Done when `describe_replica_log_dirs` names no future path any more. LogDirNotFound, ReplicaNotAvailable, KafkaStorageError are
        outcomes; BrokerIncompatible where brokers cannot do it.
        """
        return self._call(lambda: self._aio.alter_replica_log_dirs(places, timeout_ms=timeout_ms))

    def alter_partition_reassignments(
        self,
        reassignments: Mapping[Partition, Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Begin to move partitions to these brokers, the preferred leader first; with None cancel a move that is under way."""
        return self._call(
            lambda: self._aio.alter_partition_reassignments(
                reassignments, allow_replication_factor_change=allow_replication_factor_change, timeout_ms=timeout_ms
            )
        )

    def list_partition_reassignments(
        self, partitions: Iterable[Partition] | None = None, *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, r.PartitionReassignment]:
        """Partitions whose replicas are being added or removed, of all or of those given."""
        return self._call(lambda: self._aio.list_partition_reassignments(partitions, timeout_ms=timeout_ms))

    def elect_leaders(
        self,
        partitions: Iterable[Partition] | None = None,
        *,
        election_type: r.ElectionType = r.ElectionType.PREFERRED,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, Outcome[None]]:
        """Have partitions led by their preferred replica again, or, where no replica in sync is left, by any: then records may be lost."""
        return self._call(lambda: self._aio.elect_leaders(partitions, election_type=election_type, timeout_ms=timeout_ms))

    def list_groups(
        self,
        *,
        states: Iterable[g.GroupState | str] = (),
        types: Iterable[g.GroupType | str] = (),
        protocol_types: Iterable[str] = (),
        timeout_ms: float | None = None,
    ) -> list[g.GroupListing]:
        """All groups, or those in one of these states, of one of these types, and with members of one of these kinds, by id."""
        return self._call(lambda: self._aio.list_groups(states=states, types=types, protocol_types=protocol_types, timeout_ms=timeout_ms))

    def describe_consumer_groups(
        self, groups: Iterable[str], *, authorized_operations: bool = False, timeout_ms: float | None = None
    ) -> dict[str, Outcome[g.GroupDescription]]:
        """State, members and assignments of groups of either protocol; GroupIdNotFound for one that is not there."""
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
        """Delete groups without members, with their offsets: NonEmptyGroup, GroupIdNotFound."""
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
        """Committed offsets of groups: of all partitions they have some for, or of those named, with None where there is none."""
        return self._call(lambda: self._aio.list_consumer_group_offsets(groups, require_stable=require_stable, timeout_ms=timeout_ms))

    def alter_consumer_group_offsets(
        self, group: str, offsets: Mapping[Partition, Committed], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[None]]:
        """Commit offsets for a group without members, which is made if it is not there; UnknownMemberId when it has members."""
        return self._call(lambda: self._aio.alter_consumer_group_offsets(group, offsets, timeout_ms=timeout_ms))

    def delete_consumer_group_offsets(
        self, group: str, partitions: Iterable[Partition], *, timeout_ms: float | None = None
    ) -> dict[TopicPartition, Outcome[None]]:
        """Forget how far a group has read in some partitions; GroupSubscribedToTopic where it still reads them."""
        return self._call(lambda: self._aio.delete_consumer_group_offsets(group, partitions, timeout_ms=timeout_ms))

    def remove_members_from_consumer_group(
        self,
        group: str,
        members: Iterable[str] | None = None,
        *,
        reason: str = "removed by an administrator",
        timeout_ms: float | None = None,
    ) -> dict[str, Outcome[None]]:
        """Make static members, by their instance ids, leave their group at once, or with None all members, by their member ids."""
        return self._call(lambda: self._aio.remove_members_from_consumer_group(group, members, reason=reason, timeout_ms=timeout_ms))

    def consumer_group_lag(
        self, groups: Iterable[str], *, times: bool = True, timeout_ms: float | None = None
    ) -> dict[str, Outcome[GroupLag]]:
        """How far behind the end of the log groups are, in records and, with `times`, in time: see `ottla.client.admin.group_lag`."""
        return self._call(lambda: self._aio.consumer_group_lag(groups, times=times, timeout_ms=timeout_ms))
