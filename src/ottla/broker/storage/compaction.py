"""Schedules compactions: the dirtiest logs first, a few at once.

::

    tick, or an end ──▶ dirty range of each log ──▶ Clean(plan) ──▶ Cleaned(result) ──▶ swap, in one step
                                              off the loop     └─ or abandoned: the log changed, or there was no space

At most one compaction of a partition is in progress, also across leader changes, because its files are named after the partition. Its
result is discarded if the log was truncated or removed, or its leader changed; nothing refers to it before the swap. Followers compact
their own logs.

A log with a damaged batch is not compacted any more, with one warning: readers get the error at the damage. A restart tries again.
"""

import msgspec

from ottla.base.ids import TopicPartition
from ottla.base.log_levels import STORAGE, LogLevel
from ottla.broker import effects, events
from ottla.broker.context import BrokerContext
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas
from ottla.broker.storage.scrubs import Scrubs
from ottla.log.compaction import CompactionResources, DirtyRange, cleaned_paths, dirty_range, is_due, plan, swap
from ottla.log.compactor import CompactionPlan
from ottla.log.errors import CorruptLog
from ottla.log.log import Log

SECRET_BYTES = 16


class CompactionRun(msgspec.Struct):
    """A compaction in progress."""

    replica: Leader | Follower
    found: DirtyRange
    plan: CompactionPlan


class Compaction:
    """Compactions of this broker."""

    def __init__(self, context: BrokerContext, replicas: Replicas, scrubs: Scrubs) -> None:
        self._context = context
        self._replicas = replicas
        self._scrubs = scrubs
        self.under_way: dict[TopicPartition, CompactionRun] = {}
        #: Logs with a damaged batch.
        self.uncleanable: dict[TopicPartition, Log] = {}

    def tick(self) -> None:
        """Every log.cleaner.backoff.ms: starts compactions that are due, and drops plans that do not apply any more."""
        held = self._replicas.replica
        for partition, work in self.under_way.items():
            work.plan.wanted = held(partition) is work.replica
        for partition, log in list(self.uncleanable.items()):
            replica = held(partition)
            if replica is not None and replica.log is not log:
                del self.uncleanable[partition]
        self._begin_due()

    def cleaned(self, event: events.Cleaned) -> None:
        """A compaction succeeded or failed."""
        work = self.under_way.pop(event.partition)
        replica, log = work.replica, work.replica.log
        ours = self._replicas.replica(event.partition) is replica
        if event.damage and ours and log.truncations == work.found.truncations:
            self._leave_alone(replica, event.damage)
        if replica.directory.failed is not None:
            return
        removed: tuple[str, ...] | None = None
        with self._replicas.guarded(replica.directory):
            if event.result is not None and ours:
                removed = swap(log, work.found, event.result, self._context.wall_ms)
            if removed is None:
                for path in cleaned_paths(work.plan):
                    log.disk.unlink(path)
        if removed is not None:
            self._context.log.many(STORAGE, "compacted ", event.partition, level=LogLevel.DEBUG, files=len(removed))
            self._replicas.dropped(replica, removed)
            self._begin_due()

    def _begin_due(self) -> None:
        options = self._context.options
        free = options.log_cleaner_threads - len(self.under_way)
        if not options.log_cleaner_enable or self._context.stopping or free <= 0:
            return
        due: list[tuple[Leader | Follower, DirtyRange]] = []
        for replica in list(self._replicas.replicas()):
            partition = replica.partition
            if replica.options.compacts and partition not in self.under_way and partition not in self.uncleanable:
                found = self._dirt(replica)
                if found is not None and is_due(replica.log, found):
                    due.append((replica, found))
        due.sort(key=lambda entry: entry[1].ratio, reverse=True)
        for replica, found in due[:free]:
            with self._replicas.guarded(replica.directory):
                self._begin(replica, found)

    def _dirt(self, replica: Leader | Follower) -> DirtyRange | None:
        with self._replicas.guarded(replica.directory):
            try:
                return dirty_range(replica.log, high_watermark=replica.high_watermark, now_ms=self._context.wall_ms)
            except CorruptLog as error:
                self._leave_alone(replica, str(error))
        return None

    def _begin(self, replica: Leader | Follower, found: DirtyRange) -> None:
        context, log, options = self._context, replica.log, self._context.options
        means = CompactionResources(
            buffer_bytes=options.log_cleaner_dedupe_buffer_size // options.log_cleaner_threads,
            load_factor=options.log_cleaner_load_factor,
            chunk_bytes=options.log_cleaner_io_buffer_size // options.log_cleaner_threads,
            secret=context.rng.randbytes(SECRET_BYTES),
        )
        work = CompactionRun(replica, found, plan(log, found, means=means, now_ms=context.wall_ms))
        self.under_way[replica.partition] = work
        context.effects.append(
            effects.Clean(
                partition=replica.partition,
                directory=replica.directory.root,
                plan=work.plan,
                bytes_per_second=options.log_cleaner_io_max_bytes_per_second,
            )
        )

    def _leave_alone(self, replica: Leader | Follower, damage: str) -> None:
        self.uncleanable[replica.partition] = replica.log
        self._scrubs.look_at(replica, replica.log.start_offset, whole=True)
        self._context.log.warn(STORAGE, f"{replica.partition} in {replica.directory.root} is not compacted until a restart: {damage}")
