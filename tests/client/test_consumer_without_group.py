"""A subscription without a group: one consumer reads all partitions of its topics and commits nothing."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from memory_cluster import MemoryCluster, MemoryLog

import ottla
from ottla.aio import Consumer
from ottla.base.ids import TopicPartition
from ottla.errors import InvalidTopic
from ottla.records.build import build_batch
from ottla.wire import messages as m
from ottla.wire.errors import InvalidGroupId

PATIENCE_S = 20


def fill(cluster: MemoryCluster, topic: str, partition: int, *values: bytes) -> None:
    cluster.logs[topic][partition].append(bytes(build_batch([(0, None, value, ()) for value in values])))
    for node in cluster.nodes.values():
        node.look_again()


@pytest.fixture
def alone(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings of a consumer without a group."""
    return {**quick, "auto_offset_reset": "earliest", "metadata_max_age_ms": 50}


async def values(consumer: Consumer, count: int) -> set[bytes | None]:
    """The values of the next records."""
    found: list[bytes | None] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < count:
            found += [record.value for record in await consumer.poll(1000)]
    return set(found)


async def test_all_partitions_of_the_topics_are_read(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    cluster.create("a", 2)
    cluster.create("b")
    fill(cluster, "a", 0, b"one")
    fill(cluster, "a", 1, b"two")
    fill(cluster, "b", 0, b"three")
    async with Consumer("a", "b", **alone) as consumer:
        assert await values(consumer, 3) == {b"one", b"two", b"three"}
        assert consumer.subscription() == {"a", "b"}
        assert consumer.assignment() == [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
        with pytest.raises(InvalidGroupId, match="group_id"):
            await consumer.commit()
    assert not cluster.groups.offsets


async def test_partitions_that_are_added_later_are_read_too(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    cluster.create("a")
    fill(cluster, "a", 0, b"old")
    async with Consumer("a", **alone) as consumer:
        assert await values(consumer, 1) == {b"old"}
        cluster.logs["a"].append(MemoryLog())
        cluster.leaders["a", 1] = 1
        fill(cluster, "a", 1, b"new")
        assert await values(consumer, 1) == {b"new"}
        assert await consumer.position(("a", 0)) == 1


async def test_topics_of_a_pattern_are_found_also_when_they_are_created_later(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    cluster.create("orders-1")
    cluster.create("other")
    fill(cluster, "orders-1", 0, b"one")
    fill(cluster, "other", 0, b"not this")
    async with Consumer(**alone) as consumer:
        consumer.subscribe(re.compile("orders-.*"))
        assert await values(consumer, 1) == {b"one"}
        cluster.create("orders-2")
        fill(cluster, "orders-2", 0, b"two")
        assert await values(consumer, 1) == {b"two"}
        assert consumer.subscription() == {"orders-1", "orders-2"}


async def test_another_subscription_replaces_the_first(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    cluster.create("a")
    cluster.create("b")
    fill(cluster, "a", 0, b"one")
    fill(cluster, "b", 0, b"two")
    async with Consumer("a", **alone) as consumer:
        assert await values(consumer, 1) == {b"one"}
        consumer.subscribe("b")
        assert await values(consumer, 1) == {b"two"}
        await consumer.unsubscribe()
        assert (consumer.subscription(), consumer.assignment()) == (frozenset(), [])
        consumer.assign([("a", 0)])
        assert await values(consumer, 1) == {b"one"}


async def test_a_permanent_error_of_a_topic_is_raised(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    def refuse(node: Any, request: m.MetadataRequest) -> m.MetadataResponse:
        topics = [m.MetadataResponseTopic(error_code=InvalidTopic.code, name=topic.name) for topic in request.topics or ()]
        return m.MetadataResponse(topics=topics)

    cluster.faults["Metadata"] += [refuse] * 100
    async with Consumer("no/topic", **alone) as consumer:
        with pytest.raises(InvalidTopic, match="no/topic"):
            await values(consumer, 1)


def test_the_blocking_consumer_subscribes_without_a_group_too(cluster: MemoryCluster, alone: dict[str, Any]) -> None:
    cluster.logs["t"][0].append(bytes(build_batch([(0, None, b"one", ())])))
    with ottla.Consumer("t", **alone) as consumer:
        assert [record.value for record in consumer.poll(PATIENCE_S * 1000)] == [b"one"]
