"""What a broker does by the clock: retention, compaction, checkpoints, forgetting silent producers, removing dropped files late."""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from ottla.base.units import SECOND_MS
from ottla.broker import effects
from ottla.log.directory import LogDirectory

if TYPE_CHECKING:
    from ottla.broker.node import Node


class Upkeep:
    """Periodic work. Each kind has its own interval; ``tick`` does what is due."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        options = node.options
        #: When ``tick`` has something to do; None before ``start``.
        self.next_ms: int | None = None
        #: (due at, name) of each kind, soonest first.
        self._due: list[tuple[int, str]] = []
        self._every = {
            "retention": options.log_retention_check_interval_ms,
            "checkpoints": options.log_flush_checkpoint_interval_ms,
            "producers": 10 * SECOND_MS,
            "controller": SECOND_MS,
            "standing": SECOND_MS,
            "unfit": SECOND_MS,
            "flush_ms": SECOND_MS,
            "isr": max(min(options.replica_lag_time_max_ms // 2, SECOND_MS), 1),
        }
        self._work = {
            "retention": self._retain,
            "checkpoints": self._checkpoint,
            "producers": self._forget_producers,
            "controller": node.controller.tick,
            "standing": node.standing.tick,
            "unfit": node.unfit.tick,
            "flush_ms": self._flush_old,
            "isr": node.isr_changes.tick,
            "compaction": node.compaction.tick,
        }
        #: (due at, order, log directory, paths) of dropped files.
        self._removals: list[tuple[int, int, str, tuple[str, ...]]] = []
        self._order = 0

    def start(self) -> None:
        """Begin to count intervals from now."""
        for name in self._work:
            heappush(self._due, (self._node.now_ms + self._interval_ms(name), name))
        self._note_next()

    def _interval_ms(self, name: str) -> int:
        # The only one that may change while the broker runs.
        return max(self._node.options.log_cleaner_backoff_ms, 1) if name == "compaction" else self._every[name]

    def tick(self) -> None:
        """Do what is due."""
        now = self._node.now_ms
        while self._due and self._due[0][0] <= now:
            _, name = heappop(self._due)
            heappush(self._due, (now + self._interval_ms(name), name))
            self._work[name]()
        while self._removals and self._removals[0][0] <= now:
            _, _, root, paths = heappop(self._removals)
            self._node.effects.append(effects.Remove(directory=root, paths=paths))
        self._note_next()

    def remove_later(self, root: str, paths: tuple[str, ...], delay_ms: int) -> None:
        """Unlink dropped files after a delay, for fetches that still send from them."""
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
                    # What has expired goes once the name of the segment behind it is durable.
                    partitions.wrote(leader)

    def _remove_strays(self) -> None:
        kept_ms = self._node.options.stray_retention_ms
        for directory in self._node.directories if kept_ms >= 0 else ():
            paths = directory.expired_strays(self._node.wall_ms - kept_ms)
            if paths:
                self._node.effects.append(effects.Remove(directory=directory.root, paths=paths))

    def checkpoint(self, directory: LogDirectory) -> None:
        """Have recovery points, log starts and high watermarks of a directory written down, as they are now."""
        files = directory.checkpoint_files(self._node.partitions.high_watermarks(directory))
        self._node.effects.append(effects.ReplaceFiles(directory=directory.root, files=tuple(files)))

    def _checkpoint(self) -> None:
        for directory in self._node.directories:
            if directory.failed is None:
                with self._node.partitions.guarded(directory):
                    self.checkpoint(directory)

    def _forget_producers(self) -> None:
        for replica in self._node.partitions.replicas():
            replica.log.expire_producers(self._node.wall_ms, self._node.options.producer_id_expiration_ms)

    def _flush_old(self) -> None:
        """Under write caching: records when flush.ms or flush.messages ask for them on disk, and names that a new segment brought."""
        for replica in self._node.partitions.replicas():
            if replica.caching and (replica.flush_due(self._node.now_ms) or replica.wants_flush()):
                self._node.partitions.dirty[replica.partition] = replica
