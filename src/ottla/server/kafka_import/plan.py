"""Decides an import: which broker gets which logs, the state of each partition, and the nodes of the store. Writes nothing.

Broker ids stay if they follow each other, as ``ottla serve --broker-id FIRST --brokers N`` needs; else they are numbered from the lowest.

Each partition keeps those replicas whose broker is imported. Its leader is the replica with the largest (leader epoch, log end) among the
members of the ISR, or else of the eligible leader replicas: every one of these has all committed records. The leader epoch grows by one,
so that no epoch is used twice. A partition without such a replica is *incomplete*: an import refuses it unless that is allowed.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ottla.base.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition
from ottla.base.options import ConfigError
from ottla.broker.metadata.configs import SPECS_BY_NAME, GroupOptions
from ottla.broker.quotas.limits import values_of
from ottla.log.options import TopicOptions
from ottla.server.kafka_import.groups import TOPIC as OFFSETS_TOPIC
from ottla.server.kafka_import.groups import GroupRecords, read_groups
from ottla.server.kafka_import.kafka_metadata import CannotImport, KafkaMetadata, SourcePartition, SourceTopic
from ottla.server.kafka_import.metadata_log import position_of, read_metadata
from ottla.server.kafka_import.source import SourceDirectory, SourceLog
from ottla.server.kafka_import.transactions import TOPIC as TRANSACTIONS_TOPIC
from ottla.server.kafka_import.transactions import TransactionRecords, read_transactions
from ottla.store import layout, layout_quotas
from ottla.store.embedded.file import Contents
from ottla.store.layout import DEFAULT_ENTITY
from ottla.store.tree import parent_of

#: Internal topics that an import leaves out, with the reason.
LEFT_OUT = {
    "__share_group_state": "this version has no share groups",
    "__remote_log_metadata": "this version has no tiered storage",
}
#: Settings that name broker ids, or that only throttle a reassignment in progress.
_OF_BROKERS = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
#: Producer ids in a block of the controller.
_BLOCK_IDS = 1000
#: Partitions named in an error.
_SHOWN = 5


@dataclass(frozen=True, slots=True)
class PlannedLog:
    """A log and its new broker."""

    broker: int
    source: SourceLog
    topic_id: TopicId
    #: Whether compaction may leave holes anywhere in it.
    compacts: bool


@dataclass(slots=True)
class ImportPlan:
    """What an import does."""

    sources: list[SourceDirectory]
    metadata: KafkaMetadata
    cluster_id: str
    #: New broker ids by Kafka's.
    brokers: dict[int, int]
    logs: list[PlannedLog] = field(default_factory=list)
    contents: Contents = field(default_factory=Contents)
    groups: GroupRecords = field(default_factory=GroupRecords)
    transactions: TransactionRecords = field(default_factory=TransactionRecords)
    topics: int = 0
    partitions: int = 0
    #: Omissions of the import: (kind, name or count, reason).
    not_imported: list[tuple[str, str, str]] = field(default_factory=list)
    #: Partitions without a replica that has all committed records.
    incomplete: list[TopicPartition] = field(default_factory=list)

    @property
    def serve_arguments(self) -> str:
        """The options of ``ottla serve`` that start these brokers."""
        first = min(self.brokers.values())
        options = ([] if first == 1 else [f"--broker-id {first}"]) + ([] if len(self.brokers) == 1 else [f"--brokers {len(self.brokers)}"])
        return " ".join(options)


def metadata_of_kraft(sources: Sequence[SourceDirectory]) -> KafkaMetadata:
    """The metadata in the most recent of the metadata logs. Raises: CannotImport, OSError."""
    logs = [source.metadata_log for source in sources if source.metadata_log is not None]
    if not logs:
        if any(not source.kraft for source in sources):
            raise CannotImport(
                "these are directories of a Kafka with ZooKeeper: give its address with --zookeeper, or its nodes with --znodes"
            )
        raise CannotImport(
            "none of the directories has __cluster_metadata-0; name the directory of metadata.log.dir, or of a controller, too"
        )
    return read_metadata(max(logs, key=position_of))


def plan_import(sources: Sequence[SourceDirectory], metadata: KafkaMetadata, *, allow_incomplete: bool = False) -> ImportPlan:
    """Raises: CannotImport, OSError."""
    clusters = {found for found in (metadata.cluster_id, *(source.cluster_id for source in sources)) if found is not None}
    if len(clusters) != 1:
        raise CannotImport(f"the directories belong to several clusters, or to none: {', '.join(sorted(clusters)) or 'no cluster id'}")
    ids = sorted({source.node_id for source in sources if source.logs or source.node_id in metadata.brokers})
    if not ids:
        raise CannotImport("none of the directories belongs to a broker; name the directories of log.dirs of the brokers")
    consecutive = ids == list(range(ids[0], ids[0] + len(ids)))
    brokers = {old: old if consecutive else ids[0] + number for number, old in enumerate(ids)}
    plan = ImportPlan(list(sources), metadata, clusters.pop(), brokers)
    logs = _logs_by_broker(sources)
    for topic in metadata.topics.values():
        if topic.name in LEFT_OUT:
            plan.not_imported.append(("topic", topic.name, LEFT_OUT[topic.name]))
        else:
            _plan_topic(plan, topic, logs)
    if plan.incomplete and not allow_incomplete:
        some = ", ".join(map(str, plan.incomplete[:_SHOWN])) + (", ..." if len(plan.incomplete) > _SHOWN else "")
        raise CannotImport(
            f"{len(plan.incomplete)} partitions have no replica with all committed records in these directories: {some}; name the"
            " directories of the other brokers too, or use --incomplete, which imports what there is"
        )
    _plan_cluster(plan)
    _report_rest(plan)
    return plan


def _logs_by_broker(sources: Sequence[SourceDirectory]) -> dict[tuple[int, TopicPartition], SourceLog]:
    """Raises: CannotImport."""
    found: dict[tuple[int, TopicPartition], SourceLog] = {}
    for source in sources:
        for partition, log in source.logs.items():
            other = found.setdefault((source.node_id, partition), log)
            if other is not log:
                raise CannotImport(f"broker {source.node_id} has {partition} twice: {other.path} and {log.path}; name each directory once")
    return found


def _plan_topic(plan: ImportPlan, topic: SourceTopic, logs: Mapping[tuple[int, TopicPartition], SourceLog]) -> None:
    topic_id = topic.topic_id if topic.topic_id != NO_TOPIC_ID else TopicId(secrets.token_bytes(16))
    texts = plan.metadata.configs.get(("topics", topic.name), {})
    compacts = "compact" in texts.get("cleanup.policy", "") or topic.name in (OFFSETS_TOPIC, TRANSACTIONS_TOPIC)
    if texts.get("remote.storage.enable", "").lower() == "true":
        plan.not_imported.append(("remote segments", topic.name, "this version has no tiered storage; local segments are imported"))
    replicas: dict[int, tuple[int, ...]] = {}
    rows: dict[str, bytes] = {}
    for number, partition in sorted(topic.partitions.items()):
        here = TopicPartition(topic.name, number)
        own = {
            old: log for old in partition.replicas if old in plan.brokers and (log := _same_topic(logs.get((old, here)), topic.topic_id))
        }
        leader, isr = _leader(plan, here, partition, own)
        kept = [old for old in partition.replicas if old in plan.brokers] or [leader]
        replicas[number] = tuple(plan.brokers[old] for old in kept)
        epoch = max([partition.leader_epoch, *(log.last_epoch for log in own.values())]) + 1
        state = layout.PartitionState(
            leader=plan.brokers[leader], leader_epoch=LeaderEpoch(epoch), isr=tuple(plan.brokers[old] for old in isr), controller_epoch=0
        )
        rows[layout.partition_state(topic.name, number)] = layout.encode_partition_state(state)
        plan.logs += [PlannedLog(plan.brokers[old], log, topic_id, compacts or log.cleaned is not None) for old, log in own.items()]
        plan.partitions += 1
    plan.topics += 1
    rows[layout.topic(topic.name)] = layout.encode_topic(layout.TopicAssignment(topic_id=topic_id, replicas=replicas))
    _put(plan.contents, rows)


def _same_topic(log: SourceLog | None, topic_id: TopicId) -> SourceLog | None:
    """The log, unless it is of an older topic of this name."""
    return log if log is not None and log.topic_id in (None, NO_TOPIC_ID, topic_id) else None


def _leader(plan: ImportPlan, here: TopicPartition, partition: SourcePartition, own: Mapping[int, SourceLog]) -> tuple[int, list[int]]:
    """The leader, and the ISR, which contains it; ids are Kafka's."""
    for candidates in (partition.isr, partition.elr):
        isr = [old for old in partition.replicas if old in candidates and old in own]
        if isr:
            return max(isr, key=lambda old: (own[old].last_epoch, own[old].end_offset)), isr
    never_written = partition.leader_epoch <= 0 and not own
    if not never_written:
        plan.incomplete.append(here)
    if own:
        leader = max(own, key=lambda old: (own[old].last_epoch, own[old].end_offset))
        return leader, [leader]
    leader = next((old for old in partition.replicas if old in plan.brokers), min(plan.brokers))
    return leader, [leader]


