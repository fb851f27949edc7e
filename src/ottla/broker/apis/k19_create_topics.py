"""CreateTopics: on the controller; each topic is created completely or not at all. One with more than about 1,500 partitions takes several
steps (``controller/topic_writes.py``), which any later controller completes.

Behaviour: Kafka's checks in Kafka's order; a name that appears twice is refused. validate_only runs all checks and creates nothing.
Answered when the store and this broker's image have the topic. Versions: -1 means the broker's default in all versions, although KIP-464
names it for 4 and later, because clients of 2 and 3 send it and Kafka accepts it; 5 returns counts and settings, 7 the id.

When the client's controller_mutation_rate is used up, each further topic is THROTTLING_QUOTA_EXCEEDED from version 6 on; before, all are
created, and the answer is throttled. validate_only is not counted.

Source: KIP-4, KIP-464, KIP-525, KIP-516, KIP-599.
"""

from collections.abc import Generator
from functools import partial

from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes
from ottla.broker.controller.topics import NewTopic, PartitionRoom, creation, plan_topic
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.config_entries import topic_entries
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import counted
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.create_topics import (
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

TOPICS = REQUIREMENTS[19].parts["topics"]
SETTINGS = REQUIREMENTS[19].parts["settings"]
#: First version whose clients know THROTTLING_QUOTA_EXCEEDED. Source: KIP-599.
STRICT_SINCE = 6
#: Of a topic in a turn, without its partitions.
WEIGHT = 8
#: Settings in responses by overrides: most topics of a request have the same.
Described = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]


def refuse(call: RequestArrived[CreateTopicsRequest], error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_refused(topic.name, error) for topic in call.body.topics])


@handles(CreateTopicsRequest, (2, 7), refuse=refuse, at_controller=True)
def create_topics(node: Node, call: RequestArrived[CreateTopicsRequest]) -> CreateTopicsResponse | Deferred:
    writes = Writes(node, call)
    return writes.answer_in_turns(_work(node, call, writes), call.body.timeout_ms)


def _work(node: Node, call: RequestArrived[CreateTopicsRequest], writes: Writes) -> Generator[int, None, CreateTopicsResponse]:
    request, context = call.body, node.context
    times = yield from counted(topic.name for topic in request.topics)
    results: dict[str, CreatableTopicResult] = {}
    described: Described = {}
    quota = context.quotas.mutations(call, strict_since=STRICT_SINCE)
    room = PartitionRoom(context.image, context.options)
    for requested in request.topics:
        name = requested.name
        result = results.get(name)
        if result is None:
            result = results[name] = CreatableTopicResult(name=name, error_message=None)
        yield WEIGHT
        try:
            if times[name] > 1:
                raise errors.InvalidRequest(f"topic {name!r} is named {times[name]} times in this request")
            context.demand(call, TOPICS, name)
            topic = plan_topic(requested, context.image, context.options, context.rng, room)
            if not request.validate_only:
                quota.take(len(topic.replicas))
        except KafkaError as error:
            _fail(result, error)
            continue
        room.planned += len(topic.replicas)
        result.topic_id = topic.topic_id
        if hidden := context.refusals(call, SETTINGS, (name,)):
            result.topic_config_error_code = hidden[name].code
        else:
            _describe(node, result, topic, described)
        if not request.validate_only:
            _write(node, writes, topic, result)
        yield len(topic.replicas)
    return CreateTopicsResponse(throttle_time_ms=quota.throttle_ms, topics=list(results.values()))


def _write(node: Node, writes: Writes, topic: NewTopic, result: CreatableTopicResult) -> None:
    def done(error: KafkaError | None) -> None:
        if error is not None:
            _fail(result, error)

    def again() -> list[Op]:
        """Another change was faster: for example, overrides of a deleted topic with this name have changed."""
        if topic.name in node.context.image.topics:
            raise errors.TopicAlreadyExists(f"topic {topic.name!r} already exists")
        return creation(topic, node.context.image)

    writes.add(creation(topic, node.context.image), done, again=again, write=partial(node.controller.topics.create, topic.name))


def _describe(node: Node, result: CreatableTopicResult, topic: NewTopic, described: Described) -> None:
    result.num_partitions = len(topic.replicas)
    result.replication_factor = len(topic.replicas[0])
    overrides = tuple(sorted(topic.overrides.items()))
    found = described.get(overrides)
    if found is None:
        found = described[overrides] = [
            CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source, is_sensitive=entry.sensitive
            )
            for entry in topic_entries(node.context, topic.overrides)
        ]
    result.configs = found


def _fail(result: CreatableTopicResult, error: KafkaError) -> None:
    result.error_code, result.error_message = error.code, str(error)
    result.topic_id, result.num_partitions, result.replication_factor, result.configs = bytes(16), -1, -1, []


def _refused(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=str(error))
