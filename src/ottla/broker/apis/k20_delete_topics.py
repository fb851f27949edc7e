"""DeleteTopics: at the controller, by name or, from version 6 on, by id.

Behaviour: a topic goes whole; one of thousands of partitions takes several steps, and is marked meanwhile (``controller/stepwise.py``).
delete.topic.enable=false refuses with TOPIC_DELETION_DISABLED (INVALID_REQUEST before version 3); a topic named twice, or by
both name and id, is INVALID_REQUEST. Answers when the store and this broker's image no longer have the topic; the files go a little
later.

Source: KIP-4, KIP-322, KIP-516.
"""

from typing import TYPE_CHECKING, Any

from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.broker.apis.writes import Writes
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles
from ottla.broker.image import Topic
from ottla.wire import errors
from ottla.wire.errors import KafkaError
from ottla.wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState

if TYPE_CHECKING:
    from ottla.broker.node import Node

BY_ID_SINCE = 6
DISABLED_SINCE = 3


def _states(call: RequestArrived) -> list[DeleteTopicState]:
    request: DeleteTopicsRequest = call.body
    if call.api_version >= BY_ID_SINCE:
        return request.topics
    return [DeleteTopicState(name=name) for name in request.topic_names]


def refuse(call: RequestArrived, error: KafkaError) -> DeleteTopicsResponse:
    return DeleteTopicsResponse(
        responses=[
            DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_code=error.code, error_message=str(error))
            for state in _states(call)
        ]
    )


@handles(DeleteTopicsRequest, (1, 6), refuse=refuse, at_controller=True)
def delete_topics(node: "Node", call: RequestArrived) -> Any:
    if not node.options.delete_topic_enable:
        kind = errors.TopicDeletionDisabled if call.api_version >= DISABLED_SINCE else errors.InvalidRequest
        return refuse(call, kind("delete.topic.enable is false on this broker"))
    writes = Writes(node, call)
    results: list[DeletableTopicResult] = []
    seen: set[str] = set()
    for state in _states(call):
        result = DeletableTopicResult(name=state.name, topic_id=state.topic_id, error_message=None)
        results.append(result)
        try:
            topic = _found(node, state)
            if topic.name in seen:
                raise errors.InvalidRequest(f"topic {topic.name!r} stands twice in this request")
        except KafkaError as error:
            result.error_code, result.error_message = error.code, str(error)
            continue
        seen.add(topic.name)
        result.name, result.topic_id = topic.name, topic.topic_id
        _write(node, writes, topic, result)
    return writes.answer_when_done(DeleteTopicsResponse(responses=results), call.body.timeout_ms)


def _found(node: "Node", state: DeleteTopicState) -> Topic:
    if state.name is None:
        if state.topic_id == NO_TOPIC_ID:
            raise errors.InvalidRequest("a topic to delete has a name or an id")
        topic = node.image.topics_by_id.get(TopicId(state.topic_id))
        if topic is None:
            raise errors.UnknownTopicId("no topic has this id")
        return topic
    if state.topic_id != NO_TOPIC_ID:
        raise errors.InvalidRequest(f"topic {state.name!r} is named by name and by id; one of them is enough")
    found = node.image.topics.get(state.name)
    if found is None:
        raise errors.UnknownTopicOrPartition(f"there is no topic {state.name!r}")
    return found


def _write(node: "Node", writes: Writes, topic: Topic, result: DeletableTopicResult) -> None:
    def done(error: KafkaError | None) -> None:
        if error is not None:
            result.error_code, result.error_message = error.code, str(error)

    writes.add((), done, write=lambda ops, written: node.controller.topics.delete(topic.name, written))