def _put(contents: Contents, rows: Mapping[str, bytes]) -> None:
    """Adds nodes with their parents, as one transaction."""
    found: dict[str, bytes] = {}
    for path, data in rows.items():
        parent = parent_of(path)
        while parent != "/" and parent not in contents.rows and parent not in rows:
            found[parent] = b""
            parent = parent_of(parent)
        found[path] = data
    contents.change([(path, (data, 0, 1)) for path, data in found.items()], 1)


def _plan_cluster(plan: ImportPlan) -> None:
    rows = {path: b"" for path in layout.PERSISTENT_PATHS if path not in plan.contents.rows}
    rows[layout.CLUSTER_ID] = layout.encode_cluster_id(plan.cluster_id)
    if (following := plan.metadata.next_producer_id) > 0:
        start = max(following - _BLOCK_IDS, 0)
        block = layout.ProducerIdBlock(min(plan.brokers.values()), ProducerId(start), ProducerId(following - 1))
        rows[layout.PRODUCER_ID_BLOCK] = layout.encode_producer_id_block(block)
    for pattern, entries in plan.metadata.acls.items():
        rows[layout.acl(pattern)] = layout.encode_acls(dict.fromkeys(entries))
    for (kind, name), texts in sorted(plan.metadata.configs.items()):
        if kind == "topics" and (name not in plan.metadata.topics or name in LEFT_OUT):
            continue
        if kind == "brokers" and name != DEFAULT_ENTITY:
            if not name.isdigit() or int(name) not in plan.brokers:
                continue
            name = str(plan.brokers[BrokerId(int(name))])
        kept: dict[str, str] = {}
        for setting, text in texts.items():
            reason = _reason_against(kind, setting, text)
            if reason:
                plan.not_imported.append(("setting", f"{kind}/{name}: {setting}", reason))
            else:
                kept[setting] = text
        if kept:
            rows[layout.config(kind, name)] = layout.encode_config(kept)
    for entity, texts in plan.metadata.quotas.items():
        quotas = values_of(entity, texts)
        plan.not_imported += [
            ("quota", f"{layout_quotas.quota_config(entity)}: {name}={text}", "it is not a quota above 0")
            for name, text in texts.items()
            if name not in quotas
        ]
        if quotas:
            rows[layout_quotas.quota_config(entity)] = layout.encode_config({str(key): texts[key] for key in quotas})
    _put(plan.contents, rows)


