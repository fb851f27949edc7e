"""Schedules scrubs: every log is compared with its checksums once per ottla.log.scrub.interval.ms, segment by segment.

::

    tick ──▶ the log scrubbed longest ago ──▶ Scrub(plan of one segment) ──▶ Scrubbed(result) ──▶ next segment ... next log
    look_at (suspected damage) ──────────────────▲    off the loop             └─ damage: registration/replica_health.py

Fetches send files without reading them, so only the scrub detects damage, at a low rate. At most one scrub of a broker is in progress. The
position and time of each log's scrub are in ``scrub-checkpoint`` of its log directory, so a restart continues there. A log without an
entry is due at a point of the interval that depends on its name; new logs are due one interval after their creation.

``look_at`` scrubs a segment soon and faster: after a follower repeatedly fetched the same batch, an inconsistent index or header, or a
failed compaction. Reason: the checksum of a batch covers neither base offset nor epoch, and Kafka checks neither after the append.
"""

import msgspec

from ottla.base.ids import Offset, TopicPartition
from ottla.base.log_levels import STORAGE
from ottla.base.units import MINUTE_MS, SECOND_MS, MiB
from ottla.broker import effects, events
from ottla.broker.context import BrokerContext
from ottla.broker.isolation import indivisible
from ottla.broker.registration.replica_health import ReplicaHealth
from ottla.broker.replica.follower import Follower
from ottla.broker.replica.leader import Leader
from ottla.broker.replica.replicas import Replicas
from ottla.log.directory import LogDirectory, ScrubProgress
from ottla.log.log import Log
from ottla.log.scrub_schedule import SegmentScrub, plan_scrub, repair_index, still_holds

#: Minimum of the computed rate, bytes per second.
RATE_MIN = MiB
#: Share of the interval that a pass takes at the computed rate. The rest is for growth and downtime.
SHARE = 0.5
#: Bytes per second of a requested scrub.
LOOK_RATE = 64 * MiB
#: Minimum time between two requested scrubs of a segment.
LOOK_AGAIN_MS = MINUTE_MS
#: Interval at which due logs are counted.
COUNT_MS = MINUTE_MS


class ScrubRun(msgspec.Struct):
    """A scrub in progress."""

    replica: Leader | Follower
    part: SegmentScrub
    #: Whether it is part of a pass through the whole log.
    in_pass: bool


