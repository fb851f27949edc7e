"""Generates valid requests from the message schemas: every field of a version, mostly with values that exist on the broker.

Each request has a hostility between 0 and 0.3: the probability that a field has an edge value instead of a plausible one. Arrays are
emptied, and their elements are repeated, unchanged or with other inner values. The values of one request are consistent: one member's id
and epoch, one topic's name and id, one session's id and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

import msgspec

import ottla.broker.node  # noqa: F401  (registers the handlers)
from chaos.fuzz.batches import record_set
from chaos.fuzz.vocabulary import Member, Producer, Session, Topic, Vocabulary
from ottla.broker.apis import HANDLERS
from ottla.broker.metadata.configs import BrokerOptions
from ottla.wire.declare import ZERO_UUID, Array, Blob, Field, Fixed, Type, fields_of, schema_of
from ottla.wire.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
    encode_embedded,
)

T = TypeVar("T")
_STRING = Blob("string")
_INT = Fixed("int32", "i", 4)
HOSTILITIES = (0.0, 0.0, 0.02, 0.05, 0.1, 0.3)
#: Relative frequency by API key; 1 for keys that are not listed.
WEIGHTS = {0: 6, 1: 5, 8: 3, 11: 4, 12: 2, 14: 3, 19: 2, 20: 0.7, 21: 2, 22: 2, 37: 0.7, 45: 1.5, 68: 5}
STRING_BYTES_MAX = 32_767
#: DeleteTopics and both APIs that alter settings: they may legitimately remove the well-behaved client's committed offsets.
OFFSET_REMOVING = (20, 33, 44)
TEXTS = (
    "", "", "a", ".", "..", "a/b", "a\0b", "größe", "日本語", "\N{PILE OF POO}", "\u202e", "a.b", "a_b", "a b", "-1", "x" * 249, "x" * 250,
    "__consumer_offsets", "1", "consumer", "*", "a\nb",
)  # fmt: skip
OTHER_TEXTS = tuple(text for text in TEXTS if text != "__consumer_offsets")
LARGE_TEXTS = ("y" * STRING_BYTES_MAX, "\0" * STRING_BYTES_MAX, "é" * (STRING_BYTES_MAX // 2))
HUGE_TEXTS = (*LARGE_TEXTS, "z" * (STRING_BYTES_MAX + 1), "Z" * 66_000)
#: Values of settings of topics and brokers. Settings without an entry get a value of the last one.
TOPIC_CONFIGS: Mapping[str, tuple[str, ...]] = {
    "cleanup.policy": ("delete", "compact", "compact,delete", "", "nonsense"),
    "retention.ms": ("-1", "0", "1", "1000", "9223372036854775807", "-2"),
    "retention.bytes": ("-1", "0", "1", "1000"),
    "segment.bytes": ("1048576", "14", "1", "0"),
    "segment.ms": ("1", "1000"),
    "max.message.bytes": ("0", "100", "1000", "1048588"),
    "min.insync.replicas": ("1", "2", "4", "0"),
    "compression.type": ("producer", "zstd", "lz4", "gzip", "snappy", "uncompressed", "nonsense"),
    "message.timestamp.type": ("CreateTime", "LogAppendTime"),
    "message.timestamp.after.max.ms": ("0", "1000"),
    "message.timestamp.before.max.ms": ("0", "1000"),
    "delete.retention.ms": ("0", "1"),
    "min.cleanable.dirty.ratio": ("0", "0.5", "1", "nan", "1e400"),
    "unclean.leader.election.enable": ("true", "false"),
    "write.caching": ("true", "false"),
    "file.delete.delay.ms": ("0", "1000"),
    "flush.messages": ("1", "1000"),
    "leader.replication.throttled.replicas": ("*", "0:1,1:2", "", "0:1:2"),
    "follower.replication.throttled.replicas": ("*", "0:1", ""),
    "consumer.session.timeout.ms": ("45000", "1"),
}
#: None of these takes space, time or offsets away from the well-behaved client.
BROKER_CONFIGS: Mapping[str, tuple[str, ...]] = {
    "log.cleaner.threads": ("1", "2", "0"),
    "log.cleaner.backoff.ms": ("100", "15000"),
    "leader.replication.throttled.rate": ("100000", "9223372036854775807"),
    "log.retention.ms": ("1000", "-1"),
    "log.segment.bytes": ("1048576",),
    "log.cleanup.policy": ("delete", "compact"),
    "message.max.bytes": ("1048588", "1000012"),
    "broker.id": ("7",),
    "no.such.setting": ("", "x"),
}
SUBSCRIBED = ("h.*", "hot-.*", ".*", "", "(", "a{1000}", "[^x]+", "(a|b)*c", "\\p{Greek}")
#: Those of the brokers under test, as far as versions depend on them.
OPTIONS = BrokerOptions()
STATES = ("Stable", "Empty", "Dead", "PreparingRebalance", "CompletingRebalance", "Reconciling", "Assigning", "stable", "nonsense")


class Requests:
    """A source of requests over all supported APIs and versions."""

    def __init__(self, random: Random, vocabulary: Vocabulary, *, wall_ms: Callable[[], int]) -> None:
        self.random = random
        self.vocabulary = vocabulary
        self._wall_ms = wall_ms
        self.hostility = 0.0
        #: The entities of the current request.
        self.topic: Topic = vocabulary.topics[0]
        self.member: Member = vocabulary.members[0]
        self.producer: Producer = vocabulary.producers[0]
        self.session: Session = vocabulary.sessions[0]
        self.flexible = False
        self.texts: tuple[str, ...] = TEXTS
        self._keys = [key for key, served in sorted(HANDLERS.items())]
        self._weights = [WEIGHTS.get(key, 1.0) for key in self._keys]

    def request(self) -> tuple[int, int, Any]:
        """The API's key, the version, and the request."""
        random = self.random
        key = random.choices(self._keys, self._weights)[0]
        served = HANDLERS[key]
        least, most = max(served.versions[0], served.declared_since), served.last_version(OPTIONS)
        version = most if random.random() < 0.4 else random.randint(least, most)
        return key, version, self.request_of(key, version)

    def request_of(self, key: int, version: int) -> Any:
        """A request of this API and version."""
        self.hostility = self.pick(HOSTILITIES)
        words = self.vocabulary
        self.topic, self.member = self.pick(words.topics), self.pick(words.members)
        self.producer, self.session = self.pick(words.producers), self.pick(words.sessions)
        if key in (11, 68) and self.random.random() < 0.3:
            # A member that is not in the group yet. In the consumer protocol the member brings its own id.
            self.member = Member(self.pick(words.groups), "" if key == 11 or version == 0 else f"m-{self.below(1000)}", 0)
        self.texts = TEXTS if key not in OFFSET_REMOVING else OTHER_TEXTS
        self.flexible = schema_of(HANDLERS[key].request).flexible(version)
        return self.struct(HANDLERS[key].request, version)

    def below(self, count: int) -> int:
        return int(self.random.random() * count)

    def pick(self, choices: Sequence[T]) -> T:
        """One element of a sequence."""
        return choices[int(self.random.random() * len(choices))]

    def struct(self, cls: type[msgspec.Struct], version: int) -> Any:
        made = cls()
        for field, make in _makers(cls, version):
            if self.random.random() < self.hostility:
                value = _edge(self, field, version)
            else:
                value = make(self)
            if value is not KEEP:
                setattr(made, field.name, value) if not made.__struct_config__.frozen else msgspec.structs.force_setattr(
                    made, field.name, value
                )
        return made

    def array(self, element: Type, version: int, make: Callable[[Requests], Any]) -> list[Any]:
        """Elements with hostile structure: none, the same one twice, or one twice with other inner values."""
        draw, random = self.random.random(), self.random
        if draw < 0.04 + self.hostility / 2:
            return []
        chooses = isinstance(element, type) and _names_topic(element)
        made = []
        for _ in range(1 if draw < 0.6 else 2 if draw < 0.85 else 3):
            if chooses:
                self.topic = self.pick(self.vocabulary.topics)
            made.append(make(self))
        if random.random() < 0.12 + self.hostility:
            # Without a new choice of topic: the same topic in two entries, or the same entry again.
            made.append(make(self) if random.random() < 0.4 else self.pick(made))
            random.shuffle(made)
        if random.random() < 0.003:
            made *= self.pick((20, 200))
        return made

    def text(self, *, large: tuple[str, ...]) -> str:
        """A string at a limit of the protocol or the broker."""
        return self.pick(large) if self.random.random() < 0.06 else self.pick(self.texts)

    def records(self) -> bytes | None:
        place = (self.topic.name, 0)
        return record_set(self.random, self.producer, place, hostility=self.hostility, wall_ms=self._wall_ms())

    def subscription(self) -> bytes:
        topics = [topic.name for topic in self.vocabulary.topics if self.random.random() < 0.4]
        owned = [TopicPartition(topic=name, partitions=[0, self.below(3)]) for name in topics if self.random.random() < 0.3]
        message = ConsumerProtocolSubscription(topics=topics, owned_partitions=owned, generation_id=self.member.epoch)
        return self._embedded(message)

    def assignment(self) -> bytes:
        parts = [TopicPartition(topic=topic.name, partitions=[0]) for topic in self.vocabulary.topics if self.random.random() < 0.3]
        return self._embedded(ConsumerProtocolAssignment(assigned_partitions=parts))

    def _embedded(self, message: msgspec.Struct) -> bytes:
        data = encode_embedded(message, self.below(4))
        if self.random.random() < self.hostility:
            return self.pick((b"", b"\0", data[:-1], data + b"?", b"\x7f\xff" + data[2:], b"\xff" * 9, data[:2] + b"\x7f\xff\xff\xff"))
        return data

    def setting(self) -> str:
        return self.pick(tuple(TOPIC_CONFIGS if self.random.random() < 0.8 else BROKER_CONFIGS))


