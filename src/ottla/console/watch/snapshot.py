"""A measurement of the whole cluster, and the rates between two of them. Pure.

Records are counted by offsets: `end - start` of each partition, so compacted topics and transactions count more than a reader finds.
Rates are those of log ends. Sizes are those of the leaders' logs, and of all replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from ottla.base.ids import TopicPartition
from ottla.client.admin.results import LogDir, Node, PartitionDescription, TopicDescription


class Measured(msgspec.Struct, kw_only=True):
    """What one measurement found. A part that is not available is empty, and `unavailable` has the reason."""

    at_ms: int
    cluster_id: str | None = None
    controller: int = -1
    nodes: list[Node] = []
    topics: dict[str, TopicDescription] = {}
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    directories: dict[int, list[LogDir]] = {}
    unavailable: dict[str, str] = {}


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic. None: unknown."""

    name: str
    is_internal: bool
    partitions: int
    replication_factor: int
    leaderless: int
    under_replicated: int
    records: int | None = None
    #: Of the leaders' logs, and of all replicas.
    size_bytes: int | None = None
    stored_bytes: int | None = None
    #: Records and bytes per second since the last measurement; bytes by the average size of a record.
    rate: float | None = None
    byte_rate: float | None = None
    #: Largest share of a partition in the topic's records, divided by the even share: 1.0 is even.
    skew: float | None = None


class BrokerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A broker, with what it leads and stores."""

    node: Node
    leads: int
    replicas: int
    #: Replicas that are not in the ISR.
    lagging: int
    stored_bytes: int | None
    #: Records per second to partitions that it leads.
    rate: float | None
    directories: list[LogDir]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The cluster at one time, with rates since the time before."""

    measured: Measured
    topics: dict[str, TopicSummary]
    brokers: list[BrokerSummary]
    #: Records per second of each partition.
    rates: dict[TopicPartition, float]
    #: Sizes of the leaders' logs.
    sizes: dict[TopicPartition, int]
    #: Partitions with a leader that is not the preferred one.
    unpreferred: int

    @property
    def rate(self) -> float | None:
        """Records per second of all topics; None without an earlier measurement."""
        known = [one.rate for one in self.topics.values() if one.rate is not None]
        return sum(known) if known else None

    @property
    def byte_rate(self) -> float | None:
        """Bytes per second of all topics."""
        known = [one.byte_rate for one in self.topics.values() if one.byte_rate is not None]
        return sum(known) if known else None

    @property
    def stored_bytes(self) -> int:
        """Size of all replicas."""
        return sum(one.stored_bytes or 0 for one in self.brokers)


def summarize(measured: Measured, before: Measured | None = None) -> Snapshot:
    """The snapshot of a measurement, with rates since `before`."""
    rates = _rates(measured, before)
    leaders = {TopicPartition(name, one.partition): one.leader for name, topic in measured.topics.items() for one in topic.partitions}
    sizes, stored = _sizes(measured.directories, leaders)
    topics = {
        name: _topic(topic, measured, rates=rates, sizes=sizes if measured.directories else None, stored=stored)
        for name, topic in sorted(measured.topics.items())
    }
    unpreferred = sum(
        one.leader >= 0 and bool(one.replicas) and one.leader != one.replicas[0]
        for topic in measured.topics.values()
        for one in topic.partitions
    )
    brokers = _brokers(measured, leaders, rates)
    return Snapshot(measured=measured, topics=topics, brokers=brokers, rates=rates, sizes=sizes, unpreferred=unpreferred)


def _rates(measured: Measured, before: Measured | None) -> dict[TopicPartition, float]:
    if before is None or measured.at_ms <= before.at_ms:
        return {}
    seconds = (measured.at_ms - before.at_ms) / 1000
    ids = {name: topic.topic_id for name, topic in before.topics.items()}
    same = {name for name, topic in measured.topics.items() if ids.get(name) == topic.topic_id}
    return {tp: max(end - before.ends[tp], 0) / seconds for tp, end in measured.ends.items() if tp in before.ends and tp.topic in same}


def _sizes(
    directories: Mapping[int, list[LogDir]], leaders: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, int], dict[str, int]]:
    """Sizes of the leaders' logs by partition, and of all replicas by topic."""
    sizes: dict[TopicPartition, int] = {}
    stored: dict[str, int] = {}
    for broker, found in directories.items():
        for directory in found:
            for replica in directory.replicas:
                tp = TopicPartition(replica.topic, replica.partition)
                stored[replica.topic] = stored.get(replica.topic, 0) + replica.size_bytes
                if leaders.get(tp) == broker and not replica.is_future:
                    sizes[tp] = replica.size_bytes
    return sizes, stored


def _topic(
    topic: TopicDescription,
    measured: Measured,
    *,
    rates: Mapping[TopicPartition, float],
    sizes: Mapping[TopicPartition, int] | None,
    stored: Mapping[str, int],
) -> TopicSummary:
    # Before offsets and sizes are known, the first page waits for this.
    tps = [TopicPartition(topic.name, one.partition) for one in topic.partitions] if measured.ends or sizes or rates else []
    counts = [measured.ends[tp] - measured.starts[tp] for tp in tps if tp in measured.ends and tp in measured.starts]
    records = sum(counts) if counts or not topic.partitions else None
    known = [rates[tp] for tp in tps if tp in rates]
    rate = sum(known) if known else None
    size = None if sizes is None else sum(sizes.get(tp, 0) for tp in tps)
    return TopicSummary(
        name=topic.name,
        is_internal=topic.is_internal,
        partitions=len(topic.partitions),
        replication_factor=max((len(one.replicas) for one in topic.partitions), default=0),
        leaderless=sum(one.leader < 0 for one in topic.partitions),
        under_replicated=sum(is_under_replicated(one) for one in topic.partitions),
        records=records,
        size_bytes=size,
        stored_bytes=None if sizes is None else stored.get(topic.name, 0),
        rate=rate,
        byte_rate=None if rate is None or not records or size is None else rate * size / records,
        skew=max(counts) * len(counts) / records if records and len(counts) > 1 else None,
    )


def is_under_replicated(partition: PartitionDescription) -> bool:
    """Whether a replica is not in the ISR."""
    return len(partition.isr) < len(partition.replicas)


def _brokers(measured: Measured, leaders: Mapping[TopicPartition, int], rates: Mapping[TopicPartition, float]) -> list[BrokerSummary]:
    leads: dict[int, int] = {}
    replicas: dict[int, int] = {}
    lagging: dict[int, int] = {}
    led_rates: dict[int, float] = {}
    for tp, leader in leaders.items():
        leads[leader] = leads.get(leader, 0) + 1
        if tp in rates:
            led_rates[leader] = led_rates.get(leader, 0.0) + rates[tp]
    for topic in measured.topics.values():
        for one in topic.partitions:
            for broker in one.replicas:
                replicas[broker] = replicas.get(broker, 0) + 1
                lagging[broker] = lagging.get(broker, 0) + (broker not in one.isr)
    return [
        BrokerSummary(
            node=node,
            leads=leads.get(node.id, 0),
            replicas=replicas.get(node.id, 0),
            lagging=lagging.get(node.id, 0),
            stored_bytes=_stored(measured.directories[node.id]) if node.id in measured.directories else None,
            rate=led_rates.get(node.id, 0.0) if rates else None,
            directories=measured.directories.get(node.id, []),
        )
        for node in measured.nodes
    ]


def _stored(directories: Iterable[LogDir]) -> int:
    return sum(replica.size_bytes for directory in directories for replica in directory.replicas)
