"""Producer metrics: the sampled metrics alone, and a complete producer against an in-memory cluster."""

from __future__ import annotations

import math
from typing import Any

import pytest
from memory_cluster import MemoryCluster

from ottla.aio import Producer
from ottla.client.errors import BufferExhausted
from ottla.client.sampled_stats import WINDOW_MS, SampledStat
from ottla.wire.errors import InvalidRecord

NOW = 5_000_000.0


def test_averages_maxima_and_rates_expire_and_totals_do_not() -> None:
    moving = SampledStat()
    moving.add(10, NOW)
    moving.add(20, NOW + WINDOW_MS)
    assert (moving.average(NOW + WINDOW_MS), moving.greatest(NOW + WINDOW_MS)) == (15, 20)
    assert moving.average(NOW + 2 * WINDOW_MS) == 20
    assert math.isnan(moving.average(NOW + 4 * WINDOW_MS))
    assert moving.rate(NOW + 4 * WINDOW_MS) == 0
    assert moving.total == 30


def test_a_single_sample_is_spread_over_the_window() -> None:
    moving = SampledStat()
    moving.add(300, NOW)
    assert moving.rate(NOW + 1) == 300 * 1000 / WINDOW_MS
    moving.add(300, NOW + WINDOW_MS)
    assert moving.rate(NOW + 1.5 * WINDOW_MS) == pytest.approx(600 * 1000 / (1.5 * WINDOW_MS))


def test_a_bulk_measurement_counts_as_many_in_the_average() -> None:
    moving = SampledStat()
    moving.add(1000, NOW, 10)
    assert moving.average(NOW) == 100


async def test_a_producer_counts_sent_records_by_topic_and_broker(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(compression_type="gzip", **quick) as producer:
        for _ in range(100):
            await producer.send("t", b"same" * 50)
        await producer.send("many", b"x", partition=0)
        await producer.flush()
        found: Any = producer.metrics()
    own, topic = found["producer-metrics"], found["producer-topic-metrics"]["t"]
    assert (own["record-send-total"], topic["record-send-total"]) == (101, 100)
    assert own["outgoing-byte-total"] > topic["byte-total"] > 0
    assert topic["compression-rate"] < 0.2
    assert own["buffer-available-bytes"] == own["buffer-total-bytes"] == producer.options.buffer_memory
    assert 200 < own["record-size-avg"] < 220
    assert (own["requests-in-flight"], own["record-error-total"], own["connection-count"]) == (0, 0, 2)
    assert own["request-total"] == own["response-total"] > 0
    assert own["request-latency-max"] == found["producer-node-metrics"]["1"]["request-latency-max"] > 0
    assert own["flush-time-ns-total"] > 0
    assert own["metadata-wait-time-ns-total"] > 0


async def test_a_producer_counts_retries_errors_splits_and_queue_time(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    codes = [19, 10, 87]
    cluster.batch_faults += [lambda topic, partition, header: codes.pop(0) if codes else None] * 3
    async with Producer(buffer_memory=1024, max_block_ms=300, **quick) as producer:
        deliveries = [await producer.send("t", b"x" * 50) for _ in range(4)]
        await deliveries[3]
        with pytest.raises(InvalidRecord):
            await deliveries[0]
        cluster.nodes[1].up = False
        await producer.send("t", b"x" * 1000)
        with pytest.raises(BufferExhausted):
            await producer.send("t", b"x")
        found: Any = producer.metrics()["producer-metrics"]
        assert found["waiting-threads"] == 0
        assert found["bufferpool-wait-time-ns-total"] > 15e6
        assert (found["buffer-exhausted-total"], found["batch-split-total"]) == (1, 1)
        assert (found["record-retry-total"], found["record-error-total"]) == (4, 2)
        await producer.close(1)
