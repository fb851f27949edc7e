"""`ottla.consume` and `ottla.aio.consume`: the records read, the offsets committed when the loop ends, and the end conditions."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_cluster import MemoryCluster, MemoryLog

import ottla
from ottla import aio
from ottla.base.ids import TopicPartition
from ottla.base.options import ConfigError
from ottla.client.consumer.consume import group_settings, parts_of
from ottla.client.errors import AlreadyClosed
from ottla.client.fetch.ranges import BadRange
from ottla.records.build import build_batch
from ottla.records.read import COMMIT_MARKER, marker

NOW_MS = 1_800_000_000_000
PATIENCE_S = 20


def fill(cluster: MemoryCluster, topic: str = "t", count: int = 10, partition: int = 0) -> None:
    """Append records whose values are their offsets, in batches of three."""
    log = cluster.logs[topic][partition]
    values = list(range(log.end, log.end + count))
    for at in range(0, count, 3):
        log.append(bytes(build_batch([(0, None, b"%d" % value, ()) for value in values[at : at + 3]])))
    for node in cluster.nodes.values():
        node.look_again()


def committed(cluster: MemoryCluster) -> int | None:
    kept = cluster.groups.offsets.get(("t", 0))
    return None if kept is None else kept[0]


@pytest.fixture
def member(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings of a group member, as `consume` takes them."""
    return {**quick, "group": "g", "heartbeat_interval_ms": 20, "session_timeout_ms": 5000}


# -- with a group, blocking


