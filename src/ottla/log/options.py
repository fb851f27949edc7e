"""Settings of a topic, under Kafka's names and with Kafka's defaults.

A broker setting named as a synonym gives the default of its topics.
"""

from ottla.base.options import Long, Options, option
from ottla.base.units import DAY_MS, HOUR_MS, INT64_MAX, SECOND_MS, GiB, KiB, MiB

#: As Kafka takes it; parts may be empty.
THROTTLED = (r"\*|(\d+:\d+)?(\s*,(\s*\d+:\d+)?)*", "* or a list of PARTITION:BROKER,PARTITION:BROKER,...")
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIERED = "this version has no tiered storage"


class TopicOptions(Options):
    """Settings of one topic."""

    # In Kafka's words, which some look for in the message of INVALID_CONFIG.
    UNKNOWN = "Unknown topic config name"

    ABSENT = {
        "message.format.version": "there is one record format",
        "message.downconversion.enable": "there is one record format",
        "message.timestamp.difference.max.ms": "message.timestamp.before.max.ms and message.timestamp.after.max.ms replace it",
    }

    cleanup_policy: tuple[str, ...] = option(
        ("delete",),
        choices=("delete", "compact"),
        synonyms=("log.cleanup.policy",),
        doc=(
            "What happens to old segments: delete removes them by time and size; compact keeps the last record of each key "
            "and requires keys; both can be combined."
        ),
    )
    compression_type: str = option(
        "producer",
        choices=CODECS,
        synonyms=("compression.type",),
        doc=(
            "Codec of the batches on disk. producer keeps each batch as it was sent; with any other value the broker "
            "recompresses batches that differ."
        ),
    )
    compression_gzip_level: int = option(
        -1,
        form=("-1|[1-9]", "-1 or 1 to 9"),
        synonyms=("compression.gzip.level",),
        doc="Level of batches that the broker compresses with gzip: 1 is fastest, 9 smallest; -1 is zlib's default.",
    )
    compression_lz4_level: int = option(
        9,
        at_least=1,
        at_most=17,
        synonyms=("compression.lz4.level",),
        doc="Level of batches that the broker compresses with lz4: 1 to 17, which is smallest; 9 is the fast compressor, as in Kafka.",
    )
    compression_zstd_level: int = option(
        3,
        at_least=-131072,
        at_most=22,
        synonyms=("compression.zstd.level",),
        doc="Level of batches that the broker compresses with zstd: below 0 fastest, 22 smallest.",
    )
    delete_retention_ms: Long = option(
        DAY_MS,
        at_least=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc=(
            "How long compaction keeps a tombstone or a transaction marker after it removed the older records of that key: a "
            "reader from the start has this time to see it."
        ),
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        (),
        form=THROTTLED,
        doc=(
            "Followers that are throttled to follower.replication.throttled.rate of their broker: * for the whole topic, or "
            "PARTITION:BROKER,..."
        ),
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        (),
        form=THROTTLED,
        doc=(
            "Leaders that are throttled to leader.replication.throttled.rate of their broker: * for the whole topic, or "
            "PARTITION:BROKER,..."
        ),
    )
    file_delete_delay_ms: Long = option(
        60 * SECOND_MS,
        at_least=0,
        synonyms=("log.segment.delete.delay.ms",),
        doc="How long a deleted segment stays on disk, renamed to .deleted, for fetches that still send from it.",
    )
    flush_messages: Long = option(
        INT64_MAX,
        at_least=1,
        synonyms=("log.flush.interval.messages",),
        doc="With write.caching=true: number of records after which a partition is flushed to disk.",
    )
    flush_ms: Long = option(
        INT64_MAX,
        at_least=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="With write.caching=true: time after which a partition is flushed to disk.",
    )
    index_interval_bytes: int = option(
        4 * KiB, at_least=0, synonyms=("log.index.interval.bytes",), doc="Bytes of log between two entries of the offset and time indexes."
    )
    max_compaction_lag_ms: Long = option(
        INT64_MAX,
        at_least=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc=(
            "Age of the oldest dirty segment above which a log is compacted whatever its dirty ratio; also the maximum age of "
            "the active segment of a compacted topic."
        ),
    )
    max_decompressed_message_bytes: int = option(
        2**31 - 9,
        at_least=1,
        synonyms=("max.decompressed.message.bytes",),
        doc="Largest size of a record batch after decompression, where the broker must decompress it.",
    )
    max_message_bytes: int = option(
        1_048_588, at_least=0, synonyms=("message.max.bytes",), doc="Largest record batch that a producer may send, after compression."
    )
    message_timestamp_after_max_ms: Long = option(
        HOUR_MS,
        at_least=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far a CreateTime timestamp may be ahead of the broker's clock.",
    )
    message_timestamp_before_max_ms: Long = option(
        INT64_MAX,
        at_least=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far a CreateTime timestamp may be behind the broker's clock.",
    )
    message_timestamp_type: str = option(
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
        doc="Timestamp of a record: that of the producer (CreateTime), or the time of the append (LogAppendTime).",
    )
    min_cleanable_dirty_ratio: float = option(
        0.5,
        at_least=0,
        at_most=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Share of a log, in bytes, that must be dirty before it is compacted.",
    )
    min_compaction_lag_ms: Long = option(
        0,
        at_least=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="Minimum time that a record stays uncompacted; segments with a younger record are not compacted.",
    )
    min_insync_replicas: int = option(
        1, at_least=1, synonyms=("min.insync.replicas",), doc="Minimum number of in-sync replicas for a produce with acks=all."
    )
    unclean_leader_election_enable: bool = option(
        False,
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica outside of the ISR may lead when no ISR member is alive; records are lost then.",
    )
    retention_bytes: Long = option(
        -1,
        at_least=-1,
        synonyms=("log.retention.bytes",),
        doc="Bytes per partition above which the oldest segments are deleted; -1 means no limit.",
    )
    retention_ms: Long = option(
        7 * DAY_MS,
        at_least=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="Age at which a segment is deleted, by its newest timestamp; -1 means no limit.",
    )
    segment_bytes: int = option(GiB, at_least=MiB, synonyms=("log.segment.bytes",), doc="Size at which a new segment is created.")
    internal_segment_bytes: int = option(
        0,
        at_least=0,
        synonyms=("internal.segment.bytes",),
        doc="Overrides segment.bytes without its minimum, for tests; 0: segment.bytes applies.",
    )
    segment_index_bytes: int = option(
        10 * MiB, at_least=4, synonyms=("log.index.size.max.bytes",), doc="Size of an offset index at which a new segment is created."
    )
    segment_jitter_ms: Long = option(
        0,
        at_least=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="Maximum random time subtracted from segment.ms, so that partitions do not all roll at the same time.",
    )
    segment_ms: Long = option(
        7 * DAY_MS,
        at_least=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Age at which a new segment is created even if the old one is not full.",
    )
    preallocate: bool = option(
        False, fixed="segments are never preallocated", doc="Whether the file of a segment is allocated when it is created."
    )
    remote_storage_enable: bool = option(False, fixed=_TIERED, doc="Whether a topic uses tiered storage.")
    remote_log_copy_disable: bool = option(False, fixed=_TIERED, doc="Whether no further segments are copied to tiered storage.")
    remote_log_delete_on_disable: bool = option(False, fixed=_TIERED, doc="Whether tiered data is deleted when tiered storage is disabled.")
    remote_copy_lag_bytes: Long = option(-1, fixed=_TIERED, doc="Bytes that stay local before segments are copied to tiered storage.")
    remote_copy_lag_ms: Long = option(0, fixed=_TIERED, doc="Time before segments are copied to tiered storage.")
    local_retention_bytes: Long = option(-2, fixed=_TIERED, doc="Local bytes of a topic with tiered storage; -2: retention.bytes.")
    local_retention_ms: Long = option(-2, fixed=_TIERED, doc="Local time of a topic with tiered storage; -2: retention.ms.")
    errors_deadletterqueue_group_enable: bool = option(
        False, fixed="this version has no share groups", doc="Whether the topic is a dead letter queue of share groups."
    )
    write_caching: bool = option(
        False,
        synonyms=("write.caching",),
        doc=(
            "Answer acks=all, and let consumers read, when the record is in the page cache of every in-sync replica instead "
            "of on disk, as Kafka does by default. A power cut on all replicas at once can then lose acknowledged records."
        ),
    )
    value_schema_validation: bool = option(
        False,
        name="ottla.value.schema.validation",
        doc=(
            "Refuse a batch if a value names no schema, or one that the schema registry does not have under the subject TOPIC-value. "
            "Values that are null pass. The brokers need ottla.schema.registry.url."
        ),
    )
    key_schema_validation: bool = option(
        False, name="ottla.key.schema.validation", doc="As ottla.value.schema.validation, for keys and the subject TOPIC-key."
    )

    @property
    def segment_bytes_max(self) -> int:
        """Size at which a new segment is created."""
        return self.internal_segment_bytes or self.segment_bytes

    @property
    def compression_level(self) -> int | None:
        """Level that goes with ``compression_type``; None for a codec without levels, or none."""
        level: int | None = getattr(self, f"compression_{self.compression_type}_level", None)
        return level

    @property
    def compacts(self) -> bool:
        """Whether the last record of each key is what a topic keeps."""
        return "compact" in self.cleanup_policy

    @property
    def segment_age_ms(self) -> int:
        """Age at which a new segment is begun: a compacted topic's must not outlast its largest lag, for the newest is never compacted."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms
