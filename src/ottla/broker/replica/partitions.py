"""The partitions on this broker: opened and closed according to the image, flushed, and taken offline with their log directory.

A broker has a partition if its assignment names the broker; its log is then opened or created. The broker leads it if its state names the
broker as leader under its present registration: decisions for an earlier registration do not count, because the broker may have lost
records since. Otherwise it follows the leader, if there is one. When a topic is deleted, or an assignment no longer names the broker, the
log is removed, but only while the broker is registered: before that, the store's state may be older than the assignment that created the
log. Logs of topics that were deleted while the broker was down are set aside (``storage/startup.py``). Files are created, renamed and
removed off the event loop (``storage/log_files.py``); a partition without its log is neither led nor followed.

At most one flush of a partition is in progress, also across leader changes: what is on disk of a former log with the same name says nothing
about the present one.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from errno import ENOSPC
from itertools import islice
from typing import Any, Protocol

from ottla.base.ids import NO_TOPIC_ID, Offset, TopicPartition
from ottla.base.log_levels import REPLICA, STORAGE, LogLevel
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import indivisible
from ottla.broker.metadata.image import Topic
from ottla.broker.registration.replica_health import ReplicaHealth
from ottla.broker.replica.fetchers import Fetchers
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader, low_watermark_of
from ottla.broker.storage import startup
from ottla.broker.storage.log_files import LogFiles, is_replica
from ottla.broker.storage.periodic_tasks import FileRemovals
from ottla.log.directory import LogDirectory
from ottla.log.flush import FlushPlan
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.log.state import LogState
from ottla.store.layout import PartitionState
from ottla.wire import errors


class Machines(Protocol):
    """The machines that partitions call. They are built after the partitions."""

    @property
    def replica_health(self) -> ReplicaHealth: ...

    @property
    def fetchers(self) -> Fetchers: ...

    def partition_changed(self, partition: TopicPartition) -> None:
        """A partition's leadership or log directory changed: its coordinator begins or ends."""


#: Partitions per step when leadership resumes: less than a tenth of a second.
RESUMED_AT_ONCE = 2_000
#: What the flush of a partition weighs in a turn.
FLUSH_WEIGHT = 4


