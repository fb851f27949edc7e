"""Creation, renaming and removal of logs: file work that a step must not do itself.

Requests join a queue per log directory and are carried out in portions, one at a time per directory, so that thousands of topics do not
delay other clients::

    create ──▶ opening ──▶ ChangeLogs ──▶ LogsChanged ──▶ the log is added to its directory, and led or followed
    remove ───────────────▶ ChangeLogs ──▶ renamed and removed

In each portion directories are renamed before new ones are created, so a topic that is deleted and created again gets an empty directory. A
partition without its log is not led: clients get NOT_LEADER_OR_FOLLOWER, as in Kafka, and retry.

Log starts that must survive a crash are recorded in the same queue, many at once: of deleted records, before the deletion is acknowledged.

Before its first registration a broker serves no client. Then it does this work at once, because notes about lost logs must be on disk
before it continues (``startup.py``).
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from errno import ENOSPC
from typing import NamedTuple

from ottla.base.ids import BrokerId, Offset, TopicPartition
from ottla.base.units import SECOND_MS
from ottla.broker import effects, events
from ottla.broker.context import BrokerContext
from ottla.broker.delayed import DelayedOperation
from ottla.broker.metadata.image import Image, Topic
from ottla.broker.replica.replicas import Replicas
from ottla.broker.storage import startup
from ottla.log.directory import LogDirectory
from ottla.log.directory_changes import LogChanges, LogMove, NewLog
from ottla.log.log import Log
from ottla.log.options import TopicOptions

#: Logs created, and logs removed, in one portion: its result takes a few milliseconds of a step.
PORTION = 25
#: After a full disk refused the checkpoint of log starts.
RETRY_MS = SECOND_MS


def is_replica(image: Image, partition: TopicPartition, broker: BrokerId) -> bool:
    """Whether the assignment names this broker."""
    topic = image.topics.get(partition.topic)
    return topic is not None and broker in topic.replicas.get(partition.partition, ())


class Creation:
    """A log being created."""

    __slots__ = ("full", "new")

    def __init__(self, new: NewLog) -> None:
        self.new = new
        #: Log directories that were too full for it.
        self.full: set[str] = set()


class _Queue:
    """Pending work of one log directory."""

    __slots__ = ("creations", "moves", "starts", "under_way")

    def __init__(self) -> None:
        self.moves: deque[LogMove] = deque()
        self.creations: dict[TopicPartition, Creation] = {}
        #: Logs whose start is to be recorded.
        self.starts: dict[TopicPartition, Log] = {}
        self.under_way: _Portion | None = None


class _Portion(NamedTuple):
    """Work in progress in one log directory."""

    changes: LogChanges
    creations: Sequence[Creation] = ()
    #: Truncated logs that it records.
    lowered: Sequence[Log] = ()
    #: Logs whose start it records, and that start.
    starts: Sequence[tuple[Log, Offset]] = ()


class LogFiles:
    """Creates and removes logs off the event loop."""

    def __init__(self, context: BrokerContext, replicas: Replicas) -> None:
        self._context = context
        self._replicas = replicas
        #: Partitions whose log is being created.
        self.opening: dict[TopicPartition, Creation] = {}
        #: Their number by topic.
        self._opening_of: Counter[str] = Counter()
        #: By log directory.
        self._queues: dict[str, _Queue] = {directory.root: _Queue() for directory in context.directories}

    # Requests.

    def create(self, partition: TopicPartition, topic: Topic, options: TopicOptions) -> None:
        """Creates a log in the emptiest directory that accepts it, then calls ``Partitions.created`` or ``Partitions.refused``."""
        known = self.opening.get(partition)
        if known is None or known.new.topic_id != topic.topic_id:
            creation = self.opening[partition] = Creation(NewLog(partition, topic.topic_id, options))
            if known is None:
                self._opening_of[topic.name] += 1
            self._place(creation)

    def remove(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Takes a log out of its directory and removes it."""
        if self._context.started:
            self._move(directory, directory.take_out(partition))
            return
        with self._replicas.guarded(directory):
            path = directory.remove(partition)
            self._context.effects.append(effects.Remove(directory=directory.root, paths=(path,)))

    def set_aside(self, directory: LogDirectory, partition: TopicPartition) -> None:
        """Takes a log out of its directory and keeps it for a while under another name."""
        self._move(directory, directory.take_out(partition, stray=True))

    def record_lowered(self, directory: LogDirectory) -> None:
        """Records the recovery points that truncations lowered, then calls ``Partitions.truncation_recorded`` for each log."""
        if directory.lowered:
            self._go_on(directory)

    def record_start(self, directory: LogDirectory, log: Log) -> None:
        """Records the start of a log, then calls ``Partitions.start_recorded``. While the disk is full it is tried again."""
        self._queues[directory.root].starts[log.partition] = log
        directory.start_moved(log.partition)
        self._go_on(directory)

    def why_not_led(self, partition: TopicPartition) -> str:
        """The error text for a client of a partition that exists but is not led."""
        reason = f"is creating the log of {partition}; try again" if partition in self.opening else f"does not lead {partition}"
        return f"broker {self._context.broker_id} {reason}"

    def _move(self, directory: LogDirectory, move: LogMove) -> None:
        self._queues[directory.root].moves.append(move)
        self._go_on(directory)

    def _place(self, creation: Creation) -> None:
        queues = self._queues
        working = [found for found in self._context.directories if found.failed is None]
        fitting = [found for found in working if found.root not in creation.full]
        if not fitting:
            self._opened(creation)
            reason = "the disk is full" if creation.full else "none is left"
            self._replicas.refused(creation.new.partition, reason, full=bool(creation.full))
            return
        directory = min(fitting, key=lambda found: len(found.logs) + len(queues[found.root].creations))
        queues[directory.root].creations[creation.new.partition] = creation
        self._go_on(directory)

    def _is_wanted(self, creation: Creation) -> bool:
        """Whether the image still needs this log."""
        new = creation.new
        topic = self._context.image.topics.get(new.partition.topic)
        known = topic is not None and topic.topic_id == new.topic_id
        return known and is_replica(self._context.image, new.partition, self._context.broker_id)

    def create_at_once(self, partition: TopicPartition, topic: Topic, options: TopicOptions) -> tuple[LogDirectory, Log] | None:
        """Creates a log synchronously, before the broker serves clients; notes about a lost log are on disk when it returns."""
        context = self._context
        reason, full = "none is left", False
        lost = startup.was_lost(context, partition, topic)
        working = [directory for directory in context.directories if directory.failed is None]
        for directory in sorted(working, key=lambda directory: len(directory.logs)):
            try:
                return directory, directory.create(partition, topic.topic_id, options, now_ms=context.wall_ms, in_place_of_lost=lost)
            except OSError as error:
                reason = str(error)
                if error.errno == ENOSPC:
                    full = True
                else:
                    self._replicas.directory_failed(directory.root, reason)
        self._replicas.refused(partition, reason, full=full)
        return None

    # Portions.

    def _go_on(self, directory: LogDirectory) -> None:
        """Starts the next portion, unless one is in progress. A broker that stops creates no logs."""
        queue = self._queues[directory.root]
        if queue.under_way is not None or directory.failed is not None:
            return
        moves = [queue.moves.popleft() for _ in range(min(PORTION, len(queue.moves)))]
        creations = [] if self._context.stopping or queue.moves else list(self._portion(queue))
        if not moves and not creations and not directory.lowered and not queue.starts:
            return
        lowered, checkpoints = directory.lowered_changes()
        present = [log for log in queue.starts.values() if directory.logs.get(log.partition) is log]
        starts = [(log, log.start_offset) for log in present]
        queue.starts = {}
        if starts:
            checkpoints += directory.checkpoint_files(kinds=("log_starts",))
        if any(directory.is_named(creation.new.partition) for creation in creations):
            checkpoints = directory.renew_checkpoints(self._replicas.high_watermarks(directory))
        changes = LogChanges(tuple(moves), tuple(checkpoints), tuple(creation.new for creation in creations), lowers=bool(lowered))
        queue.under_way = _Portion(changes, creations, lowered, starts)
        self._context.effects.append(effects.ChangeLogs(directory=directory.root, changes=changes))

    def _portion(self, queue: _Queue) -> Iterable[Creation]:
        for partition in list(queue.creations)[:PORTION]:
            creation = queue.creations.pop(partition)
            if self._is_wanted(creation):
                yield creation
            else:
                self._opened(creation)

    def _opened(self, creation: Creation) -> None:
        """The creation ended."""
        partition = creation.new.partition
        if self.opening.get(partition) is not creation:
            return
        del self.opening[partition]
        self._opening_of[partition.topic] -= 1
        if not self._opening_of[partition.topic]:
            del self._opening_of[partition.topic]
            self._context.delayed.poke(("opened", partition.topic))

    def when_opened(self, topic: str, act: Callable[[], None]) -> None:
        """Calls back when no log of this topic is being created."""
        if topic in self._opening_of:
            waits = DelayedOperation(
                f"logs of {topic}", lambda expired: act(), keys=(("opened", topic),), ready=lambda: topic not in self._opening_of
            )
            self._context.delayed.delay(waits, None)
        else:
            act()

    def changed(self, event: events.LogsChanged) -> None:
        """A portion was carried out."""
        directory = next(directory for directory in self._context.directories if directory.root == event.directory)
        queue = self._queues[directory.root]
        assert queue.under_way is not None, "an outcome follows what was asked for"
        changes, creations, lowered, starts = queue.under_way
        # The next portion is built after this one is processed: removed logs leave before their name is used again.
        queue.under_way = _Portion(changes)
        if directory.failed is not None:
            queue.under_way = None
            return
        for move in changes.moves:
            if move.stray:
                directory.strays[move.target] = self._context.wall_ms
        for log in lowered:
            # It may have been truncated once more meanwhile, or removed.
            if log.partition not in directory.lowered and directory.logs.get(log.partition) is log:
                log.unrecorded = False
                self._replicas.truncation_recorded(log.partition)
        for log, start_offset in starts:
            self._start_recorded(directory, log, start_offset if changes.recorded else None)
        if event.refused:
            directory.checkpoints_refused(event.refused)
        for creation in creations:
            if creation.new.partition in event.refused:
                self._refused(directory, creation)
            else:
                self._created(directory, creation)
        queue.under_way = None
        self._go_on(directory)

    def _start_recorded(self, directory: LogDirectory, log: Log, start_offset: Offset | None) -> None:
        """The checkpoint has this start of a log; None: the disk was full."""
        if directory.logs.get(log.partition) is not log:
            return
        if start_offset is not None:
            log.recorded_start = start_offset
        else:
            self._context.delayed.timer("log start", lambda: self._record_again(directory, log), self._context.now_ms + RETRY_MS)
        self._replicas.start_recorded(log.partition)

    def _record_again(self, directory: LogDirectory, log: Log) -> None:
        if directory.failed is None and directory.logs.get(log.partition) is log:
            self.record_start(directory, log)

    def _created(self, directory: LogDirectory, creation: Creation) -> None:
        partitions, partition = self._replicas, creation.new.partition
        directory.add(creation.new, self._context.wall_ms)
        if self._is_wanted(creation):
            partitions.created(partition)
        else:
            self._move(directory, directory.take_out(partition))
        self._opened(creation)

    def _refused(self, directory: LogDirectory, creation: Creation) -> None:
        creation.full.add(directory.root)
        if self.opening.get(creation.new.partition) is creation and self._is_wanted(creation):
            self._place(creation)
        else:
            self._opened(creation)

    def directory_failed(self, directory: LogDirectory) -> None:
        """Its pending logs are created elsewhere."""
        queue = self._queues[directory.root]
        queue.moves.clear()
        queue.starts.clear()
        creations = list(queue.creations.values())
        queue.creations.clear()
        if queue.under_way is not None:
            creations += queue.under_way.creations
        for creation in creations:
            if self.opening.get(creation.new.partition) is creation:
                self._place(creation)
