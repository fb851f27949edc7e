"""Controlled shutdown: a broker that is to stop first hands over what others can take.

::

    StopAsked ──▶ drained ──▶ marked: its registration says that it leaves ──▶ nothing left to hand over, or patience over ──▶ may stop
                                 │ everybody hears it from the store
                                 ├─▶ controller: others of their ISRs lead its partitions, and it leaves each ISR that has another member
                                 └─▶ leaders, controller: it is not taken back into an ISR

Draining comes first, for those who produce with acks=1 or 0: what they were promised is on this broker alone until followers have fetched
it. So nothing more is taken from them for the partitions that go, and the broker waits until all that was written by then is committed, a
moment in most cases and DRAIN_MS at most. Whoever produces with acks=all goes on meanwhile.

The mark stands in the store, so whoever becomes controller meanwhile goes on, and it goes with the registration. A broker waits for a
partition as long as another live replica that stays could take it, be it that this one has to catch up first; when it is alone, or the
others leave too, or their log directories failed, it does not wait. Patience is controlled.shutdown.max.retries times
controlled.shutdown.retry.backoff.ms, in which the mark is written again as often, in case the store did not take it. After that, or while
the store is not heard, the broker stops as one that dies would, but for its last answers and clean logs: nothing that was acknowledged with
acks=all depends on the handing over.

Difference from Kafka with ZooKeeper: the broker asks everybody through the store rather than the controller by ControlledShutdown (key 7);
it is the mark that Kafka's own quorum keeps with a registration. Source: KIP-841, KIP-631; KAFKA-20554 for draining.
"""

from typing import TYPE_CHECKING

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.delayed import Parked
from ottla.broker.metadata.image import Change
from ottla.broker.replica.leader import Leader

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: The longest time for which records promised with acks=1 are waited for; a follower that is in sync needs a small part of it.
DRAIN_MS = SECOND_MS


class Leaving:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Set once this broker is to stop: its registration says so, also one that it makes from now on.
        self.begun = False
        #: Whether it may stop now; stays so.
        self.over = False
        #: Partitions that another broker can take, and has not taken yet.
        self._held: dict[TopicPartition, None] = {}
        self._tries = 0

    def begin(self) -> None:
        """The broker is asked to stop."""
        if self.begun:
            return
        self.begun = True
        if not self._node.options.controlled_shutdown_enable:
            self.over = True
            return
        self._look_at_all()
        self._drain()

    def refuses(self, leader: Leader, acks: int) -> bool:
        """Whether what its producer would call written once this broker has it comes too late: another member of the ISR takes over."""
        return self.begun and acks >= 0 and leader.partition in self._held and len(leader.insync.isr) > 1

    def _drain(self) -> None:
        """Wait until what is written now is committed."""
        leaders = self._node.partitions.leaders
        ends = [(leader, leader.log.end_offset) for partition in self._held if (leader := leaders.get(partition)) is not None]

        def drained() -> bool:
            while ends:
                leader, end_offset = ends[-1]
                if leader.high_watermark < end_offset and leaders.get(leader.partition) is leader:
                    return False
                ends.pop()
            return True

        if drained():
            self._try()
        else:
            waits = Parked([leader.partition for leader, _ in ends], drained, lambda expired: self._try())
            self._node.purgatory.park(waits, self._node.now_ms + DRAIN_MS)

    def changed(self, change: Change) -> None:
        """The image took in a change of the store."""
        if not self.begun or self.over:
            return
        match change:
            case ("partition", TopicPartition() as partition):
                if self._can_hand_over(partition):
                    self._held[partition] = None
                else:
                    self._held.pop(partition, None)
            case ("broker", _):
                self._look_at_all()
            case ("topic", _):
                self._held = {partition: None for partition in self._held if self._can_hand_over(partition)}
        self._look_whether_over()

    def _try(self) -> None:
        """Write the mark down, and again after a while."""
        node = self._node
        self._look_whether_over()
        if self.over or node.stopping:
            return
        if self._tries >= node.options.controlled_shutdown_max_retries:
            self.over = True
            return
        self._tries += 1
        self._mark()
        backoff = Parked((), lambda: False, lambda expired: self._try())
        node.purgatory.park(backoff, node.now_ms + node.options.controlled_shutdown_retry_backoff_ms)

    def _mark(self) -> None:
        """Whether it was written is heard from the store."""
        ops = self._node.standing.redescribed()
        if ops and not self.over:
            self._node.submit(ops, lambda result: self._mark() if result.error == "version" else None)

    def _look_at_all(self) -> None:
        self._held = {
            partition: None
            for topic in self._node.image.topics.values()
            for number in topic.states
            if self._can_hand_over(partition := TopicPartition(topic.name, number))
        }

    def _look_whether_over(self) -> None:
        standing = self._node.standing
        if not self._held or not standing.connected or standing.epoch is None:
            self.over = True

    def _can_hand_over(self, partition: TopicPartition) -> bool:
        """Whether this broker counts in a partition, and another one could go on without it."""
        image, me = self._node.image, self._node.broker_id
        state = image.state(partition)
        if state is None or not image.has(*partition) or (state.leader != me and me not in state.isr) or partition.topic in image.deleting:
            return False
        others = [
            image.brokers.get(BrokerId(broker)) for broker in image.topics[partition.topic].replicas[partition.partition] if broker != me
        ]
        return any(other is not None and not other.leaving and partition not in other.offline for other in others)
