"""Settings of a topic, under Kafka's names and with Kafka's defaults.

A broker setting named as a synonym gives the default of its topics.
"""

from ottla.base.options import Options, option
from ottla.base.units import DAY_MS, HOUR_MS, INT64_MAX, SECOND_MS, GiB, KiB, MiB

#: As Kafka takes it; parts may be empty.
THROTTLED = (r"\*|(\d+:\d+)?(\s*,(\s*\d+:\d+)?)*", "* or a list of PARTITION:BROKER,PARTITION:BROKER,...")
CODECS = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")


class TopicOptions(Options):
    """Settings of one topic."""

    # In Kafka's words, which some look for in the message of INVALID_CONFIG.
    UNKNOWN = "Unknown topic config name"

    ABSENT = {
        "preallocate": "segments are never preallocated",
        "remote.storage.enable": "this version has no tiered storage",
        "remote.log.copy.disable": "this version has no tiered storage",
        "remote.log.delete.on.disable": "this version has no tiered storage",
        "local.retention.bytes": "this version has no tiered storage",
        "local.retention.ms": "this version has no tiered storage",
        "message.format.version": "there is one record format",
        "message.downconversion.enable": "there is one record format",
    }

    cleanup_policy: tuple[str, ...] = option(
        "cleanup.policy",
        ("delete",),
        choices=("delete", "compact"),
        synonyms=("log.cleanup.policy",),
        doc="""What becomes of old segments: delete drops them by time and size; compact keeps the last record of each key, and demands
        a key of every record; both together do both.""",
    )
    compression_type: str = option(
        "compression.type",
        "producer",
        choices=CODECS,
        synonyms=("compression.type",),
        doc="""Codec of the batches on disk. producer keeps each batch as it came; any other value makes the broker recompress
        those that differ.""",
    )
    compression_gzip_level: int = option(
        "compression.gzip.level",
        -1,
        form=("-1|[1-9]", "-1 or 1 to 9"),
        synonyms=("compression.gzip.level",),
        doc="Level of batches that the broker itself compresses with gzip: 1 fastest to 9 smallest; -1 is zlib's default.",
    )
    compression_lz4_level: int = option(
        "compression.lz4.level",
        9,
        at_least=1,
        at_most=17,
        synonyms=("compression.lz4.level",),
        doc="Level of batches that the broker itself compresses with lz4: 1 to 17, smallest; 9 is the fast compressor, as in Kafka.",
    )
    compression_zstd_level: int = option(
        "compression.zstd.level",
        3,
        at_least=-131072,
        at_most=22,
        synonyms=("compression.zstd.level",),
        doc="Level of batches that the broker itself compresses with zstd: fastest below 0, smallest 22.",
    )
    delete_retention_ms: int = option(
        "delete.retention.ms",
        DAY_MS,
        long=True,
        at_least=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc="""How long a tombstone, or a transaction marker, outlasts the compaction that leaves nothing older for it to hide: the time
        that a reader from the start has to see it.""",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = option(
        "follower.replication.throttled.replicas",
        (),
        form=THROTTLED,
        doc="""Replicas that copy no faster than follower.replication.throttled.rate of their broker: * for all of the topic, or
        PARTITION:BROKER,...""",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = option(
        "leader.replication.throttled.replicas",
        (),
        form=THROTTLED,
        doc="""Replicas that, leading, are copied from no faster than leader.replication.throttled.rate of their broker: * for all of the
        topic, or PARTITION:BROKER,...""",
    )
    file_delete_delay_ms: int = option(
        "file.delete.delay.ms",
        60 * SECOND_MS,
        long=True,
        at_least=0,
        synonyms=("log.segment.delete.delay.ms",),
        doc="How long a dropped segment stays on disk, renamed to .deleted, for fetches that still send from it.",
    )
    flush_messages: int = option(
        "flush.messages",
        INT64_MAX,
        long=True,
        at_least=1,
        synonyms=("log.flush.interval.messages",),
        doc="With write.caching=true: records after which a partition is synced to disk all the same.",
    )
    flush_ms: int = option(
        "flush.ms",
        INT64_MAX,
        long=True,
        at_least=0,
        synonyms=("log.flush.interval.ms",),
        doc="With write.caching=true: time after which a partition is synced to disk all the same.",
    )
    index_interval_bytes: int = option(
        "index.interval.bytes",
        4 * KiB,
        at_least=0,
        synonyms=("log.index.interval.bytes",),
        doc="Bytes of log between two entries of the offset and time indexes.",
    )
    max_compaction_lag_ms: int = option(
        "max.compaction.lag.ms",
        INT64_MAX,
        long=True,
        at_least=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="""Age of the oldest dirty segment above which a log is compacted whatever its dirty ratio; also the longest that a compacted
        topic's newest segment grows.""",
    )
    max_message_bytes: int = option(
        "max.message.bytes",
        1_048_588,
        at_least=0,
        synonyms=("message.max.bytes",),
        doc="Largest record batch a producer may send, after compression.",
    )
    message_timestamp_after_max_ms: int = option(
        "message.timestamp.after.max.ms",
        HOUR_MS,
        long=True,
        at_least=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far ahead of the broker's clock a CreateTime timestamp may lie.",
    )
    message_timestamp_before_max_ms: int = option(
        "message.timestamp.before.max.ms",
        INT64_MAX,
        long=True,
        at_least=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far behind the broker's clock a CreateTime timestamp may lie.",
    )
    message_timestamp_type: str = option(
        "message.timestamp.type",
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        synonyms=("log.message.timestamp.type",),
        doc="Whose time a record carries: the producer's, or the broker's at append.",
    )
    min_cleanable_dirty_ratio: float = option(
        "min.cleanable.dirty.ratio",
        0.5,
        at_least=0,
        at_most=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="Part of a log, in bytes, that must be new since the last compaction before the next one.",
    )
    min_compaction_lag_ms: int = option(
        "min.compaction.lag.ms",
        0,
        long=True,
        at_least=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="How long a record stays as it is, at least; segments with a younger one are not compacted.",
    )
    min_insync_replicas: int = option(
        "min.insync.replicas",
        1,
        at_least=1,
        synonyms=("min.insync.replicas",),
        doc="In-sync replicas without which a produce with acks=all is refused.",
    )
    unclean_leader_election_enable: bool = option(
        "unclean.leader.election.enable",
        False,
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica outside of the ISR may lead when no member of it is alive: records are lost then.",
    )
    retention_bytes: int = option(
        "retention.bytes",
        -1,
        long=True,
        at_least=-1,
        synonyms=("log.retention.bytes",),
        doc="Bytes per partition above which the oldest segments are dropped; -1 is no limit.",
    )
    retention_ms: int = option(
        "retention.ms",
        7 * DAY_MS,
        long=True,
        at_least=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="Age at which a segment is dropped, by the newest timestamp in it; -1 is for ever.",
    )
    segment_bytes: int = option(
        "segment.bytes",
        GiB,
        at_least=14,
        synonyms=("log.segment.bytes",),
        doc="Size at which a new segment file is begun.",
    )
    segment_index_bytes: int = option(
        "segment.index.bytes",
        10 * MiB,
        at_least=4,
        synonyms=("log.index.size.max.bytes",),
        doc="Size of an offset index at which a new segment is begun.",
    )
    segment_jitter_ms: int = option(
        "segment.jitter.ms",
        0,
        long=True,
        at_least=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="Largest random time taken off segment.ms, so that partitions do not all roll together.",
    )
    segment_ms: int = option(
        "segment.ms",
        7 * DAY_MS,
        long=True,
        at_least=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="Age at which a new segment is begun, full or not.",
    )
    write_caching: bool = option(
        "write.caching",
        False,
        synonyms=("write.caching",),
        doc="""Answer acks=all, and let consumers read, once the record is in the page cache of every in-sync replica instead of on disk.
        This is all that Kafka's own default gives; a power cut on all replicas at once can then lose acknowledged records.""",
    )

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