class _Keep:
    """Marks a field that keeps its default."""


KEEP = _Keep()
Make = Callable[[Requests], Any]
_made: dict[tuple[type[msgspec.Struct], int], tuple[tuple[Field, Make], ...]] = {}
TOPIC_FIELDS = ("name", "topic", "topic_id", "topic_name")


def _names_topic(cls: type[msgspec.Struct]) -> bool:
    return any(name in TOPIC_FIELDS for name in cls.__struct_fields__)


def _makers(cls: type[msgspec.Struct], version: int) -> tuple[tuple[Field, Make], ...]:
    found = _made.get((cls, version))
    if found is None:
        found = tuple((field, _maker(cls, field, version)) for field in fields_of(cls) if field.present(version))
        _made[cls, version] = found
    return found


def _maker(cls: type[msgspec.Struct], field: Field, version: int) -> Make:
    """Return the generator of a plausible value of the field."""
    special = SPECIAL.get(f"{cls.__name__}.{field.name}")
    if special is not None:
        return special
    kind = field.type
    element: Make
    if isinstance(kind, Array):
        inner = kind.element
        element = _of_type(inner, version) if isinstance(inner, type) else BY_NAME.get(field.name) or _of_type(inner, version)
        one: Make = lambda made: made.array(inner, version, element)  # noqa: E731
    else:
        one = BY_NAME.get(field.name) or _of_type(kind, version)
    if field.tag is not None:
        always = one
        one = lambda made: KEEP if made.random.random() < 0.7 else always(made)  # noqa: E731
    if field.nullable(version):
        chance = NULLS.get(field.name, 0.1)
        known = one
        return lambda made: None if made.random.random() < chance else known(made)
    return one


