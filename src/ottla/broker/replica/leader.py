"""A partition on its leader: appends, durability, and how far consumers can read.

::

    log start          last stable       high watermark        recovery point           log end
    |-- readable, read_committed --|-- readable --|                   |-- not on disk yet --|
    +------------------------------+--------------+-------------------+--------------------+

The high watermark is the lowest recovery point of the in-sync replicas: a record can be read, and is acknowledged with acks=all, when it
is on all their disks. A follower's fetch offset is its recovery point. With ``write.caching``, log ends replace recovery points. The high
watermark never decreases while the leader lives. With one replica it starts at the recovered log end after a crash. Otherwise it starts at
the last known value, and is exact once it reaches the log end of the beginning of the leader's epoch.

The controller decides which replicas are in sync: ``isr_state.py``.

Transactions, for their coordinator and for the handlers of Produce, TxnOffsetCommit and WriteTxnMarkers::

    guard = leader.begin_verification(...)      None: the transaction is open here, nothing to ask
    ... ask the transaction coordinator (AddPartitionsToTxn) ...
    leader.append(records, guard=guard)         the first batch begins the transaction; ``append_own`` likewise
    leader.append_marker(Marker(...))           ends it, if it is open

The last stable offset is ``readable_end(READ_COMMITTED)``; state of producers is ``log.producers.by_id`` (DescribeProducers). A marker
counts, like a record, when the high watermark has passed it.

Follows Kafka's ``Partition`` and ``LogValidator``. Differences: acks=all means fsync, and reads are limited accordingly.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import msgspec

from ottla.base.ids import Offset, TopicPartition
from ottla.base.ports import File
from ottla.base.units import INT64_MAX, MiB
from ottla.broker.isolation import indivisible, interrupted
from ottla.broker.replica.flush_policy import Flushing
from ottla.broker.replica.isr_state import IsrState
from ottla.broker.replica.log_errors import refusal_of
from ottla.broker.replica.reads import Readable
from ottla.broker.replica.traffic import TopicTraffic
from ottla.log.directory import LogDirectory
from ottla.log.errors import LogError
from ottla.log.log import Appended, Log
from ottla.log.options import TopicOptions
from ottla.log.verification import VerificationGuard
from ottla.records.batch import (
    CODEC_BITS,
    CREATE_TIME,
    LOG_APPEND_TIME,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    parse_header,
    stamp_append_time,
    stamp_max_timestamp,
)
from ottla.records.build import build_batch
from ottla.records.compression import Codec
from ottla.records.errors import InvalidBatch, RecordsError
from ottla.records.read import ABORT_MARKER, COMMIT_MARKER, DECOMPRESSED_MAX
from ottla.records.read import marker as marker_record
from ottla.records.recompress import recompress
from ottla.records.validation import Examination, SchemaFrames, examine_batch, frames_of_batch, timestamps_outside
from ottla.store.layout import PartitionState
from ottla.wire import errors

#: Dirty bytes after which kernel writeback starts: small against a disk's buffer, large against a request.
WRITEBACK_BYTES = 8 * MiB
#: First transaction version in which each transaction raises the producer epoch. Source: KIP-890.
RAISED_EPOCH_SINCE = 2
#: Codec of each value of compression.type except "producer".
CODEC_OF = {"uncompressed": Codec.NONE, "gzip": Codec.GZIP, "snappy": Codec.SNAPPY, "lz4": Codec.LZ4, "zstd": Codec.ZSTD}


def low_watermark_of(partition: TopicPartition) -> tuple[str, TopicPartition]:
    """Key of operations that wait for a low watermark."""
    return ("low watermark", partition)


class Accepted(msgspec.Struct, gc=False):
    """An appended batch; a duplicate has the offsets of the original."""

    base_offset: int
    #: Offset after the batch: it is committed when the high watermark reaches it.
    end_offset: int
    #: -1 with CreateTime.
    log_append_time_ms: int
    #: False for a duplicate.
    appended: bool


class Marker(NamedTuple):
    """A transaction marker to append. Source: WriteTxnMarkers, KIP-98."""

    producer_id: int
    #: With transaction version 2 that of the transaction plus one, otherwise that of the transaction or a later one.
    producer_epoch: int
    #: Commit, or abort.
    commit: bool
    coordinator_epoch: int
    #: 0, 1, or 2 from KIP-890's second part on.
    transaction_version: int = 0


class Leader(Flushing, Readable):
    """The leader of a partition. All methods are synchronous."""

    __slots__ = (
        "_after_max_ms",
        "_before_max_ms",
        "_bytes_max",
        "_codec",
        "_decompressed_max",
        "_level",
        "_me",
        "_require_keys",
        "_segment_bytes",
        "_stamps",
        "_written_back",
        "adding",
        "deleted_to",
        "directory",
        "epoch",
        "epoch_start",
        "high_watermark",
        "isr_state",
        "partition",
        "ratio_max",
        "replicas",
        "traffic",
    )

    def __init__(
        self,
        partition: TopicPartition,
        log: Log,
        directory: LogDirectory,
        options: TopicOptions,
        state: PartitionState,
        ratio_max: int,
        *,
        replicas: Sequence[int] = (),
        adding: Sequence[int] = (),
        version: int = -1,
        known_watermark: int = 0,
        now_ms: int = 0,
    ) -> None:
        """``known_watermark``: the high watermark that this replica last knew; used if there are other replicas."""
        self.partition = partition
        self.log = log
        self.directory = directory
        self.follow_options(options)
        self.ratio_max = ratio_max
        self._me = state.leader
        #: In the order of the assignment, including adding replicas.
        self.replicas = tuple(replicas) or (state.leader,)
        self.adding = tuple(adding)
        alone = {*self.replicas, *state.isr} == {state.leader}
        # Everything in a log that was opened is on disk: recovery syncs what it keeps.
        own = log.end_offset if options.write_caching else log.recovery_point
        self.high_watermark: int = max(log.start_offset, own if alone else min(known_watermark, log.end_offset))
        self._written_back = log.active.size
        self._flush_wanted = False
        self._unflushed_since_ms: int | None = None
        #: The highest offset for which a DeleteRecords waited: fetches of followers that do not know this log start are answered at once.
        self.deleted_to = 0
        #: Counters of its topic; set by ``Partitions``.
        self.traffic = TopicTraffic()
        self._lead(state, version, now_ms)

    def follow_options(self, options: TopicOptions) -> None:
        """Adopts new settings of the topic, also for the log."""
        self.options = options
        self.log.set_options(options)
        #: An append counts as durable at once.
        self.caching = options.write_caching
        # Read by every append.
        self._bytes_max = options.max_message_bytes
        self._decompressed_max = min(max(10 * options.max_message_bytes, DECOMPRESSED_MAX), options.max_decompressed_message_bytes)
        # Not internal.segment.bytes, with which tests make small segments.
        self._segment_bytes = options.segment_bytes
        self._require_keys = "compact" in options.cleanup_policy
        self._stamps = options.message_timestamp_type == "LogAppendTime"
        self._before_max_ms = options.message_timestamp_before_max_ms
        self._after_max_ms = options.message_timestamp_after_max_ms
        #: None keeps the producer's.
        self._codec = CODEC_OF.get(options.compression_type)
        self._level = options.compression_level

    def follow_state(self, state: PartitionState, version: int, now_ms: int) -> bool:
        """Adopts a new state in which this broker still leads; returns whether the high watermark rose."""
        if state.leader_epoch > self.epoch:
            self._lead(state, version, now_ms)
        else:
            self.isr_state.follow(state, version)
        return self._advance()

    def follow_replicas(self, replicas: Sequence[int], adding: Sequence[int], now_ms: int) -> bool:
        """Adopts a new assignment that includes this broker; returns whether the high watermark rose."""
        self.replicas, self.adding = tuple(replicas), tuple(adding)
        self.isr_state.follow_replicas(replicas, adding, now_ms)
        return self._advance()

    def change_options(self, options: TopicOptions) -> bool:
        """Adopts settings that may commit more; returns whether the high watermark rose."""
        self.follow_options(options)
        return self._advance()

    def _lead(self, state: PartitionState, version: int, now_ms: int) -> None:
        self.epoch = state.leader_epoch
        self.log.epochs.assign(state.leader_epoch, self.log.end_offset)
        #: Log end when the epoch began; nothing above was committed before.
        self.epoch_start: int = self.log.end_offset
        self.isr_state = IsrState(self._me, self.replicas, state, version, now_ms, adding=self.adding)

    # Followers.

    @property
    def isr(self) -> tuple[int, ...]:
        """The ISR in the known state."""
        return self.isr_state.isr

    @indivisible
    def fetched(self, broker: int, *, offset: int, broker_epoch: int, now_ms: int) -> bool:
        """A follower of this epoch fetches from ``offset`` and has everything below; returns whether the high watermark rose."""
        self.isr_state.fetched(broker, offset=offset, end_offset=self.log.end_offset, broker_epoch=broker_epoch, now_ms=now_ms)
        return self._advance()

    def low_watermark(self, alive: Callable[[int], bool]) -> int:
        """Offset below which no live or in-sync replica has records, also after a crash. ``alive``: whether a broker is registered.

        Source: KIP-107.
        """
        return self.isr_state.low_watermark(min(self.log.start_offset, self.log.recorded_start), alive=alive)

    def wanted_isr(self, now_ms: int, *, lag_max_ms: int, sound: Callable[[int, int], bool]) -> tuple[int, ...] | None:
        """The ISR to request from the controller; None if the present one is right. A replica joins only with everything up to the high
        watermark and the log end of the epoch's beginning, because that may have been committed. See ``IsrState.wanted``.
        """
        joins_at = max(self.high_watermark, self.epoch_start)
        found = self.isr_state.wanted(
            now_ms,
            end_offset=self.log.end_offset,
            joins_at=joins_at,
            lag_max_ms=lag_max_ms,
            sound=sound,
            log_start=self.log.start_offset,
        )
        return self.isr_state.isr if found is None and self.isr_state.recovering and self.settled else found

    @property
    def settled(self) -> bool:
        """Whether the log of the epoch's beginning is on disk here: after an unclean election, the remaining log is safe."""
        return self.caching or self.log.recovery_point >= self.epoch_start

    @property
    def enough_in_sync(self) -> bool:
        """Whether acks=all can be accepted. Source: min.insync.replicas."""
        return len(self.isr_state.isr) >= self.options.min_insync_replicas

    @property
    def unsettled(self) -> bool:
        """Whether there are records that become readable when this broker's own disk has them."""
        return not self.isr_state.progress and self.high_watermark < self.log.end_offset

    @property
    def knows_watermark(self) -> bool:
        """Whether the high watermark is exact, and not only the value that this replica knew before it led."""
        return not self.isr_state.progress or self.high_watermark >= self.epoch_start

    # Append.

    def begin_verification(
        self, producer_id: int, producer_epoch: int, sequence: int, *, raises_epoch: bool, wall_ms: int
    ) -> VerificationGuard | None:
        """Starts to verify a batch of a transaction; None if the transaction is open here and its batches need no verification.

        ``sequence``: base sequence of the batch, -1 for a coordinator's batch; ``raises_epoch``: transaction version 2, where the caller
        adds the partition instead of verifying that it was added. The caller asks the transaction coordinator and passes the guard to
        ``append`` or ``append_own``, which refuse it if a batch or marker of the producer was appended meanwhile.

        Raises: InvalidProducerEpoch. Source: KIP-890, Kafka's UnifiedLog.maybeStartTransactionVerification.
        """
        try:
            return self.log.producers.begin_verification(producer_id, producer_epoch, sequence, raises_epoch=raises_epoch, now_ms=wall_ms)
        except LogError as error:
            raise refusal_of(error) from error

    def in_transaction(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a producer has a transaction open here, so that its batches need no verification."""
        return self.log.producers.in_transaction(producer_id, producer_epoch)

    def transaction_start(self, producer_id: int, producer_epoch: int) -> Offset:
        """First offset of a producer's open transaction in this epoch; ``NO_OFFSET`` without one."""
        return self.log.producers.transaction_start(producer_id, producer_epoch)

    def schema_frames(self, records: memoryview, *, limit: int) -> SchemaFrames:
        """The schemas that a client's batch names in its keys and values, as far as the topic's settings ask for their validation.

        Raises: as ``append``, for all that makes the records unreadable.
        """
        try:
            if len(records) > self._bytes_max:
                self._refuse_size(records)
            return frames_of_batch(
                records,
                keys=self.options.key_schema_validation,
                values=self.options.value_schema_validation,
                limit=limit,
                max_decompressed=self._decompressed_max,
                ratio_max=self.ratio_max,
            )
        except RecordsError as error:
            raise refusal_of(error) from error

    def append(
        self, records: memoryview, *, acks: int, wall_ms: int, guard: VerificationGuard | None = None, verify: bool = True
    ) -> Accepted:
        """Validates a client's batch and appends it; writes offset and epoch into ``records``.

        A transactional batch is appended if its transaction is open here, or if ``guard`` is current; without ``verify``
        (transaction.partition.verification.enable) in any case. Otherwise it raises InvalidTxnState.

        Raises: KafkaError if nothing was written; OSError from the disk.
        """
        if acks == -1 and not self.enough_in_sync:
            self._refuse_isr()
        try:
            if len(records) > self._bytes_max:
                self._refuse_size(records)
            seen = examine_batch(
                records, max_decompressed=self._decompressed_max, ratio_max=self.ratio_max, require_keys=self._require_keys
            )
            header = seen[0]
            if header.producer_id >= 0:
                repeat = self.log.sequence_check(header, now_ms=wall_ms, guard=guard, verify=verify)
                if repeat is not None:
                    stamp = repeat.timestamp_ms if self._stamps else -1
                    return Accepted(repeat.base_offset, repeat.last_offset + 1, stamp, False)
            elif header.attributes & TRANSACTIONAL_BIT:
                raise errors.InvalidRecord("a transactional batch needs a producer id")
            records, header = self._prepared(records, seen, wall_ms)
            if len(records) > self._segment_bytes:
                self._refuse_segment(len(records))
            done = self._write(records, header, wall_ms)
        except (RecordsError, LogError) as error:
            raise refusal_of(error) from error
        return Accepted(done.base_offset, done.last_offset + 1, wall_ms if self._stamps else -1, True)

    def _write(self, records: memoryview, header: BatchHeader, wall_ms: int) -> Appended:
        try:
            done = self.log.append(records, header, leader_epoch=self.epoch, now_ms=wall_ms)
            if self.caching:
                self._advance()
        except OSError:
            raise
        except Exception as error:
            raise interrupted(f"an append to {self.partition}", error) from error
        return done

    def _refuse_size(self, records: memoryview) -> NoReturn:
        """Checks the size before checksum and records, as Kafka does; anything but a single batch of format 2 is refused as invalid."""
        header = parse_header(records)
        if header.size != len(records):
            examine_batch(records, max_decompressed=0)
        raise errors.MessageTooLarge(
            f"the batch has {len(records)} bytes; {self.partition.topic} takes {self._bytes_max} (max.message.bytes)"
        )

    def _refuse_segment(self, size: int) -> NoReturn:
        raise errors.RecordListTooLarge(
            f"the batch has {size} bytes, and a segment of {self.partition.topic} {self._segment_bytes} (segment.bytes); "
            "send smaller batches or raise segment.bytes"
        )

    def _refuse_isr(self) -> NoReturn:
        raise errors.NotEnoughReplicas(
            f"{self.partition} has {len(self.isr)} in-sync replicas; {self.options.min_insync_replicas} are needed"
        )

    def append_own(self, batch: memoryview, *, wall_ms: int, guard: VerificationGuard | None = None, verify: bool = True) -> int:
        """Appends a batch of this broker to an internal topic, like acks=all; returns the offset after it.

        ``guard`` and ``verify``: as in ``append``, for a batch of a client's transaction (TxnOffsetCommit), whose epoch is checked too.

        Raises: NotEnoughReplicas, MessageTooLarge, InvalidProducerEpoch, InvalidTxnState if nothing was written; OSError from the disk.
        """
        options, size = self.options, len(batch)
        if not self.enough_in_sync:
            self._refuse_isr()
        if size > options.max_message_bytes:
            raise errors.MessageTooLarge(
                f"the batch has {size} bytes; {self.partition.topic} takes {options.max_message_bytes} (max.message.bytes)"
            )
        header = parse_header(batch)
        try:
            self.log.sequence_check(header, now_ms=wall_ms, guard=guard, verify=verify)
        except LogError as error:
            raise refusal_of(error) from error
        return self._write(batch, header, wall_ms).last_offset + 1

    def append_marker(self, marker: Marker, *, wall_ms: int) -> int:
        """Appends a transaction marker, like acks=all; returns the offset after it. Voids the producer's verification.

        A marker for a producer without an open transaction here is appended too: it carries epochs that fence. With transaction version 2
        a repeated marker is appended again; a marker of an earlier transaction is refused.

        Raises: NotEnoughReplicas, InvalidProducerEpoch, TransactionCoordinatorFenced if nothing was written; OSError from the disk.
        Source: KIP-98, KIP-890; Kafka's ProducerAppendInfo.appendEndTxnMarker.
        """
        if not self.enough_in_sync:
            self._refuse_isr()
        raises_epoch = marker.transaction_version >= RAISED_EPOCH_SINCE
        try:
            self.log.producers.check_marker(marker.producer_id, marker.producer_epoch, marker.coordinator_epoch, raises_epoch=raises_epoch)
        except LogError as error:
            raise refusal_of(error) from error
        key, value = marker_record(COMMIT_MARKER if marker.commit else ABORT_MARKER, marker.coordinator_epoch)
        batch = memoryview(
            build_batch(
                [(wall_ms, key, value, ())],
                control=True,
                transactional=True,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                timestamp_type=LOG_APPEND_TIME if self._stamps else CREATE_TIME,
            )
        )
        return self._write(batch, parse_header(batch), wall_ms).last_offset + 1

    def _prepared(self, records: memoryview, seen: Examination, wall_ms: int) -> tuple[memoryview, BatchHeader]:
        """The batch to write: timestamps checked or set, recompressed if the topic has another codec."""
        header, max_timestamp, _, min_timestamp = seen
        unchanged = True
        if not self._stamps:
            if header.attributes & TIMESTAMP_TYPE_BIT:
                raise errors.InvalidTimestamp("the batch says LogAppendTime; only the broker may say that")
            if max_timestamp > wall_ms + self._after_max_ms or NO_TIMESTAMP != min_timestamp < wall_ms - self._before_max_ms:
                self._refuse_timestamps(records, seen, wall_ms)
            if header.max_timestamp != max_timestamp:
                stamp_max_timestamp(records, 0, max_timestamp)
                unchanged = False
        wanted = self._codec
        if wanted is not None and wanted != header.attributes & CODEC_BITS:
            records = memoryview(recompress(records, wanted, level=self._level, max_decompressed=self._decompressed_max))
            unchanged = False
        if self._stamps:
            stamp_append_time(records, 0, wall_ms)
            unchanged = False
        return records, header if unchanged else parse_header(records)

    def _refuse_timestamps(self, records: memoryview, seen: Examination, wall_ms: int) -> NoReturn:
        # Both settings may be as large as a timestamp, which has 64 bits.
        earliest, latest = max(wall_ms - self._before_max_ms, -INT64_MAX), min(wall_ms + self._after_max_ms, INT64_MAX)
        outside = timestamps_outside(
            records, low_ms=earliest, high_ms=latest, max_decompressed=self._decompressed_max, ratio_max=self.ratio_max
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
        return not self.caching and self._advance()

    def writeback_due(self) -> tuple[File, int, int] | None:
        """Bytes of the active segment for kernel writeback, if there are enough."""
        segment = self.log.segments[-1]
        start, end = self._written_back, segment.size
        if start <= end < start + WRITEBACK_BYTES:
            return None
        if end < start:  # A new segment.
            start = self._written_back = 0
            if end < WRITEBACK_BYTES:
                return None
        self._written_back = end
        return segment.file, start, end - start

    def _advance(self) -> bool:
        upto: int = self.log.end_offset if self.caching else self.log.recovery_point
        if self.isr_state.progress:
            upto = self.isr_state.committed(upto, min_insync=self.options.min_insync_replicas)
        if upto <= self.high_watermark:
            return False
        self.high_watermark = upto
        return True
