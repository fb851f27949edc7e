"""Periodic tasks of a broker: retention, compaction, checkpoints, expiry of producers, delayed file removal.

A task over all partitions works in pieces of ``PIECE`` partitions, one in a step, at least a millisecond apart. Requests are handled
between them. A partition that is gone before its piece is left out, and one that came after the task began waits for the next time. A
task does not begin again before it ended.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import STORAGE, LogLevel
from ottla.base.units import INT64_MAX, SECOND_MS
from ottla.broker import effects
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import indivisible
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas
from ottla.log.directory import LogDirectory

#: log.cleaner.backoff.ms can be altered to 0 by a client, and the search for dirty logs runs on the event loop.
BACKOFF_MIN_MS = 100
COMPACTION = "compaction"
#: Partitions of a piece: a millisecond at most.
PIECE = 200
#: A task: None if it is done, else the rest of it, piece by piece.
Work = Callable[[], Iterator[None] | None]


class FileRemovals:
    """Files of deleted records, which fetches may still send: unlinked after a delay."""

    def __init__(self, context: BrokerContext) -> None:
        self._context = context
        #: (time, order, log directory, paths).
        self._due: list[tuple[int, int, str, tuple[str, ...]]] = []
        self._order = 0
        #: Time of the first; INT64_MAX without one. Read after each event.
        self.next_ms = INT64_MAX

    @indivisible
    def remove_later(self, root: str, paths: tuple[str, ...], delay_ms: int) -> None:
        """Unlinks files after a delay."""
        if paths:
            self._order += 1
            heappush(self._due, (self._context.now_ms + delay_ms, self._order, root, paths))
            self.next_ms = self._due[0][0]

    def tick(self) -> None:
        """Unlinks the files whose delay is over."""
        while self._due and self._due[0][0] <= self._context.now_ms:
            _, _, root, paths = heappop(self._due)
            self._context.effects.append(effects.Remove(directory=root, paths=paths))
        self.next_ms = self._due[0][0] if self._due else INT64_MAX


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
        #: Partitions of a piece; the simulator has fewer.
        self.piece = PIECE
        #: (time, name) of each task, soonest first; empty before ``start``.
        self._due: list[tuple[int, str]] = []
        flush_ms = options.log_flush_scheduler_interval_ms
        tasks: dict[str, tuple[int, Work]] = {
            "retention": (options.log_retention_check_interval_ms, self._retain),
            "checkpoints": (options.log_flush_checkpoint_interval_ms, self._checkpoint),
            "producers": (10 * SECOND_MS, self._forget_producers),
            "flush_ms": (SECOND_MS if flush_ms == INT64_MAX else flush_ms, self._flush_old),
            **ticks,
            COMPACTION: (self._backoff_ms(), ticks[COMPACTION][1]),
        }
        self._every = {name: interval_ms for name, (interval_ms, _) in tasks.items()}
        self._work = {name: work for name, (_, work) in tasks.items()}
        #: Tasks that have begun and have pieces left, and the time of the next piece.
        self._running: dict[str, Iterator[None]] = {}
        self._piece_ms = 0
        #: Time of the next task or piece; INT64_MAX before ``start``. Read after each event.
        self.next_ms = INT64_MAX

    def start(self) -> None:
        """Starts the intervals now."""
        for name, interval in self._every.items():
            heappush(self._due, (self._context.now_ms + interval, name))
        self._wait()

    def _wait(self) -> None:
        if self._running:
            self.next_ms = self._piece_ms
        else:
            self.next_ms = self._due[0][0] if self._due else INT64_MAX

    def settings_changed(self) -> None:
        """Adopts a changed interval."""
        every, at_most = self._backoff_ms(), self._context.now_ms + self._backoff_ms()
        if every != self._every[COMPACTION]:
            self._every[COMPACTION] = every
            self._due = [(min(at, at_most) if name == COMPACTION else at, name) for at, name in self._due]
            heapify(self._due)
            self._wait()

    def _backoff_ms(self) -> int:
        return max(self._context.options.log_cleaner_backoff_ms, BACKOFF_MIN_MS)

    def tick(self) -> None:
        """Runs tasks that are due, and the next piece of those that have begun."""
        now = self._context.now_ms
        if self._running and self._piece_ms <= now:
            self._piece_ms = now + 1
            for name, rest in list(self._running.items()):
                self._advance(name, rest)
        while self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            heappush(self._due, (now + self._every[name], name))
            if name not in self._running and (begun := self._work[name]()) is not None:
                self._piece_ms = now + 1
                self._advance(name, begun)
        self._wait()
        self._removals.tick()

    def _advance(self, name: str, rest: Iterator[None]) -> None:
        """Runs the next piece of a task."""
        for _ in rest:
            self._running[name] = rest
            return
        self._running.pop(name, None)

    def _retain(self) -> Iterator[None]:
        self._remove_strays()
        partitions = self._replicas
        for number, piece in enumerate(self._pieces(partitions.leaders)):
            if number:
                yield
            for partition in piece:
                leader = partitions.leaders.get(partition)
                if leader is not None:
                    with partitions.guarded(leader.directory):
                        self._retain_one(leader)

    def _retain_one(self, leader: Leader) -> None:
        dropped = leader.log.retain(self._context.wall_ms, leader.high_watermark)
        if dropped:
            start, partition = leader.log.start_offset, leader.partition
            self._context.log.many(
                STORAGE, "retention deletes segments of ", partition, level=LogLevel.DEBUG, files=len(dropped), log_start=start
            )
            self._replicas.dropped(leader, dropped)
        elif leader.log.pending.any:
            # Expired segments are dropped when the name of the next segment is durable.
            self._replicas.wrote(leader)

    def _remove_strays(self) -> None:
        kept_ms = self._context.options.stray_retention_ms
        for directory in self._context.directories if kept_ms >= 0 else ():
            paths = directory.expired_strays(self._context.wall_ms - kept_ms)
            if paths:
                self._context.effects.append(effects.Remove(directory=directory.root, paths=paths))

    def _checkpoint(self) -> Iterator[None]:
        for directory in self._context.directories:
            yield from self._checkpoint_directory(directory)

    def _checkpoint_directory(self, directory: LogDirectory) -> Iterator[None]:
        """Writes recovery points, log starts, high watermarks, and progress of compaction and scrubs."""
        known = partial(self._replicas.high_watermarks, directory)
        work = directory.checkpoint_pieces(known, self.piece)
        while directory.failed is None:
            with self._replicas.guarded(directory):
                for file in work:
                    if file is not None:
                        self._context.effects.append(effects.ReplaceFiles(directory=directory.root, files=(file,)))
                    break
                else:
                    return
            yield

    def _forget_producers(self) -> Iterator[None]:
        """Expires idle producers and, above the limit, producers of the partitions with the most."""
        counts: dict[TopicPartition, int] = {}
        for number, piece in enumerate(self._replicas_by_piece()):
            if number:
                yield
            for replica in piece:
                replica.log.expire_producers(self._context.wall_ms, self._context.options.producer_id_expiration_ms)
                if replica.log.producers.by_id:
                    counts[replica.partition] = len(replica.log.producers.by_id)
        share = even_share(list(counts.values()), self._context.options.producer_ids_max)
        if share is None:
            return
        for number, partitions in enumerate(self._pieces(partition for partition, count in counts.items() if count > share)):
            if number:
                yield
            for partition in partitions:
                found = self._replicas.replica(partition)
                if found is not None and (excess := len(found.log.producers.by_id) - share) > 0:
                    found.log.forget_oldest_producers(excess)

    def _flush_old(self) -> Iterator[None]:
        """With write caching: flushes records required by flush.ms or flush.messages, and names of new segments."""
        for number, piece in enumerate(self._replicas_by_piece()):
            if number:
                yield
            for replica in piece:
                if replica.caching and (replica.flush_due(self._context.now_ms) or replica.wants_flush()):
                    self._replicas.dirty[replica.partition] = replica

    def _pieces(self, partitions: Iterable[TopicPartition]) -> Iterator[list[TopicPartition]]:
        """The partitions of this moment, a piece at a time."""
        left = list(partitions)
        for start in range(0, len(left), self.piece):
            yield left[start : start + self.piece]

    def _replicas_by_piece(self) -> Iterator[list[Leader | Follower]]:
        """All replicas of this moment, without those that are gone before their piece."""
        replicas = self._replicas
        for piece in self._pieces((*replicas.leaders, *replicas.followers)):
            yield [found for partition in piece if (found := replicas.replica(partition)) is not None]


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
