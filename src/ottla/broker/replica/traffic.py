"""Counters of records, bytes and requests by topic, for metrics. Plain attributes: a thread of the shell reads them at any time.

The counters of a topic are one object, which its leaders and followers on this broker share, so they survive a change of the leader. Those
of a deleted topic are added to ``others``: totals never decrease. Names of topics that do not exist get no counters of their own, because
clients choose them.
"""

from ottla.base.ids import TopicPartition


class TopicTraffic:
    """Counters of one topic, with the names of Kafka's BrokerTopicMetrics."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "bytes_rejected",
        "failed_fetch_requests",
        "failed_produce_requests",
        "fetch_requests",
        "messages_in",
        "produce_requests",
        "replication_bytes_in",
        "replication_bytes_out",
    )

    def __init__(self) -> None:
        #: Records and bytes of appended batches of clients.
        self.messages_in = 0
        self.bytes_in = 0
        #: Bytes of records sent to consumers.
        self.bytes_out = 0
        #: Bytes of batches that are too large.
        self.bytes_rejected = 0
        #: Partitions in Produce and Fetch requests of clients, and those that got an error.
        self.produce_requests = 0
        self.fetch_requests = 0
        self.failed_produce_requests = 0
        self.failed_fetch_requests = 0
        #: Bytes copied from leaders, and to followers.
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0

    def add(self, other: "TopicTraffic") -> None:
        """Adds the counters of another object."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class BrokerTraffic:
    """Counters of all topics with a replica on this broker."""

    __slots__ = ("others", "topics")

    def __init__(self) -> None:
        self.topics: dict[str, TopicTraffic] = {}
        #: Of deleted topics, and of requests for topics without counters.
        self.others = TopicTraffic()

    def of(self, partition: TopicPartition) -> TopicTraffic:
        """The counters of a partition that exists."""
        found = self.topics.get(partition.topic)
        if found is None:
            found = self.topics[partition.topic] = TopicTraffic()
        return found

    def named(self, topic: str | None) -> TopicTraffic:
        """The counters of a topic in a request."""
        return self.topics.get(topic, self.others)  # type: ignore[arg-type]

    def deleted(self, topic: str) -> None:
        """A topic was deleted."""
        gone = self.topics.pop(topic, None)
        if gone is not None:
            self.others.add(gone)
