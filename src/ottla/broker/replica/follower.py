"""A partition on a follower: a copy of the leader's log, truncated where it diverges.

::

    log start        high watermark          recovery point      log end
    |-- as on the leader ----|                     |-- not on disk --|
    +------------------------+---------------------+-----------------+
                                                   ^ fetch offset: everything below is on disk here

A follower's fetch offset tells the leader what is **on its disk** (with ``write.caching``: in its page cache). Batches keep their offsets
and epochs. A batch whose epoch is later than the leader epoch known here comes from a leader that is not known yet, and is skipped. If the
leader reports that the last batch's epoch ended earlier, the follower truncates its log there and fetches again. High watermark and log
start follow the leader's. The log start of a fetch is the recorded one, so that the leader can acknowledge a deletion.

Source: KIP-101, KIP-279, KIP-320, KIP-595 (divergence in Fetch); KAFKA-18723 (later epochs), KAFKA-15510 (the last epoch is read from the
log).
"""

from ottla.base.ids import Offset, TopicPartition
from ottla.broker.replica.flush_policy import Flushing
from ottla.broker.replica.reads import Readable
from ottla.broker.replica.traffic import TopicTraffic
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.records.batch import BatchHeader, crc_ok, headers
from ottla.store.layout import PartitionState


class Unsound(Exception):
    """The leader's data cannot be a copy of its log: damaged in transit, or not what was requested."""


