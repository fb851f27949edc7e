"""Periodic tasks of a broker: retention, compaction, checkpoints, expiry of producers, delayed file removal."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.broker.isolation import indivisible
from ottla.log.directory import LogDirectory

if TYPE_CHECKING:
    from ottla.broker.node import Node

#: log.cleaner.backoff.ms can be altered to 0 by a client, and the search for dirty logs runs on the event loop.
BACKOFF_MIN_MS = 100


class PeriodicTasks:
    """Periodic tasks. Each has an interval; ``tick`` runs those that are due."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        options = node.options
        #: Next time of ``tick``; None before ``start``.
        self.next_ms: int | None = None
        #: (time, name) of each task, soonest first.
        self._due: list[tuple[int, str]] = []
        self._every = {
            "retention": options.log_retention_check_interval_ms,
            "checkpoints": options.log_flush_checkpoint_interval_ms,
            "producers": 10 * SECOND_MS,
            "controller": SECOND_MS,
            "lifecycle": SECOND_MS,
            "replica_health": SECOND_MS,
            "flush_ms": SECOND_MS,
            "isr": max(min(options.replica_lag_time_max_ms // 2, SECOND_MS), 1),
            "compaction": self._backoff_ms(),
            "scrub": SECOND_MS,
        }
        self._work = {
            "retention": self._retain,
            "checkpoints": self._checkpoint,
            "producers": self._forget_producers,
            "controller": node.controller.tick,
            "lifecycle": node.lifecycle.tick,
            "replica_health": node.replica_health.tick,
            "flush_ms": self._flush_old,
            "isr": node.isr_changes.tick,
            "compaction": node.compaction.tick,
            "scrub": node.scrubs.tick,
        }
        #: (time, order, log directory, paths) of dropped files.
        self._removals: list[tuple[int, int, str, tuple[str, ...]]] = []
        self._order = 0

    def start(self) -> None:
        """Starts the intervals now."""
        for name, interval in self._every.items():
            heappush(self._due, (self._node.now_ms + interval, name))
        self._note_next()

    def settings_changed(self) -> None:
        """Adopts a changed interval."""
        every, at_most = self._backoff_ms(), self._node.now_ms + self._backoff_ms()
        if every != self._every["compaction"]:
            self._every["compaction"] = every
            self._due = [(min(at, at_most) if name == "compaction" else at, name) for at, name in self._due]
            heapify(self._due)
            self._note_next()

    def _backoff_ms(self) -> int:
        return max(self._node.options.log_cleaner_backoff_ms, BACKOFF_MIN_MS)

    def tick(self) -> None:
        """Runs tasks that are due."""
        now = self._node.now_ms
        while self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            heappush(self._due, (now + self._every[name], name))
            self._work[name]()
        while self._removals and self._removals[0][0] <= now:
            _, _, root, paths = heappop(self._removals)
            self._node.effects.append(effects.Remove(directory=root, paths=paths))
        self._note_next()

    @indivisible
    def remove_later(self, root: str, paths: tuple[str, ...], delay_ms: int) -> None:
        """Unlinks dropped files after a delay, for fetches that still send from them."""
        if paths:
            self._order += 1
            heappush(self._removals, (self._node.now_ms + delay_ms, self._order, root, paths))
            self._note_next()

    def _note_next(self) -> None:
        self.next_ms = min((due[0][0] for due in (self._due, self._removals) if due), default=None)

    def _retain(self) -> None:
        self._remove_strays()
        partitions, wall_ms = self._node.partitions, self._node.wall_ms
        for leader in list(partitions.leaders.values()):
            with partitions.guarded(leader.directory):
                dropped = leader.log.retain(wall_ms, leader.high_watermark)
                if dropped:
                    partitions.dropped(leader, dropped)
                elif leader.log.pending.any:
                    # Expired segments are dropped when the name of the next segment is durable.
                    partitions.wrote(leader)

    def _remove_strays(self) -> None:
        kept_ms = self._node.options.stray_retention_ms
        for directory in self._node.directories if kept_ms >= 0 else ():
            paths = directory.expired_strays(self._node.wall_ms - kept_ms)
            if paths:
                self._node.effects.append(effects.Remove(directory=directory.root, paths=paths))

    @indivisible
    def checkpoint(self, directory: LogDirectory) -> None:
        """Writes recovery points, log starts and high watermarks of a directory."""
        files = directory.checkpoint_files(self._node.partitions.high_watermarks(directory))
        self._node.effects.append(effects.ReplaceFiles(directory=directory.root, files=tuple(files)))

    def _checkpoint(self) -> None:
        for directory in self._node.directories:
            if directory.failed is None:
                with self._node.partitions.guarded(directory):
                    self.checkpoint(directory)

    def _forget_producers(self) -> None:
        """Expires idle producers and, above the limit, producers of the partitions with the most."""
        node, options = self._node, self._node.options
        logs = [replica.log for replica in node.partitions.replicas()]
        for log in logs:
            log.expire_producers(node.wall_ms, options.producer_id_expiration_ms)
        share = even_share([len(log.producers.by_id) for log in logs], options.producer_ids_max)
        if share is None:
            return
        for log in logs:
            excess = len(log.producers.by_id) - share
            if excess > 0:
                log.forget_oldest_producers(excess)

    def _flush_old(self) -> None:
        """With write caching: flushes records required by flush.ms or flush.messages, and names of new segments."""
        for replica in self._node.partitions.replicas():
            if replica.caching and (replica.flush_due(self._node.now_ms) or replica.wants_flush()):
                self._node.partitions.dirty[replica.partition] = replica


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
