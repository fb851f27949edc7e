"""Controlled shutdown: a broker that stops first transfers leadership and leaves the ISRs.

::

    StopRequested ──▶ drained ──▶ marked: the registration says that it leaves ──▶ nothing left to transfer, or timeout ──▶ may stop
                                 │ all brokers read it from the store
                                 ├─▶ controller: other ISR members lead its partitions; it leaves each ISR with another member
                                 └─▶ leaders, controller: it is not added to an ISR again

Draining protects acks=1 and acks=0: records acknowledged with them are on this broker alone until followers fetch them. So the broker
refuses such requests for partitions that another replica can take, and waits until all records written before are committed, at most
DRAIN_MS. Producers with acks=all continue.

The mark is in the store, so a new controller continues with it, and it is deleted with the registration. The broker waits for a partition
as long as another live replica that stays could lead it, even if that replica must catch up first. It does not wait if it is alone, or if
the others leave too or have failed log directories. The timeout is controlled.shutdown.max.retries times
controlled.shutdown.retry.backoff.ms; the mark is written again after each backoff in case the store did not accept it. After the timeout,
or without a store session, the broker stops as after a crash, except for its last responses and clean logs. Records acknowledged with
acks=all do not depend on the transfer.

Difference from Kafka with ZooKeeper: the mark in the store takes the place of ControlledShutdown (key 7) to the controller, as in KRaft's
registrations. Source: KIP-841, KIP-631; KAFKA-20554 for draining.
"""

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker.context import BrokerContext
from ottla.broker.delayed import DelayedOperation
from ottla.broker.metadata.image import Change
from ottla.broker.registration.registration import Registration
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas

#: Longest wait for records acknowledged with acks=1; an in-sync follower needs a small part of it.
DRAIN_MS = SECOND_MS


class ControlledShutdown:
    """State of the controlled shutdown."""

    def __init__(self, context: BrokerContext, registration: Registration, replicas: Replicas) -> None:
        self._context = context
        self._registration = registration
        self._replicas = replicas
        #: Set when the broker is to stop; its registration, also a later one, says so.
        self.begun = False
        #: Whether it may stop; never reset.
        self.over = False
        #: Partitions that another broker can take and has not taken yet.
        self._held: dict[TopicPartition, None] = {}
        self._tries = 0

    def begin(self) -> None:
        """Starts the controlled shutdown."""
        if self.begun:
            return
        self.begun = self._registration.leaving = True
        if not self._context.options.controlled_shutdown_enable:
            self.over = True
            return
        self._look_at_all()
        self._drain()

    def refuses(self, leader: Leader, acks: int) -> bool:
        """Whether a produce with these acks is refused: another ISR member takes over the partition."""
        return self.begun and acks >= 0 and leader.partition in self._held and len(leader.isr_state.isr) > 1

    def _drain(self) -> None:
        """Waits until all records written so far are committed."""
        leaders = self._replicas.leaders
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
            waits = DelayedOperation(
                "drain before shutdown", lambda expired: self._try(), keys=[leader.partition for leader, _ in ends], ready=drained
            )
            self._context.delayed.delay(waits, self._context.now_ms + DRAIN_MS)

    def changed(self, change: Change) -> None:
        """The image changed."""
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
        """Writes the mark, and again after a backoff."""
        context = self._context
        self._look_whether_over()
        if self.over or context.stopping:
            return
        if self._tries >= context.options.controlled_shutdown_max_retries:
            self.over = True
            return
        self._tries += 1
        self._mark()
        context.delayed.timer("shutdown retry", self._try, context.now_ms + context.options.controlled_shutdown_retry_backoff_ms)

    def _mark(self) -> None:
        """The image shows whether it was written."""
        ops = self._registration.updated()
        if ops and not self.over:
            self._context.submit(ops, lambda result: self._mark() if result.error == "version" else None)

    def _look_at_all(self) -> None:
        self._held = {
            partition: None
            for topic in self._context.image.topics.values()
            for number in topic.states
            if self._can_hand_over(partition := TopicPartition(topic.name, number))
        }

    def _look_whether_over(self) -> None:
        if not self._held or not self._context.connected or self._context.epoch is None:
            self.over = True

    def _can_hand_over(self, partition: TopicPartition) -> bool:
        """Whether this broker is in the ISR or leads, and another replica could continue without it."""
        image, me = self._context.image, self._context.broker_id
        state = image.state(partition)
        if state is None or not image.has(*partition) or (state.leader != me and me not in state.isr) or partition.topic in image.deleting:
            return False
        others = [
            image.brokers.get(BrokerId(broker)) for broker in image.topics[partition.topic].replicas[partition.partition] if broker != me
        ]
        return any(other is not None and not other.leaving and partition not in other.offline for other in others)
