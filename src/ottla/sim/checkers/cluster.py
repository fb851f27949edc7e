"""Invariants of a cluster, one small class each. They see every broker and the store; ``problems`` must stay empty.

What clients observe of a cluster is checked by the checkers of single logs (``checks.py``), one set per topic.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from ottla.base.ids import TopicPartition
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.records.batch import headers
from ottla.store.layout import PartitionState

PROBLEMS_MAX = 3
#: More leader epochs than any history should need.
EPOCHS_MAX = 200


class Cluster(Protocol):
    """The present state of the cluster."""

    def state(self, partition: TopicPartition) -> PartitionState | None:
        """The state in the store."""
        ...

    def registration(self, broker: int) -> int | None:
        """The broker epoch in the store, if it belongs to the running process; a former registration may remain for a while."""
        ...

    def replica(self, broker: int, partition: TopicPartition) -> Leader | Follower | None:
        """None while the broker is down or does not have the partition."""
        ...

    def held_at_end(self, broker: int, registration: int, partition: TopicPartition) -> int | None:
        """Offset up to which a replica counted when the process with this broker epoch ended; None if unknown, or if it has not ended."""
        ...

    def is_rotten(self, broker: int, partition: TopicPartition) -> bool:
        """Whether bits of the log were flipped on the broker's disk."""
        ...


