"""Metadata: live brokers, topics, and partition leaders.

Behaviour: an empty list in version 0, and null in later versions, means all topics. A topic that does not exist is created if the client
and auto.create.topics.enable allow it and the request names it; the response is UNKNOWN_TOPIC_OR_PARTITION meanwhile. From version 12 on
topics can be requested by id. A topic named twice is returned once. Brokers that listen everywhere and advertise nothing appear at the
host that the client used.

A client gets the addresses of the listener with the name of its own. A broker without that listener is left out, and a partition that it
leads has no leader and LISTENER_NOT_FOUND (before version 6 LEADER_NOT_AVAILABLE).

A request about very many topics is answered in turns (``turns.py``). Each topic is as it is in its turn; brokers are those of the first or
of the last turn, so that each leader is among them.

Access: of all topics those that the client may not describe are left out; a requested one is TOPIC_AUTHORIZATION_FAILED, whether it exists
or not.

Source: KIP-4, KIP-320, KIP-430, KIP-516; facts of Kafka's KafkaApis.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import msgspec

from ottla.base.ids import NO_TOPIC_ID, TopicId
from ottla.broker.apis.authorized_operations import cluster_operations, topic_operations
from ottla.broker.apis.partition_leaders import address_for, partition_view
from ottla.broker.controller.topics import INTERNAL, check_name
from ottla.broker.events import RequestArrived
from ottla.broker.handlers import Deferred, handles
from ottla.broker.metadata.image import NO_LEADER, Registration, Topic
from ottla.broker.node import Node
from ottla.broker.security.requirements import REQUIREMENTS
from ottla.broker.turns import portions
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

T = TypeVar("T")
#: Registered brokers with host and port for the client; None: the broker does not have its listener.
Addresses = dict[int, tuple[Registration, tuple[str, int] | None]]
NULL_NAME_SINCE = 12
NULL_MEANS_ALL_SINCE = 1
LISTENER_NOT_FOUND_SINCE = 6
_PARTS = REQUIREMENTS[3].parts
TOPICS, ALL_TOPICS, CREATED, OPERATIONS = (_PARTS[part] for part in ("topics", "all topics", "created topics", "cluster operations"))


def refuse(call: RequestArrived[MetadataRequest], error: KafkaError) -> MetadataResponse:
    """The error on every topic, and from version 13 on also on the response."""
    topics = [MetadataResponseTopic(error_code=error.code, name=topic.name, topic_id=topic.topic_id) for topic in call.body.topics or []]
    return MetadataResponse(topics=topics, error_code=error.code)


@handles(MetadataRequest, (0, 13), refuse=refuse)
def metadata(node: Node, call: RequestArrived[MetadataRequest]) -> MetadataResponse | Deferred:
    request = call.body
    everything = request.topics is None or (call.api_version < NULL_MEANS_ALL_SINCE and not request.topics)
    if everything:
        every = list(node.context.image.topics)
        return _answer(node, call, every, _all_of, lambda name: _weight(node.context.image.topics.get(name)))
    return _answer(node, call, request.topics or [], _requested, lambda wanted: _weight(_topic(node, wanted)))


def _answer(
    node: Node,
    call: RequestArrived[MetadataRequest],
    asked: list[T],
    describe: Callable[["TopicView", list[T]], list[MetadataResponseTopic]],
    weight: Callable[[T], int],
) -> MetadataResponse | Deferred:
    """The answer about these topics, at once or in turns."""
    addresses, limit = _addresses(node, call), node.context.turns.elements
    if len(asked) <= limit and sum(map(weight, asked)) <= limit:
        wanted = asked if len(asked) == 1 else list(_distinct(asked))
        return _response(node, call, addresses, describe(_view(node, call, addresses), wanted))

    def work() -> Generator[int, None, MetadataResponse]:
        topics: list[MetadataResponseTopic] = []
        for portion in portions(_distinct(asked), weight, limit):
            # Topics are created in the first turn only: the limit of those under way then holds for the whole request.
            topics += describe(_view(node, call, _addresses(node, call), creates=not topics), portion)
            yield limit
        return _response(node, call, addresses | _addresses(node, call), topics)

    return node.context.turns.begin(call, work())


def _distinct(asked: Iterable[T]) -> Iterator[T]:
    """Each topic once."""
    seen: set[object] = set()
    for one in asked:
        # The name alone where it can be: 20,000 tuples are milliseconds to free.
        key = (one.name, one.topic_id) if isinstance(one, MetadataRequestTopic) and one.topic_id != NO_TOPIC_ID else _name_of(one)
        if key not in seen:
            seen.add(key)
            yield one


def _name_of(one: object) -> object:
    return one.name if isinstance(one, MetadataRequestTopic) else one


def _weight(topic: Topic | None) -> int:
    """Elements of a response about it."""
    return 1 if topic is None else 1 + len(topic.replicas)


def _addresses(node: Node, call: RequestArrived[MetadataRequest]) -> Addresses:
    return {broker.broker: (broker, address_for(node, call, broker)) for broker in node.context.image.brokers.values()}


def _view(node: Node, call: RequestArrived[MetadataRequest], addresses: Addresses, *, creates: bool = True) -> "TopicView":
    return TopicView(node, call, [broker for broker, (_, address) in addresses.items() if address is None], creates=creates)


def _all_of(view: "TopicView", names: list[str]) -> list[MetadataResponseTopic]:
    """Topics of all that exist: those that still do, and that the client may describe."""
    topics = view.node.context.image.topics
    refused = view.node.context.refusals(view.call, ALL_TOPICS, names)
    return [_described(view, topics[name]) for name in names if name in topics and name not in refused]


def _requested(view: "TopicView", wanted: list[MetadataRequestTopic]) -> list[MetadataResponseTopic]:
    refused = view.node.context.refusals(view.call, TOPICS, _names(view.node, wanted))
    return [_asked(view, one, refused) for one in wanted]


def _response(
    node: Node, call: RequestArrived[MetadataRequest], addresses: Addresses, topics: list[MetadataResponseTopic]
) -> MetadataResponse:
    response = MetadataResponse(
        brokers=[
            MetadataResponseBroker(broker.broker, address[0], address[1], broker.rack)
            for broker, address in addresses.values()
            if address is not None
        ],
        cluster_id=node.context.cluster_id,
        controller_id=NO_LEADER if node.context.image.controller is None else node.context.image.controller,
        topics=topics,
    )
    if call.body.include_cluster_authorized_operations:
        response.cluster_authorized_operations = cluster_operations(node, call, OPERATIONS)
    return response


class TopicView(msgspec.Struct, gc=False):
    """Partitions as one client may see them: without leaders that it cannot reach."""

    node: Node
    call: RequestArrived[MetadataRequest]
    #: Brokers that the client cannot reach.
    hidden: Sequence[int]
    #: Whether topics that do not exist may be created.
    creates: bool

    def partition(self, topic: Topic, number: int) -> MetadataResponsePartition:
        seen = partition_view(self.node, topic, number)
        leader, code = seen.leader, NONE
        if leader == NO_LEADER:
            code = errors.LeaderNotAvailable.code
        elif leader in self.hidden:
            known = self.call.api_version >= LISTENER_NOT_FOUND_SINCE
            leader, code = NO_LEADER, (errors.ListenerNotFound if known else errors.LeaderNotAvailable).code
        return MetadataResponsePartition(
            error_code=code,
            partition_index=number,
            leader_id=leader,
            leader_epoch=seen.leader_epoch,
            replica_nodes=list(topic.replicas[number]),
            isr_nodes=seen.isr,
            offline_replicas=seen.offline,
        )


def _topic(node: Node, wanted: MetadataRequestTopic) -> Topic | None:
    """The requested topic; None if there is none."""
    image = node.context.image
    return image.topics_by_id.get(TopicId(wanted.topic_id)) if wanted.name is None else image.topics.get(wanted.name)


def _names(node: Node, wanted: Iterable[MetadataRequestTopic]) -> Iterator[str]:
    """The names of requested topics, as far as they are known."""
    for one in wanted:
        topic = node.context.image.topics_by_id.get(TopicId(one.topic_id)) if one.name is None else None
        if one.name is not None or topic is not None:
            yield one.name if one.name is not None else topic.name  # type: ignore[union-attr]


def _asked(view: TopicView, wanted: MetadataRequestTopic, refused: Mapping[str, KafkaError]) -> MetadataResponseTopic:
    node, call = view.node, view.call
    request = call.body
    topic = _topic(node, wanted)
    if call.api_version < NULL_NAME_SINCE and (wanted.name is None or wanted.topic_id != NO_TOPIC_ID):
        code = errors.InvalidRequest.code
    elif refused and (wanted.name or (topic.name if topic is not None else "")) in refused:
        # As in Kafka: neither the id of a named topic nor the name of an identified one, nor whether it exists.
        return MetadataResponseTopic(error_code=errors.TopicAuthorizationFailed.code, name=wanted.name, topic_id=wanted.topic_id)
    elif topic is not None:
        return _described(view, topic)
    elif wanted.name is None:
        code = errors.UnknownTopicId.code
    else:
        create = view.creates and request.allow_auto_topic_creation and node.context.options.auto_create_topics_enable
        code = _missing(node, call, wanted.name, create=create)
    # Before version 12 the name cannot be null.
    name = "" if wanted.name is None and call.api_version < NULL_NAME_SINCE else wanted.name
    missing = MetadataResponseTopic(error_code=code, name=name, topic_id=wanted.topic_id, is_internal=name in INTERNAL)
    if wanted.name is not None and request.include_topic_authorized_operations:
        # Some clients take the value for "not requested" as a set of operations.
        missing.topic_authorized_operations = topic_operations(node, call, wanted.name)
    return missing


def _missing(node: Node, call: RequestArrived[MetadataRequest], name: str, *, create: bool) -> int:
    """The error of a topic that does not exist: nothing is raised in the common case, because a request may name 100,000 of them."""
    try:
        check_name(name)
        if create:
            node.context.demand(call, CREATED, name)
            create_on_demand(node, call, name)
    except errors.ThrottlingQuotaExceeded:
        return errors.UnknownTopicOrPartition.code
    except KafkaError as error:
        return error.code
    return errors.UnknownTopicOrPartition.code


def create_on_demand(node: Node, call: RequestArrived[MetadataRequest], name: str) -> None:
    """Asks the controller to create a topic with the broker's defaults for a client, without waiting. Internal topics are created by their
    coordinators. The partitions count against the client's quota at this broker.

    Raises: ThrottlingQuotaExceeded.
    """
    if name in node.context.creating or name in INTERNAL or len(node.context.creating) >= node.context.options.topics_creating_max:
        return
    if node.context.quotas.active:
        node.context.quotas.mutations(call, strict_since=0).take(node.context.options.num_partitions)
    node.controller.create_topic(CreatableTopic(name=name, num_partitions=-1, replication_factor=-1), call.origin)


def _described(view: TopicView, topic: Topic) -> MetadataResponseTopic:
    described = MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL,
        partitions=[view.partition(topic, number) for number in topic.replicas],
    )
    if view.call.body.include_topic_authorized_operations:
        described.topic_authorized_operations = topic_operations(view.node, view.call, topic.name)
    return described
