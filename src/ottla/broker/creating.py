"""Topics that come into being without a client's CreateTopics: those asked for by name, and the coordinators' own."""

from typing import TYPE_CHECKING

from ottla.broker.controller.topics import creation, plan_topic
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

if TYPE_CHECKING:
    from ottla.broker.node import Node

CREATE_TOPICS_VERSION = 7


def begin_creation(node: "Node", wish: CreatableTopic) -> None:
    """Have the controller create a topic; nobody waits for it. Does nothing while that is under way.

    Raises: KafkaError, when this broker is the controller and refuses.
    """
    name = wish.name
    if name in node.creating:
        return
    if node.controller.active:
        topic = plan_topic(wish, node.image, node.options, node.rng)
        node.creating.add(name)
        node.controller.topics.create(name, creation(topic, node.image), lambda result: node.creating.discard(name))
    else:
        node.creating.add(name)
        node.tell_controller(
            CreateTopicsRequest(topics=[wish], timeout_ms=10_000), version=CREATE_TOPICS_VERSION, done=lambda: node.creating.discard(name)
        )