class Scrubs:
    """Scrubs of this broker."""

    def __init__(self, context: BrokerContext, replicas: Replicas, replica_health: ReplicaHealth) -> None:
        self._context = context
        self._replicas = replicas
        self._replica_health = replica_health
        self._under_way: ScrubRun | None = None
        #: Offsets to scrub soon, by partition; True: everything after, too.
        self._looks: dict[TopicPartition, tuple[int, bool]] = {}
        #: When each segment was last scrubbed on request.
        self._looked: dict[tuple[TopicPartition, Offset], int] = {}
        #: Logs that are due, the one scrubbed longest ago last.
        self._due: list[TopicPartition] = []
        self._counted_ms: int | None = None
        self._bytes_per_second = float(RATE_MIN)

    @indivisible
    def look_at(self, replica: Leader | Follower, offset: int, *, whole: bool) -> None:
        """Scrubs the segment with this offset soon, or all segments from there."""
        log = replica.log
        base = log.bases[log.segment_of(offset)]
        looked_ms = self._looked.get((replica.partition, base))
        if not whole and looked_ms is not None and self._context.now_ms - looked_ms < LOOK_AGAIN_MS:
            return
        self._looks.setdefault(replica.partition, (max(offset, log.start_offset), whole))
        self._begin()

    def tick(self) -> None:
        """Starts the scrubs that are due."""
        now = self._context.now_ms
        if self._counted_ms is None or now - self._counted_ms >= min(COUNT_MS, max(self._interval_ms // 8, SECOND_MS)):
            self._counted_ms = now
            self._count()
        self._begin()

    def scrubbed(self, event: events.Scrubbed) -> None:
        """A scrub ended."""
        work, self._under_way = self._under_way, None
        assert work is not None, "one scrub is under way"
        replica = self._replicas.replica(event.partition)
        result = event.result
        if result is None or replica is None or replica.log is not work.replica.log or not still_holds(replica.log, work.part):
            # The log was replaced: the next tick continues.
            return
        with self._replicas.guarded(replica.directory):
            if result.index:
                where = f"{replica.partition} in {replica.directory.root}: the offset index of segment {work.part.plan.base_offset}"
                self._context.log.warn(STORAGE, f"{where} {result.index}; it is rebuilt")
                repair_index(work.part, result)
            if work.in_pass:
                self._advance(replica, work.part)
            self._replica_health.scrubbed(replica, work.part.segment, result.damages)
        self._begin()

    @property
    def _interval_ms(self) -> int:
        return self._context.options.log_scrub_interval_ms

    def _begin(self) -> None:
        if self._under_way is not None or self._context.stopping:
            return
        held = self._replicas.replica
        while self._looks:
            partition, (offset, whole) = next(iter(self._looks.items()))
            replica = held(partition)
            found = self._look(replica, offset, whole=whole) if replica is not None else None
            if replica is not None and found is not None:
                self._start(replica, found, LOOK_RATE, in_pass=False)
                return
        while self._due and self._interval_ms > 0:
            replica = held(self._due[-1])
            found = self._next(replica) if replica is not None else None
            if replica is not None and found is not None:
                self._start(replica, found, self._rate(), in_pass=True)
                return
            self._due.pop()

    def _start(self, replica: Leader | Follower, found: SegmentScrub, rate: float, *, in_pass: bool) -> None:
        self._under_way = ScrubRun(replica, found, in_pass)
        self._context.effects.append(
            effects.Scrub(partition=replica.partition, directory=replica.directory.root, plan=found.plan, bytes_per_second=rate)
        )

    def _look(self, replica: Leader | Follower, offset: int, *, whole: bool) -> SegmentScrub | None:
        """The segment to scrub; the next one follows if all are requested."""
        log, partition = replica.log, replica.partition
        del self._looks[partition]
        index = log.segment_of(offset)
        self._looked[partition, log.bases[index]] = self._context.now_ms
        if len(self._looked) > 10_000:
            self._looked.clear()
        if whole and index + 1 < len(log.bases):
            self._looks[partition] = (log.bases[index + 1], True)
        return plan_scrub(log, index)

    # Passes.

    def _count(self) -> None:
        """Finds logs that are due and computes the rate."""
        if self._interval_ms <= 0:
            self._due = []
            return
        wall_ms, total_bytes = self._context.wall_ms, 0
        due: list[tuple[int, TopicPartition]] = []
        for replica in self._replicas.replicas():
            total_bytes += replica.log.size
            mark = self._mark(replica.directory, replica.log)
            # A mark from the future comes from a wrong clock.
            if mark.offset >= 0 or not 0 <= wall_ms - mark.done_ms < self._interval_ms:
                due.append((mark.done_ms, replica.partition))
        due.sort(reverse=True)
        self._due = [partition for _, partition in due]
        self._bytes_per_second = max(total_bytes / (self._interval_ms / SECOND_MS * SHARE), RATE_MIN)

    def _rate(self) -> float:
        rate = self._context.options.log_scrub_bytes_per_second
        return rate if rate > 0 else self._bytes_per_second

    def _mark(self, directory: LogDirectory, log: Log) -> ScrubProgress:
        """Scrub position of a log; logs without a mark are spread over the interval."""
        mark = directory.scrubs.get(log.partition)
        if mark is None:
            before_ms = 0
            if log.end_offset > log.start_offset:
                spread = sum(log.partition.topic.encode()) * 31 + log.partition.partition * 7
                before_ms = self._interval_ms * (spread % 97) // 97
            mark = directory.scrubs[log.partition] = ScrubProgress(done_ms=self._context.wall_ms - before_ms)
        return mark

    def _next(self, replica: Leader | Follower) -> SegmentScrub | None:
        """The next segment of a log's pass; None at its end."""
        log = replica.log
        mark = self._mark(replica.directory, log)
        for index in range(log.segment_of(max(mark.offset, log.start_offset)), len(log.segments)):
            found = plan_scrub(log, index)
            if found is not None:
                return found
        mark.offset, mark.done_ms = -1, self._context.wall_ms
        return None

    def _advance(self, replica: Leader | Follower, done: SegmentScrub) -> None:
        log = replica.log
        mark = self._mark(replica.directory, log)
        if done.segment is log.segments[-1] or done.plan.bound >= log.end_offset:
            mark.offset, mark.done_ms = -1, self._context.wall_ms
            if self._due and self._due[-1] == replica.partition:
                self._due.pop()
        else:
            mark.offset = done.plan.bound
