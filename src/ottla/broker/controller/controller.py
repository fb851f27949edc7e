"""The controller's office: taking it, losing it, and writing under it.

Every broker wants it; the store gives it to whoever creates ``/controller`` first. The winner raises ``/controller_epoch`` in the same
``multi``; each later write checks that node's version, so a controller that lost its office without knowing cannot write. What it finds in
order it leaves as it is: who was counted in under which registration stands in the states themselves (``election.py``).

Only one round of elections is under way at a time; what changes meanwhile is looked at when it ends. Source: KIP-237, KAFKA-6082.
"""

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from ottla.base.ids import LeaderEpoch, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker.controller.election import election, elections, is_sound
from ottla.broker.image import NO_LEADER, Change
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Partitions that one write to the store elects for: a ZooKeeper takes 1 MiB at once.
ELECTIONS_MAX = 500
#: Stands for the state of a partition that is just being created.
NO_STATE = layout.PartitionState(leader=NO_LEADER, leader_epoch=LeaderEpoch(-1), isr=(), controller_epoch=0)


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

    def start(self) -> None:
        """Want the office from now on."""
        if self._node.image.controller is None:
            self._campaign()

    def settled(self) -> bool:
        """Everything that this broker should lead has a leader, and no election is under way here."""
        if self._campaigning or self._electing:
            return False
        image = self._node.image
        me = self._node.broker_id
        return not any(
            (state.leader == NO_LEADER and (me in state.isr or not state.isr)) or (state.leader == me and not is_sound(image, state, me))
            for topic in image.topics.values()
            for number, replicas in topic.replicas.items()
            if me in replicas and (state := topic.states.get(number, NO_STATE))
        )

    def changed(self, change: Change) -> None:
        """The image took in a change of the store."""
        match change:
            case ("controller", holder):
                self._office_changed(holder)
            case ("broker", _):
                self._hold_elections()
            case ("partition", TopicPartition() as partition):
                if self.active and self._wants_election(partition):
                    self._hold_elections()

    def tick(self) -> None:
        """Time passed: try again what the store did not answer."""
        if self._retry:
            self._retry = False
            if self._node.image.controller is None:
                self._campaign()
            self._hold_elections()

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
            self._campaign()
        elif holder != self._node.broker_id:
            self.active = False

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
        node.submit((claim, raised), self._campaigned)

    def _campaigned(self, result: StoreResult) -> None:
        self._campaigning = False
        if result.error is None:
            self.active = True
            self._fence = result.states[1].version
            self._hold_elections()
        elif self._node.image.controller is None:
            self._retry = True

    # Elections.

    def _unclean(self, topic: str) -> bool:
        return self._node.topic_options(topic).unclean_leader_election_enable

    def _wants_election(self, partition: TopicPartition) -> bool:
        image = self._node.image
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.states:
            return False
        return election(image, topic, partition.partition, unclean=self._unclean) is not None

    def _hold_elections(self) -> None:
        if self._electing or not self.active:
            return
        image = self._node.image
        changes = islice(elections(image, unclean=self._unclean), ELECTIONS_MAX)
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

        def answered(result: StoreResult) -> None:
            self._electing = False
            if result.error in ("unavailable", "session"):
                self._retry = True
            else:
                # Look again: at the rest, and at what changed meanwhile, which the image shows before the store answers.
                self._hold_elections()

        self.write(ops, answered)
