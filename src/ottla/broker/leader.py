"""A partition as its leader sees it: what is appended, what is durable, and how far readers may see.

::

    log start          last stable       high watermark        recovery point           log end
    |-- readable, read_committed --|-- readable --|                   |-- not on disk yet --|
    +------------------------------+--------------+-------------------+--------------------+

With one replica the high watermark is the recovery point: a record may be read, and is acknowledged at acks=all, once it is on disk. With
``write.caching`` it is the log end. The high watermark never falls while the leader lives, and after a crash it starts at the recovered
end.

Follows Kafka's ``Partition`` and ``LogValidator``; differences: acks=all means fsync, and so does reading (above).
"""

from dataclasses import dataclass

from ottla.base.ids import NO_EPOCH, Offset, TopicPartition
from ottla.base.ports import File
from ottla.base.units import MiB
from ottla.broker.refusals import refusal_of
from ottla.log.directory import LogDirectory
from ottla.log.errors import LogError
from ottla.log.flush import Slice
from ottla.log.log import Log
from ottla.log.options import TopicOptions
from ottla.records.batch import CREATE_TIME, NO_TIMESTAMP, BatchHeader, parse_header, stamp_append_time, stamp_max_timestamp
from ottla.records.check import Examination, examine_batch, timestamps_outside
from ottla.records.compression import Codec
from ottla.records.errors import InvalidBatch, RecordsError
from ottla.records.recompress import recompress
from ottla.store.layout import PartitionState
from ottla.wire import errors

#: Dirty bytes after which the kernel is asked to begin writing; small against any disk's buffer, large against a request.
WRITEBACK_BYTES = 8 * MiB
#: Codec of each value of compression.type but "producer".
CODEC_OF = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}
READ_COMMITTED = 1


@dataclass(slots=True)
class Accepted:
    """A batch that is in the log; a repeat of an earlier one answers with that one's offsets."""

    base_offset: int
    #: Offset after the batch: committed once the high watermark has reached it.
    end_offset: int
    #: -1 under CreateTime.
    log_append_time_ms: int
    #: False for a repeat.
    appended: bool


@dataclass(slots=True)
class Read:
    """What a fetch of one partition found."""

    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    records: Slice | None = None
    #: (producer id, first offset); None for a reader of uncommitted records.
    aborted: list[tuple[int, int]] | None = None
    #: (epoch, end offset) where the reader's history parts from ours.
    diverging: tuple[int, int] | None = None


