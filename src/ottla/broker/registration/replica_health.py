"""Replicas on this broker that must not lead: their state in the broker's registration, and how it ends.

::

    log directory failed, no space     ──▶ offline     until there is a log again
    disk full                          ──▶ full        until there is space again
    records missing: log gone, truncated──▶ impaired    until no broker counts on this replica, or it was elected nevertheless
    by a crash of the medium, or damaged

All brokers receive a registration at once, the controller's writes are conditional on it, and it is deleted with the broker: so a
controller needs no memory of its own, and a new one knows everything. A failed log directory is also reported as in Kafka, by a node below
``/log_dir_event_notification``. If the store does not accept this within log.dir.failure.timeout.ms, the broker stops.

A full disk breaks no guarantee: its replicas stay in their ISRs while the reserve lasts, and serve consumers. But a leader there refuses
producers. So another ISR member with space leads, if there is one.

An impaired replica in the ISR would, as leader, make others truncate the records that it lacks. It waits until no state names it in the
ISR or as eligible; then it drops damaged records and copies them from its leader. It is healthy again when it has them. If no other
replica has the records, an unclean election is the way out: its state says ``recovering``, and the replica may lead.
Source: KIP-112, KIP-858 (log directories), KIP-966.
"""

from collections.abc import Sequence

from ottla.base.ids import BrokerId, TopicPartition
from ottla.base.log_levels import STORAGE
from ottla.base.ports import Op, StoreResult
from ottla.base.readable import numbers_by_topic
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.controller.election import is_fit, is_sound
from ottla.broker.delayed import DelayedOperation
from ottla.broker.registration.registration import ByTopic, Registration
from ottla.broker.replica.fetchers import Fetchers
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas
from ottla.log.damage import Damage
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.segment import Segment
from ottla.store import layout
from ottla.store.layout import PartitionState

#: Damaged places of a segment that are logged one by one.
WARNED_MAX = 5
HEALS = "it leaves the ISR, drops the log from there on and copies it from another replica"
KEEPS = (
    "no other in-sync replica has these records, so nothing is deleted; reads of these offsets are answered CORRUPT_MESSAGE, "
    "others are served; ottla doctor says what to do"
)
#: Offline, impaired and full replicas, as in the registration.
Told = tuple[frozenset[TopicPartition], frozenset[TopicPartition], frozenset[TopicPartition]]


