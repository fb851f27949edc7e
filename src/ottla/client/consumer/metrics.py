"""What a consumer counts, under Kafka's names.

Counted is by request and by chunk, which is what one answer brought of one partition, never by record. A chunk's bytes count as consumed
when the last of it was taken, as in Kafka; its records with the poll that takes them, also where a limit leaves some for the next.
Averages, maxima and rates are of the last minute, as `moving` has it; totals are of all time. Lags and leads are those of the moment, but
for `-avg` and `-max`.

    consumer-metrics                      polls, commits that were waited for, connections
    consumer-fetch-manager-metrics        fetches, and what they brought
    consumer-topic-metrics                the same by topic         } in Kafka they are in the group above, told apart by tags
    consumer-partition-metrics            lag and lead by partition }
    consumer-coordinator-metrics          heartbeats, joins, syncs, commits, rebalances, and listeners
    consumer-node-metrics                 fetches by broker

A rebalance lasts from when this member learns of it until nothing is to be done any more, the listener's work included.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isnan
from typing import NamedTuple

from ottla.base.ids import TopicPartition
from ottla.client.sampled_stats import Figures, Moving, average_and_maximum, total_and_rate

NAN = float("nan")
HOUR_S = 3600
#: What is counted of the coordinator's answers, by the name of the request: Kafka's names of the count, and of the time.
REQUESTS = {
    "HeartbeatRequest": ("heartbeat", "heartbeat-response-time"),
    "ConsumerGroupHeartbeatRequest": ("heartbeat", "heartbeat-response-time"),
    "JoinGroupRequest": ("join", "join-time"),
    "SyncGroupRequest": ("sync", "sync-time"),
    "OffsetCommitRequest": ("commit", "commit-latency"),
}
#: What listeners are told, and Kafka's names for it.
CALLBACKS = {
    "on_partitions_assigned": "partition-assigned-latency",
    "on_partitions_revoked": "partition-revoked-latency",
    "on_partitions_lost": "partition-lost-latency",
}


class ConsumedChunk(NamedTuple):
    """A chunk of which nothing is left."""

    records: int
    size: int
    #: From its last record to the end of the log, and from the start of the log to it.
    lag: int
    lead: int


class Consumed(NamedTuple):
    """Records of a chunk that were taken, and the whole of it when they were its last."""

    tp: TopicPartition
    records: int
    chunk: ConsumedChunk | None = None


class PartitionStanding(NamedTuple):
    """What is to be seen of an assigned partition; None where it is not known."""

    lag: int | None
    lead: int | None


class _Read:
    __slots__ = ("bytes", "per_chunk", "records", "size")

    def __init__(self) -> None:
        self.bytes = Moving()
        self.records = Moving()
        self.size = Moving()
        self.per_chunk = Moving()

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
        self.count = Moving()
        self.time = Moving()

    def add(self, took_ms: float, now_ms: float) -> None:
        self.count.add(1, now_ms)
        self.time.add(took_ms, now_ms)


class ConsumerMetrics:
    """Told by the consumer and its postmen, on their loop."""

    def __init__(self) -> None:
        self._all = _Read()
        self._topics: dict[str, _Read] = {}
        self._lags: dict[TopicPartition, Moving] = {}
        self._lag = Moving()
        self._fetch = _Timed()
        self._throttled = Moving()
        self._nodes: dict[int, _Timed] = {}
        self._requests = {name: _Timed() for name in ("heartbeat", "join", "sync", "commit")}
        #: When these were last; NaN: never yet.
        self._heartbeat_ms = self._rebalance_ms = self._poll_ms = self._poll_ended_ms = NAN
        #: NaN: none goes on.
        self._rebalance_began_ms = NAN
        self._rebalances = _Timed()
        self._failed_rebalances = Moving()
        self._callbacks = {name: Moving() for name in CALLBACKS}
        self._between_polls = Moving()
        self._idle_ratio = Moving()
        #: Waited for by the user.
        self.commit_sync_ns = 0
        self.committed_ns = 0

    # -- fetches

    def fetched(self, node_id: int, took_ms: float, throttle_ms: float, now_ms: float) -> None:
        """A fetch was answered."""
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
                self._lags.setdefault(one.tp, Moving()).add(one.chunk.lag, now_ms)

    # -- polls

    def polled(self, began_ms: float, now_ms: float) -> None:
        """A poll is over."""
        if not isnan(self._poll_ms):
            self._between_polls.add(began_ms - self._poll_ms, now_ms)
            self._idle_ratio.add((now_ms - began_ms) / max(now_ms - self._poll_ended_ms, 1e-9), now_ms)
        self._poll_ms, self._poll_ended_ms = began_ms, now_ms

    # -- the group

    def answered(self, request: type[object], took_ms: float, now_ms: float) -> None:
        """The coordinator answered."""
        name, _ = REQUESTS.get(request.__name__, ("", ""))
        if name:
            self._requests[name].add(took_ms, now_ms)
        if name == "heartbeat":
            self._heartbeat_ms = now_ms

    def rebalance(self, settled: bool, now_ms: float) -> None:
        """This is how things are with the group."""
        if not settled:
            if isnan(self._rebalance_began_ms):
                self._rebalance_began_ms = now_ms
        elif not isnan(self._rebalance_began_ms):
            self._rebalances.add(now_ms - self._rebalance_began_ms, now_ms)
            self._rebalance_ms, self._rebalance_began_ms = now_ms, NAN

    def rebalance_failed(self, now_ms: float) -> None:
        """The group went on without this member, or did not take it in."""
        self._failed_rebalances.add(1, now_ms)

    def listened(self, name: str, took_ms: float, now_ms: float) -> None:
        """The user's listener was told."""
        self._callbacks[name].add(took_ms, now_ms)

    # -- figures

    def figures(
        self,
        partitions: Mapping[TopicPartition, PartitionStanding],
        replicas: Mapping[TopicPartition, int],
        connections: int,
        in_group: bool,
        now_ms: float,
    ) -> dict[str, Figures | dict[str, Figures]]:
        """Everything: figures by name; those of topics, partitions and nodes by theirs first. `replicas`: where partitions are read from,
        if not at their leaders.
        """
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

    def _fetches(self, partitions: Mapping[TopicPartition, PartitionStanding], now_ms: float) -> Figures:
        leads = [one.lead for one in partitions.values() if one.lead is not None]
        return {
            **self._all.figures(now_ms),
            **_fetch_figures(self._fetch, now_ms),
            **average_and_maximum("fetch-throttle-time", self._throttled, now_ms),
            "records-lag-max": self._lag.greatest(now_ms),
            "records-lead-min": min(leads, default=NAN),
        }

    def _partition(self, tp: TopicPartition, one: PartitionStanding, replica: int | None, now_ms: float) -> Figures:
        lags = self._lags.get(tp) or Moving()
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
