"""CreateTopics: on the controller; each topic is created completely or not at all. One with more than about 1,500 partitions takes several
steps (``controller/topic_writes.py``), which any later controller completes.

Behaviour: Kafka's checks in Kafka's order; a name that appears twice is refused. validate_only runs all checks and creates nothing.
Answered when the store and this broker's image have the topic. Versions: -1 means the broker's default in all versions, although KIP-464
names it for 4 and later, because clients of 2 and 3 send it and Kafka accepts it; 5 returns counts and settings, 7 the id.

When the client's controller_mutation_rate is used up, each further topic is THROTTLING_QUOTA_EXCEEDED from version 6 on; before, all are
created, and the answer is throttled. validate_only is not counted.

Source: KIP-4, KIP-464, KIP-525, KIP-516, KIP-599.
"""

from collections import Counter
from functools import partial

from ottla.base.ports import Op
from ottla.broker.apis.store_writes import Writes
from ottla.broker.controller.topics import NewTopic, creation, plan_topic
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.config_entries import topic_entries
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
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
#: Settings in responses by overrides: most topics of a request have the same.
Described = dict[tuple[tuple[str, str], ...], list[CreatableTopicConfigs]]


def refuse(call: RequestArrived[CreateTopicsRequest], error: KafkaError) -> CreateTopicsResponse:
    return CreateTopicsResponse(topics=[_refused(topic.name, error) for topic in call.body.topics])


@handles(CreateTopicsRequest, (2, 7), refuse=refuse, at_controller=True)
def create_topics(node: Node, call: RequestArrived[CreateTopicsRequest]) -> CreateTopicsResponse | Deferred:
    request = call.body
    times = Counter(topic.name for topic in request.topics)
    results = {name: CreatableTopicResult(name=name, error_message=None) for name in times}
    refused = node.context.refusals(call, TOPICS, (name for name, count in times.items() if count == 1))
    hidden = node.context.refusals(call, SETTINGS, times)
    writes = Writes(node, call)
    described: Described = {}
    quota = node.context.quotas.mutations(call, strict_since=STRICT_SINCE)
    planned = 0
    for requested in request.topics:
        result = results[requested.name]
        try:
            if times[requested.name] > 1:
                raise errors.InvalidRequest(f"topic {requested.name!r} is named {times[requested.name]} times in this request")
            if requested.name in refused:
                raise refused[requested.name]
            topic = plan_topic(requested, node.context.image, node.context.options, node.context.rng, planned=planned)
            if not request.validate_only:
                quota.take(len(topic.replicas))
        except KafkaError as error:
            _fail(result, error)
            continue
        planned += len(topic.replicas)
        result.topic_id = topic.topic_id
        if requested.name in hidden:
            result.topic_config_error_code = hidden[requested.name].code
        else:
            _describe(node, result, topic, described)
        if not request.validate_only:
            _write(node, writes, topic, result)
    response = CreateTopicsResponse(throttle_time_ms=quota.throttle_ms, topics=list(results.values()))
    return writes.answer_when_done(response, request.timeout_ms)


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
