"""Paths and node contents of the coordination store, as in ZooKeeper under Kafka 3.x.

::

    /cluster/id                             {"version":"1","id":"<22 characters>"}
    /brokers/ids/N              ephemeral   registration of broker N; its creation zxid is the broker epoch
    /brokers/topics/T                       topic id and replicas of each partition, version 3
    /brokers/topics/T/partitions/P/state    leader, leader epoch, ISR; the node's version is the partition epoch
    /brokers/seqid                          empty; its version makes broker ids
    /controller                 ephemeral   id of the controller
    /controller_epoch                       a decimal number; its version fences a zombie controller's writes
    /config/TYPE/NAME                       overrides; TYPE topics, brokers, users, clients, ips; NAME <default> for all
    /config/users/USER/clients/CLIENT       quotas of a client id of a user
    /config/changes/config_change_S         announces that an override changed (Kafka's brokers watch it; ours watch the node itself)
    /admin/delete_topics/T                  empty; the topic is being deleted
    /admin/reassign_partitions              replicas requested by an operator's tool, until the controller has read them
    /admin/preferred_replica_election       partitions with a requested preferred election
    /latest_producer_id_block               the last assigned block of producer ids
    /isr_change_notification/isr_change_S   partitions whose state changed
    /log_dir_event_notification/log_dir_event_S   a broker lost a log directory
    /feature                                finalized features
    /delegation_token/tokens/ID             owner, renewers and times of a delegation token; its HMAC is computed
    /consumers                              empty; used by Kafka's consumers before 0.9
    /kafka-acl/TYPE/NAME                    access rules of a literal resource pattern
    /kafka-acl-extended/prefixed/TYPE/NAME  access rules of a prefixed resource pattern
    /kafka-acl-changes/acl_changes_S            announces a change of rules, for Kafka's brokers
    /kafka-acl-extended-changes/acl_changes_S   the same for prefixed patterns

Contents are JSON, except the controller epoch. As in Kafka, unknown keys are ignored, so newer versions can add keys.
The module is pure; malformed content raises ``MalformedNode``. Source: KIP-497 (state), KIP-516 (topic ids),
KIP-455 (adding and removing replicas), KIP-584 (features), KIP-730 (producer id blocks), KIP-290 (access rules).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, unquote

import msgspec

from ottla.base.acls import RESOURCE_TYPES, Entry, Operation, Pattern, PatternType, Permission, ResourceType
from ottla.base.delegation_tokens import DelegationToken
from ottla.base.ids import NO_TOPIC_ID, BrokerId, LeaderEpoch, ProducerId, TopicId, TopicPartition, topic_id_from_text, topic_id_text

BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
TOPICS = "/brokers/topics"
BROKER_SEQUENCE = "/brokers/seqid"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
ADMIN = "/admin"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_ELECTION = "/admin/preferred_replica_election"
CLUSTER = "/cluster"
CLUSTER_ID = "/cluster/id"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
ISR_CHANGES = "/isr_change_notification"
LOG_DIR_EVENTS = "/log_dir_event_notification"
FEATURE = "/feature"
CONSUMERS = "/consumers"
ACLS = "/kafka-acl"
EXTENDED_ACLS = "/kafka-acl-extended"
ACL_CHANGES = {PatternType.LITERAL: "/kafka-acl-changes", PatternType.PREFIXED: "/kafka-acl-extended-changes"}
_ACL_ROOTS = {PatternType.LITERAL: ACLS, PatternType.PREFIXED: f"{EXTENDED_ACLS}/prefixed"}
DELEGATION_TOKENS = "/delegation_token/tokens"

#: Types of entities with overrides.
CONFIG_TYPES = ("topics", "brokers", "users", "clients", "ips", "groups", "client-metrics")
#: ``implementation`` of our registrations.
OTTLA = "ottla"
#: Feature whose level gates changed formats between brokers; see ``broker/metadata/features.py``.
OTTLA_VERSION = "ottla.version"
#: Name of the default overrides for all brokers, users or clients.
DEFAULT_ENTITY = "<default>"

#: Beginning of an encoded name in the path of access rules.
_ENCODED = "%%"

#: Nodes that exist, empty, in every store before a broker uses it; parents come before children.
PERSISTENT_PATHS: tuple[str, ...] = (
    BROKERS, BROKER_IDS, TOPICS, BROKER_SEQUENCE, ADMIN, DELETE_TOPICS, CLUSTER, CONFIG, CONFIG_CHANGES,
    *(f"{CONFIG}/{kind}" for kind in CONFIG_TYPES), ISR_CHANGES, LOG_DIR_EVENTS, CONSUMERS,
    EXTENDED_ACLS, *_ACL_ROOTS.values(), *ACL_CHANGES.values(),
    *(f"{root}/{kind.label}" for root in _ACL_ROOTS.values() for kind in RESOURCE_TYPES),
    "/delegation_token", DELEGATION_TOKENS, "/delegation_token/token_changes",
)  # fmt: skip


class MalformedNode(ValueError):
    """A node holds what its path does not promise."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"store node {path}: {problem}")
        self.path = path


