"""What becomes of the store when topics are created, grow and go. Pure: an image and a wish in; operations, or a KafkaError, out.

A topic is one atomic ``multi``: its overrides, its assignment and the first state of every partition come into being together, and go
together. Source: Kafka's ReplicationControlManager for the checks and their order.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ottla.base.ids import BrokerId, LeaderEpoch, TopicId
from ottla.base.options import ConfigError
from ottla.base.ports import Op
from ottla.broker.configs import ClusterOptions
from ottla.broker.controller.placement import place
from ottla.broker.image import Image, Topic
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.store.layout import PartitionState
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic

NAME_LENGTH_MAX = 249
_NAME = re.compile(r"[a-zA-Z0-9._-]+")
#: Topics that only brokers write to. Source: Kafka's Topic.INTERNAL_TOPICS.
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic as it will be created."""

    name: str
    topic_id: TopicId
    #: By partition, preferred leader first.
    replicas: Mapping[int, tuple[BrokerId, ...]]
    overrides: Mapping[str, str]


def check_name(name: str) -> None:
    """Raises: InvalidTopic, with what is wrong."""
    if not name:
        raise errors.InvalidTopic("a topic name has at least one character")
    if name in (".", ".."):
        raise errors.InvalidTopic(f"a topic cannot be called {name!r}")
    if len(name) > NAME_LENGTH_MAX:
        raise errors.InvalidTopic(f"a topic name has at most {NAME_LENGTH_MAX} characters; this one has {len(name)}")
    if not _NAME.fullmatch(name):
        raise errors.InvalidTopic(f"{name!r}: a topic name holds ASCII letters, digits, '.', '_' and '-' only")


def check_overrides(overrides: Mapping[str, str | None]) -> dict[str, str]:
    """The overrides, if every one can be used.

    Raises: InvalidConfig.
    """
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        if text is None:
            raise errors.InvalidConfig(f"{name} has no value")
        try:
            TopicOptions.spec(name).parse(text)
        except ConfigError as error:
            raise errors.InvalidConfig(str(error)) from None
        checked[name] = text
    return checked


def plan_topic(wish: CreatableTopic, image: Image, options: ClusterOptions, rng: Random, *, planned: int = 0) -> NewTopic:
    """The topic that a client wishes for, in a request that has ``planned`` other new partitions so far.

    Raises: InvalidTopic, TopicAlreadyExists, InvalidConfig, InvalidReplicaAssignment, InvalidReplicationFactor, InvalidPartitions,
    InvalidRequest, PolicyViolation.
    """
    check_name(wish.name)
    if wish.name in image.topics:
        raise errors.TopicAlreadyExists(f"topic {wish.name!r} already exists")
    _refuse_collision(wish.name, image)
    overrides = check_overrides({config.name: config.value for config in wish.configs})
    if wish.assignments:
        replicas = _assigned(wish, image)
    else:
        replicas = _placed(wish, image, options, rng, planned)
    check_growth(planned + len(replicas), image, options)
    return NewTopic(wish.name, new_topic_id(rng), replicas, overrides)


def check_growth(more: int, image: Image, options: ClusterOptions) -> None:
    """Raises: PolicyViolation when this many more partitions are too many, at once or in all."""
    if more > options.partitions_per_request_max:
        limit = options.partitions_per_request_max
        raise errors.PolicyViolation(f"{more} partitions at once; ottla.partitions.per.request.max is {limit}")
    held = image.partition_count()
    if held + more > options.partitions_max:
        raise errors.PolicyViolation(f"{more} partitions more than {held} exceed ottla.partitions.max, {options.partitions_max}")


