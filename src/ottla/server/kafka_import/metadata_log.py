"""Reads KRaft's metadata: the newest complete snapshot of ``__cluster_metadata-0``, then the log behind it.

::

    __cluster_metadata-0/00000000000000004711-0000000003.checkpoint    a snapshot: the state before offset 4711, in leader epoch 3
    __cluster_metadata-0/00000000000000004000.log                      the log

Both are record batches. A snapshot is complete when its last batch is the control record of a footer. The log ends at the first batch that
is torn. Records of the log that were not committed when the cluster stopped are read too, as the next leader of the quorum would commit
them: give the directories of all controllers, and the most recent log is used.
Source: KIP-595, KIP-630, KIP-631, KIP-868.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ottla.base.acls import Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.base.ids import TopicId, topic_name_problem
from ottla.broker.quotas.entities import CLIENT_ID, IP, USER
from ottla.broker.quotas.limits import quota_text
from ottla.log.batch_scan import whole_batches
from ottla.log.filenames import LOG, offset_of
from ottla.records.batch import BatchHeader, crc_ok
from ottla.records.errors import RecordsError
from ottla.records.read import control_record, records
from ottla.server.kafka_import import metadata_records as kinds
from ottla.server.kafka_import.kafka_metadata import CannotImport, KafkaMetadata, ReadOnlyFile, SourcePartition, SourceTopic
from ottla.store.layout import DEFAULT_ENTITY
from ottla.store.layout_quotas import QuotaEntity
from ottla.wire.declare import MalformedMessage
from ottla.wire.errors import UnsupportedVersion

DIRECTORY = "__cluster_metadata-0"
_SNAPSHOT = re.compile(r"(\d{20})-(\d{10})\.checkpoint")
#: Type of the control record that ends a snapshot.
_FOOTER = 4
#: Types of resources with settings.
_TOPIC, _BROKER, _CLIENT_METRICS, _GROUP = 2, 4, 16, 32
_NO_LEADER_CHANGE = -2


def read_metadata(directory: Path) -> KafkaMetadata:
    """The metadata in a ``__cluster_metadata-0``. Raises: CannotImport, OSError."""
    state = _State()
    upto, origin = 0, "the log"
    for path in _snapshots(directory):
        if _is_complete(path):
            upto = int(path.name[:20])
            origin = path.name
            _replay(state, _batches(path), 0, path)
            break
    for path in _logs(directory):
        _replay(state, _batches(path), upto, path)
    found = state.metadata(f"{directory}, snapshot {origin}, up to offset {state.end_offset or upto}")
    if not found.topics and not found.brokers:
        raise CannotImport(f"{directory} has no metadata of a cluster; name the log directories of a Kafka that served")
    return found


def position_of(directory: Path) -> tuple[int, int]:
    """(leader epoch, end offset) of a metadata log or its newest snapshot, whichever is later: the most recent log has the largest."""
    found = [(int(path.name[21:31]), int(path.name[:20])) for path in _snapshots(directory) if _is_complete(path)][:1]
    for path in _logs(directory)[-1:]:
        found += [(header.leader_epoch, header.last_offset + 1) for header, _, _ in _batches(path)][-1:]
    return max(found, default=(-1, 0))


def _snapshots(directory: Path) -> list[Path]:
    """Newest first."""
    return sorted((path for path in directory.iterdir() if _SNAPSHOT.fullmatch(path.name)), reverse=True)


def _logs(directory: Path) -> list[Path]:
    return sorted(path for path in directory.iterdir() if path.name.endswith(LOG) and offset_of(path.name) is not None)


def _batches(path: Path) -> Iterator[tuple[BatchHeader, memoryview, int]]:
    """(header, chunk, position in the chunk) of each batch up to the first torn one."""
    file = ReadOnlyFile(path)
    try:
        for _, header, chunk, inside in whole_batches(file, 0, file.size):
            if not crc_ok(chunk[inside : inside + header.size]):
                return
            yield header, chunk, inside
    finally:
        file.close()


def _is_complete(path: Path) -> bool:
    last = next(iter(deque(_batches(path), maxlen=1)), None)
    if last is None or not last[0].is_control:
        return False
    control = control_record(last[1], last[2])
    return control is not None and control.kind == _FOOTER


def _replay(state: _State, batches: Iterator[tuple[BatchHeader, memoryview, int]], upto: int, path: Path) -> None:
    """Applies the records from offset ``upto`` on; a snapshot counts its own offsets from 0."""
    is_log = path.name.endswith(LOG)
    for header, chunk, inside in batches:
        if is_log and header.last_offset < upto:
            continue
        if is_log:
            expected = max(upto, state.end_offset)
            if header.base_offset > expected:
                raise CannotImport(f"{path} begins at offset {header.base_offset}, and offsets from {expected} on are missing")
            state.end_offset = header.last_offset + 1
        try:
            values = [value for _, _, _, value, _ in records(chunk, inside, start_offset=upto if is_log else 0)]
            for found in (kinds.decode_metadata_record(value) for value in values if value is not None):
                if found is not None:
                    state.take(found)
        except (MalformedMessage, RecordsError, UnsupportedVersion) as error:
            raise CannotImport(f"{path}: a record from offset {header.base_offset} on cannot be read: {error}") from None
        except KeyError:
            raise CannotImport(
                f"{path}: a record from offset {header.base_offset} on changes a topic or partition that is unknown"
            ) from None


class _State:
    """The state that the records describe. ``_apply`` alone changes it."""

    def __init__(self) -> None:
        self.end_offset = 0
        self._names: dict[bytes, str] = {}
        self._metadata = KafkaMetadata("")
        self._features: dict[str, int] = {}
        self._acls: dict[bytes, kinds.AccessControlEntryRecord] = {}
        self._credentials: set[tuple[str, int]] = set()
        self._tokens: set[str] = set()
        self._client_metrics: set[str] = set()
        #: Records of a metadata transaction that has not ended; None outside.
        self._pending: list[msgspec.Struct] | None = None

    def take(self, record: msgspec.Struct) -> None:
        """Applies a record, or keeps it until its transaction ends."""
        match record:
            case kinds.BeginTransactionRecord():
                self._pending = []
            case kinds.AbortTransactionRecord():
                self._pending = None
            case kinds.EndTransactionRecord():
                for kept in self._pending or ():
                    self._apply(kept)
                self._pending = None
            case _ if self._pending is not None:
                self._pending.append(record)
            case _:
                self._apply(record)

    def _apply(self, record: msgspec.Struct) -> None:
        match record:
            case kinds.RegisterBrokerRecord():
                self._metadata.brokers.add(record.broker_id)
            case kinds.UnregisterBrokerRecord():
                self._metadata.brokers.discard(record.broker_id)
            case kinds.TopicRecord():
                if problem := topic_name_problem(record.name):
                    raise MalformedMessage(problem)
                self._names[record.topic_id] = record.name
                self._metadata.topics[record.name] = SourceTopic(record.name, TopicId(record.topic_id))
            case kinds.RemoveTopicRecord():
                name = self._names.pop(record.topic_id)
                del self._metadata.topics[name]
                self._metadata.configs.pop(("topics", name), None)
            case kinds.PartitionRecord():
                self._topic(record.topic_id).partitions[record.partition_id] = SourcePartition(
                    replicas=tuple(record.replicas),
                    isr=tuple(record.isr),
                    leader=record.leader,
                    leader_epoch=record.leader_epoch,
                    elr=tuple(record.eligible_leader_replicas or ()),
                )
            case kinds.PartitionChangeRecord():
                _change(self._topic(record.topic_id).partitions[record.partition_id], record)
            case kinds.ClearElrRecord():
                for topic in self._metadata.topics.values():
                    if record.topic_name in ("", topic.name):
                        for partition in topic.partitions.values():
                            partition.elr = ()
            case kinds.ConfigRecord():
                self._configure(record)
            case kinds.ProducerIdsRecord():
                self._metadata.next_producer_id = record.next_producer_id
            case kinds.FeatureLevelRecord():
                self._features[record.name] = record.feature_level
            case _:
                self._apply_unmatched(record)

    def _topic(self, topic_id: bytes) -> SourceTopic:
        return self._metadata.topics[self._names[topic_id]]

    def _configure(self, record: kinds.ConfigRecord) -> None:
        if record.resource_type == _CLIENT_METRICS:
            self._client_metrics.add(record.resource_name)
            return
        kind = {_TOPIC: "topics", _BROKER: "brokers", _GROUP: "groups"}.get(record.resource_type)
        if kind is None:
            return
        entity = (kind, record.resource_name or DEFAULT_ENTITY)
        texts = self._metadata.configs.setdefault(entity, {})
        if record.value is None:
            texts.pop(record.name, None)
        else:
            texts[record.name] = record.value

    def _set_quota(self, record: kinds.ClientQuotaRecord) -> None:
        names = {part.entity_type: part.entity_name or "" for part in record.entity}
        entity = QuotaEntity(user=names.get(USER), client=names.get(CLIENT_ID), ip=names.get(IP))
        quotas = self._metadata.quotas.setdefault(entity, {})
        if record.remove:
            quotas.pop(record.key, None)
        else:
            quotas[record.key] = quota_text(entity, record.key, record.value)

    def _apply_unmatched(self, record: msgspec.Struct) -> None:
        """Collects access rules, and counts what has no equal."""
        match record:
            case kinds.AccessControlEntryRecord():
                self._acls[record.id] = record
            case kinds.RemoveAccessControlEntryRecord():
                self._acls.pop(record.id, None)
            case kinds.ClientQuotaRecord():
                self._set_quota(record)
            case kinds.UserScramCredentialRecord():
                self._credentials.add((record.name, record.mechanism))
            case kinds.RemoveUserScramCredentialRecord():
                self._credentials.discard((record.name, record.mechanism))
            case kinds.DelegationTokenRecord():
                self._tokens.add(record.token_id)
            case kinds.RemoveDelegationTokenRecord():
                self._tokens.discard(record.token_id)

    def metadata(self, origin: str) -> KafkaMetadata:
        """The state. Records of a transaction that did not end are not in it. Raises: CannotImport for an unknown access rule."""
        found = self._metadata
        found.origin = origin
        for record in self._acls.values():
            pattern, entry = _rule(record)
            found.acls.setdefault(pattern, []).append(entry)
        found.count("SCRAM credentials", self._credentials)
        found.count("delegation tokens", self._tokens)
        found.count("client metrics subscriptions", self._client_metrics)
        found.count("finalized feature levels", sum(1 for level in self._features.values() if level))
        return found


def _rule(record: kinds.AccessControlEntryRecord) -> tuple[Pattern, Entry]:
    """Raises: CannotImport. Without a rule that denies, the import would allow more than Kafka does."""
    try:
        pattern = Pattern(ResourceType(record.resource_type), PatternType(record.pattern_type), record.resource_name)
        return pattern, Entry(record.principal, record.host, Operation(record.operation), Permission(record.permission_type))
    except ValueError as error:
        raise CannotImport(
            f"an access rule of {record.principal} has a value that this version of Ottla does not know ({error}); delete the rule in Kafka"
        ) from None


def _change(partition: SourcePartition, record: kinds.PartitionChangeRecord) -> None:
    """Source: Kafka's PartitionRegistration.merge."""
    if record.replicas is not None:
        partition.replicas = tuple(record.replicas)
    if record.isr is not None:
        partition.isr = tuple(record.isr)
    if record.leader != _NO_LEADER_CHANGE:
        partition.leader = record.leader
        partition.leader_epoch += 1
    if record.eligible_leader_replicas is not None:
        partition.elr = tuple(record.eligible_leader_replicas)