_Made = TypeVar("_Made")


def _decode(data: bytes, kind: type[_Made], path: str) -> _Made:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise MalformedNode(path, str(error)) from None


# Paths.


def broker(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_of(path: str) -> BrokerId | None:
    """The broker whose registration lives at this path; None for another kind of path."""
    found = re.fullmatch(r"/brokers/ids/(\d+)", path)
    return BrokerId(int(found[1])) if found else None


def topic(name: str) -> str:
    return f"{TOPICS}/{name}"


def topic_of(path: str) -> str | None:
    """The topic whose assignment lives at this path; None for another kind of path, such as that of one of its partitions."""
    found = re.fullmatch(r"/brokers/topics/([^/]+)", path)
    return found[1] if found else None


def partitions(name: str) -> str:
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}"


def partition_state(name: str, number: int) -> str:
    return f"{TOPICS}/{name}/partitions/{number}/state"


def partition_state_of(path: str) -> TopicPartition | None:
    """The partition whose state lives at this path; None for another kind of path."""
    found = re.fullmatch(r"/brokers/topics/([^/]+)/partitions/(\d+)/state", path)
    return TopicPartition(found[1], int(found[2])) if found else None


def config(kind: str, name: str) -> str:
    """Node of the overrides of ``name`` (``<default>``: of all of this kind). Names of users and clients may hold any characters."""
    assert kind in CONFIG_TYPES, f"{kind} is not a kind of thing that has settings"
    return f"{CONFIG}/{kind}/{sanitized(name)}"


def config_of(path: str) -> tuple[str, str] | None:
    """Kind and name of what the overrides at this path belong to; None for another kind of path."""
    found = re.fullmatch(r"/config/([^/]+)/([^/]+)", path)
    return (found[1], desanitized(found[2])) if found and found[1] in CONFIG_TYPES else None


def deleted_topic(name: str) -> str:
    return f"{DELETE_TOPICS}/{name}"


def deleted_topic_of(path: str) -> str | None:
    """The topic that this marker asks to delete; None for another kind of path."""
    found = re.fullmatch(r"/admin/delete_topics/([^/]+)", path)
    return found[1] if found else None


def log_dir_event(sequence: int) -> str:
    return f"{LOG_DIR_EVENTS}/log_dir_event_{sequence:010d}"


def acl(pattern: Pattern) -> str:
    """Node of the rules of a pattern: the name as it is, like Kafka, or ``%%`` and its percent-encoding if it cannot be a path element."""
    name = pattern.name
    if "/" in name or name in (".", "..") or name.startswith(_ENCODED) or not name.isprintable():
        name = _ENCODED + quote(name, safe="")
    return f"{_ACL_ROOTS[pattern.pattern_type]}/{pattern.resource_type.label}/{name}"