def new_topic_id(rng: Random) -> TopicId:
    """A random UUID, version 4; never one of the reserved ones nor one whose text begins with a dash. Source: KIP-516."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    raw[0] &= 0x7F  # The text of a first byte 0xf8 and above begins with a dash.
    return TopicId(bytes(raw))


def _refuse_collision(name: str, image: Image) -> None:
    if "." in name or "_" in name:
        plain = name.replace(".", "_")
        for other in image.topics:
            if other.replace(".", "_") == plain:
                raise errors.InvalidTopic(f"topic {name!r} collides with {other!r}: metrics write '.' as '_'")


def _assigned(wish: CreatableTopic, image: Image) -> dict[int, tuple[BrokerId, ...]]:
    if wish.num_partitions != -1 or wish.replication_factor != -1:
        raise errors.InvalidRequest("with replicas assigned by hand, partitions and replication factor must both be -1")
    replicas: dict[int, tuple[BrokerId, ...]] = {}
    for assignment in wish.assignments:
        if assignment.partition_index in replicas:
            raise errors.InvalidReplicaAssignment(f"partition {assignment.partition_index} is assigned twice")
        replicas[assignment.partition_index] = check_replicas(assignment.broker_ids, image, like=replicas.values())
    if sorted(replicas) != list(range(len(replicas))):
        raise errors.InvalidReplicaAssignment(f"partitions are numbered from 0 without gaps, not {sorted(replicas)}")
    return dict(sorted(replicas.items()))


def check_replicas(broker_ids: Sequence[int], image: Image, like: object) -> tuple[BrokerId, ...]:
    """Replicas named by a client; ``like`` holds those of other partitions, of which the first gives the replication factor.

    Raises: InvalidReplicaAssignment.
    """
    chosen = tuple(BrokerId(broker) for broker in broker_ids)
    if not chosen:
        raise errors.InvalidReplicaAssignment("a partition has at least one replica")
    if len(set(chosen)) < len(chosen):
        raise errors.InvalidReplicaAssignment(f"a broker holds a partition once, not {list(chosen)}")
    unknown = [broker for broker in chosen if broker not in image.brokers]
    if unknown:
        raise errors.InvalidReplicaAssignment(f"no broker {unknown[0]} is alive; there are {list(image.brokers)}")
    first = next(iter(like), chosen)  # type: ignore[call-overload]
    if len(first) != len(chosen):
        raise errors.InvalidReplicaAssignment(f"partitions of a topic have equally many replicas, not {len(first)} and {len(chosen)}")
    return chosen


def _placed(wish: CreatableTopic, image: Image, options: ClusterOptions, rng: Random, planned: int) -> dict[int, tuple[BrokerId, ...]]:
    factor = options.default_replication_factor if wish.replication_factor == -1 else wish.replication_factor
    partitions = options.num_partitions if wish.num_partitions == -1 else wish.num_partitions
    if factor <= 0:
        raise errors.InvalidReplicationFactor(f"a replication factor is at least 1, or -1 for the broker's default; not {factor}")
    if partitions <= 0:
        raise errors.InvalidPartitions(f"a topic has at least 1 partition, or -1 for the broker's default; not {partitions}")
    if factor > len(image.brokers):
        raise errors.InvalidReplicationFactor(f"{factor} replicas need as many brokers; {len(image.brokers)} are alive")
    check_growth(planned + partitions, image, options)
    racks = {broker: registration.rack for broker, registration in image.brokers.items()}
    return dict(enumerate(place(racks, partitions=partitions, replication_factor=factor, rng=rng)))


# Operations on the store.


def creation(topic: NewTopic, image: Image) -> list[Op]:
    """Bring a topic into being. Overrides that an earlier topic of its name left behind are not its own."""
    ops = []
    path = layout.config("topics", topic.name)
    left_behind = image.versions.get(path)
    if topic.overrides:
        content = layout.encode_config(dict(topic.overrides))
        ops.append(Op("create", path, content) if left_behind is None else Op("set", path, content, version=left_behind))
    elif left_behind is not None:
        ops.append(Op("delete", path, version=left_behind))
    assignment = layout.TopicAssignment(topic_id=topic.topic_id, replicas=dict(topic.replicas))
    ops.append(Op("create", layout.topic(topic.name), layout.encode_topic(assignment)))
    ops.append(Op("create", layout.partitions(topic.name)))
    return ops + _partition_creation(topic.name, topic.replicas, image)


def growth(topic: Topic, added: Mapping[int, tuple[BrokerId, ...]], image: Image) -> list[Op]:
    """Add partitions to a topic; others of it may be on their way to other brokers."""
    assignment = layout.TopicAssignment(
        topic_id=topic.topic_id, replicas={**topic.replicas, **added}, adding=topic.adding, removing=topic.removing
    )
    grown = Op("set", layout.topic(topic.name), layout.encode_topic(assignment), version=topic.version)
    return [grown, *_partition_creation(topic.name, added, image)]


def _partition_creation(topic: str, replicas: Mapping[int, tuple[BrokerId, ...]], image: Image) -> list[Op]:
    """The ISR is all replicas, for they are alive, and empty as the log is."""
    ops = []
    for number, brokers in replicas.items():
        state = PartitionState(
            leader=brokers[0],
            leader_epoch=LeaderEpoch(0),
            isr=brokers,
            isr_epochs=tuple(image.brokers[broker].epoch for broker in brokers),
            controller_epoch=image.controller_epoch,
        )
        ops.append(Op("create", layout.partition(topic, number)))
        ops.append(Op("create", layout.partition_state(topic, number), layout.encode_partition_state(state)))
    return ops


def deletion(topic: Topic, *, has_overrides: bool) -> list[Op]:
    """Make a topic go, whatever its partitions' states are by then."""
    ops = []
    for number in topic.replicas:
        if number in topic.states:
            ops.append(Op("delete", layout.partition_state(topic.name, number)))
        ops.append(Op("delete", layout.partition(topic.name, number)))
    ops.append(Op("delete", layout.partitions(topic.name)))
    ops.append(Op("delete", layout.topic(topic.name), version=topic.version))
    if has_overrides:
        ops.append(Op("delete", layout.config("topics", topic.name)))
    return ops
