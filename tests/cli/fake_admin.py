"""An admin client without a cluster: topics, settings and brokers in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from msgspec.structs import replace

from ottla.base.ids import TopicPartition
from ottla.client.admin import results as r
from ottla.client.admin import transaction_results as t
from ottla.client.admin.calls import good
from ottla.client.admin.cluster_results import ApiSupport, Features, Quorum, QuorumReplica, VersionRange
from ottla.client.admin.quotas import QuotaEntity
from ottla.client.fetch.offsets import EARLIEST, MAX_TIMESTAMP, OffsetAndTime
from ottla.wire.errors import (
    InvalidConfig,
    InvalidPartitions,
    InvalidProducerEpoch,
    KafkaError,
    TopicAlreadyExists,
    TransactionalIdNotFound,
    UnknownTopicOrPartition,
)

TOPIC_SETTINGS = {"cleanup.policy": "delete", "min.insync.replicas": "1", "retention.ms": "604800000", "segment.bytes": "1073741824"}
BROKER_SETTINGS = {"log.retention.ms": "604800000", "num.io.threads": "8", "ssl.key.password": "hush"}
SOURCES = (
    r.ConfigSource.TOPIC,
    r.ConfigSource.DYNAMIC_BROKER,
    r.ConfigSource.DYNAMIC_DEFAULT_BROKER,
    r.ConfigSource.DEFAULT,
)


class FakeAdmin:
    """Two brokers. Changes are in `topics`, `logs` and `set`; `calls` has the names of the calls."""

    def __init__(self) -> None:
        self.topics: dict[str, list[r.PartitionDescription]] = {}
        #: Log start and end offsets.
        self.logs: dict[tuple[str, int], list[int]] = {}
        #: Overridden settings, by resource and source.
        self.set: dict[r.Resource, dict[str, str]] = {}
        self.calls: list[str] = []
        self.quotas: dict[QuotaEntity, dict[str, float]] = {}
        #: Levels and kinds of each update of features.
        self.feature_updates: list[tuple[dict[str, int], dict[str, bool]]] = []
        self.transactions: dict[str, t.TransactionDescription] = {}
        #: Open transactions; those of no transactional id hang.
        self.open: list[t.OpenTransaction] = []
        #: Settings of each created client.
        self.made: list[dict[str, Any]] = []

    # -- changes by tests

    def topic(
        self, name: str, partitions: int = 1, *, replicas: Iterable[int] = (1, 2), isr: Iterable[int] = (1, 2), end: int = 10
    ) -> None:
        self.topics[name] = [r.PartitionDescription(number, 1, 0, list(replicas), list(isr), []) for number in range(partitions)]
        for number in range(partitions):
            self.logs[name, number] = [0, end]

    def __call__(self, **settings: Any) -> Self:
        """Replaces the class: a new client of the same cluster."""
        self.made.append(settings)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        pass

    # -- topics

    def list_topics(self, *, internal: bool = False) -> list[r.TopicListing]:
        return [
            r.TopicListing(name, name.encode()[:16].ljust(16), name.startswith("__"), len(one), len(one[0].replicas))
            for name, one in self.topics.items()
            if internal or not name.startswith("__")
        ]

    def describe_topics(self, names: Iterable[str]) -> dict[str, Any]:
        return {
            name: r.TopicDescription(name, name.encode()[:16].ljust(16), name.startswith("__"), self.topics[name])
            if name in self.topics
            else UnknownTopicOrPartition(f"there is no topic {name}")
            for name in names
        }

    def create_topics(self, topics: Iterable[r.NewTopic], *, validate_only: bool = False) -> dict[str, Any]:
        outcomes: dict[str, Any] = {}
        for one in topics:
            if one.name in self.topics:
                outcomes[one.name] = TopicAlreadyExists("it already exists")
            elif unknown := sorted(set(one.configs) - set(TOPIC_SETTINGS)):
                outcomes[one.name] = InvalidConfig(f"{unknown[0]}: Unknown topic config name")
            else:
                outcomes[one.name] = None
                if not validate_only:
                    self.topic(one.name, max(one.num_partitions, 1), end=0)
                    self.set[r.Resource.topic(one.name)] = {name: value or "" for name, value in one.configs.items()}  # type: ignore[misc]
        return outcomes

    def delete_topics(self, names: Iterable[str]) -> dict[str, Any]:
        self.calls.append("delete_topics")
        return {
            name: None if self.topics.pop(name, None) is not None else UnknownTopicOrPartition(f"there is no topic {name}")
            for name in names
        }

    def create_partitions(self, counts: Mapping[str, int], *, validate_only: bool = False) -> dict[str, Any]:
        outcomes: dict[str, Any] = {}
        for name, count in counts.items():
            if count <= len(self.topics[name]):
                outcomes[name] = InvalidPartitions("the number can only grow")
            else:
                outcomes[name] = None
                if not validate_only:
                    self.topic(name, count)
        return outcomes

    # -- logs

    def list_offsets(self, times: Mapping[TopicPartition, int], *, read_committed: bool = False) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = {}
        for tp, when in times.items():
            start, end = self.logs[tp.topic, tp.partition]
            if when == MAX_TIMESTAMP or when >= 0:
                # Record n was written at n * 1000 ms.
                offset = end - 1 if when == MAX_TIMESTAMP else max(-(-when // 1000), start)
                found[tp] = OffsetAndTime(offset, offset * 1000, 0) if offset < end else OffsetAndTime(-1, -1, -1)
            else:
                held = min((one.start_offset for one in self.open if one.place == tp), default=end) if read_committed else end
                found[tp] = OffsetAndTime(start if when == EARLIEST else held, -1, 0)
        return found

    def delete_records(self, before: Mapping[tuple[str, int], int]) -> dict[TopicPartition, Any]:
        self.calls.append("delete_records")
        for at, offset in before.items():
            self.logs[at][0] = offset
        return {TopicPartition(*at): offset for at, offset in before.items()}

    def describe_producers(self, partitions: Iterable[TopicPartition], *, broker: int | None = None) -> dict[TopicPartition, Any]:
        return {tp: [r.ActiveProducer(7, 1, 41, 1_700_000_000_000, -1, 5)] for tp in partitions}

    # -- settings

    def describe_configs(
        self, resources: Iterable[r.Resource], *, names: Iterable[str] | None = None, synonyms: bool = False, documentation: bool = False
    ) -> dict[r.Resource, Any]:
        found: dict[r.Resource, Any] = {}
        for resource in resources:
            if resource.type is r.ResourceType.TOPIC and resource.name not in self.topics:
                found[resource] = UnknownTopicOrPartition(f"there is no topic {resource.name}")
                continue
            table = TOPIC_SETTINGS if resource.type is r.ResourceType.TOPIC else BROKER_SETTINGS
            entries = {name: self._entry(resource, name, default) for name, default in table.items() if names is None or name in names}
            if resource == r.Resource.broker(None):
                entries = {name: entry for name, entry in entries.items() if name in self.set.get(resource, {})}
            found[resource] = entries
        return found

    def describe_config(self, resource: r.Resource, **options: Any) -> dict[str, r.ConfigEntry]:
        return good(self.describe_configs([resource], **options)[resource])

    def _entry(self, resource: r.Resource, name: str, default: str) -> r.ConfigEntry:
        chain = [
            (r.ConfigSource.TOPIC, self.set.get(resource, {}) if resource.type is r.ResourceType.TOPIC else {}),
            (r.ConfigSource.DYNAMIC_BROKER, self.set.get(resource, {}) if resource.name and resource.type is r.ResourceType.BROKER else {}),
            (r.ConfigSource.DYNAMIC_DEFAULT_BROKER, self.set.get(r.Resource.broker(None), {})),
            (r.ConfigSource.DEFAULT, {name: default}),
        ]
        synonyms = [r.ConfigSynonym(name, values[name], source) for source, values in chain if name in values]
        secret = "password" in name
        return r.ConfigEntry(
            name, None if secret else synonyms[0].value, synonyms[0].source, secret, secret,
            r.ConfigType.STRING, f"What {name} is for.", [] if secret else synonyms,
        )  # fmt: skip

    def incremental_alter_configs(
        self, changes: Mapping[r.Resource, Iterable[r.ConfigChange]], *, validate_only: bool = False
    ) -> dict[r.Resource, KafkaError | None]:
        outcomes: dict[r.Resource, KafkaError | None] = {}
        for resource, several in changes.items():
            outcomes[resource] = None
            for one in several:
                if one.value == "bad":
                    outcomes[resource] = InvalidConfig(f"{one.name}: expected something better")
                elif validate_only:
                    continue
                elif one.operation is r.ConfigOperation.DELETE:
                    self.set.get(resource, {}).pop(one.name, None)
                else:
                    self.set.setdefault(resource, {})[one.name] = one.value or ""
        return outcomes

    def list_config_resources(self) -> list[r.Resource]:
        return [r.Resource.broker(2), r.Resource.broker(1), *(r.Resource.topic(name) for name in self.topics)]

    # -- brokers

    def describe_cluster(self) -> r.ClusterDescription:
        return r.ClusterDescription("fake", 2, [r.Node(1, "one", 9092, "a"), r.Node(2, "two", 9092)])

    def describe_log_dirs(
        self, brokers: Iterable[int] | None = None, *, topics: Iterable[str] | None = None, timeout_ms: int | None = None
    ) -> dict[int, Any]:
        logs = [r.ReplicaLog(name, one.partition, 1000, 0, False) for name, each in self.topics.items() for one in each]
        return {
            broker: [r.LogDir("/b", "it failed", -1, -1, []), r.LogDir("/a", None, 2**40, 2**39, logs)]
            if broker == 2
            else [r.LogDir("/a", None, 2**40, 2**39, [])]
            for broker in brokers or (1, 2)
        }

    def list_groups(self, **_: Any) -> list[Any]:
        return []

    def list_partition_reassignments(self, *_: Any, **__: Any) -> dict[TopicPartition, Any]:
        return {}

    def describe_api_versions(self, *, broker: int | None = None) -> list[ApiSupport]:
        return [
            ApiSupport(0, "Produce", VersionRange(3, 11), VersionRange(3, 13)),
            ApiSupport(99, "", VersionRange(0, 1), None),
        ]

    def describe_features(self, *, broker: int | None = None) -> Features:
        supported = {"metadata.version": VersionRange(1, 25), "ottla.version": VersionRange(1, 2)}
        return Features(supported, {"metadata.version": VersionRange(25, 25), "ottla.version": VersionRange(1, 1)}, 3)

    def update_features(self, levels: Mapping[str, int], **how: bool) -> None:
        self.feature_updates.append((dict(levels), how))

    def describe_quorum(self) -> Quorum:
        voters = [QuorumReplica(1, bytes(16), 90, 1_700_000_000_000, 1_700_000_000_000), QuorumReplica(2, bytes(16), 100, None, None)]
        return Quorum(2, 5, 90, voters, [QuorumReplica(9, bytes(16), 50, None, None)], {})

    # -- transactions

    def list_transactions(
        self, *, states: Iterable[str] = (), producer_ids: Iterable[int] = (), longer_than_ms: int | None = None
    ) -> list[t.TransactionListing]:
        wanted, ids = {one.lower() for one in states}, set(producer_ids)
        return [
            t.TransactionListing(name, one.coordinator.id, one.producer_id, one.state)
            for name, one in sorted(self.transactions.items())
            if (not wanted or one.state.lower() in wanted)
            and (not ids or one.producer_id in ids)
            and (longer_than_ms is None or (one.start_ms is not None and one.start_ms < time.time() * 1000 - longer_than_ms))
        ]

    def describe_client_quotas(
        self, *, user: str | None = None, client_id: str | None = None, ip: str | None = None, strict: bool = False
    ) -> dict[QuotaEntity, dict[str, float]]:
        wanted = QuotaEntity(user=user, client_id=client_id, ip=ip).parts
        return {
            entity: quotas
            for entity, quotas in self.quotas.items()
            if wanted.items() <= entity.parts.items() and (not strict or wanted == entity.parts)
        }

    def alter_client_quotas(
        self, changes: Mapping[QuotaEntity, Mapping[str, float | None]], *, validate_only: bool = False
    ) -> dict[QuotaEntity, None]:
        for entity, values in changes.items():
            kept = {**self.quotas.get(entity, {}), **{key: value for key, value in values.items() if value is not None}}
            kept = {key: value for key, value in kept.items() if values.get(key, value) is not None}
            if not validate_only:
                self.quotas.pop(entity, None)
                self.quotas |= {entity: kept} if kept else {}
        return dict.fromkeys(changes)

    def describe_transactions(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.transactions.get(name) or TransactionalIdNotFound(f"there is no transactional id {name!r}") for name in names}

    def force_terminate_transaction(self, name: str) -> t.ProducerIdentity:
        one = self.transactions[name]
        self.transactions[name] = replace(one, state=t.TransactionState.COMPLETE_ABORT, partitions=[])
        self.open = [other for other in self.open if other.producer_id != one.producer_id]
        return t.ProducerIdentity(one.producer_id, one.producer_epoch + 1)

    def open_transactions(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Any]:
        return {tp: [one for one in self.open if one.place == tp] for tp in partitions}

    def find_hanging_transactions(
        self, partitions: Iterable[TopicPartition] | None = None, *, broker: int | None = None, max_transaction_timeout_ms: int
    ) -> list[t.OpenTransaction]:
        places = None if partitions is None else set(partitions)
        return [one for one in self.open if one.transactional_id is None and (places is None or one.place in places)]

    def abort_transaction(self, place: TopicPartition, *, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> None:
        self.calls.append(f"abort {place} {producer_id} {producer_epoch} {coordinator_epoch}")
        if producer_epoch < 0:
            raise InvalidProducerEpoch("the epoch is too old")
        self.open = [one for one in self.open if (one.place, one.producer_id) != (place, producer_id)]

    def find_blocked_partitions(
        self, partitions: Iterable[TopicPartition] | None = None, *, longer_than_ms: int = 0, groups: bool = True
    ) -> dict[TopicPartition, Any]:
        found: dict[TopicPartition, Any] = {}
        for one in self.open:
            known = self.transactions.get(one.transactional_id or "")
            status = t.TransactionStatus.HANGING if known is None else t.TransactionStatus.ONGOING
            blocking = t.BlockingTransaction(one, status, None if known is None else known.start_ms, known)
            waiting = [t.BlockedGroup("billing", one.start_offset)] if groups else []
            before = found[one.place].transactions if one.place in found else []
            oldest = min(one.start_offset, *(each.transaction.start_offset for each in before), 10)
            found[one.place] = t.BlockedPartition(one.topic, one.partition, oldest, 10, [*before, blocking], waiting)
        return found
