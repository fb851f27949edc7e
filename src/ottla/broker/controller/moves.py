"""Moves of partitions at the controller: completed as soon as they can be, and begun for tools that wish for them by way of the store.

Nothing is remembered here: what moves stands in the topics' nodes, so a new controller goes on with a first look. One round of writes is
under way at a time, a ``multi`` for each topic; what changes meanwhile is looked at when it ends.

``/admin/reassign_partitions`` is how tools older than KIP-455 ask. Each partition in it is begun like any other, and leaves the node when
it has the replicas wished for, or cannot have them; the node goes with the last. A request for the same partition takes it out of the node.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreErrorKind, StoreResult
from ottla.broker import effects
from ottla.broker.controller.reassignment import Move, begun, completed, is_moving, target_of, writes
from ottla.broker.image import Change, Image
from ottla.store import layout
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller
    from ottla.broker.node import Node

#: Partitions of a topic changed by one multi: besides their states it holds the whole assignment of the topic.
MOVES_AT_ONCE = 1_000


class Moves:
    """See the module's theory. Belongs to the controller's office."""

    def __init__(self, node: "Node", controller: "Controller") -> None:
        self._node = node
        self._controller = controller
        #: Writes whose answer is still to come.
        self._open = 0
        self._failed: set[StoreErrorKind] = set()
        self._retry = False

    def changed(self, change: Change) -> None:
        """The image took in a change of the store."""
        image = self._node.image
        match change:
            case ("partition", TopicPartition() as partition):
                topic = image.topics.get(partition.topic)
                if topic is not None and is_moving(topic, partition.partition):
                    self.look()
            case ("topic", str() as name):
                if image.wished or ((found := image.topics.get(name)) is not None and (found.adding or found.removing)):
                    self.look()
            case ("broker" | "reassignment", _):
                self.look()

    def tick(self) -> None:
        """Time passed: try again what the store did not answer."""
        if self._retry:
            self._retry = False
            self.look()

    def look(self) -> None:
        """Complete what can be completed, begin what is wished for. Does nothing while this broker is not the controller."""
        if self._open or not self._controller.active:
            return
        image = self._node.image
        rounds = [ops for ops in (self._due(name) for name in list(image.topics)) if ops]
        settled = [] if rounds else self._settled_wishes()
        if settled:
            rounds.append(taken_out(image, settled))
        self._open, self._failed = len(rounds), set()
        for ops in rounds:
            self._controller.write(ops, self._answered)

    def _answered(self, result: StoreResult) -> None:
        self._open -= 1
        if result.error is not None:
            self._failed.add(result.error)
        if self._open:
            return
        if self._failed <= {"version", "missing", "exists"}:
            # Whatever somebody else was faster with, the image shows by now.
            self.look()
        else:
            self._retry = True

    def _due(self, name: str) -> list[Op]:
        """What to write for one topic now."""
        image = self._node.image
        topic = image.topics[name]
        moves: dict[int, Move] = {}
        for number in {**topic.adding, **topic.removing}:
            done = completed(image, topic, number) if number in topic.replicas else None
            if done is not None:
                moves[number] = done
        for partition, wish in image.wished.items():
            if partition.topic == name and partition.partition not in moves and partition.partition in topic.states:
                try:
                    move = begun(image, topic, partition.partition, wish)
                except KafkaError:
                    continue
                if move is not None:
                    moves[partition.partition] = move
        return writes(topic, dict(list(moves.items())[:MOVES_AT_ONCE])) if moves else []

    def _settled_wishes(self) -> list[TopicPartition]:
        """Wishes of the store that have come true, or cannot."""
        image, settled = self._node.image, []
        for partition, wish in image.wished.items():
            topic = image.topics.get(partition.topic)
            if topic is None or partition.partition not in topic.states:
                self._refuse(partition, "there is no such partition")
            elif target_of(topic, partition.partition) != wish:
                try:
                    begun(image, topic, partition.partition, wish)
                except KafkaError as error:
                    self._refuse(partition, str(error))
                else:
                    continue
            elif is_moving(topic, partition.partition):
                continue
            settled.append(partition)
        if not image.wished and layout.REASSIGN_PARTITIONS in image.versions:
            self._node.effects.append(effects.Warn(message=f"{layout.REASSIGN_PARTITIONS} names no partition, or cannot be read; it goes"))
            settled.append(TopicPartition("", -1))
        return settled

    def _refuse(self, partition: TopicPartition, reason: str) -> None:
        self._node.effects.append(effects.Warn(message=f"{layout.REASSIGN_PARTITIONS} wishes to move {partition}: {reason}"))


def taken_out(image: Image, partitions: Iterable[TopicPartition]) -> list[Op]:
    """What makes the store wish for these partitions no more."""
    version = image.versions.get(layout.REASSIGN_PARTITIONS)
    gone = set(partitions)
    if version is None or (image.wished and not gone & set(image.wished)):
        return []
    left: Mapping[TopicPartition, tuple[int, ...]] = {key: wish for key, wish in image.wished.items() if key not in gone}
    if left:
        return [Op("set", layout.REASSIGN_PARTITIONS, layout.encode_reassignment(left), version=version)]
    return [Op("delete", layout.REASSIGN_PARTITIONS, version=version)]