def _reason_against(kind: str, setting: str, text: str) -> str:
    """Why a setting is not imported; empty if it is."""
    specs = {"topics": TopicOptions.SPECS, "groups": GroupOptions.SPECS, "brokers": SPECS_BY_NAME}[kind]
    spec = specs.get(setting)
    if spec is None:
        return "Ottla does not have it"
    if setting in _OF_BROKERS:
        return "it names replicas of a reassignment in progress"
    if kind == "brokers" and spec.scope == "read-only" and not spec.synonyms:
        return "it is set at the start of a broker"
    try:
        spec.parse(text)
    except ConfigError as error:
        return error.problem
    return ""


def _report_rest(plan: ImportPlan) -> None:
    """Reads the groups and transactional ids, and lists the omissions."""
    leaders = _leaders(plan)
    plan.groups = read_groups(log for here, log in leaders.items() if here.topic == OFFSETS_TOPIC)
    plan.transactions = read_transactions(log for here, log in leaders.items() if here.topic == TRANSACTIONS_TOPIC)
    plan.not_imported += [
        ("groups", f"{count} {kind}", "this version does not have them") for kind, count in plan.groups.without_equal.items()
    ]
    for kind, count in plan.metadata.without_equal.items():
        plan.not_imported.append((kind, str(count), "this version does not have them"))
    used = {id(one.source) for one in plan.logs}
    for source in plan.sources:
        for partition, log in source.logs.items():
            if id(log) not in used and partition.topic not in LEFT_OUT:
                known = partition.topic in plan.metadata.topics
                reason = "another topic of this name, or no replica of it" if known else "the topic does not exist any more"
                plan.not_imported.append(("log", str(log.path), reason))
        plan.not_imported += [("directory", str(source.path / name), "Kafka was removing or moving it") for name in source.skipped]
    known_to_coordinator = plan.transactions.not_ended()
    for here, log in leaders.items():
        hanging = sorted(producer for producer in log.open_transactions() if (producer, here) not in known_to_coordinator)
        if hanging:
            producers = ", ".join(map(str, hanging[:_SHOWN])) + (", ..." if len(hanging) > _SHOWN else "")
            reason = (
                "no transactional id has them, so read_committed consumers stop there; end them with: ottla transaction abort --hanging"
            )
            plan.not_imported.append(("hanging transactions", f"{len(hanging)} in {here}, of producers {producers}", reason))
    for source in plan.sources:
        if source.kraft and source.metadata_log is not None:
            plan.not_imported.append(
                ("quorum", str(source.metadata_log), "topics and settings go to the embedded store; there are no voters")
            )


def _leaders(plan: ImportPlan) -> dict[TopicPartition, SourceLog]:
    """The log of each partition's leader."""
    found: dict[TopicPartition, SourceLog] = {}
    for one in plan.logs:
        here = one.source.partition
        data, _, _ = plan.contents.rows[layout.partition_state(*here)]
        if layout.decode_partition_state(data).leader == one.broker:
            found[here] = one.source
    return dict(sorted(found.items()))
