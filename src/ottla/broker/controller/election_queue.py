"""The election queue: partitions that the controller must evaluate, and its writes about them.

A change of a broker, topic or setting adds its partitions to the queue. Each is evaluated against the image current at dequeue::

    queued ──▶ a batch: evaluated, encoded ──▶ one multi, at most two in flight ──▶ written
        ▲                                                        │
        └──────── another broker changed one of them first ◀─────┘

A batch is evaluated in one step, so it is small: thousands of partitions take many steps, and the broker serves between them. If the store
does not answer, the batch is evaluated again with the next tick. A deposed controller clears the queue.

A partition without a state comes from an incomplete topic creation or from a tool. It is empty, and gets its first state.
"""

from collections.abc import Callable, Iterable

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import CONTROLLER, LogLevel
from ottla.base.ports import Op, StoreResult
from ottla.broker.context import BrokerContext
from ottla.broker.controller import election
from ottla.broker.controller.fenced_writes import FencedWrites
from ottla.broker.controller.topics import MULTI_BYTES, size_of
from ottla.broker.delayed import DelayedOperation
from ottla.broker.metadata.image import NO_LEADER, Topic
from ottla.log.options import TopicOptions
from ottla.store import layout

#: Partitions evaluated and written in one batch: some ten milliseconds, and a quarter of what the store accepts at once.
PORTION = 1_000
#: The next batch is evaluated while the store writes one.
WRITES_MAX = 2


class ElectionQueue:
    """The queue of one controller."""

    def __init__(self, context: BrokerContext, writes: FencedWrites) -> None:
        self._context = context
        self._writes = writes
        #: Partitions in order; True also elects the preferred leader if it can lead.
        self._open: dict[TopicPartition, bool] = {}
        self._under_way = 0
        #: Number of the election of this controller: writes of an earlier one are ignored.
        self._election = 0
        self._waits: list[Callable[[], None]] = []
        self._timer: DelayedOperation | None = None
        #: Elections since the start that changed a leader, and those that may lose records.
        self.elections = self.unclean_elections = 0

    @property
    def idle(self) -> bool:
        """Whether the queue is empty and nothing is being written."""
        return not self._open and not self._under_way

    def add(self, partitions: Iterable[TopicPartition], *, preferred: bool = False) -> None:
        """Adds partitions; each is in the queue once."""
        for partition in partitions:
            self._open[partition] = preferred or self._open.get(partition, False)

    def when_idle(self, act: Callable[[], None]) -> None:
        """Calls back when everything in the queue by now is done."""
        self._waits.append(act)

    def clear(self) -> None:
        """Another broker may be the controller: clears the queue."""
        self._open, self._waits = {}, []
        self._under_way = 0
        self._election += 1

    def go_on(self) -> None:
        """Evaluates partitions, as fast as the store writes."""
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
        """Many partitions needed no change: other events come first."""
        if self._timer is None or self._timer.done:
            self._timer = self._context.delayed.timer("election queue", self.go_on, self._context.now_ms)

    def _portion(self) -> tuple[dict[TopicPartition, bool], list[Op]]:
        decided: dict[TopicPartition, bool] = {}
        ops: list[Op] = []
        size = 0
        options: dict[str, TopicOptions] = {}
        for partition in list(self._open)[:PORTION]:
            if partition.topic not in options:
                options[partition.topic] = self._context.topic_options(partition.topic)
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
        image = self._context.image
        topic = image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.replicas or topic.name in image.deleting:
            return []
        if partition.partition not in topic.states:
            return births(self._context, topic, partition.partition)
        state = election.election(image, topic, partition.partition, options=options)
        if state is None and preferred:
            state = election.preferred(image, topic, partition.partition, options=options)
        if state is None:
            return []
        self._log_election(partition, topic.states[partition.partition], state)
        return [change(topic, partition.partition, state)]

    def _log_election(self, partition: TopicPartition, before: layout.PartitionState, after: layout.PartitionState) -> None:
        if after.leader == before.leader:
            return
        log, isr = self._context.log, list(after.isr)
        self.elections += after.leader != NO_LEADER
        self.unclean_elections += after.recovering
        if after.leader == NO_LEADER:
            log.many(CONTROLLER, "no replica can lead ", partition, level=LogLevel.WARNING, leader=before.leader, isr=isr)
        else:
            log.many(CONTROLLER, f"elects broker {after.leader} as leader of ", partition, before=before.leader, isr=isr)
        what = "no replica can lead" if after.leader == NO_LEADER else "leader elected"
        fields = {"leader": after.leader, "before": before.leader, "epoch": after.leader_epoch, "isr": isr, "unclean": after.recovering}
        self._context.timeline.note("partition", str(partition), what, **fields)

    def wants(self, partition: TopicPartition) -> bool:
        """Whether a partition with a state and replicas needs a change."""
        topic = self._context.image.topics.get(partition.topic)
        if topic is None or partition.partition not in topic.states or partition.partition not in topic.replicas:
            return False
        options = self._context.topic_options(topic.name)
        return election.election(self._context.image, topic, partition.partition, options=options) is not None

    def _write(self, looked: dict[TopicPartition, bool], ops: list[Op]) -> None:
        self._under_way += 1
        election = self._election

        def answered(result: StoreResult) -> None:
            if election != self._election:
                return
            self._under_way -= 1
            if result.error is None:
                self.go_on()
            elif result.error in ("unavailable", "session"):
                self._look_again(looked)
                self._writes.retry = True
            elif result.failed_op >= 0:
                # The image has the conflicting change by now.
                self._look_again(looked)
                self._make_way(ops[result.failed_op], result)

        self._writes.write(ops, answered)

    def _look_again(self, looked: dict[TopicPartition, bool]) -> None:
        """Nothing was written: queues the partitions again."""
        for partition, preferred in looked.items():
            self.add((partition,), preferred=preferred)

    def _make_way(self, failed: Op, result: StoreResult) -> None:
        """Tools create a topic's node alone, or a partition's node without a state: removes such nodes."""
        if failed.kind == "create" and result.error == "missing":
            way = Op("create", failed.path.rpartition("/")[0])
        elif failed.kind == "create" and result.error == "exists":
            # The store refuses if the node has a state: the image shows that by now.
            way = Op("delete", failed.path)
        else:
            self.go_on()
            return
        self._writes.write((way,), lambda result: self.go_on())


def change(topic: Topic, number: int, state: layout.PartitionState) -> Op:
    """Writes a new state over the one in the image."""
    path = layout.partition_state(topic.name, number)
    return Op("set", path, layout.encode_partition_state(state), version=topic.versions[number])


def births(context: BrokerContext, topic: Topic, number: int) -> list[Op]:
    """Operations for a partition's first state; none while no replica is alive."""
    state = election.first_state(context.image, topic.replicas[number])
    if state is None:
        return []
    path = layout.partition_state(topic.name, number)
    return [Op("create", layout.partition(topic.name, number)), Op("create", path, layout.encode_partition_state(state))]