class Follower(Flushing, Readable):
    """A follower of a partition. All methods are synchronous and may raise the disk's OSError."""

    follows = True

    __slots__ = (
        "counted",
        "directory",
        "epoch",
        "failures",
        "high_watermark",
        "leader",
        "not_before_ms",
        "partition",
        "recording_start",
        "refused",
        "traffic",
        "waits",
    )

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        directory: LogDirectory,
        options: TopicOptions,
        state: PartitionState,
        high_watermark: int,
    ) -> None:
        self.partition = partition
        self.log = log
        self.directory = directory
        self.follow_options(options)
        #: Never above the log end; decreases only with it.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self._flush_wanted = False
        self._unflushed_since_ms: int | None = None
        #: The leader is not asked again before then, after this many failures in a row.
        self.not_before_ms = 0
        self.failures = 0
        #: Why the last data of the leader was not written; empty if it was.
        self.refused = ""
        #: The log is damaged, and the replica still counts: it does not fetch until that ends.
        self.waits = False
        #: The log start moved and is being recorded; the next fetch reports it.
        self.recording_start = False
        #: The epoch and the maximal ISR of this replica's time as leader. They count if it leads again in that epoch.
        self.counted: tuple[int, tuple[int, ...]] = (-1, ())
        #: Counters of its topic; set by ``Partitions``.
        self.traffic = TopicTraffic()
        self.follow_state(state)

    def follow_options(self, options: TopicOptions) -> None:
        self.options = options
        self.log.set_options(options)
        self.caching = options.write_caching

    def follow_state(self, state: PartitionState) -> None:
        """Adopts the leader of a new state; -1 for none."""
        self.leader = state.leader
        self.epoch = state.leader_epoch
        self.not_before_ms = self.failures = 0

    # Requests.

    @property
    def settled(self) -> bool:
        """Whether the whole log is where the leader may count on it."""
        return (self.caching or self.log.recovery_point >= self.log.end_offset) and not self.recording_start

    @property
    def reported_start(self) -> int:
        """The log start of fetch requests: the recorded one, which a crash cannot take back."""
        return min(self.log.start_offset, self.log.recorded_start)

    # Responses.

    def append(self, data: bytes | bytearray | memoryview, *, high_watermark: int, wall_ms: int) -> int:
        """Appends the whole batches in ``data``, of which the last may be incomplete; returns their number.

        Compaction leaves holes only below the leader's high watermark, so one note of holes covers all that exist when a follower starts
        to catch up.

        Raises: Unsound, after earlier batches were written; OSError.
        """
        count = 0
        view = memoryview(data)
        batches = iter(headers(view))
        following = next(batches, None)
        while following is not None:
            position, header = following
            following = next(batches, None)
            if header.last_offset < self.log.end_offset:
                continue
            if header.leader_epoch > self.epoch:
                break
            self._check(view, position, header)
            if header.base_offset > self.log.end_offset:
                if following is None and count:
                    break  # The next response begins with it and has its successor.
                self._check_hole(header, None if following is None else following[1], high_watermark)
                if header.base_offset > self.log.holes_below:
                    self.log.allow_holes(max(header.base_offset, high_watermark))
            batch = view[position : position + header.size]
            self.log.append(batch, header, leader_epoch=header.leader_epoch, now_ms=wall_ms, copy=True)
            count += 1
        return count

    def _check(self, view: memoryview, position: int, header: BatchHeader) -> None:
        if header.base_offset < self.log.end_offset:
            raise Unsound(f"a batch begins at {header.base_offset}, inside the log that ends at {self.log.end_offset}")
        if header.leader_epoch < self.log.epochs.latest:
            raise Unsound(f"a batch of epoch {header.leader_epoch} at {header.base_offset} follows epoch {self.log.epochs.latest}")
        if not crc_ok(view, position):
            raise Unsound(f"the batch at {header.base_offset} does not match its checksum")

    def _check_hole(self, header: BatchHeader, following: BatchHeader | None, high_watermark: int) -> None:
        """A batch may follow a hole of the leader's compaction. Such a hole is below the high watermark, and the batch does not overlap
        the next one. Otherwise its base offset, which no checksum covers, is damaged. Raises: Unsound.
        """
        end_offset, last_offset = self.log.end_offset, header.last_offset
        if last_offset >= high_watermark:
            raise Unsound(f"a batch says offset {header.base_offset} where {end_offset} is due; the high watermark is {high_watermark}")
        if following is not None and following.base_offset <= last_offset:
            said = f"a batch says offsets {header.base_offset} to {last_offset} where {end_offset} is due"
            raise Unsound(f"{said}; the next one says {following.base_offset}")

    def begins_before(self, data: bytes | bytearray | memoryview) -> int | None:
        """The base offset of the leader's first batch, if this empty log starts inside it: after records were deleted up to the middle of a
        batch, whose first offset no log end matches. None otherwise. Raises: RecordsError.

        Source: Kafka's UnexpectedAppendOffsetException.
        """
        end_offset = self.log.end_offset
        if self.log.start_offset != end_offset:
            return None
        view = memoryview(data)
        position, header = next(iter(headers(view)), (0, None))
        if header is None or not header.base_offset < end_offset <= header.last_offset or not crc_ok(view, position):
            return None
        return header.base_offset

    def follow_marks(self, *, high_watermark: int, log_start: int, wall_ms: int) -> tuple[str, ...]:
        """Adopts the leader's high watermark and log start; returns renamed files to be removed later."""
        log = self.log
        removed: tuple[str, ...] = ()
        if log_start > log.start_offset:
            removed = log.delete_before(min(log_start, log.end_offset), wall_ms)
        self.high_watermark = max(self.high_watermark, log.start_offset, min(high_watermark, log.end_offset))
        return removed

    @property
    def paused(self) -> bool:
        """Whether it must not fetch: it waits for the brokers that count on it, or for the record of a truncation."""
        return self.waits or self.log.unrecorded

    def diverged(self, epoch: int, end_offset: int, *, wall_ms: int) -> tuple[str, ...]:
        """On the leader, ``epoch``, the last common epoch or an earlier one, ended at ``end_offset``: truncates the log to the common part.
        If this replica has only an earlier epoch, it truncates to that epoch's end here, and the next fetch continues from there.
        """
        own = self.log.epochs.end_of(epoch)
        if own is None:
            to = end_offset
        else:
            to = own[1] if own[0] != epoch else min(own[1], end_offset)
        return self._cut(min(to, self.log.end_offset), wall_ms)

    def _cut(self, offset: int, wall_ms: int) -> tuple[str, ...]:
        removed = self.log.truncate_to(max(offset, self.log.start_offset), wall_ms)
        self.high_watermark = min(self.high_watermark, self.log.end_offset)
        return removed

    def cut_damage(self, offset: int, *, wall_ms: int) -> tuple[str, ...]:
        """The batch at ``offset`` is damaged: truncates, so that everything from there is copied again."""
        return self._cut(offset, wall_ms)

    def begin_anew(self, log_start: int, *, wall_ms: int) -> tuple[str, ...]:
        """The leader's log has nothing of this one: starts again at the leader's log start."""
        removed = self.log.restart_at(log_start, wall_ms)
        self.high_watermark = Offset(log_start)
        return removed

    # Durability.

    def flushed(self, upto: Offset) -> bool:
        """A flush was carried out; no request waits for a follower's high watermark."""
        self._flush_wanted = False
        self._unflushed_since_ms = None
        self.log.flushed(upto)
        return False
