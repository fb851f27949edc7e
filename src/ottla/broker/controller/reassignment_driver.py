"""Moves of partitions at the controller: completed as soon as they can be, begun for tools that wish for them by way of the store, and for
topics that were created while too few brokers were there.

Nothing is remembered here but what to look at: what moves stands in the topics' nodes, so a new controller goes on with a look at
everything. A partition is looked at when its state changes, so that thousands that move cost no more than what happens to them; once a
second those of changed topics are, since an assignment may be heard after the state that goes with it. One round of writes is under way at
a time, a ``multi`` for each topic.

``/admin/reassign_partitions`` is how tools older than KIP-455 ask. Each partition in it is begun like any other, and leaves the node when
it has the replicas wished for, or cannot have them; the node goes with the last. A request for the same partition takes it out of the node.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker import effects
from ottla.broker.controller.reassignment import Move, begun, completed, grown, has_room, is_moving, is_small, target_of, writes
from ottla.broker.metadata.image import Change, Image, Topic
from ottla.store import layout
from ottla.wire.errors import KafkaError

if TYPE_CHECKING:
    from ottla.broker.controller.controller import Controller
    from ottla.broker.node import Node

#: Partitions changed by one multi: besides their states it holds the whole assignment of the topic.
MOVES_AT_ONCE = 500


class Moves:
    """See the module's theory. Belongs to the controller's office."""

    def __init__(self, node: "Node", controller: "Controller") -> None:
        self._node = node
        self._controller = controller
        #: To look at, in order.
        self._pending: dict[TopicPartition, None] = {}
        #: Topics to look at with the next tick.
        self._changed: dict[str, None] = {}
        #: Look at everything with the next tick.
        self._everything = False
        #: Look which wishes of the store are done with.
        self._settle = False
        #: Wishes of the store for which the topic's node has no room.
        self._no_room: dict[TopicPartition, None] = {}
        #: Writes whose answer is still to come.
        self._open = 0

    def changed(self, change: Change) -> None:
        """The image took in a change of the store."""
        image = self._node.image
        match change:
            case ("partition", TopicPartition() as partition):
                topic = image.topics.get(partition.topic)
                if topic is not None and (is_moving(topic, partition.partition) or partition in image.wished):
                    self._pending[partition] = None
            case ("topic", str() as name):
                self._changed[name] = None
            case ("broker", _):
                self._everything = True
            case ("reassignment", _):
                self._pending.update(dict.fromkeys(image.wished))
                self._settle = True
        self._go_on()

    def tick(self) -> None:
        """Time passed: look again, and try again what the store did not answer."""
        image = self._node.image
        if self._everything:
            self.look()
            return
        for name in self._changed:
            topic = image.topics.get(name)
            if topic is not None:
                self._pending.update(dict.fromkeys(_concerned(image, topic)))
        self._pending.update(dict.fromkeys(partition for partition in image.wished if partition.topic in self._changed))
        self._changed.clear()
        self._settle = True
        self._go_on()

    def look(self) -> None:
        """Look at everything: complete what can be completed, begin what is wished for."""
        image = self._node.image
        self._everything = False
        for topic in image.topics.values():
            self._pending.update(dict.fromkeys(_concerned(image, topic)))
        self._pending.update(dict.fromkeys(image.wished))
        self._settle = True
        self._go_on()

    def _go_on(self) -> None:
        if not self._controller.active:
            self._pending.clear()
            return
        image = self._node.image
        while self._pending and not self._open:
            due: dict[str, dict[int, Move]] = {}
            for partition in list(self._pending)[:MOVES_AT_ONCE]:
                del self._pending[partition]
                move = self._decide(partition)
                if move is not None:
                    due.setdefault(partition.topic, {})[partition.partition] = move
            written = {name: ops for name, moves in due.items() if (ops := self._writes(name, moves))}
            self._open = len(written)
            for name, ops in written.items():
                looked = [TopicPartition(name, number) for number in due[name]]
                self._controller.write(ops, partial(self._answered, looked))
        if self._settle and not self._open:
            self._settle = False
            ops = taken_out(image, self._settled_wishes())
            if ops:
                self._open = 1
                self._controller.write(ops, partial(self._answered, list(image.wished)))

    def _writes(self, name: str, moves: dict[int, Move]) -> list[Op]:
        """What brings these moves about. Where the topic's node has no room for all that are to begin, others wait with the wishes for them
        until some are done; where there is none for a single one, that is refused."""
        topic, wished = self._node.image.topics[name], self._node.image.wished
        begin = [number for number, move in moves.items() if move.begins]
        while True:
            chosen = {number: move for number, move in moves.items() if number in begin or not move.begins}
            by_wish = any(TopicPartition(name, number) in wished for number in chosen)
            ops = writes(topic, chosen, by_wish=by_wish) if chosen else []
            if not begin or has_room(ops):
                return ops
            if len(chosen) == 1 and not topic.adding and not topic.removing:
                self._no_room[TopicPartition(name, begin[0])] = None
                self._settle = True
            begin = begin[: len(begin) // 2]

    def _answered(self, looked: Collection[TopicPartition], result: StoreResult) -> None:
        self._open -= 1
        if result.error == "too_large":
            message = f"{len(looked)} moves of partitions are more than the store takes at once; they are left undone"
            self._node.effects.append(effects.Warn(message=message))
            self._no_room.update((partition, None) for partition in looked if partition in self._node.image.wished)
            self._settle = True
        elif result.error in ("version", "missing", "exists"):
            # Somebody else was faster; the image shows by now with what.
            self._pending.update(dict.fromkeys(looked))
            self._settle = True
        elif result.error is not None:
            self._everything = True
        self._go_on()

    def _decide(self, partition: TopicPartition) -> Move | None:
        image, number = self._node.image, partition.partition
        topic = image.topics.get(partition.topic)
        if topic is None or number not in topic.states or number not in topic.replicas:
            return None
        done = completed(image, topic, number)
        if done is not None:
            return done
        try:
            if partition not in image.wished:
                return grown(image, topic, number)
            return begun(image, topic, number, image.wished[partition])
        except KafkaError:
            self._settle = True
            return None

    def _settled_wishes(self) -> list[TopicPartition]:
        """Wishes of the store that have come true, or cannot."""
        image = self._node.image
        settled: list[TopicPartition] = []
        for partition, wish in image.wished.items():
            topic = image.topics.get(partition.topic)
            if topic is None or partition.partition not in topic.states or topic.name in image.deleting:
                self._refuse(partition, "there is no such partition")
            elif partition in self._no_room:
                del self._no_room[partition]
                self._refuse(partition, "the topic's node would be larger than the store takes")
            elif target_of(topic, partition.partition) != wish:
                try:
                    begun(image, topic, partition.partition, wish)
                except KafkaError as error:
                    self._refuse(partition, str(error))
                else:
                    self._pending[partition] = None
                    continue
            elif is_moving(topic, partition.partition):
                continue
            settled.append(partition)
        if not image.wished and layout.REASSIGN_PARTITIONS in image.versions:
            self._node.effects.append(effects.Warn(message=f"{layout.REASSIGN_PARTITIONS} names no partition, or cannot be read; it goes"))
        return settled

    def _refuse(self, partition: TopicPartition, reason: str) -> None:
        self._node.effects.append(effects.Warn(message=f"{layout.REASSIGN_PARTITIONS} wishes to move {partition}: {reason}"))


def _concerned(image: Image, topic: Topic) -> list[TopicPartition]:
    """Partitions of a topic that move, or are to."""
    moving = [TopicPartition(topic.name, number) for number in {**topic.adding, **topic.removing}]
    if not topic.factor_wanted:
        return moving
    return moving + [TopicPartition(topic.name, number) for number in topic.replicas if is_small(image, topic, number)]


def taken_out(image: Image, partitions: Iterable[TopicPartition]) -> list[Op]:
    """What makes the store wish for these partitions no more; a node that wishes for nothing goes."""
    version = image.versions.get(layout.REASSIGN_PARTITIONS)
    gone = set(partitions)
    if version is None or (image.wished and not gone & set(image.wished)):
        return []
    left: Mapping[TopicPartition, tuple[int, ...]] = {key: wish for key, wish in image.wished.items() if key not in gone}
    if left:
        return [Op("set", layout.REASSIGN_PARTITIONS, layout.encode_reassignment(left), version=version)]
    return [Op("delete", layout.REASSIGN_PARTITIONS, version=version)]
