"""Cluster metadata of a client: brokers, topics, leaders. Pure: responses go in, lookups and requests come out.

Metadata is refreshed when it is older than `metadata_max_age_ms`, when a topic is missing, and when a broker's error shows that it is stale
(`METADATA_IS_STALE`); after a failure only when the backoff has passed.

    leader epoch   only increases: a response of a broker that lags does not replace a newer one (KIP-320)
    topic id       another id means that the topic was deleted and created again: epochs start over (KIP-516). With the same id partitions
                   are only added: a response with fewer comes from a broker that lags
    deleted        a topic that existed and that no broker has known for `GONE_MS`
    creating       brokers may create requested topics. A request allows that for topics that are written or read, not for unknown topics
    that are only looked up
    hints          produce and fetch responses may name a new leader (KIP-951), which is used like metadata
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.client.argument_validation import topic_name
from ottla.client.errors import METADATA_IS_STALE
from ottla.wire.errors import InvalidTopic, KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition, error_for
from ottla.wire.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

NO_TOPIC_ID = bytes(16)
#: Node id without a node: a partition without a leader, a cluster without a known controller.
NO_NODE = -1
#: A topic counts as deleted if brokers have not known it for this time: one of them may lag.
GONE_MS = 5000
#: A topic that was not used for this time is not requested any more, unless metadata.max.idle.ms is set.
UNUSED_TOPIC_MS = 5 * 60 * 1000


class Broker(NamedTuple):
    """A broker and its address."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """One partition in the last response."""

    partition: int
    #: Node id, NO_NODE without a leader.
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """One topic; partition i is at index i."""

    name: str
    #: Zero if the broker has no topic ids.
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False


class Cluster:
    """Cluster metadata and its age. All times are milliseconds of one monotonic clock."""

    def __init__(self, *, max_age_ms: float, idle_ms: float = UNUSED_TOPIC_MS, allow_auto_create: bool = True) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicInfo] = {}
        #: Topic by id, for responses without names.
        self.names: dict[bytes, str] = {}
        #: The last error of a requested topic that does not exist.
        self.errors: dict[str, KafkaError] = {}
        #: Since when topics that existed are unknown.
        self._gone_since: dict[str, float] = {}
        self.cluster_id: str | None = None
        self.controller = NO_NODE
        #: Incremented by each response.
        self.version = 0
        #: The connection problem of a broker, or, without one, of all; None if none is known.
        self.trouble: Callable[[int | None], str | None] = lambda node: None
        #: The message for a topic that this client may not describe.
        self.refused: Callable[[int, str], str | None] = lambda code, topic: None
        self._max_age_ms = max_age_ms
        self._idle_ms = idle_ms
        self._allow_auto_create = allow_auto_create
        #: Requested topics, and the time of their last use.
        self._wanted: dict[str, float] = {}
        #: Those that brokers may create; and whether the next request omits the others.
        self._creatable: set[str] = set()
        self._create_next = True
        self._updated_ms = float("-inf")
        self._stale = True

    # -- Requests.

    def want(self, topic: str, now_ms: float, *, create: bool = True) -> None:
        """Requests this topic from now on; `create`: brokers may create it if settings allow.

        Raises: TypeError if it is not a name.
        """
        if (topic not in self._wanted or (create and topic not in self._creatable)) and topic_name(topic) not in self.topics:
            self._stale = True
        self._wanted[topic] = now_ms
        if create:
            self._creatable.add(topic)

    def invalidate(self) -> None:
        """Metadata is stale: refresh it."""
        self._stale = True

    def due_ms(self) -> float:
        """Time of the next refresh; -inf: now."""
        return float("-inf") if self._stale else self._updated_ms + self._max_age_ms

    def request(self, now_ms: float) -> MetadataRequest:
        """The request for the topics in use; none if there are none."""
        for topic in [topic for topic, used_ms in self._wanted.items() if now_ms - used_ms > self._idle_ms]:
            del self._wanted[topic]
            self._creatable.discard(topic)
            self._gone_since.pop(topic, None)
        asked, create = list(self._wanted), self._allow_auto_create
        looked_up = {topic for topic in asked if topic not in self._creatable and topic not in self.topics} if create else set()
        if looked_up:
            # Alternates between both kinds.
            create = self._create_next and any(topic in self._creatable and topic not in self.topics for topic in asked)
            self._create_next = not create
            if create:
                asked = [topic for topic in asked if topic not in looked_up]
        return MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in asked], allow_auto_topic_creation=create)

    # -- Responses.

    def apply(self, response: MetadataResponse, now_ms: float, *, asked: Iterable[str] | None = None) -> None:
        """Applies a response. `asked`: topics of the request; those that are missing in the response do not exist. None: all topics were
        requested.
        """
        self.brokers = {broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller = response.controller_id
        topics, errors = dict(self.topics), dict(self.errors)
        found = {topic.name for topic in response.topics if not topic.error_code}
        for name in set(topics) if asked is None else set(asked):
            errors.pop(name, None)
            if name not in found:
                topics.pop(name, None)
        leaderless = False
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code == UnknownTopicOrPartition.code and name in self.topics:
                self._gone_since.setdefault(name, now_ms)
            if topic.error_code:
                errors[name] = topic_error(topic.error_code, name, self.refused(topic.error_code, name))
                leaderless |= topic.error_code in METADATA_IS_STALE
                continue
            self._gone_since.pop(name, None)
            topics[name] = merged = _merged(self.topics.get(name), topic)
            leaderless |= any(partition.leader == NO_NODE for partition in merged.partitions)
        self.topics, self.errors = topics, errors
        self.names = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id != NO_TOPIC_ID}
        self._updated_ms = now_ms
        # Topics added after the request was sent are not in it.
        self._stale = leaderless or (asked is not None and not self._wanted.keys() <= set(asked) | topics.keys())
        self.version += 1

    def hint(
        self, topic: str, partition: int, *, leader: int, leader_epoch: int, endpoints: Iterable[tuple[int, str, int, str | None]] = ()
    ) -> bool:
        """A broker named the new leader of a partition. True if that was new."""
        known = self.topics.get(topic)
        for node_id, host, port, rack in endpoints:
            self.brokers[node_id] = Broker(node_id, host, port, rack)
        if known is None or leader not in self.brokers or partition >= len(known.partitions):
            return False
        was = known.partitions[partition]
        if leader_epoch <= was.leader_epoch:
            return False
        partitions = list(known.partitions)
        partitions[partition] = was._replace(leader=leader, leader_epoch=leader_epoch)
        self.topics[topic] = known._replace(partitions=tuple(partitions))
        return True

    # -- Lookups.

    def age_ms(self, now_ms: float) -> float:
        """Age of the metadata; +inf while there is none."""
        return now_ms - self._updated_ms

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions of a topic; None if unknown."""
        known = self.topics.get(topic)
        return None if known is None else len(known.partitions)

    def leader(self, topic: str, partition: int) -> tuple[int, int] | None:
        """(node id, leader epoch); None without a known leader or its address."""
        known = self.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return None
        info = known.partitions[partition]
        return (info.leader, info.leader_epoch) if info.leader in self.brokers else None

    def topic_id(self, topic: str) -> bytes:
        """The topic's id; zero if unknown."""
        known = self.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id

    def fatal(self, topic: str) -> KafkaError | None:
        """The permanent error of a topic: not authorized, invalid name."""
        error = self.errors.get(topic)
        return None if error is None or error.code in METADATA_IS_STALE or error.retriable else error

    def deleted(self, topic: str, partition: int | None, now_ms: float) -> KafkaError | None:
        """The error for a topic or partition that existed and does not any more."""
        since_ms = self._gone_since.get(topic)
        if since_ms is not None and now_ms - since_ms >= GONE_MS:
            return UnknownTopicOrPartition(f"topic {topic} was deleted")
        count = self.partition_count(topic)
        if partition is not None and count is not None and partition >= count:
            return UnknownTopicOrPartition(f"topic {topic} was made again with {count} partitions, {topic}-{partition} is gone")
        return None

    def why_not(self, topic: str, partition: int | None = None) -> str:
        """The reason why a topic or partition has no leader, in words."""
        return self.trouble_with(topic, partition) or f"topic {topic} is there"

    def trouble_with(self, topic: str, partition: int | None = None) -> str | None:
        """The problem with a topic, or with the leader of this partition; None if none is known."""
        if topic in self.errors:
            return str(self.errors[topic])
        known = self.topics.get(topic)
        if known is None:
            return self.trouble(None) or f"topic {topic} is not known to the cluster yet"
        if partition is not None and partition >= len(known.partitions):
            return f"topic {topic} has {len(known.partitions)} partitions, no partition {partition}"
        if partition is not None and self.leader(topic, partition) is None:
            return f"partition {topic}-{partition} has no leader; are all brokers up?"
        if partition is None:
            return None
        leader = known.partitions[partition].leader
        trouble = self.trouble(leader)
        return None if trouble is None else f"broker {leader}, which leads {topic}-{partition}: {trouble}"


