"""Consumer metrics: the metrics alone, and a complete consumer against an in-memory cluster."""

from __future__ import annotations

import math
from typing import Any

import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla.aio import Consumer
from ottla.base.ids import TopicPartition
from ottla.client.consumer.metrics import Consumed, ConsumedChunk, ConsumerMetrics, FetchProgress
from ottla.records.build import build_batch
from ottla.wire import messages as m
from ottla.wire.messages import HeartbeatRequest, JoinGroupRequest

NOW = 5_000_000.0
A, B = TopicPartition("a", 0), TopicPartition("b", 1)


def figures(metrics: ConsumerMetrics, now_ms: float = NOW, **partitions: FetchProgress) -> Any:
    progress = {TopicPartition(name, 0): one for name, one in partitions.items()}
    return metrics.figures(progress, {}, 1, True, now_ms)


def chunk(tp: TopicPartition, records: int, size: int, lag: int, lead: int) -> Consumed:
    return Consumed(tp, records, ConsumedChunk(records, size, lag, lead))


def test_consumed_records_are_counted_by_topic() -> None:
    metrics = ConsumerMetrics()
    metrics.consumed([chunk(A, 10, 1000, 5, 3), chunk(B, 30, 3000, 50, 3)], NOW)
    found = figures(metrics)
    own, topics = found["consumer-fetch-manager-metrics"], found["consumer-topic-metrics"]
    assert (own["records-consumed-total"], own["bytes-consumed-total"], own["records-per-request-avg"]) == (40, 4000, 20)
    assert (own["fetch-size-avg"], own["fetch-size-max"], own["records-lag-max"]) == (2000, 3000, 50)
    assert {name: one["records-consumed-total"] for name, one in topics.items()} == {"a": 10, "b": 30}


def test_lag_and_lead_are_current_values_and_nan_while_unknown() -> None:
    metrics = ConsumerMetrics()
    metrics.consumed([chunk(A, 10, 1000, 4, 0), chunk(A, 10, 1000, 8, 0)], NOW)
    found = figures(metrics, a=FetchProgress(2, 7), b=FetchProgress(None, None))
    partitions = found["consumer-partition-metrics"]
    assert (partitions["a-0"]["records-lag"], partitions["a-0"]["records-lag-avg"], partitions["a-0"]["records-lag-max"]) == (2, 6, 8)
    assert (partitions["a-0"]["records-lead"], partitions["a-0"]["preferred-read-replica"]) == (7, -1)
    assert math.isnan(partitions["b-0"]["records-lag"])
    assert found["consumer-fetch-manager-metrics"]["records-lead-min"] == 7


def test_polls_are_counted_with_their_interval_and_idle_time() -> None:
    metrics = ConsumerMetrics()
    assert math.isnan(figures(metrics)["consumer-metrics"]["last-poll-seconds-ago"])
    metrics.polled(NOW, NOW + 10)
    metrics.polled(NOW + 100, NOW + 110)
    own = figures(metrics, NOW + 1100)["consumer-metrics"]
    assert (own["time-between-poll-avg"], own["last-poll-seconds-ago"]) == (100, 1)
    assert own["poll-idle-ratio-avg"] == pytest.approx(0.1)


def test_a_rebalance_lasts_until_the_assignment_is_stable() -> None:
    metrics = ConsumerMetrics()
    for settled, at_ms in ((True, 0), (False, 100), (False, 200), (True, 350), (True, 400)):
        metrics.rebalance(settled, NOW + at_ms)
    found = figures(metrics, NOW + 1350)["consumer-coordinator-metrics"]
    assert (found["rebalance-total"], found["rebalance-latency-total"], found["last-rebalance-seconds-ago"]) == (1, 250, 1)


def test_responses_of_the_coordinator_are_counted_by_api() -> None:
    metrics = ConsumerMetrics()
    metrics.answered(HeartbeatRequest, 5, NOW)
    metrics.answered(JoinGroupRequest, 70, NOW)
    found = figures(metrics, NOW + 2000)["consumer-coordinator-metrics"]
    assert (found["heartbeat-total"], found["heartbeat-response-time-max"], found["last-heartbeat-seconds-ago"]) == (1, 5, 2)
    assert (found["join-total"], found["join-time-avg"], found["sync-total"]) == (1, 70, 0)