class Leader:
    """See the module's theory. One owner, the node; every method is synchronous."""

    __slots__ = (
        "_flush_wanted",
        "_unflushed_since_ms",
        "_written_back",
        "directory",
        "epoch",
        "high_watermark",
        "isr",
        "log",
        "options",
        "partition",
        "ratio_max",
    )

    def __init__(
        self, partition: TopicPartition, log: Log, directory: LogDirectory, options: TopicOptions, state: PartitionState, ratio_max: int
    ) -> None:
        self.partition = partition
        self.log = log
        self.directory = directory
        self.options = options
        self.ratio_max = ratio_max
        self.epoch = state.leader_epoch
        self.isr = state.isr
        #: Everything in the log when it was opened is on disk: recovery syncs what it keeps.
        self.high_watermark: int = max(log.start_offset, log.end_offset if options.write_caching else log.recovery_point)
        self._written_back = log.active.size
        self._flush_wanted = False
        self._unflushed_since_ms: int | None = None
        self._lead(state)

    def follow_state(self, state: PartitionState) -> None:
        """The controller wrote a new state in which this broker still leads."""
        if state.leader_epoch > self.epoch:
            self._lead(state)
        self.isr = state.isr

    def _lead(self, state: PartitionState) -> None:
        self.epoch = state.leader_epoch
        self.log.epochs.assign(state.leader_epoch, self.log.end_offset)

    # Append.

    def append(self, records: memoryview, *, acks: int, wall_ms: int) -> Accepted:
        """Check one batch as a client sent it, and write it at the end of the log; patches offset and epoch into ``records``.

        Raises: KafkaError, and nothing was written; OSError from the disk.
        """
        options = self.options
        if acks == -1 and len(self.isr) < options.min_insync_replicas:
            raise errors.NotEnoughReplicas(
                f"{self.partition} has {len(self.isr)} in-sync replicas; {options.min_insync_replicas} are needed"
            )
        try:
            seen = examine_batch(
                records,
                max_decompressed=self._decompressed_max(),
                ratio_max=self.ratio_max,
                require_keys="compact" in options.cleanup_policy,
            )
            header = seen.header
            if header.is_transactional:
                raise errors.InvalidTxnState("transactions are not served by this broker")
            if header.size > options.max_message_bytes:
                raise errors.MessageTooLarge(f"the batch has {header.size} bytes; {self.partition.topic} takes {options.max_message_bytes}")
            if header.has_producer:
                repeat = self.log.sequence_check(header, now_ms=wall_ms)
                if repeat is not None:
                    stamp = repeat.timestamp_ms if options.message_timestamp_type == "LogAppendTime" else -1
                    return Accepted(repeat.base_offset, repeat.last_offset + 1, stamp, appended=False)
            records, header = self._prepared(records, seen, wall_ms)
            done = self.log.append(records, header, leader_epoch=self.epoch, now_ms=wall_ms)
        except (RecordsError, LogError) as error:
            raise refusal_of(error) from error
        if options.write_caching:
            self._advance(self.log.end_offset)
        stamped = wall_ms if options.message_timestamp_type == "LogAppendTime" else -1
        return Accepted(done.base_offset, done.last_offset + 1, stamped, appended=True)

    def append_own(self, batch: memoryview, *, wall_ms: int) -> int:
        """Write a batch that this broker made, for an internal topic, as with acks=all; returns the offset after it.

        Raises: NotEnoughReplicas, MessageTooLarge, and nothing was written; OSError from the disk.
        """
        options, size = self.options, len(batch)
        if len(self.isr) < options.min_insync_replicas:
            raise errors.NotEnoughReplicas(
                f"{self.partition} has {len(self.isr)} in-sync replicas; {options.min_insync_replicas} are needed"
            )
        if size > options.max_message_bytes:
            raise errors.MessageTooLarge(f"the batch has {size} bytes; {self.partition.topic} takes {options.max_message_bytes}")
        done = self.log.append(batch, parse_header(batch), leader_epoch=self.epoch, now_ms=wall_ms)
        if options.write_caching:
            self._advance(self.log.end_offset)
        return done.last_offset + 1

    def _prepared(self, records: memoryview, seen: Examination, wall_ms: int) -> tuple[memoryview, BatchHeader]:
        """The batch as it goes to disk: timestamps checked or stamped, recompressed where the topic asks for another codec."""
        options, header = self.options, seen.header
        unchanged = True
        if options.message_timestamp_type == "CreateTime":
            self._check_timestamps(records, seen, wall_ms)
            if header.max_timestamp != seen.max_timestamp:
                stamp_max_timestamp(records, 0, seen.max_timestamp)
                unchanged = False
        wanted = CODEC_OF.get(options.compression_type)
        if wanted is not None and wanted is not header.codec:
            records = memoryview(recompress(records, wanted, max_decompressed=self._decompressed_max()))
            unchanged = False
        if options.message_timestamp_type == "LogAppendTime":
            stamp_append_time(records, 0, wall_ms)
            unchanged = False
        return records, header if unchanged else parse_header(records)

    def _decompressed_max(self) -> int:
        return max(10 * self.options.max_message_bytes, MiB)

    def _check_timestamps(self, records: memoryview, seen: Examination, wall_ms: int) -> None:
        options = self.options
        if seen.header.timestamp_type != CREATE_TIME:
            raise errors.InvalidTimestamp("the batch says LogAppendTime; only the broker may say that")
        earliest, latest = wall_ms - options.message_timestamp_before_max_ms, wall_ms + options.message_timestamp_after_max_ms
        if seen.min_timestamp != NO_TIMESTAMP and (seen.min_timestamp < earliest or seen.max_timestamp > latest):
            outside = timestamps_outside(
                records, low_ms=earliest, high_ms=latest, max_decompressed=self._decompressed_max(), ratio_max=self.ratio_max
            )
            reason = (
                f"timestamps {seen.min_timestamp} to {seen.max_timestamp} of {self.partition.topic} are not within {earliest} to {latest}, "
                "which message.timestamp.before.max.ms and message.timestamp.after.max.ms allow"
            )
            faults = [(index, f"timestamp {timestamp} is not within {earliest} to {latest}") for index, timestamp in outside]
            raise errors.InvalidTimestamp(reason) from InvalidBatch(reason, faults)

    # Durability.

    def flushed(self, upto: Offset) -> bool:
        """A flush was carried out; returns whether the high watermark rose."""
        self._flush_wanted = False
        self._unflushed_since_ms = None
        self.log.flushed(upto)
        return not self.options.write_caching and self._advance(upto)

    def wants_flush(self) -> bool:
        """Whether to begin a flush if there is anything to flush. Under write caching records alone are no reason for one."""
        if self.options.write_caching:
            return self._flush_wanted or self.log.pending.any or self.log.epochs.dirty
        return True

    def flush_due(self, now_ms: int) -> bool:
        """Under write caching: whether flush.ms or flush.messages asks for a flush; notes that one is wanted."""
        unflushed = self.log.end_offset - self.log.recovery_point
        if unflushed == 0:
            self._unflushed_since_ms = None
        elif self._unflushed_since_ms is None:
            self._unflushed_since_ms = now_ms
        old = self._unflushed_since_ms is not None and now_ms - self._unflushed_since_ms >= self.options.flush_ms
        self._flush_wanted = unflushed >= self.options.flush_messages or old
        return self._flush_wanted

    def writeback_due(self) -> tuple[File, int, int] | None:
        """Bytes of the active segment that the kernel should begin to write, once there are enough of them."""
        file, end = self.log.active.file, self.log.active.size
        if end < self._written_back:  # A new segment.
            self._written_back = 0
        if end - self._written_back < WRITEBACK_BYTES:
            return None
        start, self._written_back = self._written_back, end
        return file, start, end - start

    def _advance(self, upto: int) -> bool:
        if upto <= self.high_watermark:
            return False
        self.high_watermark = upto
        return True

    # Read.

    def check_epoch(self, current_leader_epoch: int) -> None:
        """Refuse a client whose idea of the leader is older, or newer, than ours; -1 has none. Source: KIP-320."""
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.epoch:
            return
        if current_leader_epoch < self.epoch:
            raise errors.FencedLeaderEpoch(f"{self.partition} is at leader epoch {self.epoch}, not {current_leader_epoch}")
        raise errors.UnknownLeaderEpoch(f"{self.partition} is at leader epoch {self.epoch}; {current_leader_epoch} is not known here yet")

    def readable_end(self, isolation_level: int) -> int:
        """The offset that readers of this isolation level stop at, exclusive."""
        return self.log.last_stable_offset(self.high_watermark) if isolation_level == READ_COMMITTED else self.high_watermark

    def read(self, offset: int, *, max_bytes: int, at_least_one: bool, isolation_level: int, last_fetched_epoch: int = NO_EPOCH) -> Read:
        """Batches from the one that contains ``offset``, as a slice of the log file; no records at the end.

        Raises: KafkaError (offset out of range).
        """
        log = self.log
        upto = self.readable_end(isolation_level)
        found = Read(self.high_watermark, log.last_stable_offset(self.high_watermark), log.start_offset)
        if last_fetched_epoch != NO_EPOCH:
            end = log.epochs.end_of(last_fetched_epoch)
            if end is None or end[0] < last_fetched_epoch or end[1] < offset:
                found.diverging = end or (NO_EPOCH, -1)
                return found
        if not log.start_offset <= offset <= log.end_offset:
            raise errors.OffsetOutOfRange(f"{self.partition} holds offsets {log.start_offset} to {log.end_offset}, not {offset}")
        if offset < upto and (max_bytes > 0 or at_least_one):
            try:
                found.records = log.locate(offset, max_bytes=max_bytes, upto=upto, at_least_one=at_least_one)
            except LogError as error:
                raise refusal_of(error) from error
        if isolation_level == READ_COMMITTED:
            gone = log.aborted_transactions(offset, upto) if found.records is not None else []
            found.aborted = [(transaction.producer_id, transaction.first_offset) for transaction in gone]
        return found
