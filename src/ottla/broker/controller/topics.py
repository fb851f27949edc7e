"""Store operations for creation, growth and deletion of topics. Pure: an image and a request in; operations, or a KafkaError, out.

A topic is created and deleted in one atomic ``multi``: overrides, assignment, and the first state of each partition. A topic that exceeds
what the store accepts at once takes several steps (``topic_writes.py``), and any controller can continue from what is there::

    creation    overrides, assignment, some states ──▶ more states ──▶ ...              a partition without a state gets its first one
    deletion    mark, some states deleted ──▶ more deleted ──▶ assignment and mark deleted   a marked topic is deleted

Source: Kafka's ReplicationControlManager for the checks and their order; its TopicDeletionManager for the mark.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from ottla.base.ids import BrokerId, TopicId, topic_name_problem
from ottla.base.options import ConfigError
from ottla.base.ports import Op
from ottla.base.units import KiB
from ottla.broker.controller.election import first_state
from ottla.broker.controller.placement import place
from ottla.broker.metadata.configs import ClusterOptions, check_size
from ottla.broker.metadata.image import Image, Topic
from ottla.log.options import TopicOptions
from ottla.store import layout
from ottla.wire import errors
from ottla.wire.messages.create_topics import CreatableTopic

#: Bytes of one multi: half of what the store accepts, so that it is not busy for long and paths have room for a chroot.
MULTI_BYTES = 512 * KiB
#: Size of an operation in addition to its path and data.
OP_BYTES = 64
#: Topics that only brokers write to. Source: Kafka's Topic.INTERNAL_TOPICS.
INTERNAL = ("__consumer_offsets", "__transaction_state", "__share_group_state")
#: Settings that need a schema registry.
SCHEMA_VALIDATION = ("ottla.key.schema.validation", "ottla.value.schema.validation")
#: Topics that have fewer replicas while there are fewer brokers, unless a factor is requested: a single broker must be able to serve
#: groups.
FACTORS: Mapping[str, Callable[[ClusterOptions], int]] = {
    "__consumer_offsets": lambda options: options.offsets_topic_replication_factor,
    "__transaction_state": lambda options: options.transaction_state_log_replication_factor,
}


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create."""

    name: str
    topic_id: TopicId
    #: By partition, preferred leader first.
    replicas: Mapping[int, tuple[BrokerId, ...]]
    overrides: Mapping[str, str]
    #: A replication factor above the present number of brokers; otherwise 0. ``reassignment.grown`` adds the replicas.
    factor_wanted: int = 0


def check_name(name: str) -> None:
    """Raises: InvalidTopic with the reason."""
    if problem := topic_name_problem(name):
        raise errors.InvalidTopic(problem)


def check_overrides(overrides: Mapping[str, str | None], options: ClusterOptions) -> dict[str, str]:
    """The overrides, if all are valid. ``options``: of the broker.

    Raises: InvalidConfig.
    """
    checked: dict[str, str] = {}
    for name, text in overrides.items():
        if text is None:
            raise errors.InvalidConfig(f"{name} has no value")
        try:
            value = TopicOptions.spec(name).parse(text)
        except ConfigError as error:
            raise errors.InvalidConfig(str(error)) from None
        if name in SCHEMA_VALIDATION and value and not options.schema_registry_url:
            raise errors.InvalidConfig(f"{name} needs a schema registry: start the brokers with ottla.schema.registry.url")
        checked[name] = text
    return checked


def plan_topic(
    requested: CreatableTopic, image: Image, options: ClusterOptions, rng: Random, room: "PartitionRoom | None" = None
) -> NewTopic:
    """The topic of a client's request. ``room``: for its partitions, if the request has others.

    Raises: InvalidTopic, TopicAlreadyExists, InvalidConfig, InvalidReplicaAssignment, InvalidReplicationFactor, InvalidPartitions,
    InvalidRequest, PolicyViolation.
    """
    room = room or PartitionRoom(image, options)
    check_name(requested.name)
    if requested.name in image.topics:
        raise errors.TopicAlreadyExists(f"topic {requested.name!r} already exists")
    _refuse_collision(requested.name, image)
    overrides = check_overrides({config.name: config.value for config in requested.configs}, options)
    try:
        check_size(options, requested.name, overrides, {})
    except ConfigError as error:
        raise errors.InvalidConfig(str(error)) from None
    if overrides and image.configs_bytes > options.config_max_bytes:
        raise errors.PolicyViolation(f"the settings of all topics exceed ottla.config.max.bytes, {options.config_max_bytes}")
    if requested.assignments:
        replicas = _assigned(requested, image)
    else:
        replicas = _placed(requested, image, options, rng, room)
    room.check(len(replicas))
    wanted = _factor_wanted(requested, options)
    return NewTopic(requested.name, new_topic_id(rng), replicas, overrides, wanted if wanted > len(replicas[0]) else 0)


