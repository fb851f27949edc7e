"""The controller: its election, its loss, and its writes.

Every broker is a candidate; the one that creates ``/controller`` is elected and increments ``/controller_epoch`` in the same ``multi``.
Each later write is conditional on the version of that node, so a controller that was deposed cannot write. A new controller corrects
only wrong states: partition states have the registrations under which members were added (``election.py``).

The election queue (``election_queue.py``) evaluates changes, ``topic_writes.py`` creates and deletes topics, ``preferred_leaders.py``
restores preferred leaders. Source: KIP-237, KAFKA-6082.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.log_levels import CONTROLLER
from ottla.base.origin import Origin
from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.broker.controller.access_rules import AccessRules
from ottla.broker.controller.election import election, is_sound
from ottla.broker.controller.election_queue import ElectionQueue
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.controller.preferred_leaders import PreferredLeaders
from ottla.broker.controller.reachability import ControllerReachability
from ottla.broker.controller.reassignment_driver import ReassignmentDriver
from ottla.broker.controller.token_expiry import TokenExpiry
from ottla.broker.controller.topic_writes import TopicWriteBatcher, WhenOpened
from ottla.broker.controller.topics import creation, plan_topic, stateless
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.image import NO_LEADER, Change
from ottla.broker.registration.registration import Registration
from ottla.store import layout
from ottla.wire.messages.create_topics import CreatableTopic, CreateTopicsRequest

CREATE_TOPICS_VERSION = 7


class Controller:
    """This broker as candidate and controller."""

    def __init__(self, context: BrokerContext, registration: Registration, when_opened: WhenOpened) -> None:
        """``when_opened``: calls back when the logs of a topic are open on this broker."""
        self._context = context
        self.writes = writes = FencedWrites(context)
        self._campaigning = False
        #: Broker epochs that this controller has seen.
        self._epochs: dict[BrokerId, int] = {}
        #: Numbers of partitions of topics that this controller has seen.
        self._sizes: dict[str, int] = {}
        #: Topics that changed since the last tick: one that a tool created may have partitions without a state.
        self._changed: dict[str, None] = {}
        self.election_queue = ElectionQueue(context, writes)
        self.topics = TopicWriteBatcher(context, writes, when_opened)
        self.preferred = PreferredLeaders(context, writes, self.election_queue)
        self.reachability = ControllerReachability(context, writes, registration)
        self.access_rules = AccessRules(context.image, writes)
        #: Reassignments in progress.
        self._moves = ReassignmentDriver(context, writes)
        self._token_expiry = TokenExpiry(context, writes)

    @property
    def active(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self.writes.active

    def start(self) -> None:
        """Becomes a candidate. If this broker is the controller by an earlier session, or without knowing, it is elected again."""
        if not self.active and self._vacant():
            self._campaign()

    def step_down(self) -> None:
        """Another broker may be the controller."""
        if self.active:
            self._context.log.info(CONTROLLER, f"broker {self._context.broker_id} is no longer the controller")
            self._note(self._context.broker_id, "no longer the controller")
        self.writes.active = False
        self.election_queue.clear()

    def settled(self) -> bool:
        """Whether every partition that this broker should lead has a leader, and no election is in progress here."""
        if self._campaigning or not self.election_queue.idle:
            return False
        context, image = self._context, self._context.image
        me = context.broker_id
        for topic in image.topics.values():
            for number, replicas in topic.replicas.items():
                if me not in replicas:
                    continue
                state = topic.states.get(number)
                if state is None:
                    return False
                if state.leader == me:
                    if not is_sound(image, state, me):
                        return False
                elif state.leader == NO_LEADER and election(image, topic, number, options=context.topic_options(topic.name)) is not None:
                    return False
        return True

    def changed(self, change: Change) -> None:
        """The image changed."""
        match change:
            case ("controller", holder):
                self.reachability.controller_changed()
                self._controller_changed(holder)
                return
            case _ if not self.active:
                return
            case ("broker", int() as broker):
                self._log_broker(BrokerId(broker))
                self.election_queue.add(self._held_by(BrokerId(broker)))
            case ("log_dir_event", _):
                self._take_notice()
            case ("partition", TopicPartition() as partition):
                if self.election_queue.wants(partition):
                    self.election_queue.add((partition,))
            case ("topic", str() as topic):
                self._changed[topic] = None
                self._log_topic(topic)
            # Settings determine the minimum ISR and whether unclean elections are allowed.
            case ("config", ("topics", str() as topic)):
                self.election_queue.add(self._of((topic,)))
            case ("config", ("brokers", _)):
                self.election_queue.add(self._of(self._context.image.topics))
            case ("deletion", str() as topic) if topic in self._context.image.deleting:
                self.topics.marked(topic)
            case ("preferred_election", _):
                self.preferred.asked()
        self._moves.changed(change)
        self.election_queue.go_on()

    def tick(self) -> None:
        """Retries what the store did not answer, and runs periodic work."""
        self.reachability.tick()
        if self.writes.retry and not self._holds_back():
            self.writes.retry = False
            self.start()
            if self.active:
                self._look_at_all()
        if self.active:
            changed, self._changed = self._changed, {}
            self.election_queue.add(self._stateless(changed))
            self.preferred.tick()
            self.access_rules.tick()
            self._moves.tick()
            self._token_expiry.tick()
            self.election_queue.go_on()

    # Topics that are created without a CreateTopics request: automatic creation by name, and the coordinators' topics.

    def create_topic(self, requested: CreatableTopic, of: Origin | None = None) -> None:
        """Creates a topic, or asks the controller to create it, without waiting. Does nothing while that is in progress. ``of``: the client
        that needs the topic; None: this broker does.

        Raises: KafkaError if this broker is the controller and refuses.
        """
        context = self._context
        if requested.name not in context.creating:
            topic = plan_topic(requested, context.image, context.options, context.rng) if self.active else None
            self._begin_creation(requested, None if topic is None else creation(topic, context.image), of)

    @indivisible
    def _begin_creation(self, requested: CreatableTopic, ops: Sequence[Op] | None, of: Origin | None) -> None:
        name, creating = requested.name, self._context.creating
        creating.add(name)
        if ops is not None:
            self.topics.create(name, ops, lambda result: creating.discard(name))
        else:
            request = CreateTopicsRequest(topics=[requested], timeout_ms=10_000)
            self._context.tell_controller(request, version=CREATE_TOPICS_VERSION, done=lambda: creating.discard(name), of=of)

    # Election of the controller.

    def _log_broker(self, broker: BrokerId) -> None:
        """Logs when a broker registers or is gone; its registration changes for other reasons too."""
        found, before = self._context.image.brokers.get(broker), self._epochs.pop(broker, None)
        if found is not None:
            self._epochs[broker] = found.epoch
        if (None if found is None else found.epoch) != before:
            what = "is gone: its session ended" if found is None else f"is registered under broker epoch {found.epoch}"
            self._context.log.info(CONTROLLER, f"broker {broker} {what}", registered=broker)
            if found is None:
                self._note(broker, "is gone")
            else:
                self._note(broker, "is registered", broker_epoch=found.epoch)

    def _note(self, broker: int, what: str, **fields: Any) -> None:
        """Adds a change to the timeline."""
        self._context.timeline.note("controller", f"broker {broker}", what, **fields)

    def _log_topic(self, name: str) -> None:
        """Logs when a topic is created, gets partitions or is deleted; its node changes for other reasons too."""
        topic, before = self._context.image.topics.get(name), self._sizes.pop(name, 0)
        after = 0 if topic is None else len(topic.replicas)
        if after:
            self._sizes[name] = after
        if after != before:
            what = "created " if not before else "added partitions to " if after else "deleted "
            self._context.log.many(CONTROLLER, what, f"topic {name!r}", unit="topics", partition_count=after)

    def _controller_changed(self, holder: object) -> None:
        if holder != self._context.broker_id and self._context.started:
            what = "there is no controller" if holder is None else f"broker {holder} is the controller"
            self._context.log.info(CONTROLLER, what, epoch=self._context.image.controller_epoch)
            if isinstance(holder, int):
                self._note(holder, "is the controller", epoch=self._context.image.controller_epoch)
            else:
                self._context.timeline.note("controller", "", "there is no controller", epoch=self._context.image.controller_epoch)
        if holder is None and not self._context.stopping:
            self.step_down()
            self.start()
        elif holder != self._context.broker_id:
            self.step_down()

    def _vacant(self) -> bool:
        """Whether this broker may be elected: it is registered, and there is no other controller."""
        context = self._context
        return context.connected and context.epoch is not None and context.image.controller in (None, context.broker_id)

    def _campaign(self) -> None:
        if self._campaigning:
            return
        if self._holds_back():
            self.writes.retry = True
            return
        self._campaigning = True
        context = self._context
        version = context.image.versions.get(layout.CONTROLLER_EPOCH)
        epoch = layout.encode_controller_epoch(context.image.controller_epoch + 1)
        claim = Op("create", layout.CONTROLLER, layout.encode_controller(context.broker_id, context.wall_ms), ephemeral=True)
        if version is None:
            raised = Op("create", layout.CONTROLLER_EPOCH, epoch)
        else:
            raised = Op("set", layout.CONTROLLER_EPOCH, epoch, version=version)
        freed = () if context.image.controller is None else (Op("delete", layout.CONTROLLER),)
        context.submit((*freed, claim, raised), self._campaigned)

    def _holds_back(self) -> bool:
        """Whether this broker does not stand as candidate because other brokers did not reach it."""
        return (self._context.now_ms < self.reachability.hold_ms or self.reachability.fenced) and len(self._context.image.brokers) > 1

    def _campaigned(self, result: StoreResult) -> None:
        self._campaigning = False
        if result.error is None:
            # If received while suspended, this broker must be elected again.
            self.writes.active = self._context.connected
            self.writes.version = result.states[-1].version
            if self.active:
                epoch = self._context.image.controller_epoch
                self._context.log.info(CONTROLLER, f"broker {self._context.broker_id} was elected as controller", epoch=epoch)
                self._note(self._context.broker_id, "was elected as controller", epoch=epoch)
                self._epochs = {broker: found.epoch for broker, found in self._context.image.brokers.items()}
                self._sizes = {name: len(topic.replicas) for name, topic in self._context.image.topics.items()}
                self._look_at_all()
                self.preferred.begin()
                self._moves.look()
                self.election_queue.go_on()
        elif self._context.image.controller in (None, self._context.broker_id):
            self.writes.retry = True

    def _look_at_all(self) -> None:
        """Earlier events are known only from the image."""
        image = self._context.image
        self.election_queue.add(self._of(image.topics))
        self.topics.resume()
        self.preferred.asked()
        self._take_notice()

    def _take_notice(self) -> None:
        """Failed log directories are in their broker's registration; deletes handled notifications."""
        for path in self._context.image.log_dir_events:
            self.writes.write((Op("delete", path),), lambda result: None)

    # Partitions affected by a change.

    def _held_by(self, broker: BrokerId) -> Iterable[TopicPartition]:
        for topic in self._context.image.topics.values():
            for number, replicas in topic.replicas.items():
                if broker in replicas:
                    yield TopicPartition(topic.name, number)

    def _of(self, names: Iterable[str]) -> Iterable[TopicPartition]:
        for name in names:
            topic = self._context.image.topics.get(name)
            for number in topic.replicas if topic is not None else ():
                yield TopicPartition(name, number)

    def _stateless(self, names: Iterable[str]) -> Iterable[TopicPartition]:
        for name in names:
            topic = self._context.image.topics.get(name)
            if topic is not None and name not in self.topics.growing:
                for number in stateless(topic):
                    yield TopicPartition(name, number)