def acl_of(path: str) -> Pattern | None:
    """The pattern whose rules live at this path; None for another kind of path."""
    for pattern_type, root in _ACL_ROOTS.items():
        if path.startswith(f"{root}/"):
            kind, _, name = path[len(root) + 1 :].partition("/")
            resource_type = ResourceType.labelled(kind)
            if resource_type is None or not name:
                return None
            return Pattern(resource_type, pattern_type, unquote(name[len(_ENCODED) :]) if name.startswith(_ENCODED) else name)
    return None


def acl_change(pattern_type: PatternType, sequence: int) -> str:
    """A notification for Kafka's brokers, which read those with a higher number than the last one."""
    return f"{ACL_CHANGES[pattern_type]}/acl_changes_{sequence:010d}"


def acl_change_of(path: str) -> tuple[PatternType, int] | None:
    """Kind of pattern and number of a notification; None for another kind of path."""
    for pattern_type, root in ACL_CHANGES.items():
        found = re.fullmatch(rf"{root}/acl_changes_(\d+)", path)
        if found:
            return pattern_type, int(found[1])
    return None


def sanitized(name: str) -> str:
    """A name of any characters as one path element: percent-encoded, but ``<default>`` stays as it is."""
    return name if name == DEFAULT_ENTITY else quote(name, safe="._-").replace("~", "%7E")


def desanitized(element: str) -> str:
    return element if element == DEFAULT_ENTITY else unquote(element)


# Contents.


class Features(msgspec.Struct, frozen=True, kw_only=True):
    """Finalized features: highest finalized version level by name."""

    levels: dict[str, int] = {}
    enabled: bool = True


def _plaintext() -> dict[str, str]:
    return {"PLAINTEXT": "PLAINTEXT"}


class BrokerRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """Registration of a live broker.

    ``endpoints`` are ``NAME://host:port``; host and port repeat the first plaintext one. ``timestamp`` is wall time in ms.

    Only Ottla writes these keys, which Kafka ignores: replicas by topic whose log directory failed (``offline``), whose log lacks records
    (``impaired``), or whose disk is full (``full``); and ``clean_since``: every stop since the registration with this epoch was clean, so
    no records were lost; -1 if unknown.
    """

    host: str | None
    port: int
    endpoints: tuple[str, ...]
    timestamp_ms: int
    listener_security_protocol_map: dict[str, str] = msgspec.field(default_factory=_plaintext)
    rack: str | None = None
    jmx_port: int = -1
    #: Whether the broker is in controlled shutdown. Kafka with ZooKeeper ignores this key; KRaft has the same one.
    leaving: bool = False
    offline: dict[str, tuple[int, ...]] = {}
    impaired: dict[str, tuple[int, ...]] = {}
    full: dict[str, tuple[int, ...]] = {}
    clean_since: int = -1
    #: Epoch of the controller that this broker cannot reach; -1 if it can, or if unknown.
    unheard: int = -1
    #: Most brokers could not reach this one as controller: it leads only partitions without another candidate, and joins no ISR.
    fenced: bool = False
    #: OTTLA; empty for a broker of Apache Kafka, which does not write this key.
    implementation: str = OTTLA
    #: Lowest and highest supported level by feature. Source: KIP-584.
    features: dict[str, tuple[int, int]] = {}


class TopicAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas of every partition, preferred leader first; replicas being added or removed, for partitions that have any."""

    topic_id: TopicId
    replicas: dict[int, tuple[int, ...]]
    adding: dict[int, tuple[int, ...]] = {}
    removing: dict[int, tuple[int, ...]] = {}
    #: Target replication factor when there are enough brokers; 0 when it is reached. Only Ottla writes it; Kafka ignores it.
    factor_wanted: int = 0


class PartitionState(msgspec.Struct, frozen=True, kw_only=True):
    """Leader (-1: none), its epoch, and the ISR, written by the controller of ``controller_epoch``.

    ``isr_epochs`` are the broker epochs with which the ISR members joined, in the same order; empty if not recorded. ``elr`` are the
    eligible leader replicas, ``elr_epochs`` their broker epochs when they left the ISR; ``last_known_elr`` those that returned with lost
    records (KIP-966); ``last_leader`` is the previous leader while there is none. Kafka ignores these keys.

    ``recovering`` is set by an unclean election until the leader has recovered the log (KIP-704).
    """

    leader: int
    leader_epoch: LeaderEpoch
    isr: tuple[int, ...]
    controller_epoch: int
    recovering: bool = False
    isr_epochs: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    elr_epochs: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_leader: int = -1

    def registration_of(self, broker: int) -> int:
        """The broker epoch with which this broker joined the ISR; -1 if it is not in it, or if unknown."""
        for member, epoch in zip(self.isr, self.isr_epochs, strict=False):
            if member == broker:
                return epoch
        return -1

    def eligible_since(self, broker: int) -> int:
        """The broker epoch with which this broker left the ISR and stayed eligible; -1 if it is not eligible, or if unknown."""
        return dict(zip(self.elr, self.elr_epochs, strict=False)).get(broker, -1)

    def names(self, broker: int) -> bool:
        """Whether this broker is in the ISR or eligible."""
        return broker in self.isr or broker in self.elr


class ProducerIdBlock(NamedTuple):
    """Producer ids ``start`` to ``end`` inclusive, handed to ``broker_id``."""

    broker_id: int
    start: ProducerId
    end: ProducerId


class _BrokerJson(msgspec.Struct):
    version: int
    host: str | None
    port: int
    timestamp: str
    jmx_port: int = -1
    endpoints: list[str] = []
    rack: str | None = None
    listener_security_protocol_map: dict[str, str] = msgspec.field(default_factory=_plaintext)
    in_controlled_shutdown: bool = False
    offline_replicas: dict[str, tuple[int, ...]] = {}
    impaired_replicas: dict[str, tuple[int, ...]] = {}
    full_replicas: dict[str, tuple[int, ...]] = {}
    clean_since_epoch: int = -1
    unreachable_controller_epoch: int = -1
    fenced: bool = False
    implementation: str = ""
    features: dict[str, dict[str, int]] = {}


def encode_broker(registration: BrokerRegistration) -> bytes:
    """Version 5 of Kafka's registration."""
    content: dict[str, Any] = {
        "version": 5,
        "host": registration.host,
        "port": registration.port,
        "jmx_port": registration.jmx_port,
        "timestamp": str(registration.timestamp_ms),
        "endpoints": registration.endpoints,
        "listener_security_protocol_map": registration.listener_security_protocol_map,
        "features": {name: {"min_version": least, "max_version": most} for name, (least, most) in registration.features.items()},
    }
    if registration.rack is not None:
        content["rack"] = registration.rack
    if registration.leaving:
        content["in_controlled_shutdown"] = True
    if registration.offline:
        content["offline_replicas"] = registration.offline
    if registration.impaired:
        content["impaired_replicas"] = registration.impaired
    if registration.full:
        content["full_replicas"] = registration.full
    if registration.clean_since >= 0:
        content["clean_since_epoch"] = registration.clean_since
    if registration.unheard >= 0:
        content["unreachable_controller_epoch"] = registration.unheard
    if registration.fenced:
        content["fenced"] = True
    if registration.implementation:
        content["implementation"] = registration.implementation
    return msgspec.json.encode(content)