def fill(cluster: MemoryCluster, count: int = 10) -> None:
    log = cluster.logs["t"][0]
    log.append(bytes(build_batch([(0, None, b"%d" % value, ()) for value in range(count)])))


@pytest.mark.parametrize("how", [{}, {"group_protocol": "consumer"}], ids=["classic", "next"])
async def test_a_member_counts_its_group_requests(cluster: MemoryCluster, quick: dict[str, Any], how: dict[str, Any]) -> None:
    fill(cluster)
    assigned: list[Any] = []
    listener = type("Listener", (), {"on_partitions_assigned": lambda self, partitions: assigned.append(partitions)})()
    async with Consumer("t", group_id="g", auto_offset_reset="earliest", listener=listener, **quick, **how) as consumer:
        seen = 0
        while seen < 10:
            seen += len(await consumer.poll(5000, 4))
        # The last chunk counts at the next poll.
        await consumer.poll(0)
        await consumer.commit()
        await consumer.committed([("t", 0)])
        found: Any = consumer.metrics()
    own, fetches, group = (found[f"consumer-{name}metrics"] for name in ("", "fetch-manager-", "coordinator-"))
    assert (fetches["records-consumed-total"], fetches["fetch-total"] >= 1, fetches["fetch-latency-max"] > 0) == (10, True, True)
    assert found["consumer-partition-metrics"]["t-0"]["records-lag"] == 0
    assert found["consumer-topic-metrics"]["t"]["bytes-consumed-total"] == fetches["bytes-consumed-total"] > 60
    assert found["consumer-node-metrics"]["1"]["fetch-total"] == fetches["fetch-total"]
    assert (group["assigned-partitions"], group["commit-total"], group["rebalance-total"]) == (1, 1, 1)
    assert group["partition-assigned-latency-avg"] >= 0
    assert group["heartbeat-total" if how else "join-total"] >= 1
    assert own["commit-sync-time-ns-total"] > 0
    assert own["committed-time-ns-total"] > 0
    assert own["connection-count"] >= 2
    assert own["time-between-poll-max"] > 0


async def test_a_refused_join_counts_as_a_failed_rebalance(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    cluster.faults["JoinGroup"].append(lambda node, request: m.JoinGroupResponse(error_code=25) if request.member_id else None)
    async with Consumer("t", group_id="g", auto_offset_reset="earliest", **quick) as consumer:
        assert len(await consumer.poll(20_000)) == 10
        found: Any = consumer.metrics()["consumer-coordinator-metrics"]
    assert (found["failed-rebalance-total"], found["rebalance-total"]) == (1, 1)


def test_a_consumer_without_a_group_has_no_group_metrics(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    with ottla.Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([("t", 0)])
        assert len(consumer.poll(20_000)) == 10
        found: Any = consumer.metrics()
    assert "consumer-coordinator-metrics" not in found
    assert found["consumer-partition-metrics"]["t-0"]["records-lead"] == 10


async def test_records_are_counted_once_at_the_poll_that_returns_them(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.logs["t"][0].append(bytes(build_batch([(0, None, b"%d" % number, ()) for number in range(10)])))
    async with Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([("t", 0)])
        totals = []
        for limit in (4, 3, 3):
            await consumer.poll(max_records=limit)
            totals.append(metric_value(consumer, "records-consumed-total"))
        await consumer.poll(0)
        assert (totals, metric_value(consumer, "records-consumed-total")) == ([4, 7, 10], 10)
        consumer.seek(("t", 0), 2)
        await consumer.poll(max_records=4)
        await consumer.poll_table(1000)
        assert metric_value(consumer, "records-consumed-total") == 18
        assert metric_value(consumer, "records-per-request-avg") == 9


def metric_value(consumer: Consumer, name: str) -> Any:
    found: Any = consumer.metrics()["consumer-fetch-manager-metrics"]
    return found[name]
