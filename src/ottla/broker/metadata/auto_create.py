"""Topics that are created without a CreateTopics request: automatic creation by name, and the coordinators' topics."""

from collections.abc import Sequence

from ottla.base.ports import Op
from ottla.broker.context import BrokerContext
from ottla.broker.controller.controller import Controller
from ottla.broker.controller.topics import creation, plan_topic
from ottla.broker.isolation import indivisible
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

CREATE_TOPICS_VERSION = 7


def begin_creation(context: BrokerContext, controller: Controller, requested: CreatableTopic) -> None:
    """Asks the controller to create a topic, without waiting. Does nothing while that is in progress.

    Raises: KafkaError if this broker is the controller and refuses.
    """
    name = requested.name
    if name in context.creating:
        return
    topic = plan_topic(requested, context.image, context.options, context.rng) if controller.active else None
    _begin(context, controller, requested, None if topic is None else creation(topic, context.image))


@indivisible
def _begin(context: BrokerContext, controller: Controller, requested: CreatableTopic, ops: Sequence[Op] | None) -> None:
    name = requested.name
    context.creating.add(name)
    if ops is not None:
        controller.topics.create(name, ops, lambda result: context.creating.discard(name))
    else:
        context.tell_controller(
            CreateTopicsRequest(topics=[requested], timeout_ms=10_000),
            version=CREATE_TOPICS_VERSION,
            done=lambda: context.creating.discard(name),
        )
