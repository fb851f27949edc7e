"""The controller: its election, its loss, and its writes.

Every broker is a candidate; the one that creates ``/controller`` is elected and increments ``/controller_epoch`` in the same ``multi``.
Each later write is conditional on the version of that node, so a controller that was deposed cannot write. A new controller changes only
what is wrong: partition states have the registrations under which members were added (``election.py``).

The election queue (``election_queue.py``) evaluates changes, ``topic_writes.py`` creates and deletes topics, ``preferred_leaders.py``
restores preferred leaders. Source: KIP-237, KAFKA-6082.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker.controller.election import election, is_sound
from ottla.broker.controller.election_queue import ElectionQueue
from ottla.broker.controller.preferred_leaders import PreferredLeaders
from ottla.broker.controller.reachability import ControllerReachability
from ottla.broker.controller.reassignment_driver import Moves
from ottla.broker.controller.topic_writes import TopicWriteBatcher
from ottla.broker.controller.topics import stateless
from ottla.broker.metadata.image import NO_LEADER, Change
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Controller:
    """This broker as candidate and controller."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Whether this broker is the controller, as far as it knows.
        self.active = False
        #: Version of /controller_epoch that writes are conditional on.
        self._fence = -1
        self._campaigning = False
        #: The store did not answer; the next tick retries.
        self._retry = False
        #: Topics that changed since the last tick: one that a tool created may have partitions without a state.
        self._changed: dict[str, None] = {}
        self.election_queue = ElectionQueue(node)
        self.topics = TopicWriteBatcher(node)
        self.preferred = PreferredLeaders(node, self.election_queue)
        self.reachability = ControllerReachability(node)
        #: Reassignments in progress.
        self._moves = Moves(node, self)

    def start(self) -> None:
        """Becomes a candidate. If this broker is the controller by an earlier session, or without knowing, it is elected again."""
        if not self.active and self._vacant():
            self._campaign()

    def step_down(self) -> None:
        """Another broker may be the controller."""
        self.active = False
        self.election_queue.clear()

    def settled(self) -> bool:
        """Whether every partition that this broker should lead has a leader, and no election is in progress here."""
        if self._campaigning or not self.election_queue.idle:
            return False
        image, node = self._node.image, self._node
        me = node.broker_id
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
                elif state.leader == NO_LEADER and election(image, topic, number, options=node.topic_options(topic.name)) is not None:
                    return False
        return True

    def changed(self, change: Change) -> None:
        """The image changed."""
        match change:
            case ("controller", holder):
                self.reachability.controller_changed()
                self._controller_changed(holder)
                self._node.isr_changes.controller_changed()
                return
            case _ if not self.active:
                return
            case ("broker", int() as broker):
                self.election_queue.add(self._held_by(BrokerId(broker)))
            case ("log_dir_event", _):
                self._take_notice()
            case ("partition", TopicPartition() as partition):
                if self.election_queue.wants(partition):
                    self.election_queue.add((partition,))
            case ("topic", str() as topic):
                self._changed[topic] = None
            # Settings determine the minimum ISR and whether unclean elections are allowed.
            case ("config", ("topics", str() as topic)):
                self.election_queue.add(self._of((topic,)))
            case ("config", ("brokers", _)):
                self.election_queue.add(self._of(self._node.image.topics))
            case ("deletion", str() as topic) if topic in self._node.image.deleting:
                self.topics.marked(topic)
            case ("preferred_election", _):
                self.preferred.asked()
        self._moves.changed(change)
        self.election_queue.go_on()

    def tick(self) -> None:
        """Retries what the store did not answer, and runs periodic work."""
        self.reachability.tick()
        if self._retry and not self._holds_back():
            self._retry = False
            self.start()
            if self.active:
                self._look_at_all()
        if self.active:
            changed, self._changed = self._changed, {}
            self.election_queue.add(self._stateless(changed))
            self.preferred.tick()
            self._moves.tick()
            self.election_queue.go_on()

    def try_again(self) -> None:
        """The store did not answer: evaluates everything with the next tick."""
        self._retry = True

    def write(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Writes to the store as controller; ``done`` gets the result, with ``failed_op`` relative to ``ops`` (-1: this broker is no longer
        the controller).
        """
        fence = Op("check", layout.CONTROLLER_EPOCH, version=self._fence)

        def answered(result: StoreResult) -> None:
            if result.error is None:
                done(StoreResult(states=result.states[1:]))
            else:
                done(StoreResult(error=result.error, failed_op=result.failed_op - 1))

        self._node.submit((fence, *ops), answered)

    # Election of the controller.

    def _controller_changed(self, holder: object) -> None:
        if holder is None and not self._node.stopping:
            self.step_down()
            self.start()
        elif holder != self._node.broker_id:
            self.step_down()

    def _vacant(self) -> bool:
        """Whether this broker may be elected: it is registered, and there is no other controller."""
        node = self._node
        return node.lifecycle.connected and node.lifecycle.epoch is not None and node.image.controller in (None, node.broker_id)

    def _campaign(self) -> None:
        if self._campaigning:
            return
        if self._holds_back():
            self._retry = True
            return
        self._campaigning = True
        node = self._node
        version = node.image.versions.get(layout.CONTROLLER_EPOCH)
        epoch = layout.encode_controller_epoch(node.image.controller_epoch + 1)
        claim = Op("create", layout.CONTROLLER, layout.encode_controller(node.broker_id, node.wall_ms), ephemeral=True)
        if version is None:
            raised = Op("create", layout.CONTROLLER_EPOCH, epoch)
        else:
            raised = Op("set", layout.CONTROLLER_EPOCH, epoch, version=version)
        freed = () if node.image.controller is None else (Op("delete", layout.CONTROLLER),)
        node.submit((*freed, claim, raised), self._campaigned)

    def _holds_back(self) -> bool:
        """Whether this broker does not stand as candidate because other brokers did not reach it."""
        return (self._node.now_ms < self.reachability.hold_ms or self.reachability.fenced) and len(self._node.image.brokers) > 1

    def _campaigned(self, result: StoreResult) -> None:
        self._campaigning = False
        if result.error is None:
            # If received while suspended, this broker must be elected again.
            self.active = self._node.lifecycle.connected
            self._fence = result.states[-1].version
            if self.active:
                self._look_at_all()
                self.preferred.begin()
                self._moves.look()
                self.election_queue.go_on()
        elif self._node.image.controller in (None, self._node.broker_id):
            self._retry = True

    def _look_at_all(self) -> None:
        """Earlier events are known only from the image."""
        image = self._node.image
        self.election_queue.add(self._of(image.topics))
        self.topics.resume()
        self.preferred.asked()
        self._take_notice()

    def _take_notice(self) -> None:
        """Failed log directories are in their broker's registration; deletes handled notifications."""
        for path in self._node.image.log_dir_events:
            self.write((Op("delete", path),), lambda result: None)

    # Partitions affected by a change.

    def _held_by(self, broker: BrokerId) -> Iterable[TopicPartition]:
        for topic in self._node.image.topics.values():
            for number, replicas in topic.replicas.items():
                if broker in replicas:
                    yield TopicPartition(topic.name, number)

    def _of(self, names: Iterable[str]) -> Iterable[TopicPartition]:
        for name in names:
            topic = self._node.image.topics.get(name)
            for number in topic.replicas if topic is not None else ():
                yield TopicPartition(name, number)

    def _stateless(self, names: Iterable[str]) -> Iterable[TopicPartition]:
        for name in names:
            topic = self._node.image.topics.get(name)
            if topic is not None and name not in self.topics.growing:
                for number in stateless(topic):
                    yield TopicPartition(name, number)
