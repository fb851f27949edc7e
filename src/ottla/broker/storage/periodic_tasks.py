"""Periodic tasks of a broker: retention, compaction, checkpoints, expiry of producers, delayed file removal."""

from collections.abc import Callable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from ottla.base.log_levels import STORAGE, LogLevel
from ottla.base.units import INT64_MAX, SECOND_MS
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import indivisible
from ottla.broker.replica.replicas import Replicas
from ottla.log.directory import LogDirectory

#: log.cleaner.backoff.ms can be altered to 0 by a client, and the search for dirty logs runs on the event loop.
BACKOFF_MIN_MS = 100
COMPACTION = "compaction"


class FileRemovals:
    """Files of deleted records, which fetches may still send: unlinked after a delay."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: (time, order, log directory, paths).
        self._due: list[tuple[int, int, str, tuple[str, ...]]] = []
        self._order = 0

    @property
    def next_ms(self) -> int | None:
        """Next time of ``tick``."""
        return self._due[0][0] if self._due else None

    @indivisible
    def remove_later(self, root: str, paths: tuple[str, ...], delay_ms: int) -> None:
        """Unlinks files after a delay."""
        if paths:
            self._order += 1
            heappush(self._due, (self._context.now_ms + delay_ms, self._order, root, paths))

    def tick(self) -> None:
        """Unlinks what is due."""
        while self._due and self._due[0][0] <= self._context.now_ms:
            _, _, root, paths = heappop(self._due)
            self._context.effects.append(effects.Remove(directory=root, paths=paths))


class PeriodicTasks:
    """Periodic tasks. Each has an interval; ``tick`` runs those that are due."""

    def __init__(
        self, context: BrokerContext, replicas: Replicas, removals: FileRemovals, ticks: Mapping[str, tuple[int, Callable[[], None]]]
    ) -> None:
        """``ticks``: intervals in ms and functions of other machines, by name."""
        self._context = context
        self._replicas = replicas
        self._removals = removals
        options = context.options
        #: (time, name) of each task, soonest first; empty before ``start``.
        self._due: list[tuple[int, str]] = []
        flush_ms = options.log_flush_scheduler_interval_ms
        tasks: dict[str, tuple[int, Callable[[], None]]] = {
            "retention": (options.log_retention_check_interval_ms, self._retain),
            "checkpoints": (options.log_flush_checkpoint_interval_ms, self._checkpoint),
            "producers": (10 * SECOND_MS, self._forget_producers),
            "flush_ms": (SECOND_MS if flush_ms == INT64_MAX else flush_ms, self._flush_old),
            **ticks,
            COMPACTION: (self._backoff_ms(), ticks[COMPACTION][1]),
        }
        self._every = {name: interval_ms for name, (interval_ms, _) in tasks.items()}
        self._work = {name: work for name, (_, work) in tasks.items()}

    @property
    def next_ms(self) -> int | None:
        """Next time of ``tick``."""
        # Read after each event.
        removal_ms = self._removals.next_ms
        if not self._due:
            return removal_ms
        due_ms = self._due[0][0]
        return due_ms if removal_ms is None or due_ms < removal_ms else removal_ms

    def start(self) -> None:
        """Starts the intervals now."""
        for name, interval in self._every.items():
            heappush(self._due, (self._context.now_ms + interval, name))

    def settings_changed(self) -> None:
        """Adopts a changed interval."""
        every, at_most = self._backoff_ms(), self._context.now_ms + self._backoff_ms()
        if every != self._every[COMPACTION]:
            self._every[COMPACTION] = every
            self._due = [(min(at, at_most) if name == COMPACTION else at, name) for at, name in self._due]
            heapify(self._due)

    def _backoff_ms(self) -> int:
        return max(self._context.options.log_cleaner_backoff_ms, BACKOFF_MIN_MS)

    def tick(self) -> None:
        """Runs tasks that are due."""
        now = self._context.now_ms
        while self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            heappush(self._due, (now + self._every[name], name))
            self._work[name]()
        self._removals.tick()

    def _retain(self) -> None:
        self._remove_strays()
        partitions, wall_ms = self._replicas, self._context.wall_ms
        for leader in list(partitions.leaders.values()):
            with partitions.guarded(leader.directory):
                dropped = leader.log.retain(wall_ms, leader.high_watermark)
                if dropped:
                    start, partition = leader.log.start_offset, leader.partition
                    self._context.log.many(
                        STORAGE, "retention deletes segments of ", partition, level=LogLevel.DEBUG, files=len(dropped), log_start=start
                    )
                    partitions.dropped(leader, dropped)
                elif leader.log.pending.any:
                    # Expired segments are dropped when the name of the next segment is durable.
                    partitions.wrote(leader)

    def _remove_strays(self) -> None:
        kept_ms = self._context.options.stray_retention_ms
        for directory in self._context.directories if kept_ms >= 0 else ():
            paths = directory.expired_strays(self._context.wall_ms - kept_ms)
            if paths:
                self._context.effects.append(effects.Remove(directory=directory.root, paths=paths))

    @indivisible
    def checkpoint(self, directory: LogDirectory) -> None:
        """Writes recovery points, log starts and high watermarks of a directory."""
        files = directory.checkpoint_files(self._replicas.high_watermarks(directory))
        self._context.effects.append(effects.ReplaceFiles(directory=directory.root, files=tuple(files)))

    def _checkpoint(self) -> None:
        for directory in self._context.directories:
            if directory.failed is None:
                with self._replicas.guarded(directory):
                    self.checkpoint(directory)

    def _forget_producers(self) -> None:
        """Expires idle producers and, above the limit, producers of the partitions with the most."""
        context, options = self._context, self._context.options
        logs = [replica.log for replica in self._replicas.replicas()]
        for log in logs:
            log.expire_producers(context.wall_ms, options.producer_id_expiration_ms)
        share = even_share([len(log.producers.by_id) for log in logs], options.producer_ids_max)
        if share is None:
            return
        for log in logs:
            excess = len(log.producers.by_id) - share
            if excess > 0:
                log.forget_oldest_producers(excess)

    def _flush_old(self) -> None:
        """With write caching: flushes records required by flush.ms or flush.messages, and names of new segments."""
        for replica in self._replicas.replicas():
            if replica.caching and (replica.flush_due(self._context.now_ms) or replica.wants_flush()):
                self._replicas.dirty[replica.partition] = replica


def even_share(counts: Sequence[int], most: int) -> int | None:
    """The largest cap per count such that the sum is at most ``most``; None if no cap is needed."""
    if sum(counts) <= most:
        return None
    left, share = most, 0
    for place, count in enumerate(sorted(counts)):
        share = left // (len(counts) - place)
        if count > share:
            break
        left -= count
    return share
