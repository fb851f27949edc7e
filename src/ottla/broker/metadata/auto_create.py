"""Topics that are created without a CreateTopics request: automatic creation by name, and the coordinators' topics."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.base.ports import Op
from ottla.broker.controller.topics import creation, plan_topic
from ottla.broker.isolation import indivisible
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

if TYPE_CHECKING:
    from ottla.broker.node import Node

CREATE_TOPICS_VERSION = 7


def begin_creation(node: "Node", wish: CreatableTopic) -> None:
    """Asks the controller to create a topic, without waiting. Does nothing while that is in progress.

    Raises: KafkaError if this broker is the controller and refuses.
    """
    name = wish.name
    if name in node.creating:
        return
    topic = plan_topic(wish, node.image, node.options, node.rng) if node.controller.active else None
    _begin(node, wish, None if topic is None else creation(topic, node.image))


@indivisible
def _begin(node: "Node", wish: CreatableTopic, ops: Sequence[Op] | None) -> None:
    name = wish.name
    node.creating.add(name)
    if ops is not None:
        node.controller.topics.create(name, ops, lambda result: node.creating.discard(name))
    else:
        node.tell_controller(
            CreateTopicsRequest(topics=[wish], timeout_ms=10_000), version=CREATE_TOPICS_VERSION, done=lambda: node.creating.discard(name)
        )
