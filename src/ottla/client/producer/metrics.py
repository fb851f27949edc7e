"""The producer's metrics, under Kafka's names.

They are updated per batch and per request, not per record. Averages, maxima and rates cover the last minute (`sampled_stats`); totals
cover the producer's lifetime.

    producer-metrics          of the whole producer
    producer-topic-metrics    by topic
    producer-node-metrics     by broker
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.client.producer.batches import ProducerBatch
from ottla.client.sampled_stats import Figures, SampledStat, average_and_maximum, total_and_rate
from ottla.records.batch import HEADER_SIZE


class _TopicMetrics:
    __slots__ = ("bytes", "compression", "errors", "records", "retries")

    def __init__(self) -> None:
        self.bytes = SampledStat()
        self.compression = SampledStat()
        self.errors = SampledStat()
        self.records = SampledStat()
        self.retries = SampledStat()

    def figures(self, now_ms: float) -> Figures:
        counted = {"byte": self.bytes, "record-send": self.records, "record-error": self.errors, "record-retry": self.retries}
        found: Figures = {"compression-rate": self.compression.average(now_ms)}
        for name, one in counted.items():
            found |= total_and_rate(name, one, now_ms)
        return found


class ProducerGauges(NamedTuple):
    """Current values that need no counter."""

    buffer_total_bytes: int
    buffer_used_bytes: int
    requests_in_flight: int
    connection_count: int
    metadata_age_ms: float
    batch_splits: int


class ProducerMetrics:
    """Updated by the sender and by the producers."""

    def __init__(self) -> None:
        self._all = _TopicMetrics()
        self._topics: dict[str, _TopicMetrics] = {}
        self._nodes: dict[int, SampledStat] = {}
        self._batch_size = SampledStat()
        self._record_size = SampledStat()
        self._queue_time = SampledStat()
        self._records_per_request = SampledStat()
        self._latency = SampledStat()
        self._throttled = SampledStat()
        self._requests = SampledStat()
        self._responses = SampledStat()
        #: Threads that wait for memory, and the total wait of all.
        self.waiting_threads = 0
        self.buffer_wait_ns = 0
        self.buffer_exhausted = 0
        self.metadata_wait_ns = 0
        self.flush_ns = 0

    def _topic(self, name: str) -> _TopicMetrics:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = _TopicMetrics()
        return found

    def sent(self, batches: Iterable[ProducerBatch], now_ms: float) -> None:
        """A request was sent."""
        records = 0
        for batch in batches:
            size = len(batch.data or b"")
            records += batch.count
            for scope in (self._all, self._topic(batch.topic)):
                scope.records.add(batch.count, now_ms)
                scope.bytes.add(size, now_ms)
                scope.compression.add(size / max(batch.size, 1), now_ms)
            self._batch_size.add(size, now_ms)
            self._record_size.add(batch.size - HEADER_SIZE, now_ms, max(batch.count, 1))
            self._queue_time.add(now_ms - batch.created_ms, now_ms)
        self._records_per_request.add(records, now_ms)
        self._requests.add(1, now_ms)

    def answered(self, node_id: int, latency_ms: float, throttle_ms: float, now_ms: float) -> None:
        """A response arrived."""
        self._responses.add(1, now_ms)
        self._throttled.add(throttle_ms, now_ms)
        for scope in (self._latency, self._nodes.setdefault(node_id, SampledStat())):
            scope.add(latency_ms, now_ms)

    def retried(self, batch: ProducerBatch, now_ms: float) -> None:
        """A batch will be sent again."""
        for scope in (self._all, self._topic(batch.topic)):
            scope.retries.add(batch.count, now_ms)

    def failed(self, batch: ProducerBatch, now_ms: float) -> None:
        """A batch failed."""
        for scope in (self._all, self._topic(batch.topic)):
            scope.errors.add(batch.count, now_ms)

    def figures(self, gauges: ProducerGauges, now_ms: float) -> dict[str, dict[str, float] | dict[str, Figures]]:
        """All metrics: the producer's by name; those of topics and nodes by topic or node, then by name."""
        nodes = {str(node): average_and_maximum("request-latency", latency, now_ms) for node, latency in self._nodes.items()}
        topics = {name: topic.figures(now_ms) for name, topic in self._topics.items()}
        return {"producer-metrics": self._own(gauges, now_ms), "producer-topic-metrics": topics, "producer-node-metrics": nodes}

    def _own(self, gauges: ProducerGauges, now_ms: float) -> Figures:
        figures = self._all.figures(now_ms)
        figures["compression-rate-avg"] = figures.pop("compression-rate")
        figures["outgoing-byte-total"], figures["outgoing-byte-rate"] = figures.pop("byte-total"), figures.pop("byte-rate")
        averages = {"batch-size": self._batch_size, "record-queue-time": self._queue_time, "produce-throttle-time": self._throttled}
        for name, one in averages.items():
            figures |= average_and_maximum(name, one, now_ms)
        return {
            **figures,
            **average_and_maximum("request-latency", self._latency, now_ms),
            "record-size-avg": self._record_size.average(now_ms),
            "records-per-request-avg": self._records_per_request.average(now_ms),
            **total_and_rate("request", self._requests, now_ms),
            **total_and_rate("response", self._responses, now_ms),
            "requests-in-flight": gauges.requests_in_flight,
            "batch-split-total": gauges.batch_splits,
            "buffer-total-bytes": gauges.buffer_total_bytes,
            "buffer-available-bytes": max(gauges.buffer_total_bytes - gauges.buffer_used_bytes, 0),
            "buffer-exhausted-total": self.buffer_exhausted,
            "bufferpool-wait-time-ns-total": self.buffer_wait_ns,
            "waiting-threads": self.waiting_threads,
            "metadata-wait-time-ns-total": self.metadata_wait_ns,
            "metadata-age": gauges.metadata_age_ms / 1000,
            "flush-time-ns-total": self.flush_ns,
            "connection-count": gauges.connection_count,
        }