def _of_type(kind: Type, version: int) -> Make:
    if isinstance(kind, Fixed):
        if kind.name == "bool":
            return lambda made: made.random.random() < 0.2
        if kind.name == "uuid":
            return lambda made: made.topic.topic_id
        return lambda made: made.pick((0, 0, 1, 1, 2, -1))
    if isinstance(kind, Blob):
        if kind.name == "string":
            return lambda made: made.pick(("", "a", "b"))
        return lambda made: made.random.randbytes(made.below(20))
    assert not isinstance(kind, Array), "no array has arrays as elements"
    return lambda made: made.struct(kind, version)


def _edge(made: Requests, field: Field, version: int) -> Any:
    """A value at the limit of the field's type."""
    kind = field.type
    if field.nullable(version) and made.random.random() < 0.3:
        return None
    if isinstance(kind, Array):
        inner = kind.element
        if isinstance(inner, type):
            return made.pick(([], None)) if field.nullable(version) else [] if made.random.random() < 0.5 else [inner()]
        elements = [_edge_of(made, inner, version) for _ in range(made.pick((0, 1, 2, 5)))]
        return elements * made.pick((1, 1, 2, 40))
    if isinstance(kind, type):
        return made.struct(kind, version)
    return _edge_of(made, kind, version)


def _edge_of(made: Requests, kind: Type, version: int) -> Any:
    if isinstance(kind, Fixed):
        if kind.name == "bool":
            return made.random.random() < 0.5
        if kind.name == "uuid":
            return made.pick((ZERO_UUID, b"\xff" * 16, made.random.randbytes(16), ZERO_UUID[:15] + b"\1"))
        if kind.name.startswith("uint"):
            return made.pick((0, 1, 2 ** (kind.size * 8) - 1))
        if kind.name == "float64":
            return made.pick((0.0, -1.0, float("inf"), float("nan")))
        most = 2 ** (kind.size * 8 - 1)
        return made.pick((0, 1, -1, -2, most - 1, -most, most // 2))
    if isinstance(kind, Blob):
        if kind.name == "string":
            return made.text(large=HUGE_TEXTS if made.flexible else LARGE_TEXTS)
        if kind.name == "records":
            return made.records()
        return made.pick((b"", b"\0", b"\xff" * 300, bytes(40_000)))
    raise AssertionError(f"{kind} is no element")


# Values by the name of a field.


def _partition(made: Requests) -> int:
    draw = made.random.random()
    return 0 if draw < 0.5 else made.below(made.topic.partitions) if draw < 0.9 else made.pick((made.topic.partitions, -1, 1000))


def _broker(made: Requests) -> int:
    return 1 + made.below(made.vocabulary.brokers + (made.random.random() < 0.1))


def _offset(made: Requests) -> int:
    return made.pick((0, 0, 1, 2, 5, 10, 50, -1, -2))


def _instance(made: Requests) -> str | None:
    if made.member.instance is not None or made.random.random() < 0.7:
        return made.member.instance
    return made.pick(("static-1", "static-2"))


def _resource(made: Requests) -> str:
    if made.random.random() < 0.6:
        return made.topic.name
    return made.pick(("1", "2", "", made.member.group))


def _deleted_topic(made: Requests, *, named: bool) -> str | bytes | None:
    """A topic to delete has a name or an id; both together are refused."""
    if made.random.random() < made.hostility:
        return made.topic.name if named else made.topic.topic_id
    by_name = made.topic.partitions % 2
    if named:
        return made.topic.name if by_name else None
    return ZERO_UUID if by_name else made.topic.topic_id


def _topic_name(made: Requests) -> str:
    return made.topic.name


def _new_topic(made: Requests) -> str:
    return made.topic.name if made.random.random() < 0.3 else f"hot-{made.below(12)}"


def _one_of(*choices: Any) -> Make:
    return lambda made: choices[int(made.random.random() * len(choices))]


def _topic_value(made: Requests) -> str:
    return made.pick(made.pick(tuple(TOPIC_CONFIGS.values())))


BY_NAME: dict[str, Make] = {
    "name": _topic_name, "topic": _topic_name, "topic_name": _topic_name, "topic_names": _topic_name, "subscribed_topic_names": _topic_name,
    "topic_id": lambda made: made.topic.topic_id,
    "partition": _partition, "partition_index": _partition, "index": _partition, "partitions": _partition, "partition_indexes": _partition,
    "group_id": lambda made: made.member.group, "groups_names": lambda made: made.pick(made.vocabulary.groups),
    "group_ids": lambda made: made.pick(made.vocabulary.groups), "key": lambda made: made.member.group,
    "coordinator_keys": lambda made: made.pick(made.vocabulary.groups),
    "member_id": lambda made: made.member.member_id,
    "generation_id": lambda made: made.member.epoch, "generation_id_or_member_epoch": lambda made: made.member.epoch,
    "member_epoch": lambda made: made.member.epoch if made.random.random() < 0.85 else made.pick((0, -1, -2)),
    "group_instance_id": _instance, "instance_id": _instance,
    "protocol_type": _one_of("consumer", "consumer", "consumer", "connect"), "protocol_name": _one_of("range", "roundrobin"),
    "metadata": lambda made: made.subscription(), "assignment": lambda made: made.assignment(),
    "session_timeout_ms": _one_of(1_000, 3_000, 10_000), "rebalance_timeout_ms": _one_of(500, 3_000, 60_000),
    "session_id": lambda made: made.session.session_id, "session_epoch": lambda made: made.session.epoch,
    "current_leader_epoch": _one_of(-1, -1, 0, 0, 1, 5), "leader_epoch": _one_of(-1, 0, 0, 1), "last_fetched_epoch": _one_of(-1, -1, 0, 1),
    "committed_leader_epoch": _one_of(-1, 0),
    "fetch_offset": _offset, "offset": _offset, "committed_offset": _offset, "log_start_offset": _one_of(-1, 0, 5),
    "timestamp": _one_of(-1, -2, -3, -4, -5, 0, 1_700_000_000_000),
    "max_wait_ms": _one_of(0, 0, 20, 500, 60_000), "timeout_ms": _one_of(0, 1, 100, 1_000, 30_000),
    "min_bytes": _one_of(0, 1, 1, 100_000), "max_bytes": _one_of(1, 1_000, 1 << 20), "partition_max_bytes": _one_of(0, 1, 500, 1 << 20),
    "replica_id": lambda made: -1 if made.random.random() < 0.93 else _broker(made), "replica_epoch": _one_of(-1, -1, 0, 1, 100),
    "isolation_level": _one_of(0, 0, 1, 2), "acks": _one_of(-1, -1, -1, 1, 0),
    "records": lambda made: made.records(),
    "producer_id": lambda made: made.producer.producer_id, "producer_epoch": lambda made: made.producer.epoch,
    "resource_type": _one_of(2, 2, 4, 32, 16, 0), "resource_name": _resource, "config_operation": _one_of(0, 0, 1, 2, 3, 4),
    "configuration_keys": lambda made: made.setting(), "resource_types": _one_of(2, 4, 8, 16, 32),
    "broker_id": _broker, "broker_ids": _broker, "replicas": _broker, "new_isr": _broker, "broker_epoch": _one_of(-1, 0, 1, 2, 5, 10),
    "partition_epoch": _one_of(0, 0, 1, 2), "leader_recovery_state": _one_of(0, 0, 1),
    "num_partitions": _one_of(-1, 1, 1, 2, 3, 0), "replication_factor": _one_of(-1, -1, 1, 1, 2, 3), "count": _one_of(1, 2, 3, 4, 5),
    "election_type": _one_of(0, 0, 1), "key_type": _one_of(0, 0, 0, 1, 2),
    "states_filter": _one_of(*STATES), "types_filter": _one_of("classic", "consumer", "Consumer", "share", ""),
    "subscribed_topic_regex": _one_of(*SUBSCRIBED), "server_assignor": _one_of("uniform", "range"),
    "allow_auto_topic_creation": _one_of(False, False, True), "response_partition_limit": _one_of(1, 2, 100, 2_000),
    "endpoint_type": _one_of(1, 1, 2),
}  # fmt: skip
#: Fields whose meaning depends on the message.
SPECIAL: dict[str, Make] = {
    "CreatableTopic.name": _new_topic,
    "CreatableTopicConfig.name": lambda made: made.setting(),
    "CreatableTopicConfig.value": _topic_value,
    "AlterableConfig.name": lambda made: made.setting(),
    "AlterableConfig.value": _topic_value,
    "JoinGroupRequestProtocol.name": _one_of("range", "range", "roundrobin", "cooperative-sticky"),
    "DeleteTopicState.name": lambda made: _deleted_topic(made, named=True),
    "DeleteTopicState.topic_id": lambda made: _deleted_topic(made, named=False),
    "MetadataRequestTopic.name": lambda made: made.topic.name if made.random.random() < 0.8 else f"hot-{made.below(12)}",
    "DescribeGroupsRequest.groups": lambda made: made.array(_STRING, 0, lambda of: of.pick(of.vocabulary.groups)),
    "CreatableTopic.assignments": lambda made: [] if made.random.random() < 0.7 else _assigned(made),
    "ConsumerGroupHeartbeatRequest.rebalance_timeout_ms": _one_of(-1, 500, 3_000, 60_000),
    "ConsumerGroupHeartbeatRequest.topic_partitions": lambda made: _owned(made),
}
#: Probability of null for nullable fields, where it is not 0.1.
NULLS = {"transactional_id": 0.9, "reason": 0.6, "rack_id": 0.8, "subscribed_topic_regex": 0.7, "server_assignor": 0.6, "cursor": 0.7,
         "group_instance_id": 0.0, "instance_id": 0.0, "records": 0.02, "assignments": 0.6, "topic_partitions": 0.4}  # fmt: skip


def _assigned(made: Requests) -> list[Any]:
    from ottla.wire.messages.create_topics import CreatableReplicaAssignment

    return [
        CreatableReplicaAssignment(
            partition_index=made.pick((index, index, index, 0)), broker_ids=[_broker(made) for _ in range(made.pick((1, 1, 2, 0)))]
        )
        for index in range(made.pick((1, 2, 3)))
    ]


def _owned(made: Requests) -> Any:
    """Partitions that a member of the consumer protocol owns; must be empty for one that joins."""
    if made.random.random() < 0.4:
        return None if made.member.epoch else []
    from ottla.wire.messages.consumer_group_heartbeat import TopicPartitions

    return made.array(TopicPartitions, 1, lambda of: TopicPartitions(topic_id=of.topic.topic_id, partitions=of.array(_INT, 1, _partition)))
