"""What a client knows of the cluster: brokers, topics, who leads which partition. Pure: responses go in, answers and the next request
come out.

Knowledge ages. It is asked for again when it is older than `metadata_max_age_ms`, when somebody needs a topic it does not hold, and when
a broker's answer shows it to be wrong (`METADATA_IS_STALE`); after a failure only when the backoff has passed.

    leader epoch   a partition's entry only moves forward: an answer from a broker that lags does not replace a newer one (KIP-320)
    topic id       another id means that the topic was deleted and made again: then epochs start over (KIP-516). While it is the same,
                   partitions only come: an answer with fewer is that of a broker that lags
    deleted        a topic that was here, and that no broker has known for `GONE_MS`
    creating       brokers may create topics that they are asked about. They are let to where something is to be written or read, and not by
                   a mere question: a request with a topic that is only looked up, and not known, does not allow it
    hints          produce and fetch answers may name the new leader at once (KIP-951), which is taken like an answer for it
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ottla.client.argument_validation import topic_name
from ottla.client.errors import METADATA_IS_STALE
from ottla.wire.errors import InvalidTopic, KafkaError, TopicAuthorizationFailed, UnknownTopicOrPartition, error_for
from ottla.wire.messages import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponsePartition, MetadataResponseTopic

NO_TOPIC_ID = bytes(16)
NOBODY = -1
#: A topic that was here is taken for deleted when brokers have not known it for so long: one of them may lag behind the others.
GONE_MS = 5000
#: A topic that nobody asked about for so long is left out of the next request, unless there is a setting (metadata.max.idle.ms).
UNUSED_TOPIC_MS = 5 * 60 * 1000


class Broker(NamedTuple):
    """A broker and where it listens."""

    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionInfo(NamedTuple):
    """One partition as the last answer described it."""

    partition: int
    #: Node id, NOBODY while there is no leader.
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    offline: tuple[int, ...] = ()


class TopicInfo(NamedTuple):
    """One topic; partition i stands at index i."""

    name: str
    #: Zero when the broker is too old to have ids.
    topic_id: bytes
    partitions: tuple[PartitionInfo, ...]
    is_internal: bool = False


class Cluster:
    """The picture and its age. All times are milliseconds of one monotonic clock."""

    def __init__(self, *, max_age_ms: float, idle_ms: float = UNUSED_TOPIC_MS, allow_auto_create: bool = True) -> None:
        self.brokers: dict[int, Broker] = {}
        self.topics: dict[str, TopicInfo] = {}
        #: Topic by id, for answers that name no topic.
        self.names: dict[bytes, str] = {}
        #: The last answer's error for a topic that is asked for and not there.
        self.errors: dict[str, KafkaError] = {}
        #: Since when topics are not known any more that were here.
        self._gone_since: dict[str, float] = {}
        self.cluster_id: str | None = None
        self.controller = NOBODY
        #: Grows with each answer.
        self.version = 0
        #: What keeps us from a broker, or, without one, from all of them; None: nothing that is known of.
        self.trouble: Callable[[int | None], str | None] = lambda node: None
        self._max_age_ms = max_age_ms
        self._idle_ms = idle_ms
        self._allow_auto_create = allow_auto_create
        #: Topics to ask for, and when somebody last needed them.
        self._wanted: dict[str, float] = {}
        #: Those of them that brokers may create; and whether the next request leaves out what they may not.
        self._creatable: set[str] = set()
        self._create_next = True
        self._updated_ms = float("-inf")
        self._stale = True

    # -- asking

    def want(self, topic: str, now_ms: float, *, create: bool = True) -> None:
        """Keep this topic in the picture from now on; `create`: brokers may create it, if they and the settings have it so.

        Raises: TypeError for what is no name: no request could be made with it.
        """
        if (topic not in self._wanted or (create and topic not in self._creatable)) and topic_name(topic) not in self.topics:
            self._stale = True
        self._wanted[topic] = now_ms
        if create:
            self._creatable.add(topic)

    def invalidate(self) -> None:
        """The picture was found wrong: it is to be asked for again."""
        self._stale = True

    def due_ms(self) -> float:
        """When the picture should be asked for again; -inf: at once."""
        return float("-inf") if self._stale else self._updated_ms + self._max_age_ms

    def request(self, now_ms: float) -> MetadataRequest:
        """What to ask: the topics in use, none if there are none."""
        for topic in [topic for topic, used_ms in self._wanted.items() if now_ms - used_ms > self._idle_ms]:
            del self._wanted[topic]
            self._creatable.discard(topic)
            self._gone_since.pop(topic, None)
        asked, create = list(self._wanted), self._allow_auto_create
        looked_up = {topic for topic in asked if topic not in self._creatable and topic not in self.topics} if create else set()
        if looked_up:
            # Both kinds are asked about in turn, if there are both.
            create = self._create_next and any(topic in self._creatable and topic not in self.topics for topic in asked)
            self._create_next = not create
            if create:
                asked = [topic for topic in asked if topic not in looked_up]
        return MetadataRequest(topics=[MetadataRequestTopic(name=topic) for topic in asked], allow_auto_topic_creation=create)

    # -- learning

    def apply(self, response: MetadataResponse, now_ms: float, *, asked: Iterable[str] | None = None) -> None:
        """Take an answer in. `asked`: the topics of the request; those the answer does not hold are gone. None: all topics were asked
        for.
        """
        self.brokers = {broker.node_id: Broker(broker.node_id, broker.host, broker.port, broker.rack) for broker in response.brokers}
        self.cluster_id = response.cluster_id
        self.controller = response.controller_id
        topics, errors = dict(self.topics), dict(self.errors)
        for name in set(topics) if asked is None else set(asked):
            errors.pop(name, None)
            if not any(topic.name == name and not topic.error_code for topic in response.topics):
                topics.pop(name, None)
        leaderless = False
        for topic in response.topics:
            name = topic.name or ""
            if topic.error_code == UnknownTopicOrPartition.code and name in self.topics:
                self._gone_since.setdefault(name, now_ms)
            if topic.error_code:
                errors[name] = topic_error(topic.error_code, name)
                leaderless |= topic.error_code in METADATA_IS_STALE
                continue
            self._gone_since.pop(name, None)
            topics[name] = merged = _merged(self.topics.get(name), topic)
            leaderless |= any(partition.leader == NOBODY for partition in merged.partitions)
        self.topics, self.errors = topics, errors
        self.names = {topic.topic_id: name for name, topic in topics.items() if topic.topic_id != NO_TOPIC_ID}
        self._updated_ms = now_ms
        # What was wanted while the question was under way was not in it.
        self._stale = leaderless or (asked is not None and not self._wanted.keys() <= set(asked) | topics.keys())
        self.version += 1

    def hint(
        self, topic: str, partition: int, *, leader: int, leader_epoch: int, endpoints: Iterable[tuple[int, str, int, str | None]] = ()
    ) -> bool:
        """A broker named the new leader of a partition. True if that was news that can be used."""
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

    # -- answering

    def age_ms(self, now_ms: float) -> float:
        """How old the picture is; +inf while there is none."""
        return now_ms - self._updated_ms

    def partition_count(self, topic: str) -> int | None:
        """How many partitions a topic has; None while that is not known."""
        known = self.topics.get(topic)
        return None if known is None else len(known.partitions)

    def leader(self, topic: str, partition: int) -> tuple[int, int] | None:
        """(node id, leader epoch); None while no leader is known, or its address is not."""
        known = self.topics.get(topic)
        if known is None or partition >= len(known.partitions):
            return None
        info = known.partitions[partition]
        return (info.leader, info.leader_epoch) if info.leader in self.brokers else None

    def topic_id(self, topic: str) -> bytes:
        """The topic's id; zero while it is not known or there is none."""
        known = self.topics.get(topic)
        return NO_TOPIC_ID if known is None else known.topic_id

    def fatal(self, topic: str) -> KafkaError | None:
        """Why this topic will never be there, as far as the cluster told: no permission, no valid name."""
        error = self.errors.get(topic)
        return None if error is None or error.code in METADATA_IS_STALE or error.retriable else error

    def deleted(self, topic: str, partition: int | None, now_ms: float) -> KafkaError | None:
        """That a topic, or this partition of it, was here and is no more."""
        since_ms = self._gone_since.get(topic)
        if since_ms is not None and now_ms - since_ms >= GONE_MS:
            return UnknownTopicOrPartition(f"topic {topic} was deleted")
        count = self.partition_count(topic)
        if partition is not None and count is not None and partition >= count:
            return UnknownTopicOrPartition(f"topic {topic} was made again with {count} partitions, {topic}-{partition} is gone")
        return None

    def why_not(self, topic: str, partition: int | None = None) -> str:
        """In words, what is missing of a topic or partition."""
        return self.trouble_with(topic, partition) or f"topic {topic} is there"

    def trouble_with(self, topic: str, partition: int | None = None) -> str | None:
        """What keeps us from a topic, or from the leader of this partition; None: nothing that is known of."""
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