class PartitionRoom:
    """How many partitions a request may add."""

    __slots__ = ("_before", "_image", "_options", "planned")

    def __init__(self, image: Image, options: ClusterOptions) -> None:
        self._image = image
        self._options = options
        #: Partitions of the cluster when the request came.
        self._before = image.partition_count()
        #: Those that the request adds so far.
        self.planned = 0

    def check(self, more: int) -> None:
        """Raises: PolicyViolation if the request or the cluster would have too many partitions."""
        planned, options = self.planned + more, self._options
        if planned > options.partitions_per_request_max:
            limit = options.partitions_per_request_max
            raise errors.PolicyViolation(f"{planned} partitions at once; ottla.partitions.per.request.max is {limit}")
        # Those that are planned may be in the image already.
        others = max(self._image.partition_count() - self.planned, self._before)
        if others + planned > options.partitions_max:
            raise errors.PolicyViolation(f"{planned} partitions more than {others} exceed ottla.partitions.max, {options.partitions_max}")


def new_topic_id(rng: Random) -> TopicId:
    """A random UUID, version 4; not a reserved one nor one whose text begins with a dash. Source: KIP-516."""
    raw = bytearray(rng.randbytes(16))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    raw[0] &= 0x7F  # The text of a first byte of 0xf8 or more begins with a dash.
    return TopicId(bytes(raw))


def _refuse_collision(name: str, image: Image) -> None:
    other = image.colliding(name)
    if other is not None:
        raise errors.InvalidTopic(f"topic {name!r} collides with {other!r}: metrics write '.' as '_'")


def _assigned(requested: CreatableTopic, image: Image) -> dict[int, tuple[BrokerId, ...]]:
    if requested.num_partitions != -1 or requested.replication_factor != -1:
        raise errors.InvalidRequest("with replicas assigned by hand, partitions and replication factor must both be -1")
    replicas: dict[int, tuple[BrokerId, ...]] = {}
    for assignment in requested.assignments:
        if assignment.partition_index in replicas:
            raise errors.InvalidReplicaAssignment(f"partition {assignment.partition_index} is assigned twice")
        replicas[assignment.partition_index] = check_replicas(assignment.broker_ids, image, like=replicas.values())
    if sorted(replicas) != list(range(len(replicas))):
        raise errors.InvalidReplicaAssignment(f"partitions are numbered from 0 without gaps, not {sorted(replicas)}")
    return dict(sorted(replicas.items()))


