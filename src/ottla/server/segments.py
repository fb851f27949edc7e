"""``GET /segments?topic=TOPIC&partition=NUMBER`` of the HTTP listener: the segments of a partition on the brokers of this process, as JSON.

::

    {"replicas": [{"broker": 1, "directory": "/data/broker-1", "role": "leader", "start_offset": 0, "end_offset": 900,
        "high_watermark": 900, "recovery_point": 400, "left_out": 0, "segments": [{"base_offset": 0, "size_bytes": 1048576}]}]}

A log with more than ``SEGMENTS_MAX`` segments has its latest ones, and ``left_out`` counts the others. The last one is appended to. The
loop may begin a new segment meanwhile: the list is copied in one call.
"""

from collections.abc import Iterator
from typing import Any

from ottla.base.ids import TopicPartition
from ottla.broker.replica.leader import Leader
from ottla.server.metrics.exposition import Pace
from ottla.server.metrics.observed import ObservedBroker

SEGMENTS_MAX = 2_000


def segments_of(brokers: list[ObservedBroker], partition: TopicPartition, pace: Pace) -> Iterator[dict[str, Any]]:
    """The replicas of a partition in this process."""
    for broker in brokers:
        node = broker.node
        replica = node.partitions.replica(partition)
        if replica is None:
            continue
        log = replica.log
        segments = list(log.segments)
        described = []
        for segment in segments[-SEGMENTS_MAX:]:
            described.append({"base_offset": segment.base_offset, "size_bytes": segment.size})
            pace.step()
        yield {
            "broker": node.context.broker_id,
            "directory": replica.directory.root,
            "role": "leader" if isinstance(replica, Leader) else "follower",
            "start_offset": log.start_offset,
            "end_offset": log.end_offset,
            "high_watermark": replica.high_watermark,
            "recovery_point": log.recovery_point,
            "left_out": max(len(segments) - SEGMENTS_MAX, 0),
            "segments": described,
        }
