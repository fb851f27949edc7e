"""Consumer metrics with Kafka's names.

They are counted per request and per chunk (one response of one partition), never per record. A chunk's bytes count as consumed when its
last record is taken, as in Kafka; its records count with the poll that takes them. Averages, maxima and rates cover the last minute
(`sampled_stats`); totals cover all time. Lags and leads are present values, except `-avg` and `-max`.

    consumer-metrics                      polls, synchronous commits, connections
    consumer-fetch-manager-metrics        fetches and their records
    consumer-topic-metrics                the same by topic         } in Kafka they are in the group above, with tags
    consumer-partition-metrics            lag and lead by partition }
    consumer-coordinator-metrics          heartbeats, joins, syncs, commits, rebalances, listeners
    consumer-node-metrics                 fetches by broker

A rebalance lasts from its detection by this member until all changes are applied, including listeners.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
from typing import NamedTuple

from ottla.base.ids import TopicPartition
from ottla.client.sampled_stats import Figures, SampledStat, average_and_maximum, total_and_rate

NAN = float("nan")
HOUR_S = 3600
#: Metrics of coordinator requests: Kafka's names of the count and of the time.
REQUESTS = {
    "HeartbeatRequest": ("heartbeat", "heartbeat-response-time"),
    "ConsumerGroupHeartbeatRequest": ("heartbeat", "heartbeat-response-time"),
    "JoinGroupRequest": ("join", "join-time"),
    "SyncGroupRequest": ("sync", "sync-time"),
    "OffsetCommitRequest": ("commit", "commit-latency"),
}
#: Listener methods and Kafka's names.
CALLBACKS = {
    "on_partitions_assigned": "partition-assigned-latency",
    "on_partitions_revoked": "partition-revoked-latency",
    "on_partitions_lost": "partition-lost-latency",
}


class ConsumedChunk(NamedTuple):
    """A chunk that was used up."""

    records: int
    size: int
    #: From its last record to the log end, and from the log start to it.
    lag: int
    lead: int


class Consumed(NamedTuple):
    """Records taken from a chunk, and the chunk if they were its last."""

    tp: TopicPartition
    records: int
    chunk: ConsumedChunk | None = None


class FetchProgress(NamedTuple):
    """Present state of an assigned partition; None if unknown."""

    lag: int | None
    lead: int | None


class _Read:
    __slots__ = ("bytes", "per_chunk", "records", "size")

    def __init__(self) -> None:
        self.bytes = SampledStat()
        self.records = SampledStat()
        self.size = SampledStat()
        self.per_chunk = SampledStat()

    def add(self, one: Consumed, now_ms: float) -> None:
        self.records.add(one.records, now_ms)
        if one.chunk is not None:
            self.bytes.add(one.chunk.size, now_ms)
            self.size.add(one.chunk.size, now_ms)
            self.per_chunk.add(one.chunk.records, now_ms)

    def figures(self, now_ms: float) -> Figures:
        return {
            **total_and_rate("bytes-consumed", self.bytes, now_ms),
            **total_and_rate("records-consumed", self.records, now_ms),
            **average_and_maximum("fetch-size", self.size, now_ms),
            "records-per-request-avg": self.per_chunk.average(now_ms),
        }


class _Timed:
    __slots__ = ("count", "time")

    def __init__(self) -> None:
        self.count = SampledStat()
        self.time = SampledStat()

    def add(self, took_ms: float, now_ms: float) -> None:
        self.count.add(1, now_ms)
        self.time.add(took_ms, now_ms)


class ConsumerMetrics:
    """Metrics of a consumer, updated on its event loop."""

    def __init__(self) -> None:
        self._all = _Read()
        self._topics: dict[str, _Read] = {}
        self._lags: dict[TopicPartition, SampledStat] = {}
        self._lag = SampledStat()
        self._fetch = _Timed()
        self._throttled = SampledStat()
        self._nodes: dict[int, _Timed] = {}
        self._requests = {name: _Timed() for name in ("heartbeat", "join", "sync", "commit")}
        #: Time of the last event; NaN for never.
        self._heartbeat_ms = self._rebalance_ms = self._poll_ms = self._poll_ended_ms = NAN
        #: NaN: no rebalance in progress.
        self._rebalance_began_ms = NAN
        self._rebalances = _Timed()
        self._failed_rebalances = SampledStat()
        self._callbacks = {name: SampledStat() for name in CALLBACKS}
        self._between_polls = SampledStat()
        self._idle_ratio = SampledStat()
        #: Time in synchronous commits.
        self.commit_sync_ns = 0
        self.committed_ns = 0

    # -- Fetches.

    def fetched(self, node_id: int, took_ms: float, throttle_ms: float, now_ms: float) -> None:
        """A fetch got its response."""
        self._throttled.add(throttle_ms, now_ms)
        for scope in (self._fetch, self._nodes.setdefault(node_id, _Timed())):
            scope.add(took_ms, now_ms)

    def consumed(self, taken: Iterable[Consumed], now_ms: float) -> None:
        """Records were taken."""
        for one in taken:
            topic = self._topics.get(one.tp.topic)
            if topic is None:
                topic = self._topics[one.tp.topic] = _Read()
            self._all.add(one, now_ms)
            topic.add(one, now_ms)
            if one.chunk is not None:
                self._lag.add(one.chunk.lag, now_ms)
                self._lags.setdefault(one.tp, SampledStat()).add(one.chunk.lag, now_ms)

    # -- Polls.

    def polled(self, began_ms: float, now_ms: float) -> None:
        """A poll ended."""
        if not isnan(self._poll_ms):
            self._between_polls.add(began_ms - self._poll_ms, now_ms)
            self._idle_ratio.add((now_ms - began_ms) / max(now_ms - self._poll_ended_ms, 1e-9), now_ms)
        self._poll_ms, self._poll_ended_ms = began_ms, now_ms

    # -- Group.

    def answered(self, request: type[object], took_ms: float, now_ms: float) -> None:
        """The coordinator answered."""
        name, _ = REQUESTS.get(request.__name__, ("", ""))
        if name:
            self._requests[name].add(took_ms, now_ms)
        if name == "heartbeat":
            self._heartbeat_ms = now_ms

    def rebalance(self, settled: bool, now_ms: float) -> None:
        """Whether the group is stable now."""
        if not settled:
            if isnan(self._rebalance_began_ms):
                self._rebalance_began_ms = now_ms
        elif not isnan(self._rebalance_began_ms):
            self._rebalances.add(now_ms - self._rebalance_began_ms, now_ms)
            self._rebalance_ms, self._rebalance_began_ms = now_ms, NAN

    def rebalance_failed(self, now_ms: float) -> None:
        """The member was removed, or its join refused."""
        self._failed_rebalances.add(1, now_ms)

    def listened(self, name: str, took_ms: float, now_ms: float) -> None:
        """A listener method returned."""
        self._callbacks[name].add(took_ms, now_ms)

    # -- Values.

    def figures(
        self,
        partitions: Mapping[TopicPartition, FetchProgress],
        replicas: Mapping[TopicPartition, int],
        connections: int,
        in_group: bool,
        now_ms: float,
    ) -> dict[str, Figures | dict[str, Figures]]:
        """All metrics by name; those of topics, partitions and nodes by these first. `replicas`: preferred read replicas of partitions."""
        found: dict[str, Figures | dict[str, Figures]] = {
            "consumer-metrics": self._polls(connections, now_ms),
            "consumer-fetch-manager-metrics": self._fetches(partitions, now_ms),
            "consumer-topic-metrics": {name: read.figures(now_ms) for name, read in self._topics.items()},
            "consumer-partition-metrics": {str(tp): self._partition(tp, one, replicas.get(tp), now_ms) for tp, one in partitions.items()},
            "consumer-node-metrics": {str(node): _fetch_figures(timed, now_ms) for node, timed in self._nodes.items()},
        }
        if in_group:
            found["consumer-coordinator-metrics"] = self._coordinator(len(partitions), now_ms)
        return found

    def _polls(self, connections: int, now_ms: float) -> Figures:
        return {
            **average_and_maximum("time-between-poll", self._between_polls, now_ms),
            "last-poll-seconds-ago": (now_ms - self._poll_ms) / 1000,
            "poll-idle-ratio-avg": self._idle_ratio.average(now_ms),
            "commit-sync-time-ns-total": self.commit_sync_ns,
            "committed-time-ns-total": self.committed_ns,
            "connection-count": connections,
        }

    def _fetches(self, partitions: Mapping[TopicPartition, FetchProgress], now_ms: float) -> Figures:
        leads = [one.lead for one in partitions.values() if one.lead is not None]
        return {
            **self._all.figures(now_ms),
            **_fetch_figures(self._fetch, now_ms),
            **average_and_maximum("fetch-throttle-time", self._throttled, now_ms),
            "records-lag-max": self._lag.greatest(now_ms),
            "records-lead-min": min(leads, default=NAN),
        }

    def _partition(self, tp: TopicPartition, one: FetchProgress, replica: int | None, now_ms: float) -> Figures:
        lags = self._lags.get(tp) or SampledStat()
        return {
            "records-lag": NAN if one.lag is None else one.lag,
            **average_and_maximum("records-lag", lags, now_ms),
            "records-lead": NAN if one.lead is None else one.lead,
            "preferred-read-replica": -1 if replica is None else replica,
        }

    def _coordinator(self, assigned: int, now_ms: float) -> Figures:
        found: Figures = {"assigned-partitions": assigned, "last-heartbeat-seconds-ago": (now_ms - self._heartbeat_ms) / 1000}
        for name, time_name in set(REQUESTS.values()):
            timed = self._requests[name]
            found |= {**total_and_rate(name, timed.count, now_ms), **average_and_maximum(time_name, timed.time, now_ms)}
        for name, callback in CALLBACKS.items():
            found |= average_and_maximum(callback, self._callbacks[name], now_ms)
        return {
            **found,
            **average_and_maximum("rebalance-latency", self._rebalances.time, now_ms),
            "rebalance-latency-total": self._rebalances.time.total,
            "rebalance-total": self._rebalances.count.total,
            "rebalance-rate-per-hour": self._rebalances.count.rate(now_ms) * HOUR_S,
            "failed-rebalance-total": self._failed_rebalances.total,
            "failed-rebalance-rate-per-hour": self._failed_rebalances.rate(now_ms) * HOUR_S,
            "last-rebalance-seconds-ago": (now_ms - self._rebalance_ms) / 1000,
        }


def _fetch_figures(timed: _Timed, now_ms: float) -> Figures:
    return {**total_and_rate("fetch", timed.count, now_ms), **average_and_maximum("fetch-latency", timed.time, now_ms)}
