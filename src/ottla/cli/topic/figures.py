"""Records, bytes and write rate of topics, for `ottla topic list`.

    records        log end offset - log start offset, summed over partitions (ListOffsets)
    bytes          size of the leaders' logs (DescribeLogDirs)
    written_per_s  records with a timestamp within the last minute, per second (ListOffsets by time)

The rate needs one request instead of two readings with a wait between them. It counts by the records' timestamps: records that a producer
wrote with an old timestamp are not counted. A figure is None if a partition has no leader, or if its broker does not answer or refuses.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ottla
from ottla.base.ids import TopicPartition
from ottla.cli.topic.lookup import log_offsets, record_count
from ottla.client.admin.results import PartitionDescription
from ottla.wire.errors import KafkaError

#: Period of the write rate.
RATE_S = 60
NONE: dict[str, Any] = {"records": None, "bytes": None, "written_per_s": None}


def topic_figures(admin: ottla.Admin, names: Sequence[str]) -> tuple[dict[str, dict[str, Any]], str]:
    """The figures of topics by name, and "" or why sizes are unknown. Raises: KafkaError."""
    if not names:
        return {}, ""
    described = {name: topic for name, topic in admin.describe_topics(names).items() if not isinstance(topic, KafkaError)}
    partitions = {TopicPartition(name, one.partition): one for name, topic in described.items() for one in topic.partitions}
    logs = log_offsets(admin, partitions)
    led = [tp for tp, (_, end) in logs.items() if end is not None]
    since = admin.list_offsets(dict.fromkeys(led, int((time.time() - RATE_S) * 1000))) if led else {}
    sizes, problem = _sizes(admin, partitions)
    figures = {}
    for name, topic in described.items():
        places = [TopicPartition(name, one.partition) for one in topic.partitions]
        recent = [_recent(since.get(tp), logs[tp][1]) for tp in places]
        figures[name] = {
            "records": record_count(logs[tp] for tp in places),
            "bytes": _sum([sizes.get(tp) for tp in places]),
            "written_per_s": None if (count := _sum(recent)) is None else round(count / RATE_S, 1),
        }
    return figures, problem


def _recent(outcome: Any, end: int | None) -> int | None:
    """Offsets from the first record within the period to the log end."""
    if outcome is None or isinstance(outcome, Exception) or end is None:
        return None
    # A log that grew between the two requests.
    return 0 if outcome.offset < 0 else max(0, end - int(outcome.offset))


def _sum(counts: list[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def _sizes(admin: ottla.Admin, partitions: dict[TopicPartition, PartitionDescription]) -> tuple[dict[TopicPartition, int], str]:
    """Bytes of the log of each leader, and "" or the first error."""
    sizes: dict[TopicPartition, int] = {}
    problem = ""
    leaders = sorted({one.leader for one in partitions.values() if one.leader >= 0})
    try:
        reports = admin.describe_log_dirs(leaders) if leaders else {}
    except KafkaError as error:
        return {}, f"no broker reports sizes: {' '.join(str(error).split())}"
    for broker, directories in reports.items():
        if isinstance(directories, KafkaError):
            problem = problem or f"broker {broker} does not report sizes: {' '.join(str(directories).split())}"
            continue
        for directory in directories:
            for log in directory.replicas:
                tp = TopicPartition(log.topic, log.partition)
                if not log.is_future and tp in partitions and partitions[tp].leader == broker:
                    sizes[tp] = log.size_bytes
    return sizes, problem
