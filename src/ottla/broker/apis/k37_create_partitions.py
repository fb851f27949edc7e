"""CreatePartitions: on the controller; increases the partition count.

Behaviour: a count not above the present one is INVALID_PARTITIONS; replicas can be given, one list per new partition. validate_only
changes nothing. New partitions have as many replicas as the topic's first one, without adding replicas of a reassignment. When the
client's controller_mutation_rate is used up, each further topic is THROTTLING_QUOTA_EXCEEDED from version 3 on; before, all get their
partitions, and the answer is throttled. validate_only is not counted.

Source: KIP-195, KIP-455, KIP-599.
"""

from collections.abc import Generator
from functools import partial

from ottla.base.ids import BrokerId
from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.controller.placement import place
from ottla.broker.controller.reassignment import origin_of
from ottla.broker.controller.topics import PartitionRoom, check_replicas, growth, racks_for
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import Topic
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import counted
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

TOPICS = REQUIREMENTS[37].parts["topics"]
#: First version whose clients know THROTTLING_QUOTA_EXCEEDED. Source: KIP-599.
STRICT_SINCE = 3
#: Of a topic in a turn, without its partitions.
WEIGHT = 5


def refuse(call: RequestArrived[CreatePartitionsRequest], error: KafkaError) -> CreatePartitionsResponse:
    results = [CreatePartitionsTopicResult(name=topic.name, error_code=error.code, error_message=str(error)) for topic in call.body.topics]
    return CreatePartitionsResponse(results=results)


@handles(CreatePartitionsRequest, (0, 3), refuse=refuse, at_controller=True)
def create_partitions(node: Node, call: RequestArrived[CreatePartitionsRequest]) -> CreatePartitionsResponse | Deferred:
    writes = Writes(node, call)
    return writes.answer_in_turns(_work(node, call, writes), call.body.timeout_ms)


def _work(node: Node, call: RequestArrived[CreatePartitionsRequest], writes: Writes) -> Generator[int, None, CreatePartitionsResponse]:
    request = call.body
    times = yield from counted(topic.name for topic in request.topics)
    results: dict[str, CreatePartitionsTopicResult] = {}
    quota = node.context.quotas.mutations(call, strict_since=STRICT_SINCE)
    room = PartitionRoom(node.context.image, node.context.options)
    for requested in request.topics:
        name = requested.name
        result = results.get(name)
        if result is None:
            result = results[name] = CreatePartitionsTopicResult(name=name, error_message=None)
        yield WEIGHT
        try:
            if times[name] > 1:
                raise errors.InvalidRequest(f"topic {name!r} is named {times[name]} times in this request")
            node.context.demand(call, TOPICS, name)
            topic, added = _planned(node, requested, room)
            if not request.validate_only:
                quota.take(len(added))
        except KafkaError as error:
            note(result, error)
            continue
        room.planned += len(added)
        if not request.validate_only:
            _write(node, writes, requested, growth(topic, added, node.context.image), result)
        yield len(added)
    return CreatePartitionsResponse(throttle_time_ms=quota.throttle_ms, results=list(results.values()))


def _planned(node: Node, requested: CreatePartitionsTopic, room: PartitionRoom) -> tuple[Topic, dict[int, tuple[BrokerId, ...]]]:
    topic = node.context.image.topics.get(requested.name)
    if topic is None:
        raise errors.UnknownTopicOrPartition(f"there is no topic {requested.name!r}")
    have = len(topic.replicas)
    if requested.count == have:
        raise errors.InvalidPartitions(f"topic {requested.name!r} already has {have} partitions")
    if requested.count < have:
        raise errors.InvalidPartitions(f"topic {requested.name!r} has {have} partitions; it cannot shrink to {requested.count}")
    more = requested.count - have
    room.check(more)
    if requested.assignments is not None:
        if len(requested.assignments) != more:
            raise errors.InvalidReplicaAssignment(f"{more} new partitions need as many assignments, not {len(requested.assignments)}")
        like = [origin_of(topic, 0)]
        chosen = [check_replicas(assignment.broker_ids, node.context.image, like=like) for assignment in requested.assignments]
    else:
        factor = len(origin_of(topic, 0))
        if factor > len(node.context.image.brokers):
            raise errors.InvalidReplicationFactor(f"{factor} replicas need as many brokers; {len(node.context.image.brokers)} are alive")
        chosen = place(
            racks_for(factor, node.context.image), partitions=more, replication_factor=factor, rng=node.context.rng, first_partition=have
        )
    return topic, dict(enumerate(chosen, start=have))


def _write(node: Node, writes: Writes, requested: CreatePartitionsTopic, ops: list[Op], result: CreatePartitionsTopicResult) -> None:
    """Writes ``ops``; after a conflicting change or deletion of the topic the request is checked and planned again."""

    def again() -> list[Op]:
        topic, added = _planned(node, requested, PartitionRoom(node.context.image, node.context.options))
        return growth(topic, added, node.context.image)

    writes.add(ops, partial(note, result), again=again, write=partial(node.controller.topics.create, requested.name))