class ReplicaHealth:
    """Health of the replicas on this broker."""

    def __init__(self, context: BrokerContext, registration: Registration, replicas: Replicas, fetchers: Fetchers) -> None:
        self._context = context
        self._registration = registration
        registration.replicas = self.description
        self._replicas = replicas
        self._fetchers = fetchers
        #: Impaired replicas with the offset of the first damaged batch; None if records are missing without damage.
        self.impaired: dict[TopicPartition, int | None] = {}
        #: Impaired replicas that copy truncated records again: the former log end and the leader epoch. In that epoch the leader may count
        #: on an offset that the replica reported before. So it stays impaired until it has that again, or another epoch begins.
        self._copying: dict[TopicPartition, tuple[int, int]] = {}
        #: The state in the registration, as confirmed by the store.
        self._told: Told = (frozenset(), frozenset(), frozenset())
        self._telling = False
        #: The store did not answer; the next tick retries.
        self._retry = False
        #: Number of the next notification.
        self._sequence = 0
        self._bound: DelayedOperation | None = None

    # Reporting.

    def _now(self) -> Told:
        return frozenset(self._replicas.offline), frozenset(self.impaired), self._full()

    def _full(self) -> frozenset[TopicPartition]:
        """Empty for a broker that is alone: no other broker can lead."""
        context = self._context
        full = {root for root, space in context.space.items() if space.full} if len(context.image.brokers) > 1 else set()
        return frozenset(partition for directory in context.directories if directory.root in full for partition in directory.logs)

    def description(self) -> tuple[ByTopic, ByTopic, ByTopic]:
        """Offline, impaired and full replicas by topic, for a registration."""
        offline, impaired, full = self._now()
        return _by_topic(offline), _by_topic(impaired), _by_topic(full)

    def registering(self) -> Told:
        """The state in the registration being created; passed to ``registered``."""
        return self._now()

    def registered(self, told: Told) -> None:
        """The registration was created."""
        self._told = told
        self.changed()

    def changed(self) -> None:
        """Reports a change, if it is not reported yet."""
        context, now = self._context, self._now()
        if now == self._told or not context.started or context.stopping:
            return
        if now[0] - self._told[0] and self._bound is None:
            self._bound = DelayedOperation("report of failed log directories", self._not_told)
            context.delayed.delay(self._bound, context.now_ms + context.options.log_dir_failure_timeout_ms)
        ops = [*self._registration.updated()]
        if self._telling or not ops:
            return
        self._telling = True
        if now[0] - self._told[0]:
            ops.append(Op("create", layout.log_dir_event(self._sequence), layout.encode_log_dir_event(context.broker_id)))
        context.submit(ops, lambda result: self._answered(result, now))

    def tick(self) -> None:
        """Retries what the store did not answer, and checks which replicas have copied their records."""
        for partition in list(self._copying):
            self._look_at_copy(partition)
        if self._retry:
            self._retry = False
            self.changed()

    def _answered(self, result: StoreResult, told: Told) -> None:
        self._telling = False
        if result.error is None:
            self._told = told
            self._sequence += 1
            if self._bound is not None and not told[0] - self._now()[0]:
                self._context.delayed.cancel(self._bound)
                self._bound = None
            for partition in list(self.impaired):
                self.state_changed(partition, self._context.image.state(partition))
            self.changed()
        elif result.error in ("exists", "version"):
            # The number was taken, or the registration has newer content; the image shows it by now.
            self._sequence += result.error == "exists"
            self.changed()
        else:
            self._retry = True

    def _not_told(self, expired: bool) -> None:
        self._bound = None
        context = self._context
        if expired and self._now()[0] - self._told[0] and context.epoch is not None and context.connected and not context.stopping:
            bound = f"within {context.options.log_dir_failure_timeout_ms} ms (log.dir.failure.timeout.ms)"
            context.effects.append(effects.Halt(reason=f"the controller could not be told {bound} of a log directory that failed"))

    # Missing records.

    def found(self, directory: LogDirectory, log: Log, replicas: int) -> None:
        """A log was opened or created that may lack records. If no other replica can have them, the log is accepted."""
        partition = log.partition
        if log.missing_below is None or partition in self.impaired:
            return
        if replicas > 1:
            self.impaired[partition] = None
            self._context.log.warn(
                STORAGE,
                f"{partition} of broker {self._context.broker_id} lacks records that it had: it does not lead before it has "
                "copied them from another replica; without one, unclean.leader.election.enable=true abandons them",
            )
            self.changed()
        else:
            self._mend(directory, log)

    def may_lead(self, partition: TopicPartition, state: PartitionState) -> bool:
        """Whether this state makes a replica that may be impaired a leader."""
        return state.recovering or partition not in self.impaired

    def leads(self, leader: Leader) -> None:
        """The replica was elected in spite of missing records."""
        if leader.partition in self.impaired:
            del self.impaired[leader.partition]
            self._copying.pop(leader.partition, None)
            self._mend(leader.directory, leader.log)
            self.changed()
        self.weigh(leader)

    # Damage.

    def scrubbed(self, replica: Leader | Follower, segment: Segment, damages: Sequence[Damage]) -> None:
        """A scrub found this damage in a segment. Raises: OSError."""
        log, former = replica.log, segment.damages
        known = set(former)
        news = [one for one in damages if one not in known]
        if not news and len(damages) == len(known):
            return
        log.note_damage(segment.base_offset, damages)
        self._replicas.dirty[replica.partition] = replica
        self._context.delayed.poke(replica.partition)
        where = f"{replica.partition} in {replica.directory.root}"
        if not damages:
            self._context.log.warn(STORAGE, f"{where}: segment {segment.base_offset} is intact again")
        heals = self.weigh(replica)
        for one in news[:WARNED_MAX]:
            done = HEALS if heals else KEEPS
            self._context.log.warn(STORAGE, f"{where} is damaged: {one}; {done}")
        if len(news) > WARNED_MAX:
            self._context.log.warn(STORAGE, f"{where} has {len(news) - WARNED_MAX} more damaged places in this segment")

    def weigh(self, replica: Leader | Follower) -> bool:
        """Whether known damage of a log is repaired from another replica; starts that if it is possible now."""
        damages = [one for one in replica.log.damages if one.end > replica.log.start_offset]
        if not damages:
            return False
        if replica.partition in self.impaired:
            return True
        if not self._can_copy(replica):
            return False
        self._impair(replica, max(min(one.first for one in damages), replica.log.start_offset))
        return True

    def damaged(self, replica: Leader | Follower, offset: int) -> None:
        """The batch at this offset is damaged."""
        if replica.partition not in self.impaired and self._can_copy(replica):
            where = f"{replica.partition} in {replica.directory.root} is damaged at offset {offset}"
            self._context.log.warn(STORAGE, f"{where}; {HEALS}")
            self._impair(replica, offset)

    def _impair(self, replica: Leader | Follower, offset: int) -> None:
        self.impaired[replica.partition] = offset
        with self._replicas.guarded(replica.directory):
            replica.log.note_missing(replica.log.end_offset)
            self._replicas.dirty[replica.partition] = replica
        if isinstance(replica, Follower):
            replica.waits = True
        self.changed()

    def _can_copy(self, replica: Leader | Follower) -> bool:
        """Whether another replica has the damaged records: for a leader one in sync, for a follower its leader."""
        if isinstance(replica, Leader):
            return self._others_in_sync(replica.partition)
        return replica.leader not in (-1, self._context.broker_id) and BrokerId(replica.leader) in self._context.image.brokers

    def state_of(self, partition: TopicPartition) -> str:
        """The defect of a replica, for operators; empty if none is known."""
        replica = self._replicas.replica(partition)
        if replica is None:
            return ""
        said = [str(one) for one in replica.log.damages[:WARNED_MAX]]
        if len(replica.log.damages) > WARNED_MAX:
            said.append(f"{len(replica.log.damages) - WARNED_MAX} more damaged places")
        if partition in self.impaired:
            said.append(HEALS if said or self.impaired[partition] is not None else "records are missing that this replica had")
        elif said:
            said.append(KEEPS)
        if isinstance(replica, Follower) and replica.refused:
            said.append(f"it cannot copy from broker {replica.leader}: {replica.refused}")
        return "; ".join(said)

    def _others_in_sync(self, partition: TopicPartition) -> bool:
        image, me = self._context.image, self._context.broker_id
        state = image.state(partition)
        return state is not None and any(
            broker != me and is_sound(image, state, broker) and is_fit(image, partition, state, broker) for broker in state.isr
        )

    def state_changed(self, partition: TopicPartition, state: PartitionState | None) -> None:
        """A state was written, or the store knows that a replica is impaired: once no broker counts on it, it starts to copy."""
        context = self._context
        replica = self._replicas.replica(partition)
        if partition in self._copying:
            self._look_at_copy(partition)
            return
        if partition not in self.impaired:
            if replica is not None:
                self.weigh(replica)
            return
        if isinstance(replica, Follower) and self.impaired[partition] is not None:
            replica.waits = True
        told = partition in self._told[1]
        if state is None or not told or state.names(BrokerId(context.broker_id)):
            return
        offset = self.impaired[partition]
        if not isinstance(replica, Follower):
            del self.impaired[partition]
        elif offset is None:
            self._whole(replica)
        else:
            self._copying[partition] = replica.log.end_offset, replica.epoch
            self.impaired[partition] = None
            with self._replicas.guarded(replica.directory):
                self._replicas.dropped(replica, replica.cut_damage(offset, wall_ms=context.wall_ms))
        if isinstance(replica, Follower):
            replica.waits = False
            self._fetchers.flushed(partition)
        self.changed()

    def _look_at_copy(self, partition: TopicPartition) -> None:
        """Whether a truncated replica has its records again."""
        end_offset, epoch = self._copying[partition]
        replica = self._replicas.replica(partition)
        same = isinstance(replica, Follower) and replica.epoch == epoch
        if same and replica is not None and (not replica.settled or replica.log.end_offset < end_offset):
            return
        if isinstance(replica, Follower):
            self._whole(replica)
        self.changed()

    def _whole(self, replica: Follower) -> None:
        """The replica is complete, or no broker counts on what it lacks."""
        self.impaired.pop(replica.partition, None)
        self._copying.pop(replica.partition, None)
        self._mend(replica.directory, replica.log)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is no longer on this broker."""
        self._copying.pop(partition, None)
        if self.impaired.pop(partition, 0) != 0:
            self.changed()

    def _mend(self, directory: LogDirectory, log: Log) -> None:
        with self._replicas.guarded(directory):
            log.clear_missing()


def _by_topic(partitions: frozenset[TopicPartition]) -> dict[str, tuple[int, ...]]:
    return {topic: tuple(numbers) for topic, numbers in numbers_by_topic(partitions).items()}
