"""The controller's office: taking it, losing it, and writing under it.

Every broker wants it; the store gives it to whoever creates ``/controller`` first. The winner raises ``/controller_epoch`` in the same
``multi``; each later write checks that node's version, so a controller that lost its office without knowing cannot write. What it finds in
order it leaves as it is: who was counted in under which registration stands in the states themselves (``election.py``).

What changes is looked at by the agenda (``agenda.py``), topics come and go by ``stepwise.py``, and partitions go back to their first
replicas by ``preferred.py``. Source: KIP-237, KAFKA-6082.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker.controller.election import election, is_sound
from ottla.broker.controller.election_queue import Agenda
from ottla.broker.controller.preferred_leaders import PreferredLeaders
from ottla.broker.controller.reachability import Hearing
from ottla.broker.controller.reassignment_driver import Moves
from ottla.broker.controller.topic_writes import Stepwise
from ottla.broker.controller.topics import stateless
from ottla.broker.metadata.image import NO_LEADER, Change
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Controller:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: This broker holds the office, as far as it knows.
        self.active = False
        #: Version of /controller_epoch that this office's writes check.
        self._fence = -1
        self._campaigning = False
        #: The store did not answer; the next tick tries again.
        self._retry = False
        #: Topics that changed since the last tick: one that an operator's tool began has partitions without a state.
        self._changed: dict[str, None] = {}
        self.agenda = Agenda(node)
        self.topics = Stepwise(node)
        self.preferred = PreferredLeaders(node, self.agenda)
        self.hearing = Hearing(node)
        #: Reassignments under way.
        self._moves = Moves(node, self)

    def start(self) -> None:
        """Want the office from now on. One that this broker holds by an earlier session, or without knowing, is taken anew."""
        if not self.active and self._vacant():
            self._campaign()

    def step_down(self) -> None:
        """Another broker may hold the office, for all this one knows."""
        self.active = False
        self.agenda.clear()

    def settled(self) -> bool:
        """Everything that this broker should lead has a leader, and no election is under way here."""
        if self._campaigning or not self.agenda.idle:
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
        """The image took in a change of the store."""
        match change:
            case ("controller", holder):
                self.hearing.office_changed()
                self._office_changed(holder)
                self._node.isr_changes.controller_changed()
                return
            case _ if not self.active:
                return
            case ("broker", int() as broker):
                self.agenda.add(self._held_by(BrokerId(broker)))
            case ("log_dir_event", _):
                self._take_notice()
            case ("partition", TopicPartition() as partition):
                if self.agenda.wants(partition):
                    self.agenda.add((partition,))
            case ("topic", str() as topic):
                self._changed[topic] = None
            # Settings say how large an ISR must be, and whether a leader may lack records.
            case ("config", ("topics", str() as topic)):
                self.agenda.add(self._of((topic,)))
            case ("config", ("brokers", _)):
                self.agenda.add(self._of(self._node.image.topics))
            case ("deletion", str() as topic) if topic in self._node.image.deleting:
                self.topics.marked(topic)
            case ("preferred_election", _):
                self.preferred.asked()
        self._moves.changed(change)
        self.agenda.go_on()

    def tick(self) -> None:
        """Time passed: try again what the store did not answer, and do what is done by the clock."""
        self.hearing.tick()
        if self._retry and not self._holds_back():
            self._retry = False
            self.start()
            if self.active:
                self._look_at_all()
        if self.active:
            changed, self._changed = self._changed, {}
            self.agenda.add(self._stateless(changed))
            self.preferred.tick()
            self._moves.tick()
            self.agenda.go_on()

    def try_again(self) -> None:
        """The store did not answer: look at everything with the next tick."""
        self._retry = True

    def write(self, ops: Sequence[Op], done: Callable[[StoreResult], None]) -> None:
        """Write to the store under this office; ``done`` hears the result, with ``failed_op`` counted in ``ops`` (-1: the office was
        lost)."""
        fence = Op("check", layout.CONTROLLER_EPOCH, version=self._fence)

        def answered(result: StoreResult) -> None:
            if result.error is None:
                done(StoreResult(states=result.states[1:]))
            else:
                done(StoreResult(error=result.error, failed_op=result.failed_op - 1))

        self._node.submit((fence, *ops), answered)

    # The office.

    def _office_changed(self, holder: object) -> None:
        if holder is None and not self._node.stopping:
            self.step_down()
            self.start()
        elif holder != self._node.broker_id:
            self.step_down()

    def _vacant(self) -> bool:
        """Whether this broker may take the office: it is registered, and nobody else has it."""
        node = self._node
        return node.standing.connected and node.standing.epoch is not None and node.image.controller in (None, node.broker_id)

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
        """Whether this broker leaves the office to others, because they did not reach it."""
        return (self._node.now_ms < self.hearing.hold_ms or self.hearing.fenced) and len(self._node.image.brokers) > 1

    def _campaigned(self, result: StoreResult) -> None:
        self._campaigning = False
        if result.error is None:
            # Heard while suspended, it is an office that this broker will have to take anew.
            self.active = self._node.standing.connected
            self._fence = result.states[-1].version
            if self.active:
                self._look_at_all()
                self.preferred.begin()
                self._moves.look()
                self.agenda.go_on()
        elif self._node.image.controller in (None, self._node.broker_id):
            self._retry = True

    def _look_at_all(self) -> None:
        """Of what happened before this office nothing is known but what the image shows."""
        image = self._node.image
        self.agenda.add(self._of(image.topics))
        self.topics.resume()
        self.preferred.asked()
        self._take_notice()

    def _take_notice(self) -> None:
        """What went with a log directory stands in its broker's registration; the notification has done its work."""
        for path in self._node.image.log_dir_events:
            self.write((Op("delete", path),), lambda result: None)

    # Which partitions a change concerns.

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
