"""What must hold inside a cluster, one small class each. They see what no user sees: every broker, and the store; ``problems`` must stay
empty.

What users see of a cluster is judged by the checkers of single logs (``checks.py``), one set for each topic.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.records.batch import headers
from ottla.store.layout import PartitionState

PROBLEMS_MAX = 3
#: Leader epochs that a history can have by right: far more than it has faults.
EPOCHS_MAX = 200


class Cluster(Protocol):
    """The cluster as it is at this moment, seen from above."""

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """As the store has it."""
        ...

    def registration(self, broker: int) -> int | None:
        """The broker epoch that the store has, if it is that of the process that runs; a former one's may be there for a while."""
        ...

    def replica(self, broker: int, partition: TopicPartition) -> Leader | Follower | None:
        """None while the broker is down, or does not hold the partition."""
        ...

    def is_rotten(self, broker: int, partition: TopicPartition) -> bool:
        """Whether bits of the log changed on the broker's disk."""
        ...


class ClusterChecker:
    """Base of the checkers: hears everything, complains about nothing."""

    def __init__(self, cluster: Cluster) -> None:
        self.problems: list[str] = []
        self.cluster = cluster

    def led(self, broker: int, leader: Leader) -> None:
        """A broker begins to lead, or goes on under another epoch."""

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        """The high watermark of a replica is not what it was; a replica that has just begun comes from 0."""

    def wrote(self, broker: int, controller_epoch: int) -> None:
        """A broker changed what only the controller may change, while the store had this controller epoch; or began the epoch."""

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        """The store has another state of a partition."""

    def unheard(self, broker: int, leads: int, *, controls: bool) -> None:
        """A broker has taken something in while it knew that its session is not heard; it leads so many partitions."""

    def gone(self, topic: str) -> None:
        """A topic was deleted; another of its name begins anew."""

    def complain(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class OneLeaderPerEpoch(ClusterChecker):
    """No two brokers ever lead a partition under the same leader epoch."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._led: dict[tuple[TopicPartition, int], int] = {}

    def leader_of(self, partition: TopicPartition, epoch: int) -> int | None:
        """Who leads, or led, in an epoch; None while nobody does."""
        return self._led.get((partition, epoch))

    def led(self, broker: int, leader: Leader) -> None:
        first = self._led.setdefault((leader.partition, leader.epoch), broker)
        if first != broker:
            self.complain(f"{leader.partition} is led by {first} and {broker} in epoch {leader.epoch}")

    def gone(self, topic: str) -> None:
        self._led = {(partition, epoch): broker for (partition, epoch), broker in self._led.items() if partition.topic != topic}


class EpochsRise(ClusterChecker):
    """In the store a leader epoch never falls, rises with each new leader, and the leader is in its ISR; elections come to an end.

    Raises: AssertionError, when they do not."""

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        if after.leader >= 0 and after.leader not in after.isr:
            self.complain(f"{partition} is to be led by {after.leader}, which is not in its ISR {after.isr}")
        if before is None:
            return
        changed = before.leader != after.leader
        if after.leader_epoch > EPOCHS_MAX:
            # Whoever is elected does not lead, for one; the history would not come to its end.
            raise AssertionError(f"elections of {partition} do not end: it has the state {after}")
        if after.leader_epoch < before.leader_epoch + changed:
            self.complain(
                f"{partition} goes from leader {before.leader} of epoch {before.leader_epoch} to {after.leader} of {after.leader_epoch}"
            )


class OneControllerPerEpoch(ClusterChecker):
    """In each controller epoch one broker at most writes what is the controller's to write: the one that began it."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._writer: dict[int, int] = {}

    def wrote(self, broker: int, controller_epoch: int) -> None:
        first = self._writer.setdefault(controller_epoch, broker)
        if first != broker:
            self.complain(f"in controller epoch {controller_epoch} broker {first} wrote, and {broker}")


class MarksOnlyRise(ClusterChecker):
    """The high watermark of a leader never falls while it leads; nobody's is beyond its own log."""

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        mark = replica.high_watermark
        if isinstance(replica, Leader) and mark < before:
            self.complain(f"the high watermark of {replica.partition} fell from {before} to {mark} at {broker}")
        if mark > replica.log.end_offset:
            self.complain(f"the high watermark of {replica.partition} is {mark} at {broker}, whose log ends at {replica.log.end_offset}")


class CommittedIsSpread(ClusterChecker):
    """What is committed is on the disks of min.insync.replicas brokers, or was on those of brokers that are down now."""

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        state = self.cluster.state(replica.partition) if isinstance(replica, Leader) else None
        if state is None or state.leader_epoch != replica.epoch or before == 0:
            return
        copies = [self.cluster.replica(other, replica.partition) for other in replica.replicas]  # type: ignore[union-attr]
        held = [copy is None or held_by(copy) >= replica.high_watermark for copy in copies]
        needed = min(replica.options.min_insync_replicas, len(copies))
        if sum(held) < needed:
            self.complain(f"{replica.partition} is committed up to {replica.high_watermark}, which {sum(held)} of {needed} hold")


class NobodyLeadsUnheard(ClusterChecker):
    """A broker that knows that its session is not heard leads nothing, and is no controller."""

    def unheard(self, broker: int, leads: int, *, controls: bool) -> None:
        if leads or controls:
            self.complain(f"broker {broker} leads {leads} partitions{' and the cluster' if controls else ''} without a session")


def held_by(replica: Leader | Follower) -> int:
    """Up to where a replica may be counted on: on disk; under ``write.caching`` the page cache is enough."""
    return replica.log.end_offset if replica.caching else replica.log.recovery_point


class IsrHoldsCommitted(ClusterChecker):
    """Whoever may be elected has all that is committed, on disk: each member of the ISR that is alive and has been since it was counted
    in. Under ``write.caching`` the page cache is enough."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._committed: dict[TopicPartition, int] = {}

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        if isinstance(replica, Leader) and replica.high_watermark > self._committed.get(replica.partition, 0):
            self._committed[replica.partition] = replica.high_watermark
            state = self.cluster.state(replica.partition)
            if state is not None and state.leader_epoch == replica.epoch:
                self._look(replica.partition, state)

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        if before is not None and after.leader >= 0 and after.isr != before.isr:
            self._look(partition, after)

    def gone(self, topic: str) -> None:
        self._committed = {partition: mark for partition, mark in self._committed.items() if partition.topic != topic}

    def _look(self, partition: TopicPartition, state: PartitionState) -> None:
        committed = self._committed.get(partition, 0)
        for broker in state.isr:
            replica = self.cluster.replica(broker, partition)
            if replica is None or self.cluster.registration(broker) != state.registration_of(broker):
                continue
            if held_by(replica) < committed:
                self.complain(f"broker {broker} is in the ISR of {partition} and has {held_by(replica)} of {committed} on disk")


class Batch(NamedTuple):
    """What tells a batch from every other one of its partition."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


class CopiesAgree(ClusterChecker):
    """Below its high watermark each replica has the same batches as any other, of the same epochs, ever; and whoever begins to lead has
    all of what was ever below one, unless that is old news: who slept hears of an epoch in which others have followed it, and can commit
    nothing in it.

    The first replica whose watermark passes a batch says what it is; each replica is read once, as its watermark rises. Not of topics
    that are compacted, where each broker does that for itself.
    """

    def __init__(self, cluster: Cluster, follows: Callable[[str], bool]) -> None:
        """``follows``: whether the batches of a topic stay as they are."""
        super().__init__(cluster)
        self._follows = follows
        #: By partition, what is committed, by base offset; and up to where.
        self._known: dict[TopicPartition, dict[int, Batch]] = {}
        self._upto: dict[TopicPartition, int] = {}
        #: By broker and partition: the log that was read, its truncations then, and up to where.
        self._read: dict[tuple[int, TopicPartition], tuple[object, int, int]] = {}

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        self._compare(broker, replica, replica.high_watermark)

    def led(self, broker: int, leader: Leader) -> None:
        state = self.cluster.state(leader.partition)
        if state is not None and state.leader_epoch > leader.epoch:
            return
        committed = self._upto.get(leader.partition, 0)
        if leader.log.end_offset < committed:
            self.complain(
                f"{broker} leads {leader.partition} in epoch {leader.epoch} with {leader.log.end_offset} of {committed} committed"
            )
        elif self._follows(leader.partition.topic):
            self._compare(broker, leader, committed)

    def gone(self, topic: str) -> None:
        for kept in (self._known, self._upto):
            for partition in [partition for partition in kept if partition.topic == topic]:
                del kept[partition]

    def _compare(self, broker: int, replica: Leader | Follower, upto: int) -> None:
        partition, log = replica.partition, replica.log
        if not self._follows(partition.topic) or self.cluster.is_rotten(broker, partition):
            if isinstance(replica, Leader):
                self._upto[partition] = max(self._upto.get(partition, 0), upto)
            return
        known = self._known.setdefault(partition, {})
        read, truncations, position = self._read.get((broker, partition), (None, 0, 0))
        if read is not log or truncations != log.truncations:
            position = 0
        position = max(position, log.start_offset)
        for batch in self._batches(replica, position, upto):
            if known.setdefault(batch.base_offset, batch) != batch:
                self.complain(f"{partition} has {known[batch.base_offset]}, and {batch} at {broker}")
            position = batch.last_offset + 1
        self._read[broker, partition] = (log, log.truncations, position)
        self._upto[partition] = max(self._upto.get(partition, 0), position)

    def _batches(self, replica: Leader | Follower, position: int, upto: int) -> Iterator[Batch]:
        while position < upto:
            data = replica.log.read(position, upto=upto)
            if not data:
                return
            for _, header in headers(data):
                if header.last_offset >= position:
                    yield Batch(header.base_offset, header.last_offset, header.leader_epoch, header.crc)
                    position = header.last_offset + 1


class LatestNeverFalls:
    """The end of a partition that a user is told never gets smaller, as long as the user says which leader epoch it has heard of; and only
    the leader of that epoch tells it."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._highest: dict[TopicPartition, int] = {}

    def told(self, partition: TopicPartition, offset: int, *, asked_at: int) -> None:
        """``asked_at``: what the user had been told when it asked."""
        if offset < asked_at and len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"the end of {partition} fell from {asked_at} to {offset}")
        self._highest[partition] = max(self._highest.get(partition, 0), offset)

    def wrong(self, partition: TopicPartition, epoch: int, broker: int) -> None:
        """A broker answered a question to the leader of an epoch in which it did not lead."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"broker {broker}, which does not lead {partition} in epoch {epoch}, told its end")

    def highest(self, partition: TopicPartition) -> int:
        return self._highest.get(partition, 0)