class Partitions:
    """All partitions of this broker."""

    def __init__(self, context: BrokerContext, removals: FileRemovals, machines: Machines) -> None:
        self._context = context
        self._removals = removals
        self._machines = machines
        #: Partitions led here with a working log directory.
        self.leaders: dict[TopicPartition, Leader] = {}
        #: Partitions followed, or without a leader, with a working log directory.
        self.followers: dict[TopicPartition, Follower] = {}
        #: Partitions whose log directory failed, with the reason.
        self.offline: dict[TopicPartition, str] = {}
        #: Partitions that may need a flush.
        self.dirty: dict[TopicPartition, Leader | Follower] = {}
        #: The leader or follower whose flush is in progress; it may be gone by now.
        self._flushing: dict[TopicPartition, Leader | Follower] = {}
        #: Partitions of an earlier process whose log was not found; they start again empty.
        self.anew: dict[TopicPartition, None] = {}
        #: Partitions without a log because all disks are full; offline until there is space.
        self._roomless: dict[TopicPartition, None] = {}
        #: Logs being created and directories being removed.
        self.files = LogFiles(context, self)
        #: Partitions that ``resume`` has not processed yet.
        self._resuming: list[TopicPartition] = []
        #: Members that left and joined the ISRs of partitions led here, since the start.
        self.isr_shrinks = self.isr_expands = 0
        #: Whether a log was truncated below its recorded recovery point in this step.
        self.lowered = False
        for directory in context.directories:
            directory.on_lowered = self._note_lowered
            directory.on_rolled = self._note_rolled

    def leader(self, topic: str, partition: int) -> Leader:
        """The leader of a partition. Raises: UnknownTopicOrPartition, NotLeaderOrFollower, KafkaStorageError."""
        found = self.leaders.get((topic, partition))  # type: ignore[call-overload]
        if found is not None:
            return found  # type: ignore[no-any-return]
        if (topic, partition) in self.offline:
            reason = self.offline[TopicPartition(topic, partition)]
            raise errors.KafkaStorageError(f"the log directory of {topic}-{partition} failed: {reason}")
        if not self._context.image.has(topic, partition):
            raise errors.UnknownTopicOrPartition(f"there is no partition {topic}-{partition}")
        raise errors.NotLeaderOrFollower(self.files.why_not_led(TopicPartition(topic, partition)))

    def readable(self, topic: str, partition: int) -> Leader | Follower:
        """The replica that a consumer reads, leader or follower. Raises: as ``leader``."""
        return self.followers.get((topic, partition)) or self.leader(topic, partition)  # type: ignore[call-overload]

    def replicas(self) -> Iterator[Leader | Follower]:
        """All partitions on working log directories."""
        yield from self.leaders.values()
        yield from self.followers.values()

    def replica(self, partition: TopicPartition) -> Leader | Follower | None:
        """The replica of a partition, if its log directory works."""
        return self.leaders.get(partition) or self.followers.get(partition)

    def unsettled(self) -> Iterator[Leader]:
        """Leaders of single replicas with records whose flush is due or in progress."""
        for partition in (*self.dirty, *self._flushing):
            leader = self.leaders.get(partition)
            if leader is not None and leader.unsettled:
                yield leader

    def high_watermarks(self, directory: LogDirectory, partitions: Iterable[TopicPartition] | None = None) -> dict[TopicPartition, int]:
        """Known high watermarks of these partitions, or of all, for the checkpoint of a directory."""
        found = ((partition, self.replica(partition)) for partition in (directory.logs if partitions is None else partitions))
        return {one: replica.high_watermark for one, replica in found if replica is not None and replica.directory is directory}

    def hosted(self) -> Iterator[tuple[LogDirectory, TopicPartition]]:
        """All logs on working directories."""
        for directory in self._working():
            for partition in directory.logs:
                yield directory, partition

    def find_missing_logs(self) -> None:
        """Finds partitions of this broker that have no log on any directory, before new logs are created. The missing records are noted in
        the logs created instead.
        """
        me = self._context.broker_id
        for topic in self._context.image.topics.values():
            for number, replicas in topic.replicas.items():
                partition = TopicPartition(topic.name, number)
                unseen = me in replicas and partition not in self.anew and partition not in self.offline
                if unseen and all(partition not in directory.logs for directory in self._working()):
                    self._note_anew(partition, topic)
        startup.settle(self._context, self, self._working())

    def _note_anew(self, partition: TopicPartition, topic: Topic) -> None:
        if self._context.broker_id not in topic.adding.get(
            partition.partition, ()
        ):  # An adding replica has no log yet, and it is not missing.
            self.anew[partition] = None

    # Image.

    def topic_changed(self, name: str) -> None:
        """A topic was created, expanded or deleted."""
        topic = self._context.image.topics.get(name)
        if topic is not None:
            self._replicas_changed(topic)
            return
        self._context.traffic.deleted(name)
        for directory in self._working():
            for partition in directory.partitions_of(name):
                if self.registered:
                    self._drop(directory, partition)
                else:
                    self._end(partition)
        for partition in [gone for gone in self.offline if gone.topic == name]:
            del self.offline[partition]
            self._roomless.pop(partition, None)
        self._machines.replica_health.changed()

    def _replicas_changed(self, topic: Topic) -> None:
        context = self._context
        for number, replicas in topic.replicas.items():
            leader, adding = self.leaders.get(TopicPartition(topic.name, number)), topic.adding.get(number, ())
            if leader is not None and context.broker_id in replicas and (leader.replicas, leader.adding) != (replicas, adding):
                leader.follow_replicas(replicas, adding, context.now_ms)
                context.delayed.poke(leader.partition)
        self._leave(topic)

    def _leave(self, topic: Topic) -> None:
        """Drops partitions that are now on other brokers, and their logs."""
        context = self._context
        if not self.registered:
            return
        gone = [TopicPartition(topic.name, number) for number, replicas in topic.replicas.items() if context.broker_id not in replicas]
        for partition in gone:
            if self.offline.pop(partition, None) is not None:
                self._roomless.pop(partition, None)
                self._machines.replica_health.changed()
            for directory in self._working():
                if partition in directory.logs:
                    # A power failure may have removed the file with the topic id.
                    if directory.logs[partition].topic_id in (topic.topic_id, NO_TOPIC_ID):
                        self._drop(directory, partition)
                    else:
                        self.set_aside(directory, partition)

    def state_changed(self, partition: TopicPartition) -> None:
        """The state of a partition changed."""
        state = self._context.image.state(partition)
        self._state_changed(partition, state)
        self._machines.replica_health.state_changed(partition, state)

    def _state_changed(self, partition: TopicPartition, state: PartitionState | None) -> None:
        if state is None and partition.topic in self._context.image.deleting and self.registered:
            # Partitions of a large topic are deleted one after the other, before the topic.
            for directory in self._working():
                if partition in directory.logs:
                    self._drop(directory, partition)
        if state is None or not self._is_ours(partition) or not self._names_us(state):
            self._follow(partition, state)
        elif partition in self.leaders:
            self._lead_on(self.leaders[partition], state)
            self._context.delayed.poke(partition)
        elif partition not in self.offline:
            self._lead(partition, state)

    def _note(self, partition: TopicPartition, what: str, **fields: Any) -> None:
        """Adds a change to the timeline."""
        self._context.timeline.note("partition", str(partition), what, **fields)

    def _lead_on(self, leader: Leader, state: PartitionState) -> None:
        """Adopts a new state in which this broker still leads."""
        topic, partition, log = self._context.image.topics[leader.partition.topic], leader.partition, self._context.log
        epoch, before = leader.epoch, set(leader.isr)
        leader.follow_state(state, topic.versions[partition.partition], self._context.now_ms)
        if leader.epoch != epoch:
            log.many(REPLICA, "leads ", partition, " in a new epoch", epoch=leader.epoch, isr=list(leader.isr))
            self._note(partition, "leads in a new epoch", epoch=leader.epoch, isr=list(leader.isr))
        after = set(leader.isr)
        for broker in sorted(before - after):
            self.isr_shrinks += 1
            log.many(REPLICA, f"broker {broker} left the ISR of ", partition, isr=list(leader.isr))
            self._note(partition, "ISR shrank", replica=broker, isr=list(leader.isr), epoch=leader.epoch)
        for broker in sorted(after - before):
            self.isr_expands += 1
            log.many(REPLICA, f"broker {broker} joined the ISR of ", partition, isr=list(leader.isr))
            self._note(partition, "ISR grew", replica=broker, isr=list(leader.isr), epoch=leader.epoch)

    def _is_ours(self, partition: TopicPartition) -> bool:
        """Whether the assignment names this broker; a state that does may be older."""
        return is_replica(self._context.image, partition, self._context.broker_id)

    def _names_us(self, state: PartitionState) -> bool:
        """Whether this broker leads by this state, under its present registration."""
        context = self._context
        if state.leader != context.broker_id or context.epoch is None or not self._context.may_lead:
            return False
        return state.registration_of(context.broker_id) in (context.epoch, -1)

    @property
    def registered(self) -> bool:
        """Whether the store's state is at least as new as anything an earlier process acted on."""
        return self._context.epoch is not None and self._context.connected and not self._context.stopping

    def step_down(self) -> None:
        """Stops leading all partitions; waiting clients must look up the leader."""
        for partition in list(self.leaders):
            self._follow(partition, self._context.image.state(partition))

    def resume(self) -> None:
        """Leads what the image says under the present registration; of thousands of partitions, some per step."""
        topics = list(self._context.image.topics.values())
        for topic in topics:
            self._leave(topic)
        startup.set_aside_strays(self._context, self)
        self._resuming = [TopicPartition(topic.name, number) for topic in topics for number in topic.states]
        self._resuming.reverse()
        self._resume_some()

    @property
    def resumed(self) -> bool:
        """Whether all partitions of the image are led or followed."""
        return not self._resuming and not self.files.opening

    def _resume_some(self) -> None:
        context = self._context
        if context.stopping:
            return
        for _ in range(min(len(self._resuming), RESUMED_AT_ONCE)):
            self.state_changed(self._resuming.pop())
        if self._resuming:
            context.delayed.timer("resume", self._resume_some, context.now_ms)

    def options_changed(self, topic: str) -> None:
        """The overrides of a topic changed."""
        options, known = self._context.topic_options(topic), self._context.image.topics.get(topic)
        held = [self.replica(TopicPartition(topic, number)) for number in (known.replicas if known is not None else ())]
        for replica in held:
            if replica is not None:
                self._change_options(replica, options)

    def defaults_changed(self) -> None:
        """Broker settings that topics inherit may have changed."""
        found: dict[str, TopicOptions] = {}
        for replica in list(self.replicas()):
            options = found.get(replica.partition.topic)
            if options is None:
                options = found[replica.partition.topic] = self._context.topic_options(replica.partition.topic)
            self._change_options(replica, options)

    def _change_options(self, replica: Leader | Follower, options: TopicOptions) -> None:
        if isinstance(replica, Follower):
            replica.follow_options(options)
        elif replica.change_options(options):
            self._context.delayed.poke(replica.partition)

    def _lead(self, partition: TopicPartition, state: PartitionState) -> None:
        context = self._context
        topic, options = context.image.topics[partition.topic], context.topic_options(partition.topic)
        found = self._find(partition, topic) or self._create(partition, topic, options)
        if found is None:
            return
        directory, log = found
        self._machines.replica_health.found(directory, log, len(topic.replicas[partition.partition]))
        if log.unrecorded or not self._machines.replica_health.may_lead(partition, state):
            self._follow(partition, state)
            return
        former = self.followers.pop(partition, None)
        self._machines.fetchers.forget(partition)
        leader = self.leaders[partition] = self.dirty[partition] = Leader(
            partition,
            log,
            directory,
            options,
            state,
            context.options.max_decompressed_ratio,
            replicas=topic.replicas[partition.partition],
            adding=topic.adding.get(partition.partition, ()),
            version=topic.versions[partition.partition],
            known_watermark=directory.high_watermarks.get(partition, Offset(0)) if former is None else former.high_watermark,
            now_ms=context.now_ms,
        )
        leader.traffic = context.traffic.of(partition)
        self._machines.replica_health.leads(leader)
        context.log.many(REPLICA, "became leader of ", partition, epoch=leader.epoch, offset=log.end_offset, isr=list(leader.isr))
        self._note(partition, "became leader", epoch=leader.epoch, offset=log.end_offset, isr=list(leader.isr), unclean=state.recovering)
        if state.recovering:
            context.log.warn(
                REPLICA,
                f"broker {context.broker_id} leads {partition} from offset {leader.epoch_start} on by an unclean election: "
                "acknowledged records may be lost, and other replicas truncate what this one lacks",
            )
        if former is not None and former.counted[0] == leader.epoch:
            leader.isr_state.propose(former.counted[1])
        self._machines.partition_changed(partition)
        context.delayed.poke(("led", partition))
        if leader.caching:
            context.delayed.poke(partition)

    def _follow(self, partition: TopicPartition, state: PartitionState | None) -> None:
        """Follows the leader of this state; drops a partition without a state or without this broker as replica."""
        context = self._context
        led = self.leaders.pop(partition, None)
        if led is not None:
            self._machines.partition_changed(partition)
            context.delayed.poke(partition)
            leads = -1 if state is None else state.leader
            context.log.many(REPLICA, "stopped leading ", partition, epoch=led.epoch, leader=leads)
            self._note(partition, "stopped leading", epoch=led.epoch, leader=leads)
        topic = context.image.topics.get(partition.topic)
        if state is None or topic is None or not self._is_ours(partition):
            self.followers.pop(partition, None)
            self._machines.fetchers.forget(partition)
            return
        follower = self.followers.get(partition)
        before = None if follower is None else follower.leader
        if follower is not None:
            follower.follow_state(state)
        elif partition in self.offline:
            return
        else:
            options = context.topic_options(partition.topic)
            found = self._find(partition, topic) or self._create(partition, topic, options)
            if found is None:
                return
            directory, log = found
            self._machines.replica_health.found(directory, log, len(topic.replicas[partition.partition]))
            known = directory.high_watermarks.get(partition, Offset(0)) if led is None else led.high_watermark
            follower = self.followers[partition] = Follower(partition, log, directory, options, state, known)
            follower.traffic = context.traffic.of(partition)
        if led is not None:
            follower.counted = (led.epoch, tuple(led.isr_state.maximal))
        if follower.leader != before:
            whom = f"follows broker {follower.leader} with " if follower.leader >= 0 else "there is no leader of "
            context.log.many(REPLICA, whom, partition, epoch=follower.epoch, offset=follower.log.end_offset)
            self._note(partition, "follows", leader=follower.leader, epoch=follower.epoch, offset=follower.log.end_offset)
        self.dirty[partition] = follower
        self._machines.fetchers.follow(follower)

    def _find(self, partition: TopicPartition, topic: Topic) -> tuple[LogDirectory, Log] | None:
        for directory in startup.holders(self._working(), partition, len(topic.replicas.get(partition.partition, ()))):
            log = directory.logs[partition]
            if log.topic_id == NO_TOPIC_ID:
                log.assign_topic_id(topic.topic_id)
            if log.topic_id == topic.topic_id:
                return directory, log
            # Remains of a deleted topic with this name.
            self._drop(directory, partition)
        return None

    def _create(self, partition: TopicPartition, topic: Topic, options: TopicOptions) -> tuple[LogDirectory, Log] | None:
        """Creates a log in the emptiest directory that accepts it; otherwise the partition is offline."""
        if startup.out_of_sight(self._context, partition, topic):
            self.offline[partition] = "a log directory is missing that may have the only log of it"
            return None
        if self._context.started:
            self.files.create(partition, topic, options)
            return None
        if found := self.files.create_at_once(partition, topic, options):
            self._note_anew(partition, topic)
        return found

    def created(self, partition: TopicPartition) -> None:
        """The log of a partition was created: leads or follows it as the image says now."""
        if self.offline.pop(partition, None) is not None:
            self._roomless.pop(partition, None)
            self._machines.replica_health.changed()
        self.state_changed(partition)

    def refused(self, partition: TopicPartition, reason: str, *, full: bool) -> None:
        """No directory accepted the log of a partition; after a full disk this is retried when there is space."""
        self.offline[partition] = f"no log directory could take it: {reason}"
        if full:
            self._roomless[partition] = None
        self._machines.replica_health.changed()

    def room_measured(self) -> None:
        """There may be space for logs that were refused. Their partitions stay offline until the logs exist."""
        for partition in list(self._roomless):
            if self._context.started and self._is_ours(partition):
                self.files.create(partition, self._context.image.topics[partition.topic], self._context.topic_options(partition.topic))
        self._machines.replica_health.changed()

    def _working(self) -> list[LogDirectory]:
        return [directory for directory in self._context.directories if directory.failed is None]

    def _drop(self, directory: LogDirectory, partition: TopicPartition) -> None:
        self._end(partition)
        self.files.remove(directory, partition)

    def set_aside(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Stops serving a log and keeps its files for a while."""
        self._end(partition)
        self.files.set_aside(directory, partition)

    def _end(self, partition: TopicPartition) -> None:
        """Stops serving a partition and completes operations that wait for it."""
        self._let_go(partition)
        self._machines.partition_changed(partition)
        self._context.delayed.poke(partition)

    def _let_go(self, partition: TopicPartition) -> None:
        self.leaders.pop(partition, None)
        self.followers.pop(partition, None)
        self.dirty.pop(partition, None)
        self._machines.fetchers.forget(partition)
        self._machines.replica_health.forget(partition)

    # Durability.

    @indivisible
    def wrote(self, leader: Leader) -> None:
        """A batch was appended: a flush or writeback may be due."""
        if leader.isr_state.progress:
            # Followers fetch records that consumers cannot read yet.
            self._context.delayed.poke(("appended", leader.partition))
        if not leader.caching:
            self.dirty[leader.partition] = leader
            return
        self._context.delayed.poke(leader.partition)
        due = leader.writeback_due()
        if due is not None:
            file, position, size = due
            self._context.effects.append(effects.StartWriteback(directory=leader.directory.root, file=file, position=position, size=size))

    @indivisible
    def delete_before(self, leader: Leader, offset: int) -> None:
        """Deletes all records before ``offset``; durable when the log start is recorded.

        Raises: KafkaStorageError.
        """
        try:
            dropped = leader.log.delete_before(offset, self._context.wall_ms)
        except OSError as error:
            raise self.append_failed(leader, error) from error
        self.dropped(leader, dropped)

    @indivisible
    def dropped(self, leader: Leader | Follower, paths: tuple[str, ...]) -> None:
        """The log start advanced: waiting readers below are completed; the files are removed when no fetch sends from them any more."""
        self._removals.remove_later(leader.directory.root, paths, leader.options.file_delete_delay_ms)
        self.dirty[leader.partition] = leader
        self._context.delayed.poke(leader.partition)

    def record_start(self, replica: Leader | Follower) -> None:
        """Records a log start that moved, so that a crash cannot bring deleted records back."""
        if isinstance(replica, Follower):
            replica.recording_start = True
        self.files.record_start(replica.directory, replica.log)

    def start_recorded(self, partition: TopicPartition) -> None:
        """The start of a log is recorded, or the disk is full: the leader compares it with the followers', a follower reports it."""
        follower = self.followers.get(partition)
        if follower is not None:
            follower.recording_start = False
            self._machines.fetchers.flushed(partition)
        self._context.delayed.poke(low_watermark_of(partition))

    def begin_flushes(self) -> None:
        """Requests flushes that are due, at most one per partition at a time. What is more than a turn stays in ``dirty``, for another
        ``FlushDue``.
        """
        turn = list(islice(self.dirty.items(), max(self._context.turns.elements // FLUSH_WEIGHT, 1)))
        wanted: dict[str, list[tuple[TopicPartition, FlushPlan]]] = {}
        for partition, leader in turn:
            del self.dirty[partition]
            if partition not in self._flushing and leader.wants_flush():
                plan = leader.log.flush_plan()
                if plan is not None:
                    self._flushing[partition] = leader
                    wanted.setdefault(leader.directory.root, []).append((partition, plan))
        for root, plans in wanted.items():
            self._context.effects.append(effects.Flush(directory=root, plans=plans))

    def flushed(self, marks: Sequence[tuple[TopicPartition, Offset]]) -> None:
        """Flushes of these partitions are done: everything below each offset is on disk."""
        risen = []
        for partition, upto in marks:
            asked = self._flushing.pop(partition, None)
            leader = self.replica(partition)
            if leader is None:
                continue
            if leader is asked and leader.flushed(upto):
                risen.append(partition)
            if leader is not asked or leader.log.unflushed:
                self.dirty[partition] = leader
            self._machines.fetchers.flushed(partition)
        # At the end, so that a request that waits for several partitions is ready at once.
        for partition in risen:
            self._context.delayed.poke(partition)

    def _note_lowered(self) -> None:
        self.lowered = True

    def _note_rolled(self, log: LogState) -> None:
        base = log.active.base_offset
        self._context.log.many(STORAGE, "a new segment of ", log.partition, level=LogLevel.DEBUG, base_offset=base)

    def record_truncations(self) -> None:
        """At the end of a step: asks to record the recovery points that truncations lowered, once for all logs of a directory.

        Until that is done these logs are neither led nor fetched. It is rare: a follower had flushed records that the elected leader does
        not have.
        """
        self.lowered = False
        for directory in self._working():
            self.files.record_lowered(directory)

    def truncation_recorded(self, partition: TopicPartition) -> None:
        """The lowered recovery point of a log is on disk: the replica is led, or fetches again."""
        state = self._context.image.state(partition)
        if state is not None and self._is_ours(partition) and self._names_us(state) and partition not in self.leaders:
            self.state_changed(partition)
        else:
            self._machines.fetchers.flushed(partition)

    @contextmanager
    def guarded(self, directory: LogDirectory) -> Iterator[None]:
        """File work in a log directory; an OSError takes its partitions offline."""
        try:
            yield
        except OSError as error:
            self.directory_failed(directory.root, str(error))

    def append_failed(self, leader: Leader | Follower, error: OSError) -> errors.KafkaError:
        """The error for a failed append: a full disk is not a broken one; all other errors are."""
        if error.errno == ENOSPC:
            # Until the next measurement, so that the producer's next batches are refused for the same reason and not for their sequence.
            space = self._context.space.get(leader.directory.root)
            if space is not None:
                space.free_bytes = 0
            return errors.KafkaStorageError(f"the disk of {leader.directory.root} is full; nothing was written")
        self.directory_failed(leader.directory.root, str(error))
        return errors.KafkaStorageError(f"the log directory of {leader.partition} failed: {error}")

    @indivisible
    def directory_failed(self, root: str, reason: str) -> None:
        """Takes a directory's partitions offline; without any directory left, the broker stops."""
        context = self._context
        directory = next(directory for directory in context.directories if directory.root == root)
        if directory.failed is not None:
            return
        directory.failed = reason
        self._flushing = {partition: leader for partition, leader in self._flushing.items() if leader.directory is not directory}
        for partition in directory.logs:
            self._let_go(partition)
            self.offline[partition] = reason
        for partition in directory.logs:
            self._machines.partition_changed(partition)
            context.delayed.poke(partition)
        self.files.directory_failed(directory)
        if all(directory.failed is not None for directory in context.directories):
            context.effects.append(effects.Halt(reason=f"no log directory is left; {root} failed last: {reason}"))
        else:
            lost = f"{len(directory.logs)} partitions are offline until it works again and the broker is restarted"
            context.log.warn(STORAGE, f"log directory {root} failed: {reason}; {lost}", directory=root, partitions=len(directory.logs))
            self._machines.replica_health.changed()