def topic_error(code: int, topic: str) -> KafkaError:
    """Why there is no such topic for us, and what to do about it."""
    error = error_for(code)
    match error:
        case UnknownTopicOrPartition():
            said = f"there is no topic {topic}: create it, or have the brokers create what is asked for (auto.create.topics.enable)"
        case InvalidTopic():
            said = f"{topic!r} is no topic to use: names have up to 249 letters, digits, '.', '_' and '-'; internal ones are the brokers'"
        case TopicAuthorizationFailed():
            said = f"this client may not use topic {topic}: whoever administers the cluster grants that, with an ACL"
        case _:
            said = f"topic {topic}: {error}"
    return error_for(code, said)


def _merged(was: TopicInfo | None, topic: MetadataResponseTopic) -> TopicInfo:
    same = was is not None and was.topic_id == topic.topic_id
    partitions: list[PartitionInfo] = []
    for new in sorted(topic.partitions, key=lambda partition: partition.partition_index):
        index = new.partition_index
        old = was.partitions[index] if was is not None and same and index < len(was.partitions) else None
        # Brokers count partitions from 0 without gaps; a hole would shift the rest, so it is filled with what leads nowhere.
        while len(partitions) < index:
            partitions.append(PartitionInfo(len(partitions), NOBODY, -1))
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
