"""The controller's office: taking it, losing it, and writing under it.

Every broker wants it; the store gives it to whoever creates ``/controller`` first. The winner raises ``/controller_epoch`` in the same
``multi``; each later write checks that node's version, so a controller that lost its office without knowing cannot write. What it finds in
order it leaves as it is: who was counted in under which registration stands in the states themselves (``election.py``).

Only one round of elections is under way at a time; what changes meanwhile is looked at when it ends. Source: KIP-237, KAFKA-6082.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreErrorKind, StoreResult
from ottla.broker.controller.election import election, elections, is_sound
from ottla.broker.controller.moves import Moves
from ottla.broker.image import NO_LEADER, Change
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node


#: Elections written by one multi: a store takes a megabyte of them, and each has some two hundred bytes.
OPS_AT_ONCE = 2_000


class Controller:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: This broker holds the office, as far as it knows.
        self.active = False
        #: Version of /controller_epoch that this office's writes check.
        self._fence = -1
        self._campaigning = False
        self._electing = False
        #: The store did not answer; the next tick tries again.
        self._retry = False
        #: Reassignments under way.
        self._moves = Moves(node, self)

    def start(self) -> None:
        """Want the office from now on. One that this broker holds by an earlier session, or without knowing, is taken anew."""
        if not self.active and self._vacant():
            self._campaign()

    def step_down(self) -> None:
        """Another broker may hold the office, for all this one knows."""
        self.active = False

    def settled(self) -> bool:
        """Everything that this broker should lead has a leader, and no election is under way here."""
        if self._campaigning or self._electing:
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
                self._office_changed(holder)
            case ("broker", _) | ("config", _):
                # Settings say how large an ISR must be, and whether a leader may lack records.
                self._hold_elections()
            case ("log_dir_event", _):
                self._take_notice()
            case ("partition", TopicPartition() as partition):
                if self.active and self._wants_election(partition):
                    self._hold_elections()
        self._moves.changed(change)

    def tick(self) -> None:
        """Time passed: try again what the store did not answer."""
        if self._retry:
            self._retry = False
            self.start()
            self._hold_elections()
        self._moves.tick()

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
            self.active = False
            self.start()
        elif holder != self._node.broker_id:
            self.active = False

    def _vacant(self) -> bool:
        """Whether this broker may take the office: it is registered, and nobody else has it."""
        node = self._node
        return node.standing.connected and node.standing.epoch is not None and node.image.controller in (None, node.broker_id)

    def _campaign(self) -> None:
        if self._campaigning:
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

    def _campaigned(self, result: StoreResult) -> None:
        self._campaigning = False
        if result.error is None:
            # Heard while suspended, it is an office that this broker will have to take anew.
            self.active = self._node.standing.connected
            self._fence = result.states[-1].version
            self._take_notice()
            self._hold_elections()
            self._moves.look()
        elif self._node.image.controller in (None, self._node.broker_id):
            self._retry = True

    def _take_notice(self) -> None:
        """What went with a log directory stands in its broker's registration; the notification has done its work."""
        if self.active:
            for path in self._node.image.log_dir_events:
                self.write((Op("delete", path),), lambda result: None)

    # Elections.

    def _wants_election(self, partition: TopicPartition) -> bool:
        image = self._node.image
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.states:
            return False
        return election(image, topic, partition.partition, options=self._node.topic_options(topic.name)) is not None

    def _hold_elections(self) -> None:
        if self._electing or not self.active:
            return
        image = self._node.image
        changes = elections(image, options=self._node.topic_options)
        ops = [
            Op(
                "set",
                layout.partition_state(partition.topic, partition.partition),
                layout.encode_partition_state(state),
                version=image.topics[partition.topic].versions[partition.partition],
            )
            for partition, state in changes
        ]
        if not ops:
            return
        self._electing = True
        parts = range(0, len(ops), OPS_AT_ONCE)
        left, failed = len(parts), set[StoreErrorKind]()

        def answered(result: StoreResult) -> None:
            nonlocal left
            left -= 1
            if result.error is not None:
                failed.add(result.error)
            if left:
                return
            self._electing = False
            if failed & {"unavailable", "session"}:
                self._retry = True
            else:
                # Look again: at what changed meanwhile, which the image shows before the store answers.
                self._hold_elections()

        for first in parts:
            self.write(ops[first : first + OPS_AT_ONCE], answered)
