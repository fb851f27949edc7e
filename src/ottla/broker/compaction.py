"""Which compacted partitions are compacted, and when: the dirtiest first, a few at once.

::

    tick, or an end ──▶ dirt of each log ──▶ Clean(plan) ──▶ Cleaned(result) ──▶ swap, in one step
                                              off the loop     └─ or abandoned: the log is not the one it was, or there was no room

One compaction of a partition is under way at most, whoever leads it meanwhile: its files have the names of the partition. What it made is
thrown away when the log was truncated, dropped or is no longer led here; nothing refers to it before the swap.

A log with a damaged batch is left alone from then on, and the operator is told once: its readers meet the damage where it is, and what
compaction would do behind it nobody could tell. A restart tries again.
"""

from typing import TYPE_CHECKING

import msgspec

from ottla.base.ids import TopicPartition
from ottla.broker import effects, events
from ottla.broker.leader import Leader
from ottla.log.cleaner import Dirt, Means, dirt, is_due, leftovers, plan, swap
from ottla.log.cleaning import CleaningPlan
from ottla.log.errors import CorruptLog
from ottla.log.log import Log

if TYPE_CHECKING:
    from ottla.broker.node import Node

SECRET_BYTES = 16


class Work(msgspec.Struct):
    """A compaction under way."""

    leader: Leader
    found: Dirt
    plan: CleaningPlan


class Compaction:
    """See the module's theory."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.under_way: dict[TopicPartition, Work] = {}
        #: Logs with a damaged batch.
        self.uncleanable: dict[TopicPartition, Log] = {}

    def tick(self) -> None:
        """Every log.cleaner.backoff.ms: begin what is due, and let go of work that nobody wants any more."""
        leaders = self._node.partitions.leaders
        for partition, work in self.under_way.items():
            work.plan.wanted = leaders.get(partition) is work.leader
        for partition, log in list(self.uncleanable.items()):
            leader = leaders.get(partition)
            if leader is not None and leader.log is not log:
                del self.uncleanable[partition]
        self._begin_due()

    def cleaned(self, event: events.Cleaned) -> None:
        """A compaction was carried out, or could not be."""
        work = self.under_way.pop(event.partition)
        leader, log = work.leader, work.leader.log
        led = self._node.partitions.leaders.get(event.partition) is leader
        if event.damage and led and log.truncations == work.found.truncations:
            self._leave_alone(leader, event.damage)
        if leader.directory.failed is not None:
            return
        removed: tuple[str, ...] | None = None
        with self._node.partitions.guarded(leader.directory):
            if event.result is not None and led:
                removed = swap(log, work.found, event.result, self._node.wall_ms)
            if removed is None:
                for path in leftovers(work.plan):
                    log.disk.unlink(path)
        if removed is not None:
            self._node.partitions.dropped(leader, removed)
            self._begin_due()

    def _begin_due(self) -> None:
        options = self._node.options
        free = options.log_cleaner_threads - len(self.under_way)
        if not options.log_cleaner_enable or self._node.stopping or free <= 0:
            return
        due: list[tuple[Leader, Dirt]] = []
        for partition, leader in list(self._node.partitions.leaders.items()):
            if leader.options.compacts and partition not in self.under_way and partition not in self.uncleanable:
                found = self._dirt(leader)
                if found is not None and is_due(leader.log, found):
                    due.append((leader, found))
        due.sort(key=lambda entry: entry[1].ratio, reverse=True)
        for leader, found in due[:free]:
            with self._node.partitions.guarded(leader.directory):
                self._begin(leader, found)

    def _dirt(self, leader: Leader) -> Dirt | None:
        with self._node.partitions.guarded(leader.directory):
            try:
                return dirt(leader.log, high_watermark=leader.high_watermark, now_ms=self._node.wall_ms)
            except CorruptLog as error:
                self._leave_alone(leader, str(error))
        return None

    def _begin(self, leader: Leader, found: Dirt) -> None:
        node, log, options = self._node, leader.log, self._node.options
        means = Means(
            buffer_bytes=options.log_cleaner_dedupe_buffer_size // options.log_cleaner_threads,
            load_factor=options.log_cleaner_load_factor,
            chunk_bytes=options.log_cleaner_io_buffer_size // options.log_cleaner_threads,
            secret=node.rng.randbytes(SECRET_BYTES),
        )
        work = Work(leader, found, plan(log, found, means=means, now_ms=node.wall_ms))
        self.under_way[leader.partition] = work
        node.effects.append(
            effects.Clean(
                partition=leader.partition,
                directory=leader.directory.root,
                plan=work.plan,
                bytes_per_second=options.log_cleaner_io_max_bytes_per_second,
            )
        )

    def _leave_alone(self, leader: Leader, damage: str) -> None:
        self.uncleanable[leader.partition] = leader.log
        self._node.effects.append(
            effects.Warn(message=f"{leader.partition} in {leader.directory.root} is not compacted any more until a restart: {damage}")
        )