def topic_error(code: int, topic: str, refused: str | None = None) -> KafkaError:
    """The error of a missing topic, with a remedy. ``refused``: the message if the client may not describe it."""
    error = error_for(code)
    match error:
        case UnknownTopicOrPartition():
            said = f"there is no topic {topic}: create it, or let the brokers create it (auto.create.topics.enable)"
        case InvalidTopic():
            said = f"{topic!r} is not a valid topic name (up to 249 letters, digits, '.', '_' and '-'), or the topic is internal"
        case TopicAuthorizationFailed():
            said = refused or f"this client may not use topic {topic}; ask the cluster's administrator for an access rule (ACL)"
        case _:
            said = f"topic {topic}: {error}"
    return error_for(code, said)


def _merged(was: TopicInfo | None, topic: MetadataResponseTopic) -> TopicInfo:
    same = was is not None and was.topic_id == topic.topic_id
    partitions: list[PartitionInfo] = []
    for new in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        index = new.partition_index
        old = was.partitions[index] if was is not None and same and index < len(was.partitions) else None
        # Partitions are numbered without gaps; a missing one is filled in without a leader.
        while len(partitions) < index:
            partitions.append(PartitionInfo(len(partitions), NO_NODE, -1))
        partitions.append(old if old is not None and -1 < new.leader_epoch < old.leader_epoch else _info(new))
    if was is not None and same and topic.topic_id != NO_TOPIC_ID:
        partitions += was.partitions[len(partitions) :]
    return TopicInfo(topic.name or "", topic.topic_id, tuple(partitions), topic.is_internal)


def _info(partition: MetadataResponsePartition) -> PartitionInfo:
    return PartitionInfo(
        partition.partition_index,
        partition.leader_id,
        partition.leader_epoch,
        tuple(partition.replica_nodes),
        tuple(partition.isr_nodes),
        tuple(partition.offline_replicas),
    )
