"""Replicas here that must not lead: what this broker's registration says of them, and when it is taken back.

::

    log directory failed, no room      ──▶ offline     until there is a log again
    disk full                          ──▶ full        until there is room again
    records missing: log gone, cut     ──▶ impaired    until nobody counts on this replica, or it was elected all the same
    back by a crash of the medium,
    or damaged where it lies

The registration is the one place that everybody hears of at once, that the controller's decisions are checked against, and that goes with
the broker: no controller has to remember anything, and a new one knows all. A failed log directory is also told as Kafka tells it, by a
node below ``/log_dir_event_notification``. Should the store not take it within log.dir.failure.timeout.ms while others still believe in
this broker, the broker stops.

A full disk breaks no promise: its replicas stay in their ISRs as long as the reserve lasts, and serve readers. But a leader there takes
nothing from producers. So another member of the ISR leads that has room, if there is one.

An impaired replica of the ISR would, as leader, have others cut off what it lacks. It waits until a state names it no more, neither in
the ISR nor as eligible; then it drops what is damaged and copies it from its leader. Where nobody else has the records, an unclean election
is the way out: its state says ``recovering``, and that the replica may lead. Source: KIP-112, KIP-858 (log directories), KIP-966.
"""

from typing import TYPE_CHECKING

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.ports import Op, StoreResult
from ottla.broker import effects
from ottla.broker.controller.election import is_fit, is_sound
from ottla.broker.follower import Follower
from ottla.broker.leader import Leader
from ottla.broker.purgatory import Parked
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.store import layout
from ottla.store.layout import PartitionState

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: What the registration says: offline, impaired and full replicas.
Told = tuple[frozenset[TopicPartition], frozenset[TopicPartition], frozenset[TopicPartition]]
ByTopic = dict[str, tuple[int, ...]]


