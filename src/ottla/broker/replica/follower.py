"""A partition as its follower sees it: a copy that grows at its end, cut back where its history parts from the leader's.

::

    log start        high watermark          recovery point      log end
    |-- as the leader says --|                     |-- not on disk --|
    +------------------------+---------------------+-----------------+
                                                   ^ what it fetches from: all below is safe here

A follower says by the offset it fetches from what it holds **on disk** (``write.caching``: in its page cache), so that the leader may
count on it. Batches keep their offsets and epochs. One whose epoch is later than the follower's own knowledge of the leader was written
by a leader that it has not heard of yet, and is left out. Where the leader finds that the last batch's epoch ended earlier with it, the
follower cuts its log there, and asks again. High watermark and log start follow the leader's.

Source: KIP-101, KIP-279, KIP-320, KIP-595 (divergence in Fetch); KAFKA-18723 (later epochs), KAFKA-15510 (the last epoch comes from the
log, not from what was fetched last).
"""

from collections.abc import Iterable

from ottla.base.ids import Offset, TopicPartition
from ottla.broker.replica.flush_policy import Flushing
from ottla.broker.replica.reads import Readable
from ottla.log.directory import LogDirectory
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.records.batch import BatchHeader, crc_ok, headers
from ottla.store.layout import PartitionState


class Unsound(Exception):
    """What the leader sent cannot be a copy of its log: damaged on the way, or not what was asked for."""


class Follower(Flushing, Readable):
    """See the module's theory. One owner, the node; every method is synchronous and passes on the disk's OSError."""

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
        "refused",
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
        #: Never above the log end; falls only with it.
        self.high_watermark = min(max(high_watermark, log.start_offset), log.end_offset)
        self._flush_wanted = False
        self._unflushed_since_ms: int | None = None
        #: The leader is not asked again before then, after so many failures in a row.
        self.not_before_ms = 0
        self.failures = 0
        #: Why what the leader sent last was not written; empty when it was.
        self.refused = ""
        #: Its log is damaged, and it is still counted on: until that ends it asks for nothing.
        self.waits = False
        #: Of this replica as a leader: an epoch, and the members of its maximal ISR. Should it go on leading in that epoch, they count.
        self.counted: tuple[int, tuple[int, ...]] = (-1, ())
        self.follow_state(state)

    def follow_options(self, options: TopicOptions) -> None:
        self.options = options
        self.log.set_options(options)
        self.caching = options.write_caching

    def follow_state(self, state: PartitionState) -> None:
        """The controller wrote who leads now; -1 when nobody does."""
        self.leader = state.leader
        self.epoch = state.leader_epoch
        self.not_before_ms = self.failures = 0

    # What it asks for.

    @property
    def settled(self) -> bool:
        """Whether all of the log is where its leader may count on it."""
        return self.caching or self.log.recovery_point >= self.log.end_offset

    # What it hears.

    def append(self, data: bytes | bytearray | memoryview, *, high_watermark: int, wall_ms: int) -> int:
        """Write the whole batches in ``data``, the last of which may be cut off; returns how many were written.

        Compaction leaves holes below the leader's high watermark only, so one note of them, which waits for the disk, is enough for all
        that are there when a follower begins to catch up.

        Raises: Unsound, with what comes before already written; OSError.
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
                    break  # The next answer begins with it, and has what follows it.
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
        """A batch may begin behind a hole that the leader's compaction left. Such a hole lies below the high watermark, and the batch does
        not overlap the one behind it. Else its base offset, which no checksum covers, is damaged. Raises: Unsound."""
        end_offset, last_offset = self.log.end_offset, header.last_offset
        if last_offset >= high_watermark:
            raise Unsound(f"a batch says offset {header.base_offset} where {end_offset} is due; the high watermark is {high_watermark}")
        if following is not None and following.base_offset <= last_offset:
            said = f"a batch says offsets {header.base_offset} to {last_offset} where {end_offset} is due"
            raise Unsound(f"{said}; the next one says {following.base_offset}")

    def follow_marks(self, *, high_watermark: int, log_start: int, wall_ms: int) -> tuple[str, ...]:
        """The leader told its marks; returns files that were renamed, to be removed later."""
        log = self.log
        removed: tuple[str, ...] = ()
        if log_start > log.start_offset:
            removed = log.delete_before(min(log_start, log.end_offset), wall_ms)
        self.high_watermark = max(self.high_watermark, log.start_offset, min(high_watermark, log.end_offset))
        return removed

    def diverged(self, epoch: int, end_offset: int, *, wall_ms: int) -> tuple[str, ...]:
        """With the leader ``epoch``, the last one that it shares with us, or an earlier one, ended at ``end_offset``: cut the log to what
        both may have. Where we know an earlier epoch only, that is as far as it went here, and the next fetch goes on from there."""
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
        """The batch at ``offset`` is damaged: what is behind is to be copied again."""
        return self._cut(offset, wall_ms)

    def begin_anew(self, log_start: int, *, wall_ms: int) -> tuple[str, ...]:
        """The leader's log has nothing of what we hold, or would ask for: begin where it begins."""
        removed = self.log.restart_at(log_start, wall_ms)
        self.high_watermark = Offset(log_start)
        return removed

    # Durability, as of a leader.

    def flushed(self, upto: Offset) -> bool:
        """A flush was carried out; nobody waits for a follower's high watermark."""
        self._flush_wanted = False
        self._unflushed_since_ms = None
        self.log.flushed(upto)
        return False


def by_leader(followers: Iterable[Follower]) -> dict[int, list[Follower]]:
    """Followers of each leader; those without one are left out."""
    found: dict[int, list[Follower]] = {}
    for follower in followers:
        if follower.leader >= 0:
            found.setdefault(follower.leader, []).append(follower)
    return found