class ClusterChecker:
    """Base of the checkers: ignores everything."""

    def __init__(self, cluster: Cluster) -> None:
        self.problems: list[str] = []
        self.cluster = cluster

    def led(self, broker: int, leader: Leader) -> None:
        """A broker becomes leader, or continues under another epoch."""

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        """The high watermark of a replica changed; a new replica starts from 0."""

    def wrote(self, broker: int, controller_epoch: int) -> None:
        """A broker wrote what only the controller may write while the store had this controller epoch; or it began the epoch."""

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        """The store has a new state of a partition."""

    def unheard(self, broker: int, leads: int, *, controls: bool) -> None:
        """A broker took a step while it knew that its session is not connected; it leads this many partitions."""

    def gone(self, topic: str) -> None:
        """A topic was deleted; a new one of its name has a new history."""

    def complain(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class OneLeaderPerEpoch(ClusterChecker):
    """No two brokers lead a partition under the same leader epoch."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._led: dict[tuple[TopicPartition, int], int] = {}

    def leader_of(self, partition: TopicPartition, epoch: int) -> int | None:
        """The leader of an epoch; None if there was none."""
        return self._led.get((partition, epoch))

    def led(self, broker: int, leader: Leader) -> None:
        first = self._led.setdefault((leader.partition, leader.epoch), broker)
        if first != broker:
            self.complain(f"{leader.partition} is led by {first} and {broker} in epoch {leader.epoch}")

    def gone(self, topic: str) -> None:
        self._led = {(partition, epoch): broker for (partition, epoch), broker in self._led.items() if partition.topic != topic}


class EpochsRise(ClusterChecker):
    """A leader epoch in the store never decreases, increases with each new leader, and the leader is in the ISR; elections end.

    Raises: AssertionError if they do not end.
    """

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        if after.leader >= 0 and after.leader not in after.isr:
            self.complain(f"{partition} is to be led by {after.leader}, which is not in its ISR {after.isr}")
        if before is None:
            return
        changed = before.leader != after.leader
        if after.leader_epoch > EPOCHS_MAX:
            # For example, elected brokers do not lead; then the history would never end.
            raise AssertionError(f"elections of {partition} do not end: it has the state {after}")
        if after.leader_epoch < before.leader_epoch + changed:
            self.complain(
                f"{partition} goes from leader {before.leader} of epoch {before.leader_epoch} to {after.leader} of {after.leader_epoch}"
            )


class OneControllerPerEpoch(ClusterChecker):
    """In each controller epoch at most one broker writes the controller's nodes: the one that began the epoch."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._writer: dict[int, int] = {}

    def wrote(self, broker: int, controller_epoch: int) -> None:
        first = self._writer.setdefault(controller_epoch, broker)
        if first != broker:
            self.complain(f"in controller epoch {controller_epoch} broker {first} wrote, and {broker}")


class MarksOnlyRise(ClusterChecker):
    """The high watermark of a leader never decreases while it leads, and is never beyond the log end."""

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        mark = replica.high_watermark
        if isinstance(replica, Leader) and mark < before:
            self.complain(f"the high watermark of {replica.partition} fell from {before} to {mark} at {broker}")
        if mark > replica.log.end_offset:
            self.complain(f"the high watermark of {replica.partition} is {mark} at {broker}, whose log ends at {replica.log.end_offset}")


class CommittedIsSpread(ClusterChecker):
    """Committed records are on the disks of min.insync.replicas brokers, including brokers that are down now.

    A process that has ended counts with what it had on disk at its end, as long as the ISR names its registration: that is what the leader
    knows of it. The disk may be lost meanwhile, and the leader learns that only from the end of the session or the next registration.
    """

    def moved(self, broker: int, replica: Leader | Follower, before: int) -> None:
        state = self.cluster.state(replica.partition) if isinstance(replica, Leader) else None
        if state is None or state.leader_epoch != replica.epoch or before == 0:
            return
        held = [self._holds(other, replica, state) for other in replica.replicas]  # type: ignore[union-attr]
        needed = min(replica.options.min_insync_replicas, len(held))
        if sum(held) < needed:
            self.complain(f"{replica.partition} is committed up to {replica.high_watermark}, which {sum(held)} of {needed} hold")

    def _holds(self, broker: int, replica: Leader | Follower, state: PartitionState) -> bool:
        copy = self.cluster.replica(broker, replica.partition)
        if copy is not None and held_by(copy) >= replica.high_watermark:
            return True
        ended = self.cluster.held_at_end(broker, state.registration_of(broker), replica.partition)
        return copy is None if ended is None else ended >= replica.high_watermark


class NobodyLeadsUnheard(ClusterChecker):
    """A broker that knows that its session is not connected leads nothing and is not the controller."""

    def unheard(self, broker: int, leads: int, *, controls: bool) -> None:
        if leads or controls:
            self.complain(f"broker {broker} leads {leads} partitions{' and the cluster' if controls else ''} without a session")


def held_by(replica: Leader | Follower) -> int:
    """Offset up to which a replica counts: on disk, or, with ``write.caching``, in the page cache."""
    return replica.log.end_offset if replica.caching else replica.log.recovery_point


class IsrHoldsCommitted(ClusterChecker):
    """Every eligible replica has all committed records on disk: each live member of the ISR that was alive since it was added. With
    ``write.caching`` the page cache is enough.
    """

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


class BatchKey(NamedTuple):
    """Identifies a batch within its partition."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


class CopiesAgree(ClusterChecker):
    """Below its high watermark each replica has the same batches with the same epochs. A new leader has all batches that were ever below
    one, unless its epoch is outdated: a broker that was paused may learn of an epoch after another one followed, and commits nothing in it.

    The first replica whose high watermark passes a batch defines it. Each replica is read once, as its high watermark rises. Compacted
    topics are excluded, because each broker compacts its own replica.
    """

    def __init__(self, cluster: Cluster, follows: Callable[[str], bool]) -> None:
        """``follows``: whether the batches of a topic never change."""
        super().__init__(cluster)
        self._follows = follows
        #: Committed batches of each partition by base offset, and the offset up to which they are known.
        self._known: dict[TopicPartition, dict[int, BatchKey]] = {}
        self._upto: dict[TopicPartition, int] = {}
        #: By broker and partition: the log that was read, its truncation count, and the offset up to which it was read.
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

    def _batches(self, replica: Leader | Follower, position: int, upto: int) -> Iterator[BatchKey]:
        while position < upto:
            data = replica.log.read(position, upto=upto)
            if not data:
                return
            for _, header in headers(data):
                if header.last_offset >= position:
                    yield BatchKey(header.base_offset, header.last_offset, header.leader_epoch, header.crc)
                    position = header.last_offset + 1


class DeletedStaysDeleted(ClusterChecker):
    """No leader has records below the low watermark of an acknowledged DeleteRecords, except after an unclean election, or if it was an
    eligible replica outside of the ISR then and has not joined the ISR since.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        self._low: dict[TopicPartition, int] = {}
        #: Eligible replicas outside of the ISR at an acknowledged deletion.
        self._missed: dict[TopicPartition, set[int]] = {}
        #: Number of acknowledged deletions.
        self.count = 0

    def acknowledged(self, partition: TopicPartition, low_watermark: int) -> None:
        """A deletion was acknowledged with this low watermark."""
        self.count += 1
        self._low[partition] = max(self._low.get(partition, 0), low_watermark)
        state = self.cluster.state(partition)
        if state is not None:
            self._missed.setdefault(partition, set()).update(state.elr)

    def led(self, broker: int, leader: Leader) -> None:
        state, low = self.cluster.state(leader.partition), self._low.get(leader.partition, 0)
        if leader.log.start_offset >= low or (state is not None and state.leader_epoch > leader.epoch):
            return
        if broker in self._missed.get(leader.partition, ()):
            # The others follow it, and the deletion is to be repeated.
            del self._low[leader.partition]
            return
        self.complain(
            f"{broker} leads {leader.partition} in epoch {leader.epoch} from {leader.log.start_offset} on; {low} records were deleted"
        )

    def state_written(self, partition: TopicPartition, before: PartitionState | None, after: PartitionState) -> None:
        if after.recovering:
            self._low.pop(partition, None)
        if before is not None and before.leader == after.leader:
            # A leader's follower joins the ISR with the leader's log start.
            self._missed.get(partition, set()).difference_update(set(after.isr) - {after.leader})

    def gone(self, topic: str) -> None:
        self._low = {partition: low for partition, low in self._low.items() if partition.topic != topic}
        self._missed = {partition: missed for partition, missed in self._missed.items() if partition.topic != topic}


class LatestNeverFalls:
    """The end offset that a client gets never decreases, as long as it sends the leader epoch that it knows; and only the leader of that
    epoch answers.
    """

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._highest: dict[TopicPartition, int] = {}

    def told(self, partition: TopicPartition, offset: int, *, asked_at: int) -> None:
        """``asked_at``: the end offset that the client knew when it asked."""
        if offset < asked_at and len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"the end of {partition} fell from {asked_at} to {offset}")
        self._highest[partition] = max(self._highest.get(partition, 0), offset)

    def wrong(self, partition: TopicPartition, epoch: int, broker: int) -> None:
        """A broker answered a request for the leader of an epoch in which it did not lead."""
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(f"broker {broker}, which does not lead {partition} in epoch {epoch}, told its end")

    def highest(self, partition: TopicPartition) -> int:
        return self._highest.get(partition, 0)
