"""The cluster image: the broker's parsed copy of the coordination store, as of the last change received.

Only ``apply`` changes it, in the store's order. The content has Kafka's ZooKeeper layout.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ottla.base.acls import ANY_USER, WILDCARD, Entry, Operation, Pattern, PatternType, Permission
from ottla.base.delegation_tokens import DelegationToken
from ottla.base.ids import BrokerId, TopicId, TopicPartition
from ottla.base.listeners import Address, registered_addresses
from ottla.base.ports import NodeState
from ottla.broker.metadata.features import finalized, is_outdated
from ottla.store import layout, layout_quotas
from ottla.store.layout import PartitionState

NO_LEADER = BrokerId(-1)
#: The rule in place of those that cannot be read: nobody but super users may use the resource.
CLOSED = Entry(ANY_USER, WILDCARD, Operation.ALL, Permission.DENY)
#: Memory of an entity with overrides in addition to its name and bytes.
ENTRY_BYTES = 600


@dataclass(slots=True)
class Registration:
    """A live broker, from its ephemeral node."""

    broker: BrokerId
    host: str
    port: int
    rack: str | None
    #: Transaction of the registration: a later registration has a higher one. Source: KIP-380.
    epoch: int
    #: In controlled shutdown, fenced or outdated: it transfers leadership and is not added to ISRs. Source: KIP-841.
    leaving: bool = False
    #: Version of the store node; it grows when the broker updates the state of its replicas.
    version: int = 0
    #: Replicas whose log directory failed, and replicas whose log lacks records.
    offline: frozenset[TopicPartition] = frozenset()
    impaired: frozenset[TopicPartition] = frozenset()
    #: Replicas whose disk is full: they refuse producers.
    full: frozenset[TopicPartition] = frozenset()
    #: Broker epoch since which all stops were clean; -1 if the last one was not.
    clean_since: int = -1
    #: Epoch of the controller that it cannot reach; -1 if it can, or does not know.
    unheard: int = -1
    #: Alive, but most brokers could not reach it when it was the controller.
    fenced: bool = False
    #: A broker of Apache Kafka, whose registration has the same form.
    foreign: bool = False
    #: Lowest and highest supported level by feature.
    features: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    #: Of a version that does not support the finalized level of ottla.version, and did not check it: Ottla 0.1.
    outdated: bool = False
    #: Addresses of its advertised listeners. ``host`` and ``port`` are those of the first plaintext one, else of the first.
    addresses: Mapping[str, Address] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.addresses = self.addresses or {"PLAINTEXT": (self.host, self.port)}

    def endpoint(self, listener: str) -> Address | None:
        """Host and port of a listener; None if the broker does not advertise one with this name."""
        return self.addresses.get(listener)


@dataclass(slots=True)
class Topic:
    """A topic: its id never changes; partitions are numbered from 0."""

    name: str
    topic_id: TopicId
    #: Replicas by partition, the preferred leader first.
    replicas: dict[int, tuple[int, ...]]
    #: Version of the store node with the replicas.
    version: int
    #: Leader, epoch and ISR by partition; a new partition may have no state yet.
    states: dict[int, PartitionState] = field(default_factory=dict)
    #: Versions of the store nodes with the states: Kafka's partition epochs.
    versions: dict[int, int] = field(default_factory=dict)
    #: Adding and removing replicas of partitions under reassignment.
    adding: dict[int, tuple[int, ...]] = field(default_factory=dict)
    removing: dict[int, tuple[int, ...]] = field(default_factory=dict)
    #: Replication factor to reach when there are enough brokers; 0 if it is reached.
    factor_wanted: int = 0

    def leader(self, partition: int) -> BrokerId:
        state = self.states.get(partition)
        return BrokerId(state.leader) if state else NO_LEADER


#: The subject of a change: a kind and a name.
Change = tuple[str, object]


def _partitions(numbers: Mapping[str, Iterable[int]]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(topic, number) for topic, ids in numbers.items() for number in ids)


class Image:
    """The parsed store."""

    def __init__(self) -> None:
        self.brokers: dict[BrokerId, Registration] = {}
        self.topics: dict[str, Topic] = {}
        self.topics_by_id: dict[TopicId, Topic] = {}
        #: Number of partitions, and topics by name with ``_`` for ``.``: kept up to date for checks at topic creation.
        self._partition_count = 0
        self._alike: dict[str, dict[str, None]] = {}
        #: Overrides as text: by ("topics", name) or ("brokers", id or "<default>"); an entity without overrides is absent.
        self.configs: dict[tuple[str, str], dict[str, str]] = {}
        #: The same of users, client ids and addresses, for their quotas; an entity without overrides is absent.
        self.quotas: dict[layout_quotas.QuotaEntity, dict[str, str]] = {}
        #: Memory of both, see ``entry_bytes``.
        self.configs_bytes = 0
        #: Versions of the store nodes below /config, /kafka-acl and /kafka-acl-extended, /controller_epoch, /feature,
        #: /latest_producer_id_block and /admin/reassign_partitions.
        self.versions: dict[str, int] = {}
        self.controller: BrokerId | None = None
        self.controller_epoch = 0
        #: Finalized levels by feature; see ``features.py``.
        self.levels = finalized({})
        #: Paths of log directory failure notifications that the controller has to delete.
        self.log_dir_events: dict[str, None] = {}
        #: Reassignments requested through the store by older tools.
        self.requested_moves: dict[TopicPartition, tuple[int, ...]] = {}
        #: The last allocated block of producer ids in the cluster.
        self.producer_block: layout.ProducerIdBlock | None = None
        #: Topics marked for deletion; some of their partitions may be deleted already.
        self.deleting: dict[str, None] = {}
        #: Delegation tokens by id.
        self.tokens: dict[str, DelegationToken] = {}
        #: Content of the preferred leader election request of a tool; None if there is none.
        self.preferred_election: bytes | None = None
        #: Access rules by pattern; a pattern without rules is absent.
        self.acls: dict[Pattern, tuple[Entry, ...]] = {}
        #: Patterns whose rules cannot be read, with the reason; ``acls`` has CLOSED for them.
        self.unreadable_acls: dict[Pattern, str] = {}
        #: Numbers of the notifications of changed rules in the store, in ascending order.
        self.acl_changes: dict[PatternType, list[int]] = {PatternType.LITERAL: [], PatternType.PREFIXED: []}

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """The partition's state; None if it does not exist (yet)."""
        topic = self.topics.get(partition.topic)
        return topic.states.get(partition.partition) if topic else None

    def has(self, topic: str, partition: int) -> bool:
        found = self.topics.get(topic)
        return found is not None and partition in found.replicas

    def partition_count(self) -> int:
        return self._partition_count

    def colliding(self, name: str) -> str | None:
        """Another topic whose name differs only in ``.`` and ``_``, which metrics cannot distinguish."""
        return next((other for other in self._alike.get(name.replace(".", "_"), ()) if other != name), None)

    def overrides(self, kind: str, name: str) -> dict[str, str]:
        return self.configs.get((kind, name), {})

    def apply(self, node: NodeState) -> Change | None:
        """Applies one change of the store; returns its subject, None if it does not concern the broker.

        Raises: MalformedNode if the content does not match the path.
        """
        path = node.path
        if path.startswith("/brokers/topics/"):
            partition = layout.partition_state_of(path)
            if partition is not None:
                return self._state_changed(partition, node)
            name = layout.topic_of(path)
            return self._topic_changed(name, node) if name is not None else None
        broker = layout.broker_of(path)
        if broker is not None:
            return self._broker_changed(broker, node)
        if path.startswith("/config/"):
            quotas = layout_quotas.quota_entity_of(path)
            if quotas is not None:
                return self._quotas_changed(quotas, node)
            entity = layout.config_of(path)
            if entity is not None:
                return self._config_changed(entity, node)
            if layout_quotas.is_parent_of_quotas(path):
                self._note_version(node)
            return None
        if (token_id := layout.delegation_token_of(path)) is not None:
            return self._token_changed(token_id, node)
        if path.startswith(layout.ADMIN):
            return self._request_changed(node)
        if path.startswith(f"{layout.LOG_DIR_EVENTS}/"):
            return self._event_changed(node)
        if path.startswith(layout.ACLS):
            return self._acls_changed(node)
        return self._cluster_changed(node)

    def _acls_changed(self, node: NodeState) -> Change | None:
        pattern = layout.acl_of(node.path)
        if pattern is None:
            notified = layout.acl_change_of(node.path)
            if notified is not None:
                numbers = self.acl_changes[notified[0]]
                self.acl_changes[notified[0]] = sorted({*numbers, notified[1]} - ({notified[1]} if node.data is None else set()))
            return None
        self._note_version(node)
        self.unreadable_acls.pop(pattern, None)
        try:
            entries = layout.decode_acls(node.data) if node.data is not None else ()
        except layout.MalformedNode as error:
            self.unreadable_acls[pattern], entries = str(error), (CLOSED,)
        if entries:
            self.acls[pattern] = entries
        else:
            self.acls.pop(pattern, None)
        return ("acl", pattern)

    def _topic_changed(self, name: str, node: NodeState) -> Change:
        before = self.topics.get(name)
        if node.data is None:
            if before is not None:
                self._count(before, -1)
                del self.topics[name]
                self.topics_by_id.pop(before.topic_id, None)
            return ("topic", name)
        assignment = layout.decode_topic(node.data)
        topic = Topic(name, assignment.topic_id, dict(sorted(assignment.replicas.items())), node.version)
        topic.adding, topic.removing = dict(assignment.adding), dict(assignment.removing)
        topic.factor_wanted = assignment.factor_wanted
        if before is not None and before.topic_id == topic.topic_id:
            topic.states, topic.versions = before.states, before.versions
        elif before is not None:
            self.topics_by_id.pop(before.topic_id, None)
        if before is not None:
            self._count(before, -1)
        self._count(topic, 1)
        self.topics[name] = self.topics_by_id[topic.topic_id] = topic
        return ("topic", name)

    def _count(self, topic: Topic, sign: int) -> None:
        """Counts a new or deleted topic."""
        self._partition_count += sign * len(topic.replicas)
        plain = topic.name.replace(".", "_")
        if sign > 0:
            self._alike.setdefault(plain, {})[topic.name] = None
        else:
            del self._alike[plain][topic.name]
            if not self._alike[plain]:
                del self._alike[plain]

    def _state_changed(self, partition: TopicPartition, node: NodeState) -> Change:
        topic = self.topics.get(partition.topic)
        if topic is not None:
            if node.data is None:
                topic.states.pop(partition.partition, None)
                topic.versions.pop(partition.partition, None)
            else:
                topic.states[partition.partition] = layout.decode_partition_state(node.data)
                topic.versions[partition.partition] = node.version
        return ("partition", partition)

    def _broker_changed(self, broker: BrokerId, node: NodeState) -> Change:
        if node.data is None:
            self.brokers.pop(broker, None)
        else:
            read = layout.decode_broker(node.data)
            addresses = registered_addresses(read.endpoints)
            self.brokers[broker] = Registration(
                broker,
                read.host or next((host for host, _ in addresses.values()), ""),
                read.port if read.host else next((port for _, port in addresses.values()), read.port),
                read.rack,
                node.created_zxid,
                leaving=read.leaving or read.fenced,
                version=node.version,
                offline=_partitions(read.offline),
                impaired=_partitions(read.impaired),
                full=_partitions(read.full),
                clean_since=read.clean_since,
                unheard=read.unheard,
                fenced=read.fenced,
                foreign=read.implementation != layout.OTTLA,
                features=read.features,
                addresses=addresses,
            )
            self._compare_levels(self.brokers[broker])
            self.brokers = dict(sorted(self.brokers.items()))
        return ("broker", broker)

    def _compare_levels(self, found: Registration) -> None:
        """A level of ottla.version is never lowered, so an outdated broker remains so."""
        found.outdated = not found.foreign and is_outdated(found.features, self.levels)
        found.leaving = found.leaving or found.outdated

    def _config_changed(self, entity: tuple[str, str], node: NodeState) -> Change:
        overrides = layout.decode_config(node.data) if node.data is not None else {}
        path = layout.config(*entity)
        if entity in self.configs:
            self.configs_bytes -= entry_bytes(path, layout.encode_config(self.configs[entity]))
        if overrides:
            self.configs_bytes += entry_bytes(path, layout.encode_config(overrides))
        if overrides:
            self.configs[entity] = overrides
        else:
            self.configs.pop(entity, None)
        self._note_version(node)
        return ("config", entity)

    def _quotas_changed(self, entity: layout_quotas.QuotaEntity, node: NodeState) -> Change:
        """The overrides of a user also have its credentials, so they are in ``configs``, too."""
        known = layout.config_of(node.path)
        change: Change = ("quotas", entity)
        if known is not None:
            change = self._config_changed(known, node)
            overrides = self.configs.get(known, {})
        else:
            overrides = layout.decode_config(node.data) if node.data is not None else {}
            for sign, content in ((-1, self.quotas.get(entity)), (1, overrides)):
                self.configs_bytes += sign * entry_bytes(node.path, layout.encode_config(content)) if content else 0
            self._note_version(node)
        if overrides:
            self.quotas[entity] = overrides
        else:
            self.quotas.pop(entity, None)
        return change

    def _request_changed(self, node: NodeState) -> Change | None:
        """A tool wrote below /admin. The reader must validate the content."""
        topic = layout.deleted_topic_of(node.path)
        if topic is not None:
            if node.data is None:
                self.deleting.pop(topic, None)
            else:
                self.deleting[topic] = None
            return ("deletion", topic)
        if node.path == layout.PREFERRED_ELECTION:
            self.preferred_election = node.data
            return ("preferred_election", None)
        if node.path == layout.REASSIGN_PARTITIONS:
            self._note_version(node)
            self.requested_moves = _requested_moves(node)
            return ("reassignment", None)
        return None

    def _token_changed(self, token_id: str, node: NodeState) -> Change:
        if node.data is None:
            self.tokens.pop(token_id, None)
        else:
            self.tokens[token_id] = layout.decode_delegation_token(node.data)
        self._note_version(node)
        return ("token", token_id)

    def _event_changed(self, node: NodeState) -> Change:
        if node.data is None:
            self.log_dir_events.pop(node.path, None)
        else:
            self.log_dir_events[node.path] = None
        return ("log_dir_event", node.path)

    def _cluster_changed(self, node: NodeState) -> Change | None:
        match node.path:
            case layout.CONTROLLER:
                self.controller = None if node.data is None else layout.decode_controller(node.data)
                return ("controller", self.controller)
            case layout.CONTROLLER_EPOCH:
                self._note_version(node)
                self.controller_epoch = layout.decode_controller_epoch(node.data) if node.data else 0
                return ("controller_epoch", self.controller_epoch)
            case layout.FEATURE:
                self._note_version(node)
                stored = layout.decode_feature(node.data) if node.data else layout.Features()
                self.levels = finalized(stored.levels if stored.enabled else {})
                for found in self.brokers.values():
                    self._compare_levels(found)
                return ("features", None)
            case layout.PRODUCER_ID_BLOCK:
                self._note_version(node)
                self.producer_block = layout.decode_producer_id_block(node.data) if node.data else None
                return ("producer_ids", self.producer_block)
            case _:
                return None

    def _note_version(self, node: NodeState) -> None:
        if node.data is None:
            self.versions.pop(node.path, None)
        else:
            self.versions[node.path] = node.version


def _requested_moves(node: NodeState) -> dict[TopicPartition, tuple[int, ...]]:
    """Content that cannot be parsed requests nothing."""
    try:
        return layout.decode_reassignment(node.data) if node.data is not None else {}
    except layout.MalformedNode:
        return {}


def entry_bytes(path: str, data: bytes) -> int:
    """Approximate memory of a node with overrides in the image."""
    return ENTRY_BYTES + len(path) + 2 * len(data)
