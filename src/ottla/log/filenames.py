"""Names of files and directories in a log directory: Kafka's, and some of Ottla.

::

    meta.properties                         the directory's broker and cluster
    .kafka_cleanshutdown                    present after a clean stop only
    recovery-point-offset-checkpoint        offsets below which each log is on disk
    log-start-offset-checkpoint             log start offsets
    replication-offset-checkpoint           high watermarks
    cleaner-offset-checkpoint               offsets up to which each compacted log holds one record per key
    scrub-checkpoint                        scrub progress of each log; Ottla's own
    orders-3/                               a partition: topic, hyphen, number
        00000000000000000042.log            record batches from offset 42 on
        00000000000000000042.index          offset -> position, sparse
        00000000000000000042.timeindex      timestamp -> offset, sparse
        00000000000000000042.txnindex       aborted transactions; only when there are any
        00000000000000000042.snapshot       producer state before offset 42
        leader-epoch-checkpoint             start offset of each leader epoch
        partition.metadata                  id of the topic
        holes-checkpoint                    offset below which compaction may have left holes; Ottla's own, ignored by Kafka
        missing-checkpoint                  offset below which records are missing; also Ottla's own
        damage-checkpoint                   damage that no other replica could heal; also Ottla's own
    orders-3.<32 hex digits>-delete/        a partition to delete
    orders-3.<32 hex digits>-stray/         a kept older copy of a partition, or a partition of a deleted topic
        set-aside                           marks a stray that expires; the file's time is the beginning

A file is renamed to ``*.deleted`` before its removal; compaction writes ``*.cleaned``, then ``*.swap``.
"""

from ottla.base.ids import TopicPartition

META_PROPERTIES = "meta.properties"
CLEAN_SHUTDOWN = ".kafka_cleanshutdown"
RECOVERY_POINTS = "recovery-point-offset-checkpoint"
LOG_STARTS = "log-start-offset-checkpoint"
HIGH_WATERMARKS = "replication-offset-checkpoint"
CLEANER_OFFSETS = "cleaner-offset-checkpoint"
LEADER_EPOCHS = "leader-epoch-checkpoint"
PARTITION_METADATA = "partition.metadata"
HOLES = "holes-checkpoint"
MISSING = "missing-checkpoint"
DAMAGE = "damage-checkpoint"
SCRUBS = "scrub-checkpoint"

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
TXN_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
INDEXES = (OFFSET_INDEX, TIME_INDEX, TXN_INDEX)
SEGMENT_FILES = (LOG, *INDEXES)

DELETED = ".deleted"
CLEANED = ".cleaned"
SWAP = ".swap"
TEMPORARY = ".tmp"
DELETE_DIRECTORY = "-delete"
STRAY_DIRECTORY = "-stray"
#: Empty file in a stray that expires: its time is when the stray was set aside.
STRAY_NOTE = "set-aside"

_NAME_MAX = 255


def segment_name(offset: int, suffix: str) -> str:
    """``00000000000000000042.log``"""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int | None:
    """The number before the first dot of a file name; None without one."""
    digits = name.partition(".")[0]
    return int(digits) if digits.isascii() and digits.isdigit() else None


def partition_of(name: str) -> TopicPartition | None:
    """The partition whose directory has this name; None for any other name, also for a deleted partition's."""
    topic, hyphen, number = name.rpartition("-")
    if not (topic and hyphen and number.isascii() and number.isdigit()) or str(int(number)) != number:
        return None
    return TopicPartition(topic, int(number))


def delete_directory_name(partition: TopicPartition, unique: str, *, ending: str = DELETE_DIRECTORY) -> str:
    """``orders-3.<unique>-delete``; the topic is truncated if the name would be too long."""
    suffix = f"-{partition.partition}.{unique}{ending}"
    return partition.topic[: _NAME_MAX - len(suffix)] + suffix