class Unfit:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        #: Impaired replicas, with the offset of the first damaged batch; None where it is only that records are missing.
        self.impaired: dict[TopicPartition, int | None] = {}
        #: As our registration says, as far as the store has confirmed it.
        self._told: Told = (frozenset(), frozenset(), frozenset())
        self._telling = False
        #: The store did not answer; the next tick tries again.
        self._retry = False
        #: Number of the next notification, as far as it is free.
        self._sequence = 0
        self._bound: Parked | None = None
        #: Damaged logs that nobody else can lead.
        self._alone: set[TopicPartition] = set()

    # What there is to tell.

    def _now(self) -> Told:
        return frozenset(self._node.partitions.offline), frozenset(self.impaired), self._full()

    def _full(self) -> frozenset[TopicPartition]:
        """A broker alone has nobody to tell."""
        node = self._node
        full = {root for root, space in node.space.items() if space.full} if len(node.image.brokers) > 1 else set()
        return frozenset(partition for directory in node.directories if directory.root in full for partition in directory.logs)

    def description(self) -> tuple[ByTopic, ByTopic, ByTopic]:
        """Offline, impaired and full replicas by topic, for a registration."""
        offline, impaired, full = self._now()
        return _by_topic(offline), _by_topic(impaired), _by_topic(full)

    def registering(self) -> Told:
        """What the registration that is being made says; to be handed to ``registered``."""
        return self._now()

    def registered(self, told: Told) -> None:
        """The registration was made."""
        self._told = told
        self.changed()

    def changed(self) -> None:
        """Something may have become unfit, or fit again: tell, if it is not told yet."""
        node, now = self._node, self._now()
        if now == self._told or not node.started or node.stopping:
            return
        if now[0] - self._told[0] and self._bound is None:
            self._bound = Parked((), lambda: False, self._not_told)
            node.purgatory.park(self._bound, node.now_ms + node.options.log_dir_failure_timeout_ms)
        ops = [*node.standing.redescribed()]
        if self._telling or not ops:
            return
        self._telling = True
        if now[0] - self._told[0]:
            ops.append(Op("create", layout.log_dir_event(self._sequence), layout.encode_log_dir_event(node.broker_id)))
        node.submit(ops, lambda result: self._answered(result, now))

    def tick(self) -> None:
        """Time passed: try again what the store did not answer."""
        if self._retry:
            self._retry = False
            self.changed()

    def _answered(self, result: StoreResult, told: Told) -> None:
        self._telling = False
        if result.error is None:
            self._told = told
            self._sequence += 1
            if self._bound is not None and not told[0] - self._now()[0]:
                self._node.purgatory.cancel(self._bound)
                self._bound = None
            for partition in list(self.impaired):
                self.state_changed(partition, self._node.image.state(partition))
            self.changed()
        elif result.error in ("exists", "version"):
            # The notification's number was taken, or the registration tells something else new; the image shows it by now.
            self._sequence += result.error == "exists"
            self.changed()
        else:
            self._retry = True

    def _not_told(self, expired: bool) -> None:
        self._bound = None
        node = self._node
        if expired and self._now()[0] - self._told[0] and node.epoch is not None and node.standing.connected and not node.stopping:
            bound = f"within {node.options.log_dir_failure_timeout_ms} ms (log.dir.failure.timeout.ms)"
            node.effects.append(effects.Halt(reason=f"the controller could not be told {bound} of a log directory that failed"))

    # Records that are missing.

    def found(self, directory: LogDirectory, log: Log, replicas: int) -> None:
        """A log was opened or made that may note that records are missing. Where nobody else can have them, it is what there is."""
        partition = log.partition
        if log.missing_below is None or partition in self.impaired:
            return
        if replicas > 1:
            self.impaired[partition] = None
            self._node.effects.append(
                effects.Warn(
                    message=f"{partition} of broker {self._node.broker_id} lacks records that it had: it does not lead before it has "
                    "copied them from another replica; if there is none, unclean.leader.election.enable=true gives them up"
                )
            )
            self.changed()
        else:
            self._mend(directory, log)

    def may_lead(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether this state makes a leader of a replica that may be impaired."""
        return state.recovering or partition not in self.impaired

    def leads(self, leader: Leader) -> None:
        """Whatever its log lacks, it was elected."""
        if leader.partition in self.impaired:
            del self.impaired[leader.partition]
            self._mend(leader.directory, leader.log)
            self.changed()

    def damaged(self, replica: Leader | Follower, offset: int) -> None:
        """The batch at this offset is not what was written there."""
        node, partition = self._node, replica.partition
        if partition in self.impaired or partition in self._alone:
            return
        where = f"{partition} in {replica.directory.root} is damaged at offset {offset}"
        if isinstance(replica, Leader) and not self._others_in_sync(partition):
            self._alone.add(partition)
            node.effects.append(effects.Warn(message=f"{where}, and no other replica is in sync: readers meet the damage where it is"))
            return
        node.effects.append(effects.Warn(message=f"{where}: it leaves the ISR, and copies what is behind from another replica"))
        self.impaired[partition] = offset
        with node.partitions.guarded(replica.directory):
            replica.log.note_missing(replica.log.end_offset)
        if isinstance(replica, Follower):
            replica.waits = True
        self.changed()

    def _others_in_sync(self, partition: TopicPartition) -> bool:
        image, me = self._node.image, self._node.broker_id
        state = image.state(partition)
        return state is not None and any(
            broker != me and is_sound(image, state, broker) and is_fit(image, partition, state, broker) for broker in state.isr
        )

    def state_changed(self, partition: TopicPartition, state: PartitionState | None) -> None:
        """A state was written, or the store knows that a replica is impaired: once nobody counts on it, it can begin to copy."""
        node = self._node
        self._alone.discard(partition)
        if partition not in self.impaired:
            return
        replica = node.partitions.replica(partition)
        if isinstance(replica, Follower) and self.impaired[partition] is not None:
            replica.waits = True
        told = partition in self._told[1]
        if state is None or not told or state.names(BrokerId(node.broker_id)):
            return
        offset = self.impaired.pop(partition)
        if isinstance(replica, Follower):
            with node.partitions.guarded(replica.directory):
                removed = replica.cut_damage(offset, wall_ms=node.wall_ms) if offset is not None else ()
                replica.log.mend()
                node.partitions.dropped(replica, removed)
            replica.waits = False
            node.fetchers.flushed(partition)
        self.changed()

    def forget(self, partition: TopicPartition) -> None:
        """The partition is held here no more."""
        self._alone.discard(partition)
        if self.impaired.pop(partition, 0) != 0:
            self.changed()

    def _mend(self, directory: LogDirectory, log: Log) -> None:
        with self._node.partitions.guarded(directory):
            log.mend()


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for topic, number in sorted(partitions):
        found.setdefault(topic, []).append(number)
    return {topic: tuple(numbers) for topic, numbers in found.items()}