def decode_broker(data: bytes) -> BrokerRegistration:
    """Versions 1 to 5. Raises MalformedNode."""
    read = _decode(data, _BrokerJson, BROKER_IDS)
    if not 1 <= read.version <= 5 or not read.timestamp.lstrip("-").isdigit():
        raise MalformedNode(BROKER_IDS, f"no registration of versions 1 to 5: version {read.version}, timestamp {read.timestamp!r}")
    return BrokerRegistration(
        host=read.host,
        port=read.port,
        endpoints=tuple(read.endpoints) or (f"PLAINTEXT://{read.host}:{read.port}",),
        timestamp_ms=int(read.timestamp),
        listener_security_protocol_map=read.listener_security_protocol_map,
        rack=read.rack,
        jmx_port=read.jmx_port,
        leaving=read.in_controlled_shutdown,
        offline=read.offline_replicas,
        impaired=read.impaired_replicas,
        full=read.full_replicas,
        clean_since=read.clean_since_epoch,
        unheard=read.unreachable_controller_epoch,
        fenced=read.fenced,
        features={name: (levels.get("min_version", 1), levels.get("max_version", 1)) for name, levels in read.features.items()},
        # Ottla 0.1.0 wrote no such key; it wrote the version first, and Apache Kafka writes it near the end.
        implementation=read.implementation or (OTTLA if data.startswith(b'{"version":') else ""),
    )


class _TopicJson(msgspec.Struct):
    partitions: dict[int, tuple[int, ...]]
    topic_id: str | None = None
    adding_replicas: dict[int, tuple[int, ...]] = {}
    removing_replicas: dict[int, tuple[int, ...]] = {}
    replication_factor_wanted: int = 0


def encode_topic(assignment: TopicAssignment) -> bytes:
    content: dict[str, Any] = {
        "version": 3,
        "topic_id": topic_id_text(assignment.topic_id),
        "partitions": assignment.replicas,
        "adding_replicas": {number: ids for number, ids in assignment.adding.items() if ids},
        "removing_replicas": {number: ids for number, ids in assignment.removing.items() if ids},
    }
    if assignment.factor_wanted:
        content["replication_factor_wanted"] = assignment.factor_wanted
    return msgspec.json.encode(content)


def decode_topic(data: bytes) -> TopicAssignment:
    """Versions 1 to 3; a topic older than topic ids has the id of zeroes. Raises MalformedNode."""
    read = _decode(data, _TopicJson, TOPICS)
    try:
        topic_id = NO_TOPIC_ID if read.topic_id is None else topic_id_from_text(read.topic_id)
    except ValueError as error:
        raise MalformedNode(TOPICS, str(error)) from None
    return TopicAssignment(
        topic_id=topic_id,
        replicas=read.partitions,
        adding=read.adding_replicas,
        removing=read.removing_replicas,
        factor_wanted=read.replication_factor_wanted,
    )


class _StateJson(msgspec.Struct):
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    controller_epoch: int
    leader_recovery_state: int = 0
    isr_broker_epochs: tuple[int, ...] = ()
    eligible_leader_replicas: tuple[int, ...] = ()
    elr_broker_epochs: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()
    last_known_leader: int = -1


def encode_partition_state(state: PartitionState) -> bytes:
    content: dict[str, Any] = {
        "version": 1,
        "leader": state.leader,
        "leader_epoch": state.leader_epoch,
        "controller_epoch": state.controller_epoch,
        "isr": state.isr,
    }
    if state.recovering:
        content["leader_recovery_state"] = 1
    if state.isr_epochs:
        content["isr_broker_epochs"] = state.isr_epochs
    if state.elr:
        content["eligible_leader_replicas"] = state.elr
        content["elr_broker_epochs"] = state.elr_epochs
    if state.last_known_elr:
        content["last_known_elr"] = state.last_known_elr
    if state.leader < 0 <= state.last_leader:
        content["last_known_leader"] = state.last_leader
    return msgspec.json.encode(content)


def decode_partition_state(data: bytes) -> PartitionState:
    """Raises MalformedNode."""
    read = _decode(data, _StateJson, TOPICS)
    return PartitionState(
        leader=read.leader,
        leader_epoch=LeaderEpoch(read.leader_epoch),
        isr=read.isr,
        controller_epoch=read.controller_epoch,
        recovering=read.leader_recovery_state == 1,
        isr_epochs=read.isr_broker_epochs,
        elr=read.eligible_leader_replicas,
        elr_epochs=read.elr_broker_epochs,
        last_known_elr=read.last_known_elr,
        last_leader=read.last_known_leader,
    )