def check_replicas(broker_ids: Sequence[int], image: Image, like: object) -> tuple[BrokerId, ...]:
    """Replicas in a client's request; ``like`` has those of other partitions, the first of which gives the replication factor.

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


def _placed(
    requested: CreatableTopic, image: Image, options: ClusterOptions, rng: Random, room: PartitionRoom
) -> dict[int, tuple[BrokerId, ...]]:
    factor = options.default_replication_factor if requested.replication_factor == -1 else requested.replication_factor
    if wanted := _factor_wanted(requested, options):
        factor = max(min(wanted, len(image.brokers)), 1)
    partitions = options.num_partitions if requested.num_partitions == -1 else requested.num_partitions
    if factor <= 0:
        raise errors.InvalidReplicationFactor(f"a replication factor is at least 1, or -1 for the broker's default; not {factor}")
    if partitions <= 0:
        raise errors.InvalidPartitions(f"a topic has at least 1 partition, or -1 for the broker's default; not {partitions}")
    if factor > len(image.brokers):
        raise errors.InvalidReplicationFactor(f"{factor} replicas need as many brokers; {len(image.brokers)} are alive")
    room.check(partitions)
    racks = racks_for(factor, image)
    return dict(enumerate(place(racks, partitions=partitions, replication_factor=factor, rng=rng)))


def _factor_wanted(requested: CreatableTopic, options: ClusterOptions) -> int:
    """The replication factor to reach later; 0 for a topic that has all replicas at once, or is not created."""
    if requested.name not in FACTORS or requested.replication_factor != -1 or requested.assignments:
        return 0
    return FACTORS[requested.name](options)


def racks_for(factor: int, image: Image) -> dict[BrokerId, str | None]:
    """Brokers for new replicas with their racks; those that are stopping, or whose disk is full, only if the others are too few."""
    stay = {broker: found.rack for broker, found in image.brokers.items() if not found.leaving and not found.full}
    return stay if len(stay) >= factor else {broker: found.rack for broker, found in image.brokers.items()}


# Store operations.


def size_of(ops: Sequence[Op]) -> int:
    """An upper bound for the bytes of a multi."""
    return sum(len(op.path) + len(op.data) + OP_BYTES for op in ops)


def creation(topic: NewTopic, image: Image) -> list[Op]:
    """Creates a topic with the states of as many partitions as fit, and deletes overrides of an earlier topic with its name."""
    ops = []
    path = layout.config("topics", topic.name)
    left_behind = image.versions.get(path)
    if topic.overrides:
        content = layout.encode_config(dict(topic.overrides))
        ops.append(Op("create", path, content) if left_behind is None else Op("set", path, content, version=left_behind))
    elif left_behind is not None:
        ops.append(Op("delete", path, version=left_behind))
    assignment = layout.TopicAssignment(topic_id=topic.topic_id, replicas=dict(topic.replicas), factor_wanted=topic.factor_wanted)
    ops.append(Op("create", layout.topic(topic.name), layout.encode_topic(assignment)))
    ops.append(Op("create", layout.partitions(topic.name)))
    return ops + first_states(topic.name, topic.replicas, image, size=size_of(ops))


def growth(topic: Topic, added: Mapping[int, tuple[BrokerId, ...]], image: Image) -> list[Op]:
    """Adds partitions to a topic, with the states of as many as fit; others may be under reassignment."""
    assignment = layout.TopicAssignment(
        topic_id=topic.topic_id,
        replicas={**topic.replicas, **added},
        adding=topic.adding,
        removing=topic.removing,
        factor_wanted=topic.factor_wanted,
    )
    grown = [Op("set", layout.topic(topic.name), layout.encode_topic(assignment), version=topic.version)]
    return grown + first_states(topic.name, added, image, size=size_of(grown))


def first_states(topic: str, replicas: Mapping[int, Sequence[int]], image: Image, *, size: int = 0) -> list[Op]:
    """First states of partitions, as many as fit in addition to ``size`` bytes; partitions without a live replica wait."""
    ops: list[Op] = []
    for number, brokers in replicas.items():
        state = first_state(image, brokers)
        if state is None:
            continue
        path = layout.partition_state(topic, number)
        pair = [Op("create", layout.partition(topic, number)), Op("create", path, layout.encode_partition_state(state))]
        size += size_of(pair)
        if size > MULTI_BYTES and len(ops) + len(pair) > len(pair):
            break
        ops += pair
    return ops


def stateless(topic: Topic) -> dict[int, tuple[int, ...]]:
    """Partitions without a state, with their replicas."""
    if len(topic.states) == len(topic.replicas):
        return {}
    return {number: replicas for number, replicas in topic.replicas.items() if number not in topic.states}


def deletion(topic: Topic, image: Image) -> list[Op]:
    """The next step of a deletion: everything if it fits, otherwise with a mark."""
    ends = [Op("delete", layout.partitions(topic.name)), Op("delete", layout.topic(topic.name))]
    if layout.config("topics", topic.name) in image.versions:
        ends.append(Op("delete", layout.config("topics", topic.name)))
    marked = topic.name in image.deleting
    if marked:
        ends.append(Op("delete", layout.deleted_topic(topic.name)))
    ops: list[Op] = []
    size = size_of(ends)
    for number in topic.states:
        pair = [Op("delete", layout.partition_state(topic.name, number)), Op("delete", layout.partition(topic.name, number))]
        size += size_of(pair)
        if size > MULTI_BYTES:
            return ops if marked else [Op("create", layout.deleted_topic(topic.name)), *ops]
        ops += pair
    return ops + ends
