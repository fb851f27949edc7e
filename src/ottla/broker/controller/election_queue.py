"""Partitions that the controller has to look at, and what it writes about them.

What happens to a broker, a topic or a setting puts the partitions it concerns on the agenda; each is decided when its turn comes, by the
image of then::

    to look at ──▶ a portion: decided, encoded ──▶ one multi, two at most under way ──▶ written
        ▲                                                        │
        └──────── somebody else changed one of them first ◀──────┘

A portion is a step of the broker, so it is small: thousands of partitions take many steps, between which the broker serves. A store that
does not answer leaves its portion to the next tick; the office lost clears all.

A partition without a state was begun by a creation that did not come to its end, or by an operator's tool: it gets its first one. Since it
never had one, it is empty.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ottla.base.ids import TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker.controller import election
from ottla.broker.controller.topics import MULTI_BYTES, size_of
from ottla.broker.delayed import Parked
from ottla.broker.metadata.image import Topic
from ottla.log.options import TopicOptions
from ottla.store import layout

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: Partitions looked at, and so written, in one portion: some ten milliseconds, and a quarter of what a store takes at once.
PORTION = 1_000
#: While the store writes one portion the next is decided.
WRITES_MAX = 2


class Agenda:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: What to look at, in order; the flag asks for the preferred leader beside one that can lead.
        self._open: dict[TopicPartition, bool] = {}
        self._under_way = 0
        #: Counts offices: what was under way for an earlier one counts no more.
        self._office = 0
        self._waits: list[Callable[[], None]] = []
        self._timer: Parked | None = None

    @property
    def idle(self) -> bool:
        """Nothing is to be looked at, or being written."""
        return not self._open and not self._under_way

    def add(self, partitions: Iterable[TopicPartition], *, preferred: bool = False) -> None:
        """Look at these partitions; at those that are there already, once."""
        for partition in partitions:
            self._open[partition] = preferred or self._open.get(partition, False)

    def when_idle(self, act: Callable[[], None]) -> None:
        """Calls back once everything on the agenda by now is dealt with."""
        self._waits.append(act)

    def clear(self) -> None:
        """The office is another broker's, for all this one knows."""
        self._open, self._waits = {}, []
        self._under_way = 0
        self._office += 1

    def go_on(self) -> None:
        """Look at what there is, as far as the store keeps up."""
        while self._open and self._under_way < WRITES_MAX:
            looked, ops = self._portion()
            if ops:
                self._write(looked, ops)
            elif self._open:
                self._later()
                return
        if self.idle:
            waits, self._waits = self._waits, []
            for act in waits:
                act()

    def _later(self) -> None:
        """Much was looked at and nothing to be done: others have their turn first."""
        if self._timer is None or self._timer.done:
            self._timer = Parked((), lambda: False, lambda expired: self.go_on())
            self._node.purgatory.park(self._timer, self._node.now_ms)

    def _portion(self) -> tuple[dict[TopicPartition, bool], list[Op]]:
        decided: dict[TopicPartition, bool] = {}
        ops: list[Op] = []
        size = 0
        options: dict[str, TopicOptions] = {}
        for partition in list(self._open)[:PORTION]:
            if partition.topic not in options:
                options[partition.topic] = self._node.topic_options(partition.topic)
            preferred = self._open.pop(partition)
            wanted = self._decide(partition, options[partition.topic], preferred=preferred)
            if wanted:
                decided[partition] = preferred
                ops += wanted
                size += size_of(wanted)
                if size > MULTI_BYTES:
                    break
        return decided, ops

    def _decide(self, partition: TopicPartition, options: TopicOptions, *, preferred: bool) -> list[Op]:
        image = self._node.image
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.replicas or topic.name in image.deleting:
            return []
        if partition.partition not in topic.states:
            return births(self._node, topic, partition.partition)
        state = election.election(image, topic, partition.partition, options=options)
        if state is None and preferred:
            state = election.preferred(image, topic, partition.partition, options=options)
        return [] if state is None else [change(topic, partition.partition, state)]

    def wants(self, partition: TopicPartition) -> bool:
        """Whether there is something to be done about a partition that has a state, and replicas."""
        topic = self._node.image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.states or partition.partition not in topic.replicas:
            return False
        options = self._node.topic_options(topic.name)
        return election.election(self._node.image, topic, partition.partition, options=options) is not None

    def _write(self, looked: dict[TopicPartition, bool], ops: list[Op]) -> None:
        self._under_way += 1
        office = self._office

        def answered(result: StoreResult) -> None:
            if office != self._office:
                return
            self._under_way -= 1
            if result.error is None:
                self.go_on()
            elif result.error in ("unavailable", "session"):
                self._look_again(looked)
                self._node.controller.try_again()
            elif result.failed_op >= 0:
                # The image shows by now what was in the way.
                self._look_again(looked)
                self._make_way(ops[result.failed_op], result)

        self._node.controller.write(ops, answered)

    def _look_again(self, looked: dict[TopicPartition, bool]) -> None:
        """Nothing was written: what was asked for of each partition still is."""
        for partition, preferred in looked.items():
            self.add((partition,), preferred=preferred)

    def _make_way(self, failed: Op, result: StoreResult) -> None:
        """Operators' tools make a topic's node alone, or leave a partition's node without a state: neither is in our way for long."""
        if failed.kind == "create" and result.error == "missing":
            way = Op("create", failed.path.rpartition("/")[0])
        elif failed.kind == "create" and result.error == "exists":
            # Refused, and rightly, where there is a state in it: the image shows that by now.
            way = Op("delete", failed.path)
        else:
            self.go_on()
            return
        self._node.controller.write((way,), lambda result: self.go_on())


def change(topic: Topic, number: int, state: layout.PartitionState) -> Op:
    """Write a new state over the one that the image shows."""
    path = layout.partition_state(topic.name, number)
    return Op("set", path, layout.encode_partition_state(state), version=topic.versions[number])


def births(node: "Node", topic: Topic, number: int) -> list[Op]:
    """Give a partition its first state; nothing while no broker that holds it is alive."""
    state = election.first_state(node.image, topic.replicas[number])
    if state is None:
        return []
    path = layout.partition_state(topic.name, number)
    return [Op("create", layout.partition(topic.name, number)), Op("create", path, layout.encode_partition_state(state))]
