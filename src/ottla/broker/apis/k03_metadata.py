"""Metadata: live brokers, topics, and partition leaders.

Behaviour: an empty list in version 0, and null in later versions, means all topics. A topic that does not exist is created if the client
and auto.create.topics.enable allow it and the request names it; the response is UNKNOWN_TOPIC_OR_PARTITION meanwhile. From version 12 on
topics can be requested by id. A topic named twice is returned once. Brokers that listen everywhere and advertise nothing appear at the
host that the client used.

A client gets the addresses of the listener with the name of its own. A broker without that listener is left out, and a partition that it
leads has no leader and LISTENER_NOT_FOUND (before version 6 LEADER_NOT_AVAILABLE).

Source: KIP-4, KIP-320, KIP-430, KIP-516; facts of Kafka's KafkaApis.
"""

from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.broker.apis.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from ottla.broker.apis.partition_leaders import address_for, partition_view, unreachable
from ottla.broker.controller.topics import INTERNAL, check_name
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import handles
from ottla.broker.metadata.image import NO_LEADER, Topic
from ottla.broker.node import Node
from ottla.wire import errors
from ottla.wire.errors import NONE, KafkaError
from ottla.wire.messages.create_topics import CreatableTopic
from ottla.wire.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NULL_NAME_SINCE = 12
NULL_MEANS_ALL_SINCE = 1
LISTENER_NOT_FOUND_SINCE = 6


def refuse(call: RequestArrived[MetadataRequest], error: KafkaError) -> MetadataResponse:
    """The error on every topic, and from version 13 on also on the response."""
    topics = [MetadataResponseTopic(error_code=error.code, name=topic.name, topic_id=topic.topic_id) for topic in call.body.topics or []]
    return MetadataResponse(topics=topics, error_code=error.code)


@handles(MetadataRequest, (0, 13), refuse=refuse)
def metadata(node: Node, call: RequestArrived[MetadataRequest]) -> MetadataResponse:
    request = call.body
    view = TopicView(node, call)
    everything = request.topics is None or (call.api_version < NULL_MEANS_ALL_SINCE and not request.topics)
    if everything:
        topics = [_described(view, topic, request) for topic in node.context.image.topics.values()]
    else:
        distinct = {(wanted.name, wanted.topic_id): wanted for wanted in request.topics or []}
        topics = [_asked(view, call, wanted) for wanted in distinct.values()]
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.broker, host=address[0], port=address[1], rack=broker.rack)
            for broker in node.context.image.brokers.values()
            if (address := address_for(node, call, broker)) is not None
        ],
        cluster_id=node.context.cluster_id,
        controller_id=NO_LEADER if node.context.image.controller is None else node.context.image.controller,
        topics=topics,
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


class TopicView:
    """Partitions as one client may see them: without leaders that it cannot reach."""

    def __init__(self, node: Node, call: RequestArrived[MetadataRequest]) -> None:
        self.node = node
        self._hidden = unreachable(node, call)
        self._no_listener = (errors.ListenerNotFound if call.api_version >= LISTENER_NOT_FOUND_SINCE else errors.LeaderNotAvailable).code

    def partition(self, topic: Topic, number: int) -> MetadataResponsePartition:
        seen = partition_view(self.node, topic, number)
        leader, code = seen.leader, NONE
        if leader == NO_LEADER:
            code = errors.LeaderNotAvailable.code
        elif leader in self._hidden:
            leader, code = NO_LEADER, self._no_listener
        return MetadataResponsePartition(
            error_code=code,
            partition_index=number,
            leader_id=leader,
            leader_epoch=seen.leader_epoch,
            replica_nodes=list(topic.replicas[number]),
            isr_nodes=seen.isr,
            offline_replicas=seen.offline,
        )


def _asked(view: TopicView, call: RequestArrived[MetadataRequest], wanted: MetadataRequestTopic) -> MetadataResponseTopic:
    request, node = call.body, view.node
    topic = (
        node.context.image.topics_by_id.get(TopicId(wanted.topic_id)) if wanted.name is None else node.context.image.topics.get(wanted.name)
    )
    if call.api_version < NULL_NAME_SINCE and (wanted.name is None or wanted.topic_id != NO_TOPIC_ID):
        code = errors.InvalidRequest.code
    elif topic is not None:
        return _described(view, topic, request)
    elif wanted.name is None:
        code = errors.UnknownTopicId.code
    else:
        code = _missing(node, wanted.name, create=request.allow_auto_topic_creation and node.context.options.auto_create_topics_enable)
    # Before version 12 the name cannot be null.
    name = "" if wanted.name is None and call.api_version < NULL_NAME_SINCE else wanted.name
    missing = MetadataResponseTopic(error_code=code, name=name, topic_id=wanted.topic_id, is_internal=name in INTERNAL)
    if wanted.name is not None and request.include_topic_authorized_operations:
        # Some clients take the value for "not requested" as a set of operations.
        missing.topic_authorized_operations = TOPIC_OPERATIONS
    return missing


def _missing(node: Node, name: str, *, create: bool) -> int:
    """The error of a topic that does not exist: nothing is raised in the common case, because a request may name 100,000 of them."""
    try:
        check_name(name)
        if create:
            create_on_demand(node, name)
    except KafkaError as error:
        return error.code
    return errors.UnknownTopicOrPartition.code


def create_on_demand(node: Node, name: str) -> None:
    """Asks the controller to create a topic with the broker's defaults, without waiting. Internal topics are created by their
    coordinators."""
    if name in node.context.creating or name in INTERNAL or len(node.context.creating) >= node.context.options.topics_creating_max:
        return
    node.controller.create_topic(CreatableTopic(name=name, num_partitions=-1, replication_factor=-1))


def _described(view: TopicView, topic: Topic, request: MetadataRequest) -> MetadataResponseTopic:
    described = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=[view.partition(topic, number) for number in topic.replicas],
    )
    if request.include_topic_authorized_operations:
        described.topic_authorized_operations = TOPIC_OPERATIONS
    return described