def test_a_loop_that_ends_at_its_limit_commits_all_and_the_next_continues(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    assert [record.offset for record in ottla.consume("t", limit=4, **member)] == [0, 1, 2, 3]
    assert committed(cluster) == 4
    assert [record.offset for record in ottla.consume("t", limit=4, **member)] == [4, 5, 6, 7]
    assert committed(cluster) == 8


def test_a_loop_left_by_break_receives_its_last_record_again(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    for record in ottla.consume("t", **member):
        if record.offset == 4:
            break
    assert committed(cluster) == 4


def test_a_loop_that_raises_receives_its_last_record_again(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    with pytest.raises(ZeroDivisionError):
        for record in ottla.consume("t", **member):
            _ = 1 // (4 - record.offset)
    assert committed(cluster) == 4


def test_ctrl_c_in_the_body_receives_the_record_again(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    with pytest.raises(KeyboardInterrupt):
        for record in ottla.consume("t", **member):
            if record.offset == 4:
                raise KeyboardInterrupt
    assert committed(cluster) == 4


def test_in_a_with_block_break_commits_and_the_loop_can_continue(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    with ottla.consume("t", **member) as records:
        for record in records:
            if record.offset == 4:
                break
        assert next(iter(records)).offset == 5
    assert committed(cluster) == 6
    with pytest.raises(AlreadyClosed):
        next(iter(records))


def test_in_a_with_block_an_exception_does_not_commit(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    with pytest.raises(ZeroDivisionError), ottla.consume("t", **member) as records:
        for record in records:
            _ = 1 // (4 - record.offset)
    assert committed(cluster) == 4


def test_processed_records_are_committed_while_the_loop_runs(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster, count=3000)
    kept = None
    for record in ottla.consume("t", auto_commit_interval_ms=0, limit=3000, **member):
        kept = committed(cluster)
        if kept is not None:
            # The commit runs concurrently with the body. It can be behind the loop, but not ahead of it.
            assert kept <= record.offset
            break
    assert kept is not None


def quiet_after(monkeypatch: pytest.MonkeyPatch, seen: list[Any], count: int) -> None:
    """Waits use a clock that stands still while records are on their way to `seen`, and runs fast before the group is stable and
    afterwards."""
    now_ms = 0

    def clock_ms(consumer: aio.Consumer) -> float:
        nonlocal now_ms
        now_ms += 0 if consumer.settled and len(seen) < count else 10_000
        return now_ms

    monkeypatch.setattr(aio.Consumer, "clock_ms", clock_ms)


def test_a_loop_ends_after_the_timeout_without_records_but_not_before_it_joined(
    cluster: MemoryCluster, member: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(cluster)
    seen: list[int] = []
    quiet_after(monkeypatch, seen, 10)
    for record in ottla.consume("t", timeout_ms=5000, **member):
        seen.append(record.offset)  # noqa: PERF401, one by one, since the clock goes by it
    assert seen == list(range(10))
    assert committed(cluster) == 10


def test_the_user_can_commit(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    with ottla.consume("t", enable_auto_commit=False, **member) as records:
        for record in records:
            if record.offset == 5:
                records.consumer.commit()
            if record.offset == 7:
                break
    assert committed(cluster) == 6


def test_deserializers_and_interceptors_are_passed_to_the_consumer(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    odd = type("Odd", (), {"on_consume": lambda self, records: [record for record in records if record.value % 2]})()
    found = ottla.consume("t", value_deserializer=lambda data: int(data), interceptors=[odd], limit=3, **member)
    assert [record.value for record in found] == [1, 3, 5]


# -- without a group


def values(*topics: str, into: list[Any] | None = None, **settings: Any) -> list[tuple[str, int, int]]:
    found = [] if into is None else into
    for record in ottla.consume(*topics, **settings):
        found.append((record.topic, record.partition, record.offset))
    return sorted(found)


def test_without_a_group_all_partitions_are_read_from_the_start_until_the_timeout(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    quiet_after(monkeypatch, seen, 6)
    for partition in range(3):
        fill(cluster, "many", 2, partition)
    assert values("many", into=seen, timeout_ms=300, **quick) == [
        ("many", partition, offset) for partition in range(3) for offset in range(2)
    ]
    assert not cluster.groups.offsets


def test_ranges_end_at_their_end(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    fill(cluster, "many", 5, 1)
    assert values("t@2:5", "many/1@-2:end", **quick) == [("many", 1, 3), ("many", 1, 4), ("t", 0, 2), ("t", 0, 3), ("t", 0, 4)]
    assert values("t@end:end", **quick) == []


def test_a_range_can_end_at_a_control_record(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster, count=2)
    end = build_batch([(0, *marker(COMMIT_MARKER, 0), ())], control=True, transactional=True, producer_id=7, producer_epoch=0)
    cluster.logs["t"][0].append(bytes(end))
    assert values("t@start:end", **quick) == [("t", 0, 0), ("t", 0, 1)]


def test_start_applies_to_ranges_without_one(cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    quiet_after(monkeypatch, seen, 4)
    fill(cluster)
    fill(cluster, "many", 5, 1)
    assert values("t", "many@4", into=seen, start="-3", timeout_ms=300, **quick) == [("many", 1, 4), ("t", 0, 7), ("t", 0, 8), ("t", 0, 9)]


async def test_added_partitions_are_read_from_their_start(
    cluster: MemoryCluster, quick: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ottla.client.consumer.consume.WAIT_MS", 5)
    fill(cluster, count=1)
    found = []
    async with asyncio.timeout(PATIENCE_S):
        async for record in aio.consume("t", metadata_max_age_ms=20, fetch_max_wait_ms=20, **quick):
            found.append((record.partition, record.offset))
            if len(found) == 3:
                break
            if len(found) == 1:
                cluster.logs["t"].append(MemoryLog())
                cluster.leaders["t", 1] = 1
                fill(cluster, "t", 2, 1)
    assert found == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("topics", "settings", "why"),
    [
        ((), {}, "needs a topic"),
        (("orders@nowhere",), {}, "no place in a log"),
        (("orders",), {"start": "1:2"}, "two ends"),
        (("orders@1:2",), {"group": "g"}, "leave partitions and ends out"),
        (("orders/1",), {"group": "g"}, "leave partitions and ends out"),
        (("orders@5",), {"group": "g"}, "not at an offset"),
        (("orders@start", "bills@end"), {"group": "g"}, "in one way only"),
        (("orders",), {"linger_ms": 5}, "unknown setting"),
    ],
)
def test_invalid_arguments_are_refused_before_reading(topics: tuple[str, ...], settings: dict[str, Any], why: str) -> None:
    for consume in (ottla.consume, aio.consume):
        with pytest.raises((ValueError, BadRange, ConfigError), match=why):
            consume(*topics, **settings)


def test_a_missing_partition_or_range_end_is_an_error(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="topic many has 3 partitions, no partition 7"):
        values("many/1,7", **quick)
    with pytest.raises(ValueError, match="give each an end"):
        values("many", "t@1:2", **quick)


@pytest.mark.parametrize(
    ("topic", "start", "reset"),
    [
        ("orders", None, "earliest"),
        ("orders", "end", "latest"),
        ("orders", "-1h", "by_duration:PT3600.000S"),
        ("orders@-1h", None, "by_duration:PT3600.000S"),
    ],
)
def test_a_group_without_offsets_starts_at_the_reset_policy(topic: str, start: str | None, reset: str) -> None:
    settings = group_settings("g", parts_of([topic], start, NOW_MS), NOW_MS)
    assert settings == {"group_id": "g", "auto_offset_reset": reset}
    ottla.aio.Consumer(**settings)


# -- asyncio


async def test_leaving_the_asyncio_loop_closes_it(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    async for record in aio.consume("t", **member):
        if record.offset == 4:
            break
    # asyncio finalizes the generator a moment later.
    async with asyncio.timeout(PATIENCE_S):
        while committed(cluster) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert committed(cluster) == 4


async def test_an_async_with_block_closes_the_loop_at_its_end(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    async with aio.consume("t", **member) as records:
        async for record in records:
            if record.offset == 4:
                break
        assert records.consumer.assignment() == [TopicPartition("t", 0)]
    assert committed(cluster) == 5
    with pytest.raises(ZeroDivisionError):
        async with aio.consume("t", **member) as records:
            async for record in records:
                _ = 1 // (8 - record.offset)
    assert committed(cluster) == 8


async def test_the_asyncio_loop_ends_at_its_limit(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    assert [record.offset async for record in aio.consume("t", limit=4, **member)] == [0, 1, 2, 3]
    assert committed(cluster) == 4


async def test_cancelling_the_task_does_not_commit_the_current_record(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    reached = asyncio.Event()

    async def work() -> None:
        async with aio.consume("t", **member) as records:
            async for record in records:
                if record.offset == 4:
                    reached.set()
                    await asyncio.sleep(1000)

    task = asyncio.create_task(work())
    await asyncio.wait_for(reached.wait(), PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert committed(cluster) == 4
