"""Drives reassignments on the controller: completes them, starts those requested through the store, and adds replicas of topics that were
created with too few brokers.

Nothing is remembered but what to evaluate: reassignments are in the topics' nodes, so a new controller evaluates everything once. A
partition is evaluated when its state changes, so the cost depends on changes; partitions of changed topics are evaluated once a second,
because an assignment may arrive after its state. One round of writes is in flight at a time, a ``multi`` for each topic.

Tools older than KIP-455 write ``/admin/reassign_partitions``. Each partition in it is started like any other and removed from the node
when it has the requested replicas or cannot have them; the node is deleted with the last. A request through the API removes the partition
from the node.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import CONTROLLER
from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.controller.reassignment import Move, begun, completed, grown, has_room, is_moving, is_small, target_of, writes
from ottla.broker.metadata.image import Change, Image, Topic
from ottla.store import layout
from ottla.wire.errors import KafkaError

#: Partitions changed by one multi: it has their states and the whole assignment of the topic.
MOVES_AT_ONCE = 500


class ReassignmentDriver:
    """Reassignments of one controller."""

    def __init__(self, context: BrokerContext, writes: FencedWrites) -> None:
        self._context = context
        self._controller = writes
        #: Partitions to evaluate, in order.
        self._pending: dict[TopicPartition, None] = {}
        #: Topics to evaluate with the next tick.
        self._changed: dict[str, None] = {}
        #: Evaluate everything with the next tick.
        self._everything = False
        #: Check which requests in the store are done.
        self._settle = False
        #: Requests in the store for which the topic's node has no room.
        self._no_room: dict[TopicPartition, None] = {}
        #: Writes in flight.
        self._open = 0

    def changed(self, change: Change) -> None:
        """The image changed."""
        image = self._context.image
        match change:
            case ("partition", TopicPartition() as partition):
                topic = image.topics.get(partition.topic)
                if topic is not None and (is_moving(topic, partition.partition) or partition in image.requested_moves):
                    self._pending[partition] = None
            case ("topic", str() as name):
                self._changed[name] = None
            case ("broker", _):
                self._everything = True
            case ("reassignment", _):
                self._pending.update(dict.fromkeys(image.requested_moves))
                self._settle = True
        self._go_on()

    def tick(self) -> None:
        """Evaluates again, and retries what the store did not answer."""
        image = self._context.image
        if self._everything:
            self.look()
            return
        for name in self._changed:
            topic = image.topics.get(name)
            if topic is not None:
                self._pending.update(dict.fromkeys(_concerned(image, topic)))
        self._pending.update(dict.fromkeys(partition for partition in image.requested_moves if partition.topic in self._changed))
        self._changed.clear()
        self._settle = True
        self._go_on()

    def look(self) -> None:
        """Evaluates everything: completes and starts reassignments."""
        image = self._context.image
        self._everything = False
        for topic in image.topics.values():
            self._pending.update(dict.fromkeys(_concerned(image, topic)))
        self._pending.update(dict.fromkeys(image.requested_moves))
        self._settle = True
        self._go_on()

    def _go_on(self) -> None:
        if not self._controller.active:
            self._pending.clear()
            return
        image = self._context.image
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
                for number, move in due[name].items():
                    self._log(TopicPartition(name, number), move)
                looked = [TopicPartition(name, number) for number in due[name]]
                self._controller.write(ops, partial(self._answered, looked))
        if self._settle and not self._open:
            self._settle = False
            ops = taken_out(image, self._finished_requests())
            if ops:
                self._open = 1
                self._controller.write(ops, partial(self._answered, list(image.requested_moves)))

    def _log(self, partition: TopicPartition, move: Move) -> None:
        what = "begins the reassignment of " if move.begins else "completes the reassignment of "
        self._context.log.many(CONTROLLER, what, partition, replicas=list(move.replicas))

    def _writes(self, name: str, moves: dict[int, Move]) -> list[Op]:
        """Operations for these changes. If the topic's node has no room for all of them, the rest waits in the store until some are
        completed; if it has no room for one, that request is refused.
        """
        topic, requested_moves = self._context.image.topics[name], self._context.image.requested_moves
        begin = [number for number, move in moves.items() if move.begins]
        while True:
            chosen = {number: move for number, move in moves.items() if number in begin or not move.begins}
            by_request = any(TopicPartition(name, number) in requested_moves for number in chosen)
            ops = writes(topic, chosen, by_request=by_request) if chosen else []
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
            self._context.log.warn(CONTROLLER, message)
            self._no_room.update((partition, None) for partition in looked if partition in self._context.image.requested_moves)
            self._settle = True
        elif result.error in ("version", "missing", "exists"):
            # Another change was faster; the image has it by now.
            self._pending.update(dict.fromkeys(looked))
            self._settle = True
        elif result.error is not None:
            self._everything = True
        self._go_on()

    def _decide(self, partition: TopicPartition) -> Move | None:
        image, number = self._context.image, partition.partition
        topic = image.topics.get(partition.topic)
        if topic is None or number not in topic.states or number not in topic.replicas:
            return None
        done = completed(image, topic, number)
        if done is not None:
            return done
        try:
            if partition not in image.requested_moves:
                return grown(image, topic, number)
            return begun(image, topic, number, image.requested_moves[partition])
        except KafkaError:
            self._settle = True
            return None

    def _finished_requests(self) -> list[TopicPartition]:
        """Requests in the store that are done or impossible."""
        image = self._context.image
        settled: list[TopicPartition] = []
        for partition, requested in image.requested_moves.items():
            topic = image.topics.get(partition.topic)
            if topic is None or partition.partition not in topic.states or topic.name in image.deleting:
                self._refuse(partition, "there is no such partition")
            elif partition in self._no_room:
                del self._no_room[partition]
                self._refuse(partition, "the topic's node would be larger than the store takes")
            elif target_of(topic, partition.partition) != requested:
                try:
                    begun(image, topic, partition.partition, requested)
                except KafkaError as error:
                    self._refuse(partition, str(error))
                else:
                    self._pending[partition] = None
                    continue
            elif is_moving(topic, partition.partition):
                continue
            settled.append(partition)
        if not image.requested_moves and layout.REASSIGN_PARTITIONS in image.versions:
            self._context.log.warn(CONTROLLER, f"{layout.REASSIGN_PARTITIONS} names no partition, or is malformed; it is deleted")
        return settled

    def _refuse(self, partition: TopicPartition, reason: str) -> None:
        self._context.log.warn(CONTROLLER, f"{layout.REASSIGN_PARTITIONS} asks to move {partition}: {reason}")


def _concerned(image: Image, topic: Topic) -> list[TopicPartition]:
    """Partitions of a topic that are or should be reassigned."""
    moving = [TopicPartition(topic.name, number) for number in {**topic.adding, **topic.removing}]
    if not topic.factor_wanted:
        return moving
    return moving + [TopicPartition(topic.name, number) for number in topic.replicas if is_small(image, topic, number)]


def taken_out(image: Image, partitions: Iterable[TopicPartition]) -> list[Op]:
    """Operations that remove these partitions from the store's requests; an empty node is deleted."""
    version = image.versions.get(layout.REASSIGN_PARTITIONS)
    gone = set(partitions)
    if version is None or (image.requested_moves and not gone & set(image.requested_moves)):
        return []
    left: Mapping[TopicPartition, tuple[int, ...]] = {key: requested for key, requested in image.requested_moves.items() if key not in gone}
    if left:
        return [Op("set", layout.REASSIGN_PARTITIONS, layout.encode_reassignment(left), version=version)]
    return [Op("delete", layout.REASSIGN_PARTITIONS, version=version)]
