"""DeleteTopics: on the controller, by name or, from version 6 on, by id.

Behaviour: a topic with thousands of partitions takes several steps and is marked meanwhile (``controller/topic_writes.py``).
delete.topic.enable=false refuses with TOPIC_DELETION_DISABLED (INVALID_REQUEST before version 3); a topic that is named more than once, by
name or id, is INVALID_REQUEST, answered once, and not deleted. Answered when the store and this broker's image no longer have the topic;
its files are removed later. When the client's controller_mutation_rate is used up, each further topic is THROTTLING_QUOTA_EXCEEDED from
version 5 on; before, all are deleted, and the answer is throttled.

Source: KIP-4, KIP-322, KIP-516, KIP-599.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial

from ottla.base.acls import CLUSTER_NAME
from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.base.ports import Op, StoreResult
from ottla.broker.apis.store_writes import Writes, note
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import Topic
from ottla.broker.node import Node
from ottla.broker.security.access import Permits
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import counted, free_counted
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

BY_ID_SINCE = 6
DISABLED_SINCE = 3
CLUSTER = REQUIREMENTS[20].parts["cluster"]
TOPICS = REQUIREMENTS[20].parts["topics"]
NAMES = REQUIREMENTS[20].parts["names"]
#: First version whose clients know THROTTLING_QUOTA_EXCEEDED. Source: KIP-599.
STRICT_SINCE = 5
#: Of a topic in a turn.
WEIGHT = 8


def _states(call: RequestArrived[DeleteTopicsRequest]) -> Iterator[DeleteTopicState]:
    request = call.body
    if call.api_version >= BY_ID_SINCE:
        return iter(request.topics)
    return (DeleteTopicState(name=name) for name in request.topic_names)


def refuse(call: RequestArrived[DeleteTopicsRequest], error: KafkaError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=str(error))
            for state in _states(call)
        ]
    )


@handles(DeleteTopicsRequest, (1, 6), refuse=refuse, at_controller=True)
def delete_topics(node: Node, call: RequestArrived[DeleteTopicsRequest]) -> DeleteTopicsResponse | Deferred:
    if not node.context.options.delete_topic_enable:
        kind = errors.TopicDeletionDisabled if call.api_version >= DISABLED_SINCE else errors.InvalidRequest
        return refuse(call, kind("delete.topic.enable is false on this broker"))
    writes = Writes(node, call)
    return writes.answer_in_turns(_work(node, call, writes), call.body.timeout_ms)


def _work(node: Node, call: RequestArrived[DeleteTopicsRequest], writes: Writes) -> Generator[int, None, DeleteTopicsResponse]:
    context = node.context
    may_delete_all = None if context.access is None else Permits(context.access, call, CLUSTER)
    refusals: list[DeletableTopicResult] = []
    #: By name: the topic's id, and how often the request names it.
    wanted: dict[str, tuple[TopicId, int]] = {}
    times = yield from counted((state.name, state.topic_id) for state in _states(call))
    for (name, topic_id), count in times.items():
        yield WEIGHT
        known = context.image.topics_by_id.get(TopicId(topic_id)) if name is None else None
        meant = known.name if known is not None else name
        refusal, hidden = "", False
        if may_delete_all is not None and meant is not None and not may_delete_all(CLUSTER_NAME):
            refused, unseen = context.refusals(call, TOPICS, [meant] * count), context.refusals(call, NAMES, [meant] * count)
            refusal, hidden = "".join(map(str, {**refused, **unseen}.values())), bool(unseen)
        try:
            topic = _found(node, name, topic_id, count, refusal)
        except KafkaError as error:
            shown = meant if isinstance(error, errors.TopicAuthorizationFailed) and not hidden else name
            refusals.append(DeletableTopicResult(name=shown, topic_id=topic_id, error_code=error.code, error_message=str(error)))
        else:
            wanted[topic.name] = topic.topic_id, wanted.get(topic.name, (topic.topic_id, 0))[1] + 1
    free_counted(context, times)
    quota = context.quotas.mutations(call, strict_since=STRICT_SINCE)
    results = []
    for name, (topic_id, count) in wanted.items():
        yield WEIGHT
        result = DeletableTopicResult(name=name, topic_id=topic_id, error_message=None)
        results.append(result)
        try:
            if count > 1:
                raise errors.InvalidRequest(f"the request names topic {name!r} by its name and by its id")
            present = context.image.topics.get(name)
            if present is None or present.topic_id != topic_id:
                raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
            quota.take(len(present.replicas))
        except KafkaError as error:
            note(result, error)
        else:
            writes.add((), partial(note, result), write=partial(_delete, node, name))
    return DeleteTopicsResponse(throttle_time_ms=quota.throttle_ms, responses=[*refusals, *results])


def _found(node: Node, name: str | None, topic_id: bytes, times: int, refusal: str) -> Topic:
    """``refusal``: why the client may not delete it. Raises: KafkaError."""
    if times > 1:
        raise errors.InvalidRequest(f"the request names this topic {times} times")
    if name is None:
        if topic_id == NO_TOPIC_ID:
            raise errors.InvalidRequest("a topic to delete has a name or an id")
        topic = node.context.image.topics_by_id.get(TopicId(topic_id))
        if topic is None:
            raise errors.UnknownTopicId("no topic has this id")
        if refusal:
            # The message must not name the topic.
            raise errors.TopicAuthorizationFailed("the topic with this id may not be deleted by this client")
        return topic
    if topic_id != NO_TOPIC_ID:
        raise errors.InvalidRequest(f"topic {name!r} is named by name and by id; one of them is enough")
    if refusal:
        raise errors.TopicAuthorizationFailed(refusal)
    found = node.context.image.topics.get(name)
    if found is None:
        raise errors.UnknownTopicOrPartition(f"there is no topic {name!r}")
    return found


def _delete(node: Node, name: str, _ops: Sequence[Op], written: Callable[[StoreResult], None]) -> None:
    node.controller.topics.delete(name, written)