class _ControllerJson(msgspec.Struct):
    brokerid: int


def encode_controller(broker_id: int, wall_ms: int) -> bytes:
    """Version 2; the epoch is not here but in ``/controller_epoch``."""
    return msgspec.json.encode({"version": 2, "brokerid": broker_id, "timestamp": str(wall_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> BrokerId:
    """Raises MalformedNode."""
    return BrokerId(_decode(data, _ControllerJson, CONTROLLER).brokerid)


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    """Raises MalformedNode."""
    if not data.isdigit():
        raise MalformedNode(CONTROLLER_EPOCH, f"{data[:40]!r} is not a number")
    return int(data)


class _ConfigJson(msgspec.Struct):
    config: dict[str, str] = {}


class _TokenJson(msgspec.Struct, rename="camel"):
    version: int
    owner: str
    renewers: list[str]
    issue_timestamp: int
    max_timestamp: int
    expiry_timestamp: int
    token_id: str
    token_requester: str = ""


def delegation_token(token_id: str) -> str:
    return f"{DELEGATION_TOKENS}/{token_id}"


def delegation_token_of(path: str) -> str | None:
    """The id of the token at this path; None for another kind of path."""
    found = re.fullmatch(rf"{DELEGATION_TOKENS}/([^/]+)", path)
    return found[1] if found else None


def encode_delegation_token(token: DelegationToken) -> bytes:
    """Version 3."""
    times = {"issueTimestamp": token.issued_ms, "maxTimestamp": token.max_ms, "expiryTimestamp": token.expires_ms}
    owner, requester, *renewers = map(sanitized, (token.owner, token.requester, *token.renewers))
    names = {"owner": owner, "tokenRequester": requester, "renewers": renewers, "tokenId": token.token_id}
    return msgspec.json.encode({"version": 3, **names, **times})


def decode_delegation_token(data: bytes) -> DelegationToken:
    """Versions 1 to 3; before 3 the owner requested the token. Raises MalformedNode."""
    read = _decode(data, _TokenJson, DELEGATION_TOKENS)
    return DelegationToken(
        token_id=read.token_id,
        owner=desanitized(read.owner),
        requester=desanitized(read.token_requester or read.owner),
        renewers=tuple(desanitized(renewer) for renewer in read.renewers),
        issued_ms=read.issue_timestamp,
        max_ms=read.max_timestamp,
        expires_ms=read.expiry_timestamp,
    )


def encode_config(overrides: dict[str, str]) -> bytes:
    """Settings in Kafka's text form, by name."""
    return msgspec.json.encode({"version": 1, "config": overrides})


def decode_config(data: bytes) -> dict[str, str]:
    """An empty node has no overrides. Raises MalformedNode."""
    return _decode(data, _ConfigJson, CONFIG).config if data else {}


class _ClusterJson(msgspec.Struct):
    id: str


def encode_cluster_id(cluster_id: str) -> bytes:
    return msgspec.json.encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    """Raises MalformedNode."""
    return _decode(data, _ClusterJson, CLUSTER_ID).id


class _BlockJson(msgspec.Struct):
    broker: int
    block_start: str
    block_end: str


def encode_producer_id_block(block: ProducerIdBlock) -> bytes:
    content = {"version": 1, "broker": block.broker_id, "block_start": str(block.start), "block_end": str(block.end)}
    return msgspec.json.encode(content)


def decode_producer_id_block(data: bytes) -> ProducerIdBlock:
    """Raises MalformedNode."""
    read = _decode(data, _BlockJson, PRODUCER_ID_BLOCK)
    try:
        return ProducerIdBlock(read.broker, ProducerId(int(read.block_start)), ProducerId(int(read.block_end)))
    except ValueError:
        raise MalformedNode(PRODUCER_ID_BLOCK, f"{read.block_start!r} to {read.block_end!r} is not a range of numbers") from None


class _PlaceJson(msgspec.Struct):
    topic: str
    partition: int


class _PlacesJson(msgspec.Struct):
    partitions: list[_PlaceJson]


def decode_preferred_election(data: bytes) -> list[TopicPartition]:
    """Raises MalformedNode."""
    return [TopicPartition(place.topic, place.partition) for place in _decode(data, _PlacesJson, PREFERRED_ELECTION).partitions]


class _ReplicasJson(msgspec.Struct):
    topic: str
    partition: int
    replicas: tuple[int, ...]


class _ReassignmentJson(msgspec.Struct):
    partitions: list[_ReplicasJson]


def encode_reassignment(replicas: Mapping[TopicPartition, Iterable[int]]) -> bytes:
    content = [{"topic": name, "partition": number, "replicas": list(ids)} for (name, number), ids in replicas.items()]
    return msgspec.json.encode({"version": 1, "partitions": content})


def decode_reassignment(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
    """Raises MalformedNode."""
    read = _decode(data, _ReassignmentJson, REASSIGN_PARTITIONS)
    return {TopicPartition(one.topic, one.partition): one.replicas for one in read.partitions}


def encode_log_dir_event(broker_id: int) -> bytes:
    """Event 1: a log directory failed."""
    return msgspec.json.encode({"version": 1, "broker": broker_id, "event": 1})


class _FeatureJson(msgspec.Struct):
    version: int
    status: int
    features: dict[str, dict[str, int]]


def encode_feature(features: Features) -> bytes:
    """Version 2: only the highest level of each."""
    levels = {name: {"max_version_level": level} for name, level in features.levels.items()}
    return msgspec.json.encode({"version": 2, "status": int(features.enabled), "features": levels})


def decode_feature(data: bytes) -> Features:
    """Versions 1 and 2. Raises MalformedNode."""
    read = _decode(data, _FeatureJson, FEATURE)
    levels = {name: level["max_version_level"] for name, level in read.features.items() if "max_version_level" in level}
    if read.version not in (1, 2) or read.status not in (0, 1) or len(levels) != len(read.features) or min(levels.values(), default=1) < 1:
        raise MalformedNode(FEATURE, "not the finalized features of versions 1 or 2")
    return Features(levels=levels, enabled=read.status == 1)


class _EntryJson(msgspec.Struct):
    principal: str
    permissionType: str
    operation: str
    host: str


class _EntriesJson(msgspec.Struct):
    version: int
    acls: list[_EntryJson]


def encode_acls(entries: Iterable[Entry]) -> bytes:
    """Version 1."""
    acls = [
        {"principal": one.principal, "permissionType": one.permission.label, "operation": one.operation.label, "host": one.host}
        for one in entries
    ]
    return msgspec.json.encode({"version": 1, "acls": acls})


def decode_acls(data: bytes) -> tuple[Entry, ...]:
    """Each entry once; an empty node has none. Raises MalformedNode also for an unknown operation or permission."""
    if not data:
        return ()
    read = _decode(data, _EntriesJson, ACLS)
    if read.version != 1:
        raise MalformedNode(ACLS, f"access rules of version {read.version}")
    found: dict[Entry, None] = {}
    for one in read.acls:
        operation, permission = Operation.labelled(one.operation), Permission.labelled(one.permissionType)
        if operation in (None, Operation.ANY) or permission in (None, Permission.ANY) or ":" not in one.principal:
            raise MalformedNode(ACLS, f"{one.permissionType!r} {one.operation!r} of {one.principal!r} is no access rule")
        assert operation is not None and permission is not None
        found[Entry(one.principal, one.host, operation, permission)] = None
    return tuple(found)


def encode_acl_change(pattern: Pattern) -> bytes:
    """Text for a literal pattern, JSON for another."""
    if pattern.pattern_type is PatternType.LITERAL:
        return f"{pattern.resource_type.name}:{pattern.name}".encode()
    content = {"version": 1, "resourceType": pattern.resource_type.name, "name": pattern.name, "patternType": pattern.pattern_type.name}
    return msgspec.json.encode(content)
