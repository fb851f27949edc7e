"""A subscription without a group: the consumer reads all partitions of its topics by itself, also partitions that are added later."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from ottla.base.ids import TopicPartition
from ottla.client.fetch.fetcher import Fetcher
from ottla.client.group.matching_topics import MatchingTopics
from ottla.client.options import ConsumerOptions
from ottla.client.transport.network import Network
from ottla.wire.errors import KafkaError


class SubscribedTopics:
    """Assigns the partitions of topics, given by name or by a pattern, to a fetcher."""

    def __init__(
        self, network: Network, fetcher: Fetcher, options: ConsumerOptions, names: Iterable[str], pattern: str | re.Pattern[str] | None,
        changed: Callable[[], None],
    ) -> None:  # fmt: skip
        self.topics = frozenset(names)
        self._named = self.topics
        self._network = network
        self._fetcher = fetcher
        self._matching = None if pattern is None else MatchingTopics(network, options, re.compile(pattern), self._found, changed)

    def _found(self, names: Iterable[str]) -> None:
        self.topics = frozenset(names)

    def stop(self) -> None:
        """Ends the subscription."""
        if self._matching is not None:
            self._matching.stop()

    def fatal(self) -> KafkaError | None:
        """The permanent error of a topic that was subscribed to by name."""
        return next((error for topic in sorted(self._named) if (error := self._network.cluster.fatal(topic)) is not None), None)

    def pump(self, now_ms: float) -> float:
        """Assigns partitions that are known; returns the time of the next call."""
        cluster = self._network.cluster
        for topic in self.topics:
            cluster.want(topic, now_ms)
        partitions = [TopicPartition(topic, index) for topic in sorted(self.topics) for index in range(cluster.partition_count(topic) or 0)]
        if partitions != self._fetcher.assignment:
            self._fetcher.assign(partitions)
        return float("inf") if self._matching is None else self._matching.pump(now_ms)
