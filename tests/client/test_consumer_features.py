"""Consumer features other than group membership, with asyncio and blocking, against an in-memory cluster."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from memory_cluster import MemoryCluster

import ottla
from ottla.aio import Consumer, Producer
from ottla.base.ids import TopicPartition
from ottla.client.consumer.record import ConsumerRecord
from ottla.client.errors import AlreadyClosed, WokenUp
from ottla.client.group.commits import OffsetAndMetadata
from ottla.errors import RecordDeserializationFailed
from ottla.records.build import build_batch
from ottla.wire import messages as m

T = TopicPartition("t", 0)
PATIENCE_S = 20


def fill(cluster: MemoryCluster, topic: str = "t", count: int = 10, partition: int = 0) -> None:
    """Append records whose values are their offsets."""
    log = cluster.logs[topic][partition]
    values = range(log.end, log.end + count)
    log.append(bytes(build_batch([(0, None, b"%d" % value, ()) for value in values])))
    for node in cluster.nodes.values():
        node.look_again()


@pytest.fixture
def member(quick: dict[str, Any]) -> dict[str, Any]:
    """Settings of a group member."""
    return {**quick, "group_id": "g", "auto_offset_reset": "earliest", "heartbeat_interval_ms": 20, "session_timeout_ms": 5000}


def committed(cluster: MemoryCluster) -> int | None:
    kept = cluster.groups.offsets.get(("t", 0))
    return None if kept is None else kept[0]


async def until(holds: Callable[[], Any]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


# -- interceptors and deserializers


class Watching:
    def __init__(self) -> None:
        self.seen: list[int] = []
        self.commits: list[Any] = []
        self.closed = False

    def on_consume(self, records: list[ConsumerRecord]) -> list[ConsumerRecord]:
        self.seen += [record.offset for record in records]
        return records

    def on_commit(self, offsets: dict[TopicPartition, OffsetAndMetadata]) -> None:
        self.commits.append({tp: kept.offset for tp, kept in offsets.items()})

    def close(self) -> None:
        self.closed = True


async def test_interceptors_receive_read_records_and_commits(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    watching = Watching()
    async with Consumer("t", interceptors=[watching], **member) as consumer:
        await consumer.poll(5000, 4)
        await consumer.commit({T: 2})
        async for record in consumer:
            if record.offset == 5:
                break
    assert watching.seen == [0, 1, 2, 3, 4, 5]
    assert watching.commits == [{T: 2}, {T: 6}]
    assert watching.closed


async def test_the_error_of_an_unreadable_record_says_how_to_skip_it(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Producer(**quick) as producer:
        for value in (b"1", b"x", b"3"):
            await producer.send("t", value)
    seen = []  # type: ignore[var-annotated]
    async with Consumer(value_deserializer=lambda data: int(data), auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([T])
        while len(seen) < 2:
            try:
                seen += [record.value for record in await consumer.poll(5000)]
            except RecordDeserializationFailed as error:
                assert (error.partition, error.offset, error.record.value) == (T, 1, b"x")
                consumer.seek(error.partition, error.offset + 1)
    assert seen == [1, 3]


# -- wakeup


async def waiting_calls(consumer: Consumer, how: str) -> None:
    match how:
        case "poll":
            await consumer.poll()
        case "iterate":
            async for _ in consumer:
                raise AssertionError("there are no records")
        case "position":
            await consumer.position(T)
        case "commit":
            await consumer.commit({T: 0})
        case "committed":
            await consumer.committed([T])


@pytest.mark.parametrize("how", ["poll", "iterate", "position", "commit", "committed"])
async def test_a_wakeup_ends_only_the_waiting_call(cluster: MemoryCluster, member: dict[str, Any], how: str) -> None:
    async with Consumer(**{**member, "enable_auto_commit": False}) as consumer:
        consumer.assign([T])
        if how != "poll" and how != "iterate":
            cluster.nodes[1].stop()
        waiting = asyncio.ensure_future(waiting_calls(consumer, how))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        consumer.wakeup()
        with pytest.raises(WokenUp):
            await asyncio.wait_for(waiting, PATIENCE_S)
        assert await consumer.poll(0) == []


async def test_a_wakeup_without_a_waiting_call_ends_the_next_poll_and_loses_nothing(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer(auto_offset_reset="earliest", **quick) as consumer:
        consumer.assign([T])
        async for record in consumer:
            if record.offset == 3:
                break
        consumer.wakeup()
        with pytest.raises(WokenUp):
            await consumer.poll(5000)
        assert [record.offset for record in await consumer.poll(5000)] == [4, 5, 6, 7, 8, 9]


async def test_a_wakeup_can_come_from_any_thread(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    async with Consumer(**quick) as consumer:
        consumer.assign([T])
        threading.Timer(0.02, consumer.wakeup).start()
        with pytest.raises(WokenUp):
            await asyncio.wait_for(consumer.poll(), PATIENCE_S)


async def test_a_cancelled_commit_does_not_consume_a_wakeup(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    async with Consumer(**{**member, "enable_auto_commit": False}) as consumer:
        consumer.assign([T])
        cluster.nodes[1].stop()
        waiting = asyncio.ensure_future(consumer.commit({T: 0}))
        await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting


def test_wakeup_is_the_only_call_that_another_thread_may_make(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    errors: list[BaseException] = []
    consumer = ottla.Consumer(**quick)
    consumer.assign([T])
    began = threading.Event()

    def run() -> None:
        began.set()
        try:
            consumer.poll()
        except WokenUp as error:
            errors.append(error)
        finally:
            consumer.close()

    thread = threading.Thread(target=run)
    thread.start()
    assert began.wait(PATIENCE_S)
    deadline = time.monotonic() + PATIENCE_S
    while consumer._waiting is None:
        assert time.monotonic() < deadline, "the thread does not poll"
        time.sleep(0.001)
    for call in (lambda: consumer.poll(0), consumer.close):
        with pytest.raises(RuntimeError, match=r"another thread polls .*wakeup\(\)"):
            call()
    consumer.wakeup()
    thread.join(PATIENCE_S)
    assert [type(error) for error in errors] == [WokenUp]
    consumer.wakeup()
    with pytest.raises(AlreadyClosed):
        consumer.poll(0)


# -- positions


async def test_lag_is_known_without_a_request_after_the_first_fetch(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer(auto_offset_reset="earliest", **quick) as consumer:
        with pytest.raises(ValueError, match="not assigned"):
            consumer.current_lag(T)
        consumer.assign([T])
        assert consumer.current_lag(T) is None
        await consumer.poll(5000, 4)
        assert consumer.current_lag(T) == 6
        async for record in consumer:
            if record.offset == 7:
                break
        assert consumer.current_lag(T) == 2
        consumer.seek(T, 0)
        assert consumer.current_lag(T) == 10


async def test_a_seek_to_a_committed_offset_sends_its_epoch_to_the_leader(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer(**quick) as consumer:
        consumer.assign([T])
        consumer.seek(T, OffsetAndMetadata(4, "mine", 0))
        assert (await consumer.poll(5000))[0].offset == 4
    asked = [request.topics[0].partitions[0] for _, request in cluster.requests if isinstance(request, m.FetchRequest) and request.topics]
    assert next((one.fetch_offset, one.last_fetched_epoch) for one in asked) == (4, 0)


# -- topics


async def test_topics_are_listed_without_internal_ones(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    cluster.create("__consumer_offsets")
    cluster.internal.add("__consumer_offsets")
    async with Consumer(**quick) as consumer:
        assert await consumer.list_topics() == {"many": [("many", 0), ("many", 1), ("many", 2)], "t": [T]}
    async with Consumer(exclude_internal_topics=False, **quick) as consumer:
        assert "__consumer_offsets" in await consumer.list_topics()


async def test_listing_topics_is_retried_until_a_broker_answers_or_the_timeout(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    node = cluster.nodes[1]
    node.up = False
    async with Consumer(**quick) as consumer:
        with pytest.raises(ottla.KafkaError, match="no broker can be reached"):
            await consumer.list_topics(timeout_ms=20)
        asyncio.get_running_loop().call_later(0.03, setattr, node, "up", True)
        assert "t" in await consumer.list_topics(timeout_ms=20_000)


# -- closing


STATIC = {"group_instance_id": "one"}
NEXT = {"group_protocol": "consumer"}
#: Settings, the user's choice, and whether the consumer leaves the group; `None` under the consumer protocol: leaves temporarily.
LEAVING: dict[str, tuple[dict[str, Any], bool | None, Iterable[int]]] = {
    "a member leaves": ({}, None, [1]),
    "unless it is not to": ({}, False, []),
    "a static one stays": (STATIC, None, []),
    "unless it is to leave": (STATIC, True, [1]),
    "next, a member leaves": (NEXT, None, [-1]),
    "next, unless it is not to": (NEXT, False, []),
    "next, a static one is away for a while": (NEXT | STATIC, None, [-2]),
    "next, unless it is to leave": (NEXT | STATIC, True, [-1]),
}


@pytest.mark.parametrize(("how", "leave_group", "left"), LEAVING.values(), ids=LEAVING)
async def test_close_leaves_the_group_as_requested(
    cluster: MemoryCluster, member: dict[str, Any], how: dict[str, Any], leave_group: bool | None, left: Iterable[int]
) -> None:
    fill(cluster)
    if "group_protocol" in how:
        del member["heartbeat_interval_ms"], member["session_timeout_ms"]
    consumer = Consumer("t", **member, **how)
    await consumer.poll(5000)
    await consumer.close(leave_group=leave_group)
    found = []
    for _, request in cluster.requests:
        if isinstance(request, m.LeaveGroupRequest):
            found.append(1)
            assert [one.group_instance_id for one in request.members] == [how.get("group_instance_id")]
        elif isinstance(request, m.ConsumerGroupHeartbeatRequest) and request.member_epoch < 0:
            found.append(request.member_epoch)
    assert found == left
    assert committed(cluster) == 10


@pytest.mark.parametrize("how", [{}, NEXT], ids=["classic", "next"])
async def test_close_waits_for_silent_brokers_no_longer_than_its_timeout(
    cluster: MemoryCluster, member: dict[str, Any], how: dict[str, Any]
) -> None:
    fill(cluster)
    if how:
        del member["heartbeat_interval_ms"], member["session_timeout_ms"]
    consumer = Consumer("t", **member, **how)
    assert await consumer.poll(20_000)
    consumer.commit_async()
    cluster.nodes[1].stop()
    began_s = time.monotonic()
    await consumer.close(timeout_ms=50)
    # Without the limit, each step would take request_timeout_ms, which is 30 s.
    assert time.monotonic() - began_s < 15


# -- iterating


async def test_iteration_revokes_partitions_before_all_fetched_records_are_used_up(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    for partition in range(3):
        fill(cluster, "many", 300, partition)
    seen: list[tuple[int, int]] = []

    async def work(consumer: Consumer) -> None:
        async for record in consumer:
            seen.append((record.partition, record.offset))
            await asyncio.sleep(0.001)

    settings = {**member, "auto_commit_interval_ms": 5, "max_poll_records": 900}
    async with Consumer("many", **settings) as first, Consumer("many", **settings) as second:
        works = [asyncio.ensure_future(work(first))]
        await until(lambda: seen)
        works.append(asyncio.ensure_future(work(second)))
        await until(lambda: second.assignment() and len(first.assignment()) + len(second.assignment()) == 3)
        assert len(seen) < 900
        await until(lambda: len(set(seen)) == 900)
        for one in works:
            one.cancel()
        await asyncio.gather(*works, return_exceptions=True)


def test_closed_consumers_leave_no_thread(cluster: MemoryCluster, quick: dict[str, Any]) -> None:
    fill(cluster)
    threads = threading.active_count()
    for _ in range(10):
        with ottla.Consumer(auto_offset_reset="earliest", **quick) as consumer:
            consumer.assign([T])
            assert consumer.poll(20_000, 1)
        assert [record.offset for record in ottla.consume("t", limit=2, **quick)] == [0, 1]
    assert threading.active_count() == threads


async def test_closed_consumers_leave_no_task(cluster: MemoryCluster, member: dict[str, Any]) -> None:
    fill(cluster)
    async with Consumer("t", **member) as consumer:
        await consumer.poll(5000)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await consumer.poll()
    await until(lambda: len(asyncio.all_tasks()) == 1)
